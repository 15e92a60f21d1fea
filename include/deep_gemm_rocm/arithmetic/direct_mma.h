// Sums over K without promotion, where no scale varies along K: all MFMAs of a fragment are one chain. Same interface
// as PromotedMma.
#pragma once

#include "deep_gemm_rocm/loading/fragment.h"

namespace deep_gemm_rocm {

template <class Shape, class Scales, int kChains, int kResultSlots>
class DirectMma {
  using Mfma = typename Shape::Mfma;

 public:
  using Order = MmaOrder<Shape, kChains, kResultSlots>;
  static constexpr int kSlots = Order::kSlots;

  DG_DEVICE DirectMma() : total_{} {}

  DG_DEVICE void start_k_block(const Scales&, int) {}

  DG_DEVICE void slot(int slot, const Fragment<Mfma> (&a)[Shape::kFragsM], const Fragment<Mfma> (&b)[Shape::kFragsN],
                      bool is_first = false) {
    const int mfma = Order::mfma(slot);
    const int fragment = Order::sum(slot);
    typename Mfma::Accumulator& total = total_[fragment];
    total = Mfma::multiply_add(b[fragment % Shape::kFragsN].operand(mfma), a[fragment / Shape::kFragsN].operand(mfma),
                               is_first && mfma == 0 ? typename Mfma::Accumulator{} : total);
  }

  DG_DEVICE void finish(bool = false) {}

  // Sets totals to zero.
  DG_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < Order::kFragments; ++i) total_[i] = {};
  }

  DG_DEVICE void settle() {
#pragma unroll
    for (int i = 0; i < Order::kFragments; ++i) {
#pragma unroll
      for (int e = 0; e < Mfma::kElements; ++e) {
        float element = total_[i][e];
        asm volatile("" : "+v"(element));
        total_[i][e] = element;
      }
    }
  }

  DG_DEVICE float total(int fragment_m, int fragment_n, int element) const {
    return total_[fragment_m * Shape::kFragsN + fragment_n][element];
  }

 private:
  typename Mfma::Accumulator total_[Order::kFragments];
};

}  // namespace deep_gemm_rocm
