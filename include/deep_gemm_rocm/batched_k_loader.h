// Goes through the K of a batch, group by group.
#pragma once

#include "deep_gemm_rocm/tile_loader.h"

namespace deep_gemm_rocm {

// As Loader, for an operand whose K is that of all its batch's groups behind one another. Each has whole K-blocks; what
// the last of them has too much reads as zeros.
template <class Loader>
class BatchedKLoader : public Loader {
 public:
  DG_DEVICE explicit BatchedKLoader(const OperandTile& tile, int first_row = 0)
      : Loader(tile, first_row), tile_(tile), blocks_of_group_(ceil_div(tile.k_bytes, kBlockKBytes)) {}

  DG_DEVICE void load(int stage, int pass, int k_block) {
    const unsigned block = tile_.batch.first_block + k_block;
    const unsigned group = block / blocks_of_group_;
    OperandTile tile = tile_;
    tile.first += group * tile_.batch.group_stride_bytes;
    if (k_block >= tile_.batch.num_blocks) tile.rows = 0;
    Loader::move_to(tile);
    Loader::load(stage, pass, block - group * blocks_of_group_);
  }

 private:
  OperandTile tile_;
  unsigned blocks_of_group_;
};

}  // namespace deep_gemm_rocm
