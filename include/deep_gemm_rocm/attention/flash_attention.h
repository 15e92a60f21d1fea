// Flash attention of one tile of queries: a loop over the blocks of keys that any of them sees.
#pragma once

#include "deep_gemm_rocm/attention/attention_shape.h"
#include "deep_gemm_rocm/attention/attention_tile.h"
#include "deep_gemm_rocm/attention/paged_loader.h"
#include "deep_gemm_rocm/attention/run_loader.h"
#include "deep_gemm_rocm/arithmetic/online_softmax.h"
#include "deep_gemm_rocm/arithmetic/probabilities.h"
#include "deep_gemm_rocm/arithmetic/rounding.h"
#include "deep_gemm_rocm/hardware/conditional.h"
#include "deep_gemm_rocm/loading/tile_loader.h"
#include "deep_gemm_rocm/loading/transposing_tile_loader.h"

namespace deep_gemm_rocm {

constexpr int kDescaleTokens = 128;  // that share a factor

template <class T>
DG_DEVICE OperandTile head_rows(const HeadsTensor& tensor, int sequence, int head, const Tokens& tokens, int first,
                                int width) {
  const int64_t offset = tensor.offset(sequence, tokens.first + static_cast<int64_t>(first), head);
  constexpr int64_t kBytes = sizeof(T);
  return {static_cast<const uint8_t*>(tensor.data) + offset * kBytes, tokens.count - first,
          width * static_cast<int>(kBytes), tensor.token_stride * kBytes};
}

// A buffer of up to `max_rows` rows.
DG_DEVICE Buffer buffer_of(const OperandTile& rows, int max_rows) {
  const int64_t last_row = min(rows.rows, max_rows) - 1;
  return Buffer{rows.first, static_cast<unsigned>(last_row * rows.stride_bytes + rows.k_bytes)}.only_if(last_row >= 0);
}

// The factors of one head.
struct HeadDescales {
  const float* first;
  int64_t block_stride;
  int last_block;

  DG_DEVICE HeadDescales(const Descales& descales, int sequence, int head)
      : first(descales.data + sequence * descales.batch_stride + head * descales.head_stride),
        block_stride(descales.block_stride),
        last_block(descales.last_block) {}

  DG_DEVICE float of_token(int token) const { return first[min(token / kDescaleTokens, last_block) * block_stride]; }
};

template <class Shape>
class FlashAttention {
  using Mfma = typename Shape::Mfma;
  using T = typename Shape::T;
  using Out = typename Shape::Out;
  using Cache = typename Shape::Cache;
  using SequenceTokens = typename Shape::SequenceTokens;
  using FormOfKeys = Conditional<kIsSame<T, Cache>, AsTheyAre, WidenedFp8>;
  using KeyLoader = Conditional<
      !Shape::kByToken,
      TileLoader<typename Shape::KeyOrder, Shape::kBlockK, Shape::kBlockK, Shape::kThreads, Shape::kDBlocks,
                 Shape::kDTail, false, FormOfKeys>,
      Conditional<Storage<T>::kIsFp8,
                  PagedKeyLoader<SequenceTokens, typename Shape::KeyOrder, Shape::kBlockK, Shape::kThreads,
                                 Shape::kHeadBytes>,
                  KeyRunLoader<SequenceTokens, typename Shape::KeyOrder, Shape::kBlockK, Shape::kThreads,
                               Shape::kDBlocks, Shape::kKeyBytes, FormOfKeys, Shape::kHasTokenFactors>>>;
  using ValueLoader = Conditional<
      !Shape::kByToken, TransposingTileLoader<T, RowsInOrder, Shape::kValueRows, Shape::kValueThreads, 1, Cache>,
      Conditional<Storage<T>::kIsFp8,
                  PagedValueLoader<SequenceTokens, T, Shape::kValueDim, Shape::kValueRows, Shape::kValueThreads>,
                  ValueRunLoader<SequenceTokens, T, Cache, Shape::kValueDim, Shape::kValueRows, Shape::kValueThreads,
                                 Shape::kHasTokenFactors>>>;

