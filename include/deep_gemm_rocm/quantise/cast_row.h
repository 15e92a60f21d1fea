// Quantises whole rows, which one or more waves hold in registers: for scales or norms of a whole row.
#pragma once

#include "deep_gemm_rocm/hardware/wave_sum.h"
#include "deep_gemm_rocm/quantise/cast_inputs.h"
#include "deep_gemm_rocm/quantise/magnitude.h"

namespace deep_gemm_rocm {

// The lanes that share a row: a wave, or a workgroup.
template <int kLanes_>
struct RowTeam {
  static constexpr int kLanes = kLanes_;
  static constexpr int kThreads = max(kLanes, 256);
  static constexpr int kRows = kThreads / kLanes;  // of a workgroup
  static constexpr int kWaves = kLanes / kWaveSize;
  static_assert(kWaves == 1 || kRows == 1, "waves exchange their results in their workgroup");

  static DG_DEVICE int row() { return kRows == 1 ? 0 : wave_id(); }
  static DG_DEVICE int lane() { return thread_id() % kLanes; }

  // Whether this wave has results to store, where each of `parts` workgroups stores some waves' part of the row.
  static DG_DEVICE bool stores(int parts) {
    return kWaves == 1 || static_cast<unsigned>(wave_id() * parts) / kWaves == workgroup_id_y();
  }

  // Whether this wave stores its part of the sum with the residual. The waves without results do, if there are any, as
  // they have nothing else to store.
  static DG_DEVICE bool stores_sums(int parts) { return parts == 1 || !stores(parts); }

  // Each wave writes its sum and its largest value once, for the others.
  struct Lds {
    double sums[kWaves];
    unsigned largest[kWaves];
  };

  static DG_DEVICE unsigned largest(unsigned value, Lds& lds) {
    return reduced(max_over_wave(value), lds.largest, [](unsigned a, unsigned b) { return max(a, b); });
  }

  static DG_DEVICE double sum(double value, Lds& lds) {
    return reduced(sum_over_wave(value), lds.sums, [](double a, double b) { return a + b; });
  }

 private:
  template <class T, class Operation>
  static DG_DEVICE T reduced(T of_wave, T (&of_waves)[kWaves], const Operation& operation) {
    if constexpr (kWaves == 1) return of_wave;
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

  template <bool kVectors>
  DG_DEVICE void load(const CastArguments& args, const TileBounds& at, const RowPlace<Team>& place) {
    input.template load<kVectors>(args, at, place);
  }

  DG_DEVICE void wait() { input.wait(); }

  DG_DEVICE void values(const CastArguments& args, const TileBounds&, typename Team::Lds&,
                        LaneFloats (&results)[kPasses]) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) results[pass] = input.values(args, pass);
  }
};

// 1 / √value for a value above 0, correct to the last bit or two: v_rsq_f64 and two Newton steps.
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

// RMSNorm: the row divided by its root mean square, times the weights. With kHasResidual the row is the sum of two,
// rounded to their type, which is stored, too. Squares are summed in fp64, so that the order of summation doesn't show
// in fp32.
template <class T, class Weight, int kPasses, bool kHasResidual, class Team>
struct RmsNormRow {
  LaneValues<T, kPasses> x, residual;
  LaneValues<Weight, kPasses> weight;

  template <bool kVectors>
  DG_DEVICE void load(const CastArguments& args, const TileBounds& at, const RowPlace<Team>& place) {
    x.template load<kVectors>(at.operand<kVectors, T>(args.x), place);
    if constexpr (kHasResidual) residual.template load<kVectors>(at.operand<kVectors, T>(args.residual), place);
    weight.template load<kVectors>(at.operand<kVectors, Weight>(args.weight), place);
    if constexpr (kVectors) load_arguments_of_norms(args);
  }

  DG_DEVICE void wait() { x.wait(); }

  DG_DEVICE void values(const CastArguments& args, const TileBounds& at, typename Team::Lds& lds,
                        LaneFloats (&results)[kPasses]) {
    const ValuePlaces<T, kPasses, RowPlace<Team>> sums_to = {kHasResidual ? args.sum : args.data, at, RowPlace<Team>()};
    double squares = 0;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if constexpr (kHasResidual) add_residual(pass);
      results[pass] = x(pass);
#pragma unroll
      for (int i = 0; i < kLaneValues; ++i) {
        const double value = results[pass][i];
        squares = __builtin_fma(value, value, squares);
      }
    }
    const double mean = Team::sum(squares, lds) * args.columns_reciprocal;
    if (kHasResidual && Team::stores_sums(args.row_parts)) {
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) sums_to.store(x.of_pass[pass], pass);
    }
    const float inverse = static_cast<float>(inverse_root(mean + args.epsilon));
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) results[pass] = results[pass] * LaneFloats(inverse) * weight(pass);
  }

 private:
  DG_DEVICE void add_residual(int pass) {
    // NumberRounding keeps NaNs here: they have 16 low bits of 0, as those of bf16 and of the hardware do.
    const LaneFloats added = x(pass) + residual(pass);
    float sums[kLaneValues];
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i) sums[i] = added[i];
    x.of_pass[pass] = NumberRounding<T>::template rounded<kLaneValues>(sums);
  }
};

// Quantises this workgroup's rows with a scale for each row or, with kBlockScales, for 128 columns of a row.
template <class Row, class Team, int kPasses, bool kBlockScales, bool kClamps>
DG_DEVICE void cast_row(const CastArguments& args, int first_row, typename Team::Lds& lds) {
  const int rows = min(args.rows - first_row, Team::kRows);
  const TileBounds bounds = {first_row, 0, rows, args.columns};
  const RowPlace<Team> place;
  Row row;
  load_input(row, args, bounds, place);
  const ValuePlaces<uint8_t, kPasses, RowPlace<Team>> to = {args.data, bounds, place};
  constexpr int kScales = kBlockScales ? kPasses : 1, kLanesOfScale = kBlockScales ? kLanesOfBlock : Team::kLanes;
  ScalePlace scale_places[kScales];
#pragma unroll
  for (int i = 0; i < kScales; ++i) {
    const int column = place.block_column(i);
    const bool stores = Team::row() < rows && column < args.columns && Team::lane() % kLanesOfScale == 0;
    scale_places[i] = {args.scales, first_row, 0, Team::row(), column / kScaleBlockK, stores};
  }
  row.wait();
  LaneFloats values[kPasses];
  row.values(args, bounds, lds, values);

  if (kBlockScales && !Team::stores(args.row_parts)) return;
  const Quantiser<kClamps> quantise{args.range.largest};
  unsigned largest[kPasses];
  unsigned largest_of_row = 0;
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    largest[pass] = largest_magnitude(values[pass]);
    largest_of_row = max(largest_of_row, largest[pass]);
  }
  if constexpr (!kBlockScales) {
    largest_of_row = Team::largest(largest_of_row, lds);
    if (!Team::stores(args.row_parts)) return;
  }
  const float scale_of_row = args.range.scale_of(largest_of_row);
  if constexpr (!kBlockScales) scale_places[0].store(scale_of_row);
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    float scale = scale_of_row;
    if constexpr (kBlockScales) {
      scale = args.range.scale_of(largest_of_neighbours<kLanesOfBlock>(largest[pass]));
      scale_places[pass].store(scale);
    }
    to.store(quantise(values[pass], divisor_of(scale)), pass);
  }
}

}  // namespace deep_gemm_rocm
