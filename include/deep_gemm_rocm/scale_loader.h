// Loads the scales that promote a K-block.
#pragma once

#include "deep_gemm_rocm/buffer.h"
#include "deep_gemm_rocm/static_for.h"
#include "deep_gemm_rocm/tile_shape.h"

namespace deep_gemm_rocm {

// One fp32 scale per row (or 128 of them) and K-block; strides are in elements and may have any order.
struct ScaleTile {
  const float* first_row;
  int64_t row_stride;
  int64_t k_block_stride;

  // Where a row's scale is, of `rows` that exist.
  DG_DEVICE unsigned row_offset(int row, int rows) const {
    return row < rows ? row * static_cast<unsigned>(row_stride) * sizeof(float) : kOutOfBounds;
  }
};

// One scale for each row m of A that a lane holds, and one for the wave's columns of B, or for each that a lane holds.
template <class Shape, int kRegisterStages, bool kPerColumn_>
class ScaleLoader {
 public:
  static constexpr bool kPerColumn = kPerColumn_;
  static constexpr int kColumns = kPerColumn ? Shape::kLaneColumns : 1;
  static constexpr int kLoads = Shape::kFragsM + kColumns;

  // `a` starts at the tile's first of `rows` rows. `b` is the one row that covers the wave's columns, or starts at the
  // tile's first of `columns` columns.
  DG_DEVICE ScaleLoader(const ScaleTile& a, int rows, const ScaleTile& b, int columns, int num_k_blocks)
      : a_(a), b_(b), num_k_blocks_(num_k_blocks) {
#pragma unroll
    for (int i = 0; i < Shape::kFragsM; ++i) offset_[i] = a.row_offset(Shape::lane_row(lane_id(), i), rows);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      column_offset_[i] = kPerColumn ? b.row_offset(Shape::lane_column(lane_id(), i), columns) : 0;
    }
  }

  DG_DEVICE void load(int stage, int load, int k_block) {
    if (load < Shape::kFragsM) {
      staged_a_[stage][load] = k_block_of(a_, k_block).template load<float>(offset_[load]);
    } else {
      const int column = load - Shape::kFragsM;
      staged_b_[stage][column] = k_block_of(b_, k_block).template load<float>(column_offset_[column]);
    }
  }

  // The scale of all that a lane holds of fragment row i; what is left to scale are columns, where they have their own.
  DG_DEVICE float of_rows(int stage, int i) const {
    return kPerColumn ? staged_a_[stage][i] : staged_a_[stage][i] * staged_b_[stage][0];
  }

  DG_DEVICE float of_column(int stage, int column) const { return staged_b_[stage][column]; }

 private:
  // A prefetch past the last K-block reads that one's scales again.
  DG_DEVICE Buffer k_block_of(const ScaleTile& tile, int k_block) const {
    return {tile.first_row + min(k_block, num_k_blocks_ - 1) * tile.k_block_stride, kOutOfBounds};
  }

  ScaleTile a_;
  ScaleTile b_;
  int num_k_blocks_;
  unsigned offset_[Shape::kFragsM];
  unsigned column_offset_[kColumns];
  float staged_a_[kRegisterStages][Shape::kFragsM];
  float staged_b_[kRegisterStages][kColumns];
};

// In place of a ScaleLoader where no scale varies along K.
struct NoScales {
  static constexpr int kLoads = 0;
  DG_DEVICE NoScales(const ScaleTile&, int, const ScaleTile&, int, int) {}
  DG_DEVICE void load(int, int, int) {}
};

}  // namespace deep_gemm_rocm
