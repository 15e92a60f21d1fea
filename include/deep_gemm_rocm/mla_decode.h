// Attention of a sequence's last few tokens to a latent cache: one head of keys, whose first values are the values too,
// for all heads of queries. That is so many queries for each byte that a workgroup brings a block of keys into LDS
// once, for up to 64 queries and both products.
//
// The logits of four tiles of 16 queries and two fragments of keys are one of each for a wave. Four waves turn those of
// a tile into probabilities each, which go to all waves by way of LDS, and each wave adds up 64 of the values.
#pragma once

#include "deep_gemm_rocm/flash_decode.h"
#include "deep_gemm_rocm/lds_layout.h"

namespace deep_gemm_rocm {

template <class T_, int kHeadDim_, int kValueDim_>
struct MlaShape {
  using T = T_;
  using Out = T_;
  using Mfma = deep_gemm_rocm::Mfma<T, T, 16>;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kValueDim = kValueDim_;
  static constexpr int kRowTiles = 4;
  static constexpr int kRows = kRowTiles * Mfma::kRows;  // queries of a workgroup

  static constexpr int kRun = kChunkBytes / sizeof(T);
  static constexpr int kBlockK = kRun * Mfma::kLaneGroups;
  static constexpr int kKeyFragments = kBlockK / Mfma::kRows;
  using KeyOrder = RowsInRuns<Mfma, kRun>;

  // A key is kDBlocks rows of 128 bytes in LDS, in tiles of kBlockK keys behind one another. A wave adds up the values
  // of one of these.
  static constexpr int kDBlock = kBlockKBytes / sizeof(T);
  static constexpr int kDBlocks = kHeadDim / kDBlock;
  static constexpr int kWaves = kValueDim / kDBlock;
  static constexpr int kThreads = kWaves * kWaveSize;
  static constexpr int kReadsOfBlock = fragment_reads<Mfma>();
  static constexpr int kReads = kDBlocks * kReadsOfBlock;
  static constexpr int kWidth = kDBlock / Mfma::kRows;  // neighbouring values that a lane adds up
  static constexpr int kKeyTileBytes = kBlockK * kBlockKBytes;
  static constexpr int kKeyBytes = kDBlocks * kKeyTileBytes;
  static constexpr int kLogitsBytes = kWaves * kWaveSize * static_cast<int>(sizeof(typename Mfma::Accumulator));
  static constexpr int kLdsBytes = kKeyBytes + kLogitsBytes;

  static_assert(sizeof(T) == 2 && kDBlocks * kDBlock == kHeadDim && kWaves * kDBlock == kValueDim);
  static_assert(kWaves == kRowTiles * kKeyFragments, "each wave computes one fragment of logits");
};

// Moves a block of keys from their pages through registers into LDS. Eight neighbouring threads move 128 bytes of a
// key.
template <class Shape>
class LatentLoader {
  static constexpr int kSegments = Shape::kThreads / kChunksPerRow;  // of 128 bytes, that all threads move at once
  static constexpr int kAllSegments = Shape::kBlockK * Shape::kDBlocks;
  static_assert(kSegments % Shape::kBlockK == 0, "a thread has parts of one key");

 public:
  static constexpr int kPasses = ceil_div(kAllSegments, kSegments);

  DG_DEVICE void look_up(const SequencePages& pages, int block) { page_ = pages.page_of(key(block)); }

  DG_DEVICE void start(const SequencePages& pages, const PagedTensor& cache, int block) {
    first_ = pages.address<typename Shape::T>(cache, 0, page_, key(block));
  }

  DG_DEVICE void load(int pass) {
    const int offset = d_block(pass) * kBlockKBytes + chunk() * kChunkBytes;
    if (exists(pass)) staged_[pass] = load_global<Chunk>(first_ + offset);
  }

  DG_DEVICE void store(uint8_t* lds) const {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      uint8_t* const to = lds + d_block(pass) * Shape::kKeyTileBytes + lds_offset(row(), chunk());
      if (exists(pass)) *reinterpret_cast<Chunk*>(to) = staged_[pass];
    }
  }

