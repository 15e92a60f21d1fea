// Which bytes of a tile a thread moves, and where they lie in LDS. Plain constexpr functions, so that a test can run
// them on the host and prove the layout free of bank conflicts.
#pragma once

#include "deep_gemm_rocm/hardware/types.h"

namespace deep_gemm_rocm {

// Byte offset of a row's 16-byte chunk. A row is 128 bytes, all 32 banks, so chunk c of every row would be in the same
// banks. XOR with the row spreads the chunks that 8 lanes access together over all banks.
constexpr int lds_offset(int row, int chunk) {
  return row * kBlockKBytes + (chunk ^ (row % kChunksPerRow)) * kChunkBytes;
}

// Stores: neighbouring threads move one row, each of them `chunks` neighbouring chunks, and all threads together the
// rows of a pass.
constexpr int rows_per_pass(int threads, int chunks = 1) { return threads * chunks / kChunksPerRow; }
constexpr int thread_row(int thread, int chunks = 1) { return thread * chunks / kChunksPerRow; }
constexpr int thread_chunk(int thread, int chunks = 1) { return thread * chunks % kChunksPerRow; }

// Byte offset in the tile of a pass's or fragment's first row, a multiple of 8. The XOR repeats every 8 rows, so this
// can be added to the offset within the pass or fragment, and one address register serves all of them.
constexpr int first_row_offset(int first_row) { return first_row * kBlockKBytes; }

// Offset of a thread's first chunk. The i-th chunk's differs in the bits of i * kChunkBytes.
constexpr int store_offset(int thread, int chunks = 1) {
  return lds_offset(thread_row(thread, chunks), thread_chunk(thread, chunks));
}

// Which k of a K-block a lane multiplies. Any order gives the same sums, as long as A and B agree.
enum class KOrder {
  kSpread,      // a lane group takes every kLaneGroups-th chunk of 16 bytes
  kNeighbours,  // a lane's chunks are neighbours, so that its values of four bits are of one group
  kInOrder,     // one MFMA takes the first 32 of 128 bytes, the next one the next 32: each has values of one group
};

// The offset of one half of the i-th chunk that a thread stores, for KOrder::kInOrder. Halves of chunks are permuted on
// their way into LDS, so that a read has 8 bytes for each of two consecutive MFMAs, as with other orders.
constexpr int half_store_offset(int thread, int chunks, int i, int half) {
  constexpr int kLaneGroups = 4;  // of MFMAs of 16 rows
  const int of_row = 2 * (thread_chunk(thread, chunks) + i) + half;  // halves before it in the row
  const int mfma = of_row / kLaneGroups, chunk = mfma / 2 * kLaneGroups + of_row % kLaneGroups;
  return lds_offset(thread_row(thread, chunks), chunk) + mfma % 2 * (kChunkBytes / 2);
}

// Reads: a lane reads chunks of its MFMA row, one in each of a fragment's reads. A chunk feeds two consecutive MFMAs
// with 8 bytes each.
template <class Shape, KOrder kOrder = KOrder::kSpread>
constexpr int read_offset(int lane, int read) {
  const int group = lane / Shape::kRows;
  const int chunk = kOrder == KOrder::kNeighbours ? group * (kChunksPerRow / Shape::kLaneGroups) + read
                                                  : group + read * Shape::kLaneGroups;
  return lds_offset(lane % Shape::kRows, chunk);
}
template <class Shape>
constexpr int fragment_reads() {
  return kChunksPerRow / Shape::kLaneGroups;
}

// The rows of a tile whose operand has parts: kUnit rows of the first part, as many of the next, and so on.
template <int kParts_, int kUnit>
struct RowsOfParts {
  static constexpr int kParts = kParts_;
  static constexpr bool kGathers = false;
  static constexpr int part(int row) { return row / kUnit % kParts; }
  static constexpr int row_in_part(int row) { return row / (kUnit * kParts) * kUnit + row % kUnit; }
};

// Orders of a tile's rows in LDS. The rows of A are in order.
struct RowsInOrder : RowsOfParts<1, 1> {
  static constexpr int of_lds_row(int lds_row) { return lds_row; }
  static constexpr int lds_row_of(int row) { return row; }
};

// The same, of rows that lie anywhere in memory: where OperandTile::row_indices says.
struct GatheredRows : RowsInOrder {
  static constexpr bool kGathers = true;
};

// The rows of B are the output's columns. In this order a lane's elements of kJoined neighbouring fragments are
// consecutive columns, which it stores together.
template <class Shape, int kJoined, int kParts = 1>
struct RowsByLane : RowsOfParts<kParts, Shape::kRows * kJoined> {
  static constexpr int of_lds_row(int lds_row) {
    const int fragment = lds_row / Shape::kRows;
    const int mfma_row = lds_row % Shape::kRows;
    const int first = (fragment - fragment % kJoined) * Shape::kRows;
    const int run = Shape::group_of_row(mfma_row) * kJoined + fragment % kJoined;
    return first + run * Shape::kElements + Shape::element_of_row(mfma_row);
  }
  static constexpr int lds_row_of(int row) {
    const int in_joined = row % (Shape::kRows * kJoined);
    const int run = in_joined / Shape::kElements;
    const int mfma_row = Shape::row_of_element(run / kJoined, in_joined % Shape::kElements);
    return row - in_joined + run % kJoined * Shape::kRows + mfma_row;
  }
};

// The keys of attention are rows of the logits. In this order a lane's elements of all fragments are runs of kRun
// consecutive rows, one of each lane group in turn. If a chunk holds kRun values, the result is an operand for a
// product with a tile in LDS without moves between lanes: a lane reads the same run of the other operand there.
template <class Shape, int kRun>
struct RowsInRuns : RowsOfParts<1, 1> {
  static constexpr int of_lds_row(int lds_row) {
    const int mfma_row = lds_row % Shape::kRows;
    const int element = lds_row / Shape::kRows * Shape::kElements + Shape::element_of_row(mfma_row);
    return of_element(element) + Shape::group_of_row(mfma_row) * kRun;
  }
  // The row that lane group 0 holds in an element; elements are counted over all fragments.
  static constexpr int of_element(int element) { return element / kRun * kRun * Shape::kLaneGroups + element % kRun; }
};

}  // namespace deep_gemm_rocm
