// How the lanes of a wave share blocks of 128 columns: eight lanes have a block of a row, 16 neighbouring values each.
// If a kernel defines DG_LANE_VALUES as 8, 16 lanes have 8 values each.
#pragma once

#include "deep_gemm_rocm/quantise/matrix_tile.h"

#ifndef DG_LANE_VALUES
#define DG_LANE_VALUES 16
#endif

namespace deep_gemm_rocm {

constexpr int kLaneValues = DG_LANE_VALUES;
constexpr int kLanesOfBlock = kScaleBlockK / kLaneValues;

// As a vector, since compilers make packed instructions of operations on vectors.
using LaneFloats = Vector<float, kLaneValues>;

// The column in its block of a lane's value.
DG_DEVICE int column_in_block(int lane, int value) { return lane % kLanesOfBlock * kLaneValues + value; }

template <class T>
DG_DEVICE LaneFloats widened(const Vector<T, kLaneValues>& values) {
  if constexpr (!__is_same(T, __bf16)) return __builtin_convertvector(values, LaneFloats);
  using Words = Vector<unsigned, sizeof(values) / sizeof(unsigned)>;
  const auto words = __builtin_bit_cast(Words, values);
  LaneFloats result;
#pragma unroll
  for (int i = 0; i < kLaneValues; ++i) {
    const unsigned word = words[i / 2];
    result[i] = __builtin_bit_cast(float, i % 2 == 0 ? word << 16 : word & 0xffff0000u);
  }
  return result;
}

// A lane's values in kPasses blocks. `place` gives the row of a pass, and the first column of its block.
template <class T, int kPasses>
struct LaneValues {
  Vector<T, kLaneValues> of_pass[kPasses];

  // With kVectors, which the matrix must have; otherwise element by element.
  template <bool kVectors, class Place>
  DG_DEVICE void load(const MatrixTile<T, kLaneValues>& tile, const Place& place) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = place.row(pass), column = place.block_column(pass) + column_in_block(lane_id(), 0);
      of_pass[pass] = kVectors ? tile.load_vector(row, column) : tile.load_elements(row, column);
    }
  }

  // Holds arithmetic on values back until the first ones have arrived, so that arithmetic on addresses comes before it.
  DG_DEVICE void wait() {
    using Words = Vector<unsigned, sizeof(of_pass[0]) / sizeof(unsigned)>;
    auto words = __builtin_bit_cast(Words, of_pass[0]);
    asm volatile("" : "+v"(words[0]));
    of_pass[0] = __builtin_bit_cast(Vector<T, kLaneValues>, words);
  }

  DG_DEVICE LaneFloats operator()(int pass) const { return widened<T>(of_pass[pass]); }
};

}  // namespace deep_gemm_rocm
