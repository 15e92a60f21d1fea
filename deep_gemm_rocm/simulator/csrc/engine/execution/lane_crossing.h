// The source lanes of instructions that move values across lanes.
#pragma once

#include "wave.h"

namespace mi300x {

// DS_PERMUTE, DS_BPERMUTE and DS_SWIZZLE use the LDS crossbar but no LDS memory.
constexpr int no_lane = -1;  // inactive lanes give zero
void crossing_sources(Wave& wave, const Instruction& inst, int (&sources)[lanes]);
const Operand& crossing_data(const Instruction& inst);

// DPP: lane l of the first source comes from another lane.
struct DppMove {
  const uint8_t* source;  // of each lane
  uint64_t valid;         // lanes that have an active source lane; the others read zero
  uint64_t written;       // lanes that are written; the others stay as they are
};
DppMove dpp_move(const Wave& wave, const Instruction& inst);

}  // namespace mi300x
