// MLA decoding: attention of a sequence's last few tokens to a latent cache. All heads of queries share one head of
// keys, and the first elements of a key are its value. So many queries use each byte that a workgroup brings a block of
// keys into LDS, once for up to 64 queries and for both products.
//
// K · Qᵀ: with four tiles of 16 queries, a wave multiplies one fragment of keys with two tiles, over half of the width.
// So it reads half as much from LDS as with one tile over the whole width. Then four waves compute the probabilities of
// one tile each, and pass them to all waves through LDS. With only one or two tiles in all, a wave has one of them,
// over a quarter or half of the width.
//
// Vᵀ · Pᵀ: each wave computes 64 elements of the output. Its values are in registers by then, so that the next keys can
// overwrite them in LDS.
//
// Software pipeline: a block's softmax and second product overlap the next block's first product. Each block b has two
// intervals between barriers:
//   1. K · Qᵀ of b. Early in it, the last tile of Vᵀ · Pᵀ of b - 2 and the probabilities of b - 1, for which the other
//      waves wait in the middle of it; at its end, the first tile of Vᵀ · Pᵀ of b - 1.
//   2. The next tiles of Vᵀ · Pᵀ of b - 1, all but the last, while b + 1 is stored into LDS; then the maxima of b.
// So on either side of each barrier there are MFMAs that wait for nothing.
#pragma once

#include "deep_gemm_rocm/arithmetic/online_softmax.h"
#include "deep_gemm_rocm/arithmetic/probabilities.h"
#include "deep_gemm_rocm/attention/decode_schedule.h"
#include "deep_gemm_rocm/attention/latent_loader.h"
#include "deep_gemm_rocm/attention/latent_mask.h"
#include "deep_gemm_rocm/attention/latent_result.h"
#include "deep_gemm_rocm/loading/transposing_tile_loader.h"

namespace deep_gemm_rocm {

template <class Shape>
class MlaDecode {
  using Mfma = typename Shape::Mfma;
  using T = typename Shape::T;
  using Accumulator = typename Mfma::Accumulator;
  using Words = Vector<unsigned, Shape::kWidth / 2>;
  using Loader = LatentLoader<Shape>;
  using Layout = typename Shape::Layout;
  using Tokens = typename Shape::Tokens;

  // Where other work starts in K · Qᵀ: before which of its kReads reads. Found by trial in the timing model.
  static constexpr bool kHasFewReads = Shape::kReads < 8;
  static constexpr int kSoftmaxAt = kHasFewReads ? 1 : 2;
  static constexpr int kValuesAt = Shape::kReads - (kHasFewReads ? 2 : 4);
  static constexpr int kJoinAt = kHasFewReads ? Shape::kReads - 2 : 6;  // waves without a softmax wait for it here
  static constexpr int kAddressesAt = kHasFewReads ? Shape::kReads - 1 : 7;
  static constexpr int kValuesAtOnce = Shape::kRun / (Shape::kReads - kValuesAt);
  static_assert(kValuesAtOnce * (Shape::kReads - kValuesAt) == Shape::kRun, "all values are read");
  static_assert(kSoftmaxAt <= kValuesAt, "values of the block before are transposed first");
  // Whether all FP8 values share one scale.
  static constexpr bool kHasDescale = Layout::kIsFp8 && !Layout::kHasScales;
  // Tiles whose probabilities are read before the barrier, not after it.
  static constexpr int kTilesBefore = min(Shape::kRowTiles, 2);

 public:
  DG_DEVICE MlaDecode(const DecodeArguments& args, const DecodeTile& tile, uint8_t* lds)
      : args_(args), tile_(tile), tokens_(args, tile.sequence, tile.tokens), lds_(lds), loader_(args.k) {
    if (tile.begin < tile.end) loader_.look_up(tokens_, tile.begin);
    __builtin_amdgcn_sched_barrier(0);  // the look-up comes first, as its latency is exposed
    // Computed anew for each tile, as there are no registers to keep what is derived from the lane's number.
    const int lane = lane_id_computed_here();
    const int row = Shape::KeyOrder::of_lds_row(own_key_fragment() * Mfma::kRows + lane % Mfma::kRows);
    keys_offset_ = lds_offset(row, own_chunk(lane)) + own_d_block(0) * Shape::kKeyTileBytes;
    const int value = lane % Mfma::kRows * static_cast<int>(sizeof(Words));
    values_offset_ = wave_id() * Shape::kKeyTileBytes +
                     lds_offset(lane / Mfma::kRows * Shape::kRun, value / kChunkBytes) + value % kChunkBytes;
    if constexpr (kHasDescale) {
      value_scale_ = descale_of(args.k_descale);
      logit_scale_ = args.logit_scale * value_scale_;
    }
    if constexpr (Shape::kHasFp8Queries) {
      logit_scale_ = (kHasDescale ? logit_scale_ : args.logit_scale) * descale_of(args.q_descale);
    }
  }

