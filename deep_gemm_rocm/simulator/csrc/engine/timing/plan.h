// The properties of instructions that the timing model needs, computed once for a code segment.
#pragma once

#include <cstdint>
#include <vector>

#include "../isa/effects.h"
#include "constants.h"

namespace mi300x::timing {

struct Plan {
  enum class Kind : uint8_t {
    nop, wait, barrier, sleep, priority, end, branch, scalar, scalar_memory, vector, matrix, lds, vector_memory
  };
  Kind kind = Kind::nop;
  enum class Operands : uint8_t { fp8, i8, f16, others };
  Operands operands = Operands::others;  // matrix
  uint8_t passes = 0;        // matrix
  uint8_t dwords = 0;        // memory: data of each lane
  bool bypasses_l1 = false;  // loads with device scope
  double l1_port_bytes = 0;  // vector memory: that the vector L1 moves in a clock
  uint16_t argument = 0;     // S_NOP, S_WAITCNT, S_SLEEP and S_SETPRIO
  uint16_t clocks = 0;       // vector, matrix: for which it occupies the vector ALU or the matrix core
  const Effects* effects = nullptr;
};

std::vector<Plan> plans_of(const std::vector<Instruction>& code, const Effects* effects, const Constants& constants);

}  // namespace mi300x::timing
