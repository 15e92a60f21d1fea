// Loads fragments of four-bit values together with the scales of their groups, and widens them in registers.
#pragma once

#include "deep_gemm_rocm/loading/four_bits.h"
#include "deep_gemm_rocm/loading/fragment_loader.h"

namespace deep_gemm_rocm {

// Base is a FragmentLoader. With KOrder::kNeighbours a lane's values are of one group, with kInOrder they are of all
// groups of the K-block. Scale is a GroupScale.
//
// FP8 has room for scales that differ by up to 2^27. So a K-block is computed in rounds. A round takes the groups whose
// scales are at most that much smaller than a reference, which is a factor of the promotion. Other groups, if there are
// any, take further rounds with other references. The last reference is kept for the next K-block, as the scales of a
// weight are similar.
template <class Base, class Scale>
class GroupedFragmentLoader : public Base {
  using T = typename Scale::T;
  using Form = typename Base::Form;
  using Table = typename Form::Table;
  using Order = typename Base::Order;
  using Stored = StoredScale<T>;
  static constexpr int kFragments = Base::kFragments;
  static constexpr bool kHasRounds = kIsSame<Form, FourBits<E5M2>>;
  static constexpr int kLaneK = Base::kReads * Form::kBytes * 2;
  static constexpr int kBlockK = kLaneK * Base::Mfma::kLaneGroups;
  static constexpr int kGroups = Base::kIsInOrder ? kBlockK / Scale::kValues : 1;  // of a lane
  static constexpr int kMfmas = Fragment<typename Base::Mfma>::kMfmas;
  static constexpr bool kTakesScales = deep_gemm_rocm::kTakesScales<Form>;
  static_assert(Scale::kValues % kLaneK == 0, "a lane's values share a scale, or those of an MFMA");

 public:
  using Base::Base;

  // `rows` are those of each part of the operand.
  DG_DEVICE void begin_scales(const GroupScales& scales, int rows) {
    if constexpr (!kTakesScales) return;
    scales_ = scales;
    if constexpr (kHasRounds) scale_ = Form::scale_of_products(reference_);
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      const int row = Order::of_lds_row(Base::first_row_ + i * Base::Mfma::kRows + lane_id() % Base::Mfma::kRows);
      scale_offset_[i] = scales_.offset<Order, Stored, Scale>(row, lane_k(), rows);
    }
  }

  DG_DEVICE void load_scales(int stage, int i, int k_block) {
    if constexpr (!kTakesScales) return;
    const int since = k_block - Base::first_k_block_;
    const int left_bytes = Base::k_bytes_ - since * Base::kBlockBytes;
    const bool exists = !Base::kKTail || lane_k() < 2 * left_bytes;
    const unsigned k = (scales_.first_k_block + since) * kBlockK;
    const Buffer buffer = Buffer{scales_.first, kOutOfBounds}.only_if(left_bytes > 0).with_scalar_size();
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const unsigned k_offset = scales_.k_offset<Stored, Scale>(k + group * Scale::kValues);
      staged_scales_[stage][i][group] = buffer.template load<Stored>(exists ? scale_offset_[i] : kOutOfBounds, k_offset);
    }
  }

  // Takes over the loaded scales of a K-block's groups.
  DG_DEVICE void start_groups(int stage) {
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      if constexpr (kHasRounds) {
        left_[i] = exponent_of(StagedScale<T>{staged_scales_[stage][i][0]});
      } else if constexpr (kTakesScales) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          table_[i][group] = Table::template of<T>(staged_scales_[stage][i][group]);
        }
      }
    }
  }

  // With kHasRounds: chooses the groups of a round. Returns the factor for their products.
  DG_DEVICE float start_round() {
    unsigned units[kFragments];
    bool takes_all = true;
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      units[i] = (reference_ - left_[i]) * Form::kUnit;
      takes_all &= units[i] <= Form::kMostUnits;
      table_[i][0] = Table::of(units[i]);
    }
    has_more_ = false;
    if (ballot(!takes_all) != 0) choose(units);
    return scale_;
  }

  // Whether groups are left for another round, and if so, changes the reference to suit the largest of them.
  DG_DEVICE bool has_another_round() {
    if (!has_more_) return false;
    unsigned largest = 0;
#pragma unroll
    for (int i = 0; i < kFragments; ++i) largest = max(largest, left_[i]);
    reference_ = min(max(max_over_wave(largest) + kHeadroom, kLeastReference), kLargestExponent);
    scale_ = Form::scale_of_products(reference_);
    return true;
  }

  DG_DEVICE MfmaOperands operands(int stage, int fragment, int read) const {
    const auto& all = Base::staged_[stage][fragment];
    const auto& tables = table_[fragment];
    if constexpr (Base::kIsInOrder) {
      static_assert(sizeof(all[0]) == sizeof(unsigned));
      const auto operand = [&](int mfma) {
        return Form::operand(all[mfma][0], tables[mfma * kGroups / kMfmas]);
      };
      return {operand(2 * read), operand(2 * read + 1)};
    }
    const auto& loaded = all[read / Base::kChunksOfLoad];
    constexpr int kWords = Form::kBytes / sizeof(unsigned);
    unsigned words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = loaded[read % Base::kChunksOfLoad * kWords + i];
    return Form::chunk(words, tables[0]);
  }

 private:
  static constexpr unsigned kLeastReference = 28;  // more than 27 above 0, so that exponent 0 is never taken
  static constexpr unsigned kHeadroom = 3;         // for scales of later K-blocks

  // Leaves groups that are too far from the reference for later rounds.
  DG_DEVICE void choose(const unsigned (&units)[kFragments]) {
    bool has_more = false;
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      const bool is_nan = left_[i] > kLargestExponent;
      const bool is_chosen = units[i] <= Form::kMostUnits;
      table_[i][0] = is_nan ? Table::of_nan() : table_[i][0].only_if(is_chosen);
      left_[i] = is_nan || is_chosen ? 0 : left_[i];
      has_more |= left_[i] != 0;
    }
    has_more_ = ballot(has_more) != 0;
  }

  // The first k in a K-block of the lane's groups.
  static DG_DEVICE int lane_k() { return Base::kIsInOrder ? 0 : lane_id() / Base::Mfma::kRows * kLaneK; }

  GroupScales scales_;
  unsigned scale_offset_[kFragments];
  Stored staged_scales_[Base::kRegisterStages][kFragments][kGroups];
  Table table_[kFragments][kGroups];
  unsigned reference_ = FourBits<E5M2>::kUsualReference;  // an exponent
  float scale_ = 1;                       // of products
  unsigned left_[kFragments];             // exponents of groups that are still to be multiplied; 0 for the others
  bool has_more_ = false;
};

}  // namespace deep_gemm_rocm
