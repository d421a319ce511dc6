#pragma once
// Binds plain C++ lambdas to JavaScript functions: arguments and results are converted by their C++ types.
//
// Ops are called a thousand times a step, so this layer is on the C Node-API and makes nothing but the result's number. A lambda whose last
// parameter is an mx::Stream is an op: its results are remembered as belonging to that stream.

#include <node_api.h>

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "env.h"
#include "errors.h"
#include "mlx/array.h"
#include "mlx/stream.h"

namespace tidemark {

/// One call: who calls, on which thread's state, as which function.
struct Call {
  napi_env js;
  Env& env;
  const char* name;
};

/// A tensor, or a number that takes the other operand's dtype.
struct Operand {
  const mx::array* tensor;
  double number;
};

/// The memory of a Uint8Array (also over a SharedArrayBuffer).
struct Bytes {
  uint8_t* data;
  size_t size;
};

struct Int32s {
  int32_t* data;
  size_t size;
};

/// A handle that the function itself looks up.
struct HandleArg {
  Handle value;
};

// Streams are integers as well: 2^51 + device * 2^32 + index.
double encodeStream(mx::Stream stream);
mx::Stream decodeStream(double value);
mx::Dtype dtypeFromName(const std::string& name);
const char* dtypeName(mx::Dtype dtype);

[[noreturn]] void badArgument(size_t index, const char* expected);

/// The two operands of a binary op as arrays: a number becomes a scalar of the other one's dtype.
std::pair<mx::array, mx::array> resolve(const Operand& a, const Operand& b);

double numberAt(Call& call, napi_value value, size_t index, const char* expected);
/// Refuses fractions, NaN and what does not fit.
int32_t toInt32(double number, size_t index);
bool isNullish(Call& call, napi_value value);
std::vector<double> numbersAt(Call& call, napi_value value, size_t index);

template <class T>
struct FromJs;

template <>
struct FromJs<double> {
  static double get(Call& c, napi_value v, size_t i) { return numberAt(c, v, i, "a number"); }
};
template <>
struct FromJs<float> {
  static float get(Call& c, napi_value v, size_t i) { return static_cast<float>(numberAt(c, v, i, "a number")); }
};
template <>
struct FromJs<int> {
  static int get(Call& c, napi_value v, size_t i) {
    return toInt32(numberAt(c, v, i, "an integer"), i);
  }
};
template <>
struct FromJs<bool> {
  static bool get(Call& c, napi_value v, size_t i);
};
template <>
struct FromJs<std::string> {
  static std::string get(Call& c, napi_value v, size_t i);
};
template <>
struct FromJs<mx::Dtype> {
  static mx::Dtype get(Call& c, napi_value v, size_t i) { return dtypeFromName(FromJs<std::string>::get(c, v, i)); }
};
template <>
struct FromJs<mx::Stream> {
  static mx::Stream get(Call& c, napi_value v, size_t i) { return decodeStream(numberAt(c, v, i, "a stream")); }
};
template <>
struct FromJs<mx::array> {
  static const mx::array& get(Call& c, napi_value v, size_t i) { return c.env.table.use(numberAt(c, v, i, "a tensor")); }
};
template <>
struct FromJs<HandleArg> {
  static HandleArg get(Call& c, napi_value v, size_t i) { return {numberAt(c, v, i, "a tensor")}; }
};
template <>
struct FromJs<Operand> {
  static Operand get(Call& c, napi_value v, size_t i) {
    double d = numberAt(c, v, i, "a tensor or a number");
    return isHandle(d) ? Operand{&c.env.table.use(d), 0} : Operand{nullptr, d};
  }
};
template <>
struct FromJs<Bytes> {
  static Bytes get(Call& c, napi_value v, size_t i);
};
template <>
struct FromJs<Int32s> {
  static Int32s get(Call& c, napi_value v, size_t i);
};
template <>
struct FromJs<mx::Shape> {
  static mx::Shape get(Call& c, napi_value v, size_t i);
};
template <>
struct FromJs<std::vector<int>> {
  static std::vector<int> get(Call& c, napi_value v, size_t i);
};
template <>
struct FromJs<std::vector<HandleArg>> {
  static std::vector<HandleArg> get(Call& c, napi_value v, size_t i);
};
template <>
struct FromJs<std::vector<mx::array>> {
  static std::vector<mx::array> get(Call& c, napi_value v, size_t i);
};
template <>
struct FromJs<napi_value> {
  static napi_value get(Call&, napi_value v, size_t) { return v; }
};
template <class T>
struct FromJs<std::optional<T>> {
  static std::optional<T> get(Call& c, napi_value v, size_t i) {
    if (isNullish(c, v)) return std::nullopt;
    return FromJs<T>::get(c, v, i);
  }
};

/// Turns results into JavaScript values; `stream` is the op's stream index, or -1.
struct ToJs {
  Call& call;
  int32_t stream;