  DG_DEVICE void run() {
    const int begin = tile_.begin;
    const int end = tile_.end;
    if (begin >= end) return;
    load_queries_and_first_keys(begin, end);
    compute_first_logits(begin, end);
    __builtin_amdgcn_s_setprio(1);
    for (int block = begin + 1; block < end; ++block) {
      multiply_keys<true>(block, end);
      lds_barrier();
      add_values_and_store_keys();
      if (computes_probabilities()) take_logits(block);
      lds_barrier();
    }
    add_last_values();
    lds_barrier();
  }

  // Stores the output, or the partial result.
  DG_DEVICE void store() {
    const auto& args = decode_arguments();
    LatentResult<Shape> result(tile_, lds_, out_);
    const float own_sum = softmax_.sum();
    const float own_largest = Shape::kMaxima ? max_over_lane_groups<Mfma::kRows>(largest_) * logit_scale() : 0;
    const auto of_tiles = result.shared(computes_probabilities(), own_sum, softmax_.log2_sum(), own_largest);
    const unsigned again = of_tiles.any_odd ? add_up_again(own_sum, of_tiles.sums) : 0;
    float factors[Shape::kRowTiles];
    static_for<Shape::kRowTiles>([&](auto i) {
      const float sum = of_tiles.sums[i];
      factors[i] = sum == 0 ? 0 : again >> i & 1 ? value_scale() : value_scale() / sum;
    });
    result.store(args, factors, of_tiles);
  }

 private:
  // The factor of FP8 values. The bytes of an OCP number are read as FNUZ, which gives half the number.
  static DG_DEVICE float descale_of(const Descales& descale) {
    const float factor = descale.data == nullptr ? 1 : *(const Global<float>*)descale.data;
    return Shape::kIsOcp ? 2 * factor : factor;
  }

  DG_DEVICE float logit_scale() const {
    return kHasDescale || Shape::kHasFp8Queries ? logit_scale_ : args_.logit_scale;
  }
  DG_DEVICE float value_scale() const { return kHasDescale ? value_scale_ : 1; }

  // Which logits a wave computes. The first kRowTiles waves also compute the probabilities of tile wave_id().
  static DG_DEVICE unsigned wave() { return wave_id(); }
  static DG_DEVICE int own_first_tile() { return wave() % Shape::kTileGroups * Shape::kWaveTiles; }
  static DG_DEVICE int own_key_fragment() { return wave() / Shape::kTileGroups % Shape::kKeyFragments; }
  static DG_DEVICE int own_part() { return wave() / Shape::kTileGroups / Shape::kKeyFragments; }
  static DG_DEVICE bool computes_probabilities() { return wave_id() < Shape::kRowTiles; }

  // Which chunk of a row of 128 bytes a lane group multiplies. LDS serves neighbouring groups together. The swizzle
  // doesn't tell their keys apart, which differ by a multiple of eight, so their chunks are half a row apart to avoid
  // bank conflicts.
  static DG_DEVICE int own_chunk(int lane) {
    const int lane_group = lane / Mfma::kRows;
    return lane_group % 2 * (kChunksPerRow / 2) + lane_group / 2 + own_part() % 2 * 2;
  }
  // Which row of 128 bytes a read takes.
  static DG_DEVICE int own_d_block(int read) { return read * (Shape::kParts / 2) + own_part() / 2; }
  static DG_DEVICE bool has(int read) {
    return (read + 1) * (Shape::kParts / 2) <= Shape::kDBlocks || own_d_block(read) < Shape::kDBlocks;
  }

  DG_DEVICE Accumulator* logits_of(int row_tile, int key_fragment, int part) const {
    const int index = (part * Shape::kKeyFragments + key_fragment) * Shape::kRowTiles + row_tile;
    return reinterpret_cast<Accumulator*>(lds_ + Shape::kKeyBytes) + index * kWaveSize + lane_id();
  }

