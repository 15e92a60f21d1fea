// The k largest logits of each row. A workgroup has a row; or a slice of it, and another pass merges the slices.
#pragma once

#include "deep_gemm_rocm/arithmetic/rounding.h"
#include "deep_gemm_rocm/attention/selection.h"
#include "deep_gemm_rocm/attention/top_k_arguments.h"
#include "deep_gemm_rocm/hardware/global.h"

namespace deep_gemm_rocm {

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
// selecting from that is selecting from the row.
struct Slices {
  int size;
  int selected;  // of each

  DG_DEVICE Slices(const TopKArguments& args, int count)
      : size(ceil_div(count, args.slices)), selected(min(args.k, size)) {}

  DG_DEVICE int begin(int slice, int count) const { return min(slice * size, count); }
  DG_DEVICE int all_selected(int count) const {
    const int whole = size == 0 ? 0 : count / size;
    return whole * selected + min(count - whole * size, selected);
  }
};

// The part of the work that a workgroup has.
template <class T>
class TopKTask {
  using Row = LogitsRow<T, kTopKWaves>;

 public:
  DG_DEVICE TopKTask(const TopKArguments& args, TopKPass pass, int workgroup)
      : args_(args),
        pass_(pass),
        row_(pass == TopKPass::kSlices ? workgroup / args.slices : workgroup),
        columns_(counting_columns(args, row_)) {
    const int64_t of_slices = static_cast<int64_t>(row_) * args.slices * args.k;
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
    slice_values_ += slice * slices.selected;
    slice_positions_ += slice * slices.selected;
  }

  DG_DEVICE void run(SelectionLds& lds) const {
    const T* logits = static_cast<const T*>(args_.logits) + row_ * args_.logits_stride + columns_.begin;
    if (pass_ == TopKPass::kMerge) logits = slice_values_;
    if (columns_.count > args_.k) {
      Row row(logits, columns_.count);
      Selection<T>(row, args_.k, lds).run();
      for (int i = thread_id(); i < args_.k; i += kTopKThreads) store(i, lds.list.values[i], lds.list.positions[i]);
    } else {
      for (int i = thread_id(); i < columns_.count; i += kTopKThreads) {
        store(i, static_cast<float>(*(const Global<T>*)(logits + i)), i);
      }
      if (pass_ == TopKPass::kSlices) return;
      for (int i = columns_.count + thread_id(); i < args_.k; i += kTopKThreads) *(Global<int>*)(out() + i) = -1;
    }
  }

 private:
  // Stores number i of the selected ones.
  DG_DEVICE void store(int i, float value, int position) const {
    if (pass_ == TopKPass::kSlices) {
      *(Global<T>*)(slice_values_ + i) = rounded_to<T>(value);  // which changes no number
      *(Global<int>*)(slice_positions_ + i) = first_position_ + position;
      return;
    }
    if (pass_ == TopKPass::kMerge) position = *(const Global<int>*)(slice_positions_ + position);
    *(Global<int>*)(out() + i) = args_.block_table == nullptr ? position : slot(position);
  }

  DG_DEVICE int slot(int position) const {
    const int* const table = args_.block_table + row_ / args_.rows_of_sequence * args_.block_table_stride;
    const int page = position >> args_.page_shift;
    if (page >= args_.pages_of_sequence) return -1;
    const int named = *(const Global<int>*)(table + page);
    return named < 0 ? -1 : named << args_.page_shift | (position & ((1 << args_.page_shift) - 1));
  }

  DG_DEVICE int* out() const { return args_.out + row_ * args_.out_stride; }

  const TopKArguments& args_;
  TopKPass pass_;
  int row_;
  Columns columns_;
  int first_position_ = 0;
  T* slice_values_;
  int* slice_positions_;
};

}  // namespace deep_gemm_rocm
