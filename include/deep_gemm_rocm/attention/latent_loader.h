// How a workgroup shares out a latent cache's keys and queries, and the loads of keys.
#pragma once

#include "deep_gemm_rocm/attention/paged_cache.h"
#include "deep_gemm_rocm/hardware/mfma.h"
#include "deep_gemm_rocm/loading/fragment.h"
#include "deep_gemm_rocm/loading/lds_layout.h"

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
  static constexpr int kBlocksToBegin = 8;  // blocks that take as long as a tile without any
  static constexpr int kKeyFragments = kBlockK / Mfma::kRows;
  using KeyOrder = RowsInRuns<Mfma, kRun>;

  // A key is kDBlocks rows of 128 bytes in LDS, in tiles of kBlockK keys one after another. A wave adds up the values
  // of one of these tiles.
  static constexpr int kDBlock = kBlockKBytes / sizeof(T);
  static constexpr int kDBlocks = kHeadDim / kDBlock;
  static constexpr int kWaves = kValueDim / kDBlock;
  static constexpr int kThreads = kWaves * kWaveSize;
  static constexpr int kParts = fragment_reads<Mfma>();  // of the width; each has one read of every row of 128 bytes
  static constexpr int kWaveTiles = kParts;              // tiles of queries whose logits a wave computes
  static constexpr int kWidth = kDBlock / Mfma::kRows;   // neighbouring values that a lane adds up
  static constexpr int kSlack = 8;                       // probabilities are up to 256
  static constexpr int kKeyTileBytes = kBlockK * kBlockKBytes;
  static constexpr int kKeyBytes = kDBlocks * kKeyTileBytes;
  static constexpr int kLaneLogitsBytes = sizeof(typename Mfma::Accumulator);
  static constexpr int kLogitsBytes = kRowTiles * kKeyFragments * kParts * kWaveSize * kLaneLogitsBytes;
  static constexpr int kProbabilitiesBytes = kRowTiles * kWaveSize * kChunkBytes;
  static constexpr int kFactorsBytes = kRowTiles * kWaveSize * static_cast<int>(sizeof(float));
  static constexpr int kLdsBytes = kKeyBytes + kLogitsBytes + kProbabilitiesBytes + kFactorsBytes;

  static_assert(sizeof(T) == 2 && kDBlocks * kDBlock == kHeadDim && kWaves * kDBlock == kValueDim);
  static_assert(kWaves * kWaveTiles == kRowTiles * kKeyFragments * kParts, "each wave computes as many logits");
  static_assert(kLdsBytes <= 64 * 1024, "a workgroup has at most 64 KiB of LDS");
};

// Moves a block of keys from their pages through registers into LDS. Eight neighbouring threads move 128 bytes of a
// key, and a wave eight keys of one page.
template <class Shape>
class LatentLoader {
  static constexpr int kWaveKeys = kWaveSize / kChunksPerRow;
  static constexpr int kKeyWaves = Shape::kBlockK / kWaveKeys;  // waves that move 128 bytes of all keys at once
  static constexpr int kParts = Shape::kWaves / kKeyWaves;
  static_assert(Shape::kWaves % kKeyWaves == 0, "a wave moves parts of the same keys");

 public:
  static constexpr int kPasses = ceil_div(Shape::kDBlocks, kParts);

  DG_DEVICE explicit LatentLoader(const PagedTensor& cache)
      : offset_(lane_id() / kChunksPerRow * cache.token_stride * static_cast<int>(sizeof(typename Shape::T)) +
                part() * kBlockKBytes + lane_id() % kChunksPerRow * kChunkBytes),
        lds_offset_(part() * Shape::kKeyTileBytes +
                    lds_offset(first_key(0) + lane_id() / kChunksPerRow, lane_id() % kChunksPerRow)) {}

  // Each lane looks up the page: a scalar load would be counted with the reads from LDS, and wait for all of them.
  DG_DEVICE void look_up(const SequencePages& pages, int block) {
    page_ = pages.entry_of(first_key(block) + lane_id() / kChunksPerRow);
  }

  DG_DEVICE void start(const SequencePages& pages, const PagedTensor& cache, int block) {
    asm volatile("" : "+v"(page_));  // the address isn't computed earlier, when the wave would wait for the page,
    keys_ = pages.run<typename Shape::T>(cache, uniform(page_), first_key(block), kWaveKeys, Shape::kHeadDim);
    asm volatile("" : "+s"(keys_.base), "+s"(keys_.bytes));  // nor later, among MFMAs
  }

  DG_DEVICE void load(int pass) {
    unsigned offset = offset_;
    asm("" : "+v"(offset));  // so that constants are added by the instruction, not in registers before the loop
    staged_[pass] = keys_.only_if(exists(pass)).load<Chunk>(offset + pass * kParts * kBlockKBytes);
  }

  DG_DEVICE void store(int pass, uint8_t* lds) const {
    uint8_t* const to = lds + lds_offset_ + pass * kParts * Shape::kKeyTileBytes;
    if (exists(pass)) *reinterpret_cast<Chunk*>(to) = staged_[pass];
  }

 private:
  static DG_DEVICE unsigned wave() { return wave_id(); }
  static DG_DEVICE int first_key(int block) { return block * Shape::kBlockK + wave() % kKeyWaves * kWaveKeys; }
  // The waves that compute no probabilities have the first part, to which the rest of the width belongs.
  static DG_DEVICE int part() { return kParts - 1 - wave() / kKeyWaves; }
  static DG_DEVICE bool exists(int pass) {
    return (pass + 1) * kParts <= Shape::kDBlocks || pass * kParts + part() < Shape::kDBlocks;
  }

  unsigned offset_;
  int lds_offset_;
  int page_;
  Buffer keys_;
  Chunk staged_[kPasses];
};

}  // namespace deep_gemm_rocm
