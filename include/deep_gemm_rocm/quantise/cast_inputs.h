// The values that are quantised, from one or two matrices. load() starts all loads, and values() computes.
#pragma once

#include "deep_gemm_rocm/arithmetic/activation.h"
#include "deep_gemm_rocm/hardware/conditional.h"
#include "deep_gemm_rocm/quantise/cast_arguments.h"
#include "deep_gemm_rocm/quantise/lane_values.h"

namespace deep_gemm_rocm {

// A part of a matrix, at least one row and one column.
struct TileBounds {
  int row;
  int column;
  int rows;
  int columns;

  template <class T>
  DG_DEVICE MatrixTile<T, kLaneValues> of(const StridedMatrix& matrix, int columns_before = 0) const {
    return {matrix, row, columns_before + column, rows, columns};
  }
};

// Starts the loads of an input: of vectors, if all of its matrices have them.
template <class Input, class Place>
DG_DEVICE void load_input(Input& input, const CastArguments& args, const TileBounds& at, const Place& place) {
  if (args.x.has_vectors) {
    input.template load<true>(args, at, place);
    load_arguments_of_results(args);
  } else {
    input.template load<false>(args, at, place);
  }
}

// Stores a lane's values of a block.
DG_DEVICE void store_lane_values(const TileBounds& at, const StridedMatrix& matrix,
                                 const Vector<uint8_t, kLaneValues>& values, int row, int block_column) {
  at.of<uint8_t>(matrix).store(values, row, block_column + column_in_block(lane_id(), 0));
}

template <class T, int kPasses>
struct PlainInput {
  LaneValues<T, kPasses> x;

  template <bool kVectors, class Place>
  DG_DEVICE void load(const CastArguments& args, const TileBounds& at, const Place& place) {
    x.template load<kVectors>(at.of<T>(args.x), place);
  }

  DG_DEVICE LaneFloats values(const CastArguments&, int pass) const { return x(pass); }
};

// silu(gate) · up, where the first half of the columns is the gate: what SiluAndMul computes in a GEMM's epilogue.
// With kClamped, the gate is at most `limit` and up within ±limit. With kGptOss, it is gate · sigmoid(alpha · gate) ·
// (up + 1).
template <class T, int kPasses, bool kClamped, bool kGptOss>
struct SiluAndMulInput {
  LaneValues<T, kPasses> gate, up;

  template <bool kVectors, class Place>
  DG_DEVICE void load(const CastArguments& args, const TileBounds& at, const Place& place) {
    gate.template load<kVectors>(at.of<T>(args.x), place);
    up.template load<kVectors>(at.of<T>(args.x, args.columns), place);
  }

  DG_DEVICE LaneFloats values(const CastArguments& args, int pass) const {
    const LaneFloats gates = gate(pass), ups = up(pass);
    LaneFloats results;
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i) results[i] = value(args, gates[i], ups[i]);
    return results;
  }

 private:
  static DG_DEVICE float value(const CastArguments& args, float gate, float up) {
    using Activation = Conditional<kClamped || kGptOss, ClampedSiluAndMul, SiluAndMul>;
    const float sums[] = {gate, up};
    return Activation::apply(sums, {kGptOss ? args.alpha : 1, kClamped ? args.limit : __builtin_inff(), kGptOss});
  }
};

}  // namespace deep_gemm_rocm
