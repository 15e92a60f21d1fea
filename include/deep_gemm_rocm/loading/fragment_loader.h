// Loads fragments from memory straight into the registers of the wave that multiplies them, for operands that no other
// wave of the workgroup needs.
#pragma once

#include "deep_gemm_rocm/loading/fragment.h"
#include "deep_gemm_rocm/loading/tile_loader.h"

namespace deep_gemm_rocm {

// Loads kFragments fragments of a wave. The first one starts at row `first_row` of the tile, in the order of rows in
// LDS. Rows and K past the operand's end read as zeros.
//   kKOrder: which k of a K-block a lane has, see lds_layout.h.
//   Form: how chunks are in memory, see four_bits.h.
template <class Mfma_, class Order_, int kFragments_, int kTileRows, int kRegisterStages_, bool kKTail_,
          KOrder kKOrder = KOrder::kSpread, class Form_ = AsTheyAre>
class FragmentLoader {
 public:
  using Mfma = Mfma_;
  using Order = Order_;
  using Form = Form_;
  static constexpr int kFragments = kFragments_;
  static constexpr int kRegisterStages = kRegisterStages_;
  static constexpr bool kKTail = kKTail_;
  static constexpr int kReads = Fragment<Mfma>::kReads;

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
                              Order::part(row) * static_cast<unsigned>(tile.part_bytes) +
                              first_byte();
      offset_[i] = in_part < tile.rows ? offset : kOutOfBounds;
    }
  }

  DG_DEVICE void load_fragment(int stage, int i, int k_block) {
    const int since = k_block - first_k_block_;
    const int left_bytes = k_bytes_ - since * kBlockBytes;
    const Buffer buffer = buffer_.only_if(left_bytes > 0).with_scalar_size();
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      const int in_block = load * (kNeighbours ? kLoadBytes : Mfma::kLaneGroups * kLoadBytes);
      const bool exists = !kKTail || first_byte() + in_block < left_bytes;
      const int first = since * kBlockBytes + in_block;
      staged_[stage][i][load] = buffer.template load<Loaded>(exists ? offset_[i] : kOutOfBounds, first);
    }
  }

  DG_DEVICE MfmaOperands operands(int stage, int fragment, int read) const {
    const auto& loaded = staged_[stage][fragment];
    if constexpr (kIsInOrder) {
      return {__builtin_bit_cast(MfmaOperand, loaded[2 * read]), __builtin_bit_cast(MfmaOperand, loaded[2 * read + 1])};
    } else {
      return __builtin_bit_cast(MfmaOperands, loaded[read]);
    }
  }

 protected:
  static constexpr int kBlockBytes = kChunksPerRow * Form::kBytes;  // of a K-block, in memory
  static constexpr bool kNeighbours = kKOrder == KOrder::kNeighbours, kIsInOrder = kKOrder == KOrder::kInOrder;
  // With KOrder::kNeighbours a lane loads several chunks at once, with kInOrder what one MFMA takes.
  static constexpr int kChunksOfLoad = kNeighbours ? min(kReads, kChunkBytes / Form::kBytes) : 1;
  static constexpr int kLoadBytes = kIsInOrder ? Form::kBytes / 2 : kChunksOfLoad * Form::kBytes;
  static constexpr int kLoads = kReads * Form::kBytes / kLoadBytes;
  using Loaded = Vector<unsigned, kLoadBytes / sizeof(unsigned)>;

  // The lane's first byte in a K-block in memory.
  static DG_DEVICE int first_byte() {
    return lane_id() / Mfma::kRows * (kNeighbours ? kReads * Form::kBytes : kLoadBytes);
  }

  int first_row_;
  int first_k_block_;
  int k_bytes_;
  Buffer buffer_;
  unsigned offset_[kFragments];
  Loaded staged_[kRegisterStages][kFragments][kLoads];
};

}  // namespace deep_gemm_rocm
