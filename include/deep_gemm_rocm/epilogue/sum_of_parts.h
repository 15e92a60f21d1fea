// Adds up the results of the parts of a split K.
#pragma once

#include "deep_gemm_rocm/epilogue/epilogue.h"
#include "deep_gemm_rocm/tiles/gemm_arguments.h"
#include "deep_gemm_rocm/hardware/hip_declarations.h"

namespace deep_gemm_rocm {

// parts is [num_parts, m, part_stride], whose first n columns count; bias is [n], and c and d are [m, n].
struct SumArguments {
  const float* parts;
  Matrix bias, c, d;
  int m, n;
  int part_stride;  // a multiple of kSumVector
  int num_parts;

  static SumArguments of(const GemmArguments& all) {
    return {static_cast<const float*>(all.parts.data), all.bias, all.c, all.d, all.m, all.n,
            static_cast<int>(all.parts.stride), all.num_groups};
  }
};

constexpr int kSumVector = 4;                       // columns of a lane
constexpr int kSumColumns = kWaveSize * kSumVector;  // of a wave, in one row
constexpr int kSumWaves = 2;                        // of a workgroup, in the same row

// A row of c or d from a wave's first column on.
template <class T>
using SumRow = OutputBuffer<T, ColumnsInOrder, 1, kSumColumns, kSumVector>;

template <class T>
DG_DEVICE SumRow<T> sum_row(const Matrix& matrix, int64_t row, int column, int columns) {
  return {{static_cast<T*>(matrix.data) + row * matrix.stride + column, 1, columns, matrix.stride}, {}};
}

template <class D, class Bias, bool kAccumulate>
DG_DEVICE void sum_of_parts(const SumArguments& args) {
  constexpr int kInFlight = 8;  // parts in flight at once
  const int64_t row = workgroup_id();
  const int first_column = (workgroup_id_y() * kSumWaves + wave_id()) * kSumColumns;
  const int columns = args.n - first_column;
  if (columns <= 0) return;
  const int column = lane_id() * kSumVector;
  const int64_t part_step = static_cast<int64_t>(args.m) * args.part_stride;
  const float* part = args.parts + row * args.part_stride + first_column;
  const unsigned bytes = (args.part_stride - first_column) * static_cast<unsigned>(sizeof(float));

  float sums[kSumVector] = {};
  for (int first = 0; first < args.num_parts; first += kInFlight) {
    Vector<float, kSumVector> loaded[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i, part += part_step) {
      asm volatile("" : "+s"(part));  // so that not all addresses are computed before the first load
      const Buffer values = Buffer{part, bytes}.only_if(first + i < args.num_parts);
      loaded[i] = values.load<Vector<float, kSumVector>>(column * sizeof(float));
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
#pragma unroll
      for (int e = 0; e < kSumVector; ++e) sums[e] += loaded[i][e];
    }
  }
  // Columns of parts from n on are never written.
#pragma unroll
  for (int e = 0; e < kSumVector; ++e) sums[e] = column + e < columns ? sums[e] : 0;
  if constexpr (!__is_same(Bias, None)) {
    const auto bias = sum_row<Bias>(args.bias, 0, first_column, columns).load(0, column);
#pragma unroll
    for (int e = 0; e < kSumVector; ++e) sums[e] += static_cast<float>(bias[e]);
  }
  if constexpr (kAccumulate) {
    const auto c = sum_row<D>(args.c, row, first_column, columns).load(0, column);
#pragma unroll
    for (int e = 0; e < kSumVector; ++e) sums[e] += static_cast<float>(c[e]);
  }
  const auto rounded = Storage<D>::template rounded<kSumVector>(sums);
  sum_row<D>(args.d, row, first_column, columns).store(rounded, 0, column);
}

}  // namespace deep_gemm_rocm
