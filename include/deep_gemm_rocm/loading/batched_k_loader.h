// Loads an operand whose K runs over all groups of a batch, one after another.
#pragma once

#include "deep_gemm_rocm/loading/tile_loader.h"

namespace deep_gemm_rocm {

// Each group starts a new K-block. The last K-block of a group reads zeros past the group's end.
template <class Loader>
class BatchedKLoader : public Loader {
 public:
  using Loader::Loader;

  DG_DEVICE void begin(const OperandTile& tile, int first_k_block) {
    Loader::begin(tile, 0);
    tile_ = tile;
    first_k_block_ = first_k_block;
    blocks_of_group_ = ceil_div(tile.k_bytes, kBlockKBytes);
  }

  DG_DEVICE void load(int stage, int pass, int k_block) {
    const int since = k_block - first_k_block_;
    const unsigned block = tile_.batch.first_block + since;
    const unsigned group = uniform(block / blocks_of_group_);  // see DenseTiles::tile_at()
    OperandTile tile = tile_;
    tile.first += group * tile_.batch.group_stride_bytes;
    if (since >= tile_.batch.num_blocks) tile.rows = 0;
    Loader::move_to(tile);
    Loader::load(stage, pass, block - group * blocks_of_group_);
  }

 private:
  OperandTile tile_;
  int first_k_block_;
  unsigned blocks_of_group_;
};

}  // namespace deep_gemm_rocm
