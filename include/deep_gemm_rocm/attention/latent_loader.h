// How the waves of an MLA workgroup share keys and queries, and the loader that brings keys into LDS.
#pragma once

#include "deep_gemm_rocm/attention/latent_layout.h"
#include "deep_gemm_rocm/attention/paged_cache.h"
#include "deep_gemm_rocm/attention/part_row.h"
#include "deep_gemm_rocm/hardware/global.h"
#include "deep_gemm_rocm/hardware/mfma.h"
#include "deep_gemm_rocm/loading/fragment.h"
#include "deep_gemm_rocm/loading/lds_layout.h"

namespace deep_gemm_rocm {

// Layout: how the cache holds keys, see latent_layout.h. Tokens: which ones a sequence has, see paged_cache.h.
// kHasFp8Queries: whether queries are in the cache's format of FP8, not in T.
template <class T_, int kHeadDim_, int kValueDim_, int kRows_, class Layout_, bool kIsOcp_, class Tokens_,
          bool kHasFp8Queries_ = false>
struct MlaShape {
  using T = T_;
  using Out = T_;
  using Layout = Layout_;
  using Tokens = Tokens_;
  static constexpr bool kIsOcp = kIsOcp_;
  static constexpr bool kHasFp8Queries = kHasFp8Queries_;
  static constexpr bool kMaxima = Tokens::kHasGaps;  // whether the largest logits are stored
  // For DecodeSchedule: there is one head of keys; whether tokens were chosen for each query (sparse attention), whose
  // lengths several sequences may share; and whether there is a second cache.
  static constexpr bool kHasOneKvHead = true;
  static constexpr bool kHasChosenTokens = Tokens::kHasGaps;
  static constexpr bool kHasExtraTokens = Tokens::kHasExtra;
  using Mfma = deep_gemm_rocm::Mfma<T, T, 16>;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kValueDim = kValueDim_;
  static constexpr int kRows = kRows_;  // queries of a workgroup
  static constexpr int kRowTiles = kRows / Mfma::kRows;

  static constexpr int kRun = kChunkBytes / sizeof(T);
  static constexpr int kBlockK = kRun * Mfma::kLaneGroups;
  static constexpr int kBlocksToBegin = 6;  // a tile's prologue and epilogue take as long as this many blocks
  static constexpr int kSplitsOfFewKeys = 1;  // splits of a sequence in addition to one for each split_keys
  static constexpr int kKeyFragments = kBlockK / Mfma::kRows;
  using KeyOrder = RowsInRuns<Mfma, kRun>;

  // In LDS a key is split into kDBlocks rows of 128 bytes. Tile i, of kBlockK rows, has the i-th row of each key. For
  // Vᵀ · Pᵀ, each wave takes the values of one of these tiles.
  static constexpr int kDBlock = kBlockKBytes / sizeof(T);
  static constexpr int kDBlocks = kHeadDim / kDBlock;
  static constexpr int kWaves = kValueDim / kDBlock;
  static constexpr int kThreads = kWaves * kWaveSize;
  static constexpr int kWaveTiles = kRowTiles == 4 ? 2 : 1;   // tiles of queries whose logits a wave computes
  static constexpr int kTileGroups = kRowTiles / kWaveTiles;  // of such tiles
  // K · Qᵀ is split over the width into kParts, each of which another wave sums. Two parts share each row of 128 bytes.
  static constexpr int kParts = kWaves / (kTileGroups * kKeyFragments);
  // A logit is the sum of four chains of MFMAs, by halves of the rows of 128 bytes and by even and odd rows, whatever
  // the number of queries. So all kernels add up alike.
  static constexpr int kWaveChains = 4 / kParts;
  static constexpr int kReads = ceil_div(kDBlocks * fragment_reads<Mfma>(), kParts);  // some parts lack the last read
  static constexpr int kWidth = kDBlock / Mfma::kRows;   // neighbouring values of each of a lane's rows of Vᵀ
  static constexpr int kLaneValues = kWidth * Mfma::kElements;  // neighbouring values that a lane adds up
  using PartRow = deep_gemm_rocm::PartRow<kValueDim, kLaneValues>;
  static constexpr int kSlack = 8;                       // probabilities are up to 256
  static constexpr int kKeyTileBytes = kBlockK * kBlockKBytes;
  static constexpr int kKeyBytes = kDBlocks * kKeyTileBytes;
  static constexpr int kLaneLogitsBytes = sizeof(typename Mfma::Accumulator);
  static constexpr int kLogitsBytes = kRowTiles * kKeyFragments * kParts * kWaveSize * kLaneLogitsBytes;
  static constexpr int kProbabilitiesBytes = kRowTiles * kWaveSize * kChunkBytes;
  static constexpr int kFactorsBytes = kRowTiles * kWaveSize * static_cast<int>(sizeof(float));
  static constexpr int kExistsBytes = Tokens::kHasGaps ? 2 * kBlockK : 0;  // whether keys exist, of two blocks
  static constexpr int kExistsOffset = kKeyBytes + kLogitsBytes + kProbabilitiesBytes + kFactorsBytes;
  static constexpr int kLdsBytes = kExistsOffset + kExistsBytes;

