// What a GEMM kernel is launched with, dense or grouped. GemmArguments in gemm_kernel.py is the same structure.
#pragma once

#include "deep_gemm_rocm/hip_declarations.h"
#include "deep_gemm_rocm/types.h"

namespace deep_gemm_rocm {

// Strides are in elements. Where there are no groups, or all share the tensor, group_stride is 0.
struct Matrix {
  void* data;
  int64_t group_stride;
  int64_t stride;  // from a row to the next; from one k to the next of an operand whose rows are contiguous in memory
};

struct Scales {
  float* data;
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

// d = activation((a · sfa) · (b · sfb)ᵀ + bias) + c for each group. a is [m, k], c and d are [m, n], b is [n, k] or has
// n rows for each part that the activation takes; bias has a number for each row of b. sfa has a row for each of a, sfb
// one for each of b or for 128 of them, both with ⌈k/128⌉ columns or one (see Scaling). If d is FP8, sfd [m, ⌈n/128⌉]
// becomes its scales. What the kind of problem doesn't have isn't accessed. What grouped_layout and alignment mean,
// tile_source.h says.
struct GemmArguments {
  Matrix a, b, c, d, bias;
  Scales sfa, sfb, sfd;
  const int* grouped_layout;
  int m, n, k;
  unsigned band_reciprocal;  // see grouped_tile(); set by the launch
  int num_groups;
  int num_summed;  // groups of a and b whose products are added up, group_stride apart
  int alignment;
  int write_padding;
  int max_workgroups;
  HeadSplits heads;
  SquareSums square_sums;  // for each group one of each row of a
  Matrix parts;            // fp32 [num_groups, m, n], where these are added up
};

// What a tile's first loads take of them. A kernel has these as its first arguments, one by one: then hardware can have
// them in scalar registers when a wave starts, and nobody waits for memory to tell where the operands are (LLVM AMDGPU
// usage, "Preloaded Kernel Arguments", which is for up to 14 dwords).
struct FirstArguments {
  void *a, *b;
  int64_t stride_a, stride_b;
  int m, n, k;
  unsigned band_reciprocal;
  int num_workgroups;

  DG_DEVICE FirstArguments again(const GemmArguments& all) const {
    return {all.a.data, all.b.data,          all.a.stride,  all.b.stride, all.m, all.n,
            all.k,      all.band_reciprocal, num_workgroups};
  }

  DG_DEVICE GemmArguments with(GemmArguments others) const {
    others.a.data = a;
    others.b.data = b;
    others.a.stride = stride_a;
    others.b.stride = stride_b;
    others.m = m;
    others.n = n;
    others.k = k;
    others.band_reciprocal = band_reciprocal;
    return others;
  }
};

// The same where grouped_layout tells where the tiles are: memory is waited for in any case, and strides can come
// meanwhile.
struct FirstArgumentsOfLayout {
  void *a, *b;
  const int* grouped_layout;
  int64_t group_stride_b;
  int m, n, k;
  unsigned band_reciprocal;
  int num_workgroups;
  int num_groups;

  DG_DEVICE FirstArgumentsOfLayout again(const GemmArguments& all) const {
    return {all.a.data, all.b.data, all.grouped_layout,  all.b.group_stride, all.m,
            all.n,      all.k,      all.band_reciprocal, num_workgroups,     all.num_groups};
  }

  DG_DEVICE GemmArguments with(GemmArguments others) const {
    others.a.data = a;
    others.b.data = b;
    others.grouped_layout = grouped_layout;
    others.b.group_stride = group_stride_b;
    others.m = m;
    others.n = n;
    others.k = k;
    others.band_reciprocal = band_reciprocal;
    others.num_groups = num_groups;
    return others;
  }
};

// A GEMM kernel's arguments as they lie in memory.
struct KernelArguments {
  FirstArguments first;
  GemmArguments all;
};
static_assert(sizeof(FirstArguments) == sizeof(FirstArgumentsOfLayout), "`all` is where it is for every kernel");

// Read again where this is called: a loop then needn't keep all of them in registers.
DG_DEVICE const GemmArguments& gemm_arguments() { return kernel_arguments<KernelArguments>().all; }

}  // namespace deep_gemm_rocm
