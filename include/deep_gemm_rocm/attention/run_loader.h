// Loaders of keys and values that are in pages, or whose tokens have descale factors. A wave loads a run of tokens in
// one page. The page is looked up one block ahead, while the loads of the block before are in flight.
//   SequenceTokens: PagedTokens, or ConsecutiveTokens, which has no pages to look up.
#pragma once

#include "deep_gemm_rocm/attention/sequence_tokens.h"
#include "deep_gemm_rocm/loading/tile_loader.h"
#include "deep_gemm_rocm/loading/transposing_tile_loader.h"

namespace deep_gemm_rocm {

// A TileLoader for keys that take kKeyBytes each in memory.
template <class SequenceTokens, class Order, int kKeys, int kThreads, int kDBlocks, int kKeyBytes, class Form,
          bool kHasFactors>
class KeyRunLoader : public TileLoader<Order, kKeys, kKeys, kThreads, kDBlocks, true, false, Form> {
  using Base = TileLoader<Order, kKeys, kKeys, kThreads, kDBlocks, true, false, Form>;
  using Loaded = typename Form::Loaded;

 public:
  using Base::Base;

  // A vector load in each lane: lgkmcnt counts scalar loads together with reads from LDS, so waiting for a scalar load
  // would mean waiting for all of these.
  DG_DEVICE void look_up(const SequenceTokens& tokens, int pass, int first_key) {
    entry_[pass] = tokens.entry_of(first_key + key(pass));
  }

  DG_DEVICE void load(const SequenceTokens& tokens, int d_block, int pass, int first_key) {
    const Buffer run = tokens.run(uniform(entry_[pass]), first_key + first_of_run(pass), kKeyBytes);
    const int in_key = d_block * Base::kBlockBytes + Base::chunk_k();
    const bool exists = kKeyBytes % Base::kBlockBytes == 0 || in_key < kKeyBytes;
    const unsigned offset = in_run() * static_cast<unsigned>(tokens.token_stride) + in_key;
    Base::staged_[d_block][pass] = run.load<Loaded>(exists ? offset : kOutOfBounds);
  }

  DG_DEVICE void load_factors(const SequenceTokens& factors, int pass, int first_key) {
    const Buffer run = factors.run(uniform(entry_[pass]), first_key + first_of_run(pass), sizeof(float));
    factor_[pass] = run.load<float>(in_run() * static_cast<unsigned>(factors.token_stride));
  }

  DG_DEVICE void store(int d_block, int pass, uint8_t* lds_tile) const {
    if constexpr (!kHasFactors) {
      Base::store(d_block, pass, lds_tile);
    } else if (Base::stores(pass)) {
      const float factor = factor_before_rounding(factor_[pass]);
      Base::store_chunk(widened_bf16<true>(Base::staged_[d_block][pass], factor), lds_tile, pass);
    }
  }

 private:
  // Keys from one pass to the next: a multiple of kRunTokens, so that a lane's place in its run stays the same.
  static constexpr int kKeysOfPass = rows_per_pass(kThreads);
  static_assert(Order::of_lds_row(kKeysOfPass) == kKeysOfPass && kKeysOfPass % kRunTokens == 0);

  static DG_DEVICE int key_of_first_pass() { return Order::of_lds_row(Base::lds_row(0)); }
  static DG_DEVICE int key(int pass) { return key_of_first_pass() + pass * kKeysOfPass; }
  static DG_DEVICE int first_of_run(int pass) { return uniform(key(pass)) / kRunTokens * kRunTokens; }
  static DG_DEVICE int in_run() { return key_of_first_pass() % kRunTokens; }

  int entry_[Base::kPasses] = {};
  float factor_[Base::kPasses];
};

// A TransposingTileLoader for values. A lane's tokens are the same in all passes.
template <class SequenceTokens, class T, class Stored, int kValueDim, int kValueRows, int kThreads, bool kHasFactors>
class ValueRunLoader : public TransposingTileLoader<T, RowsInOrder, kValueRows, kThreads, 1, Stored> {
  using Base = TransposingTileLoader<T, RowsInOrder, kValueRows, kThreads, 1, Stored>;
  static_assert(Base::kUnitRows * Base::kUnitLoads == kRunTokens, "a wave's tokens are a run");
  static_assert(Base::kWaves % Base::kWavesPerRows == 0, "passes have the same tokens");

 public:
  using Base::Base;

  DG_DEVICE void look_up(const SequenceTokens& tokens, int first_key) { entry_ = tokens.entry_of(first_key + key()); }

  DG_DEVICE void load(const SequenceTokens& tokens, int pass, int first_key) {
    // A constant more than in the first pass, so that all passes share an offset register.
    const int value = Base::row(0) + pass * kRowsOfPass;
    const bool exists = (pass + 1) * kRowsOfPass <= kValueDim || value < kValueDim;
    const unsigned in_token = exists ? value * sizeof(Stored) : kOutOfBounds;
    load_run(tokens, first_key, in_token, kValueDim * sizeof(Stored), Base::staged_[0][pass]);
  }

  DG_DEVICE void load_factors(const SequenceTokens& factors, int first_key) {
    load_run(factors, first_key, 0, sizeof(float), factors_);
  }

  DG_DEVICE void store(int stage, int pass, uint8_t* lds_tile) const {
    if constexpr (!kHasFactors) {
      Base::store(stage, pass, lds_tile);
    } else {
      float factors[Base::kUnitLoads];
#pragma unroll
      for (int i = 0; i < Base::kUnitLoads; ++i) factors[i] = factor_before_rounding(factors_[i]);
      Base::store_columns(pass, lds_tile, [&](int column) {
        return widened_bf16_column<typename Base::Part, true>(Base::staged_[stage][pass], column, factors);
      });
    }
  }

 private:
  static constexpr int kRowsOfPass = Base::kWaves / Base::kWavesPerRows * Base::kWaveRows;

  static DG_DEVICE int key() { return Base::first_k_of_part(0); }

  // Loads one word of each of the lane's tokens, at byte in_token of a token.
  template <class Word>
  DG_DEVICE void load_run(const SequenceTokens& tokens, int first_key, unsigned in_token, int token_bytes,
                          Word (&words)[Base::kUnitLoads]) const {
    const int first_of_run = uniform(key()) / kRunTokens * kRunTokens;
    const Buffer run = tokens.run(uniform(entry_), first_key + first_of_run, token_bytes);
    const auto stride = static_cast<unsigned>(tokens.token_stride);
    const unsigned first = key() % kRunTokens * stride + in_token;
#pragma unroll
    for (int i = 0; i < Base::kUnitLoads; ++i) words[i] = run.load<Word>(first, i * stride);
  }

  int entry_ = 0;
  float factors_[Base::kUnitLoads];
};

}  // namespace deep_gemm_rocm
