// Loads fragments from memory straight into the registers of the wave that multiplies them, for operands that no other
// wave of the workgroup needs.
#pragma once

#include "deep_gemm_rocm/loading/fragment.h"
#include "deep_gemm_rocm/loading/tile_loader.h"

namespace deep_gemm_rocm {

// Loads kFragments of a wave, which begin with the tile's row `first_row` in the order of LDS. Rows and K past the
// operand's end read as zeros.
template <class Mfma, class Order, int kFragments, int kTileRows, int kRegisterStages, bool kKTail>
class FragmentLoader {
  static constexpr int kReads = Fragment<Mfma>::kReads;

 public:
  DG_DEVICE explicit FragmentLoader(int first_row) : first_row_(first_row) {}

  DG_DEVICE void begin(const OperandTile& tile, int first_k_block) {
    k_bytes_ = tile.k_bytes;
    first_k_block_ = first_k_block;
    const int rows = min(tile.rows, kTileRows / Order::kParts);
    const int64_t all_bytes = (Order::kParts - 1) * tile.part_bytes + (rows - 1) * tile.stride_bytes + tile.k_bytes;
    const int64_t bytes = Order::kGathers ? kOutOfBounds : all_bytes;
    buffer_ = {tile.first, static_cast<unsigned>(bytes)};
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      const int row = Order::of_lds_row(first_row_ + i * Mfma::kRows + lane_id() % Mfma::kRows);
      const int in_part = Order::row_in_part(row);
      const unsigned in_memory = row_in_memory<Order>(tile, in_part);
      const unsigned offset = in_memory * static_cast<unsigned>(tile.stride_bytes) +
                              Order::part(row) * static_cast<unsigned>(tile.part_bytes) + first_chunk() * kChunkBytes;
      offset_[i] = in_part < tile.rows ? offset : kOutOfBounds;
    }
  }

  DG_DEVICE void load_fragment(int stage, int i, int k_block) {
    const int since = k_block - first_k_block_;
    const int left_bytes = k_bytes_ - since * kBlockKBytes;
    const Buffer buffer = buffer_.only_if(left_bytes > 0);
#pragma unroll
    for (int read = 0; read < kReads; ++read) {
      const int chunk = read * Mfma::kLaneGroups;
      const bool exists = !kKTail || (first_chunk() + chunk) * kChunkBytes < left_bytes;
      const int first = since * kBlockKBytes + chunk * kChunkBytes;
      staged_[stage][i][read] = buffer.template load<Chunk>(exists ? offset_[i] : kOutOfBounds, first);
    }
  }

  DG_DEVICE MfmaOperands operands(int stage, int fragment, int read) const {
    return __builtin_bit_cast(MfmaOperands, staged_[stage][fragment][read]);
  }

 private:
  static DG_DEVICE int first_chunk() { return lane_id() / Mfma::kRows; }

  int first_row_;
  int first_k_block_;
  int k_bytes_;
  Buffer buffer_;
  unsigned offset_[kFragments];
  Chunk staged_[kRegisterStages][kFragments][kReads];
};

}  // namespace deep_gemm_rocm
