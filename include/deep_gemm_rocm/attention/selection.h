// Radix selection: finds the k largest numbers of a row, in the order of their positions.
//
// Numbers are compared as 32-bit keys of the same order (ordered_bits()).
//   1. A sample of the row is loaded first. Its histogram gives a threshold that k numbers and likely some more reach.
//   2. As the rest of the row arrives, all numbers from the threshold on are listed in LDS.
//   3. Histograms of the list find the k-th largest number.
// If the sample was misleading, so that fewer than k numbers are listed or more than the list has room for, the row is
// loaded again. A histogram of the whole row by the highest 12 bits then finds the bin of the k-th largest number, and
// up to two more, by the next bits, divide that bin if it is too large. All numbers from this bin on are listed.
#pragma once

#include "deep_gemm_rocm/attention/logits_row.h"
#include "deep_gemm_rocm/attention/selection_bin.h"

namespace deep_gemm_rocm {

constexpr int kMostThreads = 1024;
constexpr int kMostSelected = 2048;
// Two workgroups share a CU's LDS. The list has room for kMostSelected numbers and a block of the row. A multiple of 64
// numbers, so that one instruction stores both a value and its position.
constexpr int kMostListed = 63 * kWaveSize;

struct SelectionList {
  float values[kMostListed];
  int positions[kMostListed];
};

// kMostBlocks: the most blocks that a row has.
template <int kMostBlocks>
struct alignas(kChunkBytes) SelectionLds {
  union {
    unsigned bins[kBins];
    SelectionList list;
  };
  // For each block of the row, where its part of the list begins, and in the high half, its length. Later, how far that
  // part is moved.
  int blocks[kMostBlocks];
  int of_waves[kMostThreads / kWaveSize];
  int listed;
  unsigned largest;  // the largest ordered bits in the list, minus least_listed_
  int found[3];
};

DG_DEVICE void add_in_lds(unsigned* number, unsigned added = 1) {
  __hip_atomic_fetch_add(number, added, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}

// Adds 1 to numbers[own] for each lane. Atomics of a wave on the same address are serialized, so one lane adds for all
// lanes that share the first lane's number: most rows that come here have many equal logits.
DG_DEVICE void add_together(unsigned* numbers, unsigned own) {
  const bool is_first = own == static_cast<unsigned>(uniform(static_cast<int>(own)));
  const uint64_t first_ones = ballot(is_first);
  if (!is_first || lane_id_computed_here() == lowest_bit(first_ones)) {
    add_in_lds(numbers + own, is_first ? count_bits(first_ones) : 1);
  }
}

DG_DEVICE void max_in_lds(unsigned* number, unsigned other) {
  __hip_atomic_fetch_max(number, other, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}

// Adds to a number in LDS, from one lane, and returns the number before. The asm hides that the address is uniform.
// Otherwise the compiler first adds up all active lanes, of which there is only one.
DG_DEVICE int add_from_lane(int* number, int added) {
  int none = 0;
  asm volatile("" : "+v"(none));
  return __hip_atomic_fetch_add(number + none, added, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}

// Arguments and members are uniform, except for those whose comments say that they are the lane's.
template <class Row, int kWaves>
class Selection {
  using Block = typename Row::Block;
  using Lds = SelectionLds<Row::kMostBlocks>;
  static constexpr int kThreads = kWaves * kWaveSize;
  static constexpr int kBinsOfLane = kBins / kThreads;
  static constexpr int kListedOfLane = 64 / kWaves;
  static_assert(kBinsOfLane % 4 == 0 && kListedOfLane % 4 == 0);

 public:
  // Requires 0 < k < row.count().
  DG_DEVICE Selection(Row& row, int k, Lds& lds)
      : row_(row), lds_(lds), k_(k), bin_(all_of(row.count())), end_(row.count()) {}

  // Leaves the positions of the k selected numbers at the beginning of the list, in order.
  DG_DEVICE void run() {
    if (fits() || !list_by_sample()) list_by_row();
    const int listed = uniform(lds_.listed);
    take_in_order(listed);
    if (listed == k_) return;
    take_neighbours(listed);
    while (!bin_.is_exact()) divide_list();
    keep_selected();
  }

 private:
  DG_DEVICE SelectionBin all_of(int count) const { return {0, 32, 0, count, k_}; }

  // Whether all numbers from bin_ on fit into the list.
  DG_DEVICE bool fits() const { return bin_.above + bin_.inside <= kMostListed; }

  // Lists all numbers from the sample's threshold on. Returns whether they are at least k, and fit into the list.
  DG_DEVICE bool list_by_sample() {
    divide_sample();
    row_.end_sample();
    begin_list();
    least_listed_ = bin_.expected();
    const float least = number_of(least_listed_);
    row_.for_each_block([&](const Block& block) DG_INLINE {
      list_block(block, [&](float value, int) DG_INLINE { return value >= least; });
    });
    lds_barrier();
    const int listed = uniform(lds_.listed);
    if (listed >= k_ && listed <= kMostListed) return true;
    bin_ = all_of(row_.count());
    return false;
  }

  // Lists all numbers of the row from the bin of the k-th largest one on.
  DG_DEVICE void list_by_row() {
    if (!fits()) divide_row();
    while (!fits() && bin_.shift > 0) divide_row_further();
    if (!fits()) find_end();
    least_listed_ = static_cast<uint64_t>(bin_.prefix) << bin_.shift;
    begin_list();
    row_.for_each_block_in_turn([&](const Block& block) DG_INLINE {
      list_block(block, [&](float value, int position) DG_INLINE {
        const unsigned ordered = ordered_bits(value);
        return row_.has(position) && (bin_.is_above(ordered) || (bin_.has(ordered) && position < end_));
      });
    });
    lds_barrier();
  }

  // Finds the bin of the sample that has the threshold.
  DG_DEVICE void divide_sample() {
    clear_bins();
    row_.for_each_sampled([&](float value) DG_INLINE { count_unordered(value); });
    const int sampled = row_.sampled();
    const int expected = static_cast<int64_t>(k_) * sampled / row_.count();
    // In random rows, the sample hardly ever has more of the k largest numbers than this.
    const int wanted = expected + expected / 8 + 24;
    bin_ = {0, 32, 0, sampled, wanted};
    find_bin<true>();
    // A bin with many numbers is divided further, as expected() assumes that they are spread evenly in it.
    if (static_cast<int64_t>(bin_.inside) * row_.count() <= static_cast<int64_t>(kMostSelected) * sampled) return;
    clear_bins();
    row_.for_each_sampled([&](float value) DG_INLINE { count(ordered_bits(value)); });
    find_bin<false>();
  }

  // Finds the bin of the whole row by the highest bits. Counts are by raw bits; find_bin() puts the bins in order.
  DG_DEVICE void divide_row() {
    clear_bins();
    row_.for_each_block_in_turn([&](const Block& block) DG_INLINE {
      block.for_each([&](float value, int position) DG_INLINE {
        if (row_.has(position)) count_unordered<true>(value);
      });
    });
    find_bin<true>();
  }

  // Finds the part of the bin, by its next bits, where the k-th largest number is.
  DG_DEVICE void divide_row_further() {
    clear_bins();
    row_.for_each_block_in_turn([&](const Block& block) DG_INLINE {
      block.for_each([&](float value, int position) DG_INLINE {
        if (row_.has(position)) count<true>(ordered_bits(value));
      });
    });
    find_bin<false>();
  }

  DG_DEVICE void divide_list() {
    clear_bins();
#pragma unroll
    for (int i = 0; i < kListedOfLane; ++i) {
      if (i < listed_of_lane_) count(listed_[i]);
    }
    find_bin<false>();
  }

  DG_DEVICE void clear_bins() {
#pragma unroll
    for (int i = 0; i < kBins / 4; i += kThreads) *reinterpret_cast<Chunk*>(lds_.bins + (i + thread_id()) * 4) = 0;
    lds_barrier();
  }

  // NaNs aren't counted: there may be many, and atomics of a wave on the same address are serialized.
  template <bool kTogether = false>
  DG_DEVICE void count_unordered(float value) {
    if (__builtin_isunordered(value, value)) return;
    count_in_bin<kTogether>(__builtin_bit_cast(unsigned, value + 0.0f) >> (32 - kDigitBits));
  }

  template <bool kTogether = false>
  DG_DEVICE void count(unsigned ordered) {
    if (bin_.has(ordered)) count_in_bin<kTogether>(ordered << (32 - bin_.shift) >> (32 - kDigitBits));
  }

  template <bool kTogether>
  DG_DEVICE void count_in_bin(unsigned bin) {
    if constexpr (kTogether) {
      add_together(lds_.bins, bin);
    } else {
      add_in_lds(lds_.bins + bin);
    }
  }

  // The counts of neighbouring bins in the order of numbers, from `first` on. Bins of raw bits have negative numbers
  // after the others, and in reverse order.
  template <bool kUnordered>
  DG_DEVICE void load_bins(int first, int (&counts)[kBinsOfLane]) const {
    const bool is_negative = kUnordered && first < kBins / 2;
    const int source = is_negative ? kBins - kBinsOfLane - first : kUnordered ? first - kBins / 2 : first;
    int loaded[kBinsOfLane];
#pragma unroll
    for (int i = 0; i < kBinsOfLane; i += 4) {
      const Chunk four = *reinterpret_cast<const Chunk*>(lds_.bins + source + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) loaded[i + j] = four[j];
    }
#pragma unroll
    for (int i = 0; i < kBinsOfLane; ++i) counts[i] = is_negative ? loaded[kBinsOfLane - 1 - i] : loaded[i];
  }

  // Finds the bin of the k-th largest number, by a prefix sum over the counts from the highest bin down. A lane has
  // kBinsOfLane neighbouring bins.
  template <bool kUnordered>
  DG_DEVICE void find_bin() {
    lds_barrier();
    const int first = kBins - (thread_id() + 1) * kBinsOfLane;
    int counts[kBinsOfLane];
    load_bins<kUnordered>(first, counts);
    int of_lane = 0;
#pragma unroll
    for (int i = 0; i < kBinsOfLane; ++i) of_lane += counts[i];
    const int up_to = inclusive_sum(of_lane);
    const WaveSums sums = sum_over_waves(read_lane(up_to, kWaveSize - 1));
    int higher = sums.before + up_to - of_lane;
    // Numbers in no bin are NaNs, which are in the lowest.
    const int nans = first == 0 ? bin_.inside - sums.all : 0;
    counts[0] += nans;
    if (higher < bin_.wanted && higher + of_lane + nans >= bin_.wanted) {
#pragma unroll
      for (int i = kBinsOfLane - 1; i >= 0; --i) {
        if (higher < bin_.wanted && higher + counts[i] >= bin_.wanted) {
          lds_.found[0] = first + i;
          lds_.found[1] = higher;
          lds_.found[2] = counts[i];
        }
        higher += counts[i];
      }
    }
    lds_barrier();
    bin_.narrow(uniform(lds_.found[0]), uniform(lds_.found[1]), uniform(lds_.found[2]));
  }

  struct WaveSums {
    int before;
    int all;
  };

  // Prefix sum over the waves, each of which gives one number. There must be a barrier between two calls.
  DG_DEVICE WaveSums sum_over_waves(int of_wave) {
    if (lane_id() == 0) lds_.of_waves[wave_id()] = of_wave;
    lds_barrier();
    const int up_to = inclusive_sum(lane_id() < kWaves ? lds_.of_waves[lane_id() % kWaves] : 0);
    return {read_lane(up_to, wave_id()) - of_wave, read_lane(up_to, kWaveSize - 1)};
  }

  // For rows in which too many numbers are equal to the k-th largest: sets end_, before which there are as many of them
  // as wanted, or at most a block more. Blocks take the place of bins, in reverse order.
  DG_DEVICE void find_end() {
    clear_bins();
    row_.for_each_block_in_turn([&](const Block& block) DG_INLINE {
      int equal = 0;
      block.for_each([&](float value, int position) DG_INLINE {
        equal += row_.has(position) && bin_.has(ordered_bits(value));
      });
      const int of_wave = read_lane(inclusive_sum(equal), kWaveSize - 1);
      if (lane_id() == 0) lds_.bins[kBins - 1 - block.number] = of_wave;
    });
    const SelectionBin equal = bin_;
    bin_ = {0, kDigitBits, 0, equal.inside, equal.wanted};
    find_bin<false>();
    end_ = row_.begin_of_block(kBins - static_cast<int>(bin_.prefix));
    const int before_end = bin_.above + bin_.inside;
    bin_ = equal;
    bin_.inside = before_end;
  }

  DG_DEVICE void begin_list() {
    if (thread_id() == 0) lds_.listed = lds_.largest = 0;
    if (thread_id() < Row::kMostBlocks) lds_.blocks[thread_id()] = 0;
    lds_barrier();
  }

  // Lists a block's numbers that meet the condition, if there is room for all of them. Waves append their blocks in any
  // order.
  template <class Condition>
  DG_DEVICE void list_block(const Block& block, Condition&& condition) {
    constexpr int kVector = Block::kVector;
    constexpr int kVectors = Block::kVectors;
    static_assert(kVectors % 2 == 0);
    bool taken[kVectors][kVector];
    int counts[kVectors];  // of the lane
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      counts[i] = 0;
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        taken[i][j] = condition(block.value(i, j), block.position(i, j));
        counts[i] += taken[i][j];
      }
    }
    // Prefix sums over the lanes. They are at most 64 · 8, so two share a register.
    int of_two[kVectors / 2];
    int all[kVectors / 2];
    int of_block = 0;
#pragma unroll
    for (int i = 0; i < kVectors / 2; ++i) {
      of_two[i] = inclusive_sum(counts[2 * i] | counts[2 * i + 1] << 16);
      all[i] = read_lane(of_two[i], kWaveSize - 1);
      of_block += (all[i] & 0xffff) + (all[i] >> 16);
    }
    if (of_block == 0) return;
    int begin = 0;
    if (lane_id() == 0) {
      begin = add_from_lane(&lds_.listed, of_block);
      lds_.blocks[block.number] = begin | of_block << 16;
    }
    begin = uniform(begin);
    if (begin + of_block > kMostListed) return;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int up_to = of_two[i / 2] >> (i % 2 * 16) & 0xffff;
      int place = begin + up_to - counts[i];
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        if (taken[i][j]) {
          lds_.list.values[place] = block.value(i, j);
          lds_.list.positions[place] = block.position(i, j);
          ++place;
        }
      }
      begin += all[i / 2] >> (i % 2 * 16) & 0xffff;
    }
  }

