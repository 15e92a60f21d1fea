// Adds up what the parts of a split K have summed.
#pragma once

#include "deep_gemm_rocm/buffer.h"
#include "deep_gemm_rocm/gemm_arguments.h"
#include "deep_gemm_rocm/hip_declarations.h"

namespace deep_gemm_rocm {

// parts is [num_parts, m, n], contiguous; c and d are [m, n].
struct SumArguments {
  const float* parts;
  Matrix c, d;
  int m, n;
  int num_parts;
};

template <class T>
DG_DEVICE Buffer row_of(const T* first, int columns) {
  return {first, columns * static_cast<unsigned>(sizeof(T))};
}

// A wave computes 64 columns of a row.
template <class D, bool kAccumulate>
DG_DEVICE void sum_of_parts(const SumArguments& args) {
  constexpr int kInFlight = 8;  // parts on their way at once
  const int waves_of_row = ceil_div(args.n, kWaveSize);
  const int64_t row = workgroup_id() / waves_of_row;
  const int first_column = workgroup_id() % waves_of_row * kWaveSize;
  const int columns = min(args.n - first_column, kWaveSize);
  const unsigned lane = lane_id();

  float sum = 0;
  for (int first = 0; first < args.num_parts; first += kInFlight) {
    float loaded[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t part = first + i;
      const Buffer values = row_of(args.parts + (part * args.m + row) * args.n + first_column, columns);
      loaded[i] = values.only_if(part < args.num_parts).load<float>(lane * sizeof(float));
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) sum += loaded[i];
  }
  const unsigned offset = lane * sizeof(D);
  if constexpr (kAccumulate) {
    const Buffer c = row_of(static_cast<const D*>(args.c.data) + row * args.c.stride + first_column, columns);
    sum += static_cast<float>(c.load<D>(offset));
  }
  const Buffer d = row_of(static_cast<const D*>(args.d.data) + row * args.d.stride + first_column, columns);
  d.store(static_cast<D>(sum), offset);
}

}  // namespace deep_gemm_rocm