  // Where LDS has a lane's operands of a tile's probabilities, and the factor for its earlier sums.
  DG_DEVICE MfmaOperands* probabilities_of(int row_tile) const {
    auto* const first = reinterpret_cast<MfmaOperands*>(lds_ + Shape::kKeyBytes + Shape::kLogitsBytes);
    return first + row_tile * kWaveSize + lane_id();
  }
  DG_DEVICE float* factor_of(int row_tile) const {
    auto* const first = reinterpret_cast<float*>(lds_ + Shape::kExistsOffset - Shape::kFactorsBytes);
    return first + row_tile * kWaveSize + lane_id();
  }

  // Lanes without a query repeat the last one instead of branching. With a branch, the compiler couldn't count the
  // loads in flight, and a wait for keys would be a wait for all queries, too. FP8 is loaded into the first half of the
  // registers, and widened later.
  DG_DEVICE void load_queries() {
    constexpr int kElementBytes = Shape::kHasFp8Queries ? 1 : sizeof(T);
    constexpr int kVectorBytes = kLatentVector * kElementBytes;
    const int lane = lane_id_computed_here();
    const int first_row = tile_.first_row + own_first_tile() * Mfma::kRows + lane % Mfma::kRows;
    static_for<Shape::kWaveTiles>([&](auto i) {
      const int row = min(first_row + i * Mfma::kRows, args_.tokens_q * args_.heads - 1);
      const int64_t offset = args_.q.offset(tile_.sequence, row / args_.heads, row % args_.heads);
      const auto* first = static_cast<const uint8_t*>(args_.q.data) + offset * static_cast<int64_t>(kElementBytes) +
                          own_chunk(lane) * kVectorBytes;
#pragma unroll
      for (int read = 0; read < Shape::kReads; ++read) {
        const int d_block = has(read) ? own_d_block(read) : Shape::kDBlocks - 1;
        const auto* own = first + d_block * (kChunksPerRow * kVectorBytes);
        if constexpr (Shape::kHasFp8Queries) {
          queries_[i][read][0] = load_global<MfmaOperand>(own);
        } else {
          queries_[i][read] = load_global<MfmaOperands>(own);
        }
      }
    });
  }

  // Widens queries in place. Called after the first keys are stored, which needn't wait for the queries then.
  DG_DEVICE void widen_queries() {
    static_for<Shape::kWaveTiles>([&](auto i) {
#pragma unroll
      for (int read = 0; read < Shape::kReads; ++read) {
        const auto bytes = __builtin_bit_cast(HalfChunk, queries_[i][read][0]);
        queries_[i][read] = __builtin_bit_cast(MfmaOperands, widened_latent<Shape::kIsOcp, false>(bytes, 1));
      }
    });
  }

  // Stores the first block into LDS, and starts the loads of the queries and of the next block.
  DG_DEVICE void load_queries_and_first_keys(int begin, int end) {
    find_keys(begin, end);
    static_for<Loader::kPasses>([&](int pass) { loader_.load(pass); });
    __builtin_amdgcn_sched_barrier(0);  // these need not wait for the queries, of which there are more
    load_queries();
    __builtin_amdgcn_sched_barrier(0);
    loader_.clear_missing();
    find_keys(begin + 1, end);
    static_for<Loader::kPasses>([&](int pass) { store_pass(pass); });
    if constexpr (Shape::kHasFp8Queries) widen_queries();
    lds_barrier();
  }

  // Prologue: both intervals of the first block, without work on earlier blocks.
  DG_DEVICE void compute_first_logits(int begin, int end) {
    multiply_keys<false>(begin, end);
    lds_barrier();
    static_for<Loader::kPasses>([&](int pass) { store_pass(pass); });
    if (computes_probabilities()) take_logits(begin);
    lds_barrier();
  }

  // The second interval, except for the maxima.
  DG_DEVICE void add_values_and_store_keys() {
    load_probabilities<kTilesBefore, Shape::kRowTiles - kTilesBefore>();
    static_for<kPlaces>([&](auto i) {
      constexpr int kFirst = i * Loader::kPasses / kPlaces;
      constexpr int kEnd = (i + 1) * Loader::kPasses / kPlaces;
      // No mask: with one, clang 17 moves the stores before the barrier of the workgroup that precedes them.
      __builtin_amdgcn_sched_barrier(0);
      static_for<kEnd - kFirst>([&](int pass) { store_pass(kFirst + pass); });
      if constexpr (i + 1 < kPlaces) {
        add_values(i + 1);
        vector_alu_between_mfmas<2 * Shape::kWidth, 4>();
      }
    });
    __builtin_amdgcn_sched_barrier(0);
  }

