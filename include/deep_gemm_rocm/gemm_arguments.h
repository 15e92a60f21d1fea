// What a GEMM kernel is launched with, dense or grouped. GemmArguments in gemm_kernel.py is the same structure.
#pragma once

#include "deep_gemm_rocm/types.h"

namespace deep_gemm_rocm {

// Strides are in elements. Where there are no groups, or all share the tensor, group_stride is 0.
struct Matrix {
  void* data;
  int64_t group_stride, row_stride;
};

struct Scales {
  const float* data;
  int64_t group_stride, row_stride, k_block_stride;
};

// d = (a · sfa) · (b · sfb)ᵀ for each group. a is [m, k], b is [n, k], d is [m, n], sfa is [m, ⌈k/128⌉], sfb is
// [⌈n/128⌉, ⌈k/128⌉]. What grouped_layout and alignment mean, tile_source.h says.
struct GemmArguments {
  Matrix a, b, d;
  Scales sfa, sfb;
  const int* grouped_layout;
  int m, n, k;
  int num_groups;
  int alignment;
  int write_padding;
  int max_workgroups;
};

}  // namespace deep_gemm_rocm
