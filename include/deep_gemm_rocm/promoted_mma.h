// The arithmetic of a wave: a chain of MFMAs covers one K-block on one fragment from C = 0, and its partial sum is then
// promoted, total += scale · partial, in fp32 on the vector ALU while the next chains run on the matrix core. So
// partial sums need a few registers, not a second set of accumulators.
#pragma once

#include "deep_gemm_rocm/lds_layout.h"
#include "deep_gemm_rocm/mfma.h"
#include "deep_gemm_rocm/static_for.h"

namespace deep_gemm_rocm {

// The K-block's 128 bytes of kRows rows of A or B, spread over the wave's lanes.
template <class Mfma>
class Fragment {
 public:
  static constexpr int kReads = fragment_reads<Mfma>();
  static constexpr int kMfmas = kReads * (kChunkBytes / sizeof(MfmaOperand));

  DG_DEVICE void read(int read, const uint8_t* lds_tile, int first_row) {
    const uint8_t* const chunk = lds_tile + read_offset<Mfma>(lane_id(), read) + first_row_offset(first_row);
    operands_[read] = *reinterpret_cast<const Operands*>(chunk);
  }

  DG_DEVICE MfmaOperand operand(int mfma) const { return operands_[mfma / 2][mfma % 2]; }

 private:
  using Operands = Vector<MfmaOperand, kChunkBytes / sizeof(MfmaOperand)>;
  Operands operands_[kReads];
};

// Work is cut into slots of one MFMA each, so that a schedule can put memory operations between them. kChains chains
// alternate at a time. With kCarry the promotions that don't fit into a K-block's slots overlap the next K-block.
template <class Shape, int kChains, bool kCarry>
class PromotedMma {
  using Mfma = typename Shape::Mfma;
  static constexpr int kFragments = Shape::kFragsM * Shape::kFragsN;
  static constexpr int kChainMfmas = Fragment<Mfma>::kMfmas;
  static constexpr int kGroupSlots = kChains * kChainMfmas;
  static constexpr int kElements = Mfma::kElements;
  static_assert(kFragments % kChains == 0, "chains run in whole groups");

 public:
  static constexpr int kSlots = kFragments * kChainMfmas;

  DG_DEVICE PromotedMma() : total_{}, partial_{}, scale_{}, carried_scale_{} {}

  // scale_of(i) scales the rows of fragment row i in the K-block that starts.
  template <class ScaleOf>
  DG_DEVICE void start_k_block(ScaleOf scale_of) {
#pragma unroll
    for (int i = 0; i < Shape::kFragsM; ++i) {
      carried_scale_[i] = scale_[i];
      scale_[i] = scale_of(i);
      // Computed here, or the operands' registers would be occupied until the first promotion.
      asm volatile("" : "+v"(scale_[i]));
    }
  }

  DG_DEVICE void slot(int slot, const Fragment<Mfma> (&a)[Shape::kFragsM], const Fragment<Mfma> (&b)[Shape::kFragsN]) {
    const int mfma = slot % kGroupSlots / kChains;
    const int fragment = slot / kGroupSlots * kChains + slot % kChains;
    Accumulator& partial = partial_[fragment];
    partial = Mfma::multiply_add(b[fragment % Shape::kFragsN].operand(mfma), a[fragment / Shape::kFragsN].operand(mfma),
                                 mfma == 0 ? Accumulator{} : partial);
    if (kCarry) promote_at(slot + kSlots, carried_scale_);
    promote_at(slot, scale_);
  }

  // Promotes what no slot did: after every K-block, or with kCarry after the last one, whose scales are carried by then.
  DG_DEVICE void finish() {
    static_for<kPromotionDelay>([&](auto late) { promote_at(kSlots + late, kCarry ? carried_scale_ : scale_); });
  }

  DG_DEVICE float total(int fragment_m, int fragment_n, int element) const {
    return total_[fragment_m * Shape::kFragsN + fragment_n][element];
  }

 private:
  using Accumulator = typename Mfma::Accumulator;

  // An MFMA's result may be read passes + 3 instructions later (AMD's CDNA3 ISA guide, "Required independent
  // instructions"): at most 11. So promotion trails the end of a chain by four slots, of two or more instructions each.
  static constexpr int kResultSlots = 4;
  static constexpr int kPromotionDelay = kChains * (kChainMfmas - 1) + kResultSlots;

  // Promotes the elements whose turn is `slot`. Promotions go at the even rate at which chains produce elements.
  DG_DEVICE void promote_at(int slot, const float (&scale)[Shape::kFragsM]) {
#pragma unroll
    for (int index = first_promotion(slot); index < first_promotion(slot + 1); ++index) {
      const int fragment = index / kElements;
      const int element = index % kElements;
      const float partial = partial_[fragment][element];
      total_[fragment][element] = __builtin_fmaf(scale[fragment / Shape::kFragsN], partial, total_[fragment][element]);
    }
  }

  static constexpr int first_promotion(int slot) {
    const int turn = slot - kPromotionDelay;
    return turn < 0 ? 0 : min(turn, kSlots) * kElements / kChainMfmas;
  }

  float total_[kFragments][kElements];
  Accumulator partial_[kFragments];
  float scale_[Shape::kFragsM];
  float carried_scale_[Shape::kFragsM];
};

}  // namespace deep_gemm_rocm
