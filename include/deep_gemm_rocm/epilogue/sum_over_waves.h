// Split-K within a workgroup: adds up the sums of its waves, each over its part of K, through LDS.
#pragma once

#include "deep_gemm_rocm/hardware/hip_declarations.h"
#include "deep_gemm_rocm/hardware/static_for.h"
#include "deep_gemm_rocm/tiles/tile_shape.h"
#include "deep_gemm_rocm/hardware/types.h"

namespace deep_gemm_rocm {

// The sums of a tile over all of K. The first kStoringWaves waves get them, each those of some rows. Parts are added up
// in order, so that results are reproducible.
template <class Shape_>
class SumOverWaves {
  using Sums = Shape_;
  static constexpr int kStoringWaves = greatest_common_divisor(Sums::kWavesK, Sums::kFragsM);
  static constexpr int kElements = Sums::Mfma::kElements;
  using Elements = Vector<float, kElements>;
  static constexpr int kElementsOfWave = Sums::kLdsBytesOfWave / sizeof(Elements);

 public:
  // How the storing waves share the tile.
  using Shape = TileShape<typename Sums::Mfma, Sums::kBlockM, Sums::kBlockN, kStoringWaves, 1, Sums::kParts>;
  static constexpr int kLdsBytes = Sums::kWavesK > 1 ? Sums::kWavesK * Sums::kLdsBytesOfWave : 0;

  // All waves must take part. `lds` is the workgroup's.
  template <class Mma>
  DG_DEVICE SumOverWaves(const Mma& mma, uint8_t* lds) : sums_{} {
    static_for<ceil_div(Sums::kFragsN, kAtOnce)>([&](auto step) {
      if (step > 0) lds_barrier();  // all waves have read the sums of the step before
      constexpr int kFirst = step * kAtOnce;
      add_columns<kFirst, min(kAtOnce, Sums::kFragsN - kFirst)>(mma, reinterpret_cast<Elements*>(lds));
    });
  }

  static DG_DEVICE bool has_sums() { return wave_id() < kStoringWaves; }

  DG_DEVICE float total(int fragment_m, int fragment_n, int element) const {
    return sums_[fragment_m][fragment_n][element];
  }

 private:
  static constexpr int kAtOnce = Sums::kSummedFragsN;
  static constexpr int kOwnFragsM = Sums::kFragsM / kStoringWaves;

  // Adds up kCount columns of fragments. `parts` is [kWavesK][kElementsOfWave / kWaveSize][kWaveSize].
  template <int kFirst, int kCount, class Mma>
  DG_DEVICE void add_columns(const Mma& mma, Elements* parts) {
#pragma unroll
    for (int i = 0; i < Sums::kFragsM * kCount; ++i) {
      Elements own;
#pragma unroll
      for (int e = 0; e < kElements; ++e) own[e] = mma.total(i / kCount, kFirst + i % kCount, e);
      parts[Sums::wave_k() * kElementsOfWave + i * kWaveSize + lane_id()] = own;
    }
    lds_barrier();
    if (!has_sums()) return;
    constexpr int kOwnFragments = kOwnFragsM * kCount;
    const int first = wave_id() * kOwnFragments;
    Elements of_parts[Sums::kWavesK][kOwnFragments];
#pragma unroll
    for (int part = 0; part < Sums::kWavesK; ++part) {
#pragma unroll
      for (int i = 0; i < kOwnFragments; ++i) {
        of_parts[part][i] = parts[part * kElementsOfWave + (first + i) * kWaveSize + lane_id()];
      }
    }
    __builtin_amdgcn_sched_barrier(0);  // so that all loads start before the first one is waited for
#pragma unroll
    for (int i = 0; i < kOwnFragments; ++i) {
#pragma unroll
      for (int part = 0; part < Sums::kWavesK; ++part) {
        sums_[i / kCount][kFirst + i % kCount] += of_parts[part][i];
      }
    }
  }

  Elements sums_[kOwnFragsM][Sums::kFragsN];
};

}  // namespace deep_gemm_rocm
