// The values that are quantised, from one or two matrices. load() starts all loads, and values() computes.
#pragma once

#include "deep_gemm_rocm/arithmetic/activation.h"
#include "deep_gemm_rocm/hardware/conditional.h"
#include "deep_gemm_rocm/quantise/cast_arguments.h"
#include "deep_gemm_rocm/quantise/lane_values.h"

namespace deep_gemm_rocm {

// A part of a matrix, at least one column, and no rows below one.
struct TileBounds {
  int row;
  int column;
  int rows;
  int columns;

  template <class T>
  DG_DEVICE MatrixTile<T, kLaneValues> of(const StridedMatrix& matrix, int columns_before = 0) const {
    return {matrix, row, columns_before + column, rows, columns};
  }

  // To be loaded, with kVectors or without.
  template <bool kVectors, class T>
  DG_DEVICE MatrixTile<T, kLaneValues> operand(const StridedMatrix& matrix, int columns_before = 0) const {
    return of<T>(kVectors ? with_short_rows(matrix) : matrix, columns_before);
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

// Where a lane's values of each pass are stored. Addresses are computed here, while operands are in flight, and not
// after all arithmetic.
template <class T, int kPasses, class Place>
class ValuePlaces {
 public:
  DG_DEVICE ValuePlaces(const StridedMatrix& matrix, const TileBounds& at, const Place& place)
      : tile_(at.of<T>(with_short_rows(matrix))), place_(place) {
    tile_.compute_here();
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      offsets_[pass] = tile_.offset(place.row(pass), column(pass));
      asm volatile("" : "+v"(offsets_[pass]));
    }
  }

  DG_DEVICE void store(const Vector<T, kLaneValues>& values, int pass) const {
    tile_.store(values, place_.row(pass), column(pass), offsets_[pass]);
  }

 private:
  DG_DEVICE int column(int pass) const { return place_.block_column(pass) + column_in_block(lane_id(), 0); }

  MatrixTile<T, kLaneValues> tile_;
  Place place_;
  unsigned offsets_[kPasses];
};

// Where a lane stores a scale, if `stores`. The address is a base that all lanes share plus the lane's own offset. The
// offset is below 2 GiB, since all scales take at most 1/32 as many bytes as the matrix has elements.
class ScalePlace {
 public:
  ScalePlace() = default;
  DG_DEVICE ScalePlace(const StridedMatrix& scales, int shared_row, int shared_column, int row, int column,
                       bool stores) {
    const auto row_stride = static_cast<unsigned>(scales.row_stride);
    const auto column_stride = static_cast<unsigned>(scales.column_stride);
    const uint64_t shared = static_cast<uint64_t>(row_stride) * static_cast<unsigned>(shared_row) +
                            static_cast<uint64_t>(column_stride) * static_cast<unsigned>(shared_column);
    buffer_ = {static_cast<float*>(scales.data) + shared, kOutOfBounds - 1};
    buffer_.compute_here();
    const unsigned own = static_cast<unsigned>(row) * row_stride + static_cast<unsigned>(column) * column_stride;
    offset_ = stores ? own * static_cast<unsigned>(sizeof(float)) : kOutOfBounds;
    asm volatile("" : "+v"(offset_));
  }

  DG_DEVICE void store(float scale) const { buffer_.store(scale, offset_); }

 private:
  Buffer buffer_;
  unsigned offset_;
};

template <class T, int kPasses>
struct PlainInput {
  LaneValues<T, kPasses> x;

  template <bool kVectors, class Place>
  DG_DEVICE void load(const CastArguments& args, const TileBounds& at, const Place& place) {
    x.template load<kVectors>(at.operand<kVectors, T>(args.x), place);
  }

  DG_DEVICE void wait() { x.wait(); }

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
    gate.template load<kVectors>(at.operand<kVectors, T>(args.x), place);
    up.template load<kVectors>(at.operand<kVectors, T>(args.x, args.columns), place);
  }

  DG_DEVICE void wait() { gate.wait(); }

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
