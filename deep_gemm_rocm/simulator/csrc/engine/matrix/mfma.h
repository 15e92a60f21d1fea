// Matrix instructions (V_MFMA_*, V_SMFMAC_*): D = A x B + C over the 64 lanes of a wave, whatever EXEC holds.
#pragma once

#include <cstdint>

#include "../isa/instruction.h"
#include "mfma_operand_cache.h"

namespace mi300x {

// Registers are rows of 64 lanes, consecutive registers follow one another: register r, lane l is p[64 * r + l].
// `d` may be the same registers as `c`, `a` or `b`; partial overlaps don't occur (the ISA forbids them).
struct MatrixOperands {
  uint32_t* d = nullptr;
  const uint32_t* a = nullptr;
  const uint32_t* b = nullptr;
  const uint32_t* c = nullptr;      // V_SMFMAC accumulates into d: c == d
  const uint32_t* index = nullptr;  // V_SMFMAC only: the register of sparsity indices
  uint8_t cbsz = 0, abid = 0, blgp = 0;
  uint16_t a_register = 0, b_register = 0;  // numbers of the first registers of A and B
  MatrixOperandCache* cache = nullptr;      // belongs to the host thread
};

// The implementation of an opcode; null where there is none.
MatrixInstruction find_matrix_instruction(Op op);

}  // namespace mi300x