  static_assert(sizeof(T) == 2 && kDBlocks * kDBlock == kHeadDim && kWaves * kDBlock == kValueDim);
  static_assert(kRowTiles == 1 || kRowTiles == 2 || kRowTiles == 4);
  static_assert(kWaves * kWaveTiles == kRowTiles * kKeyFragments * kParts, "each wave computes as many logits");
  static_assert(kParts % fragment_reads<Mfma>() == 0, "parts share rows of 128 bytes alike");
  static_assert(kLdsBytes <= 64 * 1024, "a workgroup has at most 64 KiB of LDS");
};

// Moves a block of keys from their pages through registers into LDS, converted to the queries' type. Eight neighbouring
// threads move 64 elements of a key, eight each.
template <class Shape>
class LatentLoader {
  using Layout = typename Shape::Layout;
  using Tokens = typename Shape::Tokens;
  static constexpr int kWaveKeys = kWaveSize / kChunksPerRow;
  static constexpr int kKeyWaves = Shape::kBlockK / kWaveKeys;  // waves that together move 64 elements of all keys
  static constexpr int kParts = Shape::kWaves / kKeyWaves;
  static constexpr int kVectorBytes = Layout::kIsFp8 ? sizeof(HalfChunk) : kChunkBytes;  // in the cache
  static constexpr int kElementBytes = Layout::kIsFp8 ? 1 : sizeof(typename Shape::T);
  static constexpr int kTokenBytes = Layout::kHasScales ? Layout::kTokenBytes : Shape::kHeadDim * kElementBytes;
  static constexpr int kPassBytes = kParts * kChunksPerRow * kVectorBytes;
  static constexpr int kRotaryBlock = Layout::kHasRotary ? Shape::kDBlocks - 1 : -1;
  using Pages = LanePages<kElementBytes>;
  static_assert(Shape::kWaves % kKeyWaves == 0, "a wave moves parts of the same keys");

 public:
  static constexpr int kPasses = ceil_div(Shape::kDBlocks, kParts);

  DG_DEVICE explicit LatentLoader(const PagedTensor& cache)
      : offset_(lane_id_computed_here() / kChunksPerRow * cache.token_stride * kElementBytes + first_byte()),
        lds_offset_(part() * Shape::kKeyTileBytes + lds_offset(static_cast<int>(key_of(0)), chunk())) {
    asm volatile("" : "+v"(lds_offset_));  // else the compiler keeps its terms in registers
  }

  // A vector load in each lane: lgkmcnt counts scalar loads together with reads from LDS, so waiting for a scalar load
  // would mean waiting for all of these.
  DG_DEVICE void look_up(const Tokens& tokens, int block) { entry_ = tokens.entry_of(key_of(block)); }

  // Blocks from `end` on stand for the last one.
  DG_DEVICE void start(const Tokens& tokens, const PagedTensor& cache, int page_shift, int block, int end) {
    asm volatile("" : "+v"(entry_));  // else the address is computed earlier, and the wave waits for the page,
    const int existing = min(block, end - 1);
    if constexpr (Tokens::kInRuns) {
      keys_ = tokens.run(cache, kElementBytes, uniform(entry_), first_key_of(existing), kWaveKeys, kTokenBytes);
      asm volatile("" : "+s"(keys_.base), "+s"(keys_.bytes));  // or later, among MFMAs
    } else {
      const TokenPlace place = tokens.place_of(entry_, key_of(existing));
      Pages pages(cache, page_shift);
      if constexpr (Tokens::kHasExtra) {
        pages = Pages::chosen(place.is_extra, pages, Pages(tokens.extra_cache(), tokens.extra_page_shift()));
      }
      start_lane(place, pages, block);
    }
  }

  DG_DEVICE void load(int pass) {
    if constexpr (Layout::kHasScales) {
      if (pass == kPasses - 1) load_scales();
    }
    if constexpr (Layout::kHasRotary) {
      if (pass == kRotaryBlock / kParts && is_rotary(pass)) {
        staged_[pass] = load_bytes<Chunk>(Layout::kRotaryOffset - first_byte() + chunk() * kChunkBytes);
        return;
      }
      if ((pass + 1) * kParts > Shape::kDBlocks) return;
    }
    if constexpr (Layout::kIsFp8) {
      const auto bytes = load_bytes<HalfChunk>(pass * kPassBytes, exists(pass));
      staged_[pass][0] = bytes[0];
      staged_[pass][1] = bytes[1];
    } else {
      staged_[pass] = load_bytes<Chunk>(pass * kPassBytes, exists(pass));
    }
  }

  DG_DEVICE void store(int pass, uint8_t* lds) const {
    if constexpr (Tokens::kHasGaps) {
      if (pass == 0 && part() == 0 && chunk() == 0) {
        lds[Shape::kExistsOffset + exists_offset_ + key_of(0)] = stored_exists_;
      }
    }
    if (!exists(pass)) return;
    *reinterpret_cast<Chunk*>(lds + lds_offset_ + pass * kParts * Shape::kKeyTileBytes) = values_of(pass);
  }

