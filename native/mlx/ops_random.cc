#include "groups.h"
#include "mlx/random.h"

namespace tidemark {

void bindRandom(Binder& b) {
  b.def("randomKey", [](double seed) {
    if (!(seed >= 0 && seed <= 9007199254740991.0)) badArgument(0, "a seed: an integer from 0 to 2^53 - 1");
    return mx::random::key(static_cast<uint64_t>(seed));
  });
  b.def("randomSplit", [](const mx::array& key, int count, mx::Stream s) { return mx::random::split(key, count, s); });
  // The key is required: MLX's own default key is seeded by time, the same for every thread.
  b.def("randomUniform", [](double low, double high, mx::Shape shape, mx::Dtype dtype, const mx::array& key, mx::Stream s) {
    return mx::random::uniform(mx::array(low, dtype), mx::array(high, dtype), shape, dtype, key, s);
  });
  b.def("randomNormal", [](mx::Shape shape, mx::Dtype dtype, const mx::array& key, mx::Stream s) {
    return mx::random::normal(shape, dtype, std::nullopt, std::nullopt, key, s);
  });
  b.def("randomCategorical", [](const mx::array& logits, int axis, const mx::array& key, mx::Stream s) { return mx::random::categorical(logits, axis, key, s); });
}

}  // namespace tidemark
