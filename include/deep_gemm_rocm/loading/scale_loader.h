// Loads the scales by which a K-block's sums are promoted.
#pragma once

#include "deep_gemm_rocm/loading/four_bits.h"
#include "deep_gemm_rocm/loading/row_scales.h"

namespace deep_gemm_rocm {

template <class ScaleOfB>
struct TileScales {
  ScaleTile a;
  ScaleTileOf<ScaleOfB> b;
  GroupScales groups{};  // of a B of four bits
};

// Which scales of B a lane has: those of its wave's columns (Shape::kScales of them), one for each column of its sums,
// or one that is set instead of loaded.
enum class ScalesOfB { kOfWave, kOfColumns, kIsSet };

// How B's groups of values share scales, for ScaleLoader.
//   kKBlocks: how many share a scale; kOfKBlock: how many scales share one.
//   kUnit: another factor of products, besides scales.
//   Scale: their type in memory.
struct NoGroups {
  using Scale = float;
  static constexpr int kKBlocks = 1, kOfKBlock = 1;
  static constexpr float kUnit = 1;
};
template <class T, class GroupScale>
struct GroupsOfIntegers {
  using Scale = typename GroupScale::T;
  static constexpr int kBytes = GroupScale::kValues * sizeof(T);
  static constexpr int kKBlocks = max(kBytes / kBlockKBytes, 1), kOfKBlock = max(kBlockKBytes / kBytes, 1);
  static constexpr float kUnit = FourBits<T, Integers<kIsSame<Scale, ScaleAndZero>>>::kUnit;
};
template <class Kind>
using GroupsOfB =
    Conditional<Kind::kKeepsIntegers, GroupsOfIntegers<typename Kind::MultipliedB, typename Kind::ScaleOfB>, NoGroups>;

// Loads a scale for each row of A that a lane holds, and those of B. K-blocks are loaded one after another. Past the
// last one there is no memory traffic. Rows is RowScales, RowScalesInLds or RowsWithoutScales; Groups is NoGroups or
// GroupsOfIntegers.
template <class Shape, class Rows, int kRegisterStages, ScalesOfB kScalesOfB, class Groups>
class ScaleLoader {
  using ScaleOfB = typename Groups::Scale;
  static constexpr bool kIsSet = kScalesOfB == ScalesOfB::kIsSet;

 public:
  static constexpr bool kPerColumn = kScalesOfB == ScalesOfB::kOfColumns;
  static constexpr bool kPerRow = !kIsSame<Rows, RowsWithoutScales>;
  static constexpr int kColumns = kPerColumn ? Shape::kLaneSums : kIsSet ? 0 : Shape::kScales;
  static constexpr int kGroups = Groups::kOfKBlock;  // of a column, which have a scale each
  static_assert(kGroups == 1 || (kPerColumn && kPerRow));
  // The 16 lanes of a lane group hold sums of the same columns. Each loads another scale of these, and gets the others
  // from its neighbours.
  static_assert(!kPerColumn || kWaveSize / Shape::Mfma::kLaneGroups == kLanesOfDppRow);
  static constexpr int kOfPart = kColumns / Shape::kParts * kGroups;  // scales of a lane group
  static constexpr int kLoadsOfPart = ceil_div(kOfPart, kLanesOfDppRow);
  static constexpr int kLoadsOfB = kPerColumn ? Shape::kParts * kLoadsOfPart : kColumns;
  // Scales of B that of_rows() multiplies with those of A. Scales of single columns are multiplied at promotion.
  static constexpr int kMultiplied = kPerColumn || kIsSet ? 1 : Shape::kScales;

