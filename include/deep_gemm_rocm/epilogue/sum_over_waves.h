// Adds up the sums of a workgroup's waves, each over its part of K.
#pragma once

#include "deep_gemm_rocm/hardware/hip_declarations.h"
#include "deep_gemm_rocm/tiles/tile_shape.h"
#include "deep_gemm_rocm/hardware/types.h"

namespace deep_gemm_rocm {

// The sums of a tile over all of K. The first waves have them, each those of some rows. Parts are added up in order.
template <class Shape_>
class SumOverWaves {
  using Sums = Shape_;
  static constexpr int kStoringWaves = greatest_common_divisor(Sums::kWavesK, Sums::kFragsM);
  static constexpr int kFragments = Sums::kFragsM * Sums::kFragsN;
  static constexpr int kElements = Sums::Mfma::kElements;
  using Elements = Vector<float, kElements>;
  static constexpr int kElementsOfWave = Sums::kLdsBytesOfWave / sizeof(Elements);

 public:
  // How the waves with sums share the tile.
  using Shape = TileShape<typename Sums::Mfma, Sums::kBlockM, Sums::kBlockN, kStoringWaves, 1, Sums::kParts>;
  static constexpr int kLdsBytes = Sums::kWavesK > 1 ? Sums::kWavesK * Sums::kLdsBytesOfWave : 0;

  // All waves must take part. `lds` is the workgroup's.
  template <class Mma>
  DG_DEVICE SumOverWaves(const Mma& mma, uint8_t* lds) : sums_{} {
    auto* const parts = reinterpret_cast<Elements*>(lds);  // [kWavesK][kElementsOfWave / kWaveSize][kWaveSize]
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      Elements own;
#pragma unroll
      for (int e = 0; e < kElements; ++e) own[e] = mma.total(i / Sums::kFragsN, i % Sums::kFragsN, e);
      parts[Sums::wave_k() * kElementsOfWave + i * kWaveSize + lane_id()] = own;
    }
    lds_barrier();
    if (!has_sums()) return;
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
      for (int part = 0; part < Sums::kWavesK; ++part) sums_[i] += of_parts[part][i];
    }
  }

  static DG_DEVICE bool has_sums() { return wave_id() < kStoringWaves; }

  DG_DEVICE float total(int fragment_m, int fragment_n, int element) const {
    return sums_[fragment_m * Shape::kFragsN + fragment_n][element];
  }

 private:
  static constexpr int kOwnFragments = kFragments / kStoringWaves;
  Elements sums_[kOwnFragments];
};

}  // namespace deep_gemm_rocm
