#include "errors.h"

#include <array>
#include <new>
#include <string_view>

namespace tidemark {
namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// The device cannot be used any more in this process. "Insufficient Memory" is deliberately not here: that can be recovered from.
constexpr std::array kDeviceLost = {
    std::string_view("cudaErrorIllegalAddress"), std::string_view("illegal memory access"),    std::string_view("unspecified launch failure"),
    std::string_view("device-side assert"),      std::string_view("uncorrectable ECC error"),  std::string_view("CUDA_ERROR_DEINITIALIZED"),
    std::string_view("Device was removed"),      std::string_view("Caused GPU Hang Error"),    std::string_view("Caused GPU Timeout Error"),
    std::string_view("context is destroyed"),    std::string_view("Ignored (for causing prior/excessive GPU errors)"),
};

constexpr std::array kOutOfMemory = {
    std::string_view("Unable to allocate"),
    std::string_view("Insufficient Memory"),
    std::string_view("out of memory"),
    std::string_view("Attempting to allocate"),
};

}  // namespace

Fail describe(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const Fail& fail) {
    return fail;
  } catch (const std::bad_alloc&) {
    return {"MEMORY_LIMIT", "Memory could not be allocated. Use a smaller model, context or batch."};
  } catch (const std::exception& e) {
    std::string text = e.what();
    if (contains(text, "There is no Stream(")) {
      return {"STREAM_AFFINITY", text + " An array can only be evaluated on the thread whose stream it was built on; its owner can still evaluate it."};
    }
    for (auto part : kDeviceLost) {
      if (contains(text, part)) return {"DEVICE_LOST", text + " The device cannot be used again in this process; restart it."};
    }
    for (auto part : kOutOfMemory) {
      if (contains(text, part)) return {"MEMORY_LIMIT", text};
    }
    return {"MLX_ERROR", std::move(text)};
  } catch (...) {
    return {"MLX_ERROR", "MLX threw something that is not a std::exception."};
  }
}

bool spoilsResults(const Fail& fail) {
  std::string_view code = fail.code;
  return code == "MLX_ERROR" || code == "DEVICE_LOST" || code == "MEMORY_LIMIT";
}

void throwToJs(napi_env js, napi_ref factory, const Fail& fail, const char* where) {
  std::string message = std::string(where) + ": " + fail.message;
  napi_value code, text, error = nullptr;
  // Each call may fail when the environment is being torn down; then there is nobody left to tell.
  if (napi_create_string_utf8(js, fail.code, NAPI_AUTO_LENGTH, &code) != napi_ok) return;
  if (napi_create_string_utf8(js, message.c_str(), message.size(), &text) != napi_ok) return;
  if (factory) {
    napi_value make, receiver;
    napi_value arguments[] = {code, text};
    if (napi_get_reference_value(js, factory, &make) != napi_ok || napi_get_undefined(js, &receiver) != napi_ok) return;
    if (napi_call_function(js, receiver, make, 2, arguments, &error) != napi_ok) return;
  } else if (napi_create_error(js, code, text, &error) != napi_ok) {
    return;
  }
  napi_throw(js, error);
}

}  // namespace tidemark