  napi_value operator()(mx::array value);
  napi_value operator()(std::vector<mx::array> values);
  napi_value operator()(double value);
  napi_value operator()(bool value);
  napi_value operator()(const std::string& value);
  napi_value operator()(napi_value value) { return value; }
};

constexpr size_t kMaxArguments = 14;

template <class L, class R, class... A, size_t... I>
napi_value invoke(Call& call, napi_value* argv, R (*)(A...), std::index_sequence<I...>) {
  L f{};
  int32_t stream = -1;
  auto remember = [&](auto&& value) -> decltype(auto) {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, mx::Stream>) {
      stream = value.index;
      call.env.usedMlx = true;
    }
    return std::forward<decltype(value)>(value);
  };
  if constexpr (std::is_void_v<R>) {
    f(remember(FromJs<std::decay_t<A>>::get(call, argv[I], I))...);
    return nullptr;
  } else {
    R result = f(remember(FromJs<std::decay_t<A>>::get(call, argv[I], I))...);
    return ToJs{call, stream}(std::move(result));
  }
}

// The same for functions that take the call itself first.
template <class L, class R, class... A, size_t... I>
napi_value invoke(Call& call, napi_value* argv, R (*)(Call&, A...), std::index_sequence<I...>) {
  L f{};
  if constexpr (std::is_void_v<R>) {
    f(call, FromJs<std::decay_t<A>>::get(call, argv[I], I)...);
    return nullptr;
  } else {
    R result = f(call, FromJs<std::decay_t<A>>::get(call, argv[I], I)...);
    return ToJs{call, -1}(std::move(result));
  }
}

template <class R, class... A>
constexpr size_t arity(R (*)(A...)) {
  return sizeof...(A);
}
template <class R, class... A>
constexpr size_t arity(R (*)(Call&, A...)) {
  return sizeof...(A);
}

void expectArguments(size_t received, size_t expected);

template <class L>
napi_value thunk(napi_env js, napi_callback_info info) {
  constexpr size_t expected = arity(decltype(+L{}){});
  static_assert(expected <= kMaxArguments);
  size_t argc = kMaxArguments;
  napi_value argv[kMaxArguments];
  void* data;
  if (napi_get_cb_info(js, info, &argc, argv, nullptr, &data) != napi_ok) return nullptr;
  Bound* bound = static_cast<Bound*>(data);
  Call call{js, *bound->env, bound->name};
  try {
    if (argc != expected) expectArguments(argc, expected);
    return invoke<L>(call, argv, decltype(+L{}){}, std::make_index_sequence<expected>{});
  } catch (...) {
    throwToJs(js, call.env.errorFactory, describe(std::current_exception()), call.name);
    return nullptr;
  }
}

/// Adds functions to the addon's exports.
struct Binder {
  napi_env js;
  Env& env;
  napi_value exports;

  template <class L>
  void def(const char* name, L) {
    add(name, thunk<L>);
  }
  void add(const char* name, napi_callback callback);
};

/// Small helpers for results that are objects.
struct Object {
  explicit Object(napi_env js);
  Object& set(const char* key, napi_value value);
  Object& set(const char* key, double value);
  Object& set(const char* key, bool value);
  Object& set(const char* key, const std::string& value);
  Object& set(const char* key, const char* value) { return set(key, std::string(value)); }

  napi_env js;
  napi_value value;
};

}  // namespace tidemark
