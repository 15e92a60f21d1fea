// Collects what the timing model says of kernels, for who has asked for it.
#pragma once

#include "../engine.h"

// Where the records go at present; null where nobody collects them.
mi300x::ProfileSink* profile_sink();
