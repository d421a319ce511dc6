#include "env.h"

#include <algorithm>

#include "device_copy.h"
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
}

void Env::countIfForeign(const mx::array& value) {
  if (!engineStream || !value.has_primitive()) return;
  if (value.primitive().stream() != *engineStream) foreignOps++;
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
  if (env->usedMlx) {
    env->drain();
    for (auto& region : env->hostRegions) unregisterHost(region.address);
    endDeviceCopies();
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
