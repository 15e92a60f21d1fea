// Quantises whole rows, which one or more waves hold in registers: for scales or norms of a whole row.
#pragma once

#include "deep_gemm_rocm/quantise/cast_inputs.h"
#include "deep_gemm_rocm/quantise/magnitude.h"

namespace deep_gemm_rocm {

// The lanes that share a row: a wave, or a workgroup. `lds` has eight bytes for each wave of a workgroup.
template <int kLanes_>
struct RowTeam {
  static constexpr int kLanes = kLanes_;
  static constexpr int kThreads = max(kLanes, 256);
  static constexpr int kRows = kThreads / kLanes;  // of a workgroup
  static constexpr int kWaves = kLanes / kWaveSize;
  static_assert(kWaves == 1 || kRows == 1, "waves exchange their results in their workgroup");

  static DG_DEVICE int row() { return kRows == 1 ? 0 : wave_id(); }
  static DG_DEVICE int lane() { return thread_id() % kLanes; }

  static DG_DEVICE unsigned largest(unsigned value, uint64_t* lds) {
    return reduced(largest_of_wave(value), lds, [](unsigned a, unsigned b) { return max(a, b); });
  }

  static DG_DEVICE double sum(double value, uint64_t* lds) {
    value += of_lane<1>(value);
    value += of_lane<2>(value);
    value += of_lane<7>(value);
    value += of_lane<15>(value);
    value += of_lane<16>(value);
    value += of_lane<32>(value);
    return reduced(value, lds, [](double a, double b) { return a + b; });
  }

 private:
  template <int kMask>
  static DG_DEVICE double of_lane(double value) {
    using Halves = Vector<float, 2>;
    const auto halves = __builtin_bit_cast(Halves, value);
    return __builtin_bit_cast(double, Halves{exchanged<kMask>(halves[0]), exchanged<kMask>(halves[1])});
  }

  template <class T, class Operation>
  static DG_DEVICE T reduced(T of_wave, uint64_t* lds, const Operation& operation) {
    if constexpr (kWaves == 1) return of_wave;
    auto* const of_waves = reinterpret_cast<T*>(lds);
    lds_barrier();
    if (lane_id() == 0) of_waves[wave_id()] = of_wave;
    lds_barrier();
    T result = of_waves[0];
#pragma unroll
    for (int wave = 1; wave < kWaves; ++wave) result = operation(result, of_waves[wave]);
    return result;
  }
};

// Which block of its row a lane has in a pass.
template <class Team>
struct RowPlace {
  DG_DEVICE int row(int) const { return Team::row(); }
  DG_DEVICE int block_column(int pass) const {
    return (pass * (Team::kLanes / kLanesOfBlock) + Team::lane() / kLanesOfBlock) * kScaleBlockK;
  }
};

// The row as it is.
template <class T, int kPasses, class Team>
struct PlainRow {
  PlainInput<T, kPasses> input;

  DG_DEVICE void load(const CastArguments& args, const TileBounds& at) { input.load(args, at, RowPlace<Team>()); }

  DG_DEVICE void values(const CastArguments& args, const TileBounds&, uint64_t*, float (&results)[kPasses][kLaneValues]) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) input.values(args, pass, results[pass]);
  }
};

// 1 / √value, of a value above 0, to the last bit or two: two Newton steps after v_rsq_f64.
DG_DEVICE double inverse_root(double value) {
  const double estimate = __builtin_amdgcn_rsq(value);
  double root = estimate;
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const double error = __builtin_fma(-value * root, root, 1.0);
    root = __builtin_fma(0.5 * root, error, root);
  }
  return __builtin_isinf(value) ? estimate : root;
}

// The row over its root mean square, times the weights. With kHasResidual the row is the sum of two, rounded to their
// type and stored. Squares are summed in fp64, so that the order of the sum can't be seen in fp32.
template <class T, class Weight, int kPasses, bool kHasResidual, class Team>
struct RmsNormRow {
  LaneValues<T, kPasses> x, residual;
  LaneValues<Weight, kPasses> weight;

