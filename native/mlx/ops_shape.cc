#include "groups.h"
#include "mlx/ops.h"

namespace tidemark {

void bindShape(Binder& b) {
  b.def("reshape", [](const mx::array& a, mx::Shape shape, mx::Stream s) { return mx::reshape(a, std::move(shape), s); });
  b.def("flatten", [](const mx::array& a, int start, int end, mx::Stream s) { return mx::flatten(a, start, end, s); });
  b.def("unflatten", [](const mx::array& a, int axis, mx::Shape shape, mx::Stream s) { return mx::unflatten(a, axis, std::move(shape), s); });
  b.def("transpose", [](const mx::array& a, std::optional<std::vector<int>> axes, mx::Stream s) {
    return axes ? mx::transpose(a, std::move(*axes), s) : mx::transpose(a, s);
  });
  b.def("swapaxes", [](const mx::array& a, int x, int y, mx::Stream s) { return mx::swapaxes(a, x, y, s); });
  b.def("moveaxis", [](const mx::array& a, int from, int to, mx::Stream s) { return mx::moveaxis(a, from, to, s); });
  b.def("expandDims", [](const mx::array& a, std::vector<int> axes, mx::Stream s) { return mx::expand_dims(a, axes, s); });
  b.def("squeeze", [](const mx::array& a, std::optional<std::vector<int>> axes, mx::Stream s) { return axes ? mx::squeeze(a, *axes, s) : mx::squeeze(a, s); });
  b.def("broadcastTo", [](const mx::array& a, mx::Shape shape, mx::Stream s) { return mx::broadcast_to(a, shape, s); });
  b.def("concatenate", [](std::vector<mx::array> arrays, int axis, mx::Stream s) { return mx::concatenate(std::move(arrays), axis, s); });
  b.def("stack", [](std::vector<mx::array> arrays, int axis, mx::Stream s) { return mx::stack(arrays, axis, s); });
  b.def("splitParts", [](const mx::array& a, int parts, int axis, mx::Stream s) { return mx::split(a, parts, axis, s); });
  b.def("splitAt", [](const mx::array& a, mx::Shape indices, int axis, mx::Stream s) { return mx::split(a, indices, axis, s); });
  b.def("repeat", [](const mx::array& a, int count, int axis, mx::Stream s) { return mx::repeat(a, count, axis, s); });
  b.def("tile", [](const mx::array& a, std::vector<int> counts, mx::Stream s) { return mx::tile(a, std::move(counts), s); });
  b.def("pad", [](const mx::array& a, std::vector<int> axes, mx::Shape low, mx::Shape high, double value, mx::Stream s) {
    return mx::pad(a, axes, low, high, mx::array(value, a.dtype()), "constant", s);
  });
  b.def("tril", [](const mx::array& a, int k, mx::Stream s) { return mx::tril(a, k, s); });
  b.def("triu", [](const mx::array& a, int k, mx::Stream s) { return mx::triu(a, k, s); });
  b.def("contiguous", [](const mx::array& a, mx::Stream s) { return mx::contiguous(a, false, s); });
  b.def("copy", [](const mx::array& a, mx::Stream s) { return mx::copy(a, s); });
  b.def("astype", [](const mx::array& a, mx::Dtype dtype, mx::Stream s) { return mx::astype(a, dtype, s); });
  b.def("view", [](const mx::array& a, mx::Dtype dtype, mx::Stream s) { return mx::view(a, dtype, s); });
  // MLX takes the stream of the first input; `s` is what the results are booked on.
  b.def("depends", [](std::vector<mx::array> inputs, std::vector<mx::array> dependencies, mx::Stream) { return mx::depends(inputs, dependencies); });
}

}  // namespace tidemark
