// Evaluation: the only place where work is started and waited for, and where its errors are booked.
//
// MLX reports an error of a stream once, to whoever asks first; afterwards the failed arrays look available and hold garbage. So whoever gets
// the error poisons every handle of that stream whose bytes were not confirmed before.

#include <algorithm>

#include "control.h"
#include "groups.h"
#include "mlx/transforms.h"

namespace tidemark {
namespace {

using Status = mx::array::Status;

std::vector<int32_t> streamsOf(Call& c, const std::vector<HandleArg>& handles) {
  std::vector<int32_t> streams;
  for (auto handle : handles) {
    int32_t stream = c.env.table.at(handle.value).stream;
    if (stream >= 0 && std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
  }
  return streams;
}

/// Runs `work`; after a failure poisons `handles` and everything unconfirmed of `streams`, and rethrows.
template <class W>
void guarded(Call& c, const std::vector<HandleArg>& handles, const std::vector<int32_t>& streams, W work) {
  c.env.usedMlx = true;
  try {
    work();
  } catch (...) {
    if (spoilsResults(describe(std::current_exception()))) {
      for (auto handle : handles) c.env.table.at(handle.value).poisoned = true;
      for (auto stream : streams) c.env.table.poison(stream);
    }
    throw;
  }
}

std::vector<mx::array> arraysOf(Call& c, const std::vector<HandleArg>& handles) {
  std::vector<mx::array> arrays;
  arrays.reserve(handles.size());
  for (auto handle : handles) arrays.push_back(c.env.table.use(handle.value));
  return arrays;
}

void evaluate(Call& c, std::vector<HandleArg> handles) {
  auto arrays = arraysOf(c, handles);
  auto streams = streamsOf(c, handles);
  guarded(c, handles, streams, [&] {
    mx::eval(arrays);
    // eval has waited for all of them; this makes each known to be available, so that readers need not ask (and other threads must not).
    for (auto& a : arrays) a.wait();
  });
  c.env.table.markScheduled();
  for (auto stream : streams) c.env.table.confirm(stream, c.env.table.epoch());
}

void asyncEvaluate(Call& c, std::vector<HandleArg> handles) {
  auto arrays = arraysOf(c, handles);
  guarded(c, handles, streamsOf(c, handles), [&] { mx::async_eval(std::move(arrays)); });
  c.env.table.markScheduled();
}

}  // namespace

void waitFor(Call& c, HandleArg handle) {
  c.env.table.use(handle.value);
  Slot& slot = c.env.table.at(handle.value);
  // MLX would mark an array that was never scheduled as available, without a buffer behind it.
  if (slot.value->status() == Status::unscheduled) throw Fail{"INVALID_ARGUMENT", "this tensor was never evaluated; evaluate it first"};
  int32_t stream = slot.stream;
  guarded(c, {handle}, stream >= 0 ? std::vector<int32_t>{stream} : std::vector<int32_t>{}, [&] { slot.value->wait(); });
  if (stream >= 0) c.env.table.confirm(stream, slot.epoch);
}

const mx::array& requireAvailable(Call& c, Handle handle) {
  const mx::array& a = c.env.table.use(handle);
  if (a.status() == Status::available) return a;
  if (a.status() == Status::unscheduled) throw Fail{"INVALID_ARGUMENT", "this tensor was not evaluated, so it has no bytes; evaluate it first"};
  int32_t stream = c.env.table.at(handle).stream;
  bool done = false;
  // Asking may deliver the stream's error, like waiting.
  guarded(c, {{handle}}, stream >= 0 ? std::vector<int32_t>{stream} : std::vector<int32_t>{}, [&] { done = a.is_available(); });
  if (!done) throw Fail{"INVALID_ARGUMENT", "this tensor is still being computed; wait() for it first"};
  return a;
}

namespace {

/// What is known already: asking MLX whether work in flight is done could deliver the stream's error here.
std::string status(Call& c, HandleArg handle) {
  Slot& slot = c.env.table.at(handle.value);
  if (slot.poisoned) return "poisoned";
  if (slot.value->status() == Status::unscheduled) return "unscheduled";
  return slot.value->status() == Status::available ? "available" : "evaluated";
}

void synchronizeStream(Call& c, mx::Stream stream) {
  guarded(c, {}, {stream.index}, [&] { mx::synchronize(stream); });
  c.env.table.confirm(stream.index, c.env.table.epoch());
}

napi_value shapeOf(Call& c, HandleArg handle) {
  const mx::Shape& shape = c.env.table.at(handle.value).value->shape();
  napi_value list;
  if (napi_create_array_with_length(c.js, shape.size(), &list) != napi_ok) return nullptr;
  uint32_t k = 0;
  for (int n : shape) {
    napi_value element;
    if (napi_create_int32(c.js, n, &element) == napi_ok) napi_set_element(c.js, list, k++, element);
  }
  return list;
}

}  // namespace

void bindControl(Binder& b) {
  b.def("evaluate", [](Call& c, std::vector<HandleArg> handles) { evaluate(c, std::move(handles)); });
  b.def("asyncEvaluate", [](Call& c, std::vector<HandleArg> handles) { asyncEvaluate(c, std::move(handles)); });
  b.def("wait", [](Call& c, HandleArg handle) { waitFor(c, handle); });
  b.def("status", [](Call& c, HandleArg handle) { return status(c, handle); });
  b.def("synchronize", [](Call& c, mx::Stream stream) { synchronizeStream(c, stream); });
  b.def("shapeOf", [](Call& c, HandleArg handle) { return shapeOf(c, handle); });
  b.def("dtypeOf", [](Call& c, HandleArg handle) { return std::string(dtypeName(c.env.table.at(handle.value).value->dtype())); });
  b.def("nbytes", [](Call& c, HandleArg handle) { return static_cast<double>(c.env.table.at(handle.value).value->nbytes()); });
  // Where the bytes lie, for tests of in-place updates: equal addresses are the same buffer. 0 before evaluation.
  b.def("bufferAddress", [](Call& c, HandleArg handle) {
    const mx::array& a = c.env.table.use(handle.value);
    return a.status() == Status::unscheduled ? 0.0 : static_cast<double>(reinterpret_cast<uintptr_t>(a.buffer().ptr()) + static_cast<uintptr_t>(a.offset()));
  });
}

}  // namespace tidemark
