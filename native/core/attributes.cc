// Extended attributes: how macOS is told that a folder is left out of backups. Node has no call for them.

#include <cerrno>
#include <cstdint>
#include <string>

#if __has_include(<sys/xattr.h>)
#include <sys/xattr.h>
#else
// zig's headers for macOS do not have this one (npm run build:macos); the library has the functions.
#include <sys/types.h>
#define XATTR_NOFOLLOW 0x0001
extern "C" int setxattr(const char* path, const char* name, const void* value, size_t size, uint32_t position, int options);
extern "C" ssize_t getxattr(const char* path, const char* name, void* value, size_t size, uint32_t position, int options);
#endif

#include "groups.h"

namespace tidemark {
namespace {

/// Sets an attribute of a file or folder, links not followed. 0 or an errno.
Napi::Value setAttribute(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  if (info.Length() < 3 || !info[0].IsString() || !info[1].IsString() || !info[2].IsTypedArray()) {
    throw Napi::TypeError::New(env, "setAttribute(path, name, bytes)");
  }
  std::string path = info[0].As<Napi::String>().Utf8Value();
  std::string name = info[1].As<Napi::String>().Utf8Value();
  auto bytes = info[2].As<Napi::Uint8Array>();
#ifdef __APPLE__
  int result = setxattr(path.c_str(), name.c_str(), bytes.Data(), bytes.ByteLength(), 0, XATTR_NOFOLLOW);
#else
  int result = lsetxattr(path.c_str(), name.c_str(), bytes.Data(), bytes.ByteLength(), 0);
#endif
  return Napi::Number::New(env, result == 0 ? 0 : errno);
}

/// The bytes of an attribute as a string of Latin-1 characters, or null when there is none or it cannot be read.
Napi::Value getAttribute(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  if (info.Length() < 2 || !info[0].IsString() || !info[1].IsString()) throw Napi::TypeError::New(env, "getAttribute(path, name)");
  std::string path = info[0].As<Napi::String>().Utf8Value();
  std::string name = info[1].As<Napi::String>().Utf8Value();
  char bytes[4096];
#ifdef __APPLE__
  ssize_t size = getxattr(path.c_str(), name.c_str(), bytes, sizeof bytes, 0, XATTR_NOFOLLOW);
#else
  ssize_t size = lgetxattr(path.c_str(), name.c_str(), bytes, sizeof bytes);
#endif
  if (size < 0) return env.Null();
  napi_value text;
  if (napi_create_string_latin1(env, bytes, static_cast<size_t>(size), &text) != napi_ok) return env.Null();
  return Napi::Value(env, text);
}

}  // namespace

void bindAttributes(Napi::Env env, Napi::Object exports) {
  exports.Set("setAttribute", Napi::Function::New(env, setAttribute, "setAttribute"));
  exports.Set("getAttribute", Napi::Function::New(env, getAttribute, "getAttribute"));
}

}  // namespace tidemark
