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

  DG_DEVICE explicit SumOverWaves(uint8_t* lds) : parts_(reinterpret_cast<Elements*>(lds)), sums_{} {}

  // All waves must take part. The last columns are left in LDS for waves that have sums: these load and add them, with
  // other work in between, which hides the latency.
  template <class Mma>
  DG_DEVICE void exchange(const Mma& mma) {
    static_for<kLastStep + 1>([&](auto step) {
      if constexpr (step > 0) {
        if (has_sums()) {
          load<step - 1>();
          add<step - 1>();
        }
        lds_barrier();  // all waves have read the sums of the step before
      }
      store<step>(mma);
      lds_barrier();
    });
  }
  DG_DEVICE void load_last_columns() { load<kLastStep>(); }
  DG_DEVICE void add_last_columns() { add<kLastStep>(); }

  static DG_DEVICE bool has_sums() { return kStoringWaves == Sums::kWavesK || wave_id() < kStoringWaves; }

  DG_DEVICE float total(int fragment_m, int fragment_n, int element) const {
    return sums_[fragment_m][fragment_n][element];
  }

 private:
  static constexpr int kAtOnce = Sums::kSummedFragsN;
  static constexpr int kLastStep = ceil_div(Sums::kFragsN, kAtOnce) - 1;
  static constexpr int kOwnFragsM = Sums::kFragsM / kStoringWaves;

  // Columns of fragments of a step.
  static constexpr int columns_of(int step) { return min(kAtOnce, Sums::kFragsN - step * kAtOnce); }

  template <int kStep, class Mma>
  DG_DEVICE void store(const Mma& mma) {
    constexpr int kCount = columns_of(kStep);
#pragma unroll
    for (int i = 0; i < Sums::kFragsM * kCount; ++i) {
      Elements own;
#pragma unroll
      for (int e = 0; e < kElements; ++e) own[e] = mma.total(i / kCount, kStep * kAtOnce + i % kCount, e);
      parts_[Sums::wave_k() * kElementsOfWave + i * kWaveSize + lane_id()] = own;
    }
  }

  template <int kStep>
  DG_DEVICE void load() {
    constexpr int kOwnFragments = kOwnFragsM * columns_of(kStep);
    const int first = wave_id() * kOwnFragments;
#pragma unroll
    for (int part = 0; part < Sums::kWavesK; ++part) {
#pragma unroll
      for (int i = 0; i < kOwnFragments; ++i) {
        loaded_[part][i] = parts_[part * kElementsOfWave + (first + i) * kWaveSize + lane_id()];
      }
    }
    __builtin_amdgcn_sched_barrier(0);  // so that all loads start before the first one is waited for
  }

  template <int kStep>
  DG_DEVICE void add() {
    constexpr int kCount = columns_of(kStep);
#pragma unroll
    for (int i = 0; i < kOwnFragsM * kCount; ++i) {
#pragma unroll
      for (int part = 0; part < Sums::kWavesK; ++part) {
        sums_[i / kCount][kStep * kAtOnce + i % kCount] += loaded_[part][i];
      }
    }
  }

  Elements* parts_;  // [kWavesK][kElementsOfWave / kWaveSize][kWaveSize] in LDS
  Elements loaded_[Sums::kWavesK][kOwnFragsM * kAtOnce];
  Elements sums_[kOwnFragsM][Sums::kFragsN];
};

}  // namespace deep_gemm_rocm
