#include "groups.h"
#include "mlx/ops.h"

namespace tidemark {

void bindIndexing(Binder& b) {
  b.def("slice", [](const mx::array& a, mx::Shape start, mx::Shape stop, std::optional<mx::Shape> strides, mx::Stream s) {
    return strides ? mx::slice(a, std::move(start), std::move(stop), std::move(*strides), s) : mx::slice(a, std::move(start), std::move(stop), s);
  });
  // In place when the handle of `a` is the last reference to its bytes at evaluation.
  b.def("sliceUpdate", [](const mx::array& a, const mx::array& update, mx::Shape start, mx::Shape stop, std::optional<mx::Shape> strides, mx::Stream s) {
    return strides ? mx::slice_update(a, update, std::move(start), std::move(stop), std::move(*strides), s)
                   : mx::slice_update(a, update, std::move(start), std::move(stop), s);
  });
  b.def("sliceAt", [](const mx::array& a, const mx::array& start, std::vector<int> axes, mx::Shape size, mx::Stream s) {
    return mx::slice(a, start, std::move(axes), std::move(size), s);
  });
  b.def("sliceUpdateAt", [](const mx::array& a, const mx::array& update, const mx::array& start, std::vector<int> axes, mx::Stream s) {
    return mx::slice_update(a, update, start, std::move(axes), s);
  });
  b.def("take", [](const mx::array& a, const mx::array& indices, int axis, mx::Stream s) { return mx::take(a, indices, axis, s); });
  b.def("takeAlongAxis", [](const mx::array& a, const mx::array& indices, int axis, mx::Stream s) { return mx::take_along_axis(a, indices, axis, s); });
  b.def("putAlongAxis", [](const mx::array& a, const mx::array& indices, Operand values, int axis, mx::Stream s) {
    auto [target, v] = resolve(Operand{&a, 0}, values);
    return mx::put_along_axis(target, indices, v, axis, s);
  });
  b.def("scatterAddAxis", [](const mx::array& a, const mx::array& indices, const mx::array& values, int axis, mx::Stream s) {
    return mx::scatter_add_axis(a, indices, values, axis, s);
  });
}

}  // namespace tidemark
