#include "mlx/memory.h"

#include "groups.h"

namespace tidemark {
namespace {

size_t byteCount(double bytes) {
  if (!(bytes >= 0 && bytes <= 9007199254740991.0)) badArgument(0, "a number of bytes");
  return static_cast<size_t>(bytes);
}

}  // namespace

void bindMemory(Binder& b) {
  b.def("activeBytes", [](Call&) { return static_cast<double>(mx::get_active_memory()); });
  b.def("peakBytes", [](Call&) { return static_cast<double>(mx::get_peak_memory()); });
  b.def("resetPeakBytes", [](Call&) { mx::reset_peak_memory(); });
  b.def("cacheBytes", [](Call&) { return static_cast<double>(mx::get_cache_memory()); });
  b.def("memoryLimit", [](Call&) { return static_cast<double>(mx::get_memory_limit()); });
  b.def("setMemoryLimit", [](Call&, double bytes) { return static_cast<double>(mx::set_memory_limit(byteCount(bytes))); });
  b.def("setCacheLimit", [](Call&, double bytes) { return static_cast<double>(mx::set_cache_limit(byteCount(bytes))); });
  b.def("setWiredLimit", [](Call&, double bytes) { return static_cast<double>(mx::set_wired_limit(byteCount(bytes))); });
  // On CPU a clear waits for every stream of the process and may deliver another engine's error, so a failure poisons all that is unconfirmed here.
  b.def("clearCache", [](Call& c) {
    if (c.env.beforeClear) c.env.beforeClear();
    try {
      mx::clear_cache();
    } catch (...) {
      c.env.table.poison(-1);
      throw;
    }
  });
}

}  // namespace tidemark
