// Loads the scales that promote a K-block: one for each row m of A that a lane holds, one for the wave's columns of B.
#pragma once

#include "deep_gemm_rocm/buffer.h"
#include "deep_gemm_rocm/static_for.h"

namespace deep_gemm_rocm {

// One fp32 scale per row and K-block; strides are in elements and may have any order.
struct ScaleTile {
  const float* first_row;
  int64_t row_stride;
  int64_t k_block_stride;
};

template <class Shape, int kRegisterStages>
class ScaleLoader {
 public:
  static constexpr int kLoads = Shape::kFragsM + 1;

  // `a` starts at the tile's first of `rows` rows, `b` is the one row that covers the wave's columns.
  DG_DEVICE ScaleLoader(const ScaleTile& a, int rows, const ScaleTile& b, int num_k_blocks)
      : a_(a), b_(b), num_k_blocks_(num_k_blocks) {
    const int lane_row = Shape::wave_m() + lane_id() % Shape::Mfma::kRows;
#pragma unroll
    for (int i = 0; i < Shape::kFragsM; ++i) {
      const int row = lane_row + i * Shape::Mfma::kRows;
      offset_[i] = row < rows ? row * static_cast<unsigned>(a.row_stride) * sizeof(float) : kOutOfBounds;
    }
  }

  DG_DEVICE void load(int stage, int load, int k_block) {
    if (load < Shape::kFragsM) {
      staged_a_[stage][load] = column(a_, k_block).load_float(offset_[load]);
    } else {
      staged_b_[stage] = column(b_, k_block).load_float(0);
    }
  }

  DG_DEVICE float product(int stage, int fragment_m) const {
    return staged_a_[stage][fragment_m] * staged_b_[stage];
  }

 private:
  // A prefetch past the last K-block reads that one's scales again.
  DG_DEVICE Buffer column(const ScaleTile& tile, int k_block) const {
    return {tile.first_row + min(k_block, num_k_blocks_ - 1) * tile.k_block_stride, kOutOfBounds};
  }

  ScaleTile a_;
  ScaleTile b_;
  int num_k_blocks_;
  unsigned offset_[Shape::kFragsM];
  float staged_a_[kRegisterStages][Shape::kFragsM];
  float staged_b_[kRegisterStages];
};

}  // namespace deep_gemm_rocm
