// Attention of one tile of queries: a loop over the blocks of keys that any of them sees.
#pragma once

#include "deep_gemm_rocm/attention_shape.h"
#include "deep_gemm_rocm/attention_tile.h"
#include "deep_gemm_rocm/online_softmax.h"
#include "deep_gemm_rocm/probabilities.h"
#include "deep_gemm_rocm/tile_loader.h"
#include "deep_gemm_rocm/transposing_tile_loader.h"

namespace deep_gemm_rocm {

constexpr int kDescaleTokens = 128;  // that share a factor

template <class T>
DG_DEVICE OperandTile head_rows(const HeadsTensor& tensor, int sequence, int head, const Tokens& tokens, int first,
                                int width) {
  const int64_t token = tokens.first + static_cast<int64_t>(first);
  const int64_t offset = sequence * tensor.batch_stride + token * tensor.token_stride + head * tensor.head_stride;
  constexpr int64_t kBytes = sizeof(T);
  return {static_cast<const uint8_t*>(tensor.data) + offset * kBytes, tokens.count - first,
          width * static_cast<int>(kBytes), tensor.token_stride * kBytes};
}

// Of which up to `max_rows` rows are accessed.
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
  using KeyLoader =
      TileLoader<typename Shape::KeyOrder, Shape::kBlockK, Shape::kThreads, Shape::kDBlocks, Shape::kDTail>;
  using ValueLoader = TransposingTileLoader<T, RowsInOrder, Shape::kValueDim, Shape::kThreads, 1>;

 public:
  DG_DEVICE FlashAttention(const AttentionArguments& args, const QueryTile& tile, uint8_t* lds)
      : args_(args),
        tile_(tile),
        visibility_(args, tile),
        lds_keys_(lds),
        lds_values_(lds + Shape::kDBlocks * Shape::kKeyTileBytes),
        keys_(head_rows<T>(args.k, tile.sequence, kv_head(), tile.keys, 0, Shape::kHeadDim)),
        key_loader_({keys_.first, Shape::kBlockK, keys_.k_bytes, keys_.stride_bytes}),
        value_loader_(values(head_rows<T>(args.v, tile.sequence, kv_head(), tile.keys, 0, Shape::kValueDim))),
        k_descales_(args.k_descale, tile.sequence, kv_head()),
        v_descales_(args.v_descale, tile.sequence, kv_head()),
        wave_query_(tile.first_query + wave_id() * Shape::kWaveQ),
        seen_by_any_(visibility_.of_any(wave_query_, min(Shape::kWaveQ, tile.queries.count - wave_query_))),
        seen_by_all_(visibility_.of_all(wave_query_, min(Shape::kWaveQ, tile.queries.count - wave_query_))) {
    load_queries();
  }

  // While a block is computed, the next one is on its way: from memory in registers, then in LDS. Keys are replaced
  // there while probabilities and the second product are computed, values during the first product.
  DG_DEVICE void run() {
    const int queries = min(Shape::kBlockQ, tile_.queries.count - tile_.first_query);
    const KeyRange visited = visibility_.of_any(tile_.first_query, queries);
    if (visited.begin >= visited.end) return;
    const int first = visited.begin / Shape::kBlockK;
    const int end = ceil_div(visited.end, Shape::kBlockK);
    load_keys(first);
    load_values(first);
    store_keys();
    load_keys(first + 1);
    lds_barrier();
    for (int block = first; block < end; ++block) {
      const bool seen = is_seen(block);
      store_values();
      load_values(block + 1);
      if (seen) multiply_keys();
      lds_barrier();
      store_keys();
      load_keys(block + 2);
      if (seen) add_values(block);
      lds_barrier();
    }
  }

