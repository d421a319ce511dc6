#pragma once
// Errors on their way to JavaScript: a code of src/shared/errors.ts and a message. No C++ exception passes the Node-API edge.

#include <node_api.h>

#include <exception>
#include <string>

namespace tidemark {

/// Thrown by our own code; everything else that MLX throws is classified by `describe`.
struct Fail {
  const char* code;
  std::string message;
};

/// What an exception in flight means for a caller. Call it inside a catch block only.
Fail describe(std::exception_ptr error);

/// Whether this failure leaves the arrays that were to be computed unusable. An array of another thread's stream is the exception: MLX
/// refuses it before it schedules anything, and its owner can still evaluate it.
bool spoilsResults(const Fail& fail);

/// Makes a pending JavaScript exception through the factory that the TypeScript side installed (so that it is a TidemarkError), or a plain
/// Error with a `code` before that.
void throwToJs(napi_env js, napi_ref factory, const Fail& fail, const char* where);

}  // namespace tidemark