  DG_DEVICE void load(const CastArguments& args, const TileBounds& at) {
    const RowPlace<Team> place;
    x.load(at.of<T>(args.x), place);
    if constexpr (kHasResidual) residual.load(at.of<T>(args.residual), place);
    weight.load(at.of<Weight>(args.weight), place);
  }

  DG_DEVICE void values(const CastArguments& args, const TileBounds& at, uint64_t* lds,
                        float (&results)[kPasses][kLaneValues]) {
    double squares = 0;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if constexpr (kHasResidual) add_residual(args, at, pass);
#pragma unroll
      for (int i = 0; i < kLaneValues; ++i) {
        const float value = static_cast<float>(x(pass, i));
        squares = __builtin_fma(static_cast<double>(value), static_cast<double>(value), squares);
        results[pass][i] = value;
      }
    }
    const double mean = Team::sum(squares, lds) / args.columns;
    const float inverse = static_cast<float>(inverse_root(mean + args.epsilon));
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
      for (int i = 0; i < kLaneValues; ++i) {
        results[pass][i] = results[pass][i] * inverse * static_cast<float>(weight(pass, i));
      }
    }
  }

 private:
  DG_DEVICE void add_residual(const CastArguments& args, const TileBounds& at, int pass) {
    float sums[1][kLaneValues];
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i) {
      sums[0][i] = static_cast<float>(x(pass, i)) + static_cast<float>(residual(pass, i));
    }
    const bool are_numbers = NumberRounding<T>::kTakesNans || !may_have_nans(sums);
    const MatrixTile<T> stored = at.of<T>(args.sum);
    const RowPlace<Team> place;
#pragma unroll
    for (int v = 0; v < kLaneVectors; ++v) {
      const float* const own = sums[0] + v * kVectorValues;
      auto& rounded = x.vectors[pass][v];
      rounded = are_numbers ? NumberRounding<T>::template rounded<kVectorValues>(own)
                            : Storage<T>::template rounded<kVectorValues>(own);
      stored.store(rounded, place.row(pass), place.block_column(pass) + column_in_block(lane_id(), v * kVectorValues));
    }
  }
};

// Quantises this workgroup's rows with a scale for each row or, with kBlockScales, for 128 columns of a row.
template <class Row, class Team, int kPasses, bool kBlockScales, bool kClamps>
DG_DEVICE void cast_row(const CastArguments& args, int first_row, uint64_t* lds) {
  const int rows = min(args.rows - first_row, Team::kRows);
  const TileBounds bounds = {first_row, 0, rows, args.columns};
  const RowPlace<Team> place;
  Row row;
  row.load(args, bounds);
  float values[kPasses][kLaneValues];
  row.values(args, bounds, lds, values);

  const int64_t scale_row = (first_row + Team::row()) * args.scales.row_stride;
  auto* const scales = (Global<float>*)(static_cast<float*>(args.scales.data) + scale_row);
  const MatrixTile<uint8_t> data = bounds.of<uint8_t>(args.data);
  const Quantiser<kClamps> quantise{args.range.largest};
  unsigned largest[kPasses];
  unsigned largest_of_row = 0;
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    largest[pass] = largest_magnitude(values[pass]);
    largest_of_row = max(largest_of_row, largest[pass]);
  }
  if constexpr (!kBlockScales) largest_of_row = Team::largest(largest_of_row, lds);
  const float scale_of_row = args.range.scale_of(largest_of_row);
  const double reciprocal_of_row = reciprocal_of(scale_of_row);
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    double reciprocal = reciprocal_of_row;
    if constexpr (kBlockScales) {
      const float scale = args.range.scale_of(largest_of_neighbours(largest[pass]));
      reciprocal = reciprocal_of(scale);
      const int column = place.block_column(pass);
      if (Team::lane() % kLanesOfBlock == 0 && column < args.columns && Team::row() < rows) {
        scales[column / kScaleBlockK * args.scales.column_stride] = scale;
      }
    }
    store_lane_values(data, quantise(values[pass], reciprocal), place.row(pass), place.block_column(pass));
  }
  if (!kBlockScales && Team::lane() == 0 && Team::row() < rows) *scales = scale_of_row;
}

}  // namespace deep_gemm_rocm