 private:
  static DG_DEVICE int chunk() { return thread_chunk(thread_id()); }
  static DG_DEVICE int row() { return thread_row(thread_id()) % Shape::kBlockK; }
  static DG_DEVICE int key(int block) { return block * Shape::kBlockK + row(); }
  static DG_DEVICE int d_block(int pass) { return (pass * kSegments + thread_row(thread_id())) / Shape::kBlockK; }
  static DG_DEVICE bool exists(int pass) {
    return (pass + 1) * kSegments <= kAllSegments || d_block(pass) < Shape::kDBlocks;
  }

  int page_;
  const uint8_t* first_;
  Chunk staged_[kPasses];
};

template <class Shape>
class MlaDecode {
  using Mfma = typename Shape::Mfma;
  using T = typename Shape::T;
  using Accumulator = typename Mfma::Accumulator;
  using Words = Vector<unsigned, Shape::kWidth / 2>;
  using Loader = LatentLoader<Shape>;

 public:
  DG_DEVICE MlaDecode(const DecodeArguments& args, const DecodeTile& tile, uint8_t* lds)
      : args_(args), tile_(tile), pages_(args, tile.sequence), lds_(lds) {
    load_queries();
  }

  DG_DEVICE void run() {
    const auto [begin, end] = blocks_of_split<Shape>(args_, pages_.tokens(), tile_.split);
    if (begin >= end) return;
    loader_.look_up(pages_, begin);
    loader_.start(pages_, args_.k, begin);
#pragma unroll
    for (int pass = 0; pass < Loader::kPasses; ++pass) loader_.load(pass);
    loader_.look_up(pages_, min(begin + 1, end - 1));
    for (int block = begin; block < end; ++block) {
      loader_.store(lds_);
      loader_.start(pages_, args_.k, min(block + 1, end - 1));
      lds_barrier();
      *logits_of(wave_id()) = multiply_keys();
      loader_.look_up(pages_, min(block + 2, end - 1));
      lds_barrier();
      if (wave_id() < Shape::kRowTiles) share_probabilities(block);
      lds_barrier();
      add_values();
      lds_barrier();
    }
  }

  // As FlashDecode does. The waves have different values of the same queries.
  DG_DEVICE void store() const {
    const float own_sum = softmax_.sum();
    const float own_log2_sum = softmax_.log2_sum();
    if (wave_id() < Shape::kRowTiles) {
      *shared(wave_id(), 0) = own_sum;
      *shared(wave_id(), 1) = own_log2_sum;
    }
    lds_barrier();
    static_for<Shape::kRowTiles>([&](auto i) {
      const float sum = *shared(i, 0);
      const float log2_sum = *shared(i, 1);
      const float factor = sum == 0 ? 0 : 1 / sum;
      const int row = lane_row(i);
      const int token = row / args_.heads;
      const int head = row % args_.heads;
      if (token < args_.tokens_q) {
        const bool first_lane = wave_id() == 0 && lane_group() == 0;
        if (args_.num_splits == 1) {
          const int64_t offset = tile_.sequence * args_.out.batch_stride + token * args_.out.token_stride +
                                 head * args_.out.head_stride;
          store_row(i, static_cast<T*>(args_.out.data) + offset, factor);
          if (args_.lse != nullptr && first_lane) {
            args_.lse[tile_.sequence * args_.lse_batch_stride + head * args_.lse_head_stride + token] = log2_sum * kLn2;
          }
        } else {
          const int64_t queries = static_cast<int64_t>(args_.batch) * args_.tokens_q * args_.heads;
          const int64_t query = (static_cast<int64_t>(tile_.sequence) * args_.tokens_q + token) * args_.heads + head;
          store_row(i, args_.split_out + (tile_.split * queries + query) * Shape::kValueDim, factor);
          if (first_lane) args_.split_lse[tile_.split * queries + query] = log2_sum;
        }
      }
    });
  }