  // Epilogue: the last tile of Vᵀ · Pᵀ of the last block but one, and all tiles of the last block.
  DG_DEVICE void add_last_values() {
    if (Shape::kRowTiles > 1) add_values(Shape::kRowTiles - 1);
    turn_values();
    if (computes_probabilities()) share_probabilities();
    lds_barrier();
    load_probabilities<0, Shape::kRowTiles>();
    multiply_sums();
    static_for<Shape::kRowTiles>([&](int tile) { add_values(tile); });
  }

  // Computes a block's addresses, and starts the look-up of the next block's page.
  DG_DEVICE void find_keys(int block, int end) {
    loader_.start(tokens_, args_.k, args_.page_shift, block, end);
    loader_.look_up(tokens_, min(block + 1, end - 1));
  }

  // Stores a pass of a block, and starts to load the same pass of the block whose addresses are known.
  DG_DEVICE void store_pass(int pass) {
    loader_.store(pass, lds_);
    loader_.load(pass);
  }
  static constexpr int kPlaces = Shape::kRowTiles > 1 ? Shape::kRowTiles - 1 : 1;

  // The first interval: computes the wave's part of K · Qᵀ and, with kHasEarlier, does the work on earlier blocks.
  template <bool kHasEarlier>
  DG_DEVICE void multiply_keys(int block, int end) {
    Accumulator logits[Shape::kWaveTiles][Shape::kWaveChains] = {};
    pipelined_reads<Shape::kReads>(
        [&](auto read) {
          if constexpr (kHasEarlier) work_on_earlier_blocks<read>();
          if constexpr (read == kAddressesAt - 1) loader_.clear_missing();
          if constexpr (read == kAddressesAt) find_keys(block + 2, end);
          if constexpr (read >= kValuesAt) read_some_values<read - kValuesAt>();
          return read_keys(read);
        },
        [&](int read, const MfmaOperands& keys) {
          if (!has(read)) return;
          static_for<2>([&](int operand) {
            static_for<Shape::kWaveTiles>([&](auto tile) {
              auto& chain = logits[tile][read % Shape::kWaveChains];
              chain = Mfma::multiply_add(keys[operand], queries_[tile][read][operand], chain);
            });
          });
        },
        [&] {
          if (kHasEarlier) load_probabilities<0, kTilesBefore>();
        });
    static_for<Shape::kWaveTiles>([&](auto tile) {
      auto& of_tile = logits[tile];
      if constexpr (Shape::kWaveChains == 2) of_tile[0] += of_tile[1];
      *logits_of(own_first_tile() + tile, own_key_fragment(), own_part()) = of_tile[0];
    });
    if (kHasEarlier) {
      multiply_sums();
      add_values(0);
    }
  }

  DG_DEVICE MfmaOperands read_keys(int read) const {
    if (!has(read)) return MfmaOperands{};
    const int ahead = read * (Shape::kParts / 2) * Shape::kKeyTileBytes;
    return *reinterpret_cast<const MfmaOperands*>(lds_ + keys_offset_ + ahead);
  }

  // Starts work on earlier blocks before read kRead of K · Qᵀ.
  template <int kRead>
  DG_DEVICE void work_on_earlier_blocks() {
    if constexpr (kRead == kSoftmaxAt) {
      if (Shape::kRowTiles > 1) add_values(Shape::kRowTiles - 1);
      turn_values();
      if (computes_probabilities()) {
        __builtin_amdgcn_s_setprio(0);
        share_probabilities();
        __builtin_amdgcn_s_setprio(1);
        lds_barrier();
      }
    }
    if constexpr (kRead == kJoinAt) {
      if (!computes_probabilities()) lds_barrier();
    }
  }

  template <int kStep>
  DG_DEVICE void read_some_values() {
    constexpr int kKey = kStep * kValuesAtOnce;
    static_for<kValuesAtOnce>([&](int i) { words_[kKey + i] = read_values(kKey + i); });
  }

