// Loads fragments of B from memory straight into registers, for weights that were shuffled into the order for that.
#pragma once

#include "deep_gemm_rocm/fragment.h"
#include "deep_gemm_rocm/tile_loader.h"

namespace deep_gemm_rocm {

// A shuffled operand (shuffle_weight in layout.py): for each 16 rows and K-block, the chunks of these rows, so that
// what a wave loads at once is contiguous.
constexpr int kShuffledRows = 16;
constexpr int kShuffledChunkBytes = kShuffledRows * kChunkBytes;
constexpr int kShuffledBlockBytes = kShuffledRows * kBlockKBytes;

// Each wave loads the kFragments that it multiplies, the first of which is the tile's row `first_row` in the order of
// LDS. Rows past the operand's last one, and K past its end, read as zeros. Rows are a multiple of 16, K one of 128
// bytes.
template <class Mfma, class Order, int kFragments, int kTileRows, int kRegisterStages>
class ShuffledLoader {
  static constexpr int kReads = Fragment<Mfma>::kReads;

 public:
  // Nothing goes through LDS.
  static constexpr int kPasses = 0;
  DG_DEVICE void load(int, int, int) {}
  DG_DEVICE void store(int, int, uint8_t*) const {}

  DG_DEVICE explicit ShuffledLoader(int first_row) : first_row_(first_row) {}

  DG_DEVICE void begin(const OperandTile& tile, int first_k_block) {
    k_bytes_ = tile.k_bytes;
    first_k_block_ = first_k_block;
    buffer_ = {tile.first, static_cast<unsigned>((Order::kParts - 1) * tile.part_bytes +
                                                 min(tile.rows, kTileRows / Order::kParts) * tile.stride_bytes)};
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      const int row = Order::of_lds_row(first_row_ + i * Mfma::kRows + lane_id() % Mfma::kRows);
      const int in_part = Order::row_in_part(row);
      const unsigned block = in_part / kShuffledRows * kShuffledRows * static_cast<unsigned>(tile.stride_bytes) +
                             Order::part(row) * static_cast<unsigned>(tile.part_bytes);
      const unsigned offset = lane_id() / Mfma::kRows * kShuffledChunkBytes + in_part % kShuffledRows * kChunkBytes;
      offset_[i] = in_part < tile.rows ? block + offset : kOutOfBounds;
    }
  }

  DG_DEVICE void load_fragments(int stage, int k_block) {
    const int since = k_block - first_k_block_;
    const Buffer buffer = buffer_.only_if(since * kBlockKBytes < k_bytes_);
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
#pragma unroll
      for (int read = 0; read < kReads; ++read) {
        const int chunks = read * Mfma::kLaneGroups * kShuffledChunkBytes;
        staged_[stage][i][read] = buffer.template load<Chunk>(offset_[i], since * kShuffledBlockBytes + chunks);
      }
    }
  }

  DG_DEVICE MfmaOperands operands(int stage, int fragment, int read) const {
    return __builtin_bit_cast(MfmaOperands, staged_[stage][fragment][read]);
  }

 private:
  int first_row_;
  int first_k_block_;
  int k_bytes_;
  Buffer buffer_;
  unsigned offset_[kFragments];
  Chunk staged_[kRegisterStages][kFragments][kReads];
};

}  // namespace deep_gemm_rocm
