// Quantises a tile of 128 columns with some waves. Values of a tile that share a scale are a row, a column or all of them.
#pragma once

#include "deep_gemm_rocm/quantise/cast_inputs.h"
#include "deep_gemm_rocm/quantise/fp4_codes.h"
#include "deep_gemm_rocm/quantise/magnitude.h"

namespace deep_gemm_rocm {

constexpr int kCastColumns = kScaleBlockK;
constexpr int kRowsOfWave = kWaveSize / kLanesOfBlock;  // at once

constexpr int cast_rows(int waves, int passes) { return passes * waves * kRowsOfWave; }

// Which row of the tile a lane has in a pass. A wave has consecutive rows.
template <int kPasses>
struct TilePlace {
  int wave_row = wave_id() * kPasses * kRowsOfWave;
  int lane_row = lane_id() / kLanesOfBlock;

  DG_DEVICE int first_row_of_wave(int pass) const { return wave_row + pass * kRowsOfWave; }
  DG_DEVICE int row(int pass) const { return first_row_of_wave(pass) + lane_row; }
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

  // The tile must have a row.
  DG_DEVICE CastTile(const CastArguments& args, int row_tile, int column_tile)
      : args_(args),
        row_tile_(row_tile),
        column_tile_(column_tile),
        bounds_{row_tile * kRows, column_tile * kCastColumns, min(args.rows - row_tile * kRows, kRows),
                min(args.columns - column_tile * kCastColumns, kCastColumns)} {}

  // Starts all loads, which comes before anything else.
  DG_DEVICE void load() {
    if (has_rows(0)) load_input(input_, args_, bounds_, place_);
  }

  // The largest magnitude of the tile, in every lane.
  DG_DEVICE unsigned largest(unsigned* lds) {
    load();
    compute_values();
    unsigned found = 0;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (!has_rows(pass)) break;
      found = max(found, largest_magnitude(values_[pass]));
    }
    return largest_of_workgroup<kWaves>(max_over_wave(found), lds);
  }

  // A scale for each row. Waves without rows leave, so that none waits for loads that another one may have started.
  DG_DEVICE void cast_rows_apart() {
    if (!has_rows(0)) return;
    load();
    const int lane_of_block = lane_id() % kLanesOfBlock;
    float scale_to_store = 0;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (!has_rows(pass)) break;
      values_[pass] = input_.values(args_, pass);
      const float scale = args_.range.scale_of(largest_of_neighbours<kLanesOfBlock>(largest_magnitude(values_[pass])));
      store(pass, divisor_of(scale));
      if (lane_of_block == pass) scale_to_store = scale;
    }
    const int row = place_.row(lane_of_block);
    if (lane_of_block < kPasses && row < bounds_.rows) store_scale(scale_to_store, bounds_.row, row, column_tile_, 0);
  }

  // To FP4, with a scale for kGroup columns of each row: fp32 or, if kPacked, exponents in bytes.
  template <int kGroup, bool kPacked>
  DG_DEVICE void cast_rows_to_fp4() {
    if (!has_rows(0)) return;
    load();
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

  // One scale for all values, which were looked at before unless `found` is theirs.
  DG_DEVICE void cast_together(unsigned found, bool stores_scale) {
    const float scale = args_.range.scale_of(found);
    if (stores_scale && thread_id() == 0) store_scale(scale, row_tile_, 0, column_tile_, 0);
    const Divisor<float> divisor = divisor_of(scale);
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (!has_rows(pass)) break;
      store(pass, divisor);
    }
  }

  // A number for each column. What lanes read at once lies in different banks.
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
    load();
    compute_values();
    unsigned found[kLaneValues] = {};
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (!has_rows(pass)) break;
#pragma unroll
      for (int i = 0; i < kLaneValues; ++i) found[i] = max(found[i], magnitude_of(values_[pass][i]));
    }
    // Lanes that agree in lane % kLanesOfBlock have the same columns. In the end each has two of them.
    keep_larger_half<32, kLaneValues>(found);
    keep_larger_half<16, kLaneValues / 2>(found);
    if constexpr (kLanesOfBlock == 8) keep_larger_half<8, kLaneValues / 4>(found);
    constexpr int kKept = kLaneValues / kRowsOfWave;
    const int kept = column_in_block(lane_id(), lane_id() / kLanesOfBlock * kKept);
#pragma unroll
    for (int i = 0; i < kKept; ++i) lds.largest[wave_id()][kept + i] = found[i];
    lds_barrier();
    const int column = thread_id();
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
      store(pass, divisors);
    }
    if (column < bounds_.columns) store_scale(scale, row_tile_, 0, bounds_.column, column);
  }

  DG_DEVICE void compute_values() {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (!has_rows(pass)) break;
      values_[pass] = input_.values(args_, pass);
    }
  }

 private:
  // Whether any of the wave's rows of a pass exists.
  DG_DEVICE bool has_rows(int pass) const { return place_.first_row_of_wave(pass) < bounds_.rows; }

  template <class Factor>
  DG_DEVICE void store(int pass, const Divisor<Factor>& divisor) const {
    const Quantiser<kClamps> quantise{args_.range.largest};
    store_lane_values(bounds_, args_.data, quantise(values_[pass], divisor), place_.row(pass), 0);
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
      store_scale(scale, bounds_.row, row, first_group, group);
    }
  }

  // The scale's place is in two parts: one that all lanes share, and the lane's own within the tile.
  DG_DEVICE void store_scale(float scale, int shared_row, int row, int shared_column, int column) const {
    const StridedMatrix& scales = args_.scales;
    auto* const shared = (Global<float>*)scales.data + shared_row * scales.row_stride + shared_column * scales.column_stride;
    const auto own = static_cast<unsigned>(row * static_cast<int>(scales.row_stride) +
                                           column * static_cast<int>(scales.column_stride));
    shared[own] = scale;
  }

  const CastArguments& args_;
  int row_tile_, column_tile_;
  TileBounds bounds_;
  TilePlace<kPasses> place_;
  Input input_;
  LaneFloats values_[kPasses];
};

// The largest of all that workgroups found. `lds` has an element for each wave.
template <int kWaves>
DG_DEVICE unsigned largest_of_all(const CastArguments& args, unsigned* lds) {
  unsigned found = 0;
  for (int i = thread_id(); i < args.num_largest; i += kWaves * kWaveSize) found = max(found, args.largest[i]);
  return largest_of_workgroup<kWaves>(max_over_wave(found), lds);
}

}  // namespace deep_gemm_rocm