  // Reads the lane's part of one key's value. The run's keys are consecutive rows in LDS, swizzled by their row.
  DG_DEVICE Words read_values(int key) const {
    int first = values_offset_;
    // Keeps the compiler from holding the offsets of all keys in registers, for which there are too few, above all
    // where each lane has an address of its own.
    if (key % 2 == 1 || (!Tokens::kInRuns && key > 0)) asm("" : "+v"(first));
    const int offset = (first ^ key * kChunkBytes) + key * kBlockKBytes;
    return *reinterpret_cast<const Words*>(lds_ + offset);
  }

  // Reads the logits of the wave's tile for all keys of the block, adds up their parts, masks them, and updates the
  // running maxima.
  DG_DEVICE void take_logits(int block) {
#pragma unroll
    for (int i = 0; i < Shape::kKeyFragments; ++i) {
      Accumulator halves[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        halves[half] = *logits_of(wave_id(), i, half);
        if (Shape::kParts == 4) halves[half] += *logits_of(wave_id(), i, half + 2);
      }
      logits_[i] = halves[0] + halves[1];
    }
    if constexpr (Tokens::kHasGaps) {
      mask_missing<Shape>(lds_, block * Shape::kBlockK, logits_);
    } else {
      mask_unseen<Shape>(args_, tile_, tokens_.tokens(), block * Shape::kBlockK, logits_);
    }
    if constexpr (Shape::kMaxima) raise_largest();
    factor_ = softmax_.raise_maximum(logits_, logit_scale());
  }

  DG_DEVICE void raise_largest() {
#pragma unroll
    for (int i = 0; i < Shape::kRun; ++i) {
      largest_ = __builtin_fmaxf(largest_, logits_[i / Mfma::kElements][i % Mfma::kElements]);
    }
  }

  // Computes the probabilities of these logits, and gives them to all waves.
  DG_DEVICE void share_probabilities() {
    softmax_.exponentiate(logits_, logit_scale(), factor_);
    *factor_of(wave_id()) = factor_;
    *probabilities_of(wave_id()) = {probability_operand<Mfma, T>(logits_, 0),
                                    probability_operand<Mfma, T>(logits_, 1)};
  }

  // Transposes the values in words_ into operands.
  DG_DEVICE void turn_values() {
    static_for<Shape::kWidth>([&](auto f) {
      unsigned words[Shape::kRun];
#pragma unroll
      for (int i = 0; i < Shape::kRun; ++i) words[i] = words_[i][f / 2];
      values_[f] = __builtin_bit_cast(MfmaOperands, column_chunk<sizeof(T)>(words, f % 2));
      asm volatile("" : "+v"(values_[f]));  // else the compiler transposes them where they are used
    });
  }

  // Reads the probabilities of kCount tiles from LDS and, together with those of tile 0, the factors of all tiles.
  template <int kFirst, int kCount>
  DG_DEVICE void load_probabilities() {
    if constexpr (kFirst == 0) {
#pragma unroll
      for (int i = 0; i < Shape::kRowTiles; ++i) factors_[i] = *factor_of(i);
    }
#pragma unroll
    for (int i = kFirst; i < kFirst + kCount; ++i) probabilities_[i] = *probabilities_of(i);
  }

  // out = out · factor. Skipped if all factors are 1, as they mostly are.
  DG_DEVICE void multiply_sums() {
    bool changes = false;
#pragma unroll
    for (int i = 0; i < Shape::kRowTiles; ++i) changes |= factors_[i] != 1;
    if (ballot(changes) == 0) return;
    static_for<Shape::kRowTiles>([&](auto tile) {
#pragma unroll
      for (int f = 0; f < Shape::kWidth; ++f) out_[tile][f] *= factors_[tile];
    });
  }

  // out = out + Vᵀ · Pᵀ, for the wave's values and a tile of queries.
  DG_DEVICE void add_values(int tile) {
    static_for<2>([&](int operand) {
      static_for<Shape::kWidth>([&](auto f) {
        out_[tile][f] = Mfma::multiply_add(values_[f][operand], probabilities_[tile][operand], out_[tile][f]);
      });
    });
  }

