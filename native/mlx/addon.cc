// tidemark_mlx.node: MLX's C++ library as functions over integer handles. Loaded in several threads; each has its own Env.

#include <cstdlib>
#include <cstring>

#include "groups.h"
#include "mlx/version.h"

namespace tidemark {
namespace {

napi_value setErrorFactory(napi_env js, napi_callback_info info) {
  size_t argc = 1;
  napi_value make;
  void* data;
  if (napi_get_cb_info(js, info, &argc, &make, nullptr, &data) != napi_ok || argc != 1) return nullptr;
  Env& env = *static_cast<Bound*>(data)->env;
  if (env.errorFactory) napi_delete_reference(js, env.errorFactory);
  env.errorFactory = nullptr;
  napi_create_reference(js, make, 1, &env.errorFactory);
  return nullptr;
}

}  // namespace

napi_value init(napi_env js, napi_value exports) {
  Env* env = new Env(js);
  napi_add_env_cleanup_hook(js, endEnvironment, env);
  Binder b{js, *env, exports};
  b.add("setErrorFactory", setErrorFactory);
  b.def("mlxVersion", [](Call&) { return std::string(mx::version()); });
  // The headers this addon was built against; a library of another patch release has another ABI.
  b.def("builtVersion", [](Call&) {
    return std::to_string(MLX_VERSION_MAJOR) + "." + std::to_string(MLX_VERSION_MINOR) + "." + std::to_string(MLX_VERSION_PATCH);
  });
  for (auto bind : {bindCreation, bindElementwise, bindReduction, bindShape, bindIndexing, bindLinear, bindFast, bindRandom, bindLifetime, bindControl, bindStreams,
                    bindBytes, bindFiles, bindMemory, bindBlas, bindLeases}) {
    bind(b);
  }
  const char* testOps = std::getenv("TIDEMARK_TEST_OPS");
  if (testOps && std::strcmp(testOps, "1") == 0) bindTestOps(b);
  return exports;
}

}  // namespace tidemark

NAPI_MODULE_INIT() {
  return tidemark::init(env, exports);
}
