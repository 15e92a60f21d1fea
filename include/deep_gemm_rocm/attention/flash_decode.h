// Flash decoding: attention of a sequence's last few tokens, with split-K over the keys. It is bound by memory, so
// every key and value is loaded once, straight into the registers of the wave that multiplies it. A workgroup is one
// wave. It has up to 16 queries (tokens and heads that share a head of keys) and a part of the keys. A second kernel
// combines the parts' results, always in the same order.
#pragma once

#include "deep_gemm_rocm/attention/decode_schedule.h"
#include "deep_gemm_rocm/attention/part_row.h"
#include "deep_gemm_rocm/loading/fragment.h"
#include "deep_gemm_rocm/loading/lds_layout.h"
#include "deep_gemm_rocm/arithmetic/online_softmax.h"
#include "deep_gemm_rocm/attention/paged_cache.h"
#include "deep_gemm_rocm/arithmetic/probabilities.h"
#include "deep_gemm_rocm/arithmetic/rounding.h"
#include "deep_gemm_rocm/arithmetic/widening.h"
#include "deep_gemm_rocm/hardware/conditional.h"
#include "deep_gemm_rocm/loading/transposing_tile_loader.h"

namespace deep_gemm_rocm {

template <class T_, class Cache_, class Out_, int kHeadDim_, int kValueDim_, Factors kFactors_, bool kCapped_,
          class PageSize_>
struct DecodeShape {
  using T = T_;
  using Cache = Cache_;  // T, or E4M3, which is widened to T = bf16 in registers
  using Out = Out_;
  using PageSize = PageSize_;  // a multiple of kRun
  using Mfma = deep_gemm_rocm::Mfma<T, T, 16>;
  static constexpr bool kWidened = !kIsSame<T, Cache>;
  static constexpr Factors kFactors = kFactors_;
  static constexpr bool kHasHeadFactors = kFactors == Factors::kHeads;
  static constexpr bool kHasTokenFactors = kFactors == Factors::kTokens;
  static constexpr bool kCapped = kCapped_;  // whether logits have a soft cap
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kValueDim = kValueDim_;
  static constexpr int kRows = Mfma::kRows;  // queries of a wave
  static constexpr int kThreads = kWaveSize;

  // A block of keys has a run for each lane group. The logits of a run become the lane's two operands of the second
  // product.
  static constexpr int kRun = kChunkBytes / sizeof(T);
  static constexpr int kBlockK = kRun * Mfma::kLaneGroups;
  static constexpr int kBlocksToBegin = 1;  // a tile's prologue and epilogue take as long as this many blocks
  static constexpr bool kHasOneKvHead = false;
  static constexpr bool kHasChosenTokens = false;
  static constexpr bool kHasExtraTokens = false;
  static constexpr int kSplitsOfFewKeys = 0;  // splits of a sequence in addition to one for each split_keys
  static constexpr int kKeyFragments = kBlockK / Mfma::kRows;
  using KeyOrder = RowsInRuns<Mfma, kRun>;
  static constexpr int kReadBytes = kChunkBytes * Mfma::kLaneGroups;
  static constexpr int kHeadBytes = kHeadDim * sizeof(Cache);
  static constexpr int kHeadReads = ceil_div(kHeadBytes, kReadBytes);  // zeros past the head's end
  static_assert(kHeadBytes % kChunkBytes == 0, "chunks must divide a head");
  static constexpr int kQueryChunks = sizeof(T) / sizeof(Cache);  // chunks of a query for each chunk of a key

  // A lane loads kWidth neighbouring elements of each value, once for each of kValueGroups groups. They are rows of
  // kWidth different fragments of Vᵀ.
  static constexpr int kElementsOfWord = sizeof(unsigned) / sizeof(Cache);
  // Padded to whole fragments. Elements past the head's end repeat its last ones, and aren't stored.
  static constexpr int kLoadedValues = round_up(kValueDim, 16 * kElementsOfWord);
  static constexpr int widest(int width) { return kLoadedValues % (16 * width) == 0 ? width : widest(width / 2); }
  static constexpr int kWidth = widest(8);
  static_assert(kValueDim % kWidth == 0, "a lane's values must all exist or none");
  static constexpr int kWords = kWidth / kElementsOfWord;
  static constexpr int kValueGroups = kLoadedValues / (16 * kWidth);
  static_assert(kWords > 0, "a lane loads whole words");
  static constexpr int kLaneValues = kWidth * Mfma::kElements;  // neighbouring values that a lane adds up
  using PartRow = deep_gemm_rocm::PartRow<kLoadedValues, kLaneValues>;

