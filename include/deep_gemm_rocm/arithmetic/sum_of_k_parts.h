// Sums over K in the same order as split-K over several waves: one wave sums each part of K separately, one after the
// other, and adds its sum to those before. So results of a large tile are bit-identical to those of small tiles with
// SumOverWaves, or of split-K.
#pragma once

#include "deep_gemm_rocm/hardware/hip_declarations.h"
#include "deep_gemm_rocm/hardware/mfma.h"

namespace deep_gemm_rocm {

// An Mma whose totals are those of the part that is being computed, until they are complete.
template <class Mma, class Shape>
class SumOfKParts : public Mma {
  static constexpr int kParts = Shape::kPartsK;
  static constexpr int kPairs = Shape::Mfma::kElements / 2;

 public:
  // Begins a tile, whose K-blocks are dealt to the parts as share_of() does.
  DG_DEVICE void begin_parts(int first_k_block, int end_k_block) {
    size_ = static_cast<unsigned>(end_k_block - first_k_block) / kParts;
    longer_ = static_cast<unsigned>(end_k_block - first_k_block) % kParts;
    part_end_ = first_k_block;
    begin_part();
    for_all_pairs([&](Float2& sum, int, int, int) { sum = {}; });
  }

  // Adds up what is computed if this was a part's last K-block.
  DG_DEVICE void after_k_block(int k_block) {
    if (k_block + 1 != part_end_) return;
    for_all_pairs([&](Float2& sum, int m, int n, int pair) {
      sum += Float2{Mma::total(m, n, 2 * pair), Mma::total(m, n, 2 * pair + 1)};
    });
    Mma::clear();
    begin_part();
  }

  DG_DEVICE float total(int fragment_m, int fragment_n, int element) const {
    return sums_[fragment_m * Shape::kFragsN + fragment_n][element / 2][element % 2] +
           Mma::total(fragment_m, fragment_n, element);
  }

 private:
  DG_DEVICE void begin_part() { part_end_ += size_ + (longer_-- > 0 ? 1 : 0); }

  template <class Use>
  DG_DEVICE void for_all_pairs(const Use& use) {
#pragma unroll
    for (int i = 0; i < Shape::kFragsM * Shape::kFragsN; ++i) {
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) use(sums_[i][pair], i / Shape::kFragsN, i % Shape::kFragsN, pair);
    }
  }

  Float2 sums_[Shape::kFragsM * Shape::kFragsN][kPairs] = {};
  int size_ = 0, longer_ = 0;  // K-blocks of a part, and how many of the next parts have one more
  int part_end_ = 0;
};

}  // namespace deep_gemm_rocm
