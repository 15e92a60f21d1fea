// The second kernel of split-K: adds up the partial sums, and applies the epilogue: bias, activation, c, rounding or
// quantising.
#pragma once

#include "deep_gemm_rocm/arithmetic/activation.h"
#include "deep_gemm_rocm/epilogue/epilogue.h"
#include "deep_gemm_rocm/quantise/magnitude.h"
#include "deep_gemm_rocm/tiles/gemm_arguments.h"
#include "deep_gemm_rocm/hardware/hip_declarations.h"

namespace deep_gemm_rocm {

// parts is [num_parts, m, part_stride]. Its first n columns count, times the number of parts that the activation takes;
// bias has as many numbers. c and d are [m, n], and sfd is [m, ⌈n/128⌉].
struct SumArguments {
  const float* parts;
  Matrix bias, c, d;
  Scales sfd;
  GateArguments gate;
  int m, n;
  int part_stride;  // a multiple of kSumVector
  int num_parts;

  static SumArguments of(const GemmArguments& all) {
    return {static_cast<const float*>(all.parts.data), all.bias, all.c, all.d, all.sfd, all.gate, all.m, all.n,
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

// Stores the scale of a row's 128 columns, which 32 lanes hold, and divides the results by it, like
// Epilogue::quantise().
template <class D>
DG_DEVICE void quantise_sums(const SumArguments& args, int64_t row, int first_column, float (&results)[kSumVector]) {
  constexpr int kLanes = kScaleBlockN / kSumVector;
  static_assert(kLanes == kWaveSize / 2);
  unsigned largest = 0;
#pragma unroll
  for (int e = 0; e < kSumVector; ++e) largest = max(largest, magnitude_of(results[e]));
  static_for<5>([&](auto bit) { largest = larger_of_pair<1 << bit>(largest); });
  const float scale = scale_of_largest<D>(__builtin_bit_cast(float, largest));
#pragma unroll
  for (int i = 0; i < kSumColumns / kScaleBlockN; ++i) {
    const int block = first_column / kScaleBlockN + i;
    const bool stores = lane_id() == i * kLanes && block * kScaleBlockN < args.n;
    float* const of_block = args.sfd.data + row * args.sfd.row_stride + block * args.sfd.k_block_stride;
    Buffer{of_block, sizeof(float)}.store(scale, stores ? 0 : kOutOfBounds);
  }
  const float inverse = 1 / scale;
#pragma unroll
  for (int e = 0; e < kSumVector; ++e) results[e] *= inverse;
}

template <class D, class Bias, class Activation, bool kAccumulate>
DG_DEVICE void sum_of_parts(const SumArguments& args) {
  constexpr int kParts = Activation::kParts;
  constexpr int kInFlight = 8 / kParts;  // parts of K in flight at once
  using Values = Vector<float, kSumVector>;
  const int64_t row = workgroup_id();
  const int first_column = (workgroup_id_y() * kSumWaves + wave_id()) * kSumColumns;
  const int columns = args.n - first_column;
  if (columns <= 0) return;
  const int column = lane_id() * kSumVector;
  const int64_t part_step = static_cast<int64_t>(args.m) * args.part_stride;
  const float* part = args.parts + row * args.part_stride + first_column;
  const unsigned bytes = (args.part_stride - first_column) * static_cast<unsigned>(sizeof(float));

  float sums[kParts][kSumVector] = {};
  for (int first = 0; first < args.num_parts; first += kInFlight) {
    Values loaded[kInFlight][kParts];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i, part += part_step) {
      asm volatile("" : "+s"(part));  // so that not all addresses are computed before the first load
      const Buffer values = Buffer{part, bytes}.only_if(first + i < args.num_parts);
#pragma unroll
      for (int p = 0; p < kParts; ++p) loaded[i][p] = values.load<Values>((p * args.n + column) * sizeof(float));
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
#pragma unroll
        for (int e = 0; e < kSumVector; ++e) sums[p][e] += loaded[i][p][e];
      }
    }
  }
  if constexpr (!__is_same(Bias, None)) {
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const auto bias = sum_row<Bias>(args.bias, 0, p * args.n + first_column, columns).load(0, column);
#pragma unroll
      for (int e = 0; e < kSumVector; ++e) sums[p][e] += static_cast<float>(bias[e]);
    }
  }
  float results[kSumVector];
#pragma unroll
  for (int e = 0; e < kSumVector; ++e) {
    float of_column[kParts];
#pragma unroll
    for (int p = 0; p < kParts; ++p) of_column[p] = sums[p][e];
    // Columns past n hold the sums of the activation's next part, or nothing.
    results[e] = column + e < columns ? Activation::apply(of_column, args.gate) : 0;
  }
  if constexpr (kAccumulate) {
    const auto c = sum_row<D>(args.c, row, first_column, columns).load(0, column);
#pragma unroll
    for (int e = 0; e < kSumVector; ++e) results[e] += static_cast<float>(c[e]);
  }
  if constexpr (Storage<D>::kIsFp8) quantise_sums<D>(args, row, first_column, results);
  const auto rounded = Storage<D>::template rounded<kSumVector>(results);
  sum_row<D>(args.d, row, first_column, columns).store(rounded, 0, column);
}

}  // namespace deep_gemm_rocm