  // See FlashDecode::add_up_again(). Returns a bit for each tile whose sums the lane has computed again. `own_sum` is
  // that of the wave's tile. A key that isn't finite is either not seen, or has made the sum of probabilities NaN; such
  // sums aren't computed again.
  DG_DEVICE unsigned add_up_again(float own_sum, const float (&sums)[Shape::kRowTiles]) {
    unsigned again = 0;
    static_for<Shape::kRowTiles>([&](auto tile) {
      if (sums[tile] > 0 && !all_finite(out_[tile])) {
        again |= 1u << tile;
        static_for<Shape::kWidth>([&](int f) { out_[tile][f] = 0; });
      }
    });
    const float unit = 1 / own_sum;
    for (int block = tile_.begin; block < tile_.end; ++block) {
      lds_barrier();  // all waves have read the last block, or the sums
      loader_.look_up(tokens_, block);
      loader_.start(tokens_, args_.k, args_.page_shift, block, tile_.end);
      // Twice, since store() stores whether keys exist as the call before the last one found it.
      loader_.start(tokens_, args_.k, args_.page_shift, block, tile_.end);
      static_for<Loader::kPasses>([&](int pass) { loader_.load(pass); });
      loader_.clear_missing();
      static_for<Loader::kPasses>([&](int pass) { loader_.store(pass, lds_); });
      lds_barrier();
      multiply_keys<false>(block, tile_.end);
      lds_barrier();
      if (computes_probabilities()) replace_logits_by_probabilities(block, unit);
      lds_barrier();
#pragma nounroll
      for (int key = 0; key < Shape::kBlockK; ++key) add_values_of(key, again);
    }
    return again;
  }

  // Stored in place of the probability of a key that the query doesn't see.
  static constexpr float kCountsForNothing = -1;

  DG_DEVICE void replace_logits_by_probabilities(int block, float unit) {
    take_logits(block);  // the maximum is final already
    static_for<Shape::kKeyFragments>([&](int i) {
#pragma unroll
      for (int e = 0; e < Mfma::kElements; ++e) {
        const float logit = logits_[i][e];
        logits_[i][e] = logit == -kInfinity ? kCountsForNothing
                                            : softmax_.probability(logit * logit_scale()) * unit;
      }
      *logits_of(wave_id(), i, 0) = logits_[i];
    });
  }

  DG_DEVICE void add_values_of(int key, unsigned again) {
    const int lane = lane_id_computed_here();
    const int element = key % Shape::kRun;
    const auto* const probabilities = reinterpret_cast<const float*>(lds_ + Shape::kKeyBytes) +
                                      element / Mfma::kElements * Shape::kRowTiles * kWaveSize * Mfma::kElements +
                                      (key / Shape::kRun * Mfma::kRows + lane % Mfma::kRows) * Mfma::kElements +
                                      element % Mfma::kElements;
    Vector<T, Shape::kWidth> values[Mfma::kElements];
#pragma unroll
    for (int e = 0; e < Mfma::kElements; ++e) {
      const int byte = Mfma::row_of_element(lane / Mfma::kRows, e) * static_cast<int>(sizeof(values[e]));
      values[e] = *reinterpret_cast<const Vector<T, Shape::kWidth>*>(
          lds_ + wave_id() * Shape::kKeyTileBytes + lds_offset(key, byte / kChunkBytes) + byte % kChunkBytes);
    }
    static_for<Shape::kRowTiles>([&](auto tile) {
      const float probability = probabilities[tile * kWaveSize * Mfma::kElements];
      if ((again >> tile & 1) == 0 || probability == kCountsForNothing) return;
#pragma unroll
      for (int f = 0; f < Shape::kWidth; ++f) {
#pragma unroll
        for (int e = 0; e < Mfma::kElements; ++e) {
          out_[tile][f][e] = __builtin_fmaf(probability, static_cast<float>(values[e][f]), out_[tile][f][e]);
        }
      }
    });
  }

  const DecodeArguments& args_;
  DecodeTile tile_;
  Tokens tokens_;
  float logit_scale_;  // with kHasDescale
  float value_scale_;
  uint8_t* lds_;
  Loader loader_;
  int keys_offset_;
  int values_offset_;
  MfmaOperands queries_[Shape::kWaveTiles][Shape::kReads];
  Words words_[Shape::kRun];  // of the wave's 64 columns of V, the lane's part for its run of keys
  MfmaOperands values_[Shape::kWidth] = {};
  MfmaOperands probabilities_[Shape::kRowTiles] = {};
  float factors_[Shape::kRowTiles];
  Accumulator logits_[Shape::kKeyFragments];  // of the wave's tile of queries
  float factor_;
  float largest_ = -kInfinity;  // largest logit of the lane's keys, with kMaxima
  Accumulator out_[Shape::kRowTiles][Shape::kWidth] = {};
  OnlineSoftmax<Mfma, T, Shape::kSlack> softmax_;  // of the wave's tile
};

}  // namespace deep_gemm_rocm
