// The epilogue of MLA: waves exchange the sums of probabilities, and store the output or a partial result.
#pragma once

#include "deep_gemm_rocm/arithmetic/online_softmax.h"
#include "deep_gemm_rocm/arithmetic/probabilities.h"
#include "deep_gemm_rocm/arithmetic/rounding.h"
#include "deep_gemm_rocm/attention/decode_schedule.h"
#include "deep_gemm_rocm/attention/latent_loader.h"

namespace deep_gemm_rocm {

// Softmax statistics of the lane's query in each tile of queries, once waves have exchanged them.
template <class Shape>
struct LatentSums {
  float sums[Shape::kRowTiles];  // of probabilities
  float log2_sums[Shape::kRowTiles];
  float largest[Shape::kRowTiles];  // logits, with kMaxima
  bool any_odd;  // whether any wave has results that aren't finite
};

// Each wave holds other elements of the outputs of all queries.
template <class Shape>
class LatentResult {
  using Mfma = typename Shape::Mfma;
  using T = typename Shape::T;
  using Out = typename Mfma::Accumulator[Shape::kRowTiles][Shape::kWidth];
  using Sums = LatentSums<Shape>;

 public:
  DG_DEVICE LatentResult(const DecodeTile& tile, uint8_t* lds, Out& out) : tile_(tile), lds_(lds), out_(out) {}

  // Exchanges sums through LDS: takes those of the wave's own tile, if it has one, and returns those of all tiles.
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
    of_tiles.any_odd = ballot(*any_odd_of(lane_id_computed_here() % Shape::kWaves)) != 0;
    return of_tiles;
  }

  // Stores the output, or the partial result: the wave's elements times the factor of their tile, and lse.
  DG_DEVICE void store(const DecodeArguments& args, const float (&factors)[Shape::kRowTiles], const Sums& of_tiles) {
    const bool first_lane = wave_id() == 0 && lane_id_computed_here() / Mfma::kRows == 0;
    const int heads = args.heads;
    const int queries = args.tokens_q * heads;
    // Arguments are read before the loop. In it, the compiler would read them again after each store.
    if (tile_.has_all_blocks()) {
      const HeadsTensor out = args.out;
      const int64_t lse_head_stride = args.lse_head_stride;
      const int64_t first_lse = tile_.sequence * args.lse_batch_stride;
      const float* const sinks = args.sinks;
      float* const lse = args.lse;
      float* const max_logits = args.max_logits;
      const float lse_scale = args.lse_scale;
      const float lse_of_none = args.lse_of_none;
      for_rows(queries, [&](auto i, int row) {
        const int token = row / heads;
        const int head = row - token * heads;
        float factor = factors[i];
        if (factor != 0) factor *= share_beside_sink(sinks, head, of_tiles.log2_sums[i]);
        store_row(i, static_cast<T*>(out.data) + out.offset(tile_.sequence, token, head), factor, of_tiles.any_odd);
        if (!first_lane) return;
        const int64_t stored = first_lse + head * lse_head_stride + token;
        if (lse != nullptr) lse[stored] = lse_of(of_tiles.log2_sums[i], lse_scale, lse_of_none);
        if (Shape::kMaxima) max_logits[stored] = of_tiles.largest[i] * kLn2;
      });
    } else {
      const int64_t first = static_cast<int64_t>(tile_.part) * queries;
      using Row = typename Shape::PartRow;
      uint8_t* const out = args.split_out + first * Row::kBytes;
      float* const lse = args.split_lse + first;
      float* const largest = args.split_max + first;
      for_rows(queries, [&](auto i, int row) {
        float values[Shape::kLaneValues];
        scale_row(i, factors[i], of_tiles.any_odd, values);
        Row::store(out + row * Row::kBytes, first_value(), values);
        if (first_lane) lse[row] = of_tiles.log2_sums[i];
        if (Shape::kMaxima && first_lane) largest[row] = of_tiles.largest[i];
      });
    }
  }

 private:
  // Three numbers of each query, in LDS where keys were.
  DG_DEVICE float* sum_of(int which, int row_tile) const {
    return reinterpret_cast<float*>(lds_) + (which * Shape::kRowTiles + row_tile) * kWaveSize + lane_id_computed_here();
  }
  // Whether a wave has sums that aren't finite.
  DG_DEVICE int* any_odd_of(int wave) const {
    return reinterpret_cast<int*>(lds_) + 3 * Shape::kRowTiles * kWaveSize + wave;
  }

  // Calls `store` with each tile and the lane's row in it, if there is such a query.
  template <class Store>
  DG_DEVICE void for_rows(int queries, const Store& store) const {
    const int first_row = tile_.first_row + lane_id_computed_here() % Mfma::kRows;
    static_for<Shape::kRowTiles>([&](auto i) {
      const int row = first_row + i * Mfma::kRows;
      if (row < queries) store(i, row);
    });
  }

  // The first of the neighbouring values that the lane adds up.
  static DG_DEVICE int first_value() {
    return wave_id() * Shape::kDBlock + lane_id_computed_here() / Mfma::kRows * Shape::kLaneValues;
  }

  DG_DEVICE void store_row(int row_tile, T* row, float factor, bool any_odd) {
    float values[Shape::kLaneValues];
    scale_row(row_tile, factor, any_odd, values);
    constexpr int kStored = kChunkBytes / sizeof(T);
#pragma unroll
    for (int i = 0; i < Shape::kLaneValues; i += kStored) {
      *(Global<Vector<T, kStored>>*)(row + first_value() + i) =
          NumberRounding<T>::template rounded<kStored>(values + i);
    }
  }

  DG_DEVICE void scale_row(int row_tile, float factor, bool any_odd, float (&values)[Shape::kLaneValues]) {
    // The canonical NaN, which has no low bits that rounding could carry over into the exponent.
    if (__builtin_isnan(factor)) factor = __builtin_nanf("");
    if (any_odd) tidy(row_tile, factor);
#pragma unroll
    for (int f = 0; f < Shape::kWidth; ++f) {
      const typename Mfma::Accumulator scaled = out_[row_tile][f] * factor;
#pragma unroll
      for (int element = 0; element < Mfma::kElements; ++element) {
        values[element * Shape::kWidth + f] = scaled[element];
      }
    }
  }

  // Prepares sums that aren't finite for scaling and rounding: 0 if the factor is 0, and canonical NaNs.
  DG_DEVICE void tidy(int row_tile, float factor) {
#pragma unroll
    for (int f = 0; f < Shape::kWidth; ++f) {
#pragma unroll
      for (int element = 0; element < Mfma::kElements; ++element) {
        const float value = factor == 0 ? 0 : out_[row_tile][f][element];
        out_[row_tile][f][element] = __builtin_isnan(value) ? __builtin_nanf("") : value;
      }
    }
  }

  const DecodeTile& tile_;
  uint8_t* lds_;
  Out& out_;
};

}  // namespace deep_gemm_rocm
