// How long an LDS access occupies the banks: 32 banks, each of which reads or writes one dword in a clock.
#pragma once

#include "../execution/wave.h"
#include "../isa/effects.h"

namespace mi300x::timing {

struct BankClocks {
  uint32_t all = 0;        // from the first to the last lane group
  uint32_t conflicts = 0;  // the part of them that is lost to bank conflicts
};

// Lanes access the banks in groups: 32 lanes for up to 4 bytes a lane, 16 for 8, 8 for 16. A group takes one clock if
// no two of its lanes want different dwords of the same bank. The groups of DS_READ_B128 aren't lanes in order but, as
// published, {0-3,20-23}, {4-7,16-19}, {8-11,28-31}, {12-15,24-27}, and the same from lane 32 on.
BankClocks bank_clocks(Wave& wave, const Instruction& inst, const MemoryAccess& access);

}  // namespace mi300x::timing
