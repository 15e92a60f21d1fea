// What a GEMM kernel is launched with, dense or grouped. GemmArguments in gemm_kernel.py is the same structure.
#pragma once

#include "deep_gemm_rocm/types.h"

namespace deep_gemm_rocm {

// Strides are in elements. Where there are no groups, or all share the tensor, group_stride is 0.
struct Matrix {
  void* data;
  int64_t group_stride;
  int64_t stride;  // from a row to the next; from one k to the next of an operand whose rows are contiguous in memory
};

struct Scales {
  const float* data;
  int64_t group_stride, row_stride, k_block_stride;
};

// A head's columns in d, of which those in the middle are skipped.
struct HeadSplits {
  int left, mid, right;
};

struct SquareSums {
  float* data;
  int64_t group_stride;
};

// d = (a · sfa) · (b · sfb)ᵀ + c for each group. a is [m, k], b is [n, k], c and d are [m, n]. sfa has a row for each of
// a, sfb one for each of b or for 128 of them, both with ⌈k/128⌉ columns or one (see Scaling). Without scales, or c, what
// stands for them isn't read. What grouped_layout and alignment mean, tile_source.h says.
struct GemmArguments {
  Matrix a, b, c, d;
  Scales sfa, sfb;
  const int* grouped_layout;
  int m, n, k;
  int num_groups;
  int alignment;
  int write_padding;
  int max_workgroups;
  HeadSplits heads;
  SquareSums square_sums;  // for each group one of each row of a
};

}  // namespace deep_gemm_rocm
