// The engine for this host's x86-64 level: a library beside this one, opened at the first dispatch.
#pragma once

#include <cstdint>

#include "../engine.h"

// Fails with hipErrorSharedObjectInitFailed where the library is missing or DG_SIM_ENGINE names no level.
mi300x::Engine& engine();

// As Engine::forget_code, where an engine was opened at all.
void forget_code(uint64_t begin, uint64_t end);
