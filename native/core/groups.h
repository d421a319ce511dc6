#pragma once
// The groups of functions of tidemark_core.node, one file each. This addon knows nothing of MLX and runs on every thread.

#include <napi.h>

namespace tidemark {

void bindAttributes(Napi::Env env, Napi::Object exports);
void bindDeathWords(Napi::Env env, Napi::Object exports);
void bindFileLocks(Napi::Env env, Napi::Object exports);
void bindProcess(Napi::Env env, Napi::Object exports);

}  // namespace tidemark