 public:
  DG_DEVICE FlashAttention(const AttentionArguments& args, const QueryTile& tile, uint8_t* lds)
      : args_(args),
        tile_(tile),
        visibility_(args, tile),
        lds_keys_(lds),
        lds_values_(lds + Shape::kKeyStages * Shape::kKeyStageBytes),
        keys_(head_rows<Cache>(args.k, tile.sequence, kv_head(), tile.keys, 0, Shape::kHeadDim)),
        key_loader_(0),
        value_loader_(0),
        key_tokens_(args, args.k, sizeof(Cache), tile, kv_head()),
        value_tokens_(args, args.v, sizeof(Cache), tile, kv_head()),
        key_factors_(args, args.k_descale.of_tokens(), sizeof(float), tile, kv_head()),
        value_factors_(args, args.v_descale.of_tokens(), sizeof(float), tile, kv_head()),
        k_descales_(args.k_descale, tile.sequence, kv_head()),
        v_descales_(args.v_descale, tile.sequence, kv_head()),
        wave_query_(tile.first_query + wave_id() * Shape::kWaveQ),
        seen_by_any_(visibility_.of_any(wave_query_, min(Shape::kWaveQ, tile.queries.count - wave_query_))),
        seen_by_all_(visibility_.of_all(wave_query_, min(Shape::kWaveQ, tile.queries.count - wave_query_))) {
    if constexpr (!Shape::kByToken) {
      key_loader_.begin({keys_.first, Shape::kBlockK, keys_.k_bytes, keys_.stride_bytes}, 0);
      const OperandTile rows =
          head_rows<Cache>(args.v, tile.sequence, kv_head(), tile.keys, 0, Shape::kValueDim);
      value_loader_.begin(values(rows), 0);
    }
    load_queries();
    logit_scale_ = args.logit_scale;
    logit_cap_ = args.logit_cap;
    if constexpr (Storage<T>::kIsFp8) {
      logit_scale_ *= HeadDescales(args.q_descale, tile.sequence, tile.head).of_token(wave_query_);
    }
  }

  DG_DEVICE void run() {
    const int queries = min(Shape::kBlockQ, tile_.queries.count - tile_.first_query);
    const KeyRange visited = visibility_.of_any(tile_.first_query, queries);
    if (visited.begin >= visited.end) return;
    const int first = visited.begin / Shape::kBlockK;
    const int end = ceil_div(visited.end, Shape::kBlockK);
    look_up_keys(first);
    look_up_values(first);
    if constexpr (Shape::kTakeTurns) {
      take_turns(first, end);
    } else {
      go_together(first, end);
    }
  }

  // Stores the output and lse. Queries that see no key get zeros and -inf.
  DG_DEVICE void store() const {
    const auto& args = kernel_arguments<AttentionArguments>();
    if (wave_query_ >= tile_.queries.count) return;
    const int lane_query = lane_id_computed_here() % Mfma::kRows;
    const float log_sum_exp = softmax_.log_sum_exp();
    const float sum = softmax_.sum();
    const float share = share_beside_sink(args.sinks, tile_.head, softmax_.log2_sum());
    const float factor = share * (Shape::kHasHeadFactors ? out_unit_ : 1) / sum;
    const OperandTile rows =
        head_rows<Out>(args.out, tile_.sequence, tile_.head, tile_.queries, wave_query_, Shape::kValueDim);
    const Buffer out = buffer_of(rows, Shape::kWaveQ);
    const unsigned offset = lane_query * static_cast<unsigned>(rows.stride_bytes);
    static_for<Shape::kValueFragments>([&](auto fragment) {
#pragma unroll
      for (int first = 0; first < Mfma::kElements; first += kVector) {
        Vector<Out, kVector> vector;
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
          vector[e] = rounded_to<Out>(sum == 0 ? 0 : out_[fragment][first + e] * factor);
        }
        const int column = fragment * Mfma::kRows + Mfma::row_of_element(Shape::lane_group(), first);
        const bool exists = Shape::kValueRows == Shape::kValueDim || column < Shape::kValueDim;
        out.store(vector, exists ? offset + column * static_cast<unsigned>(sizeof(Out)) : kOutOfBounds);
      }
    });
    if (args.lse != nullptr && Shape::lane_group() == 0 && lane_query < rows.rows) {
      const int64_t query = tile_.queries.first + static_cast<int64_t>(wave_query_) + lane_query;
      float* const lse = args.lse + tile_.sequence * args.lse_batch_stride + tile_.head * args.lse_head_stride;
      lse[query] = log_sum_exp;
    }
  }

