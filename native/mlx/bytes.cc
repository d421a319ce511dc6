// Bytes and numbers in and out of arrays. Nothing here evaluates or waits, except itemNumber.

#include <cmath>
#include <cstring>

#include "bytes.h"
#include "control.h"
#include "device_copy.h"
#include "groups.h"

namespace tidemark {
namespace {

mx::array fromBytes(Call& c, Bytes bytes, mx::Shape shape, mx::Dtype dtype) {
  size_t expected = detail::byteSize(shape, dtype);
  if (expected != bytes.size) {
    throw Fail{"INVALID_ARGUMENT", "the shape needs " + std::to_string(expected) + " bytes, received " + std::to_string(bytes.size)};
  }
  return copyIn(bytes.data, std::move(shape), dtype, c.env.engineStream ? &*c.env.engineStream : nullptr);
}

/// The array behind `handle` if bytes [from, from + size) of it can be copied as they lie.
const mx::array& requireBytes(Call& c, Handle handle, double from, double size) {
  const mx::array& a = requireAvailable(c, handle);
  if (!a.flags().row_contiguous) throw Fail{"INVALID_ARGUMENT", "only row-contiguous tensors can be read; use contiguous() and evaluate first"};
  if (from < 0 || from != static_cast<double>(static_cast<uint64_t>(from)) || from + size > static_cast<double>(a.nbytes())) {
    throw Fail{"INVALID_ARGUMENT", "bytes " + std::to_string(from) + " + " + std::to_string(size) + " lie outside a tensor of " + std::to_string(a.nbytes()) + " bytes"};
  }
  return a;
}

void readBytes(Call& c, HandleArg handle, double from, Bytes target) {
  const mx::array& a = requireBytes(c, handle.value, from, static_cast<double>(target.size));
  copyOut(a, static_cast<size_t>(from), target.data, target.size);
}

/// As readBytes for each piece, with one call; all are checked before the first byte is copied.
void readMany(Call& c, Bytes pieces, Bytes target) {
  Copies copies;
  for (const auto& piece : piecesOf(c, pieces, target.size)) copies.add(placeOf(*piece.array), piece.from, target.data + piece.at, piece.size);
  copies.finish();
}

/// Calls `visit(element index in row order, pointer to the element)`; strides are in elements.
template <class Visit>
void eachElement(const mx::array& a, const uint8_t* base, bool contiguous, Visit visit) {
  size_t itemsize = a.itemsize();
  if (contiguous) {
    for (size_t k = 0; k < a.size(); k++) visit(k, base + k * itemsize);
    return;
  }
  std::vector<int> position(a.ndim(), 0);
  int64_t offset = 0;
  for (size_t k = 0; k < a.size(); k++) {
    visit(k, base + offset * static_cast<int64_t>(itemsize));
    for (int axis = static_cast<int>(a.ndim()) - 1; axis >= 0; axis--) {
      offset += a.strides()[axis];
      if (++position[axis] < a.shape()[axis]) break;
      offset -= a.strides()[axis] * a.shape()[axis];
      position[axis] = 0;
    }
  }
}

template <class Source, class Target>
void convert(const mx::array& a, const uint8_t* base, bool contiguous, Target* out) {
  eachElement(a, base, contiguous, [&](size_t k, const uint8_t* at) {
    Source value;
    std::memcpy(&value, at, sizeof(value));
    if constexpr (std::is_same_v<Source, mx::float16_t> || std::is_same_v<Source, mx::bfloat16_t>) {
      out[k] = static_cast<Target>(static_cast<float>(value));
    } else {
      out[k] = static_cast<Target>(value);
    }
  });
}

template <class Target>
void toNumbers(const mx::array& a, Target* out) {
  if (a.size() == 0) return;
  std::vector<uint8_t> host;
  bool contiguous = a.flags().row_contiguous;
  const uint8_t* base;
  if (inDeviceMemory(a)) {
    if (!contiguous) throw Fail{"INVALID_ARGUMENT", "only row-contiguous tensors can be read from the device; use contiguous() and evaluate first"};
    host.resize(a.nbytes());
    copyOut(a, 0, host.data(), host.size());
    base = host.data();
  } else {
    base = a.data<uint8_t>();
  }
  switch (a.dtype().val()) {
    case mx::Dtype::Val::bool_: return convert<bool>(a, base, contiguous, out);
    case mx::Dtype::Val::uint8: return convert<uint8_t>(a, base, contiguous, out);
    case mx::Dtype::Val::uint16: return convert<uint16_t>(a, base, contiguous, out);
    case mx::Dtype::Val::uint32: return convert<uint32_t>(a, base, contiguous, out);
    case mx::Dtype::Val::uint64: return convert<uint64_t>(a, base, contiguous, out);
    case mx::Dtype::Val::int8: return convert<int8_t>(a, base, contiguous, out);
    case mx::Dtype::Val::int16: return convert<int16_t>(a, base, contiguous, out);
    case mx::Dtype::Val::int32: return convert<int32_t>(a, base, contiguous, out);
    case mx::Dtype::Val::int64: return convert<int64_t>(a, base, contiguous, out);
    case mx::Dtype::Val::float16: return convert<mx::float16_t>(a, base, contiguous, out);
    case mx::Dtype::Val::bfloat16: return convert<mx::bfloat16_t>(a, base, contiguous, out);
    case mx::Dtype::Val::float32: return convert<float>(a, base, contiguous, out);
    case mx::Dtype::Val::float64: return convert<double>(a, base, contiguous, out);
    default: throw Fail{"INVALID_ARGUMENT", "complex tensors cannot be read as numbers"};
  }
}

template <class Target>
napi_value toTypedArray(Call& c, HandleArg handle, napi_typedarray_type type) {
  const mx::array& a = requireAvailable(c, handle.value);
  void* data = nullptr;
  napi_value buffer, result = nullptr;
  if (napi_create_arraybuffer(c.js, a.size() * sizeof(Target), &data, &buffer) != napi_ok) throw Fail{"MEMORY_LIMIT", "the result could not be allocated"};
  toNumbers(a, static_cast<Target*>(data));
  napi_create_typedarray(c.js, type, a.size(), buffer, 0, &result);
  return result;
}

double itemNumber(Call& c, HandleArg handle) {
  if (c.env.table.use(handle.value).size() != 1) throw Fail{"INVALID_ARGUMENT", "only a tensor of one element is a number"};
  waitFor(c, handle);
  double value;
  toNumbers(requireAvailable(c, handle.value), &value);
  return value;
}

bool registerHostMemory(Call& c, napi_value view) {
  Bytes bytes = FromJs<Bytes>::get(c, view, 0);
  if (!registerHost(bytes.data, bytes.size)) return false;
  napi_ref keepAlive = nullptr;
  napi_create_reference(c.js, view, 1, &keepAlive);
  c.env.usedMlx = true;
  c.env.hostRegions.push_back({bytes.data, bytes.size, keepAlive});
  return true;
}

void unregisterHostMemory(Call& c, Bytes bytes) {
  auto& regions = c.env.hostRegions;
  for (auto region = regions.begin(); region != regions.end(); ++region) {
    if (region->address != bytes.data) continue;
    unregisterHost(region->address);
    if (region->keepAlive) napi_delete_reference(c.js, region->keepAlive);
    regions.erase(region);
    return;
  }
}

}  // namespace

std::vector<Piece> piecesOf(Call& c, Bytes packed, size_t targetSize) {
  struct Words {
    double tensor, from, size, at;
  };
  if (packed.size % sizeof(Words) != 0) throw Fail{"INVALID_ARGUMENT", "pieces come as four doubles each"};
  std::vector<Piece> pieces(packed.size / sizeof(Words));
  auto whole = [](double value) { return value >= 0 && value == static_cast<double>(static_cast<uint64_t>(value)); };
  for (size_t k = 0; k < pieces.size(); k++) {
    Words w;
    std::memcpy(&w, packed.data + k * sizeof(Words), sizeof(Words));
    if (!whole(w.size) || !whole(w.at) || w.at + w.size > static_cast<double>(targetSize)) {
      throw Fail{"INVALID_ARGUMENT", "bytes " + std::to_string(w.at) + " + " + std::to_string(w.size) + " lie outside a target of " + std::to_string(targetSize) + " bytes"};
    }
    pieces[k] = {&requireBytes(c, w.tensor, w.from, w.size), static_cast<size_t>(w.from), static_cast<size_t>(w.size), static_cast<size_t>(w.at)};
  }
  return pieces;
}

void bindBytes(Binder& b) {
  b.def("fromBytes", [](Call& c, Bytes bytes, mx::Shape shape, mx::Dtype dtype) { return fromBytes(c, bytes, std::move(shape), dtype); });
  b.def("readBytes", [](Call& c, HandleArg handle, double from, Bytes target) { readBytes(c, handle, from, target); });
  b.def("readMany", [](Call& c, Bytes pieces, Bytes target) { readMany(c, pieces, target); });
  b.def("toFloat32Array", [](Call& c, HandleArg handle) { return toTypedArray<float>(c, handle, napi_float32_array); });
  b.def("toInt32Array", [](Call& c, HandleArg handle) { return toTypedArray<int32_t>(c, handle, napi_int32_array); });
  b.def("itemNumber", [](Call& c, HandleArg handle) { return itemNumber(c, handle); });
  b.def("registerHostMemory", [](Call& c, napi_value view) { return registerHostMemory(c, view); });
  b.def("unregisterHostMemory", [](Call& c, Bytes bytes) { unregisterHostMemory(c, bytes); });
}

}  // namespace tidemark