  // Whether the next block is loaded while one is computed. Wider heads don't leave registers for that; then even keys
  // are loaded one fragment at a time.
  static constexpr bool kAhead = kHeadDim + kValueDim <= 384;
};

template <class Shape>
class FlashDecode {
  using Mfma = typename Shape::Mfma;
  using T = typename Shape::T;
  using Cache = typename Shape::Cache;
  using Words = Vector<unsigned, Shape::kWords>;
  using PartRow = typename Shape::PartRow;
  static constexpr int kHeldFragments = Shape::kAhead ? Shape::kKeyFragments : 1;

 public:
  DG_DEVICE FlashDecode(const DecodeArguments& args, const DecodeTile& tile)
      : args_(args),
        tile_(tile),
        pages_(args, tile.sequence, tile.tokens),
        row_(tile.first_row + lane_id() % Mfma::kRows),
        token_(row_ < args.group ? 0 : row_ / args.group),
        head_(tile.kv_head * args.group + row_ - token_ * args.group) {
    load_queries();
    logit_scale_ = args.logit_scale;
    if constexpr (Shape::kHasHeadFactors) {
      logit_scale_ *= of_head(args.k_descale, tile.kv_head);
      value_scale_ = of_head(args.v_descale, tile.kv_head);
    }
    if constexpr (Storage<T>::kIsFp8) {
      // Kept apart from logit_scale_, which is uniform, as the wave's queries may have different factors.
      query_scale_ = row_exists() ? of_head(args.q_descale, head_) : 1;
    }
  }

  DG_DEVICE void run() {
    const int begin = tile_.begin;
    const int end = tile_.end;
    if (begin >= end) return;
    load_pages(begin);
    if constexpr (Shape::kAhead) {
      load_all_keys(begin);
      load_key_factors(begin);
      load_values(begin);
      load_pages(min(begin + 1, end - 1));
    }
    for (int block = begin; block < end; ++block) {
      const bool more = block + 1 < end;
      if constexpr (Shape::kAhead) {
        static_for<Shape::kKeyFragments>([&](auto fragment) { multiply_keys(fragment); });
        scale_logits();
        if (more) load_all_keys(block + 1);
        if (more) load_key_factors(block + 1);
        add_values(update_softmax(block));
        if (more) load_values(block + 1);
      } else {
        static_for<Shape::kKeyFragments>([&](auto fragment) {
          load_keys(block, fragment);
          multiply_keys(fragment);
          __builtin_amdgcn_sched_barrier(0);
        });
        load_key_factors(block);
        scale_logits();
        load_values(block);
        add_values(update_softmax(block));
        __builtin_amdgcn_sched_barrier(0);
      }
      load_pages(min(block + 1 + Shape::kAhead, end - 1));
    }
  }

  // Stores the output, or the partial result if the tile has only a part of the keys.
  DG_DEVICE void store() {
    const float sum = softmax_.sum();
    const float log2_sum = softmax_.log2_sum();
    // If the sum of probabilities is NaN, so are all results, and there is nothing to compute again.
    const bool again = sum > 0 && row_exists() && !all_finite(out_);
    if (ballot(again) != 0) add_up_again(again, sum);
    if (!row_exists()) return;
    float factor = sum == 0 ? 0 : again ? value_scale_ : value_scale_ / sum;
    if (tile_.has_all_blocks()) {
      if (factor != 0) factor *= share_beside_sink(args_.sinks, head_, log2_sum);
      const int64_t offset = args_.out.offset(tile_.sequence, token_, head_);
      store_row(static_cast<typename Shape::Out*>(args_.out.data) + offset, factor);
      if (args_.lse != nullptr && lane_group() == 0) {
        args_.lse[tile_.sequence * args_.lse_batch_stride + head_ * args_.lse_head_stride + token_] =
            lse_of(args_, log2_sum);
      }
    } else {
      const int64_t row = row_of_part(args_, tile_.part, row_);
      store_part(args_.split_out + row * PartRow::kBytes, factor);
      if (lane_group() == 0) args_.split_lse[row] = log2_sum;
    }
  }

 private:
  static DG_DEVICE int lane_group() { return lane_id() / Mfma::kRows; }
  static DG_DEVICE int lane_row() { return lane_id() % Mfma::kRows; }

  DG_DEVICE bool row_exists() const { return token_ < args_.tokens_q; }

  DG_DEVICE float of_head(const Descales& descales, int head) const {
    const float* const found = descales.data + tile_.sequence * descales.batch_stride + head * descales.head_stride;
    return *(const Global<float>*)found;
  }