 private:
  static constexpr int kVector = 4;  // consecutive rows of a result that a lane holds

  // All waves do the same, and LDS has one stage. While a block is computed, the next one is loaded into registers. The
  // next block's keys go into LDS during the softmax and the second product, the block's own values during the first
  // product.
  DG_DEVICE void go_together(int first, int end) {
    load_keys(first);
    load_values(first);
    store_keys(first);
    load_keys(first + 1);
    lds_barrier();
    for (int block = first; block < end; ++block) {
      const bool seen = is_seen(block);
      store_values(block);
      load_values(block + 1);
      if (seen) {
        multiply_keys(block);
      } else {
        lds_barrier();
      }
      load_units(block);
      store_keys(block + 1);
      load_keys(block + 2);
      if (seen) {
        update_softmax(block);
        add_values(block);
      } else {
        lds_barrier();
      }
    }
  }

  // Each SIMD has a wave of both halves of the workgroup. While one half multiplies, with priority, the other computes
  // probabilities and fills LDS; barriers separate these intervals, and the second half is one interval behind:
  //
  //   interval      0       1       2             3             4
  //   first half    K 0     soft 0  V 0, K 1      soft 1        V 1, K 2 …
  //   second half   –       K 0     soft 0        V 0, K 1      soft 1 …
  //
  // Values of block b and keys of b + 1 are read in intervals 2b + 2 and 2b + 3. They replace those of two blocks
  // before, which were read until 2b - 1. Both halves store their share in between: the first half in 2b + 1, at the
  // softmax of b, and the second in 2b, at the softmax of b - 1. In FP8, where the softmax takes longer than the
  // products, both store the next blocks while they multiply. Loads from memory start one round before the stores.
  //
  // Where LDS has room for one block of values only, a barrier in the middle of each interval separates values from
  // keys. The values of b - 1 are read until the middle of 2b + 1, and then the first half, whose softmax of b is done
  // by then, replaces them.
  DG_DEVICE void take_turns(int first, int end) {
    const bool second_half = is_second_half();
    load_units(first);
    load_keys(first);
    store_keys(first);
    load_keys(first + 1);
    if (fills_values()) load_values(first);
    if (second_half || Shape::kFillsBesideMfmas) store_and_load_next(first);
    lds_barrier();
    if (second_half) skip_interval();
    multiply_keys(first);
    for (int block = first; block < end; ++block) {
      const bool seen = is_seen(block);
      if (!Shape::kFillsBesideMfmas && !Shape::kShareValues) store_and_load_next(block + second_half);
      if (seen) update_softmax(block);
      load_units(block + 1);
      if constexpr (Shape::kShareValues) {
        lds_barrier();
        store_and_load_next(block + second_half);
      }
      lds_barrier();
      __builtin_amdgcn_sched_barrier(0);
      __builtin_amdgcn_s_setprio(1);
      if (Shape::kFillsBesideMfmas) store_and_load_next(block + 1);
      if (seen) {
        add_values_and_multiply_keys(block);
      } else if (is_seen(block + 1)) {
        multiply_keys(block + 1);
      } else {
        skip_interval();
      }
      __builtin_amdgcn_s_setprio(0);
      __builtin_amdgcn_sched_barrier(0);
    }
    if (!second_half) skip_interval();
  }

  // The barriers of an interval in which a half has nothing to do.
  static DG_DEVICE void skip_interval() {
    if (Shape::kShareValues) lds_barrier();
    lds_barrier();
  }

  DG_DEVICE void store_and_load_next(int block) {
    if (fills_values()) store_values(block);
    store_keys(block + 1);
    // Loads of keys come first, as they need the page that was looked up. Were they after the loads of values, which
    // some waves skip, the compiler couldn't count the loads in flight, and would wait for all of them.
    load_keys(block + 2);
    if (fills_values()) load_values(block + 1);
  }

