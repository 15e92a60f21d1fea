// The part of a kernel that decides where its waves go and which memory they touch. Time hangs on nothing else, so the
// rest needn't be computed where nobody wants the results.
#pragma once

#include <cstdint>
#include <vector>

#include "../launch.h"

namespace mi300x::timing {

// For each dword of the code, whether the instruction there must be executed: a backward slice from all branches,
// execution masks and addresses of the kernel that is launched. What the analysis can't follow (indirect jumps, indexed
// registers) it takes for needed.
std::vector<uint8_t> needed_instructions(const Launch& launch);

}  // namespace mi300x::timing