 private:
  static DG_DEVICE int lane_group() { return lane_id() / Mfma::kRows; }
  DG_DEVICE int lane_row(int row_tile) const {
    return tile_.first_row + row_tile * Mfma::kRows + lane_id() % Mfma::kRows;
  }

  // Which fragment of logits the wave computes, and which tile's probabilities if any.
  static DG_DEVICE int own_row_tile() { return wave_id() % Shape::kRowTiles; }
  static DG_DEVICE int own_key_fragment() { return wave_id() / Shape::kRowTiles; }

  // Which chunk of 128 bytes a lane group multiplies: those of neighbouring groups, which read together, are half a row
  // apart, for their keys are a multiple of eight apart and hence equally swizzled.
  static DG_DEVICE int chunk_of_group(int read) {
    return lane_group() % 2 * (kChunksPerRow / 2) + lane_group() / 2 + read % Shape::kReadsOfBlock * 2;
  }

  DG_DEVICE Accumulator* logits_of(int wave) const {
    return reinterpret_cast<Accumulator*>(lds_ + Shape::kKeyBytes) + wave * kWaveSize + lane_id();
  }

  // These replace the logits that they were made of: a lane's operands of a tile's probabilities,
  DG_DEVICE MfmaOperands* probabilities_of(int row_tile) const {
    return reinterpret_cast<MfmaOperands*>(logits_of(row_tile));
  }
  // and, where its other logits were, two numbers for each lane.
  DG_DEVICE float* shared(int row_tile, int which) const {
    return reinterpret_cast<float*>(logits_of(Shape::kRowTiles + row_tile) - lane_id()) + which * kWaveSize + lane_id();
  }

  DG_DEVICE void load_queries() {
    const int row = lane_row(own_row_tile());
    const int token = row / args_.heads;
    const int64_t offset = tile_.sequence * args_.q.batch_stride + token * args_.q.token_stride +
                           row % args_.heads * args_.q.head_stride;
    const auto* first = static_cast<const uint8_t*>(args_.q.data) + offset * static_cast<int64_t>(sizeof(T));
#pragma unroll
    for (int read = 0; read < Shape::kReads; ++read) {
      queries_[read] = MfmaOperands{};
      if (token < args_.tokens_q) {
        const int in_block = chunk_of_group(read) * kChunkBytes;
        queries_[read] = load_global<MfmaOperands>(first + read / Shape::kReadsOfBlock * kBlockKBytes + in_block);
      }
    }
  }

  // The wave's fragment of K · Qᵀ. Meanwhile the next block starts on its way.
  DG_DEVICE Accumulator multiply_keys() {
    const int row = Shape::KeyOrder::of_lds_row(own_key_fragment() * Mfma::kRows + lane_id() % Mfma::kRows);
    Accumulator logits[2] = {};
    pipelined_reads<Shape::kReads>(
        [&](int read) {
          constexpr int kReadsPerPass = Shape::kReads / Loader::kPasses;
          if (read % kReadsPerPass == 0 && read / kReadsPerPass < Loader::kPasses) loader_.load(read / kReadsPerPass);
          const uint8_t* const tile = lds_ + read / Shape::kReadsOfBlock * Shape::kKeyTileBytes;
          return *reinterpret_cast<const MfmaOperands*>(tile + lds_offset(row, chunk_of_group(read)));
        },
        [&](int read, const MfmaOperands& keys) {
          logits[0] = Mfma::multiply_add(keys[0], queries_[read][0], logits[0]);
          logits[1] = Mfma::multiply_add(keys[1], queries_[read][1], logits[1]);
        });
    return logits[0] + logits[1];
  }