  static DG_DEVICE bool is_second_half() { return wave_id() >= Shape::kThreads / kWaveSize / 2; }
  static DG_DEVICE bool fills_values() { return !Shape::kShareValues || !is_second_half(); }

  DG_DEVICE int kv_head() const { return tile_.head / (args_.heads / args_.kv_heads); }

  // Vᵀ, whose rows are contiguous in memory.
  static DG_DEVICE OperandTile values(const OperandTile& rows) {
    return {rows.first, Shape::kValueDim, rows.rows * static_cast<int>(sizeof(Cache)), rows.stride_bytes};
  }

  DG_DEVICE void load_queries() {
    const OperandTile rows =
        head_rows<T>(args_.q, tile_.sequence, tile_.head, tile_.queries, wave_query_, Shape::kHeadDim);
    const Buffer buffer = buffer_of(rows, Shape::kWaveQ);
    const unsigned offset = Shape::lane_query() * static_cast<unsigned>(rows.stride_bytes);
#pragma unroll
    for (int read = 0; read < Shape::kHeadReads; ++read) {
      const int in_row = Shape::lane_group() * kChunkBytes + read * Shape::kReadBytes;
      queries_[read] = buffer.load<MfmaOperands>(in_row < Shape::kHeadBytes ? offset + in_row : kOutOfBounds);
    }
  }

  DG_DEVICE void load_keys(int block) {
    const int key = block * Shape::kBlockK;
    if constexpr (Shape::kByToken) {
#pragma unroll
      for (int i = 0; i < Shape::kDBlocks * KeyLoader::kPasses; ++i) {
        key_loader_.load(key_tokens_, i / KeyLoader::kPasses, i % KeyLoader::kPasses, key);
      }
      if constexpr (Shape::kHasTokenFactors) {
#pragma unroll
        for (int pass = 0; pass < KeyLoader::kPasses; ++pass) {
          key_loader_.load_factors(key_factors_, pass, key);
        }
      }
      look_up_keys(block + 1);
    } else {
      key_loader_.move_to(
          {keys_.first + key * keys_.stride_bytes, keys_.rows - key, keys_.k_bytes, keys_.stride_bytes});
#pragma unroll
      for (int i = 0; i < Shape::kDBlocks * KeyLoader::kPasses; ++i) {
        key_loader_.load(i / KeyLoader::kPasses, i % KeyLoader::kPasses, i / KeyLoader::kPasses);
      }
    }
  }

  // Loads the descale factors of a block's keys and values, early enough to hide the latency.
  DG_DEVICE void load_units(int block) {
    if constexpr (Shape::kHasHeadFactors) {
      key_unit_ = k_descales_.of_token(block * Shape::kBlockK);
      value_unit_ = v_descales_.of_token(block * Shape::kBlockK);
    }
  }

  DG_DEVICE uint8_t* lds_keys(int block) const { return lds_keys_ + block % Shape::kKeyStages * Shape::kKeyStageBytes; }
  DG_DEVICE uint8_t* lds_values(int block) const {
    return lds_values_ + block % Shape::kValueStages * Shape::kValueTileBytes;
  }

  DG_DEVICE void store_keys(int block) const {
#pragma unroll
    for (int i = 0; i < Shape::kDBlocks * KeyLoader::kPasses; ++i) {
      key_loader_.store(i / KeyLoader::kPasses, i % KeyLoader::kPasses,
                        lds_keys(block) + i / KeyLoader::kPasses * Shape::kKeyTileBytes);
    }
  }

  DG_DEVICE void load_values(int block) {
#pragma unroll
    for (int pass = 0; pass < ValueLoader::kPasses; ++pass) {
      if (!ValueLoader::takes_part(pass)) continue;
      if constexpr (Shape::kByToken) {
        value_loader_.load(value_tokens_, pass, block * Shape::kBlockK);
      } else {
        value_loader_.load(0, pass, block);
      }
    }
    if constexpr (Shape::kHasTokenFactors) value_loader_.load_factors(value_factors_, block * Shape::kBlockK);
    look_up_values(block + 1);
  }