  // Reorders the list: the blocks' parts are moved into the order of the row.
  DG_DEVICE void take_in_order(int listed) {
    float values[kListedOfLane];
    int positions[kListedOfLane];
#pragma unroll
    for (int i = 0; i < kListedOfLane; ++i) {
      const int at = min(i * kThreads + thread_id(), listed - 1);
      values[i] = lds_.list.values[at];
      positions[i] = lds_.list.positions[at];
    }
    find_moves();
#pragma unroll
    for (int i = 0; i < kListedOfLane; ++i) {
      const int at = i * kThreads + thread_id();
      const int place = at + lds_.blocks[row_.block_of(positions[i])];
      if (at >= listed) continue;
      lds_.list.values[place] = values[i];
      lds_.list.positions[place] = positions[i];
    }
    lds_barrier();
  }

  // Computes how far each block's part of the list is moved: from its place in the list to a prefix sum of lengths.
  DG_DEVICE void find_moves() {
    static_assert(Row::kMostBlocks <= kThreads);
    const int of_block = thread_id() < Row::kMostBlocks ? lds_.blocks[thread_id()] : 0;
    const int up_to = inclusive_sum(of_block >> 16);
    const WaveSums sums = sum_over_waves(read_lane(up_to, kWaveSize - 1));
    const int before = sums.before + up_to - (of_block >> 16);
    if (thread_id() < Row::kMostBlocks) lds_.blocks[thread_id()] = before - (of_block & 0xffff);
    lds_barrier();
  }

