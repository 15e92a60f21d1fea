// Moves one operand's tile, a K-block at a time, from global memory through registers into LDS.
#pragma once

#include "deep_gemm_rocm/buffer.h"
#include "deep_gemm_rocm/lds_layout.h"

namespace deep_gemm_rocm {

// A tile of rows of a K-major FP8 tensor, read from `first_row` on; rows past `rows` and bytes past `k` read as zeros.
struct OperandTile {
  const uint8_t* first_row;
  int rows;
  int k;
  int64_t row_stride;
};

// Eight neighbouring lanes load one row's 128 bytes of a K-block; kThreads / 8 rows make a pass. kRegisterStages K-blocks
// can be on their way in registers at once.
template <int kTileRows, int kThreads, int kRegisterStages, bool kKTail>
class TileLoader {
 public:
  static constexpr int kRowsPerPass = kThreads / kChunksPerRow;
  static constexpr int kPasses = ceil_div(kTileRows, kRowsPerPass);

  // row_order(r) is the tile's row that belongs into LDS row r.
  template <class RowOrder>
  DG_DEVICE TileLoader(const OperandTile& tile, RowOrder row_order)
      : buffer_{tile.first_row, buffer_bytes(tile)}, k_(tile.k) {
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = row_order(lds_row() + pass * kRowsPerPass);
      offset_[pass] = row < tile.rows ? row * static_cast<unsigned>(tile.row_stride) + chunk() * kChunkBytes
                                      : kOutOfBounds;
    }
  }

  // Starts one pass of the load of `k_block`; past the last K-block this loads zeros and costs no memory traffic.
  template <int kStage, int kPass>
  DG_DEVICE void load(int k_block) {
    const int first_k = k_block * kBlockKBytes;
    unsigned offset = offset_[kPass];
    if constexpr (kKTail) offset = first_k + chunk() * kChunkBytes < k_ ? offset : kOutOfBounds;
    staged_[kStage][kPass] = buffer_.only_if(first_k < k_).load_chunk(offset, first_k);
  }

  template <int kStage, int kPass>
  DG_DEVICE void store(uint8_t* lds_tile) const {
    if (kTileRows % kRowsPerPass == 0 || lds_row() + kPass * kRowsPerPass < kTileRows) {
      // A pass is a multiple of 8 rows, so the swizzle is the same in each.
      uint8_t* const first = lds_tile + lds_offset(lds_row(), chunk());
      *reinterpret_cast<Chunk*>(first + kPass * kRowsPerPass * kBlockKBytes) = staged_[kStage][kPass];
    }
  }

 private:
  static_assert(kRowsPerPass % kChunksPerRow == 0, "the LDS swizzle must repeat from pass to pass");

  static DG_DEVICE int lds_row() { return thread_id() / kChunksPerRow; }
  static DG_DEVICE int chunk() { return thread_id() % kChunksPerRow; }

  static DG_DEVICE unsigned buffer_bytes(const OperandTile& tile) {
    return static_cast<unsigned>((min(tile.rows, kTileRows) - 1) * tile.row_stride + tile.k);
  }

  Buffer buffer_;
  int k_;
  unsigned offset_[kPasses];
  Chunk staged_[kRegisterStages][kPasses];
};

}  // namespace deep_gemm_rocm
