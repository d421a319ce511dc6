#include "groups.h"

namespace {

Napi::Object init(Napi::Env env, Napi::Object exports) {
  tidemark::bindAttributes(env, exports);
  tidemark::bindDeathWords(env, exports);
  tidemark::bindFileLocks(env, exports);
  tidemark::bindProcess(env, exports);
  return exports;
}

}  // namespace

NODE_API_MODULE(tidemark_core, init)
