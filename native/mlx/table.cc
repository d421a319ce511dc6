#include "table.h"

#include <algorithm>

#include "errors.h"

namespace tidemark {
namespace {

Handle encode(uint32_t index, uint32_t generation) {
  return kHandleBase + static_cast<double>((static_cast<uint64_t>(generation) << kIndexBits) | index);
}

}  // namespace

Handle Table::add(mx::array value, int32_t stream) {
  uint32_t index;
  if (!free_.empty()) {
    index = free_.back();
    free_.pop_back();
  } else {
    if (slots_.size() == kMaxSlots) throw Fail{"MEMORY_LIMIT", "Too many live tensors (4,194,304). Close scopes or release handles."};
    index = static_cast<uint32_t>(slots_.size());
    slots_.emplace_back().generation = firstGeneration_;
  }
  Slot& slot = slots_[index];
  slot.value.emplace(std::move(value));
  slot.scope = scopeDepth();
  slot.stream = stream;
  slot.epoch = 0;
  slot.poisoned = false;
  Ref ref{index, slot.generation};
  if (!scopes_.empty()) scopes_.back().push_back(ref);
  if (stream >= 0) {
    pending_.push_back(ref);
    // A thread that builds for ever without evaluating must not collect dead references for ever.
    if (pending_.size() > 4096 && pending_.size() > 4 * live()) forgetDead(pending_);
  }
  return encode(index, slot.generation);
}

Slot& Table::at(Handle handle) {
  if (!isHandle(handle)) throw Fail{"INVALID_ARGUMENT", "expected a tensor handle, received the number " + std::to_string(handle)};
  uint64_t bits = static_cast<uint64_t>(handle - kHandleBase);
  Slot* slot = find({static_cast<uint32_t>(bits & (kMaxSlots - 1)), static_cast<uint32_t>(bits >> kIndexBits)});
  if (!slot) throw Fail{"TENSOR_RELEASED", "this tensor was released (or its scope has ended, or it belongs to another thread). keep() or retain() what is used later."};
  return *slot;
}

const mx::array& Table::use(Handle handle) {
  Slot& slot = at(handle);
  if (slot.poisoned) throw Fail{"TENSOR_POISONED", "this tensor was not computed: its stream reported an error. Nothing of that step may be used; start the step again."};
  return *slot.value;
}

void Table::release(Handle handle) {
  Slot& slot = at(handle);
  free(static_cast<uint32_t>(&slot - slots_.data()));
}

void Table::free(uint32_t index) {
  Slot& slot = slots_[index];
  slot.generation = (slot.generation + 1) & kGenerationMask;
  // Destroying an array may free a graph; do it last, when the slot is consistent again.
  mx::array dying = std::move(*slot.value);
  slot.value.reset();
  free_.push_back(index);
}

Slot* Table::find(Ref ref) {
  if (ref.index >= slots_.size()) return nullptr;
  Slot& slot = slots_[ref.index];
  return slot.value && slot.generation == ref.generation ? &slot : nullptr;
}

uint32_t Table::openScope() {
  scopes_.emplace_back();
  return scopeDepth();
}

void Table::closeScope(uint32_t depth) {
  if (depth == 0 || depth > scopeDepth()) throw Fail{"INVALID_ARGUMENT", "this scope is not open"};
  while (scopeDepth() >= depth) {
    uint32_t level = scopeDepth();
    std::vector<Ref> refs = std::move(scopes_.back());
    scopes_.pop_back();
    for (Ref ref : refs) {
      Slot* slot = find(ref);
      if (slot && slot->scope == level) free(ref.index);
    }
  }
}

void Table::keep(Handle handle) {
  Slot& slot = at(handle);
  if (slot.scope == 0 || slot.scope != scopeDepth()) return;  // it already outlives the innermost scope
  slot.scope--;
  if (slot.scope > 0) scopes_[slot.scope - 1].push_back({static_cast<uint32_t>(&slot - slots_.data()), slot.generation});
}

void Table::clear() {
  scopes_.clear();
  pending_.clear();
  inFlight_.clear();
  slots_.clear();
  free_.clear();
  // Handles made before must stay invalid.
  firstGeneration_ = (firstGeneration_ + (1u << 20)) & kGenerationMask;
}

void Table::markScheduled() {
  epoch_++;
  auto rest = pending_.begin();
  for (Ref ref : pending_) {
    Slot* slot = find(ref);
    if (!slot) continue;
    if (slot->value->status() == mx::array::Status::unscheduled) {
      *rest++ = ref;
    } else {
      slot->epoch = epoch_;
      inFlight_.push_back(ref);
    }
  }
  pending_.erase(rest, pending_.end());
}

void Table::confirm(int32_t stream, uint32_t epoch) {
  std::erase_if(inFlight_, [&](Ref ref) {
    Slot* slot = find(ref);
    return !slot || (slot->stream == stream && slot->epoch <= epoch);
  });
}

void Table::poison(int32_t stream) {
  auto spoil = [&](std::vector<Ref>& refs) {
    std::erase_if(refs, [&](Ref ref) {
      Slot* slot = find(ref);
      if (!slot) return true;
      if (stream >= 0 && slot->stream != stream) return false;
      slot->poisoned = true;
      return true;
    });
  };
  spoil(inFlight_);
  spoil(pending_);
}

void Table::forgetDead(std::vector<Ref>& refs) {
  std::erase_if(refs, [&](Ref ref) { return !find(ref); });
}

}  // namespace tidemark
