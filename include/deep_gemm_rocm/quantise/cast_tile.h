// Quantises a tile of 128 columns in one workgroup. A row, a column, or all of the tile shares a scale.
#pragma once

#include "deep_gemm_rocm/quantise/cast_inputs.h"
#include "deep_gemm_rocm/quantise/fp4_codes.h"
#include "deep_gemm_rocm/quantise/magnitude.h"
#include "deep_gemm_rocm/tiles/tile_scheduler.h"

namespace deep_gemm_rocm {

constexpr int kCastColumns = kScaleBlockK;
constexpr int kRowsOfWave = kWaveSize / kLanesOfBlock;  // at once

constexpr int cast_rows(int waves, int passes) { return passes * waves * kRowsOfWave; }

// The order of tiles of kRows rows, row by row. Hardware deals workgroups round-robin to the XCDs. Each XCD gets runs
// of neighbouring tiles, which together use all channels of its L2. A window has one run for each XCD. To save
// instructions, all windows are whole: the last one may have workgroups without a tile, and a few tiles may use only
// some XCDs.
template <int kXcds, int kRows>
struct CastOrder {
  static constexpr int kRun = 256 / kRows, kWindow = kXcds * kRun;

  static DG_DEVICE TileIndex tile(const CastArguments& args, unsigned workgroup) {
    const unsigned in_window = workgroup % kWindow;
    const int tile = workgroup - in_window + in_window % kXcds * kRun + in_window / kXcds;
    const int row = quotient(tile, args.column_tiles, args.column_tiles_reciprocal);
    return {row, tile - row * args.column_tiles};
  }
};

// Fills in, on the host, what follows from the other arguments. Inputs are of T, and a lane stores `bytes` at once.
template <class T, int kXcds, int kRows>
void prepare_tiles(CastArguments& args, int bytes = kLaneValues) {
  constexpr int kWindow = CastOrder<kXcds, kRows>::kWindow;
  args.column_tiles = ceil_div(args.columns, kCastColumns);
  args.column_tiles_reciprocal = reciprocal(args.column_tiles);
  args.num_tiles = ceil_div(ceil_div(args.rows, kRows) * args.column_tiles, kWindow) * kWindow;
  args.x.check_alignment(args.x_group_stride * sizeof(T));
  args.data.check_alignment(args.data_group_stride, bytes);
}

// Which row of the tile a lane has in a pass. A wave has consecutive rows.
template <int kPasses>
struct TilePlace {
  int wave_row = wave_id() * kPasses * kRowsOfWave;
  int lane_row = lane_id() / kLanesOfBlock;

  DG_DEVICE int first_row_of_wave(int pass) const { return wave_row + pass * kRowsOfWave; }
  DG_DEVICE int row(int pass) const {
    return kPasses == 1 ? thread_id() / kLanesOfBlock : first_row_of_wave(pass) + lane_row;
  }
  DG_DEVICE int block_column(int) const { return 0; }
};

// The largest of a workgroup's waves. `lds` has an element for each wave.
template <int kWaves>
DG_DEVICE unsigned largest_of_workgroup(unsigned of_wave, unsigned* lds) {
  if (lane_id() == 0) lds[wave_id()] = of_wave;
  lds_barrier();
  unsigned largest = lds[0];
#pragma unroll
  for (int wave = 1; wave < kWaves; ++wave) largest = max(largest, lds[wave]);
  return largest;
}

template <class Input, int kWaves, int kPasses, bool kClamps>
class CastTile {
 public:
  static constexpr int kRows = cast_rows(kWaves, kPasses);
  static_assert(kRows <= kMostTileRows);

  DG_DEVICE CastTile(const CastArguments& args, int row_tile, int column_tile)
      : args_(args),
        row_tile_(row_tile),
        column_tile_(column_tile),
        bounds_{row_tile * kRows, column_tile * kCastColumns, min(args.rows - row_tile * kRows, kRows),
                min(args.columns - column_tile * kCastColumns, kCastColumns)} {}

  // Starts all loads of values before anything else, so that they overlap the loads of other arguments. If elements are
  // loaded one by one, empty tiles are skipped.
  DG_DEVICE void load() {
    if (args_.x.has_vectors || !is_empty()) load_input(input_, args_, bounds_, place_);
  }

  DG_DEVICE bool is_empty() const { return bounds_.rows <= 0; }

