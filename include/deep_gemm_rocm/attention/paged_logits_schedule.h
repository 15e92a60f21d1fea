// Deals the keys of sequences of different lengths to the workgroups of paged_mqa_logits, in segments of 256 keys.
#pragma once

#include "deep_gemm_rocm/hardware/buffer.h"
#include "deep_gemm_rocm/hardware/global.h"
#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

// PagedLogitsScheduleArguments in launch/mqa_logits.py is the same structure.
struct PagedLogitsScheduleArguments {
  const int* lengths;  // [sequences, lengths_of_sequence], of which the largest counts; strides are in elements
  int* schedule;       // [units + 1, 2]: the sequence and its segment where the work of each unit begins
  int64_t sequence_stride, length_stride;
  int sequences, lengths_of_sequence;
  unsigned units;
};

constexpr int kSegmentKeys = 256;
constexpr int kScheduleWaves = 8;
constexpr int kScheduleThreads = kScheduleWaves * kWaveSize;  // sequences in a step, one for each thread

struct ScheduleLds {
  int segments[kScheduleWaves];     // of the sequences of each wave
  uint64_t ends[kScheduleThreads];  // on the line of all segments
};

// Lays the segments of all sequences end to end on a line, and cuts the line into pieces of equal length, one for each
// unit, which is a workgroup of paged_mqa_logits.
class PagedLogitsSchedule {
 public:
  DG_DEVICE PagedLogitsSchedule(const PagedLogitsScheduleArguments& args, ScheduleLds& lds) : args_(args), lds_(lds) {}

  DG_DEVICE void run() {
    uint64_t all_segments = 0;
    for (int first = 0; first < args_.sequences; first += kScheduleThreads) all_segments = find_ends(first, all_segments);

    uint64_t begin = 0;
    for (int first = 0; first < args_.sequences; first += kScheduleThreads) {
      const bool are_known = args_.sequences <= kScheduleThreads;
      const uint64_t end = are_known ? all_segments : find_ends(first, begin);
      for (unsigned unit = thread_id(); unit < args_.units; unit += kScheduleThreads) {
        const uint64_t position = position_of(unit, all_segments);
        if (position >= begin && position < end) store_position(unit, first, begin, position);
      }
      begin = end;
    }
    // Units without work begin past the last sequence. So does entry number `units`, the end of the last unit.
    for (unsigned unit = thread_id(); unit <= args_.units; unit += kScheduleThreads) {
      if (position_of(unit, all_segments) == all_segments) store(unit, args_.sequences, 0);
    }
  }

 private:
  DG_DEVICE int segments_of(int sequence) const {
    if (sequence >= args_.sequences) return 0;
    int longest = 0;  // also if all lengths are negative
    for (int i = 0; i < args_.lengths_of_sequence; ++i) {
      const int64_t offset = sequence * args_.sequence_stride + i * args_.length_stride;
      longest = max(longest, *((const Global<int>*)args_.lengths + offset));
    }
    return (static_cast<unsigned>(longest) + kSegmentKeys - 1) / kSegmentKeys;
  }

  // Computes where the sequences from `first` on end on the line, one in each thread, if the first one begins at
  // `begin`. Puts the ends into LDS, and returns the last one.
  DG_DEVICE uint64_t find_ends(int first, uint64_t begin) {
    const int segments_up_to = inclusive_sum(segments_of(first + thread_id()));
    lds_barrier();  // all have read what was in LDS before
    if (lane_id() == kWaveSize - 1) lds_.segments[wave_id()] = segments_up_to;
    lds_barrier();
    uint64_t begin_of_wave = begin, end = begin;
#pragma unroll
    for (int wave = 0; wave < kScheduleWaves; ++wave) {
      const int segments = lds_.segments[wave];
      begin_of_wave += wave < static_cast<int>(wave_id()) ? segments : 0;
      end += segments;
    }
    lds_.ends[thread_id()] = begin_of_wave + segments_up_to;
    lds_barrier();
    return end;
  }

  // all_segments * unit / units, without an overflow.
  DG_DEVICE uint64_t position_of(unsigned unit, uint64_t all_segments) const {
    const uint64_t of_each = all_segments / args_.units;
    const auto left_over = static_cast<unsigned>(all_segments % args_.units);
    return of_each * unit + left_over * unit / args_.units;
  }

  // Finds a position among the sequences whose ends are in LDS, and stores it as a sequence and a segment. Sequence
  // `first` begins at `begin`.
  DG_DEVICE void store_position(unsigned unit, int first, uint64_t begin, uint64_t position) const {
    int before = 0;  // sequences that end at or before the position
#pragma unroll
    for (int step = kScheduleThreads / 2; step > 0; step /= 2) {
      if (lds_.ends[before + step - 1] <= position) before += step;
    }
    const uint64_t begin_of_sequence = before == 0 ? begin : lds_.ends[before - 1];
    store(unit, first + before, static_cast<int>(position - begin_of_sequence));
  }

  DG_DEVICE void store(unsigned unit, int sequence, int segment) const {
    *((Global<Vector<int, 2>>*)args_.schedule + unit) = {sequence, segment};
  }

  const PagedLogitsScheduleArguments args_;
  ScheduleLds& lds_;
};

}  // namespace deep_gemm_rocm
