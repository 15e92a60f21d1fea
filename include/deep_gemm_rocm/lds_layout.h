// Where a tile's bytes lie in LDS. Plain constexpr functions, so that a test can run them on the host and prove the
// layout free of bank conflicts.
#pragma once

#include "deep_gemm_rocm/types.h"

namespace deep_gemm_rocm {

// Byte offset of a row's 16-byte chunk. A row is 128 bytes, all 32 banks, so chunk c of every row would sit in the same
// banks; XOR with the row spreads the chunks that one ds_read_b128 group (8 lanes, 8 rows) or ds_write_b128 group
// (8 lanes, one row) touches over all banks.
constexpr int lds_offset(int row, int chunk) {
  return row * kBlockKBytes + (chunk ^ (row % kChunksPerRow)) * kChunkBytes;
}

// The chunk of its row that a lane reads as its `read`-th. A chunk feeds two consecutive MFMAs with 8 bytes each; which
// k these are doesn't matter as long as A and B agree.
template <class Mfma>
constexpr int fragment_chunk(int lane, int read) {
  return lane / Mfma::kRows + read * Mfma::kLaneGroups;
}

// The tile's column n that belongs into row `row` of B's tile in LDS. In that order a lane's elements of `kJoined`
// neighbouring fragments are consecutive n, so that it can store them together.
template <class Mfma, int kJoined>
constexpr int column_of_lds_row(int row) {
  const int fragment = row / Mfma::kRows;
  const int mfma_row = row % Mfma::kRows;
  const int group = mfma_row / 4 % Mfma::kLaneGroups;
  const int element = mfma_row / (4 * Mfma::kLaneGroups) * 4 + mfma_row % 4;
  const int first = (fragment - fragment % kJoined) * Mfma::kRows;
  return first + (group * kJoined + fragment % kJoined) * Mfma::kElements + element;
}

}  // namespace deep_gemm_rocm
