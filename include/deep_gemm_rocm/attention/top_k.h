// Finds the k largest logits of each row. A workgroup takes a row.
#pragma once

#include "deep_gemm_rocm/attention/page_size.h"
#include "deep_gemm_rocm/attention/selection.h"
#include "deep_gemm_rocm/attention/top_k_arguments.h"
#include "deep_gemm_rocm/hardware/global.h"

namespace deep_gemm_rocm {

// Waves of a workgroup: two workgroups of 8 waves share a CU, one of 16 has it alone.
constexpr int kWavesOnHalfCu = 8;
constexpr int kWavesOnCu = 16;
static_assert(kWavesOnCu * kWaveSize <= kMostThreads);

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

// Selects from one row. kIsAnyLength: whether a row may have more columns than a workgroup holds in registers.
template <class T, int kWaves, bool kIsAnyLength, class PageSize>
class TopKTask {
  using Row = LogitsRow<T, kWaves, kIsAnyLength>;
  static constexpr int kThreads = kWaves * kWaveSize;

 public:
  using Lds = SelectionLds<Row::kMostBlocks>;
  static constexpr int kHeldColumns = Row::kHeldElements;

  DG_DEVICE TopKTask(const TopKArguments& args, int row)
      : args_(args), row_(row), columns_(counting_columns(args, row)) {}

  DG_DEVICE void run(Lds& lds) const {
    const T* const logits = static_cast<const T*>(args_.logits) + row_ * args_.logits_stride + columns_.begin;
    if (columns_.count > args_.k) {
      Row row(logits, columns_.count);
      Selection<Row, kWaves>(row, args_.k, lds).run();
      store_positions([&](int i) DG_INLINE { return lds.list.positions[i]; });
    } else {
      store_positions([&](int i) DG_INLINE { return i < columns_.count ? i : -1; });
    }
  }

 private:
  // Stores the result: position_of(i), or its slot, for each i below k; -1 for none. In steps of a loop each, so that a
  // lane's loads are all in flight at once.
  template <class PositionOf>
  DG_DEVICE void store_positions(PositionOf&& position_of) const {
    constexpr int kOfLane = kMostSelected / kThreads;
    int positions[kOfLane];
#pragma unroll
    for (int j = 0; j < kOfLane; ++j) {
      const int i = j * kThreads + thread_id();
      positions[j] = i < args_.k ? position_of(i) : -1;
    }
    if (args_.has_block_table) {
      const int of_table = sequence();
#pragma unroll
      for (int j = 0; j < kOfLane; ++j) positions[j] = slot(of_table, positions[j]);
    }
#pragma unroll
    for (int j = 0; j < kOfLane; ++j) {
      const int i = j * kThreads + thread_id();
      if (i < args_.k) *(Global<int>*)(out() + i) = positions[j];
    }
  }

  // This row's row of the block table, or -1 for none.
  DG_DEVICE int sequence() const {
    if (args_.sequences == nullptr) return row_ / args_.rows_of_sequence;
    const int named = *(const Global<int>*)(args_.sequences + row_);
    return named < args_.sequences_of_table ? named : -1;
  }

  DG_DEVICE int slot(int sequence, int position) const {
    const int* const table = args_.block_table + sequence * args_.block_table_stride;
    const PageSize page_size(args_.page_shift);
    const int page = page_size.page_of(position);
    if (sequence < 0 || position < 0 || page >= args_.pages_of_sequence) return -1;
    const int named = *(const Global<int>*)(table + page);
    return named < 0 ? -1 : page_size.slot(named, page_size.in_page(position));
  }

  DG_DEVICE int* out() const { return args_.out + row_ * args_.out_stride; }

  const TopKArguments& args_;
  int row_;
  Columns columns_;
};

}  // namespace deep_gemm_rocm
