// Rounds fp32 results to the type of the output.
#pragma once

#include "deep_gemm_rocm/hip_declarations.h"

namespace deep_gemm_rocm {

// What holds a value of type T in memory; FP8 types only name a format.
template <class T>
struct Storage {
  using Type = T;
  static constexpr bool kIsFp8 = false;

  template <int kSize>
  static DG_DEVICE Vector<T, kSize> rounded(const float (&values)[kSize]) {
    Vector<T, kSize> result;
#pragma unroll
    for (int i = 0; i < kSize; ++i) result[i] = static_cast<T>(values[i]);
    return result;
  }
};

// Four values to a word, two with each conversion.
#define DG_DEFINE_FP8_STORAGE(T, MAX, CONVERT)                                                       \
  template <>                                                                                        \
  struct Storage<T> {                                                                                \
    using Type = uint8_t;                                                                            \
    static constexpr bool kIsFp8 = true;                                                             \
    static constexpr float kMax = MAX;                                                               \
                                                                                                     \
    template <int kSize>                                                                             \
    static DG_DEVICE Vector<uint8_t, kSize> rounded(const float (&values)[kSize]) {                  \
      static_assert(kSize % 4 == 0);                                                                 \
      Vector<int, kSize / 4> words;                                                                  \
      _Pragma("unroll") for (int i = 0; i < kSize; i += 4) {                                         \
        const int low = CONVERT(values[i], values[i + 1], 0, false);                                 \
        words[i / 4] = CONVERT(values[i + 2], values[i + 3], low, true);                             \
      }                                                                                              \
      return __builtin_bit_cast(Vector<uint8_t, kSize>, words);                                      \
    }                                                                                                \
  };

DG_DEFINE_FP8_STORAGE(E4M3, 240, __builtin_amdgcn_cvt_pk_fp8_f32)
DG_DEFINE_FP8_STORAGE(E5M2, 57344, __builtin_amdgcn_cvt_pk_bf8_f32)

#undef DG_DEFINE_FP8_STORAGE

}  // namespace deep_gemm_rocm
