// What the timing model found out about a kernel, as JSON.
#pragma once

#include <string>

#include "../launch.h"
#include "constants.h"
#include "counters.h"
#include "memory_system.h"

namespace mi300x::timing {

std::string record_of(const Launch& launch, const Constants& constants, const Counters& counters,
                      const MemoryCounters& memory, uint64_t clocks);

}  // namespace mi300x::timing
