// Arguments of the kernels that select the largest logits of each row.
#pragma once

#include "deep_gemm_rocm/hardware/types.h"

namespace deep_gemm_rocm {

// Strides are in elements. TopKArguments in launch/top_k.py is the same.
struct TopKArguments {
  const void* logits;      // [rows, columns], contiguous columns
  const int* starts;       // [rows], the first column of each row that counts; or null for 0
  const int* ends;         // [rows], the column behind the last one that counts; or null for all columns
  const int* block_table;  // [sequences, pages_of_sequence]; may be null if it has no elements
  const int* sequences;    // [rows], each row's row of block_table; or null: rows_of_sequence rows share one
  int* out;                // [rows, k]
  int64_t logits_stride, block_table_stride, out_stride;
  int rows, columns, k;
  int has_block_table;     // whether results are slots; they are positions otherwise
  int rows_of_sequence, pages_of_sequence, page_shift;  // see page_size.h
  int sequences_of_table;  // rows of block_table, if `sequences` isn't null
  int compute_units;       // that the launch may use
};

}  // namespace deep_gemm_rocm