  // Loads the block table's entries for a block's keys or values, which the next load needs.
  DG_DEVICE void look_up_keys(int block) {
    if constexpr (Shape::kPaged) {
#pragma unroll
      for (int pass = 0; pass < KeyLoader::kPasses; ++pass) {
        key_loader_.look_up(key_tokens_, pass, block * Shape::kBlockK);
      }
    }
  }
  DG_DEVICE void look_up_values(int block) {
    if constexpr (Shape::kPaged) value_loader_.look_up(value_tokens_, block * Shape::kBlockK);
  }

  DG_DEVICE void store_values(int block) const {
#pragma unroll
    for (int pass = 0; pass < ValueLoader::kPasses; ++pass) value_loader_.store(0, pass, lds_values(block));
  }

  DG_DEVICE bool is_seen(int block) const {
    const int key = block * Shape::kBlockK;
    return key < seen_by_any_.end && key + Shape::kBlockK > seen_by_any_.begin;
  }
  DG_DEVICE bool is_seen_by_all(int block) const {
    const int key = block * Shape::kBlockK;
    return key >= seen_by_all_.begin && key + Shape::kBlockK <= seen_by_all_.end;
  }

  // Each product has its barrier between its last read of LDS and its last MFMAs, so that other waves start while these
  // run. The barrier between values that halves share and keys is a bare s_barrier: it doesn't wait for the first reads
  // of keys, which are in flight.

  // logits = K · Qᵀ
  DG_DEVICE void multiply_keys(int block) {
    const uint8_t* const keys = lds_keys(block);
    start_logits();
    if (Shape::kShareValues) lds_barrier();
    pipelined_reads<kKeyReads>([&](int i) { return read_keys(keys, i); },
                               [&](int i, const MfmaOperands& operands) { multiply_keys(i, operands); }, lds_barrier);
  }

  // out += Vᵀ · Pᵀ
  DG_DEVICE void add_values(int block) {
    const uint8_t* const values = lds_values(block);
    pipelined_reads<kValueReads>([&](int i) { return read_values(values, i); },
                                 [&](int i, const MfmaOperands& operands) { add_values(i, operands); }, lds_barrier);
  }

  // The second product of this block, and the first one of the next block.
  DG_DEVICE void add_values_and_multiply_keys(int block) {
    const uint8_t* const values = lds_values(block);
    const uint8_t* const keys = lds_keys(block + 1);
    start_logits();
    pipelined_reads<kValueReads + kKeyReads>(
        [&](int i) { return i < kValueReads ? read_values(values, i) : read_keys(keys, i - kValueReads); },
        [&](int i, const MfmaOperands& operands) {
          if (i < kValueReads) {
            add_values(i, operands);
          } else {
            if (Shape::kShareValues && i == kValueReads) __builtin_amdgcn_s_barrier();
            multiply_keys(i - kValueReads, operands);
          }
        },
        [] {
          __builtin_amdgcn_s_setprio(2);
          lds_barrier();
        });
  }

  static constexpr int kKeyReads = Shape::kHeadReads * Shape::kKeyFragments;
  static constexpr int kValueReads = Shape::kReadsOfBlock * Shape::kValueFragments;

  DG_DEVICE void start_logits() {
#pragma unroll
    for (int fragment = 0; fragment < Shape::kKeyFragments; ++fragment) logits_[fragment] = 0;
  }

  static DG_DEVICE MfmaOperands read_keys(const uint8_t* keys, int i) {
    const int read = i / Shape::kKeyFragments;
    const uint8_t* const tile = keys + read / Shape::kReadsOfBlock * Shape::kKeyTileBytes;
    return read_operands<Mfma>(tile, i % Shape::kKeyFragments * Mfma::kRows, read % Shape::kReadsOfBlock);
  }

  DG_DEVICE void multiply_keys(int i, const MfmaOperands& keys) {
    auto& logits = logits_[i % Shape::kKeyFragments];
    const MfmaOperands& queries = queries_[i / Shape::kKeyFragments];
    logits = Mfma::multiply_add(keys[0], queries[0], logits);
    logits = Mfma::multiply_add(keys[1], queries[1], logits);
  }

