// A debugger of the launches that a host thread makes.
#pragma once

#include "../../engine.h"

// Null where the thread asked for none.
mi300x::Debugger* thread_debugger();
