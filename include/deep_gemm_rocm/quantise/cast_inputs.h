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
  DG_DEVICE MatrixTile<T> of(const StridedMatrix& matrix, int columns_before = 0) const {
    return {matrix, row, columns_before + column, rows, columns};
  }
};

template <class T, int kPasses>
struct PlainInput {
  LaneValues<T, kPasses> x;

  template <class Place>
  DG_DEVICE void load(const CastArguments& args, const TileBounds& at, const Place& place) {
    x.load(at.of<T>(args.x), place);
  }

  DG_DEVICE void values(const CastArguments&, int pass, float (&results)[kLaneValues]) const {
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i) results[i] = static_cast<float>(x(pass, i));
  }
};

// silu(gate) · up, where the first half of the columns is the gate: what SiluAndMul computes in a GEMM's epilogue.
// With kClamped, the gate is at most `limit` and up within ±limit. With kGptOss, it is gate · sigmoid(alpha · gate) ·
// (up + 1).
template <class T, int kPasses, bool kClamped, bool kGptOss>
struct SiluAndMulInput {
  LaneValues<T, kPasses> gate, up;

  template <class Place>
  DG_DEVICE void load(const CastArguments& args, const TileBounds& at, const Place& place) {
    gate.load(at.of<T>(args.x), place);
    up.load(at.of<T>(args.x, args.columns), place);
  }

  DG_DEVICE void values(const CastArguments& args, int pass, float (&results)[kLaneValues]) const {
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i) {
      results[i] = value(args, static_cast<float>(gate(pass, i)), static_cast<float>(up(pass, i)));
    }
  }

 private:
  static DG_DEVICE float value(const CastArguments& args, float gate, float up) {
    using Activation = Conditional<kClamped || kGptOss, ClampedSiluAndMul, SiluAndMul>;
    const float sums[] = {gate, up};
    return Activation::apply(sums, {kGptOss ? args.alpha : 1, kClamped ? args.limit : __builtin_inff(), kGptOss});
  }
};

}  // namespace deep_gemm_rocm
