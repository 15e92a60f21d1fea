// What a GEMM kernel computes, as a type that everything else takes from; GemmKind in heuristics/ is the same.
#pragma once

#include "deep_gemm_rocm/conditional.h"
#include "deep_gemm_rocm/rounding.h"
#include "deep_gemm_rocm/types.h"

namespace deep_gemm_rocm {

// What shares a scale.
enum class Scaling {
  kNone,     // nothing is scaled
  kBlocks,   // 128 of K of a row of A; 128 x 128 of B (DeepGEMM's recipe 1, 128, 128)
  kVectors,  // 128 of K of a row of A or B (recipe 1, 1, 128)
  kRows,     // a row of A or B; applied in the epilogue
};

// Which dimension of an operand is contiguous: K, or its rows (M of A, N of B). Or that B is shuffled, see
// fragment_loader.h.
enum class Major { kK, kRows, kShuffled };

// Stands for a type where there is nothing of it.
struct None {};

template <class A_, class B_, class D_, Major kMajorA_, Major kMajorB_, Scaling kScaling_, bool kAccumulate_,
          bool kKTail_, bool kSkipsHeadMid_, bool kSumsSquares_, bool kSumsBatch_, class Bias_, class Activation_>
struct GemmKind {
  using A = A_;
  using B = B_;
  using D = D_;
  static constexpr bool kQuantised = Storage<D>::kIsFp8;  // whether d gets scales, one for 128 columns of a row
  static constexpr bool kHasBias = !__is_same(Bias_, None);
  using Bias = Conditional<kHasBias, Bias_, float>;
  using Activation = Activation_;  // see activation.h
  static constexpr Major kMajorA = kMajorA_;
  static constexpr Major kMajorB = kMajorB_;
  static constexpr Scaling kScaling = kScaling_;
  static constexpr bool kAccumulate = kAccumulate_;  // whether c is added
  static constexpr bool kKTail = kKTail_;            // whether K may be something else than a multiple of 128 bytes
  static constexpr bool kSkipsHeadMid = kSkipsHeadMid_;  // whether each head has a gap between its columns in d
  static constexpr bool kSumsSquares = kSumsSquares_;    // whether squares of A's rows are added up, too
  static constexpr bool kSumsBatch = kSumsBatch_;        // whether a batch's products are added up
  static constexpr bool kWidensA = sizeof(A) < sizeof(B);  // from bf16 to fp32
};

}  // namespace deep_gemm_rocm
