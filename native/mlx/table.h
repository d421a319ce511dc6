#pragma once
// The arrays of one thread, named to JavaScript by integers.
//
// A handle is 2^52 + generation * 2^22 + index: still a safe integer, never mistaken for a scalar operand (those are smaller, negative or
// fractional in any sane model), and never valid again after its slot is freed. The garbage collector frees nothing: scopes and release() do,
// because a handle that lives too long makes the next in-place update copy a whole cache.

#include <cstdint>
#include <optional>
#include <vector>

#include "mlx/array.h"

namespace tidemark {

namespace mx = mlx::core;

using Handle = double;

constexpr Handle kHandleBase = 4503599627370496.0;     // 2^52
constexpr Handle kHandleLimit = 9007199254740992.0;    // 2^53
constexpr int kIndexBits = 22;
constexpr uint32_t kMaxSlots = 1u << kIndexBits;
constexpr uint32_t kGenerationMask = (1u << 30) - 1;

inline bool isHandle(double value) {
  return value >= kHandleBase && value < kHandleLimit;
}

struct Slot {
  std::optional<mx::array> value;  // empty: free
  uint32_t generation = 0;
  uint32_t scope = 0;      // 1-based depth of the scope that frees it; 0: release() does
  int32_t stream = -1;     // index of the stream that computes it; -1: its bytes came from the host
  uint32_t epoch = 0;      // the evaluation that scheduled it; 0: not known to be scheduled
  bool poisoned = false;
};

class Table {
 public:
  /// Generations start at a different place in each environment, so that another thread's handle is very unlikely to name something here.
  explicit Table(uint32_t firstGeneration) : firstGeneration_(firstGeneration & kGenerationMask) {}

  Handle add(mx::array value, int32_t stream);
  /// Throws TENSOR_RELEASED for a handle that was freed, INVALID_ARGUMENT for a number that never was one.
  Slot& at(Handle handle);
  /// As `at`, and throws TENSOR_POISONED after a stream error.
  const mx::array& use(Handle handle);
  void release(Handle handle);

  uint32_t openScope();
  /// Frees what was made in the scope at `depth` and was not kept. Scopes deeper than it are closed first (an exception passed them).
  void closeScope(uint32_t depth);
  /// Hands a handle of the innermost scope to the one around it; outside any scope it must then be released.
  void keep(Handle handle);
  void retain(Handle handle) { at(handle).scope = 0; }

  size_t live() const { return slots_.size() - free_.size(); }
  uint32_t scopeDepth() const { return static_cast<uint32_t>(scopes_.size()); }
  void clear();

  // What is known about results of a stream, for poisoning (see evaluate in control.cc).
  /// Marks what the evaluation just started has scheduled.
  void markScheduled();
  /// Everything scheduled on `stream` up to `epoch` has been computed without an error.
  void confirm(int32_t stream, uint32_t epoch);
  uint32_t epoch() const { return epoch_; }
  /// Poisons every array of `stream` (-1: of all streams) that was not confirmed.
  void poison(int32_t stream);

 private:
  struct Ref {
    uint32_t index;
    uint32_t generation;
  };
  Slot* find(Ref ref);
  void free(uint32_t index);
  void forgetDead(std::vector<Ref>& refs);

  uint32_t firstGeneration_;
  uint32_t epoch_ = 0;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  std::vector<std::vector<Ref>> scopes_;
  std::vector<Ref> pending_;   // built, not known to be scheduled
  std::vector<Ref> inFlight_;  // scheduled, not confirmed
};

}  // namespace tidemark
