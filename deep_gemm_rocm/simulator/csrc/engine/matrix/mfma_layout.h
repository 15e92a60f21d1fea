// The layout of A, B, C and D in the lanes of a wave.
//
// Sources: AMD's matrix instruction calculator (register to element mapping, modifiers) and the CDNA3 ISA, "Matrix
// Arithmetic Instructions".
#pragma once

#include <cstdint>

#include "mfma.h"
#include "mfma_vector.h"

namespace mi300x::mfma {

// Calls rows(first, a_lane, b_lane) for each 4 consecutive rows of D, for an instruction on `blocks` blocks of size x
// size (16 or 32). The rows are in 4 consecutive registers: `size` lanes of each, from element `first` on. Their
// operands are in A's lanes from a_lane on and B's lanes from b_lane on. With a single block, further elements of K are
// in the lanes `size`, 2 * size, ... beyond these.
template <int size, int blocks, class Rows>
void for_each_4_rows(Rows rows) {
  constexpr int rows_of_a_register = 64 / size;
  for (int block = 0; block < blocks; ++block) {
    const int block_lane = blocks == 1 ? 0 : block * size;
    for (int row = 0; row < size; row += 4) {
      const int r = block * size * size / 64 + row / (4 * rows_of_a_register) * 4;
      const int lane = row / 4 % rows_of_a_register * size;
      rows(64 * r + lane, block_lane + row, block_lane);
    }
  }
}

// Copies of registers with the lanes rearranged.
template <int count>
struct Registers {
  alignas(64) uint32_t lanes[64 * count];

  template <class SourceLane>
  Registers(const uint32_t* from, SourceLane source_lane) {
    for (int lane = 0; lane < 64; ++lane) {
      const int source = source_lane(lane);
      for (int r = 0; r < count; ++r) lanes[64 * r + lane] = from[64 * r + source];
    }
  }
};

// The lane of A that replaces a lane of A: with CBSZ, groups of 2^CBSZ blocks all use the ABID-th block of the group.
inline int broadcast_lane(int lane, int block_size, int cbsz, int abid) {
  const int group = 1 << cbsz;
  const int block = lane / block_size;
  return ((block & -group) + (abid & (group - 1))) * block_size + lane % block_size;
}

// The lane of B that a lane of B is replaced by ("B-matrix lane group pattern").
inline int lane_group_lane(int lane, int blgp) {
  switch (blgp) {
    case 0: return lane;
    case 1: return lane % 32;
    case 2: return lane % 32 + 32;
    case 3: return (lane + 16) % 64;
    default: return lane % 16 + 16 * (blgp - 4);
  }
}

}  // namespace mi300x::mfma
