// Loads the scales that promote a K-block.
#pragma once

#include "deep_gemm_rocm/buffer.h"
#include "deep_gemm_rocm/static_for.h"
#include "deep_gemm_rocm/tile_shape.h"

namespace deep_gemm_rocm {

// One fp32 scale per row (or 128 of them) and K-block; strides are in elements and may have any order. `part_stride` is
// the distance of the operand's parts.
struct ScaleTile {
  const float* first_row;
  int64_t row_stride;
  int64_t k_block_stride;
  int64_t part_stride;

  // Where a row's scale is, of `rows` that exist.
  DG_DEVICE unsigned row_offset(int row, int rows) const {
    return row < rows ? row * static_cast<unsigned>(row_stride) * sizeof(float) : kOutOfBounds;
  }
};

// One scale for each row m of A that a lane holds, and one for the wave's columns of each part of B, or for each sum
// that a lane holds.
template <class Shape, int kRegisterStages, bool kPerColumn_>
class ScaleLoader {
 public:
  ScaleLoader() = default;

  static constexpr bool kPerColumn = kPerColumn_;
  static constexpr int kColumns = kPerColumn ? Shape::kLaneSums : Shape::kParts;
  static constexpr int kLoads = Shape::kFragsM + kColumns;

  // `a` starts at the tile's first of `rows` rows. `b` is the one row that covers the wave's columns, or starts at the
  // tile's first of `columns` columns. The tile's K-blocks are counted from `first_k_block` on.
  DG_DEVICE ScaleLoader(const ScaleTile& a, int rows, const ScaleTile& b, int columns, int first_k_block,
                        int num_k_blocks)
      : a_(a), b_(b), first_k_block_(first_k_block), num_k_blocks_(num_k_blocks) {
#pragma unroll
    for (int i = 0; i < Shape::kFragsM; ++i) offset_[i] = a.row_offset(Shape::lane_row(lane_id(), i), rows);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int column = Shape::lane_column(lane_id(), Shape::column_of_sum(i));
      column_offset_[i] = kPerColumn ? b.row_offset(column, columns) : 0;
    }
  }

  DG_DEVICE void load(int stage, int load, int k_block) {
    if (load < Shape::kFragsM) {
      staged_a_[stage][load] = k_block_of(a_, 0, k_block).template load<float>(offset_[load]);
    } else {
      const int column = load - Shape::kFragsM;
      const int part = kPerColumn ? Shape::part_of_sum(column) : column;
      staged_b_[stage][column] = k_block_of(b_, part, k_block).template load<float>(column_offset_[column]);
    }
  }

  // The scale of all that a lane holds of fragment row i and a part of B; what is left to scale are columns, where they
  // have their own.
  DG_DEVICE float of_rows(int stage, int i, int part) const {
    return kPerColumn ? staged_a_[stage][i] : staged_a_[stage][i] * staged_b_[stage][part];
  }

  DG_DEVICE float of_column(int stage, int column) const { return staged_b_[stage][column]; }

 private:
  // A prefetch past the last K-block reads that one's scales again.
  DG_DEVICE Buffer k_block_of(const ScaleTile& tile, int part, int k_block) const {
    const int existing = min(k_block - first_k_block_, num_k_blocks_ - 1);
    const int64_t first = part * tile.part_stride + existing * tile.k_block_stride;
    return {tile.first_row + first, kOutOfBounds};
  }

  ScaleTile a_;
  ScaleTile b_;
  int first_k_block_;
  int num_k_blocks_;
  unsigned offset_[Shape::kFragsM];
  unsigned column_offset_[kColumns];
  float staged_a_[kRegisterStages][Shape::kFragsM];
  float staged_b_[kRegisterStages][kColumns];
};

// In place of a ScaleLoader where no scale varies along K.
struct NoScales {
  static constexpr int kLoads = 0;
  NoScales() = default;
  DG_DEVICE NoScales(const ScaleTile&, int, const ScaleTile&, int, int, int) {}
  DG_DEVICE void load(int, int, int) {}
};

}  // namespace deep_gemm_rocm