  // Sets loaded keys that don't exist to zero, before start() goes on to the next ones: a NaN among them would make the
  // workgroup compute all sums again. It branches, since few blocks have such keys, and only those then wait for all
  // loads.
  DG_DEVICE void clear_missing() {
    if constexpr (Tokens::kHasGaps) {
      if (loaded_exists_) return;
      static_for<kPasses>([&](int pass) { staged_[pass] = Chunk{}; });
      if constexpr (Layout::kHasScales) scales_ = typename Layout::Scales{};
    }
  }

 private:

  // The lane's number is computed anew each time, as there are no registers to keep what is derived from it.
  static DG_DEVICE unsigned wave() { return wave_id(); }
  static DG_DEVICE int chunk() { return lane_id_computed_here() % kChunksPerRow; }
  static DG_DEVICE int first_key_of(int block) { return block * Shape::kBlockK + wave() % kKeyWaves * kWaveKeys; }
  static DG_DEVICE int key_of(int block) { return first_key_of(block) + lane_id_computed_here() / kChunksPerRow; }
  static DG_DEVICE int first_byte() { return (part() * kChunksPerRow + chunk()) * kVectorBytes; }
  // The last waves, which compute no probabilities, have part 0, which gets one more row of 128 bytes than the others
  // where these can't be shared equally.
  static DG_DEVICE int part() { return kParts - 1 - wave() / kKeyWaves; }
  static DG_DEVICE bool exists(int pass) {
    return (pass + 1) * kParts <= Shape::kDBlocks || pass * kParts + part() < Shape::kDBlocks;
  }
  static DG_DEVICE bool is_rotary(int pass) {
    return pass == kRotaryBlock / kParts && kRotaryBlock >= 0 && part() == kRotaryBlock % kParts;
  }

  DG_DEVICE void start_lane(const TokenPlace& place, const Pages& pages, int block) {
    const uint8_t* const page = pages.page(place);
    address_ = page + (pages.offset_in_page(place) + first_byte());
    asm volatile("" : "+v"(address_));
    if constexpr (Layout::kHasPowers) {
      scales_address_ = page + (pages.tokens_of_page() * Layout::kTokenBytes + place.in_page * Layout::kScaleBytes);
      asm volatile("" : "+v"(scales_address_));
    }
    if constexpr (Tokens::kHasGaps) {
      stored_exists_ = loaded_exists_;
      loaded_exists_ = place.exists;
      exists_offset_ = loaded_block_ % 2 * Shape::kBlockK;
      loaded_block_ = block;
    }
  }

  // Loads from `ahead` bytes after the lane's first one, or gives zeros if not `wanted`.
  template <class T>
  DG_DEVICE T load_bytes(int ahead, bool wanted = true) const {
    if constexpr (Tokens::kInRuns) {
      unsigned offset = offset_;
      asm("" : "+v"(offset));  // so that constants are added by the instruction, not in registers before the loop
      return keys_.only_if(wanted).template load<T>(offset + ahead);
    } else {
      T loaded = {};
      if (wanted) loaded = load_global<T>(address_ + ahead);
      return loaded;
    }
  }

  DG_DEVICE void load_scales() {
    if constexpr (Layout::kHasPowers) {
      scales_ = load_global<typename Layout::Scales>(scales_address_);
    } else {
      scales_ = load_bytes<typename Layout::Scales>(Layout::kScaleOffset - first_byte());
    }
  }

  // The scale of the wave's 64 values in a pass.
  DG_DEVICE float scale_of(int pass) const {
    constexpr float kFactor = Shape::kIsOcp ? 2 : 1;
    if constexpr (Layout::kHasPowers) {
      const int block = pass * kParts + part();
      const unsigned word = block < 4 ? scales_[0] : scales_[1];
      return power_of_e8m0(word >> (block % 4 * 8) & 255) * kFactor;
    } else if constexpr (Layout::kHasScales) {
      static_assert(kParts * Shape::kDBlock == Layout::kScaledValues, "a pass has one scale");
      return factor_before_rounding(scales_[min(pass, 3)] * kFactor);
    } else {
      return 1;
    }
  }

  DG_DEVICE Chunk values_of(int pass) const {
    if constexpr (!Layout::kIsFp8) {
      return staged_[pass];
    } else {
      if (is_rotary(pass)) return staged_[pass];
      const HalfChunk bytes = {staged_[pass][0], staged_[pass][1]};
      return widened_latent<Shape::kIsOcp, Layout::kHasScales && !Layout::kHasPowers>(bytes, scale_of(pass));
    }
  }

  unsigned offset_;  // with kInRuns
  int lds_offset_;
  int entry_;
  Buffer keys_;             // with kInRuns
  const uint8_t* address_;  // without kInRuns
  const uint8_t* scales_address_;
  Chunk staged_[kPasses];
  typename Layout::Scales scales_;
  // Whether the lane's key exists: the one that store() stores next, and the one that load() loads next.
  bool stored_exists_ = false;
  bool loaded_exists_ = false;
  int loaded_block_ = 0;
  int exists_offset_;
};

}  // namespace deep_gemm_rocm
