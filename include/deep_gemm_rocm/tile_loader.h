// Moves one operand's tile, a K-block at a time, from global memory through registers into LDS.
#pragma once

#include "deep_gemm_rocm/buffer.h"
#include "deep_gemm_rocm/lds_layout.h"

namespace deep_gemm_rocm {

// A tile of an operand, read from its first row's first k on. `stride_bytes` is the distance of rows or, if these are
// contiguous, of two k.
struct OperandTile {
  const uint8_t* first;
  int rows;
  int k_bytes;
  int64_t stride_bytes;
};

// Of an operand whose rows are contiguous along K. Rows past `rows` and what is past `k_bytes` of a row read as zeros.
// kRegisterStages K-blocks can be on their way in registers at once. Order is one of lds_layout.h. kThreads threads load
// together: thread i of the workgroup is number i % kThreads of them.
template <class Order, int kTileRows, int kThreads, int kRegisterStages, bool kKTail>
class TileLoader {
  static constexpr int kRowsPerPass = rows_per_pass(kThreads);
  static_assert(kRowsPerPass % kChunksPerRow == 0, "the LDS layout must repeat from pass to pass");

 public:
  static constexpr int kPasses = ceil_div(kTileRows, kRowsPerPass);

  // Loads kTileRows of the tile's rows, from `first_row` on, which is the same for the whole wave.
  DG_DEVICE explicit TileLoader(const OperandTile& tile, int first_row = 0)
      : buffer_{tile.first, buffer_bytes(tile, first_row)}, k_bytes_(tile.k_bytes) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = first_row + Order::of_lds_row(lds_row(pass));
      offset_[pass] = row < tile.rows ? row * static_cast<unsigned>(tile.stride_bytes) + chunk_k() : kOutOfBounds;
    }
  }

  // Goes on to other rows of the operand, if the tile was constructed with kTileRows and from its first row on.
  DG_DEVICE void move_to(const OperandTile& tile) {
    buffer_ = Buffer{tile.first, buffer_bytes(tile, 0)}.only_if(tile.rows > 0);
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
      uint8_t* const chunk = lds_tile + store_offset(thread()) + first_row_offset(pass * kRowsPerPass);
      *reinterpret_cast<Chunk*>(chunk) = staged_[stage][pass];
    }
  }

 private:
  static DG_DEVICE int thread() { return thread_id() % kThreads; }
  static DG_DEVICE int lds_row(int pass) { return thread_row(thread()) + pass * kRowsPerPass; }
  static DG_DEVICE int chunk_k() { return thread_chunk(thread()) * kChunkBytes; }

  static DG_DEVICE unsigned buffer_bytes(const OperandTile& tile, int first_row) {
    return static_cast<unsigned>((min(tile.rows, first_row + kTileRows) - 1) * tile.stride_bytes + tile.k_bytes);
  }

  Buffer buffer_;
  int k_bytes_;
  unsigned offset_[kPasses];
  Chunk staged_[kRegisterStages][kPasses];
};

}  // namespace deep_gemm_rocm
