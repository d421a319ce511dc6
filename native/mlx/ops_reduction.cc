#include "groups.h"
#include "mlx/ops.h"

namespace tidemark {

using Axes = std::optional<std::vector<int>>;  // absent: all axes

#define REDUCE(name, op)                                                                    \
  b.def(name, [](const mx::array& a, Axes axes, bool keepdims, mx::Stream s) {              \
    return axes ? mx::op(a, *axes, keepdims, s) : mx::op(a, keepdims, s);                   \
  })
#define ARG_REDUCE(name, op)                                                                \
  b.def(name, [](const mx::array& a, std::optional<int> axis, bool keepdims, mx::Stream s) { \
    return axis ? mx::op(a, *axis, keepdims, s) : mx::op(a, keepdims, s);                   \
  })

void bindReduction(Binder& b) {
  REDUCE("sum", sum);
  REDUCE("prod", prod);
  REDUCE("max", max);
  REDUCE("min", min);
  REDUCE("mean", mean);
  REDUCE("logsumexp", logsumexp);
  REDUCE("all", all);
  REDUCE("any", any);
  b.def("variance", [](const mx::array& a, Axes axes, bool keepdims, mx::Stream s) {
    return axes ? mx::var(a, *axes, keepdims, 0, s) : mx::var(a, keepdims, 0, s);
  });
  ARG_REDUCE("argmax", argmax);
  ARG_REDUCE("argmin", argmin);
  b.def("softmax", [](const mx::array& a, std::vector<int> axes, bool precise, mx::Stream s) { return mx::softmax(a, axes, precise, s); });
  b.def("cumsum", [](const mx::array& a, int axis, bool reverse, bool inclusive, mx::Stream s) { return mx::cumsum(a, axis, reverse, inclusive, s); });
  b.def("cumprod", [](const mx::array& a, int axis, bool reverse, bool inclusive, mx::Stream s) { return mx::cumprod(a, axis, reverse, inclusive, s); });

  b.def("sort", [](const mx::array& a, int axis, mx::Stream s) { return mx::sort(a, axis, s); });
  b.def("argsort", [](const mx::array& a, int axis, mx::Stream s) { return mx::argsort(a, axis, s); });
  b.def("partition", [](const mx::array& a, int kth, int axis, mx::Stream s) { return mx::partition(a, kth, axis, s); });
  b.def("argpartition", [](const mx::array& a, int kth, int axis, mx::Stream s) { return mx::argpartition(a, kth, axis, s); });
  b.def("topk", [](const mx::array& a, int k, int axis, mx::Stream s) { return mx::topk(a, k, axis, s); });
}

}  // namespace tidemark
