#include "groups.h"

namespace tidemark {

void bindLifetime(Binder& b) {
  b.def("openScope", [](Call& c) { return static_cast<double>(c.env.table.openScope()); });
  b.def("closeScope", [](Call& c, int depth) { c.env.table.closeScope(static_cast<uint32_t>(depth)); });
  b.def("keep", [](Call& c, HandleArg t) { c.env.table.keep(t.value); });
  b.def("retain", [](Call& c, HandleArg t) { c.env.table.retain(t.value); });
  b.def("release", [](Call& c, HandleArg t) { c.env.table.release(t.value); });
  b.def("handleCount", [](Call& c) { return static_cast<double>(c.env.table.live()); });
}

}  // namespace tidemark
