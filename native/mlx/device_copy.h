#pragma once
// Bytes between the host and an evaluated array, wherever the array lies.
//
// CPU and Metal arrays lie in memory the host can read. CUDA arrays usually lie in device memory: `array::data<T>()` would move them to
// managed memory for good (and slow every later use), so here the driver copies instead. The driver is found at run time; nothing links CUDA.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "mlx/array.h"

namespace tidemark {

namespace mx = mlx::core;

/// Copies `size` bytes from byte `from` of a row-contiguous, available array.
void copyOut(const mx::array& source, size_t from, uint8_t* target, size_t size);

/// Where a row-contiguous, available array's bytes lie. Valid as long as somebody holds the array; may be used on any thread.
struct Place {
  uintptr_t address;
  int device;  // -1: the host reads it directly
};

Place placeOf(const mx::array& a);

/// Copies that are awaited together, by one thread. Those from device memory run beside each other.
class Copies {
 public:
  void add(Place source, size_t from, uint8_t* target, size_t size);
  /// All bytes are there when this returns.
  void finish();

 private:
  void* stream_ = nullptr;
};

/// Whether the array's bytes cannot be read by the host directly.
bool inDeviceMemory(const mx::array& a);

/// An array with these bytes, available at once. On CUDA the bytes go to device memory when `stream` is a GPU stream.
mx::array copyIn(const uint8_t* bytes, mx::Shape shape, mx::Dtype dtype, const mx::Stream* stream);

/// An array of this size whose bytes `fill(target, offset, size)` supplies in order, in one or several pieces.
template <class Fill>
mx::array fillIn(mx::Shape shape, mx::Dtype dtype, const mx::Stream* stream, Fill fill);

/// Page-locks host memory for fast device copies. A no-op (false) without CUDA. Throws Fail when the driver refuses.
bool registerHost(void* address, size_t size);
void unregisterHost(void* address) noexcept;

/// Gives back this thread's copy stream.
void endDeviceCopies() noexcept;

namespace detail {
bool wantsDevice(size_t size, const mx::Stream* stream);
mx::array emptyOnDevice(mx::Shape shape, mx::Dtype dtype, mx::Stream stream);
void copyToDevice(const mx::array& target, size_t offset, const uint8_t* bytes, size_t size);
size_t byteSize(const mx::Shape& shape, mx::Dtype dtype);
}  // namespace detail

template <class Fill>
mx::array fillIn(mx::Shape shape, mx::Dtype dtype, const mx::Stream* stream, Fill fill) {
  size_t size = detail::byteSize(shape, dtype);
  if (detail::wantsDevice(size, stream)) {
    constexpr size_t kPiece = 8 << 20;
    mx::array target = detail::emptyOnDevice(std::move(shape), dtype, *stream);
    std::vector<uint8_t> piece(std::min(size, kPiece));
    for (size_t at = 0; at < size; at += piece.size()) {
      size_t n = std::min(piece.size(), size - at);
      fill(piece.data(), at, n);
      detail::copyToDevice(target, at, piece.data(), n);
    }
    return target;
  }
  auto data = mx::allocator::malloc(size);
  if (size > 0) fill(static_cast<uint8_t*>(data.buffer().raw_ptr()), 0, size);
  return mx::array(std::move(data), std::move(shape), dtype);
}

}  // namespace tidemark
