// The engine for this host's x86-64 level: a library beside this one, opened at the first dispatch.
#pragma once

#include <cstdint>

#include "../../engine.h"

// Fails with hipErrorSharedObjectInitFailed where the library is missing or DG_SIM_ENGINE names no level.
mi300x::Engine& engine();

// Call the engine's functions of these names, if an engine was opened.
void forget_code(uint64_t begin, uint64_t end);
void engine_before_fork();
void engine_after_fork(bool in_child);
