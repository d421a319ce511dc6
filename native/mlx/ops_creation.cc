#include "device_copy.h"
#include "groups.h"
#include "mlx/ops.h"

namespace tidemark {

void bindCreation(Binder& b) {
  b.def("zeros", [](mx::Shape shape, mx::Dtype dtype, mx::Stream s) { return mx::zeros(shape, dtype, s); });
  b.def("full", [](mx::Shape shape, double value, mx::Dtype dtype, mx::Stream s) { return mx::full(std::move(shape), mx::array(value, dtype), s); });
  b.def("scalar", [](double value, mx::Dtype dtype) { return mx::array(value, dtype); });
  b.def("arange", [](double start, double stop, double step, mx::Dtype dtype, mx::Stream s) { return mx::arange(start, stop, step, dtype, s); });
  b.def("fromInts", [](Int32s values, mx::Shape shape) {
    size_t count = detail::byteSize(shape, mx::int32) / sizeof(int32_t);
    if (count != values.size) throw Fail{"INVALID_ARGUMENT", std::to_string(values.size) + " values do not fill a shape of " + std::to_string(count)};
    return mx::array(values.data, std::move(shape), mx::int32);
  });
}

}  // namespace tidemark
