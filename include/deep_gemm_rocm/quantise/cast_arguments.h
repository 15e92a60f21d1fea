// The arguments of the kernels that quantise.
#pragma once

#include "deep_gemm_rocm/quantise/fp8_scale.h"
#include "deep_gemm_rocm/quantise/matrix_tile.h"

namespace deep_gemm_rocm {

// Pointers may be null where a kernel has no such tensor. With groups, the matrices of all groups have the same
// strides.
struct CastArguments {
  StridedMatrix x, residual, sum, weight, data, scales;  // the weight as a matrix of equal rows
  int64_t x_group_stride, data_group_stride, scales_group_stride;
  const int* group_rows;
  unsigned* largest;  // the largest magnitude that each workgroup of the first kernel has found
  double epsilon, columns_reciprocal;  // of norms
  Fp8Range range;
  int rows, columns;  // of `data`
  int num_groups;
  int num_largest;
  int num_tiles, column_tiles, row_parts;  // these are computed where the kernel is launched
  unsigned column_tiles_reciprocal;
  float alpha, limit;
};

// The arguments that loads need come first, one by one, so that the hardware preloads them into SGPRs; see
// tiles/argument_loads.h.
struct FirstTileArguments {
  void* x;
  int64_t row_stride, column_stride;
  const int* group_rows;
  int has_vectors, rows, columns;
  int column_tiles;
  unsigned column_tiles_reciprocal;

  // All arguments, of which these are in registers already.
  DG_DEVICE CastArguments with(CastArguments others) const {
    others.x = {x, row_stride, column_stride, has_vectors};
    others.group_rows = group_rows;
    others.rows = rows;
    others.columns = columns;
    others.column_tiles = column_tiles;
    others.column_tiles_reciprocal = column_tiles_reciprocal;
    return others;
  }
};

// The same for the kernels of cast_row.h.
struct FirstRowArguments {
  void* x;
  int64_t row_stride;
  void* residual;
  int64_t residual_stride;
  void* weight;
  int rows, columns;
  int have_vectors;  // all three
  int row_parts;

  DG_DEVICE CastArguments with(CastArguments others) const {
    others.x = {x, row_stride, others.x.column_stride, have_vectors};
    others.residual = {residual, residual_stride, others.residual.column_stride, have_vectors};
    others.weight = {weight, 0, 1, have_vectors};
    others.row_parts = row_parts;
    others.rows = rows;
    others.columns = columns;
    return others;
  }
};

// Loads all arguments that results need at once, while operands are in flight. Otherwise the compiler loads each of
// them where it is used, and waits for it there.
DG_DEVICE void load_arguments_of_results(const CastArguments& args) {
  asm volatile("" ::"s"(args.data.data), "s"(args.data.row_stride), "s"(args.data.has_vectors), "s"(args.scales.data),
               "s"(args.scales.row_stride), "s"(args.scales.column_stride), "s"(args.range.reciprocal),
               "s"(args.range.largest), "s"(args.range.has_power_of_two_scales));
}

// The same for norms.
DG_DEVICE void load_arguments_of_norms(const CastArguments& args) {
  asm volatile("" ::"s"(args.sum.data), "s"(args.sum.row_stride), "s"(args.sum.has_vectors), "s"(args.epsilon),
               "s"(args.columns_reciprocal));
}

// The arguments for one group's matrices, of T.
template <class T>
DG_DEVICE CastArguments of_group(CastArguments args, int group) {
  const int rows = args.group_rows[group];
  // Loads all of them at once; the compiler would load some after the others.
  asm volatile("" ::"s"(rows), "s"(args.x_group_stride), "s"(args.data_group_stride), "s"(args.scales_group_stride),
               "s"(args.data.data), "s"(args.scales.data));
  args.x.data = static_cast<T*>(args.x.data) + group * args.x_group_stride;
  args.data.data = static_cast<uint8_t*>(args.data.data) + group * args.data_group_stride;
  args.scales.data = static_cast<float*>(args.scales.data) + group * args.scales_group_stride;
  args.rows = min(args.rows, rows);
  return args;
}

}  // namespace deep_gemm_rocm