  // The largest magnitude of the tile, in every lane.
  DG_DEVICE unsigned largest(unsigned* lds) {
    compute_values();
    unsigned found = 0;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (!has_rows(pass)) break;
      found = max(found, largest_magnitude(values_[pass]));
    }
    return largest_of_workgroup<kWaves>(max_over_wave(found), lds);
  }

  // A scale for each row.
  DG_DEVICE void cast_rows_apart() {
    static_assert(kPasses == 1);
    const Values to = value_places();
    const int row = place_.row(0);
    const bool stores_scale = lane_id() % kLanesOfBlock == 0 && row < bounds_.rows;
    const ScalePlace scale_place = {args_.scales, bounds_.row, column_tile_, row, 0, stores_scale};
    input_.wait();
    compute_values();
    const float scale = args_.range.scale_of(largest_of_neighbours<kLanesOfBlock>(largest_magnitude(values_[0])));
    scale_place.store(scale);
    store(to, 0, divisor_of(scale));
  }

  // To FP4, with a scale for kGroup columns of each row: fp32 or, if kPacked, exponents in bytes.
  template <int kGroup, bool kPacked>
  DG_DEVICE void cast_rows_to_fp4() {
    constexpr int kBytes = kLaneValues / 2, kWords = kBytes / sizeof(unsigned);
    const MatrixTile<uint8_t, kBytes> data = {args_.data, bounds_.row, bounds_.column / 2, bounds_.rows,
                                              bounds_.columns / 2};
    const int column = column_in_block(lane_id(), 0);
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (!has_rows(pass)) break;
      values_[pass] = input_.values(args_, pass);
      const unsigned found = largest_of_neighbours<kGroup / kLaneValues>(largest_magnitude(values_[pass]));
      const float scale = fp4_scale(found, args_.range.has_power_of_two_scales);
      const auto reciprocal = static_cast<float>(reciprocal_of(scale));
      Vector<unsigned, kWords> codes;
#pragma unroll
      for (int word = 0; word < kWords; ++word) {
        float products[kLaneValues / kWords];
#pragma unroll
        for (int i = 0; i < kLaneValues / kWords; ++i) {
          products[i] = values_[pass][word * (kLaneValues / kWords) + i] * reciprocal;
        }
        codes[word] = fp4_codes(products);
      }
      const int row = place_.row(pass);
      data.store(__builtin_bit_cast(Vector<uint8_t, kBytes>, codes), row, column / 2);
      if (column % kGroup == 0 && column < bounds_.columns && row < bounds_.rows) {
        store_fp4_scale<kPacked>(row, bounds_.column / kGroup, column / kGroup, ceil_div(args_.columns, kGroup), scale);
      }
    }
  }

  // One scale for the whole tile.
  DG_DEVICE void cast_together(unsigned* lds) {
    const Values to = value_places();
    const ScalePlace scale_place = {args_.scales, row_tile_, column_tile_, 0, 0, thread_id() == 0};
    input_.wait();
    store_together(largest(lds), to, scale_place);
  }

  // One scale for all tiles. find_largest() returns the largest magnitude of all tiles.
  template <class Largest>
  DG_DEVICE void cast_by_largest(const Largest& find_largest) {
    const Values to = value_places();
    const ScalePlace scale_place = {args_.scales, 0, 0, 0, 0, row_tile_ + column_tile_ + thread_id() == 0};
    const unsigned found = find_largest();
    compute_values();
    store_together(found, to, scale_place);
  }

  // A number for each column, in LDS. Lanes that read at once read from different banks.
  class ColumnFactors {
    static constexpr int kPadding = 4;

   public:
    DG_DEVICE float& operator[](int column) { return of_lanes_[column / kLaneValues][column % kLaneValues]; }

    DG_DEVICE LaneFloats of_lane() const {
      using Part = Vector<float, kPadding>;
      LaneFloats result;
#pragma unroll
      for (int i = 0; i < kLaneValues; ++i) {
        const float* const part = of_lanes_[lane_id() % kLanesOfBlock] + i / kPadding * kPadding;
        result[i] = (*reinterpret_cast<const Part*>(part))[i % kPadding];
      }
      return result;
    }

   private:
    alignas(kChunkBytes) float of_lanes_[kLanesOfBlock][kLaneValues + kPadding];
  };

  // A scale for each column.
  struct ColumnLds {
    unsigned largest[kWaves][kCastColumns];
    ColumnFactors shrink, high, low;
  };
  DG_DEVICE void cast_columns_apart(ColumnLds& lds) {
    const Values to = value_places();
    const int column = thread_id();
    const ScalePlace scale_place = {args_.scales, row_tile_, bounds_.column, 0, column, column < bounds_.columns};
    input_.wait();
    compute_values();
    unsigned found[kLaneValues] = {};
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (!has_rows(pass)) break;
#pragma unroll
      for (int i = 0; i < kLaneValues; ++i) found[i] = max(found[i], magnitude_of(values_[pass][i]));
    }
    // Lanes with the same lane % kLanesOfBlock have the same columns. They divide these among themselves, until each
    // has the largest magnitudes of two columns.
    keep_larger_half<32, kLaneValues>(found);
    keep_larger_half<16, kLaneValues / 2>(found);
    if constexpr (kLanesOfBlock == 8) keep_larger_half<8, kLaneValues / 4>(found);
    constexpr int kKept = kLaneValues / kRowsOfWave;
    const int kept = column_in_block(lane_id(), lane_id() / kLanesOfBlock * kKept);
