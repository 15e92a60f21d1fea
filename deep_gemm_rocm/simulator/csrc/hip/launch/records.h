// Collects the records of dispatches: profiles, counters and traces.
#pragma once

#include "../../engine.h"

// Connects the dispatch to the records that are being collected.
void attach_sinks(mi300x::Dispatch& dispatch);
