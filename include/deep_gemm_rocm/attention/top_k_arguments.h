// Arguments of the kernels that select the largest logits of each row.
#pragma once

#include "deep_gemm_rocm/hardware/types.h"

namespace deep_gemm_rocm {

// Strides are in elements. TopKArguments in launch/top_k.py is the same.
struct TopKArguments {
  const void* logits;      // [rows, columns], contiguous columns
  const int* starts;       // [rows], the first column of each row that counts; or null for 0
  const int* ends;         // [rows], the column behind the last one that counts; or null for all columns
  const int* block_table;  // [sequences, pages_of_sequence]; null if it is empty, too
  const int* sequences;    // [rows], the row of block_table for each row; or null, where each is for rows_of_sequence
  int* out;                // [rows, k]
  int64_t logits_stride, block_table_stride, out_stride;
  int rows, columns, k;
  int has_block_table;     // whether results are slots; they are positions otherwise
  int rows_of_sequence, pages_of_sequence, page_shift;  // a page's tokens, see page_size.h
  int sequences_of_table;  // rows of block_table, if there are sequences
  int compute_units;       // to be used
};

}  // namespace deep_gemm_rocm
