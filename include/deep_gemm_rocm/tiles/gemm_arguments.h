// The arguments of a GEMM kernel. GemmArguments in launch/gemm.py is the same structure.
#pragma once

#include "deep_gemm_rocm/arithmetic/activation.h"
#include "deep_gemm_rocm/hardware/hip_declarations.h"
#include "deep_gemm_rocm/hardware/types.h"

namespace deep_gemm_rocm {

// Strides are in elements. group_stride is 0 without groups, and where all groups share the tensor.
struct Matrix {
  void* data;
  int64_t group_stride;
  int64_t stride;  // from a row to the next or, if rows are contiguous, from a k to the next
};

struct Scales {
  float* data;
  int64_t group_stride, row_stride, k_block_stride;
};

// A head's columns in d; nothing is stored into those in the middle.
struct HeadSplits {
  int left, mid, right;
};

struct SquareSums {
  float* data;
  int64_t group_stride;
};

// d = activation((a · sfa) · (b · sfb)ᵀ + bias) + c for each group. a is [m, k], and c and d are [m, n]. b is [n, k],
// or has n rows for each part that the activation takes; bias has a number for each row of b. sfa has a row for each
// row of a, sfb one for each row of b or 128 of them; both have ⌈k/128⌉ columns, or one (see Scaling). If d is FP8, its
// scales are stored into sfd [m, ⌈n/128⌉]. Tensors that the kind of problem doesn't have aren't accessed. tile_source.h
// says what grouped_layout and alignment mean.
struct GemmArguments {
  Matrix a, b, c, d, bias;
  Scales sfa, sfb, sfd;
  const int* grouped_layout;
  int m, n, k;
  unsigned band_reciprocal;  // see grouped_tile(); set by the launch
  int num_groups;
  int num_summed;  // groups of a and b whose products are added up
  int alignment;
  int write_padding;
  int max_workgroups;
  HeadSplits heads;
  SquareSums square_sums;  // a sum for each group and row of a
  Matrix parts;            // fp32 [num_groups, m, rows of b], the sums of groups that are added up
  const int* row_indices;  // [m], the row of a for each row of d, where rows are gathered
  int* signals;            // counters of finished tiles, see tile_signal.h
  GateArguments gate;
};

// Operand pointers and sizes come first, one by one, so that the hardware preloads them into scalar registers; see
// argument_loads.h.
struct FirstArguments {
  void *a, *b;
  int64_t stride_a, stride_b;
  int m, n, k;
  unsigned band_reciprocal;
  int num_workgroups;

  // The same arguments, loaded from memory.
  DG_DEVICE FirstArguments reloaded(const GemmArguments& all) const {
    return {all.a.data, all.b.data,          all.a.stride,  all.b.stride, all.m, all.n,
            all.k,      all.band_reciprocal, num_workgroups};
  }

  // All arguments, of which these are in registers already.
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

// The same for tiles that grouped_layout determines. The kernel waits for that in any case; strides come meanwhile.
struct FirstArgumentsOfLayout {
  void *a, *b;
  const int* grouped_layout;
  int64_t group_stride_b;
  int m, n, k;
  unsigned band_reciprocal;
  int num_workgroups;
  int num_groups;

  DG_DEVICE FirstArgumentsOfLayout reloaded(const GemmArguments& all) const {
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

// All arguments, read again where this is called, so that a loop needn't keep them in registers.
DG_DEVICE const GemmArguments& gemm_arguments() { return kernel_arguments<KernelArguments>().all; }

}  // namespace deep_gemm_rocm
