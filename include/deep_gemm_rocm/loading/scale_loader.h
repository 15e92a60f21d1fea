// Loads the scales that a K-block is promoted with.
#pragma once

#include "deep_gemm_rocm/hardware/buffer.h"
#include "deep_gemm_rocm/hardware/static_for.h"
#include "deep_gemm_rocm/tiles/tile_shape.h"

namespace deep_gemm_rocm {

// fp32 scales, one for each K-block and row (or 128 rows). Strides are in elements and may have any order.
struct ScaleTile {
  const float* first_row;
  int64_t row_stride;
  int64_t k_block_stride;
  int64_t part_stride;   // from one part of the operand to the next, see activation.h
  int first_column = 0;  // where the wave's columns begin among those that share the first row of scales
  const int* row_indices = nullptr;  // for gathered rows, each row's place after the first

  // Byte offset of a row's scale, out of bounds unless the row is one of `rows`.
  DG_DEVICE unsigned row_offset(int row, int rows) const {
    return row < rows ? row * static_cast<unsigned>(row_stride) * sizeof(float) : kOutOfBounds;
  }

  // The same for gathered rows.
  DG_DEVICE unsigned gathered_row_offset(int row, int rows) const {
    const Buffer indices{row_indices, rows * static_cast<unsigned>(sizeof(int))};
    const int in_memory = indices.load<int>(row * static_cast<unsigned>(sizeof(int)));
    return row < rows ? in_memory * static_cast<unsigned>(row_stride) * sizeof(float) : kOutOfBounds;
  }
};

struct TileScales {
  ScaleTile a, b;
};

// What a lane has of B's scales: one for each scale of its wave's columns (Shape::kScales); one for each sum that it
// holds; or one that isn't loaded, but set.
enum class ScalesOfB { kOfWave, kOfColumns, kIsSet };

// Loads a scale for each row of A that a lane holds, and those of B. K-blocks are loaded one after another. Past the
// last one there is no memory traffic.
template <class Shape, int kRegisterStages, ScalesOfB kScalesOfB, bool kGathersA>
class ScaleLoader {
  static constexpr bool kIsSet = kScalesOfB == ScalesOfB::kIsSet;

 public:
  static constexpr bool kPerColumn = kScalesOfB == ScalesOfB::kOfColumns;
  static constexpr int kColumns = kPerColumn ? Shape::kLaneSums : kIsSet ? 0 : Shape::kScales;
  // Scales of B that of_rows() multiplies with those of A. Scales of single columns are multiplied at promotion.
  static constexpr int kMultiplied = kPerColumn || kIsSet ? 1 : Shape::kScales;
  static constexpr int kLoads = Shape::kFragsM + kColumns;

  // Switches to another tile, of the same row strides. `a` starts at the tile's first row, of `rows`. `b` is the row
  // that covers the wave's columns or, with kPerColumn, starts at the tile's first column, of `columns`.
  DG_DEVICE void begin(const ScaleTile& a, int rows, const ScaleTile& b, int columns, int num_k_blocks) {
    a_ = a;
    b_ = b;
    left_k_blocks_ = num_k_blocks;
    const int tile_rows = min(rows, Shape::kBlockM);
    if (!kGathersA && !kPerColumn && (kIsOfPart || kIsSet) && tile_rows == rows_) return;  // most tiles are like the one before
    rows_ = tile_rows;
#pragma unroll
    for (int i = 0; i < Shape::kFragsM; ++i) {
      const int row = Shape::lane_row(lane_id(), i);
      offset_[i] = kGathersA ? a.gathered_row_offset(row, rows) : a.row_offset(row, rows);
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (kPerColumn) {
        column_offset_[i] = b.row_offset(Shape::lane_column(lane_id(), Shape::column_of_sum(i)), columns);
      } else {
        const int last = max(columns - Shape::wave_column() - 1, 0);
        const int row = kIsOfPart ? 0 : (b.first_column + min(i * Shape::kScaledN, last)) / kScaleBlockN;
        column_offset_[i] = b.row_offset(row, row + 1);
      }
    }
  }

  // Starts one of the kLoads of a K-block. They must come in order.
  DG_DEVICE void load(int stage, int load) {
    if (load < Shape::kFragsM) {
      staged_a_[stage][load] = part_of(a_, 0).template load<float>(offset_[load]);
    } else {
      const int column = load - Shape::kFragsM;
      const int part = kPerColumn ? Shape::part_of_sum(column) : kIsOfPart ? column : 0;
      staged_b_[stage][column] = part_of(b_, part).template load<float>(column_offset_[column]);
    }
    if (load == kLoads - 1) {
      a_.first_row += a_.k_block_stride;
      b_.first_row += b_.k_block_stride;
      --left_k_blocks_;
    }
  }

  DG_DEVICE void set_of_b(float scale) { of_b_ = scale; }

  // The scale of the lane's row i and one of the kMultiplied scales of B; with kPerColumn only that of the row.
  DG_DEVICE float of_rows(int stage, int i, int scale) const {
    if constexpr (kIsSet) return staged_a_[stage][i] * of_b_;
    return kPerColumn ? staged_a_[stage][i] : staged_a_[stage][i] * staged_b_[stage][scale];
  }

  DG_DEVICE float of_column(int stage, int column) const { return staged_b_[stage][column]; }

 private:
  // Whether a wave has a scale for each part of B, and not one for each of its joined fragments.
  static constexpr bool kIsOfPart = Shape::kScales == Shape::kParts;

  // Scales of the K-block that is loaded next. The buffer is empty after the last one, for then the sign bit of the
  // negated count is 0. clang 19 would make a mask of lanes of a condition, and then load in a loop over all of them.
  DG_DEVICE Buffer part_of(const ScaleTile& tile, int part) const {
    const unsigned bytes = kOutOfBounds & -left_k_blocks_;
    return {tile.first_row + part * tile.part_stride, bytes};
  }

  ScaleTile a_;  // from the K-block on that is loaded next
  ScaleTile b_;
  int left_k_blocks_;
  int rows_ = 0;
  unsigned offset_[Shape::kFragsM];
  unsigned column_offset_[max(kColumns, 1)];
  float staged_a_[kRegisterStages][Shape::kFragsM];
  float staged_b_[kRegisterStages][max(kColumns, 1)];
  float of_b_;
};

// Stands for a ScaleLoader where no scale varies along K.
struct NoScales {
  static constexpr int kLoads = 0;
  DG_DEVICE void begin(const ScaleTile&, int, const ScaleTile&, int, int) {}
  DG_DEVICE void load(int, int) {}
};

}  // namespace deep_gemm_rocm
