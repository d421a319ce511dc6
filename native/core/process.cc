// The process and its threads, as the operating system sees them.

#include <pthread.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#include "groups.h"

namespace tidemark {
namespace {

/// Ends the process at once: no exit handlers, no waiting for threads that sit in native code.
Napi::Value exitNow(const Napi::CallbackInfo& info) {
  _exit(info.Length() > 0 && info[0].IsNumber() ? info[0].As<Napi::Number>().Int32Value() : 1);
}

/// Names the calling thread for debuggers, `top -H` and profilers (Linux keeps 15 characters). Not for the main thread: its name is the process's.
Napi::Value setThreadName(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  if (info.Length() < 1 || !info[0].IsString()) throw Napi::TypeError::New(env, "setThreadName(name)");
  std::string name = info[0].As<Napi::String>().Utf8Value().substr(0, 15);
#ifdef __APPLE__
  pthread_setname_np(name.c_str());
#else
  pthread_setname_np(pthread_self(), name.c_str());
#endif
  return env.Undefined();
}

/// The operating system's number of the calling thread.
Napi::Value threadId(const Napi::CallbackInfo& info) {
#ifdef __APPLE__
  uint64_t id = 0;
  pthread_threadid_np(nullptr, &id);
  return Napi::Number::New(info.Env(), static_cast<double>(id));
#else
  return Napi::Number::New(info.Env(), static_cast<double>(syscall(SYS_gettid)));
#endif
}

}  // namespace

void bindProcess(Napi::Env env, Napi::Object exports) {
  exports.Set("exitNow", Napi::Function::New(env, exitNow, "exitNow"));
  exports.Set("setThreadName", Napi::Function::New(env, setThreadName, "setThreadName"));
  exports.Set("threadId", Napi::Function::New(env, threadId, "threadId"));
}

}  // namespace tidemark
