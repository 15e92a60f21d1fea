// Collects what dispatches tell of themselves, for who has asked for it.
#pragma once

#include "../engine.h"

// Where the dispatch's records go at present.
void attach_sinks(mi300x::Dispatch& dispatch);
