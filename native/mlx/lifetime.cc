#include <cstring>

#include "groups.h"

namespace tidemark {

void bindLifetime(Binder& b) {
  b.def("openScope", [](Call& c) { return static_cast<double>(c.env.table.openScope()); });
  b.def("closeScope", [](Call& c, int depth) { c.env.table.closeScope(static_cast<uint32_t>(depth)); });
  b.def("keep", [](Call& c, HandleArg t) { c.env.table.keep(t.value); });
  b.def("retain", [](Call& c, HandleArg t) { c.env.table.retain(t.value); });
  b.def("release", [](Call& c, HandleArg t) { c.env.table.release(t.value); });
  // Handles as doubles, with one call: what a boundary has captured is let go while the engine waits for it.
  b.def("releaseMany", [](Call& c, Bytes handles) {
    for (size_t at = 0; at + sizeof(Handle) <= handles.size; at += sizeof(Handle)) {
      Handle handle;
      std::memcpy(&handle, handles.data + at, sizeof(Handle));
      c.env.table.release(handle);
    }
  });
  b.def("handleCount", [](Call& c) { return static_cast<double>(c.env.table.live()); });
}

}  // namespace tidemark
