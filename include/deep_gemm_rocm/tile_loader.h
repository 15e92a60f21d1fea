// Moves one operand's tile, a K-block at a time, from global memory through registers into LDS.
#pragma once

#include "deep_gemm_rocm/buffer.h"
#include "deep_gemm_rocm/lds_layout.h"

namespace deep_gemm_rocm {

// A tile of rows of a K-major tensor, read from `first_row` on; rows past `rows` and what is past `k_bytes` of a row read
// as zeros.
struct OperandTile {
  const uint8_t* first_row;
  int rows;
  int k_bytes;
  int64_t row_bytes;  // from a row to the next
};

// kRegisterStages K-blocks can be on their way in registers at once.
template <int kTileRows, int kThreads, int kRegisterStages, bool kKTail>
class TileLoader {
  static constexpr int kRowsPerPass = rows_per_pass(kThreads);
  static_assert(kRowsPerPass % kChunksPerRow == 0, "the LDS layout must repeat from pass to pass");

 public:
  static constexpr int kPasses = ceil_div(kTileRows, kRowsPerPass);

  // row_order(r) is the tile's row that belongs into LDS row r.
  template <class RowOrder>
  DG_DEVICE TileLoader(const OperandTile& tile, RowOrder row_order)
      : buffer_{tile.first_row, buffer_bytes(tile)}, k_bytes_(tile.k_bytes) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = row_order(lds_row(pass));
      offset_[pass] = row < tile.rows ? row * static_cast<unsigned>(tile.row_bytes) + chunk_k() : kOutOfBounds;
    }
  }

  // Starts one pass of the load of `k_block`; past the last K-block this loads zeros and costs no memory traffic.
  DG_DEVICE void load(int stage, int pass, int k_block) {
    const int first_k = k_block * kBlockKBytes;
    unsigned offset = offset_[pass];
    if (kKTail) offset = first_k + chunk_k() < k_bytes_ ? offset : kOutOfBounds;
    staged_[stage][pass] = buffer_.only_if(first_k < k_bytes_).load_chunk(offset, first_k);
  }

  DG_DEVICE void store(int stage, int pass, uint8_t* lds_tile) const {
    if (kTileRows % kRowsPerPass == 0 || lds_row(pass) < kTileRows) {
      uint8_t* const chunk = lds_tile + store_offset(thread_id()) + first_row_offset(pass * kRowsPerPass);
      *reinterpret_cast<Chunk*>(chunk) = staged_[stage][pass];
    }
  }

 private:
  static DG_DEVICE int lds_row(int pass) { return thread_row(thread_id()) + pass * kRowsPerPass; }
  static DG_DEVICE int chunk_k() { return thread_chunk(thread_id()) * kChunkBytes; }

  static DG_DEVICE unsigned buffer_bytes(const OperandTile& tile) {
    return static_cast<unsigned>((min(tile.rows, kTileRows) - 1) * tile.row_bytes + tile.k_bytes);
  }

  Buffer buffer_;
  int k_bytes_;
  unsigned offset_[kPasses];
  Chunk staged_[kRegisterStages][kPasses];
};

}  // namespace deep_gemm_rocm
