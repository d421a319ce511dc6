#include "groups.h"
#include "mlx/fast.h"

namespace tidemark {

using Maybe = std::optional<mx::array>;

void bindFast(Binder& b) {
  b.def("rmsNorm", [](const mx::array& x, Maybe weight, float eps, mx::Stream s) { return mx::fast::rms_norm(x, weight, eps, s); });
  b.def("layerNorm", [](const mx::array& x, Maybe weight, Maybe bias, float eps, mx::Stream s) { return mx::fast::layer_norm(x, weight, bias, eps, s); });
  // The offset is a number for one sequence, or an int32 tensor [B] for rows of a batch.
  b.def("rope", [](const mx::array& x, int dims, bool traditional, std::optional<float> base, float scale, Operand offset, Maybe freqs, mx::Stream s) {
    if (offset.tensor) return mx::fast::rope(x, dims, traditional, base, scale, *offset.tensor, freqs, s);
    return mx::fast::rope(x, dims, traditional, base, scale, toInt32(offset.number, 5), freqs, s);
  });
  b.def("sdpa", [](const mx::array& q, const mx::array& k, const mx::array& v, float scale, std::string mode, Maybe mask, Maybe sinks, mx::Stream s) {
    return mx::fast::scaled_dot_product_attention(q, k, v, scale, mode, mask, sinks, false, s);
  });
  // S *= g; S += beta (v - S k) k^T; out = S q. No scale of its own: scale q before. Returns [out, state].
  b.def("gatedDeltaUpdate", [](const mx::array& q, const mx::array& k, const mx::array& v, const mx::array& gates, const mx::array& beta, Maybe state, Maybe mask,
                               mx::Stream s) { return mx::fast::gated_delta_update(q, k, v, gates, beta, state, mask, s); });
}

}  // namespace tidemark