  DG_DEVICE void load_queries() {
    const int64_t offset = args_.q.offset(tile_.sequence, token_, head_);
    const auto* first = static_cast<const uint8_t*>(args_.q.data) + offset * static_cast<int64_t>(sizeof(T));
#pragma unroll
    for (int i = 0; i < Shape::kHeadReads * Shape::kQueryChunks; ++i) {
      queries_[i] = MfmaOperands{};
      const int read = i / Shape::kQueryChunks;
      if (row_exists() && is_in_head(read)) {
        const int chunk = (read * Mfma::kLaneGroups + lane_group()) * Shape::kQueryChunks + i % Shape::kQueryChunks;
        queries_[i] = load_global<MfmaOperands>(first + chunk * kChunkBytes);
      }
    }
  }

  // Whether the lane's chunk of a read is in the head.
  static DG_DEVICE bool is_in_head(int read) {
    return (read + 1) * Shape::kReadBytes <= Shape::kHeadBytes ||
           lane_group() * kChunkBytes < Shape::kHeadBytes - read * Shape::kReadBytes;
  }

  // The lane's keys of all fragments are a run of tokens in one page, and so are its values. First token of each run:
  static DG_DEVICE int key_run(int block) { return block * Shape::kBlockK + lane_row() / 4 * Shape::kRun; }
  static DG_DEVICE int value_run(int block) { return block * Shape::kBlockK + lane_group() * Shape::kRun; }

  DG_DEVICE void load_pages(int block) {
    key_page_ = pages_.page_of(key_run(block));
    value_page_ = pages_.page_of(value_run(block));
  }

  DG_DEVICE void load_all_keys(int block) {
    static_for<Shape::kKeyFragments>([&](auto fragment) { load_keys(block, fragment); });
  }

  DG_DEVICE void load_keys(int block, int fragment) {
    const int key = block * Shape::kBlockK + Shape::KeyOrder::of_lds_row(fragment * Mfma::kRows + lane_row());
    const uint8_t* const first =
        pages_.template address<Cache>(args_.k, tile_.kv_head, key_page_, key) + lane_group() * kChunkBytes;
#pragma unroll
    for (int read = 0; read < Shape::kHeadReads; ++read) {
      const auto keys = load_global<MfmaOperands>(is_in_head(read) ? first + read * Shape::kReadBytes : first);
      keys_[fragment % kHeldFragments][read] = is_in_head(read) ? keys : MfmaOperands{};
    }
  }

  DG_DEVICE void load_values(int block) {
    const uint8_t* first = pages_.template address<Cache>(args_.v, tile_.kv_head, value_page_, value_run(block));
#pragma unroll
    for (int i = 0; i < Shape::kRun; ++i) {
#pragma unroll
      for (int group = 0; group < Shape::kValueGroups; ++group) {
        const int value = existing_value((group * Mfma::kRows + lane_row()) * Shape::kWidth);
        values_[group][i] = load_global<Words>(first + value * static_cast<int>(sizeof(Cache)));
      }
      first = pages_.template next_address<Cache>(args_.v, first, value_run(block) + i);
      if constexpr (Shape::kHasTokenFactors) {
        value_factors_[i] = of_token(args_.v_descale, value_page_, value_run(block) + i);
      }
    }
  }

  // Loads the factors of the keys whose logits the lane holds.
  DG_DEVICE void load_key_factors(int block) {
    if constexpr (Shape::kHasTokenFactors) {
#pragma unroll
      for (int i = 0; i < Shape::kRun; ++i) {
        key_factors_[i] = of_token(args_.k_descale, value_page_, value_run(block) + i);
      }
    }
  }

  DG_DEVICE float of_token(const Descales& descales, int page, int token) const {
    const PagedTensor factors{descales.data, descales.batch_stride, descales.block_stride, descales.head_stride};
    return load_global<float>(pages_.template address<float>(factors, tile_.kv_head, page, token));
  }

  // logits = K · Qᵀ
  DG_DEVICE void multiply_keys(int fragment) {
    logits_[fragment] = 0;
#pragma unroll
    for (int i = 0; i < Shape::kHeadReads * Shape::kQueryChunks; ++i) {
      const MfmaOperands keys = operands_of_keys(keys_[fragment % kHeldFragments][i / Shape::kQueryChunks], i);
      logits_[fragment] = Mfma::multiply_add(keys[0], queries_[i][0], logits_[fragment]);
      logits_[fragment] = Mfma::multiply_add(keys[1], queries_[i][1], logits_[fragment]);
    }
  }

