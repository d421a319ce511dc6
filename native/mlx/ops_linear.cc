#include "groups.h"
#include "mlx/einsum.h"
#include "mlx/linalg.h"
#include "mlx/ops.h"

namespace tidemark {

using Maybe = std::optional<mx::array>;

void bindLinear(Binder& b) {
  b.def("matmul", [](const mx::array& x, const mx::array& y, mx::Stream s) { return mx::matmul(x, y, s); });
  b.def("addmm", [](const mx::array& c, const mx::array& x, const mx::array& y, float alpha, float beta, mx::Stream s) {
    return mx::addmm(c, x, y, alpha, beta, s);
  });
  b.def("einsum", [](std::string subscripts, std::vector<mx::array> operands, mx::Stream s) { return mx::einsum(subscripts, operands, s); });
  b.def("outer", [](const mx::array& x, const mx::array& y, mx::Stream s) { return mx::outer(x, y, s); });
  b.def("conv1d", [](const mx::array& input, const mx::array& weight, int stride, int padding, int dilation, int groups, mx::Stream s) {
    return mx::conv1d(input, weight, stride, padding, dilation, groups, s);
  });
  b.def("triInv", [](const mx::array& a, bool upper, mx::Stream s) { return mx::linalg::tri_inv(a, upper, s); });

  b.def("quantizedMatmul", [](const mx::array& x, const mx::array& w, const mx::array& scales, Maybe biases, bool transpose, int groupSize, int bits,
                              std::string mode, mx::Stream s) { return mx::quantized_matmul(x, w, scales, biases, transpose, groupSize, bits, mode, s); });
  b.def("quantize", [](const mx::array& w, int groupSize, int bits, std::string mode, mx::Stream s) {
    return mx::quantize(w, groupSize, bits, mode, std::nullopt, s);
  });
  b.def("dequantize", [](const mx::array& w, const mx::array& scales, Maybe biases, int groupSize, int bits, std::string mode, std::optional<mx::Dtype> dtype,
                         mx::Stream s) { return mx::dequantize(w, scales, biases, groupSize, bits, mode, std::nullopt, dtype, s); });
  b.def("gatherMm", [](const mx::array& x, const mx::array& y, Maybe lhs, Maybe rhs, bool sorted, mx::Stream s) {
    return mx::gather_mm(x, y, lhs, rhs, sorted, s);
  });
  b.def("gatherQmm", [](const mx::array& x, const mx::array& w, const mx::array& scales, Maybe biases, Maybe lhs, Maybe rhs, bool transpose, int groupSize,
                        int bits, std::string mode, bool sorted, mx::Stream s) {
    return mx::gather_qmm(x, w, scales, biases, lhs, rhs, transpose, groupSize, bits, mode, std::nullopt, sorted, s);
  });
}

}  // namespace tidemark