  static DG_DEVICE MfmaOperands read_values(const uint8_t* values, int i) {
    return read_operands<Mfma>(values, i % Shape::kValueFragments * Mfma::kRows, i / Shape::kValueFragments);
  }

  DG_DEVICE void add_values(int i, const MfmaOperands& values) {
    auto& out = out_[i % Shape::kValueFragments];
    const int read = i / Shape::kValueFragments;
    out = Mfma::multiply_add(values[0], probabilities_[2 * read], out);
    out = Mfma::multiply_add(values[1], probabilities_[2 * read + 1], out);
  }

  // Turns logits into probabilities, and multiplies earlier sums by the factor for the new maximum.
  DG_DEVICE void update_softmax(int block) {
    const int key = block * Shape::kBlockK;
    float scale = logit_scale_;
    if constexpr (Shape::kHasHeadFactors) scale = positive(scale * key_unit_);
    if constexpr (Shape::kCapped) {
      cap_logits(logits_, scale * (2 * kLog2E / logit_cap_));
      scale = logit_cap_;
    }
    if (!is_seen_by_all(block)) mask(key);
    float factor = softmax_.update(logits_, scale);
    if constexpr (Shape::kHasHeadFactors) {
      if (ballot(value_unit_ != out_unit_) != 0) factor *= out_unit_ / value_unit_;
      out_unit_ = value_unit_;
    }
    if (Shape::kSlack == 0 || ballot(factor != 1) != 0) {
#pragma unroll
      for (int i = 0; i < Shape::kValueFragments; ++i) out_[i] *= factor;
    }
#pragma unroll
    for (int i = 0; i < 2 * Shape::kReadsOfBlock; ++i) probabilities_[i] = probability_operand<Mfma, T>(logits_, i);
  }

  // Replaces the logits of keys that the lane's query doesn't see.
  DG_DEVICE void mask(int key) {
    const KeyRange seen = visibility_.of_query(wave_query_ + Shape::lane_query());
    const int first = seen.begin - key - Shape::lane_group() * Shape::kRun;
    const unsigned count = max(seen.end - seen.begin, 0);
    static_for<Shape::kKeyFragments * Mfma::kElements>([&](auto i) {
      const bool visible = static_cast<unsigned>(Shape::KeyOrder::of_element(i) - first) < count;
      float logit = visible ? logits_[i / Mfma::kElements][i % Mfma::kElements] : -kInfinity;
      asm volatile("" : "+v"(logit));  // one by one: the results of all comparisons at once would take too many SGPRs
      logits_[i / Mfma::kElements][i % Mfma::kElements] = logit;
    });
    if constexpr (Shape::kHasHeadFactors) {
      // A query that sees nothing of the block keeps its factor, or rescaling would round its sums.
      const bool sees_any = seen.begin < key + Shape::kBlockK && seen.end > key;
      value_unit_ = sees_any ? value_unit_ : out_unit_;
    }
  }

  const AttentionArguments& args_;
  QueryTile tile_;
  Visibility visibility_;
  uint8_t* lds_keys_;
  uint8_t* lds_values_;
  OperandTile keys_;
  KeyLoader key_loader_;
  ValueLoader value_loader_;
  SequenceTokens key_tokens_, value_tokens_, key_factors_, value_factors_;  // for loaders by token
  HeadDescales k_descales_;
  HeadDescales v_descales_;
  int wave_query_;
  KeyRange seen_by_any_;
  KeyRange seen_by_all_;
  MfmaOperands queries_[Shape::kHeadReads];
  typename Mfma::Accumulator logits_[Shape::kKeyFragments];
  MfmaOperand probabilities_[2 * Shape::kReadsOfBlock];
  typename Mfma::Accumulator out_[Shape::kValueFragments] = {};
  OnlineSoftmax<Mfma, T, Shape::kSlack> softmax_;
  float logit_scale_;
  float logit_cap_;
  float key_unit_, value_unit_;  // descale factors of the next block's keys and values
  float out_unit_ = 1;           // the descale factor by which out_ is still to be multiplied
};

}  // namespace deep_gemm_rocm
