#include "bind.h"

#include <array>
#include <cmath>
#include <string_view>

namespace tidemark {
namespace {

constexpr double kStreamBase = 2251799813685248.0;  // 2^51
constexpr uint64_t kGpuBit = 1ull << 32;

struct NamedDtype {
  std::string_view name;
  mx::Dtype dtype;
};

constexpr std::array kDtypes = {
    NamedDtype{"float32", mx::float32}, NamedDtype{"bfloat16", mx::bfloat16}, NamedDtype{"int32", mx::int32},   NamedDtype{"uint32", mx::uint32},
    NamedDtype{"float16", mx::float16}, NamedDtype{"bool", mx::bool_},        NamedDtype{"uint8", mx::uint8},   NamedDtype{"uint16", mx::uint16},
    NamedDtype{"uint64", mx::uint64},   NamedDtype{"int8", mx::int8},         NamedDtype{"int16", mx::int16},   NamedDtype{"int64", mx::int64},
    NamedDtype{"float64", mx::float64}, NamedDtype{"complex64", mx::complex64},
};

bool isInexact(mx::Dtype dtype) {
  return mx::issubdtype(dtype, mx::inexact);
}

mx::array weakScalar(double value, mx::Dtype other) {
  if (isInexact(other)) return mx::array(value, other);
  bool integral = std::floor(value) == value && std::abs(value) < 2147483648.0;
  if (!integral) return mx::array(static_cast<float>(value), mx::float32);
  return mx::array(value, other == mx::bool_ ? mx::int32 : other);
}

void* typedArray(Call& call, napi_value value, size_t index, napi_typedarray_type wanted, const char* expected, size_t* length) {
  bool is = false;
  if (napi_is_typedarray(call.js, value, &is) != napi_ok || !is) badArgument(index, expected);
  napi_typedarray_type type;
  void* data = nullptr;
  // The typed array's own pointer: its `.buffer` may be a SharedArrayBuffer, which Node-API refuses to look into.
  if (napi_get_typedarray_info(call.js, value, &type, length, &data, nullptr, nullptr) != napi_ok || type != wanted) badArgument(index, expected);
  return data;
}

}  // namespace

double encodeStream(mx::Stream stream) {
  uint64_t bits = static_cast<uint32_t>(stream.index) | (stream.device == mx::Device::gpu ? kGpuBit : 0);
  return kStreamBase + static_cast<double>(bits);
}

mx::Stream decodeStream(double value) {
  double rest = value - kStreamBase;
  if (!(rest >= 0 && rest < static_cast<double>(kGpuBit << 1))) throw Fail{"INVALID_ARGUMENT", "the last argument must be a stream"};
  uint64_t bits = static_cast<uint64_t>(rest);
  return mx::Stream(static_cast<int>(bits & (kGpuBit - 1)), mx::Device(bits & kGpuBit ? mx::Device::gpu : mx::Device::cpu));
}

mx::Dtype dtypeFromName(const std::string& name) {
  for (auto& entry : kDtypes) {
    if (entry.name == name) return entry.dtype;
  }
  throw Fail{"INVALID_ARGUMENT", "unknown dtype '" + name + "'"};
}

const char* dtypeName(mx::Dtype dtype) {
  for (auto& entry : kDtypes) {
    if (entry.dtype == dtype) return entry.name.data();
  }
  return "unknown";
}

void badArgument(size_t index, const char* expected) {
  throw Fail{"INVALID_ARGUMENT", "argument " + std::to_string(index + 1) + " must be " + expected};
}

void expectArguments(size_t received, size_t expected) {
  throw Fail{"INVALID_ARGUMENT", "takes " + std::to_string(expected) + " arguments, received " + std::to_string(received) + (received < expected ? " (is the stream missing?)" : "")};
}

std::pair<mx::array, mx::array> resolve(const Operand& a, const Operand& b) {
  if (a.tensor && b.tensor) return {*a.tensor, *b.tensor};
  if (a.tensor) return {*a.tensor, weakScalar(b.number, a.tensor->dtype())};
  if (b.tensor) return {weakScalar(a.number, b.tensor->dtype()), *b.tensor};
  throw Fail{"INVALID_ARGUMENT", "at least one operand must be a tensor"};
}

double numberAt(Call& call, napi_value value, size_t index, const char* expected) {
  double number;
  if (napi_get_value_double(call.js, value, &number) != napi_ok) badArgument(index, expected);
  return number;
}

int32_t toInt32(double number, size_t index) {
  // NaN fails both comparisons.
  if (!(number >= -2147483648.0 && number <= 2147483647.0) || number != std::trunc(number)) badArgument(index, "an integer of 32 bits (or an array of them)");
  return static_cast<int32_t>(number);
}

bool isNullish(Call& call, napi_value value) {
  napi_valuetype type;
  return napi_typeof(call.js, value, &type) != napi_ok || type == napi_null || type == napi_undefined;
}

std::vector<double> numbersAt(Call& call, napi_value value, size_t index) {
  uint32_t length;
  if (napi_get_array_length(call.js, value, &length) != napi_ok) badArgument(index, "an array of numbers");
  std::vector<double> numbers(length);
  for (uint32_t k = 0; k < length; k++) {
    napi_value element;
    if (napi_get_element(call.js, value, k, &element) != napi_ok) badArgument(index, "an array of numbers");
    numbers[k] = numberAt(call, element, index, "an array of numbers");
  }
  return numbers;
}

bool FromJs<bool>::get(Call& call, napi_value value, size_t index) {
  bool result;
  if (napi_get_value_bool(call.js, value, &result) != napi_ok) badArgument(index, "true or false");
  return result;
}

std::string FromJs<std::string>::get(Call& call, napi_value value, size_t index) {
  size_t length;
  if (napi_get_value_string_utf8(call.js, value, nullptr, 0, &length) != napi_ok) badArgument(index, "a string");
  std::string text(length, '\0');
  napi_get_value_string_utf8(call.js, value, text.data(), length + 1, &length);
  return text;
}

Bytes FromJs<Bytes>::get(Call& call, napi_value value, size_t index) {
  size_t length;
  auto* data = static_cast<uint8_t*>(typedArray(call, value, index, napi_uint8_array, "a Uint8Array", &length));
  return {data, length};
}

Int32s FromJs<Int32s>::get(Call& call, napi_value value, size_t index) {
  size_t length;
  auto* data = static_cast<int32_t*>(typedArray(call, value, index, napi_int32_array, "an Int32Array", &length));
  return {data, length};
}

mx::Shape FromJs<mx::Shape>::get(Call& call, napi_value value, size_t index) {
  mx::Shape shape;
  for (double number : numbersAt(call, value, index)) shape.push_back(toInt32(number, index));
  return shape;
}

std::vector<int> FromJs<std::vector<int>>::get(Call& call, napi_value value, size_t index) {
  std::vector<int> result;
  for (double number : numbersAt(call, value, index)) result.push_back(toInt32(number, index));
  return result;
}

std::vector<HandleArg> FromJs<std::vector<HandleArg>>::get(Call& call, napi_value value, size_t index) {
  std::vector<HandleArg> result;
  for (double number : numbersAt(call, value, index)) result.push_back({number});
  return result;
}

std::vector<mx::array> FromJs<std::vector<mx::array>>::get(Call& call, napi_value value, size_t index) {
  std::vector<mx::array> result;
  for (double number : numbersAt(call, value, index)) result.push_back(call.env.table.use(number));
  return result;
}

napi_value ToJs::operator()(mx::array value) {
  call.env.countIfForeign(value);
  return (*this)(call.env.table.add(std::move(value), stream));
}

napi_value ToJs::operator()(std::vector<mx::array> values) {
  napi_value list;
  if (napi_create_array_with_length(call.js, values.size(), &list) != napi_ok) return nullptr;
  for (size_t k = 0; k < values.size(); k++) napi_set_element(call.js, list, k, (*this)(std::move(values[k])));
  return list;
}

napi_value ToJs::operator()(double value) {
  napi_value result = nullptr;
  napi_create_double(call.js, value, &result);
  return result;
}

napi_value ToJs::operator()(bool value) {
  napi_value result = nullptr;
  napi_get_boolean(call.js, value, &result);
  return result;
}

napi_value ToJs::operator()(const std::string& value) {
  napi_value result = nullptr;
  napi_create_string_utf8(call.js, value.data(), value.size(), &result);
  return result;
}

void Binder::add(const char* name, napi_callback callback) {
  Bound& bound = env.bound.emplace_back(Bound{&env, name});
  napi_value function;
  if (napi_create_function(js, name, NAPI_AUTO_LENGTH, callback, &bound, &function) != napi_ok) return;
  napi_set_named_property(js, exports, name, function);
}

Object::Object(napi_env js) : js(js), value(nullptr) {
  napi_create_object(js, &value);
}

Object& Object::set(const char* key, napi_value entry) {
  napi_set_named_property(js, value, key, entry);
  return *this;
}

Object& Object::set(const char* key, double number) {
  napi_value entry;
  if (napi_create_double(js, number, &entry) == napi_ok) set(key, entry);
  return *this;
}

Object& Object::set(const char* key, bool flag) {
  napi_value entry;
  if (napi_get_boolean(js, flag, &entry) == napi_ok) set(key, entry);
  return *this;
}

Object& Object::set(const char* key, const std::string& text) {
  napi_value entry;
  if (napi_create_string_utf8(js, text.data(), text.size(), &entry) == napi_ok) set(key, entry);
  return *this;
}

}  // namespace tidemark
