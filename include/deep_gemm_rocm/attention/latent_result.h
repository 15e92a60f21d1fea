// The end of attention to a latent cache: waves share the sums of probabilities, and store the output or a part of it.
#pragma once

#include "deep_gemm_rocm/arithmetic/online_softmax.h"
#include "deep_gemm_rocm/arithmetic/probabilities.h"
#include "deep_gemm_rocm/arithmetic/rounding.h"
#include "deep_gemm_rocm/attention/decode_schedule.h"
#include "deep_gemm_rocm/attention/latent_loader.h"

namespace deep_gemm_rocm {

// Sums of the lane's query in each tile of queries, once waves have shared them.
template <class Shape>
struct LatentSums {
  float sums[Shape::kRowTiles];  // of probabilities
  float log2_sums[Shape::kRowTiles];
  float largest[Shape::kRowTiles];  // logits, with kMaxima
  bool any_odd;  // whether any wave has results that aren't finite
};

// The waves have different values of the same queries.
template <class Shape>
class LatentResult {
  using Mfma = typename Shape::Mfma;
  using T = typename Shape::T;
  using Out = typename Mfma::Accumulator[Shape::kRowTiles][Shape::kWidth];
  using Sums = LatentSums<Shape>;

 public:
  DG_DEVICE LatentResult(const DecodeTile& tile, uint8_t* lds, const Out& out) : tile_(tile), lds_(lds), out_(out) {}

  // Gives all waves the sums of all tiles. Those of the wave's own tile are given, if it has one.
  DG_DEVICE Sums shared(bool has_tile, float sum, float log2_sum, float largest) const {
    if (has_tile) {
      if constexpr (Shape::kMaxima) *sum_of(2, wave_id()) = largest;
      *sum_of(0, wave_id()) = sum;
      *sum_of(1, wave_id()) = log2_sum;
    }
    bool finite = true;
    static_for<Shape::kRowTiles>([&](auto i) { finite &= all_finite(out_[i]); });
    if (lane_id() == 0) *any_odd_of(wave_id()) = 0;
    if (!finite) *any_odd_of(wave_id()) = 1;
    lds_barrier();
    Sums of_tiles;
    static_for<Shape::kRowTiles>([&](auto i) {
      of_tiles.sums[i] = *sum_of(0, i);
      of_tiles.log2_sums[i] = *sum_of(1, i);
      of_tiles.largest[i] = Shape::kMaxima ? *sum_of(2, i) : 0;
    });
    of_tiles.any_odd = ballot(*any_odd_of(lane_id() % Shape::kWaves)) != 0;
    return of_tiles;
  }

  // Stores the wave's values of the lane's query in a tile, times a factor, and its lse.
  DG_DEVICE void store(const DecodeArguments& args, int row_tile, int row, float factor, const Sums& of_tiles) const {
    const int token = row / args.heads;
    const int head = row % args.heads;
    if (token >= args.tokens_q) return;
    const bool first_lane = wave_id() == 0 && lane_id() / Mfma::kRows == 0;
    const float log2_sum = of_tiles.log2_sums[row_tile];
    const float largest = of_tiles.largest[row_tile];
    if (tile_.has_all_blocks) {
      if (factor != 0) factor *= share_beside_sink(args.sinks, head, log2_sum);
      store_row(row_tile, static_cast<T*>(args.out.data) + args.out.offset(tile_.sequence, token, head), factor);
      const int64_t stored = tile_.sequence * args.lse_batch_stride + head * args.lse_head_stride + token;
      if (args.lse != nullptr && first_lane) args.lse[stored] = lse_of(args, log2_sum);
      if (Shape::kMaxima && first_lane) args.max_logits[stored] = largest * kLn2;
    } else {
      const int64_t part_row = row_of_part(args, tile_.part, row);
      store_row(row_tile, args.split_out + part_row * Shape::kValueDim, factor);
      if (first_lane) args.split_lse[part_row] = log2_sum;
      if (Shape::kMaxima && first_lane) args.split_max[part_row] = largest;
    }
  }

 private:
  // Three numbers of each query, in place of keys.
  DG_DEVICE float* sum_of(int which, int row_tile) const {
    return reinterpret_cast<float*>(lds_) + (which * Shape::kRowTiles + row_tile) * kWaveSize + lane_id();
  }
  // Whether a wave has sums that aren't finite.
  DG_DEVICE int* any_odd_of(int wave) const {
    return reinterpret_cast<int*>(lds_) + 3 * Shape::kRowTiles * kWaveSize + wave;
  }

  template <class Row>
  DG_DEVICE void store_row(int row_tile, Row* row, float factor) const {
    const int lane_group = lane_id_computed_here() / Mfma::kRows;
#pragma unroll
    for (int element = 0; element < Mfma::kElements; ++element) {
      const int value = wave_id() * Shape::kDBlock + Mfma::row_of_element(lane_group, element) * Shape::kWidth;
      float values[Shape::kWidth];
#pragma unroll
      for (int f = 0; f < Shape::kWidth; ++f) {
        const float value = factor == 0 ? 0 : out_[row_tile][f][element] * factor;
        // A NaN without low bits doesn't overflow when it is rounded.
        values[f] = !NumberRounding<Row>::kTakesNans && __builtin_isnan(value) ? __builtin_nanf("") : value;
      }
      *(Global<Vector<Row, Shape::kWidth>>*)(row + value) =
          NumberRounding<Row>::template rounded<Shape::kWidth>(values);
    }
  }

  const DecodeTile& tile_;
  uint8_t* lds_;
  const Out& out_;
};

}  // namespace deep_gemm_rocm
