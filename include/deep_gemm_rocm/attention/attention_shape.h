// How the waves of a workgroup share a tile of queries, and the sizes of tiles in registers and LDS.
//
// Each wave has kMfmaRows queries of its own, and goes through all keys. Logits are computed transposed: keys are the
// rows and queries the columns of the MFMA's result. So each lane holds logits of one query, and its probabilities are
// already laid out as an operand of the second product. That result is transposed, too: the lane keeps its query. Only
// the maximum is exchanged between lanes, over the two or four lane groups that share a query.
#pragma once

#include "deep_gemm_rocm/attention/attention_arguments.h"
#include "deep_gemm_rocm/loading/fragment.h"
#include "deep_gemm_rocm/loading/lds_layout.h"
#include "deep_gemm_rocm/hardware/mfma.h"

namespace deep_gemm_rocm {

template <class T_, class Cache_, class Out_, int kHeadDim_, int kValueDim_, int kWaves, int kMfmaRows,
          bool kTakeTurns_, Factors kFactors, bool kCapped_, class SequenceTokens_>
struct AttentionShape {
  using T = T_;
  using Cache = Cache_;  // of keys and values: T, or E4M3, which is widened to T = bf16 on the way into LDS
  using Out = Out_;
  using SequenceTokens = SequenceTokens_;  // where keys and values are, see sequence_tokens.h
  using Mfma = deep_gemm_rocm::Mfma<T, T, kMfmaRows>;
  static constexpr int kMostLdsBytes = 64 * 1024;
  static constexpr bool kTakeTurns = kTakeTurns_;  // ping-pong: one half of the waves multiplies, the other doesn't
  // Whether a wave fills LDS while it multiplies, not in its softmax, which in FP8 takes longer than the MFMAs.
  static constexpr bool kFillsBesideMfmas = sizeof(T) == 1;
  static constexpr bool kHasHeadFactors = kFactors == Factors::kHeads;
  static constexpr bool kHasTokenFactors = kFactors == Factors::kTokens;
  static constexpr bool kCapped = kCapped_;  // whether logits have a soft cap
  static constexpr bool kPaged = SequenceTokens::kPaged;  // whether keys and values are in pages
  static constexpr bool kByToken = kPaged || kHasTokenFactors;  // whether loaders have addresses of tokens
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kValueDim = kValueDim_;
  static constexpr int kThreads = kWaves * kWaveSize;
  static constexpr int kWaveQ = kMfmaRows;
  static constexpr int kBlockQ = kWaves * kWaveQ;

  // Probabilities are up to 2^kSlack, see OnlineSoftmax. FP8 has no range for that.
  static constexpr int kSlack = sizeof(T) == 1 ? 0 : 8;

  // A block of keys is 128 bytes of a row of Vᵀ.
  static constexpr int kBlockK = kBlockKBytes / sizeof(T);
  static constexpr int kKeyFragments = kBlockK / kMfmaRows;
  static constexpr int kValueRows = round_up(kValueDim, kMfmaRows);  // of Vᵀ, padded to whole MFMA tiles
  static constexpr int kValueFragments = kValueRows / kMfmaRows;
  static constexpr int kRun = kChunkBytes / sizeof(T);
  using KeyOrder = RowsInRuns<Mfma, kRun>;

  // In LDS a key is split into kDBlocks rows of 128 bytes. Tile i, of kBlockK rows, has the i-th row of each key.
  static constexpr int kHeadBytes = kHeadDim * sizeof(T);
  static constexpr int kKeyBytes = kHeadDim * sizeof(Cache);  // in memory
  static constexpr int kDBlocks = ceil_div(kHeadBytes, kBlockKBytes);
  static constexpr bool kDTail = kHeadBytes % kBlockKBytes != 0;
  static constexpr int kReadsOfBlock = fragment_reads<Mfma>();
  static constexpr int kReadBytes = kBlockKBytes / kReadsOfBlock;
  static constexpr int kHeadReads = ceil_div(kHeadBytes, kReadBytes);  // reads of a row of q or k, zeros past its end
  static constexpr int kKeyTileBytes = kBlockK * kBlockKBytes;
  static constexpr int kValueTileBytes = kValueRows * kBlockKBytes;
  static constexpr int kKeyStageBytes = kDBlocks * kKeyTileBytes;

  // Stages of LDS: blocks of keys, and of values, that it holds at once.
  static constexpr int kKeyStages = kTakeTurns ? 2 : 1;
  static constexpr int kValueStages = kTakeTurns && 2 * (kKeyStageBytes + kValueTileBytes) <= kMostLdsBytes ? 2 : 1;
  static constexpr int kLdsBytes = kKeyStages * kKeyStageBytes + kValueStages * kValueTileBytes;
  // Whether halves that take turns share one block of values. Then only the first half replaces it.
  static constexpr bool kShareValues = kTakeTurns && kValueStages == 1;
  static constexpr int kValueThreads = kShareValues ? kThreads / 2 : kThreads;

  static_assert(kHeadBytes % kChunkBytes == 0, "chunks must divide a head");
  static_assert(!kTakeTurns || kWaves == 8, "halves that take turns are a wave on each SIMD");
  static_assert(kLdsBytes <= kMostLdsBytes, "a workgroup has at most 64 KiB of LDS");
  static_assert(!(kShareValues && kFillsBesideMfmas), "a block of values that halves share is filled beside a softmax");

  static DG_DEVICE int lane_query() { return lane_id() % kMfmaRows; }
  static DG_DEVICE int lane_group() { return lane_id() / kMfmaRows; }
};

}  // namespace deep_gemm_rocm
