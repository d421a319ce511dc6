// Which BLAS libmlx is bound to on CPU, and its thread count.

#include <dlfcn.h>


#include "groups.h"

namespace tidemark {
namespace {

/// The first of the names that this process's libraries export. RTLD_DEFAULT searches this addon's own dependencies too.
template <class F>
F lookUp(std::initializer_list<const char*> names) {
  for (auto name : names) {
    if (void* symbol = dlsym(RTLD_DEFAULT, name)) return reinterpret_cast<F>(symbol);
  }
  return nullptr;
}

auto setThreads() {
  return lookUp<void (*)(int)>({"scipy_openblas_set_num_threads", "scipy_openblas_set_num_threads64_", "openblas_set_num_threads"});
}
auto getThreads() {
  return lookUp<int (*)()>({"scipy_openblas_get_num_threads", "scipy_openblas_get_num_threads64_", "openblas_get_num_threads"});
}
[[maybe_unused]] auto config() {
  return lookUp<const char* (*)()>({"scipy_openblas_get_config", "scipy_openblas_get_config64_", "openblas_get_config"});
}
[[maybe_unused]] auto coreName() {
  return lookUp<const char* (*)()>({"scipy_openblas_get_corename", "scipy_openblas_get_corename64_", "openblas_get_corename"});
}

napi_value blasInfo(Call& c) {
  Object info(c.js);
#ifdef __APPLE__
  info.set("library", "accelerate").set("threads", 0.0);
#else
  if (auto threads = getThreads()) {
    info.set("library", "openblas").set("threads", static_cast<double>(threads()));
    if (auto text = config()) info.set("config", text());
    if (auto text = coreName()) info.set("core", text());
  } else {
    info.set("library", "reference").set("threads", 1.0);
  }
#endif
  return info.value;
}

}  // namespace

void bindBlas(Binder& b) {
  b.def("blasInfo", [](Call& c) { return blasInfo(c); });
  b.def("setBlasThreads", [](Call&, int count) {
    if (count < 1) throw Fail{"INVALID_ARGUMENT", "the number of BLAS threads must be at least 1"};
    auto set = setThreads();
    if (set) set(count);
    return set != nullptr;
  });
  b.def("getBlasThreads", [](Call&) {
    auto get = getThreads();
    return get ? static_cast<double>(get()) : 1.0;
  });
}

}  // namespace tidemark
