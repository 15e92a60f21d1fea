// Rounds fp32 results to the type of the output.
#pragma once

#include "deep_gemm_rocm/hardware/hip_declarations.h"
#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

// Rounds to the nearest T, ties to even.
template <class T>
DG_DEVICE T rounded_to(float value) {
#if __clang_major__ < 19  // their conversion to bf16 truncates
  if constexpr (__is_same(T, __bf16)) {
    const unsigned bits = __builtin_bit_cast(unsigned, value);
    const bool is_nan = __builtin_isunordered(value, value);
    const unsigned rounded = is_nan ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1);
    return __builtin_bit_cast(__bf16, static_cast<unsigned short>(rounded >> 16));
  }
#endif
  return static_cast<T>(value);
}

// Clamps to ±largest. NaN stays NaN, which v_med3_f32 alone would turn into a number.
DG_DEVICE float clamped(float value, float largest) {
  const float number = __builtin_amdgcn_fmed3f(value, -largest, largest);
  return __builtin_isnan(value) ? value : number;
}

// How values of type T are held in memory; FP8 types only name a format.
template <class T>
struct Storage {
  using Type = T;
  static constexpr bool kIsFp8 = false;

  static DG_DEVICE float widened(T value) { return static_cast<float>(value); }

  template <int kSize>
  static DG_DEVICE Vector<T, kSize> rounded(const float* values) {
    Vector<T, kSize> result;
#pragma unroll
    for (int i = 0; i < kSize; ++i) result[i] = rounded_to<T>(values[i]);
    return result;
  }
};

// Rounds numbers like Storage<T>, but may be wrong for NaNs unless kTakesNans, which saves instructions. In two steps:
// prepared() takes one number, and joined() makes a pair of two.
template <class T>
struct NumberRounding : Storage<T> {
  static constexpr bool kTakesNans = true;

  static DG_DEVICE float prepared(float value) { return value; }
  static DG_DEVICE auto joined(float first, float second) {
    return Vector<T, 2>{rounded_to<T>(first), rounded_to<T>(second)};
  }
};

// gfx942 has no conversion to bf16. Rounds to nearest, ties to even: adds half a unit, or a little less if the upper 16
// bits are even, and drops the low 16 bits. The addition could overflow a NaN.
template <>
struct NumberRounding<__bf16> {
  static constexpr bool kTakesNans = false;

  static DG_DEVICE unsigned prepared(float value) {
    const unsigned bits = __builtin_bit_cast(unsigned, value);
    return bits + 0x7fff + (bits >> 16 & 1);
  }
  static DG_DEVICE Vector<__bf16, 2> joined(unsigned first, unsigned second) {
    constexpr unsigned kHighHalves = 0x07060302;  // v_perm_b32: of both operands, the second one's first
    return __builtin_bit_cast(Vector<__bf16, 2>, __builtin_amdgcn_perm(second, first, kHighHalves));
  }

  template <int kSize>
  static DG_DEVICE Vector<__bf16, kSize> rounded(const float* values) {
    Vector<unsigned, kSize / 2> words;
#pragma unroll
    for (int i = 0; i < kSize; i += 2) {
      words[i / 2] = __builtin_bit_cast(unsigned, joined(prepared(values[i]), prepared(values[i + 1])));
    }
    return __builtin_bit_cast(Vector<__bf16, kSize>, words);
  }
};

// Whether any lane may have a NaN: true if one has, and also where a lane has infinities of both signs.
template <int kRows, int kSize>
DG_DEVICE bool may_have_nans(const float (&values)[kRows][kSize]) {
  static_assert(kSize % 2 == 0);
  Vector<float, 2> sums[2] = {};
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
#pragma unroll
    for (int i = 0; i < kSize; i += 2) sums[i / 2 % 2] += Vector<float, 2>{values[row][i], values[row][i + 1]};
  }
  sums[0] += sums[1];
  return ballot(__builtin_isunordered(sums[0][0], sums[0][1])) != 0;
}

// A word holds four values, two from each conversion.
#define DG_DEFINE_FP8_STORAGE(T, MAX, CONVERT, WIDEN)                                                       \
  template <>                                                                                        \
  struct Storage<T> {                                                                                \
    using Type = uint8_t;                                                                            \
    static constexpr bool kIsFp8 = true;                                                             \
    static constexpr float kMax = MAX;                                                               \
                                                                                                     \
    static DG_DEVICE float widened(uint8_t value) { return WIDEN(value, 0); }                        \
                                                                                                     \
    template <int kSize>                                                                             \
    static DG_DEVICE Vector<uint8_t, kSize> rounded(const float* values) {                                  \
      static_assert(kSize % 4 == 0);                                                                 \
      Vector<int, kSize / 4> words;                                                                  \
      _Pragma("unroll") for (int i = 0; i < kSize; i += 4) {                                         \
        const int low = CONVERT(values[i], values[i + 1], 0, false);                                 \
        words[i / 4] = CONVERT(values[i + 2], values[i + 3], low, true);                             \
      }                                                                                              \
      return __builtin_bit_cast(Vector<uint8_t, kSize>, words);                                      \
    }                                                                                                \
  };

DG_DEFINE_FP8_STORAGE(E4M3, 240, __builtin_amdgcn_cvt_pk_fp8_f32, __builtin_amdgcn_cvt_f32_fp8)
DG_DEFINE_FP8_STORAGE(E5M2, 57344, __builtin_amdgcn_cvt_pk_bf8_f32, __builtin_amdgcn_cvt_f32_bf8)

#undef DG_DEFINE_FP8_STORAGE

}  // namespace deep_gemm_rocm
