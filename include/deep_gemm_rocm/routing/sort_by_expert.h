// Sorts the tokens' choices of experts by expert. Choices of the same expert keep their order.
#pragma once

#include "deep_gemm_rocm/hardware/buffer.h"
#include "deep_gemm_rocm/hardware/global.h"
#include "deep_gemm_rocm/hardware/hip_declarations.h"
#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

struct SortArguments {
  const int* ids;         // [num_ids], top_k for each token
  const int* expert_map;  // [num_mapped], the local expert of each id, negative for none; or null
  int* ends;              // [num_experts], one past each expert's last row
  int* tokens;            // [num_ids], the token of each row
  int* rows;              // [num_ids], the row of each choice, -1 for those without a local expert
  int* counts;            // [number of chunks, kMostExperts]
  int num_ids;
  int top_k;
  int num_mapped;  // num_experts without a map
  int num_experts;
};

// The choices, as in SortArguments.
struct Choices {
  const int *ids, *expert_map;
  int num_ids, num_experts, num_mapped;
};

// Where the sorted choices go, as in SortArguments.
struct SortedChoices {
  int *ends, *tokens, *rows;
  int top_k;
};

constexpr int kFewBits = 6, kMostBits = 9;  // of the numbers of experts
constexpr int kMostExperts = 1 << kMostBits;
constexpr int kSortWaves = 8;
constexpr int kSortThreads = kSortWaves * kWaveSize;
constexpr int kSortSteps = 2;  // of 64 choices for each wave
constexpr int kIdsOfChunk = kSortSteps * kSortThreads;  // of a workgroup
static_assert(kSortThreads == kMostExperts, "a thread adds up what there is of an expert");

using SortCount = unsigned short;  // of choices of a chunk
static_assert(kIdsOfChunk <= 0xffff);

struct SortLds {
  alignas(kChunkBytes) SortCount counts[kSortSteps][kSortWaves][kMostExperts];
  int first_rows[kMostExperts];
  int totals[kSortWaves];
};
static_assert(3 * sizeof(SortLds) <= 64 * 1024, "workgroups that quantise share a CU, and have as much LDS");

// The lanes that have the same expert as this lane, which is below 1 << kBits; none if it is negative.
template <int kBits>
DG_DEVICE uint64_t lanes_of_same(int expert) {
  uint64_t same = ballot(expert >= 0);
#pragma unroll
  for (int bit = 0; bit < kBits; ++bit) {
    const int is_set = expert << (31 - bit) >> 31;  // all bits or none
    const uint64_t set = ballot(is_set);
    const auto low = static_cast<unsigned>(set), high = static_cast<unsigned>(set >> 32);
    same &= ~(static_cast<uint64_t>(high ^ is_set) << 32 | (low ^ is_set));
  }
  return expert >= 0 ? same : 0;
}

// Counting sort of a chunk of choices. A thread handles a choice in each step; when counts are added up, an expert.
template <bool kHasMap>
class ExpertSort {
 public:
  DG_DEVICE ExpertSort(const Choices& args, SortLds& lds) : args_(args), lds_(lds), chunk_(workgroup_id()) {
    const Buffer ids{args.ids, bytes_of(args.num_ids)};
#pragma unroll
    for (int step = 0; step < kSortSteps; ++step) experts_[step] = ids.load<int>(bytes_of(choice(step)));
    forget_counts();
  }

  // Counts the chunk's choices of each expert.
  DG_DEVICE void count(int* counts) {
    find_experts();
    count_in_waves();
    *(Global<int>*)(counts + chunk_ * kMostExperts + thread_id()) = add_up_waves();
  }

  // Stores the chunk's rows. The counts of all chunks are known if there is more than one.
  DG_DEVICE void place(const SortedChoices& sorted, const int* counts, int num_chunks) {
    unsigned tokens[kSortSteps];
#pragma unroll
    for (int step = 0; step < kSortSteps; ++step) {
      tokens[step] = static_cast<unsigned>(choice(step)) / sorted.top_k;
      asm volatile("" : "+v"(tokens[step]));  // the slow divisions come here, while ids are in flight
    }
    find_experts();
    count_in_waves();
    find_first_rows(sorted.ends, counts, num_chunks);
#pragma unroll
    for (int step = 0; step < kSortSteps; ++step) {
      if (has_choices(step)) store(sorted, step, tokens[step]);
    }
  }

 private:
  static DG_DEVICE unsigned bytes_of(int numbers) { return numbers * static_cast<unsigned>(sizeof(int)); }

  DG_DEVICE int first_choice(int step) const { return chunk_ * kIdsOfChunk + step * kSortThreads; }
  DG_DEVICE int choice(int step) const { return first_choice(step) + thread_id(); }

  // Whether the wave has some in a step.
  DG_DEVICE bool has_choices(int step) const {
    return first_choice(step) + wave_id() * kWaveSize < args_.num_ids;
  }

