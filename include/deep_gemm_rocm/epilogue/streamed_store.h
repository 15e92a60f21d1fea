// Stores a tile's results between its last MFMAs, each as soon as its sum is complete. The vector ALU has time for it
// there, and stores are out of the way when the next tile needs the port of vector L1. Simulated, 4096x7168x2048 takes
// 57.2 µs so and 59.6 without, and 4096x32768x512 77.5 and 87.2.
#pragma once

#include "deep_gemm_rocm/epilogue/epilogue.h"

namespace deep_gemm_rocm {

// Streaming assumes that no result is NaN, that vectors of the output are aligned, and that rows are stored as Tile,
// the type of the tile's streamed(), says. This holds for nearly all tiles. If not, finish() returns false, and
// store_rest() stores the tile once more, element by element.
template <class Kind, class Shape, class Tile>
class StreamedStore {
  using D = typename Kind::D;
  using Rounding = NumberRounding<D>;
  using Output = OutputOf<Kind, Shape>;
  static constexpr int kVector = Output::kVector;
  static constexpr int kColumns = Shape::kLaneColumns;
  static constexpr int kVectors = kColumns / kVector;
  static constexpr int kSums = Shape::kFragsM * kColumns;
  static constexpr bool kLooksForNans = !Rounding::kTakesNans || Kind::kScaling == Scaling::kGroups;
  static_assert(kColumns % 4 == 0, "four results at a time are looked at for NaNs");

 public:
  static constexpr bool kStreams = true;

  // Stores a tile without K-blocks. Neither this nor store_rest() is unrolled: they are rare, and would take long to
  // compile.
  template <class AnyTile, class Mma>
  static DG_DEVICE void store_without_sums(const AnyTile& tile, const Mma&, uint8_t*) {
    const GemmArguments& args = gemm_arguments();
    const Output output = output_of(args, tile);
    const int lane = lane_id();
#pragma unroll 1
    for (int i = 0; i < Shape::kFragsM; ++i) {
      const int row = Shape::lane_row(lane, i);
      float results[kVector];
#pragma unroll
      for (int e = 0; e < kVector; ++e) results[e] = tile.result(row, 0);
      const auto values = Storage<D>::template rounded<kVector>(results);
#pragma unroll 1
      for (int first = 0; first < kColumns; first += kVector) {
        output.store(values, row, Shape::lane_column(lane, first));
      }
    }
  }

  // Stores a tile for which finish() returned false. Registers can't be indexed, so a row's sums move up by one in each
  // turn.
  template <class AnyTile, class Mma>
  static DG_DEVICE void store_rest(const AnyTile& tile, const Mma& mma, uint8_t*) {
    const GemmArguments& args = gemm_arguments();
    const Output output = output_of(args, tile);
    const int lane = lane_id_computed_here();
    float sums[Shape::kFragsM][kColumns];
#pragma unroll
    for (int sum = 0; sum < kSums; ++sum) {
      sums[sum / kColumns][sum % kColumns] = sum_of(mma, sum);
    }
#pragma unroll 1
    for (int column = 0; column < kColumns; ++column) {
#pragma unroll
      for (int i = 0; i < Shape::kFragsM; ++i) {
        const int row = Shape::lane_row(lane, i);
        const float result = tile.result(row, sums[i][0]);
        output.store_element(Storage<D>::template rounded<1>(&result)[0], row, Shape::lane_column(lane, column));
#pragma unroll
        for (int next = 1; next < kColumns; ++next) sums[i][next - 1] = sums[i][next];
      }
    }
  }

  DG_DEVICE StreamedStore(const Tile& tile, bool is_streamed) : tile_(tile), is_streamed_(is_streamed) {}

