#include "device_copy.h"

#include <dlfcn.h>

#include <cstring>
#include <string>

#include "errors.h"
#include "mlx/backend/cuda/cuda.h"
#include "mlx/ops.h"
#include "mlx/transforms.h"

namespace tidemark {
namespace {

/// What lies behind `buffer().ptr()` in MLX's CUDA build (0.32.4). `device` is -1 for managed memory.
struct CudaBuffer {
  void* data;
  size_t size;
  int device;
};

/// The few driver functions used here, looked up once per process.
struct Driver {
  using Pointer = unsigned long long;
  int (*init)(unsigned) = nullptr;
  int (*retain)(void**, int) = nullptr;
  int (*setCurrent)(void*) = nullptr;
  int (*streamCreate)(void**, unsigned) = nullptr;
  int (*streamDestroy)(void*) = nullptr;
  int (*streamSynchronize)(void*) = nullptr;
  int (*toHost)(void*, Pointer, size_t, void*) = nullptr;
  int (*toDevice)(Pointer, const void*, size_t, void*) = nullptr;
  int (*hostRegister)(void*, size_t, unsigned) = nullptr;
  int (*hostUnregister)(void*) = nullptr;
  bool usable = false;
};

const Driver& driver() {
  static const Driver instance = [] {
    Driver d;
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) return d;
    auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
    d.usable = find(d.init, "cuInit") && find(d.retain, "cuDevicePrimaryCtxRetain") && find(d.setCurrent, "cuCtxSetCurrent") &&
               find(d.streamCreate, "cuStreamCreate") && find(d.streamDestroy, "cuStreamDestroy_v2") &&
               find(d.streamSynchronize, "cuStreamSynchronize") && find(d.toHost, "cuMemcpyDtoHAsync_v2") &&
               find(d.toDevice, "cuMemcpyHtoDAsync_v2") && find(d.hostRegister, "cuMemHostRegister_v2") &&
               find(d.hostUnregister, "cuMemHostUnregister") && d.init(0) == 0;
    return d;
  }();
  return instance;
}

void check(int result, const char* what) {
  if (result == 0) return;
  const char* code = result == 2 ? "MEMORY_LIMIT" : "DEVICE_LOST";
  throw Fail{code, std::string(what) + " failed with CUDA driver error " + std::to_string(result)};
}

/// This thread's own non-blocking stream: copies do not wait for MLX's streams and MLX's do not wait for copies. Hence the array must be
/// available before it is copied out.
thread_local void* copyStream = nullptr;

void* threadStream(int device) {
  const Driver& d = driver();
  if (!d.usable) throw Fail{"DEVICE_LOST", "the CUDA driver (libcuda.so.1) could not be used"};
  void* context;
  check(d.retain(&context, device < 0 ? 0 : device), "cuDevicePrimaryCtxRetain");
  check(d.setCurrent(context), "cuCtxSetCurrent");
  constexpr unsigned kNonBlocking = 1;
  if (!copyStream) check(d.streamCreate(&copyStream, kNonBlocking), "cuStreamCreate");
  return copyStream;
}

const CudaBuffer* cudaBuffer(const mx::array& a) {
  static const bool cuda = mx::cu::is_available();
  return cuda ? static_cast<const CudaBuffer*>(a.buffer().ptr()) : nullptr;
}

}  // namespace

bool inDeviceMemory(const mx::array& a) {
  const CudaBuffer* buffer = cudaBuffer(a);
  return buffer && buffer->device >= 0;
}

Place placeOf(const mx::array& a) {
  if (const CudaBuffer* buffer = cudaBuffer(a); buffer && buffer->device >= 0) {
    return {reinterpret_cast<uintptr_t>(buffer->data) + static_cast<uintptr_t>(a.offset()), buffer->device};
  }
  return {reinterpret_cast<uintptr_t>(a.data<uint8_t>()), -1};
}

void Copies::add(Place source, size_t from, uint8_t* target, size_t size) {
  if (size == 0) return;
  if (source.device < 0) {
    std::memcpy(target, reinterpret_cast<const uint8_t*>(source.address) + from, size);
    return;
  }
  stream_ = threadStream(source.device);
  check(driver().toHost(target, static_cast<Driver::Pointer>(source.address) + from, size, stream_), "cuMemcpyDtoHAsync");
}

void Copies::finish() {
  if (stream_) check(driver().streamSynchronize(stream_), "cuStreamSynchronize");
  stream_ = nullptr;
}

void copyOut(const mx::array& source, size_t from, uint8_t* target, size_t size) {
  if (size == 0) return;
  Copies copies;
  copies.add(placeOf(source), from, target, size);
  copies.finish();
}

mx::array copyIn(const uint8_t* bytes, mx::Shape shape, mx::Dtype dtype, const mx::Stream* stream) {
  return fillIn(std::move(shape), dtype, stream, [&](uint8_t* target, size_t offset, size_t size) { std::memcpy(target, bytes + offset, size); });
}

bool registerHost(void* address, size_t size) {
  if (!mx::cu::is_available()) return false;
  threadStream(0);
  constexpr unsigned kPortable = 1;
  check(driver().hostRegister(address, size, kPortable), "cuMemHostRegister");
  return true;
}

void unregisterHost(void* address) noexcept {
  if (driver().usable) driver().hostUnregister(address);
}

void endDeviceCopies() noexcept {
  if (copyStream) driver().streamDestroy(copyStream);
  copyStream = nullptr;
}

namespace detail {

size_t byteSize(const mx::Shape& shape, mx::Dtype dtype) {
  size_t size = dtype.size();
  for (int n : shape) {
    if (n < 0) throw Fail{"INVALID_ARGUMENT", "a shape cannot have negative dimensions"};
    if (__builtin_mul_overflow(size, static_cast<size_t>(n), &size)) throw Fail{"INVALID_ARGUMENT", "the shape has more bytes than can be counted"};
  }
  return size;
}

bool wantsDevice(size_t size, const mx::Stream* stream) {
  constexpr size_t kWorthIt = 4096;  // below this MLX itself keeps arrays in managed memory
  return size > kWorthIt && stream && stream->device == mx::Device::gpu && mx::cu::is_available();
}

mx::array emptyOnDevice(mx::Shape shape, mx::Dtype dtype, mx::Stream stream) {
  mx::array target = mx::zeros(shape, dtype, stream);
  target.eval();
  return target;
}

void copyToDevice(const mx::array& target, size_t offset, const uint8_t* bytes, size_t size) {
  const CudaBuffer* buffer = cudaBuffer(target);
  if (buffer->device < 0) {
    std::memcpy(static_cast<uint8_t*>(buffer->data) + target.offset() + offset, bytes, size);
    return;
  }
  void* stream = threadStream(buffer->device);
  auto address = reinterpret_cast<Driver::Pointer>(buffer->data) + static_cast<Driver::Pointer>(target.offset()) + offset;
  check(driver().toDevice(address, bytes, size, stream), "cuMemcpyHtoDAsync");
  check(driver().streamSynchronize(stream), "cuStreamSynchronize");
}

}  // namespace detail
}  // namespace tidemark