  // Rows that see no key are zeros, and their lse is -inf.
  DG_DEVICE void store() const {
    const auto& args = first_kernel_argument<AttentionArguments>();
    if (wave_query_ >= tile_.queries.count) return;
    const int lane_query = lane_id_computed_here() % Mfma::kRows;
    const float log_sum_exp = softmax_.log_sum_exp();
    const float sum = softmax_.sum();
    const float factor = (Shape::kScaled ? value_unit_ : 1) / sum;
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
          vector[e] = static_cast<Out>(sum == 0 ? 0 : out_[fragment][first + e] * factor);
        }
        const int column = fragment * Mfma::kRows + Mfma::row_of_element(Shape::lane_group(), first);
        out.store(vector, offset + column * sizeof(Out));
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

  DG_DEVICE int kv_head() const { return tile_.head / (args_.heads / args_.kv_heads); }

  // Vᵀ, whose rows' contiguous dimension are the keys.
  static DG_DEVICE OperandTile values(const OperandTile& rows) {
    return {rows.first, Shape::kValueDim, rows.rows * static_cast<int>(sizeof(T)), rows.stride_bytes};
  }

  DG_DEVICE void load_queries() {
    const OperandTile rows =
        head_rows<T>(args_.q, tile_.sequence, tile_.head, tile_.queries, wave_query_, Shape::kHeadDim);
    const Buffer buffer = buffer_of(rows, Shape::kWaveQ);
    const unsigned offset =
        Shape::lane_query() * static_cast<unsigned>(rows.stride_bytes) + Shape::lane_group() * kChunkBytes;
#pragma unroll
    for (int read = 0; read < Shape::kHeadReads; ++read) {
      queries_[read] = buffer.load<MfmaOperands>(offset + read * Shape::kReadBytes);
    }
  }

  DG_DEVICE void load_keys(int block) {
    const int key = block * Shape::kBlockK;
    key_loader_.move_to({keys_.first + key * keys_.stride_bytes, keys_.rows - key, keys_.k_bytes, keys_.stride_bytes});
#pragma unroll
    for (int i = 0; i < Shape::kDBlocks * KeyLoader::kPasses; ++i) {
      key_loader_.load(i / KeyLoader::kPasses, i % KeyLoader::kPasses, i / KeyLoader::kPasses);
    }
  }

  DG_DEVICE void store_keys() const {
#pragma unroll
    for (int i = 0; i < Shape::kDBlocks * KeyLoader::kPasses; ++i) {
      key_loader_.store(i / KeyLoader::kPasses, i % KeyLoader::kPasses,
                        lds_keys_ + i / KeyLoader::kPasses * Shape::kKeyTileBytes);
    }
  }

  DG_DEVICE void load_values(int block) {
#pragma unroll
    for (int pass = 0; pass < ValueLoader::kPasses; ++pass) value_loader_.load(0, pass, block);
  }

  DG_DEVICE void store_values() const {
#pragma unroll
    for (int pass = 0; pass < ValueLoader::kPasses; ++pass) value_loader_.store(0, pass, lds_values_);
  }

  DG_DEVICE bool is_seen(int block) const {
    const int key = block * Shape::kBlockK;
    return key < seen_by_any_.end && key + Shape::kBlockK > seen_by_any_.begin;
  }
  DG_DEVICE bool is_seen_by_all(int block) const {
    const int key = block * Shape::kBlockK;
    return key >= seen_by_all_.begin && key + Shape::kBlockK <= seen_by_all_.end;
  }

  // logits = K · Qᵀ
  DG_DEVICE void multiply_keys() {
#pragma unroll
    for (int fragment = 0; fragment < Shape::kKeyFragments; ++fragment) logits_[fragment] = 0;
    pipelined_reads<Shape::kHeadReads * Shape::kKeyFragments>(
        [&](int i) {
          const int read = i / Shape::kKeyFragments;
          const uint8_t* const tile = lds_keys_ + read / Shape::kReadsOfBlock * Shape::kKeyTileBytes;
          return read_operands<Mfma>(tile, i % Shape::kKeyFragments * Mfma::kRows, read % Shape::kReadsOfBlock);
        },
        [&](int i, const MfmaOperands& keys) {
          auto& logits = logits_[i % Shape::kKeyFragments];
          const MfmaOperands& queries = queries_[i / Shape::kKeyFragments];
          logits = Mfma::multiply_add(keys[0], queries[0], logits);
          logits = Mfma::multiply_add(keys[1], queries[1], logits);
        });
  }