  // Computes addresses, before the first slot.
  DG_DEVICE void begin() {
    const GemmArguments& args = gemm_arguments();
    const Output output = output_of(args, tile_);
    buffer_ = output.buffer();
    takes_numbers_ = is_streamed_ && output.is_aligned() && output.has_rows_in_order();
    row_step_ = takes_numbers_ ? output.offset_of_rows(Shape::Mfma::kRows) : 0;
    lane_ = lane_id_computed_here();
#pragma unroll
    for (int vector = 0; vector < kVectors; ++vector) {
      const unsigned offset = output.offset(Shape::lane_row(lane_, 0), Shape::lane_column(lane_, vector * kVector));
      offsets_[vector] = takes_numbers_ ? offset : kOutOfBounds;
    }
    may_be_nan_ = {};
  }

  // Stores results that were complete before `slot`, as many as fit between two MFMAs.
  template <class Mma>
  DG_DEVICE void after_slot(const Mma& mma, int slot) {
    store(mma, stored_before<Mma>(slot), stored_before<Mma>(slot + 1));
  }

  // Stores the last results. False if the tile still has to be stored by store_rest().
  template <class Mma>
  DG_DEVICE bool finish(const Mma& mma) {
    store(mma, stored_before<Mma>(Mma::kSlots), kSums);
    const bool has_nans = kLooksForNans && ballot(__builtin_isunordered(may_be_nan_[0], may_be_nan_[1])) != 0;
    return takes_numbers_ && !has_nans;
  }

 private:
  template <class Mma>
  static constexpr int stored_before(int slot) {
    return (Mma::Order::completed(slot - 1) + Mma::Order::completed(slot)) / 2;
  }

  template <class AnyTile>
  static DG_DEVICE Output output_of(const GemmArguments& args, const AnyTile& tile) {
    return {output_tile<D>(args.d, tile.group, tile.m, tile.n, tile.stored_rows, args.n - tile.n),
            OutputColumns<Kind>(args, tile.n)};
  }

  // Sum number `sum` of those that the lane holds, row by row.
  template <class Mma>
  static DG_DEVICE float sum_of(const Mma& mma, int sum) {
    const int column = sum % kColumns;
    return mma.total(sum / kColumns, column / Shape::Mfma::kElements, column % Shape::Mfma::kElements);
  }

  // Stores sums number `first` up to, not including, `end`.
  template <class Mma>
  DG_DEVICE void store(const Mma& mma, int first, int end) {
#pragma unroll
    for (int sum = first; sum < end; ++sum) {
      const int i = sum / kColumns;
      const int column = sum % kColumns;
      const int row = Shape::lane_row(lane_, i);
      const float result = tile_.result(row, sum_of(mma, sum));
      auto prepared = Rounding::prepared(result);
      asm volatile("" ::"v"(prepared));  // computed here, not at the store
      last_[column % 4] = result;
      if (kLooksForNans && column % 4 == 3) {
        may_be_nan_ = __builtin_elementwise_fma(Vector<float, 2>{last_[0], last_[1]},
                                                Vector<float, 2>{last_[2], last_[3]}, may_be_nan_);
        asm volatile("" : "+v"(may_be_nan_));
      }
      if (column % 2 == 0) {
        prepared_before_ = prepared;
        continue;
      }
      const auto pair = Rounding::joined(prepared_before_, prepared);
      values_[column % kVector - 1] = pair[0];
      values_[column % kVector] = pair[1];
      if (column % kVector != kVector - 1) continue;
      buffer_.store(values_, offsets_[column / kVector]);
      offsets_[column / kVector] += row_step_;
    }
  }

  const Tile& tile_;
  bool is_streamed_;
  Buffer buffer_;
  bool takes_numbers_;
  typename Output::Values values_;
  unsigned offsets_[kVectors];
  unsigned row_step_;
  int lane_;
  float last_[4];
  decltype(Rounding::prepared(0)) prepared_before_;  // the first of a pair
  Vector<float, 2> may_be_nan_;  // NaN if a result was, or maybe if infinite
};

}  // namespace deep_gemm_rocm
