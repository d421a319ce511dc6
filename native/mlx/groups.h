#pragma once
// The groups of functions this addon exports, one file each.

#include "bind.h"

namespace tidemark {

void bindCreation(Binder& b);
void bindElementwise(Binder& b);
void bindReduction(Binder& b);
void bindShape(Binder& b);
void bindIndexing(Binder& b);
void bindLinear(Binder& b);
void bindFast(Binder& b);
void bindRandom(Binder& b);
void bindLifetime(Binder& b);
void bindControl(Binder& b);
void bindStreams(Binder& b);
void bindBytes(Binder& b);
void bindFiles(Binder& b);
void bindMemory(Binder& b);
void bindBlas(Binder& b);
void bindLeases(Binder& b);
/// Ops that fail or hang on purpose; exported only when TIDEMARK_TEST_OPS=1.
void bindTestOps(Binder& b);

}  // namespace tidemark
