#pragma once
// What one JavaScript environment (one thread) owns in this addon, and how it ends.

#include <node_api.h>

#include <atomic>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "mlx/stream.h"
#include "table.h"

namespace tidemark {

struct Env;

/// The data pointer of each bound function.
struct Bound {
  Env* env;
  const char* name;
};

/// Memory of the host that was made known to the device (CUDA only).
struct HostRegion {
  void* address;
  size_t size;
  napi_ref keepAlive;
};

struct Env {
  explicit Env(napi_env js);

  napi_env js;
  Table table;
  napi_ref errorFactory = nullptr;
  std::deque<Bound> bound;
  /// Streams that exist on this thread. `clear_streams` ends them all.
  std::vector<mx::Stream> streams;
  /// Streams ended by `clear_streams`; MLX still names one of them as the thread's default.
  std::vector<mx::Stream> deadStreams;
  std::optional<mx::Stream> engineStream;
  /// Streams of further models of this engine, each for the work of that model only.
  std::vector<mx::Stream> modelStreams;
  /// Ops bound to a stream that is not the engine's, or fed by another stream's lazy array. Stays 0 in a correct engine.
  uint64_t foreignOps = 0;
  /// Called between the drain and the clear of the allocator's cache; set by tests only.
  std::function<void()> beforeClear;
  std::vector<double> inFlightAtClears;
  /// This thread has touched MLX, so that its end must drain and clear.
  bool usedMlx = false;
  std::vector<HostRegion> hostRegions;

  void rememberStream(mx::Stream stream);
  void forgetStreams();
  bool owns(mx::Stream stream) const;
  /// Counts `value` when the op that makes it is bound to no stream of this engine, or takes what another stream has yet to compute.
  void countIfForeign(const mx::array& value);
  /// Waits for all work of this thread and swallows its errors: for the end of the thread only.
  void drain() noexcept;
};

/// Env cleanup hook: drain, drop the arrays, clear the streams, in this order. Without the drain a BLAS library that unloads under a running
/// matmul crashes or hangs the process. Runs for natural end, process.exit, uncaught errors and terminate() of workers.
void endEnvironment(void* env);

}  // namespace tidemark
