// Adds up what the waves of a workgroup have summed over their parts of K.
#pragma once

#include "deep_gemm_rocm/hip_declarations.h"
#include "deep_gemm_rocm/types.h"

namespace deep_gemm_rocm {

// The tile's sums as an epilogue asks for them; they are in wave 0 only. Parts are added up in their order.
template <class Shape>
class SumOverWaves {
  static constexpr int kElements = Shape::Mfma::kElements;
  static constexpr int kFragments = Shape::kFragsM * Shape::kFragsN;
  using Elements = Vector<float, kElements>;

 public:
  // All waves take part. `lds` is the workgroup's; of that of the K loop none is needed any more.
  template <class Mma>
  DG_DEVICE SumOverWaves(const Mma& mma, uint8_t* lds) : sums_{} {
    auto* const parts = reinterpret_cast<Elements*>(lds);  // [kWavesK][kFragments][kWaveSize]
    lds_barrier();
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      Elements own;
#pragma unroll
      for (int e = 0; e < kElements; ++e) own[e] = mma.total(i / Shape::kFragsN, i % Shape::kFragsN, e);
      parts[(Shape::wave_k() * kFragments + i) * kWaveSize + lane_id()] = own;
    }
    lds_barrier();
    if (Shape::wave_k() != 0) return;
#pragma unroll
    for (int part = 0; part < Shape::kWavesK; ++part) {
#pragma unroll
      for (int i = 0; i < kFragments; ++i) sums_[i] += parts[(part * kFragments + i) * kWaveSize + lane_id()];
    }
  }

  DG_DEVICE float total(int fragment_m, int fragment_n, int element) const {
    return sums_[fragment_m * Shape::kFragsN + fragment_n][element];
  }

 private:
  Elements sums_[kFragments];
};

}  // namespace deep_gemm_rocm