  // out = out · factor + Vᵀ · Pᵀ
  DG_DEVICE void add_values(int block) {
    const int key = block * Shape::kBlockK;
    float scale = args_.logit_scale;
    if constexpr (Shape::kScaled) {
      const HeadDescales q_descales(args_.q_descale, tile_.sequence, tile_.head);
      scale *= q_descales.of_token(wave_query_) * k_descales_.of_token(key);
    }
    if (!is_seen_by_all(block)) {
      mask(key, scale);
      scale = 1;
    }
    float factor = softmax_.update(logits_, scale);
    if constexpr (Shape::kScaled) {
      const float unit = v_descales_.of_token(key);
      factor *= value_unit_ / unit;
      value_unit_ = unit;
    }
#pragma unroll
    for (int i = 0; i < Shape::kValueFragments; ++i) out_[i] *= factor;
    // The probabilities of the next MFMAs are rounded between those of the ones before.
    MfmaOperand probabilities[2][2];
    const auto round = [&](int read, int half) {
      probabilities[read % 2][half] = probability_operand<Mfma, T>(logits_, 2 * read + half);
    };
    round(0, 0);
    round(0, 1);
    pipelined_reads<Shape::kReadsOfBlock * Shape::kValueFragments>(
        [&](int i) {
          return read_operands<Mfma>(lds_values_, i % Shape::kValueFragments * Mfma::kRows, i / Shape::kValueFragments);
        },
        [&](int i, const MfmaOperands& values) {
          const int read = i / Shape::kValueFragments;
          const int fragment = i % Shape::kValueFragments;
          auto& out = out_[fragment];
          out = Mfma::multiply_add(values[0], probabilities[read % 2][0], out);
          if (fragment < 2 && read + 1 < Shape::kReadsOfBlock) round(read + 1, fragment);
          out = Mfma::multiply_add(values[1], probabilities[read % 2][1], out);
        });
  }

  // Scales the logits, and replaces those of keys that the lane's query doesn't see.
  DG_DEVICE void mask(int key, float scale) {
    const KeyRange seen = visibility_.of_query(wave_query_ + Shape::lane_query());
    const int first = seen.begin - key - Shape::lane_group() * Shape::kRun;
    const unsigned count = max(seen.end - seen.begin, 0);
    static_for<Shape::kKeyFragments * Mfma::kElements>([&](auto i) {
      const bool visible = static_cast<unsigned>(Shape::KeyOrder::of_element(i) - first) < count;
      const float logit = logits_[i / Mfma::kElements][i % Mfma::kElements];
      logits_[i / Mfma::kElements][i % Mfma::kElements] = visible ? logit * scale : -kInfinity;
    });
  }

  const AttentionArguments& args_;
  QueryTile tile_;
  Visibility visibility_;
  uint8_t* lds_keys_;
  uint8_t* lds_values_;
  OperandTile keys_;
  KeyLoader key_loader_;
  ValueLoader value_loader_;
  HeadDescales k_descales_;
  HeadDescales v_descales_;
  int wave_query_;
  KeyRange seen_by_any_;
  KeyRange seen_by_all_;
  MfmaOperands queries_[Shape::kHeadReads];
  typename Mfma::Accumulator logits_[Shape::kKeyFragments];
  typename Mfma::Accumulator out_[Shape::kValueFragments] = {};
  OnlineSoftmax<Mfma, T> softmax_;
  float value_unit_ = 1;  // what `out` is to be multiplied with
};

}  // namespace deep_gemm_rocm