  // The operands of keys that are multiplied with chunk number `chunk` of a query.
  static DG_DEVICE MfmaOperands operands_of_keys(const MfmaOperands& keys, int chunk) {
    if constexpr (Shape::kWidened) {
      const MfmaOperand half = keys[chunk % 2];  // clang casts the first element of a vector, whichever is named
      return __builtin_bit_cast(MfmaOperands, widened_bf16(__builtin_bit_cast(HalfChunk, half)));
    }
    return keys;
  }

  DG_DEVICE void scale_logits() {
    if constexpr (Shape::kHasTokenFactors) multiply_run(logits_, key_factors_);
  }

  // Multiplies what the lane holds of its run of keys with the factors of these tokens.
  using Logits = typename Mfma::Accumulator[Shape::kKeyFragments];
  static DG_DEVICE void multiply_run(Logits& run, const float (&factors)[Shape::kRun]) {
#pragma unroll
    for (int i = 0; i < Shape::kRun; ++i) run[i / Mfma::kElements][i % Mfma::kElements] *= factors[i];
  }

  DG_DEVICE float update_softmax(int block) {
    cap_and_mask(block);
    return softmax_.update(logits_, scale());
  }

  DG_DEVICE void cap_and_mask(int block) {
    if constexpr (Shape::kCapped) cap_logits(logits_, scale_of_products() * (2 * kLog2E / args_.logit_cap));
    if (!is_seen_by_all(block)) mask(block);
  }

  DG_DEVICE float scale() const { return Shape::kCapped ? args_.logit_cap : scale_of_products(); }

  DG_DEVICE float scale_of_products() const {
    const float scale = logit_scale_ * query_scale_;
    return Shape::kHasHeadFactors ? positive(scale) : scale;
  }

  DG_DEVICE bool is_seen_by_all(int block) const {
    const int key = block * Shape::kBlockK;
    const int aligned = pages_.tokens() - args_.tokens_q;  // the key of token 0
    const int last_begin = aligned + args_.tokens_q - 1 - args_.window_left;
    return key >= last_begin && key + Shape::kBlockK <= aligned + 1;
  }

  // Replaces the logits of keys that the lane's query doesn't see.
  DG_DEVICE void mask(int block) {
    const int key = block * Shape::kBlockK;
    const int aligned = pages_.tokens() - args_.tokens_q;
    const int begin = max(aligned + token_ - args_.window_left, 0) - key - lane_group() * Shape::kRun;
    const int end = aligned + token_ + 1 - key - lane_group() * Shape::kRun;
#pragma unroll
    for (int i = 0; i < Shape::kRun; ++i) {
      if (i < begin || i >= end) logits_[i / Mfma::kElements][i % Mfma::kElements] = -kInfinity;
    }
  }

  // out = out · factor + Vᵀ · Pᵀ
  DG_DEVICE void add_values(float factor) {
    if constexpr (Shape::kHasTokenFactors) multiply_run(logits_, value_factors_);
    const MfmaOperand first = probability_operand<Mfma, T>(logits_, 0);
    const MfmaOperand second = probability_operand<Mfma, T>(logits_, 1);
    static_for<Shape::kValueGroups * Shape::kWords>([&](auto word) {
      unsigned rows[Shape::kRun];
#pragma unroll
      for (int i = 0; i < Shape::kRun; ++i) rows[i] = values_[word / Shape::kWords][i][word % Shape::kWords];
      static_for<Shape::kElementsOfWord>([&](auto column) {
        const auto values = __builtin_bit_cast(MfmaOperands, column_of_values(rows, column));
        auto& out = out_[word * Shape::kElementsOfWord + column];
        out = Mfma::multiply_add(values[0], first, out * factor);
        out = Mfma::multiply_add(values[1], second, out);
      });
    });
  }

  static DG_DEVICE Chunk column_of_values(const unsigned* rows, int column) {
    if constexpr (Shape::kWidened) return widened_bf16_column<Chunk>(rows, column);
    return column_chunk<sizeof(T)>(rows, column);
  }

  // The head's element that is the first of the kWidth neighbours in a result's element.
  static DG_DEVICE int value_of(int lane_group, int group, int element) {
    return (group * Mfma::kRows + Mfma::row_of_element(lane_group, element)) * Shape::kWidth;
  }

  static DG_DEVICE int existing_value(int value) {
    return Shape::kLoadedValues == Shape::kValueDim ? value : min(value, Shape::kValueDim - Shape::kWidth);
  }

