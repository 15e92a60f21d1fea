// Selects the k largest of a row, in the order of their positions.
//
// Numbers are compared by 32 bits in the same order. A sample of the row, which is loaded first, tells from which number
// on there are likely k and some more. These are listed in LDS as the rest of the row arrives, and histograms of the list
// find the k-th largest number. If the sample was wrong, so that fewer than k are listed or more than there is room for,
// the row is loaded again. A histogram of the whole row tells in which bin of the highest 12 bits the k-th largest number
// is, or two of all bits if that bin has too many. Everything from this bin on is listed then.
#pragma once

#include "deep_gemm_rocm/attention/logits_row.h"
#include "deep_gemm_rocm/attention/selection_bin.h"

namespace deep_gemm_rocm {

constexpr int kMostThreads = 1024;
constexpr int kMostSelected = 2048;
// Two workgroups share a CU's LDS. There is room for the most that are selected and a block of the row. A multiple of
// 64 numbers, so that one instruction stores a value and its position.
constexpr int kMostListed = 63 * kWaveSize;

struct SelectionList {
  float values[kMostListed];
  int positions[kMostListed];
};

// kMostBlocks: of the row.
template <int kMostBlocks>
struct alignas(kChunkBytes) SelectionLds {
  union {
    unsigned bins[kBins];
    SelectionList list;
  };
  // For each block, where its part of the list begins, and how much it is (in the high half). Later, by how much that part
  // is moved.
  int blocks[kMostBlocks];
  int of_waves[kMostThreads / kWaveSize];
  int listed;
  unsigned largest;  // ordered bits in the list, less least_listed_
  int found[3];
};

DG_DEVICE void add_in_lds(unsigned* number, unsigned added = 1) {
  __hip_atomic_fetch_add(number, added, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}

// Adds 1 for each lane to its own number. Lanes that add to the same number wait for each other, so one lane adds for all
// that have the first lane's number: most rows that come here have many equal logits.
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

// Adds to a number in LDS, in one lane, and returns what it was. Compilers that see that the address is uniform add up
// all lanes before, though there is only one.
DG_DEVICE int add_from_lane(int* number, int added) {
  int none = 0;
  asm volatile("" : "+v"(none));
  return __hip_atomic_fetch_add(number + none, added, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}

// Arguments and members are uniform unless they are of a lane.
template <class Row, int kWaves>
class Selection {
  using Block = typename Row::Block;
  using Lds = SelectionLds<Row::kMostBlocks>;
  static constexpr int kThreads = kWaves * kWaveSize;
  static constexpr int kBinsOfLane = kBins / kThreads;
  static constexpr int kListedOfLane = 64 / kWaves;
  static_assert(kBinsOfLane % 4 == 0 && kListedOfLane % 4 == 0);

 public:
  // Fewer than all numbers are to be selected: 0 < k < row.count().
  DG_DEVICE Selection(Row& row, int k, Lds& lds)
      : row_(row), lds_(lds), k_(k), bin_(all_of(row.count())), end_(row.count()) {}

  // Leaves the positions of the k selected numbers in the list, in order.
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

  // Whether everything from the bin on fits into the list.
  DG_DEVICE bool fits() const { return bin_.above + bin_.inside <= kMostListed; }

  // Lists what are likely k numbers and some more. Returns whether they are.
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

  // Lists all numbers of the row from a bin on.
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

  // Finds a bin of the highest bits of the sample.
  DG_DEVICE void divide_sample() {
    clear_bins();
    row_.for_each_sampled([&](float value) DG_INLINE { count_unordered(value); });
    const int sampled = row_.sampled();
    const int expected = static_cast<int64_t>(k_) * sampled / row_.count();
    // The sample of a random row hardly ever has more of the k largest than this.
    const int wanted = expected + expected / 8 + 24;
    bin_ = {0, 32, 0, sampled, wanted};
    find_bin<true>();
    // Where many are in one bin, they needn't be spread evenly in it.
    if (static_cast<int64_t>(bin_.inside) * row_.count() <= static_cast<int64_t>(kMostSelected) * sampled) return;
    clear_bins();
    row_.for_each_sampled([&](float value) DG_INLINE { count(ordered_bits(value)); });
    find_bin<false>();
  }

  // Finds the bin by the highest bits. They are brought into order afterwards, in the bins.
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

  // NaNs aren't counted: they may be many, and lanes that add to the same number wait for each other.
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

  // Counts of neighbouring bins, from `first` on. Unordered, negative numbers follow the others, and their order is the
  // opposite one.
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

  // Goes through the bins from the highest on. A lane has some neighbouring ones.
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

  // Adds up a number of each wave. There must be a barrier between two calls.
  DG_DEVICE WaveSums sum_over_waves(int of_wave) {
    if (lane_id() == 0) lds_.of_waves[wave_id()] = of_wave;
    lds_barrier();
    const int up_to = inclusive_sum(lane_id() < kWaves ? lds_.of_waves[lane_id() % kWaves] : 0);
    return {read_lane(up_to, wave_id()) - of_wave, read_lane(up_to, kWaveSize - 1)};
  }

  // Too many numbers are equal to the k-th largest. Finds a position before which there are as many of them as are
  // wanted, and less than a block more.
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

  // Lists a block's numbers if there is room for all of them. Parts of different blocks come in any order.
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
    // Sums up to the lane. They are at most 64 · 8, so two share a register.
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

  // Brings the blocks' parts of the list into order.
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

  // Finds by how much each block's part of the list is moved.
  DG_DEVICE void find_moves() {
    static_assert(Row::kMostBlocks <= kThreads);
    const int of_block = thread_id() < Row::kMostBlocks ? lds_.blocks[thread_id()] : 0;
    const int up_to = inclusive_sum(of_block >> 16);
    const WaveSums sums = sum_over_waves(read_lane(up_to, kWaveSize - 1));
    const int before = sums.before + up_to - (of_block >> 16);
    if (thread_id() < Row::kMostBlocks) lds_.blocks[thread_id()] = before - (of_block & 0xffff);
    lds_barrier();
  }

  // Lanes take neighbouring numbers, which makes room for bins. The first bin has the whole list: all bits that differ.
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
  int end_;  // the position behind the last number of the bin that is listed
  unsigned least_listed_;  // the least ordered bits that are listed
  int listed_of_lane_;
  unsigned listed_[kListedOfLane];  // the lane's ordered bits, less least_listed_
  int positions_[kListedOfLane];
};

}  // namespace deep_gemm_rocm
