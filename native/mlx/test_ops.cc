// Ops that misbehave on purpose, so that tests can provoke a stream error, slow work in flight, and a thread stuck in native code.


#include <chrono>
#include <thread>

#include "groups.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/io.h"
#include "mlx/primitives.h"

namespace tidemark {
namespace {

enum class Fault { failWhenScheduled, failOnStream, delay };

/// Copies its input on a CPU stream, with a fault.
class Misbehave : public mx::UnaryPrimitive {
 public:
  Misbehave(mx::Stream stream, Fault fault, int ms) : UnaryPrimitive(stream), fault_(fault), ms_(ms) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    if (fault_ == Fault::failWhenScheduled) throw std::runtime_error("[test] failed while scheduling");
    out.copy_shared_buffer(inputs[0]);
    auto& encoder = mx::cpu::get_command_encoder(stream());
    encoder.set_input_array(inputs[0]);
    encoder.set_output_array(out);
    encoder.dispatch([fault = fault_, ms = ms_] {
      if (fault == Fault::failOnStream) throw std::runtime_error("[test] failed on the stream");
      std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    });
  }
  void eval_gpu(const std::vector<mx::array>&, mx::array&) override { throw std::runtime_error("[test] CPU streams only"); }
  const char* name() const override { return "Misbehave"; }

 private:
  Fault fault_;
  int ms_;
};

mx::array misbehave(const mx::array& a, Fault fault, int ms, mx::Stream s) {
  return mx::array(a.shape(), a.dtype(), std::make_shared<Misbehave>(s, fault, ms), {a});
}

/// How long the work queued on a stream still takes. It is done when this returns.
double inFlightMs(mx::Stream stream) {
  auto begin = std::chrono::steady_clock::now();
  mx::synchronize(stream);
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

napi_value inFlightAtClears(Call& c) {
  napi_value list;
  if (napi_create_array(c.js, &list) != napi_ok) return nullptr;
  uint32_t k = 0;
  for (double ms : c.env.inFlightAtClears) {
    napi_value element;
    if (napi_create_double(c.js, ms, &element) == napi_ok) napi_set_element(c.js, list, k++, element);
  }
  c.env.inFlightAtClears.clear();
  return list;
}

}  // namespace

void bindTestOps(Binder& b) {
  b.def("testFailWhenScheduled", [](const mx::array& a, mx::Stream s) { return misbehave(a, Fault::failWhenScheduled, 0, s); });
  b.def("testFailOnStream", [](const mx::array& a, mx::Stream s) { return misbehave(a, Fault::failOnStream, 0, s); });
  b.def("testDelay", [](const mx::array& a, int ms, mx::Stream s) { return misbehave(a, Fault::delay, ms, s); });
  // The calling thread itself sits in native code, where it can neither be interrupted nor terminated.
  b.def("testBlock", [](Call&, int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); });
  // One tensor of a file through MLX's own loader, which reads it when it is evaluated.
  b.def("testLoadSafetensors", [](std::string path, std::string name, mx::Stream s) { return mx::load_safetensors(path, s).first.at(name); });
  // What a clear would meet: from now on each clear first measures what is in flight on `stream`. The CPU backend's clear waits for every stream
  // by itself, so that without this a drain of the wrong one would not show.
  b.def("testWatchClears", [](Call& c, mx::Stream stream) {
    c.env.beforeClear = [env = &c.env, stream] { env->inFlightAtClears.push_back(inFlightMs(stream)); };
  });
  b.def("testInFlightAtClears", [](Call& c) { return inFlightAtClears(c); });
  b.def("testInFlight", [](Call&, mx::Stream stream) { return inFlightMs(stream); });
  // What MLX's own drain without an argument covers.
  b.def("testSynchronizeDefault", [](Call& c) {
    mx::Stream stream = mx::default_stream(mx::default_device());
    c.env.rememberStream(stream);
    mx::synchronize(stream);
    return encodeStream(stream);
  });
  b.def("testThrow", [](Call&, std::string text) { throw std::runtime_error(text); });
}

}  // namespace tidemark
