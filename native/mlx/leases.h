#pragma once

namespace tidemark {

struct Env;

/// The end of a thread: what it has leased goes. Waits for a slice that is being copied.
void dropLeasesOf(const Env& env) noexcept;

}  // namespace tidemark
