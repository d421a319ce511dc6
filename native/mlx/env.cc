#include "env.h"

#include <algorithm>

#include "device_copy.h"
#include "leases.h"
#include "mlx/device.h"
#include "mlx/primitives.h"

namespace tidemark {
namespace {

uint32_t firstGeneration() {
  static std::atomic<uint32_t> environments{0};
  return 1 + environments.fetch_add(1) * 7919u * 1024u;
}

}  // namespace

Env::Env(napi_env js) : js(js), table(firstGeneration()) {}

void Env::rememberStream(mx::Stream stream) {
  auto in = [&](auto& list) { return std::find(list.begin(), list.end(), stream) != list.end(); };
  usedMlx = true;
  if (!in(streams) && !in(deadStreams)) streams.push_back(stream);
}

void Env::forgetStreams() {
  deadStreams.insert(deadStreams.end(), streams.begin(), streams.end());
  streams.clear();
  engineStream.reset();
  modelStreams.clear();
}

bool Env::owns(mx::Stream stream) const {
  return stream == *engineStream || std::find(modelStreams.begin(), modelStreams.end(), stream) != modelStreams.end();
}

void Env::countIfForeign(const mx::array& value) {
  if (!engineStream || !value.has_primitive()) return;
  mx::Stream stream = value.primitive().stream();
  auto crosses = [&](const mx::array& input) {
    return input.status() == mx::array::Status::unscheduled && input.has_primitive() && input.primitive().stream() != stream;
  };
  if (!owns(stream) || std::any_of(value.inputs().begin(), value.inputs().end(), crosses)) foreignOps++;
}

void Env::drain() noexcept {
  auto settle = [](mx::Stream stream) {
    try {
      mx::synchronize(stream);
    } catch (...) {
      // The thread ends: its results are dropped with it, so there is nobody to whom this error matters.
      return;
    }
  };
  for (auto stream : streams) settle(stream);
  for (auto type : {mx::Device::cpu, mx::Device::gpu}) {
    try {
      // Evaluating makes a default stream on the side; it may carry work as well.
      if (auto stream = mx::peek_default_stream(mx::Device(type))) settle(*stream);
    } catch (...) {
      continue;  // no such device
    }
  }
}

void endEnvironment(void* data) {
  Env* env = static_cast<Env*>(data);
  // A thread that only reads leases has a copy stream too.
  endDeviceCopies();
  if (env->usedMlx) {
    env->drain();
    dropLeasesOf(*env);
    for (auto& region : env->hostRegions) unregisterHost(region.address);
    env->table.clear();
    try {
      mx::clear_streams();
    } catch (...) {
      // As above: the thread is going away.
      env->streams.clear();
    }
  }
  delete env;
}

}  // namespace tidemark
