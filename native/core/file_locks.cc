// flock: the lock belongs to the open file, so it ends with the process however that ends, and opening and closing the same file elsewhere in
// the process does not drop it (fcntl locks would). The descriptor is opened here because one that a Worker opens through node:fs is closed
// when that Worker ends.

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "groups.h"

namespace tidemark {
namespace {

Napi::Value failure(Napi::Env env, int error) {
  auto result = Napi::Object::New(env);
  result.Set("errno", error);
  result.Set("message", std::strerror(error));
  result.Set("held", error == EWOULDBLOCK);
  result.Set("unsupported", error == ENOTSUP || error == ENOSYS || error == ENOLCK || error == EOPNOTSUPP || error == EINVAL);
  return result;
}

/// The descriptor, or what kept it. Never waits.
Napi::Value flockTry(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  if (info.Length() < 1 || !info[0].IsString()) throw Napi::TypeError::New(env, "flockTry(path)");
  std::string path = info[0].As<Napi::String>().Utf8Value();
  int fd = open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return failure(env, errno);
  int result;
  do {
    result = flock(fd, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    int error = errno;
    close(fd);
    return failure(env, error);
  }
  return Napi::Number::New(env, fd);
}

Napi::Value flockRelease(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  if (info.Length() < 1 || !info[0].IsNumber()) throw Napi::TypeError::New(env, "flockRelease(fd)");
  int fd = info[0].As<Napi::Number>().Int32Value();
  flock(fd, LOCK_UN);  // also frees it for a child that inherited the descriptor in spite of O_CLOEXEC
  return Napi::Number::New(env, close(fd) == 0 ? 0 : errno);
}

/// As far down as the platform can: on macOS fsync leaves data in the drive's cache. Returns 0 or an errno.
Napi::Value fullSync(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  if (info.Length() < 1 || !info[0].IsNumber()) throw Napi::TypeError::New(env, "fullSync(fd)");
  int fd = info[0].As<Napi::Number>().Int32Value();
#ifdef F_FULLFSYNC
  if (fcntl(fd, F_FULLFSYNC) == 0) return Napi::Number::New(env, 0);
  // Not every file system has it; then fsync is what there is.
#endif
  int result;
  do {
    result = fsync(fd);
  } while (result != 0 && errno == EINTR);
  return Napi::Number::New(env, result == 0 ? 0 : errno);
}

/// Asks the system to begin writing bytes of a file that lie in its cache. Says nothing about when they arrive: that is what the sync is for.
Napi::Value startWriteback(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  if (info.Length() < 3 || !info[0].IsNumber() || !info[1].IsNumber() || !info[2].IsNumber()) throw Napi::TypeError::New(env, "startWriteback(fd, from, bytes)");
#ifdef __linux__
  sync_file_range(info[0].As<Napi::Number>().Int32Value(), info[1].As<Napi::Number>().Int64Value(), info[2].As<Napi::Number>().Int64Value(), SYNC_FILE_RANGE_WRITE);
#endif
  return env.Undefined();
}

}  // namespace

void bindFileLocks(Napi::Env env, Napi::Object exports) {
  exports.Set("flockTry", Napi::Function::New(env, flockTry, "flockTry"));
  exports.Set("flockRelease", Napi::Function::New(env, flockRelease, "flockRelease"));
  exports.Set("fullSync", Napi::Function::New(env, fullSync, "fullSync"));
  exports.Set("startWriteback", Napi::Function::New(env, startWriteback, "startWriteback"));
}

}  // namespace tidemark
