// The arithmetic of a wave where no scale varies along K: all MFMAs of a fragment are one chain. Same interface as
// PromotedMma.
#pragma once

#include "deep_gemm_rocm/fragment.h"

namespace deep_gemm_rocm {

template <class Shape, class Scales, int kChains>
class DirectMma {
  using Mfma = typename Shape::Mfma;

 public:
  using Order = MmaOrder<Shape, kChains>;
  static constexpr int kSlots = Order::kSlots;

  DG_DEVICE DirectMma() : total_{} {}

  DG_DEVICE void start_k_block(const Scales&, int) {}

  DG_DEVICE void slot(int slot, const Fragment<Mfma> (&a)[Shape::kFragsM], const Fragment<Mfma> (&b)[Shape::kFragsN]) {
    const int mfma = Order::mfma(slot);
    const int fragment = Order::fragment(slot);
    total_[fragment] = Mfma::multiply_add(b[fragment % Shape::kFragsN].operand(mfma),
                                          a[fragment / Shape::kFragsN].operand(mfma), total_[fragment]);
  }

  DG_DEVICE void finish() {}
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
