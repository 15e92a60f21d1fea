// Sorts the tokens' choices of experts by expert. Choices of the same expert keep their order.
#pragma once

#include "deep_gemm_rocm/hardware/buffer.h"
#include "deep_gemm_rocm/hardware/global.h"
#include "deep_gemm_rocm/hardware/hip_declarations.h"
#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

struct SortArguments {
  const int* ids;         // [num_ids], top_k for each token
  const int* expert_map;  // [num_mapped], the expert here for each id, negative for none; or null
  int* ends;              // [num_experts], one past each expert's last row
  int* tokens;            // [num_ids], the token of each row
  int* rows;              // [num_ids], the row of each choice, -1 for those of no expert here
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

constexpr int kMostExperts = 512;
constexpr int kSortWaves = 8;
constexpr int kSortThreads = kSortWaves * kWaveSize;
constexpr int kSortSteps = 2;
constexpr int kIdsOfChunk = kSortSteps * kSortThreads;  // of a workgroup
static_assert(kSortThreads == kMostExperts, "a thread adds up what there is of an expert");

struct SortLds {
  int counts[kSortWaves][kMostExperts];
  int totals[kSortWaves];
};

// The lanes whose experts are this lane's; none for a negative one.
DG_DEVICE uint64_t lanes_of_same(int expert) {
  uint64_t same = ballot(expert >= 0);
#pragma unroll
  for (int bit = 1; bit < kMostExperts; bit *= 2) {
    const bool is_set = expert & bit;
    const uint64_t set = ballot(is_set);
    same &= is_set ? set : ~set;
  }
  return expert >= 0 ? same : 0;
}

template <bool kHasMap>
class ExpertSort {
 public:
  DG_DEVICE ExpertSort(const Choices& args, SortLds& lds)
      : args_(args),
        lds_(lds),
        chunk_(workgroup_id()),
        steps_(ceil_div(min(args.num_ids - chunk_ * kIdsOfChunk, kIdsOfChunk), kSortThreads)),
        first_(chunk_ * kIdsOfChunk + wave_id() * steps_ * kWaveSize) {
    const Buffer ids{args.ids, bytes_of(args.num_ids)};
#pragma unroll
    for (int step = 0; step < kSortSteps; ++step) experts_[step] = ids.load<int>(bytes_of(index(step)));
    if constexpr (kHasMap) map_experts();
#pragma unroll
    for (int step = 0; step < kSortSteps; ++step) {
      const bool exists = step < steps_ && index(step) < args.num_ids;
      experts_[step] = exists && experts_[step] < args.num_experts ? experts_[step] : -1;
    }
  }

  // Counts the chunk's choices of each expert.
  DG_DEVICE void count(int* counts) {
    const int expert = thread_id();
    *(Global<int>*)(counts + chunk_ * kMostExperts + expert) = count_chunk();
  }

  // Stores the chunk's rows. The counts of all chunks are known if there is more than one.
  DG_DEVICE void place(const SortedChoices& sorted, const int* counts, int num_chunks) {
    const int expert = thread_id();
    const int here = count_chunk();
    int before = 0, all = here;
    if (num_chunks > 1) {
      all = 0;
#pragma unroll 8  // loads in flight at once
      for (int chunk = 0; chunk < num_chunks; ++chunk) {
        const int count = *(const Global<int>*)(counts + chunk * kMostExperts + expert);
        before += chunk < chunk_ ? count : 0;
        all += count;
      }
    }
    const int end = sum_up_to(all);
    if (chunk_ == 0 && expert < args_.num_experts) *(Global<int>*)(sorted.ends + expert) = end;
#pragma unroll
    for (int wave = 0; wave < kSortWaves; ++wave) lds_.counts[wave][expert] += end - all + before;
    lds_barrier();
#pragma unroll
    for (int step = 0; step < kSortSteps; ++step) {
      if (step < steps_) store(sorted, step);
    }
  }

 private:
  DG_DEVICE int index(int step) const { return first_ + step * kWaveSize + lane_id(); }

  static DG_DEVICE unsigned bytes_of(int numbers) { return numbers * static_cast<unsigned>(sizeof(int)); }

  DG_DEVICE void map_experts() {
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

  // Ranks each choice among the wave's of its expert. Returns how often the chunk has the thread's expert, after which
  // LDS has how often it comes in the waves before each.
  DG_DEVICE int count_chunk() {
    const int expert = thread_id();
#pragma unroll
    for (int wave = 0; wave < kSortWaves; ++wave) lds_.counts[wave][expert] = 0;
    lds_barrier();
    int* const counts = lds_.counts[wave_id()];
#pragma unroll
    for (int step = 0; step < kSortSteps; ++step) {
      if (step >= steps_) break;
      const int chosen = experts_[step];
      const uint64_t same = lanes_of_same(chosen);
      ranks_[step] = add_lanes_before(same, chosen >= 0 ? counts[chosen] : 0);
      if (chosen >= 0 && lane_id() == highest_bit(same)) counts[chosen] = ranks_[step] + 1;
      __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");  // other lanes read it in the next step
    }
    lds_barrier();
    int sum = 0;
#pragma unroll
    for (int wave = 0; wave < kSortWaves; ++wave) {
      const int count = lds_.counts[wave][expert];
      lds_.counts[wave][expert] = sum;
      sum += count;
    }
    return sum;
  }

  // The sum over this thread and those before it.
  DG_DEVICE int sum_up_to(int value) {
    int sum = inclusive_sum(value);
    if (lane_id() == kWaveSize - 1) lds_.totals[wave_id()] = sum;
    lds_barrier();
#pragma unroll
    for (int wave = 0; wave < kSortWaves; ++wave) sum += wave < wave_id() ? lds_.totals[wave] : 0;
    return sum;
  }

  DG_DEVICE void store(const SortedChoices& sorted, int step) const {
    const int choice = index(step);
    if (choice >= args_.num_ids) return;
    const int expert = experts_[step];
    const int row = expert >= 0 ? lds_.counts[wave_id()][expert] + ranks_[step] : -1;
    *(Global<int>*)(sorted.rows + choice) = row;
    if (row >= 0) *(Global<int>*)(sorted.tokens + row) = static_cast<unsigned>(choice) / sorted.top_k;
  }

  const Choices args_;
  SortLds& lds_;
  int chunk_;
  int steps_;  // in which each wave sees all of its choices
  int first_;
  int experts_[kSortSteps], ranks_[kSortSteps];
};

}  // namespace deep_gemm_rocm
