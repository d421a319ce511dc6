#include <algorithm>

#include "groups.h"
#include "mlx/device.h"

namespace tidemark {
namespace {

mx::Device deviceFromName(const std::string& name) {
  if (name == "cpu") return mx::Device(mx::Device::cpu);
  if (name != "gpu") throw Fail{"INVALID_ARGUMENT", "device must be 'cpu' or 'gpu', received '" + name + "'"};
  if (!mx::is_available(mx::Device(mx::Device::gpu))) throw Fail{"INVALID_ARGUMENT", "no GPU is available to MLX here; use device 'cpu'"};
  return mx::Device(mx::Device::gpu);
}

napi_value streamList(Call& c, const std::vector<mx::Stream>& streams) {
  napi_value list;
  if (napi_create_array_with_length(c.js, streams.size(), &list) != napi_ok) return nullptr;
  uint32_t k = 0;
  for (auto stream : streams) {
    napi_value element;
    if (napi_create_double(c.js, encodeStream(stream), &element) == napi_ok) napi_set_element(c.js, list, k++, element);
  }
  return list;
}

/// Evaluation makes the thread's default streams on the side: they count as live.
void noticeDefaultStreams(Env& env) {
  for (auto type : {mx::Device::cpu, mx::Device::gpu}) {
    if (!mx::is_available(mx::Device(type))) continue;
    if (auto stream = mx::peek_default_stream(mx::Device(type))) env.rememberStream(*stream);
  }
}

/// Those of them that exist and live.
std::vector<mx::Stream> defaultStreams(Env& env) {
  std::vector<mx::Stream> found;
  for (auto type : {mx::Device::cpu, mx::Device::gpu}) {
    if (!mx::is_available(mx::Device(type))) continue;
    auto stream = mx::peek_default_stream(mx::Device(type));
    if (stream && std::find(env.streams.begin(), env.streams.end(), *stream) != env.streams.end()) found.push_back(*stream);
  }
  return found;
}

napi_value deviceInfo(Call& c, std::string device) {
  Object result(c.js);
  result.set("device", device);
  for (auto& [key, value] : mx::device_info(deviceFromName(device))) {
    if (auto* text = std::get_if<std::string>(&value)) {
      result.set(key.c_str(), *text);
    } else {
      result.set(key.c_str(), static_cast<double>(std::get<size_t>(value)));
    }
  }
  return result.value;
}

}  // namespace

void bindStreams(Binder& b) {
  b.def("newStream", [](Call& c, std::string device) {
    mx::Stream stream = mx::new_stream(deviceFromName(device));
    c.env.rememberStream(stream);
    if (!c.env.engineStream) c.env.engineStream = stream;
    return encodeStream(stream);
  });
  b.def("setEngineStream", [](Call& c, mx::Stream stream) { c.env.engineStream = stream; });
  // A further model's stream: its ops are not foreign, lazy arrays that cross between the two are.
  b.def("newModelStream", [](Call& c, std::string device) {
    mx::Stream stream = mx::new_stream(deviceFromName(device));
    c.env.rememberStream(stream);
    c.env.modelStreams.push_back(stream);
    return encodeStream(stream);
  });
  b.def("defaultStream", [](Call& c, std::string device) {
    mx::Stream stream = mx::default_stream(deviceFromName(device));
    c.env.rememberStream(stream);
    return encodeStream(stream);
  });
  b.def("setDefaultStream", [](Call&, mx::Stream stream) { mx::set_default_stream(stream); });
  // Process-wide in MLX, and not synchronised: called once, before any engine works.
  b.def("setDefaultDevice", [](Call&, std::string device) { mx::set_default_device(deviceFromName(device)); });
  b.def("gpuAvailable", [](Call&) { return mx::is_available(mx::Device(mx::Device::gpu)); });
  b.def("liveStreams", [](Call& c) {
    if (c.env.usedMlx) noticeDefaultStreams(c.env);
    return streamList(c, c.env.streams);
  });
  // The thread's default stream of each device, as far as there is one. None is made.
  b.def("defaultStreams", [](Call& c) {
    if (c.env.usedMlx) noticeDefaultStreams(c.env);
    return streamList(c, defaultStreams(c.env));
  });
  b.def("clearStreams", [](Call& c) {
    if (c.env.usedMlx) noticeDefaultStreams(c.env);
    mx::clear_streams();
    c.env.forgetStreams();
  });
  b.def("drainThread", [](Call& c) {
    if (c.env.usedMlx) c.env.drain();
  });
  b.def("foreignStreamOps", [](Call& c) { return static_cast<double>(c.env.foreignOps); });
  b.def("streamIndex", [](Call&, mx::Stream stream) { return static_cast<double>(stream.index); });
  b.def("deviceInfo", [](Call& c, std::string device) { return deviceInfo(c, std::move(device)); });
}

}  // namespace tidemark