#pragma unroll
    for (int i = 0; i < kKept; ++i) lds.largest[wave_id()][kept + i] = found[i];
    lds_barrier();
    float scale = 0;
    if (column < kCastColumns) {
      unsigned found = 0;
#pragma unroll
      for (int wave = 0; wave < kWaves; ++wave) found = max(found, lds.largest[wave][column]);
      scale = args_.range.scale_of(found);
      const Divisor<float> divisor = divisor_of(scale);
      lds.shrink[column] = divisor.shrink;
      lds.high[column] = divisor.high;
      lds.low[column] = divisor.low;
    }
    lds_barrier();
    const Divisor<LaneFloats> divisors = {lds.shrink.of_lane(), lds.high.of_lane(), lds.low.of_lane()};
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (!has_rows(pass)) break;
      store(to, pass, divisors);
    }
    scale_place.store(scale);
  }

  DG_DEVICE void compute_values() {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (!has_rows(pass)) break;
      values_[pass] = input_.values(args_, pass);
    }
  }

 private:
  // Whether any of the wave's rows of a pass exists. With one pass, a wave without rows has zeros.
  DG_DEVICE bool has_rows(int pass) const { return kPasses == 1 || place_.first_row_of_wave(pass) < bounds_.rows; }

  using Values = ValuePlaces<uint8_t, kPasses, TilePlace<kPasses>>;
  DG_DEVICE Values value_places() const { return {args_.data, bounds_, place_}; }

  template <class Factor>
  DG_DEVICE void store(const Values& to, int pass, const Divisor<Factor>& divisor) const {
    const Quantiser<kClamps> quantise{args_.range.largest};
    to.store(quantise(values_[pass], divisor), pass);
  }

  DG_DEVICE void store_together(unsigned found, const Values& to, const ScalePlace& scale_place) const {
    const float scale = args_.range.scale_of(found);
    scale_place.store(scale);
    const Divisor<float> divisor = divisor_of(scale);
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (!has_rows(pass)) break;
      store(to, pass, divisor);
    }
  }

  // Exponents after a row's last group, up to a multiple of four, are those of 1.
  template <bool kPacked>
  DG_DEVICE void store_fp4_scale(int row, int first_group, int group, int groups, float scale) const {
    if constexpr (kPacked) {
      constexpr int kInInt = 4, kExponentShift = 23;
      const int64_t ints = (bounds_.row + row) * args_.scales.row_stride;
      auto* const exponents = (Global<uint8_t>*)((Global<int>*)args_.scales.data + ints);
      group += first_group;
      exponents[group] = __builtin_bit_cast(unsigned, scale) >> kExponentShift;
      if (group != groups - 1) return;
      for (int i = groups; i % kInInt; ++i) exponents[i] = __builtin_bit_cast(unsigned, 1.0f) >> kExponentShift;
    } else {
      ScalePlace(args_.scales, bounds_.row, first_group, row, group, true).store(scale);
    }
  }

  const CastArguments& args_;
  int row_tile_, column_tile_;
  TileBounds bounds_;
  TilePlace<kPasses> place_;
  Input input_;
  LaneFloats values_[kPasses];
};

// The largest magnitude that any workgroup has found. `lds` has an element for each wave.
template <int kWaves>
DG_DEVICE unsigned largest_of_all(const CastArguments& args, unsigned* lds) {
  unsigned found = 0;
  for (int i = thread_id(); i < args.num_largest; i += kWaves * kWaveSize) found = max(found, args.largest[i]);
  return largest_of_workgroup<kWaves>(max_over_wave(found), lds);
}

}  // namespace deep_gemm_rocm
