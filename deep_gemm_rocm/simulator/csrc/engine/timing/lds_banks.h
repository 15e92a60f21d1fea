// How long an LDS access occupies the banks: 32 banks of 4 bytes, each gives or takes one dword a clock.
#pragma once

#include "../effects.h"

namespace mi300x::timing {

struct BankClocks {
  uint32_t all = 0;        // from the first to the last lane group
  uint32_t conflicts = 0;  // of those, the ones that lanes of a group cost that meet in a bank
};

// The lanes of a wave access the banks in groups, a group a clock if no two of its lanes want different dwords of one
// bank: 32 lanes for 4 bytes a lane and less, 16 for 8, 8 for 16. The groups of DS_READ_B128 are the published ones,
// not lanes in order (mi300x facts: {0-3,20-23}, {4-7,16-19}, {8-11,28-31}, {12-15,24-27}, and the same from 32 on).
BankClocks bank_clocks(Wave& wave, const Instruction& inst, const MemoryAccess& access);

}  // namespace mi300x::timing
