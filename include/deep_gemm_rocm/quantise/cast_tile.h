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
  static_assert(kRows <= MatrixTile<uint8_t>::kMostRows);

  // The tile must have a row.
  DG_DEVICE CastTile(const CastArguments& args, int row_tile, int column_tile)
      : args_(args),
        row_tile_(row_tile),
        column_tile_(column_tile),
        bounds_{row_tile * kRows, column_tile * kCastColumns, min(args.rows - row_tile * kRows, kRows),
                min(args.columns - column_tile * kCastColumns, kCastColumns)} {
    input_.load(args, bounds_, place_);
  }

  // The largest magnitude of the tile, in every lane.
  DG_DEVICE unsigned largest(unsigned* lds) {
    compute_values();
    unsigned found = 0;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) found = max(found, largest_magnitude(values_[pass]));
    return largest_of_workgroup<kWaves>(largest_of_wave(found), lds);
  }

  // A scale for each row.
  DG_DEVICE void cast_rows_apart() {
    const MatrixTile<uint8_t> data = output();
    const int lane_of_block = lane_id() % kLanesOfBlock;
    float scale_to_store = 0;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (place_.first_row_of_wave(pass) >= bounds_.rows) break;
      input_.values(args_, pass, values_[pass]);
      const float scale = args_.range.scale_of(largest_of_neighbours(largest_magnitude(values_[pass])));
      store_lane_values(data, quantiser()(values_[pass], reciprocal_of(scale)), place_.row(pass), 0);
      if (lane_of_block == pass) scale_to_store = scale;
    }
    const int row = place_.row(lane_of_block);
    if (lane_of_block < kPasses && row < bounds_.rows) *scale_at(bounds_.row + row, column_tile_) = scale_to_store;
  }

  // To FP4, with a scale for kGroup columns of each row: fp32 or, if kPacked, exponents in bytes.
  template <int kGroup, bool kPacked>
  DG_DEVICE void cast_rows_to_fp4() {
    const MatrixTile<uint8_t, kVectorValues / 2> data = {args_.data, bounds_.row, bounds_.column / 2, bounds_.rows,
                                                         bounds_.columns / 2};
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (place_.first_row_of_wave(pass) >= bounds_.rows) break;
      input_.values(args_, pass, values_[pass]);
      unsigned largest[kLaneVectors] = {};
#pragma unroll
      for (int i = 0; i < kLaneValues; ++i) {
        unsigned& of_group = largest[kGroup == kScaleBlockK ? 0 : i / kVectorValues];
        of_group = max(of_group, magnitude_of(values_[pass][i]));
      }
      const int row = place_.row(pass);
#pragma unroll
      for (int v = 0; v < kLaneVectors; ++v) {
        const unsigned found = largest_of_neighbours<kLanesOfGroup<kGroup>>(largest[kGroup == kScaleBlockK ? 0 : v]);
        const float scale = fp4_scale(found, args_.range.has_power_of_two_scales);
        const auto reciprocal = static_cast<float>(reciprocal_of(scale));
        float products[kVectorValues];
#pragma unroll
        for (int i = 0; i < kVectorValues; ++i) products[i] = values_[pass][v * kVectorValues + i] * reciprocal;
        const int column = column_in_block(lane_id(), v * kVectorValues);
        data.store(__builtin_bit_cast(Vector<uint8_t, kVectorValues / 2>, fp4_codes(products)), row, column / 2);
        if (column % kGroup == 0 && column < bounds_.columns && row < bounds_.rows) {
          store_fp4_scale<kPacked>(bounds_.row + row, (bounds_.column + column) / kGroup, ceil_div(args_.columns, kGroup),
                                   scale);
        }
      }
    }
  }

  // One scale for all values, which were looked at before unless `found` is theirs.
  DG_DEVICE void cast_together(unsigned found, bool stores_scale) {
    const float scale = args_.range.scale_of(found);
    const double reciprocal = reciprocal_of(scale);
    const MatrixTile<uint8_t> data = output();
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      store_lane_values(data, quantiser()(values_[pass], reciprocal), place_.row(pass), 0);
    }
    if (stores_scale && thread_id() == 0) *scale_at(row_tile_, column_tile_) = scale;
  }

  // A scale for each column.
  struct ColumnLds {
    unsigned largest[kWaves][kCastColumns];
    double reciprocals[kCastColumns];
  };
  DG_DEVICE void cast_columns_apart(ColumnLds& lds) {
    compute_values();
    unsigned found[kLaneValues] = {};
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i) {
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) found[i] = max(found[i], magnitude_of(values_[pass][i]));
    }
    // Lanes that agree in lane % 8 have the same columns. In the end each has two of them.
    keep_larger_half<32, kLaneValues>(found);
    keep_larger_half<16, kLaneValues / 2>(found);
    keep_larger_half<8, kLaneValues / 4>(found);
    constexpr int kKept = kLaneValues / kRowsOfWave;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const int value = lane_id() / kLanesOfBlock * kKept + i;
      lds.largest[wave_id()][column_in_block(lane_id(), value)] = found[i];
    }
    lds_barrier();
    if (const int column = thread_id(); column < kCastColumns) {
      unsigned found = 0;
#pragma unroll
      for (int wave = 0; wave < kWaves; ++wave) found = max(found, lds.largest[wave][column]);
      const float scale = args_.range.scale_of(found);
      lds.reciprocals[column] = reciprocal_of(scale);
      if (column < bounds_.columns) *scale_at(row_tile_, bounds_.column + column) = scale;
    }
    lds_barrier();
    double reciprocals[kLaneValues];
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i) reciprocals[i] = lds.reciprocals[column_in_block(lane_id(), i)];
    const MatrixTile<uint8_t> data = output();
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      store_lane_values(data, quantiser()(values_[pass], reciprocals), place_.row(pass), 0);
    }
  }

  DG_DEVICE void compute_values() {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) input_.values(args_, pass, values_[pass]);
  }

 private:
  DG_DEVICE Quantiser<kClamps> quantiser() const { return {args_.range.largest}; }

  DG_DEVICE MatrixTile<uint8_t> output() const {
    return bounds_.of<uint8_t>(args_.data);
  }

  template <int kGroup>
  static constexpr int kLanesOfGroup = min(kGroup / kVectorValues, kLanesOfBlock);

  // Exponents after a row's last group, up to a multiple of four, are those of 1.
  template <bool kPacked>
  DG_DEVICE void store_fp4_scale(int row, int group, int groups, float scale) const {
    if constexpr (kPacked) {
      constexpr int kInInt = 4, kExponentShift = 23;
      auto* const exponents = (Global<uint8_t>*)((Global<int>*)args_.scales.data + row * args_.scales.row_stride);
      exponents[group] = __builtin_bit_cast(unsigned, scale) >> kExponentShift;
      if (group != groups - 1) return;
      for (int i = groups; i % kInInt; ++i) exponents[i] = __builtin_bit_cast(unsigned, 1.0f) >> kExponentShift;
    } else {
      *scale_at(row, group) = scale;
    }
  }

  DG_DEVICE Global<float>* scale_at(int row, int column) const {
    const int64_t at = row * args_.scales.row_stride + column * args_.scales.column_stride;
    return (Global<float>*)(static_cast<float*>(args_.scales.data) + at);
  }

  const CastArguments& args_;
  int row_tile_, column_tile_;
  TileBounds bounds_;
  TilePlace<kPasses> place_;
  Input input_;
  float values_[kPasses][kLaneValues];
};

// The largest of all that workgroups found. `lds` has an element for each wave.
template <int kWaves>
DG_DEVICE unsigned largest_of_all(const CastArguments& args, unsigned* lds) {
  unsigned found = 0;
  for (int i = thread_id(); i < args.num_largest; i += kWaves * kWaveSize) found = max(found, args.largest[i]);
  return largest_of_workgroup<kWaves>(largest_of_wave(found), lds);
}

}  // namespace deep_gemm_rocm