  // Each wave has counts of its own, so that waves needn't wait for each other.
  DG_DEVICE void forget_counts() {
    constexpr int kCounts = kChunkBytes / sizeof(SortCount);
    using Counts = Vector<SortCount, kCounts>;
#pragma unroll
    for (int step = 0; step < kSortSteps; ++step) {
      auto* const counts = reinterpret_cast<Counts*>(lds_.counts[step][wave_id()]);
#pragma unroll
      for (int i = 0; i < kMostExperts / (kCounts * kWaveSize); ++i) counts[i * kWaveSize + lane_id()] = Counts{};
    }
  }

  // Maps ids to local experts, or to -1.
  DG_DEVICE void find_experts() {
    if constexpr (kHasMap) map_ids();
#pragma unroll
    for (int step = 0; step < kSortSteps; ++step) {
      const bool is_here = choice(step) < args_.num_ids && experts_[step] < args_.num_experts;
      experts_[step] = is_here ? experts_[step] : -1;
    }
  }

  DG_DEVICE void map_ids() {
    const Buffer map{args_.expert_map, bytes_of(args_.num_mapped)};
    bool is_mapped[kSortSteps];
#pragma unroll
    for (int step = 0; step < kSortSteps; ++step) {
      const int id = experts_[step];
      is_mapped[step] = id >= 0 && id < args_.num_mapped;
      experts_[step] = map.load<int>(is_mapped[step] ? bytes_of(id) : kOutOfBounds);
    }
#pragma unroll
    for (int step = 0; step < kSortSteps; ++step) experts_[step] = is_mapped[step] ? experts_[step] : -1;
  }

  // Finds each choice's rank among its wave's choices of the same expert in this step, and counts these.
  DG_DEVICE void count_in_waves() {
#pragma unroll
    for (int step = 0; step < kSortSteps; ++step) {
      if (!has_choices(step)) break;
      const int expert = experts_[step];
      const bool are_few = args_.num_experts <= 1 << kFewBits;
      const uint64_t same = are_few ? lanes_of_same<kFewBits>(expert) : lanes_of_same<kMostBits>(expert);
      ranks_[step] = add_lanes_before(same, 0);
      const bool is_last = expert >= 0 && lane_id() == highest_bit(same);
      if (is_last) lds_.counts[step][wave_id()][expert] = ranks_[step] + 1;
    }
    lds_barrier();
  }

  // Prefix sum over waves and steps: replaces the counts of the thread's expert in LDS by how often it occurs before
  // each step of each wave. Returns how often it occurs in the chunk.
  DG_DEVICE int add_up_waves() {
    const int expert = thread_id();
    constexpr int kCounts = kSortSteps * kSortWaves;
    auto& all = reinterpret_cast<SortCount(&)[kCounts][kMostExperts]>(lds_.counts);
    int counts[kCounts];
#pragma unroll
    for (int i = 0; i < kCounts; ++i) counts[i] = all[i][expert];
    int sum = 0;
#pragma unroll
    for (int i = 0; i < kCounts; ++i) {
      all[i][expert] = sum;
      sum += counts[i];
    }
    return sum;
  }

  // Stores where each expert's rows end. LDS has where those of the chunk begin.
  DG_DEVICE void find_first_rows(int* ends, const int* counts, int num_chunks) {
    const int expert = thread_id();
    int before = 0, all = 0;
    if (wave_id() * kWaveSize < args_.num_experts) all = add_up_waves();
    if (num_chunks > 1) {
      all = 0;  // of all chunks; add_up_waves was called for what it leaves in LDS
#pragma unroll 8  // loads in flight at once
      for (int chunk = 0; chunk < num_chunks; ++chunk) {
        const int count = *(const Global<int>*)(counts + chunk * kMostExperts + expert);
        before += chunk < chunk_ ? count : 0;
        all += count;
      }
    }
    int end = inclusive_sum(all);
    if (args_.num_experts > kWaveSize) end += sum_of_waves_before(end);
    if (chunk_ == 0 && expert < args_.num_experts) *(Global<int>*)(ends + expert) = end;
    lds_.first_rows[expert] = end - all + before;
    lds_barrier();
  }

  DG_DEVICE int sum_of_waves_before(int sum_up_to_lane) {
    if (lane_id() == kWaveSize - 1) lds_.totals[wave_id()] = sum_up_to_lane;
    lds_barrier();
    int sum = 0;
#pragma unroll
    for (int wave = 0; wave < kSortWaves; ++wave) sum += wave < wave_id() ? lds_.totals[wave] : 0;
    return sum;
  }

  DG_DEVICE void store(const SortedChoices& sorted, int step, int token) const {
    if (choice(step) >= args_.num_ids) return;
    const int expert = experts_[step];
    int row = -1;
    if (expert >= 0) row = lds_.first_rows[expert] + lds_.counts[step][wave_id()][expert] + ranks_[step];
    *(Global<int>*)(sorted.rows + choice(step)) = row;
    if (row >= 0) *(Global<int>*)(sorted.tokens + row) = token;
  }

  const Choices args_;
  SortLds& lds_;
  int chunk_;
  int experts_[kSortSteps], ranks_[kSortSteps];
};

}  // namespace deep_gemm_rocm
