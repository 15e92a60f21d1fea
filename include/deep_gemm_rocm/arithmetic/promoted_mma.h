// Sums over K with promotion: a chain of MFMAs covers one K-block of one fragment from C = 0, and its partial sum is
// then promoted, total += scale · partial, in fp32 on the vector ALU while the next chains run on the matrix cores.
// Partial sums need a few registers, not a second set of accumulators.
#pragma once

#include "deep_gemm_rocm/loading/fragment.h"
#include "deep_gemm_rocm/hardware/static_for.h"

namespace deep_gemm_rocm {

// Scales is the ScaleLoader.
template <class Shape, class Scales, int kChains, int kResultSlots>
class PromotedMma {
 public:
  static constexpr int kGroups = Scales::kGroups;
  using Order = MmaOrder<Shape, kChains, kResultSlots, kGroups>;
  static constexpr int kSlots = Order::kSlots;

 private:
  using Mfma = typename Shape::Mfma;
  static constexpr int kFragments = Order::kFragments;
  static constexpr int kElements = Mfma::kElements;
  static constexpr int kScales = Scales::kMultiplied;
  static constexpr bool kMultipliesScales = Scales::kPerColumn && Scales::kPerRow && kGroups == 1;

 public:
  DG_DEVICE PromotedMma() : total_{}, partial_{}, scale_{} {}

  // Takes over the scales of the K-block that starts.
  DG_DEVICE void start_k_block(const Scales& scales, int stage) {
#pragma unroll
    for (int i = 0; i < Shape::kFragsM; ++i) {
#pragma unroll
      for (int n = 0; n < kScales; ++n) {
        const int index = i * kScales + n;
        scale_[index / 2][index % 2] = scales.of_rows(stage, i, n);
      }
    }
#pragma unroll
    for (int i = 0; i < kScalePairs; ++i) asm volatile("" : "+v"(scale_[i]));
    if constexpr (Scales::kPerColumn) {
#pragma unroll
      for (int i = 0; i < kColumnLoads; ++i) column_scale_[i] = scales.of_columns(stage, i);
    }
  }

  // With is_first, totals begin with this K-block.
  DG_DEVICE void slot(int slot, const Fragment<Mfma> (&a)[Shape::kFragsM], const Fragment<Mfma> (&b)[Shape::kFragsN],
                      bool is_first = false) {
    const int mfma = Order::mfma(slot);
    const int sum = Order::sum(slot);
    Accumulator& partial = partial_[sum];
    partial = Mfma::multiply_add(b[Order::column(sum)].operand(mfma),
                                 a[Order::row(sum)].operand(mfma),
                                 Order::in_chain(slot) == 0 ? Accumulator{} : partial);
    promote_at(slot, is_first);
  }

  // Promotes the last chains of a K-block, whose turn comes after the last slot.
  DG_DEVICE void finish(bool is_first = false) {
    static_for<Order::kDelay>([&](int late) { promote_at(kSlots + late, is_first); });
  }

  // Sets totals to zero.
  DG_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
#pragma unroll
      for (int pair = 0; pair < kElements / 2; ++pair) total_[i][pair] = {};
    }
  }

  // Makes totals opaque to the compiler. So they are computed here, and not only at their next use in another basic
  // block, and the compiler doesn't keep results to reuse them in later equal computations.
  DG_DEVICE void settle() {
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
#pragma unroll
      for (int pair = 0; pair < kElements / 2; ++pair) asm volatile("" : "+v"(total_[i][pair]));
    }
  }

  DG_DEVICE float total(int fragment_m, int fragment_n, int element) const {
    return total_[fragment_m * Shape::kFragsN + fragment_n][element / 2][element % 2];
  }

 private:
  using Accumulator = typename Mfma::Accumulator;

  using Pair = Vector<float, 2>;  // as v_pk_fma_f32 takes them

  // Promotes the elements whose turn is `slot`.
  DG_DEVICE void promote_at(int slot, bool is_first) {
    const int first = Order::completed(slot);
#pragma unroll
    for (int pair = 0; pair < Order::kMostPairs; ++pair) {
      const int index = first + 2 * pair;
      if (index >= Order::completed(slot + 1)) break;
      const int sum = index / kElements;
      const int element = index % kElements;
      Pair partial{partial_[sum][element], partial_[sum][element + 1]};
      const int m = Order::row(sum), group = Order::group(sum), n = Order::column(sum);
      const int of_rows = m * kScales + Shape::scale_of_fragment(n) % kScales;
      Pair scales = scale_[of_rows / 2];
      // Otherwise clang 19 loads it together with the next pairs, and so keeps all of them in scratch.
      if constexpr (kScalePairs > 1) asm("" : "+v"(scales));
      Pair factor{scales[of_rows % 2], scales[of_rows % 2]};
      if constexpr (Scales::kPerColumn) {
        if (kMultipliesScales && n == 0 && element == 0) begin_row_of_columns();
        const float first = of_column(n * kElements + element, group);
        const float second = of_column(n * kElements + element + 1, group);
        if constexpr (kMultipliesScales) {
          factor = {factor[0] * first, factor[1] * second};
        } else if constexpr (kGroups == 1) {
          factor = {first, second};
        } else {
          Pair& block_sum = block_sum_[Order::fragment(sum)][element / 2];
          const Pair of_columns{first, second};
          block_sum = group == 0 ? of_columns * partial : __builtin_elementwise_fma(of_columns, partial, block_sum);
          if (group < kGroups - 1) continue;
          partial = block_sum;
        }
      }
      Pair& total = total_[m * Shape::kFragsN + n][element / 2];
      // A total begins with +0 in any case, so that it has the same sign if it is zero.
      total = __builtin_elementwise_fma(factor, partial, is_first ? Pair{} : total);
    }
  }

  // The scale of a column, from the lane of the lane group that has it. It takes no instruction of its own, as
  // v_mul_f32 reads its operand by DPP.
  DG_DEVICE float of_column(int column, int group) const {
    const int place = Scales::place_of(column, group);
    return of_dpp_row(column_scale_[place / kLanesOfDppRow], place % kLanesOfDppRow);
  }

  // Makes scales of columns opaque to the compiler. Otherwise it would hand all of them over for the first row of
  // fragments, and keep the copies in registers.
  DG_DEVICE void begin_row_of_columns() {
#pragma unroll
    for (int i = 0; i < kColumnLoads; ++i) asm("" : "+v"(column_scale_[i]));
  }

  Pair total_[kFragments][kElements / 2];
  Accumulator partial_[Order::kSums];
  // Sums over the groups of a K-block, before the scales of rows are applied. Few are live at a time.
  Pair block_sum_[kGroups > 1 ? kFragments : 1][kElements / 2];
  // In pairs of registers, because v_pk_fma_f32 reads a pair even if it uses one half twice. Were the other half the
  // target of a load in flight, promotion would wait for that load.
  static constexpr int kScalePairs = ceil_div(Shape::kFragsM * kScales, 2);
  Pair scale_[kScalePairs];
  static constexpr int kColumnLoads = Scales::kPerColumn ? Scales::kLoadsOfB : 1;
  float column_scale_[kColumnLoads];  // as they are spread over the lanes of a lane group
};

}  // namespace deep_gemm_rocm
