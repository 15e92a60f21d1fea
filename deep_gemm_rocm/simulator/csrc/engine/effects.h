// What an instruction reads and writes, apart from what it computes: registers, counters and the unit that runs it.
#pragma once

#include <vector>

#include "instruction.h"

namespace mi300x {

enum class Unit : uint8_t { other, scalar, scalar_memory, vector, transcendental, matrix, lds, vector_memory, flat };

struct RegisterRange {
  bool is_vector;
  uint16_t first;  // row of the vector register file, or number of the SGPR
  uint8_t count;
};

struct Effects {
  Unit unit = Unit::other;
  std::vector<RegisterRange> reads;      // addresses, data and operands, in the order of the encoding
  std::vector<RegisterRange> writes;
  std::vector<RegisterRange> addresses;  // those of `reads` that tell where memory is accessed
  bool is_load = false;                  // writes registers when its data arrive
  bool is_store = false;                 // takes `reads` that aren't addresses to memory
  bool to_lds = false;                   // a load whose data go to LDS
  uint8_t passes = 0;                    // matrix: four clocks each
  bool is_xdl = false;                   // matrix: runs on the matrix core proper, not as F32 or F64 multiply-adds
};

Effects effects_of(const Instruction& inst);

// Passes of a matrix instruction (LLVM, SISchedule.td for gfx940, and AMD's matrix instruction calculator).
int matrix_passes(const char* mnemonic);

}  // namespace mi300x
