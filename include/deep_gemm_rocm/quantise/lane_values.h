// How the lanes of a wave share blocks of 128 columns: eight lanes have a block of a row, 16 values each.
#pragma once

#include "deep_gemm_rocm/hardware/conditional.h"
#include "deep_gemm_rocm/quantise/matrix_tile.h"

namespace deep_gemm_rocm {

// A lane's values of a block are two vectors, half a block apart, so that each load and store of a wave takes neighbouring
// addresses.
constexpr int kLaneVectors = 2;
constexpr int kVectorValues = 8;
constexpr int kLaneValues = kLaneVectors * kVectorValues;
constexpr int kLanesOfBlock = kScaleBlockK / kLaneValues;

// The column in its block of a lane's value.
DG_DEVICE int column_in_block(int lane, int value) {
  constexpr int kHalf = kScaleBlockK / kLaneVectors;
  return value / kVectorValues * kHalf + lane % kLanesOfBlock * kVectorValues + value % kVectorValues;
}

// A lane's values in kPasses blocks. `place` gives the row of a pass, and the first column of its block.
template <class T, int kPasses>
struct LaneValues {
  typename MatrixTile<T>::Values vectors[kPasses][kLaneVectors];

  template <class Place>
  DG_DEVICE void load(const MatrixTile<T>& tile, const Place& place) {
    if (tile.has_vectors()) {
      load_each(place, [&](int row, int column) { return tile.load_vector(row, column); });
    } else {
      load_each(place, [&](int row, int column) { return tile.load_elements(row, column); });
    }
  }

  DG_DEVICE T operator()(int pass, int i) const { return vectors[pass][i / kVectorValues][i % kVectorValues]; }

 private:
  template <class Place, class Load>
  DG_DEVICE void load_each(const Place& place, const Load& load) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
      for (int i = 0; i < kLaneVectors; ++i) {
        const int column = place.block_column(pass) + column_in_block(lane_id(), i * kVectorValues);
        vectors[pass][i] = load(place.row(pass), column);
      }
    }
  }
};

// Stores a lane's values of a block.
template <class T>
DG_DEVICE void store_lane_values(const MatrixTile<T>& tile, const Vector<T, kLaneValues>& values, int row,
                                 int block_column) {
#pragma unroll
  for (int i = 0; i < kLaneVectors; ++i) {
    typename MatrixTile<T>::Values part;
#pragma unroll
    for (int e = 0; e < kVectorValues; ++e) part[e] = values[i * kVectorValues + e];
    tile.store(part, row, block_column + column_in_block(lane_id(), i * kVectorValues));
  }
}

}  // namespace deep_gemm_rocm