  // Of the wave's tile of queries and all keys of the block.
  DG_DEVICE void share_probabilities(int block) {
    Accumulator logits[Shape::kKeyFragments];
#pragma unroll
    for (int i = 0; i < Shape::kKeyFragments; ++i) logits[i] = *logits_of(i * Shape::kRowTiles + own_row_tile());
    float scale = args_.logit_scale;
    const int key = block * Shape::kBlockK;
    const int aligned = pages_.tokens() - args_.tokens_q;  // the key of token 0
    const int last_begin = aligned + args_.tokens_q - 1 - args_.window_left;
    if (key < last_begin || key + Shape::kBlockK > aligned + 1) {
      const int token = min(lane_row(own_row_tile()) / args_.heads, args_.tokens_q);
      const int begin = aligned + token - args_.window_left - key - lane_group() * Shape::kRun;
      const int end = aligned + token + 1 - key - lane_group() * Shape::kRun;
#pragma unroll
      for (int i = 0; i < Shape::kRun; ++i) {
        const float logit = logits[i / Mfma::kElements][i % Mfma::kElements] * scale;
        logits[i / Mfma::kElements][i % Mfma::kElements] = i >= begin && i < end ? logit : -kInfinity;
      }
      scale = 1;
    }
    *shared(own_row_tile(), 0) = softmax_.update(logits, scale);
    *probabilities_of(own_row_tile()) = {probability_operand<Mfma, T>(logits, 0),
                                         probability_operand<Mfma, T>(logits, 1)};
  }

  // out = out · factor + Vᵀ · Pᵀ, for the wave's values.
  DG_DEVICE void add_values() {
    MfmaOperands probabilities[Shape::kRowTiles];
    float factors[Shape::kRowTiles];
#pragma unroll
    for (int i = 0; i < Shape::kRowTiles; ++i) {
      probabilities[i] = *probabilities_of(i);
      factors[i] = *shared(i, 0);
    }
    const int lane = lane_id_computed_here() % Mfma::kRows;
    const int group = lane_id_computed_here() / Mfma::kRows;
    Words values[Shape::kRun];
#pragma unroll
    for (int i = 0; i < Shape::kRun; ++i) {
      constexpr int kBytes = sizeof(Words);
      const uint8_t* const chunk = lds_ + wave_id() * Shape::kKeyTileBytes +
                                   lds_offset(group * Shape::kRun + i, lane * kBytes / kChunkBytes);
      values[i] = *reinterpret_cast<const Words*>(chunk + lane * kBytes % kChunkBytes);
    }
    static_for<Shape::kWidth>([&](auto f) {
      unsigned words[Shape::kRun];
#pragma unroll
      for (int i = 0; i < Shape::kRun; ++i) words[i] = values[i][f / 2];
      const auto operands = __builtin_bit_cast(MfmaOperands, column_chunk<sizeof(T)>(words, f % 2));
      static_for<Shape::kRowTiles>([&](auto tile) {
        auto& out = out_[tile][f];
        out = Mfma::multiply_add(operands[0], probabilities[tile][0], out * factors[tile]);
        out = Mfma::multiply_add(operands[1], probabilities[tile][1], out);
      });
    });
  }

  template <class Row>
  DG_DEVICE void store_row(int row_tile, Row* row, float factor) const {
#pragma unroll
    for (int element = 0; element < Mfma::kElements; ++element) {
      const int value = wave_id() * Shape::kDBlock + Mfma::row_of_element(lane_group(), element) * Shape::kWidth;
      Vector<Row, Shape::kWidth> stored;
#pragma unroll
      for (int f = 0; f < Shape::kWidth; ++f) {
        stored[f] = static_cast<Row>(factor == 0 ? 0 : out_[row_tile][f][element] * factor);
      }
      *(Global<Vector<Row, Shape::kWidth>>*)(row + value) = stored;
    }
  }

  const DecodeArguments& args_;
  DecodeTile tile_;
  SequencePages pages_;
  uint8_t* lds_;
  Loader loader_;
  MfmaOperands queries_[Shape::kReads];
  Accumulator out_[Shape::kRowTiles][Shape::kWidth] = {};
  OnlineSoftmax<Mfma, T> softmax_;  // of the wave's tile
};

}  // namespace deep_gemm_rocm
