// Loaders of keys and values in pages for queries in FP8. Unlike in run_loader.h, a wave's tokens may be in several
// pages. So each lane looks up its token's page, one block ahead, while the loads of the block before are in flight.
//   SequenceTokens: PagedTokens of some PageSize.
#pragma once

#include "deep_gemm_rocm/attention/sequence_tokens.h"
#include "deep_gemm_rocm/hardware/global.h"
#include "deep_gemm_rocm/loading/tile_loader.h"
#include "deep_gemm_rocm/loading/transposing_tile_loader.h"

namespace deep_gemm_rocm {

// A TileLoader that finds each lane's key in its page.
template <class SequenceTokens, class Order, int kKeys, int kThreads, int kHeadBytes>
class PagedKeyLoader : public TileLoader<Order, kKeys, kKeys, kThreads, ceil_div(kHeadBytes, kBlockKBytes), true> {
  using Base = TileLoader<Order, kKeys, kKeys, kThreads, ceil_div(kHeadBytes, kBlockKBytes), true>;

 public:
  using Base::Base;

  DG_DEVICE void look_up(const SequenceTokens& tokens, int pass, int first_key) {
    entry_[pass] = tokens.entry_of(key(pass, first_key));
  }

  DG_DEVICE void load(const SequenceTokens& tokens, int d_block, int pass, int first_key) {
    const int in_row = d_block * kBlockKBytes + Base::chunk_k();
    const bool exists = kHeadBytes % kBlockKBytes == 0 || in_row < kHeadBytes;
    const uint8_t* const row = tokens.address(entry_[pass], key(pass, first_key));
    const Chunk chunk = load_global<Chunk>(row + (exists ? in_row : 0));
    Base::staged_[d_block][pass] = exists ? chunk : Chunk{};
  }

 private:
  static DG_DEVICE int key(int pass, int first_key) { return first_key + Order::of_lds_row(Base::lds_row(pass)); }

  int entry_[Base::kPasses];
};

// A TransposingTileLoader for values in pages. A lane's tokens are in one page, and the same in all passes.
template <class SequenceTokens, class T, int kValueDim, int kValueRows, int kThreads>
class PagedValueLoader : public TransposingTileLoader<T, RowsInOrder, kValueRows, kThreads, 1> {
  using Base = TransposingTileLoader<T, RowsInOrder, kValueRows, kThreads, 1>;
  static_assert(Base::kWaves % Base::kWavesPerRows == 0, "passes have the same tokens");

 public:
  using Base::Base;

  DG_DEVICE void look_up(const SequenceTokens& tokens, int first_key) {
    entry_ = tokens.entry_of(first_key + Base::first_k_of_part(0));
  }

  DG_DEVICE void load(const SequenceTokens& tokens, int pass, int first_key) {
    const int run = first_key + Base::first_k_of_part(0);
    const int value = min(Base::row(pass), kValueDim - Base::kUnitRows);  // those past the last ones aren't used
    const uint8_t* next = tokens.address(entry_, run) + value * static_cast<int>(sizeof(T));
#pragma unroll
    for (int i = 0; i < Base::kUnitLoads; ++i) {
      Base::staged_[0][pass][i] = load_global<unsigned>(next);
      next += run + i + 1 < tokens.count ? tokens.token_stride : 0;
    }
  }

 private:
  int entry_;
};

}  // namespace deep_gemm_rocm