  // Loads the list into registers, neighbouring numbers in each lane, which frees its LDS for bins. The first bin is
  // the whole list: its shift covers all bits that may differ.
  DG_DEVICE void take_neighbours(int listed) {
    const int first = thread_id() * kListedOfLane;
    listed_of_lane_ = min(max(listed - first, 0), kListedOfLane);
    const int source = min(first, kMostListed - kListedOfLane);
    unsigned largest = 0;
#pragma unroll
    for (int i = 0; i < kListedOfLane; i += 4) {
      const auto some = *reinterpret_cast<const Vector<float, 4>*>(lds_.list.values + source + i);
      const auto places = *reinterpret_cast<const Vector<int, 4>*>(lds_.list.positions + source + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float value = some[j];
        listed_[i + j] = ordered_bits(value) - least_listed_;
        positions_[i + j] = places[j];
        if (i + j < listed_of_lane_) largest = max(largest, listed_[i + j]);
      }
    }
    largest = max_over_wave(largest);
    if (lane_id() == 0) max_in_lds(&lds_.largest, largest);
    lds_barrier();
    const unsigned range = uniform(lds_.largest);
    bin_ = {0, range == 0 ? 0 : highest_bit(range) + 1, 0, listed, k_};
  }

  DG_DEVICE void keep_selected() {
    int of_lane = 0;
#pragma unroll
    for (int i = 0; i < kListedOfLane; ++i) {
      if (i < listed_of_lane_) of_lane += bin_.is_above(listed_[i]) | bin_.has(listed_[i]) << 16;
    }
    const int up_to = inclusive_sum(of_lane);
    const int before = sum_over_waves(read_lane(up_to, kWaveSize - 1)).before + up_to - of_lane;
    int above = before & 0xffff;
    int inside = before >> 16;
#pragma unroll
    for (int i = 0; i < kListedOfLane; ++i) {
      const bool is_above = i < listed_of_lane_ && bin_.is_above(listed_[i]);
      const bool is_inside = i < listed_of_lane_ && bin_.has(listed_[i]);
      if (is_above || (is_inside && inside < bin_.wanted)) {
        const int place = above + min(inside, bin_.wanted);
        lds_.list.positions[place] = positions_[i];
      }
      above += is_above;
      inside += is_inside;
    }
    lds_barrier();
  }

  Row& row_;
  Lds& lds_;
  int k_;
  SelectionBin bin_;
  int end_;  // numbers of bin_ are listed only from positions before this one
  unsigned least_listed_;  // the least ordered bits that are listed
  int listed_of_lane_;  // how many of the listed numbers the lane has
  unsigned listed_[kListedOfLane];  // the lane's: ordered bits minus least_listed_
  int positions_[kListedOfLane];    // the lane's
};

}  // namespace deep_gemm_rocm