  // Switches to another tile, of the same row strides. `a` starts at the tile's first row, of `rows`. `b` is the row
  // that covers the wave's columns or, with kPerColumn, starts at the tile's first column, of `columns`.
  DG_DEVICE void begin(const ScaleTile& a, int rows, const ScaleTileOf<ScaleOfB>& b, int columns, int num_k_blocks) {
    a_ = a;
    b_ = b;
    left_k_blocks_ = num_k_blocks;
    k_blocks_loaded_ = b.k_blocks_before;
    const int tile_rows = min(rows, Shape::kBlockM);
    const bool is_alike = !Rows::kRowsVary && !kPerColumn && (kIsOfPart || kIsSet);
    if (is_alike && tile_rows == tile_rows_) return;  // as for most tiles: offsets stay
    tile_rows_ = tile_rows;
    rows_.begin(a, rows);
#pragma unroll
    for (int i = 0; i < kLoadsOfB; ++i) {
      if constexpr (kPerColumn) {
        const int scale = min(i % kLoadsOfPart * kLanesOfDppRow + lane_id() % kLanesOfDppRow, kOfPart - 1);
        const int column = Shape::lane_column(lane_id(), scale / kGroups);
        const unsigned group_bytes = static_cast<unsigned>(b.k_block_stride) / kGroups * sizeof(ScaleOfB);
        column_offset_[i] = b.row_offset(column, columns) + scale % kGroups * group_bytes;
      } else {
        const int last = max(columns - Shape::wave_column() - 1, 0);
        const int row = kIsOfPart ? 0 : (b.first_column + min(i * Shape::kScaledN, last)) / kScaleBlockN;
        column_offset_[i] = b.row_offset(row, row + 1);
      }
    }
  }

  // Starts the loads of the next K-block.
  DG_DEVICE void load(int stage) {
    rows_.load(stage, part_of(a_, 0));
#pragma unroll
    for (int i = 0; i < kLoadsOfB; ++i) {
      staged_b_[stage][i] = part_of(b_, part_of_load(i)).template load<ScaleOfB>(column_offset_[i]);
    }
    a_.first_row += a_.k_block_stride;
    const bool is_last_of_scale = Groups::kKBlocks == 1 || ++k_blocks_loaded_ % Groups::kKBlocks == 0;
    b_.first_row += is_last_of_scale ? b_.k_block_stride : 0;
    --left_k_blocks_;
  }

  DG_DEVICE void set_of_b(float scale) { of_b_ = scale; }

  // The scale of the lane's row i and one of the kMultiplied scales of B; with kPerColumn only that of the row.
  DG_DEVICE float of_rows(int stage, int i, int scale) const {
    const float of_row = rows_.of_row(stage, i);
    if constexpr (kIsSet) {
      return of_row * of_b_;
    } else if constexpr (kPerColumn) {
      return of_row * Groups::kUnit;
    } else {
      return of_row * staged_b_[stage][scale];
    }
  }

  // With kPerColumn, those that the lane loaded. The scale of a sum and a group is that of load `place / 16`, in lane
  // `place % 16` of the lane group.
  DG_DEVICE float of_columns(int stage, int load) const {
    return scale_and_zero(staged_b_[stage][load]).scale * (kPerRow ? 1 : Groups::kUnit);
  }
  static constexpr int place_of(int sum, int group) {
    return Shape::part_of_sum(sum) * kLoadsOfPart * kLanesOfDppRow + Shape::column_of_sum(sum) * kGroups + group;
  }

  // Begins with the rows of a tile, before load(), if Rows is RowScalesInLds.
  DG_DEVICE void load_first_rows() { rows_.load_first(a_, left_k_blocks_); }
  DG_DEVICE Rows& rows() { return rows_; }

 private:
  // Whether a wave has a scale for each part of B, and not one for each of its joined fragments.
  static constexpr bool kIsOfPart = Shape::kScales == Shape::kParts;

  static constexpr int part_of_load(int load) {
    if constexpr (kPerColumn) return load / kLoadsOfPart;
    return kIsOfPart ? load : 0;
  }

  // Scales of the K-block that is loaded next. The buffer is empty after the last one, for then the sign bit of the
  // negated count is 0. clang 19 would make a mask of lanes of a condition, and then load in a loop over all of them.
  template <class T>
  DG_DEVICE Buffer part_of(const ScaleTileOf<T>& tile, int part) const {
    const unsigned bytes = kOutOfBounds & -left_k_blocks_;
    return {tile.first_row + part * tile.part_stride, bytes};
  }

  ScaleTile a_;  // from the K-block on that is loaded next
  ScaleTileOf<ScaleOfB> b_;
  int left_k_blocks_;
  unsigned k_blocks_loaded_;
  int tile_rows_ = 0;
  unsigned column_offset_[max(kLoadsOfB, 1)];
  ScaleOfB staged_b_[kRegisterStages][max(kLoadsOfB, 1)];
  float of_b_;
  Rows rows_;
};

// Replaces ScaleLoader where no scale varies along K.
struct NoScales {
  template <class ScaleOfB>
  DG_DEVICE void begin(const ScaleTile&, int, const ScaleTileOf<ScaleOfB>&, int, int) {}
  DG_DEVICE void load(int) {}
};

}  // namespace deep_gemm_rocm