  // Computes the sums of lanes with `again` once more, key by key on the vector ALU, with probabilities that are
  // already divided by their sum. It is rarely needed: a matrix core makes NaN of an infinite value or NaN times a
  // probability of 0, even that of a key that the query doesn't see.
  DG_DEVICE void add_up_again(bool again, float sum) {
    if (again) static_for<Shape::kValueGroups * Shape::kWidth>([&](int i) { out_[i] = 0; });
    const float unit = 1 / sum;
    const int lane = lane_id_computed_here();
    for (int block = tile_.begin; block < tile_.end; ++block) {
      load_pages(block);
      static_for<Shape::kKeyFragments>([&](auto fragment) {
        load_keys(block, fragment);
        multiply_keys(fragment);
        __builtin_amdgcn_sched_barrier(0);  // for few registers
      });
      load_key_factors(block);
      scale_logits();
      cap_and_mask(block);
      for (int key = 0; key < Shape::kBlockK; ++key) {
        float logit = 0;
#pragma unroll
        for (int i = 0; i < Shape::kRun; ++i) {
          if (key % Shape::kRun == i) logit = logits_[i / Mfma::kElements][i % Mfma::kElements];
        }
        logit = exchange(logit * scale(), key / Shape::kRun * Mfma::kRows + lane % Mfma::kRows);
        if (again && logit != -kInfinity) {
          add_values_of(block * Shape::kBlockK + key, softmax_.probability(logit) * unit);
        }
      }
    }
  }

  DG_DEVICE void add_values_of(int key, float probability) {
    const int lane = lane_id_computed_here();
    const int page = pages_.page_of(key);
    const uint8_t* const first = pages_.template address<Cache>(args_.v, tile_.kv_head, page, key);
    if constexpr (Shape::kHasTokenFactors) probability *= of_token(args_.v_descale, page, key);
    static_for<Shape::kValueGroups * Mfma::kElements>([&](auto i) {
      constexpr int kGroup = i / Mfma::kElements;
      constexpr int kElement = i % Mfma::kElements;
      const auto values = load_global<Vector<typename Storage<Cache>::Type, Shape::kWidth>>(
          first + existing_value(value_of(lane / Mfma::kRows, kGroup, kElement)) * static_cast<int>(sizeof(Cache)));
#pragma unroll
      for (int f = 0; f < Shape::kWidth; ++f) {
        auto& sums = out_[kGroup * Shape::kWidth + f];
        sums[kElement] = add_value(sums[kElement], probability, Storage<Cache>::widened(values[f]));
      }
    });
  }

  DG_DEVICE void store_row(typename Shape::Out* row, float factor) const {
    static_for<Shape::kValueGroups * Mfma::kElements>([&](auto i) {
      constexpr int kGroup = i / Mfma::kElements;
      constexpr int kElement = i % Mfma::kElements;
      Vector<typename Shape::Out, Shape::kWidth> stored;
#pragma unroll
      for (int f = 0; f < Shape::kWidth; ++f) {
        stored[f] = rounded_to<typename Shape::Out>(scaled_sum(kGroup, kElement, f, factor));
      }
      const int value = value_of(lane_group(), kGroup, kElement);
      if (value == existing_value(value)) *(Global<decltype(stored)>*)(row + value) = stored;
    });
  }

  DG_DEVICE void store_part(uint8_t* row, float factor) const {
    static_for<Shape::kValueGroups>([&](int group) {
      float values[Shape::kLaneValues];
#pragma unroll
      for (int i = 0; i < Shape::kLaneValues; ++i) {
        values[i] = scaled_sum(group, i / Shape::kWidth, i % Shape::kWidth, factor);
      }
      PartRow::store(row, value_of(lane_group(), group, 0), values);
    });
  }

  DG_DEVICE float scaled_sum(int group, int element, int f, float factor) const {
    return factor == 0 ? 0 : out_[group * Shape::kWidth + f][element] * factor;
  }

  const DecodeArguments& args_;
  DecodeTile tile_;
  SequencePages<typename Shape::PageSize> pages_;
  int row_;
  int token_;
  int head_;
  float logit_scale_;
  float query_scale_ = 1;
  float value_scale_ = 1;
  int key_page_;
  int value_page_;
  MfmaOperands queries_[Shape::kHeadReads * Shape::kQueryChunks];
  MfmaOperands keys_[kHeldFragments][Shape::kHeadReads];
  Words values_[Shape::kValueGroups][Shape::kRun];
  // A factor for each token.
  float key_factors_[Shape::kRun];
  float value_factors_[Shape::kRun];
  typename Mfma::Accumulator logits_[Shape::kKeyFragments];
  typename Mfma::Accumulator out_[Shape::kValueGroups * Shape::kWidth] = {};
  OnlineSoftmax<Mfma, T> softmax_;
};

}  // namespace deep_gemm_rocm
