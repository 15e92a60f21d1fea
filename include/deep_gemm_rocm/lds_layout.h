// Which bytes of a tile a thread moves, and where they lie in LDS. Plain constexpr functions, so that a test can run
// them on the host and prove the layout free of bank conflicts.
#pragma once

#include "deep_gemm_rocm/types.h"

namespace deep_gemm_rocm {

// Byte offset of a row's 16-byte chunk. A row is 128 bytes, all 32 banks, so chunk c of every row would sit in the same
// banks; XOR with the row spreads the chunks that a group of 8 lanes accesses together over all banks.
constexpr int lds_offset(int row, int chunk) {
  return row * kBlockKBytes + (chunk ^ (row % kChunksPerRow)) * kChunkBytes;
}

// On the way in, eight neighbouring threads move one row's chunks; that many rows make a pass.
constexpr int rows_per_pass(int threads) { return threads / kChunksPerRow; }
constexpr int thread_row(int thread) { return thread / kChunksPerRow; }
constexpr int thread_chunk(int thread) { return thread % kChunksPerRow; }

// Byte offset in the tile of a pass's or fragment's first row, a multiple of 8. The XOR repeats every 8 rows, so this
// can be added to the offset within the pass or fragment, and one address register serves all of them.
constexpr int first_row_offset(int first_row) { return first_row * kBlockKBytes; }

constexpr int store_offset(int thread) { return lds_offset(thread_row(thread), thread_chunk(thread)); }

// On the way out, a lane reads its MFMA row's chunks, as many as there are reads in a fragment. A chunk feeds two
// consecutive MFMAs with 8 bytes each; which k these are doesn't matter as long as A and B agree.
template <class Shape>
constexpr int read_offset(int lane, int read) {
  const int chunk = lane / Shape::kRows + read * Shape::kLaneGroups;
  return lds_offset(lane % Shape::kRows, chunk);
}
template <class Shape>
constexpr int fragment_reads() {
  return kChunksPerRow / Shape::kLaneGroups;
}

// The tile's column n that belongs into row `row` of B's tile in LDS. In that order a lane's elements of `kJoined`
// neighbouring fragments are consecutive n, so that it can store them together.
template <class Shape, int kJoined>
constexpr int column_of_lds_row(int row) {
  const int fragment = row / Shape::kRows;
  const int mfma_row = row % Shape::kRows;
  const int first = (fragment - fragment % kJoined) * Shape::kRows;
  const int group = Shape::group_of_row(mfma_row) * kJoined + fragment % kJoined;
  return first + group * Shape::kElements + Shape::element_of_row(mfma_row);
}

}  // namespace deep_gemm_rocm
