// Masks the logits of keys of a latent cache that a query doesn't see.
#pragma once

#include "deep_gemm_rocm/arithmetic/online_softmax.h"
#include "deep_gemm_rocm/attention/decode_schedule.h"
#include "deep_gemm_rocm/attention/latent_loader.h"

namespace deep_gemm_rocm {

template <class Shape>
using LatentLogits = typename Shape::Mfma::Accumulator[Shape::kKeyFragments];  // a lane's logits of its run of keys

// Sets the logits of a block's keys that don't exist (chosen tokens whose slot isn't in the cache) to -inf.
template <class Shape>
DG_DEVICE void mask_missing(const uint8_t* lds, int first_key, LatentLogits<Shape>& logits) {
  using Mfma = typename Shape::Mfma;
  static_assert(Shape::kRun == sizeof(uint64_t));
  const uint8_t* const of_block = lds + Shape::kExistsOffset + first_key % (2 * Shape::kBlockK);
  const auto exist = *reinterpret_cast<const uint64_t*>(of_block + lane_id() / Mfma::kRows * Shape::kRun);
  if (ballot(exist != 0x0101010101010101u) == 0) return;
#pragma unroll
  for (int i = 0; i < Shape::kRun; ++i) {
    if ((exist >> 8 * i & 1) == 0) logits[i / Mfma::kElements][i % Mfma::kElements] = -kInfinity;
  }
}

// Sets the logits of a block's keys outside of the window of the lane's query to -inf.
template <class Shape>
DG_DEVICE void mask_unseen(const DecodeArguments& args, const DecodeTile& tile, int tokens, int block_key,
                           LatentLogits<Shape>& logits) {
  using Mfma = typename Shape::Mfma;
  const int aligned = tokens - args.tokens_q;  // the key of token 0
  const int last_begin = aligned + args.tokens_q - 1 - args.window_left;
  if (block_key >= last_begin && block_key + Shape::kBlockK <= aligned + 1) return;
  const int lane = lane_id_computed_here();  // takes no registers between blocks, few of which are masked
  const int row = tile.first_row + wave_id() * Mfma::kRows + lane % Mfma::kRows;
  const int token = min(row / args.heads, args.tokens_q);
  const int first_key = block_key + lane / Mfma::kRows * Shape::kRun;
  const int begin = aligned + token - args.window_left - first_key;
  const int end = aligned + token + 1 - first_key;
#pragma unroll
  for (int i = 0; i < Shape::kRun; ++i) {
    if (i < begin || i >= end) logits[i / Mfma::kElements][i % Mfma::kElements] = -kInfinity;
  }
}

}  // namespace deep_gemm_rocm
