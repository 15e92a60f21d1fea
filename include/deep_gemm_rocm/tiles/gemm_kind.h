// What a GEMM kernel computes, as a type. GemmKind in problems/gemm_kind.py is the same.
#pragma once

#include "deep_gemm_rocm/hardware/conditional.h"
#include "deep_gemm_rocm/arithmetic/rounding.h"
#include "deep_gemm_rocm/loading/lds_layout.h"
#include "deep_gemm_rocm/hardware/types.h"

namespace deep_gemm_rocm {

// Elements that share a scale.
enum class Scaling {
  kNone,     // nothing is scaled
  kBlocks,   // 128 of K of a row of A; 128 x 128 of B (DeepGEMM's recipe 1, 128, 128)
  kVectors,  // 128 of K of a row of A or B (recipe 1, 1, 128)
  kRows,     // a row of A or B; applied in the epilogue
  kGroups,   // 32 to 128 of K of a row of B, of four-bit values; 128 of K of a row of A, unless A is bf16
};

// The contiguous dimension of an operand: K, or its rows (M of A, N of B).
enum class Major { kK, kRows };

// The type of a bias that doesn't exist.
struct None {};

template <class T>
constexpr bool kIsInt4 = kIsSame<T, Int4> || kIsSame<T, ShuffledInt4>;
template <class T>
constexpr bool kHasFourBits = kIsSame<T, E2M1> || kIsSame<T, ShuffledE2M1> || kIsInt4<T>;

// The type to which B is widened for the MFMAs, if it has four bits. With an A of FP8, FP4 becomes E5M2, whose wide
// exponent has room for scales of groups.
template <class A, class B>
using MultipliedType =
    Conditional<kHasFourBits<B>, Conditional<!Storage<A>::kIsFp8, A, Conditional<kIsInt4<B>, E4M3, E5M2>>, B>;

// Whether integers are multiplied as they are, and sums over their groups are promoted with the scales. Of bf16, this
// takes groups of a K-block at least, for an MFMA takes values of several that are shorter.
template <class B, class MultipliedB, class Scale>
constexpr bool kKeepsIntegers =
    kIsInt4<B> && (Storage<MultipliedB>::kIsFp8 || Scale::kValues * sizeof(MultipliedB) >= kBlockKBytes);

// ScaleOfB_ is a GroupScale if B has four bits.
template <class A_, class B_, class D_, Major kMajorA_, Major kMajorB_, Scaling kScaling_, bool kAccumulate_,
          bool kKTail_, bool kSkipsHeadMid_, bool kSumsSquares_, bool kSumsBatch_, class Bias_, class Activation_,
          bool kGathersA_ = false, bool kSignals_ = false, class ScaleOfB_ = GroupScale<float>>
struct GemmKind {
  using A = A_;
  using B = B_;
  using MultipliedB = MultipliedType<A, B>;
  using D = D_;
  static constexpr bool kQuantised = Storage<D>::kIsFp8;  // whether d gets a scale for each row and 128 columns
  static constexpr bool kHasBias = !__is_same(Bias_, None);
  using Bias = Conditional<kHasBias, Bias_, float>;
  using Activation = Activation_;  // see activation.h
  static constexpr Major kMajorA = kMajorA_;
  static constexpr Major kMajorB = kMajorB_;
  static constexpr Scaling kScaling = kScaling_;
  static constexpr bool kAccumulate = kAccumulate_;  // whether c is added
  static constexpr bool kKTail = kKTail_;            // whether K needn't be a multiple of 128 bytes
  static constexpr bool kSkipsHeadMid = kSkipsHeadMid_;  // whether each head has a gap between its columns in d
  static constexpr bool kSumsSquares = kSumsSquares_;    // whether sums of squares of A's rows are output, too
  static constexpr bool kSumsBatch = kSumsBatch_;        // whether the products of a batch are added up
  static constexpr bool kGathersA = kGathersA_;          // whether A's rows lie where row_indices says
  static constexpr bool kSignals = kSignals_;            // whether finished tiles are counted, see tile_signal.h
  static constexpr bool kWidensA = sizeof(A) < sizeof(MultipliedB);  // from bf16 to fp32
  static constexpr bool kWidensB = kHasFourBits<B>;                  // from four bits
  // Whether four-bit values are widened with their scale relative to a reference, by which products are then
  // multiplied. Groups whose scale is too far from the reference take further rounds, if there are rounds.
  static constexpr bool kHasReference = kWidensB && kIsSame<MultipliedB, E5M2>;
  static constexpr bool kHasRounds = kHasReference && !kIsSame<B, ShuffledE2M1>;
  using ScaleOfB = ScaleOfB_;
  static constexpr bool kKeepsIntegers = deep_gemm_rocm::kKeepsIntegers<B, MultipliedB, ScaleOfB>;
  // Where a K-block has several groups whose sums of integers are promoted separately, an MFMA must take values of only
  // one group.
  static constexpr bool kHasShortGroups =
      kKeepsIntegers && ScaleOfB::kValues * static_cast<int>(sizeof(MultipliedB)) < kBlockKBytes;
  static constexpr KOrder kKOrderOfA =
      kHasShortGroups ? KOrder::kInOrder : kWidensB ? KOrder::kNeighbours : KOrder::kSpread;
  // Lanes take neighbours of a shuffled B, for shuffle_weight has put its values in the order of A's MFMAs.
  static constexpr KOrder kKOrderOfB = kIsSame<B, ShuffledInt4> ? KOrder::kNeighbours : kKOrderOfA;
  // Whether each column of a K-block has scales that its sums are promoted with.
  static constexpr bool kPromotesColumns = kScaling == Scaling::kVectors || kKeepsIntegers;
  // Whether sums over a K-block are promoted.
  static constexpr bool kPromotes = kScaling == Scaling::kBlocks || kPromotesColumns ||
                                    (kScaling == Scaling::kGroups && Storage<A>::kIsFp8);
};

}  // namespace deep_gemm_rocm
