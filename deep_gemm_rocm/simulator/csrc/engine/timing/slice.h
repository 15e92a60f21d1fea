// Program slicing: finds the instructions that decide which branches a kernel's waves take and which memory they touch.
// Nothing else influences its time, so the rest needn't be executed where the results aren't wanted.
#pragma once

#include <cstdint>
#include <vector>

#include "../execution/launch.h"

namespace mi300x::timing {

enum class Wanted : uint8_t { branches, branches_and_addresses };

// Returns for each dword of the code whether the instruction there must be executed: a backward slice from all
// branches, execution masks and, where wanted, addresses of the launched kernel. Where the analysis can't follow
// (indirect jumps, indexed registers), everything is needed.
std::vector<uint8_t> needed_instructions(const Launch& launch, Wanted wanted);

}  // namespace mi300x::timing
