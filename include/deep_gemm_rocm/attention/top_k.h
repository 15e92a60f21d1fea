// The k largest logits of each row. A workgroup has a row; or a slice of it, and another pass merges the slices.
#pragma once

#include "deep_gemm_rocm/arithmetic/rounding.h"
#include "deep_gemm_rocm/attention/selection.h"
#include "deep_gemm_rocm/attention/top_k_arguments.h"
#include "deep_gemm_rocm/hardware/global.h"

namespace deep_gemm_rocm {

// Waves of a workgroup: two workgroups of 8 share a CU, one of 16 has it alone.
constexpr int kWavesOnHalfCu = 8;
constexpr int kWavesOnCu = 16;
static_assert(kWavesOnCu * kWaveSize <= kMostThreads);

// Where the selected numbers go.
enum class TopKPass {
  kRows,    // from rows to the result
  kSlices,  // from slices of rows to the slices' parts of memory
  kMerge,   // from there to the result
};

// The columns of a row that count.
struct Columns {
  int begin;
  int count;
};

DG_DEVICE Columns counting_columns(const TopKArguments& args, int row) {
  const int begin = args.starts == nullptr ? 0 : min(max(args.starts[row], 0), args.columns);
  const int end = args.ends == nullptr ? args.columns : min(max(args.ends[row], 0), args.columns);
  return {begin, max(end - begin, 0)};
}

// A row in slices of the same size, but for the last ones. What they select is in the same order as in the row, so
// selecting from that is selecting from the row. They select k or, which takes less time, some more. NaNs fill the rest
// of their room; since k numbers come before them, they are never selected.
struct Slices {
  int size;
  int room;  // for what each selects

  DG_DEVICE Slices(const TopKArguments& args, int count)
      : size(ceil_div(count, args.slices)), room(min(args.room_of_slice, size)) {}

  DG_DEVICE int begin(int slice, int count) const { return min(slice * size, count); }
  DG_DEVICE int all_selected(int count) const {
    const int whole = size == 0 ? 0 : count / size;
    return whole * room + min(count - whole * size, room);
  }
};

// The part of the work that a workgroup has.
template <class T, int kWaves>
class TopKTask {
  using Row = LogitsRow<T, kWaves>;
  static constexpr int kThreads = kWaves * kWaveSize;

 public:
  DG_DEVICE TopKTask(const TopKArguments& args, TopKPass pass, int workgroup)
      : args_(args),
        pass_(pass),
        row_(pass == TopKPass::kSlices ? workgroup / args.slices : workgroup),
        columns_(counting_columns(args, row_)),
        room_(args.k) {
    const int64_t of_slices = static_cast<int64_t>(row_) * args.slices * args.room_of_slice;
    slice_values_ = static_cast<T*>(args.slice_values) + of_slices;
    slice_positions_ = args.slice_positions + of_slices;
    if (pass == TopKPass::kRows) return;
    const Slices slices(args, columns_.count);
    if (pass == TopKPass::kMerge) {
      columns_.count = slices.all_selected(columns_.count);
      return;
    }
    const int slice = workgroup % args.slices;
    first_position_ = slices.begin(slice, columns_.count);
    columns_.begin += first_position_;
    columns_.count = slices.begin(slice + 1, columns_.count) - first_position_;
    slice_values_ += slice * slices.room;
    slice_positions_ += slice * slices.room;
    room_ = min(slices.room, columns_.count);
  }

  DG_DEVICE void run(SelectionLds& lds) const {
    const T* logits = static_cast<const T*>(args_.logits) + row_ * args_.logits_stride + columns_.begin;
    if (pass_ == TopKPass::kMerge) logits = slice_values_;
    if (columns_.count > room_) {
      Row row(logits, columns_.count);
      const int selected = Selection<T, kWaves>(row, args_.k, lds).run(room_);
      if (pass_ == TopKPass::kSlices) {
        for (int i = thread_id(); i < room_; i += kThreads) {
          if (i < selected) store_of_slice(i, lds.list.values[i], lds.list.positions[i]);
          if (i >= selected) store_of_slice(i, __builtin_nanf(""), 0);
        }
      } else {
        store_positions([&](int i) DG_INLINE { return lds.list.positions[i]; });
      }
    } else if (pass_ == TopKPass::kSlices) {
      for (int i = thread_id(); i < columns_.count; i += kThreads) {
        store_of_slice(i, static_cast<float>(*(const Global<T>*)(logits + i)), i);
      }
    } else {
      store_positions([&](int i) DG_INLINE { return i < columns_.count ? i : -1; });
    }
  }

 private:
  // Stores number i of those that a slice selected.
  DG_DEVICE void store_of_slice(int i, float value, int position) const {
    *(Global<T>*)(slice_values_ + i) = rounded_to<T>(value);  // which changes no number
    *(Global<int>*)(slice_positions_ + i) = first_position_ + position;
  }

  // Stores the result: position_of(i) for each i below k, -1 for none. A lane's loads don't wait for each other.
  template <class PositionOf>
  DG_DEVICE void store_positions(PositionOf&& position_of) const {
    constexpr int kOfLane = kMostSelected / kThreads;
    int positions[kOfLane];
#pragma unroll
    for (int j = 0; j < kOfLane; ++j) {
      const int i = j * kThreads + thread_id();
      positions[j] = i < args_.k ? position_of(i) : -1;
      if (pass_ == TopKPass::kMerge && positions[j] >= 0) {
        positions[j] = *(const Global<int>*)(slice_positions_ + positions[j]);
      }
    }
    if (args_.has_block_table) {
#pragma unroll
      for (int j = 0; j < kOfLane; ++j) positions[j] = slot(positions[j]);
    }
#pragma unroll
    for (int j = 0; j < kOfLane; ++j) {
      const int i = j * kThreads + thread_id();
      if (i < args_.k) *(Global<int>*)(out() + i) = positions[j];
    }
  }

  DG_DEVICE int slot(int position) const {
    const int* const table = args_.block_table + row_ / args_.rows_of_sequence * args_.block_table_stride;
    const int page = position >> args_.page_shift;
    if (position < 0 || page >= args_.pages_of_sequence) return -1;
    const int named = *(const Global<int>*)(table + page);
    return named < 0 ? -1 : named << args_.page_shift | (position & ((1 << args_.page_shift) - 1));
  }

  DG_DEVICE int* out() const { return args_.out + row_ * args_.out_stride; }

  const TopKArguments& args_;
  TopKPass pass_;
  int row_;
  Columns columns_;
  int room_;  // for what is selected
  int first_position_ = 0;
  T* slice_values_;
  int* slice_positions_;
};

}  // namespace deep_gemm_rocm
