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

}  // namespace

void bindTestOps(Binder& b) {
  b.def("testFailWhenScheduled", [](const mx::array& a, mx::Stream s) { return misbehave(a, Fault::failWhenScheduled, 0, s); });
  b.def("testFailOnStream", [](const mx::array& a, mx::Stream s) { return misbehave(a, Fault::failOnStream, 0, s); });
  b.def("testDelay", [](const mx::array& a, int ms, mx::Stream s) { return misbehave(a, Fault::delay, ms, s); });
  // The calling thread itself sits in native code, where it can neither be interrupted nor terminated.
  b.def("testBlock", [](Call&, int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); });
  // One tensor of a file through MLX's own loader, which reads it when it is evaluated.
  b.def("testLoadSafetensors", [](std::string path, std::string name, mx::Stream s) { return mx::load_safetensors(path, s).first.at(name); });
  b.def("testThrow", [](Call&, std::string text) { throw std::runtime_error(text); });
}

}  // namespace tidemark
