// Leases: bytes of arrays that another thread copies out while their owner goes on.
//
// The owner has waited for the arrays (`piecesOf` refuses others) and notes here where their bytes lie. A reader on any thread copies them slice
// by slice with nothing but the lease's number; it touches no object of MLX. The arrays are held, so that MLX neither writes into their buffers
// nor frees or reuses them, and only the owner lets go of them, or the end of its thread: both wait for a slice under way.
//
// Slices of one lease exclude each other and continue where the last one ended, so that two threads (a reader, and an owner that will not wait for
// it) may fill one target together: it is whole when either is told that nothing remains.

#include "leases.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "bytes.h"
#include "device_copy.h"
#include "groups.h"

namespace tidemark {
namespace {

struct LeasedPiece {
  Place place;
  size_t from, size, at;
};

struct Lease {
  const Env* owner;
  std::vector<mx::array> arrays;
  std::vector<LeasedPiece> pieces;
  std::mutex mutex;  // guards what follows, and the arrays as long as they are read
  size_t next = 0;   // piece
  size_t done = 0;   // bytes of it
  size_t remaining = 0;
  bool gone = false;
};

/// All leases of the process. Never destroyed: native threads may outlive static objects.
struct Registry {
  std::mutex mutex;
  std::unordered_map<uint32_t, std::shared_ptr<Lease>> leases;
  uint32_t last = 0;
};

Registry& registry() {
  static auto* instance = new Registry;
  return *instance;
}

void letGo(Lease& lease) {
  std::vector<mx::array> arrays;
  std::lock_guard reading(lease.mutex);
  lease.gone = true;
  arrays.swap(lease.arrays);
}

uint32_t open(Call& c, Bytes packed, size_t targetSize) {
  auto lease = std::make_shared<Lease>();
  lease->owner = &c.env;
  const mx::array* last = nullptr;
  for (const Piece& piece : piecesOf(c, packed, targetSize)) {
    if (piece.array != last) lease->arrays.push_back(*piece.array);
    last = piece.array;
    lease->pieces.push_back({placeOf(*piece.array), piece.from, piece.size, piece.at});
    lease->remaining += piece.size;
  }
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  do {
    all.last = all.last % 0x7fffffff + 1;  // an id fits a word, and is never 0
  } while (all.leases.count(all.last) != 0);
  all.leases.emplace(all.last, std::move(lease));
  return all.last;
}

std::shared_ptr<Lease> find(uint32_t id) {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  auto found = all.leases.find(id);
  return found == all.leases.end() ? nullptr : found->second;
}

/// Copies up to `most` of the bytes that are left; returns how many are left then.
size_t copy(uint32_t id, Bytes target, size_t most) {
  auto lease = find(id);
  if (!lease) throw Fail{"LEASE_GONE", "this lease has ended: its owner has dropped it, or the owner's thread has ended"};
  std::lock_guard reading(lease->mutex);
  if (lease->gone) throw Fail{"LEASE_GONE", "this lease has ended: its owner has dropped it, or the owner's thread has ended"};
  Copies copies;
  size_t next = lease->next, done = lease->done, copied = 0;
  for (; next < lease->pieces.size() && copied < most; done = 0, next++) {
    const LeasedPiece& piece = lease->pieces[next];
    if (piece.at + piece.size > target.size) throw Fail{"INVALID_ARGUMENT", "the target is smaller than the one this lease was made for"};
    size_t size = std::min(piece.size - done, most - copied);
    copies.add(piece.place, piece.from + done, target.data + piece.at + done, size);
    copied += size;
    done += size;
    if (done < piece.size) break;
  }
  copies.finish();
  // Only now: a copy that failed is made again.
  lease->next = next;
  lease->done = done;
  lease->remaining -= copied;
  return lease->remaining;
}

bool drop(Call& c, uint32_t id) {
  Registry& all = registry();
  std::shared_ptr<Lease> lease;
  {
    std::lock_guard lock(all.mutex);
    auto found = all.leases.find(id);
    if (found == all.leases.end()) return false;
    if (found->second->owner != &c.env) throw Fail{"INVALID_ARGUMENT", "a lease is dropped by the thread that made it"};
    lease = std::move(found->second);
    all.leases.erase(found);
  }
  letGo(*lease);
  return true;
}

uint32_t idAt(double value) {
  if (!(value >= 1 && value <= 2147483647.0)) badArgument(0, "a lease");
  return static_cast<uint32_t>(value);
}

}  // namespace

void dropLeasesOf(const Env& env) noexcept {
  Registry& all = registry();
  std::vector<std::shared_ptr<Lease>> own;
  {
    std::lock_guard lock(all.mutex);
    for (auto at = all.leases.begin(); at != all.leases.end();) {
      if (at->second->owner == &env) {
        own.push_back(std::move(at->second));
        at = all.leases.erase(at);
      } else {
        ++at;
      }
    }
  }
  for (auto& lease : own) letGo(*lease);
}

void bindLeases(Binder& b) {
  // The target's size is checked once more by each copy: other threads see the same memory through views of their own.
  b.def("leaseOpen", [](Call& c, Bytes pieces, Bytes target) { return static_cast<double>(open(c, pieces, target.size)); });
  b.def("leaseCopy", [](Call&, double id, Bytes target, double most) {
    if (!(most >= 1 && most <= 4294967296.0)) badArgument(2, "a number of bytes");
    return static_cast<double>(copy(idAt(id), target, static_cast<size_t>(most)));
  });
  b.def("leaseDrop", [](Call& c, double id) { return drop(c, idAt(id)); });
  b.def("leaseCount", [](Call&) {
    Registry& all = registry();
    std::lock_guard lock(all.mutex);
    return static_cast<double>(all.leases.size());
  });
}

}  // namespace tidemark
