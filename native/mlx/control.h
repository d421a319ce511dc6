#pragma once

#include "bind.h"

namespace tidemark {

/// The array behind a handle whose bytes may be read now. Never evaluates and never waits: throws when it is unscheduled, in flight or poisoned.
const mx::array& requireAvailable(Call& call, Handle handle);

/// Waits for an array that was scheduled; books an error on its stream.
void waitFor(Call& call, HandleArg handle);

}  // namespace tidemark
