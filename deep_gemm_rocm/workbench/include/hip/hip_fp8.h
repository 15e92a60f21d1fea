// FP8: the chip's own formats (FNUZ, which gfx942's instructions convert) and OCP's, converted in software.
#pragma once

#include "hip_bf16.h"
#include "hip_fp16.h"

typedef unsigned char __hip_fp8_storage_t;
typedef unsigned short __hip_fp8x2_storage_t;
typedef unsigned int __hip_fp8x4_storage_t;
enum __hip_saturation_t { __HIP_NOSAT = 0, __HIP_SATFINITE = 1 };
enum __hip_fp8_interpretation_t { __HIP_E4M3 = 0, __HIP_E5M2 = 1, __HIP_E4M3_FNUZ = 2, __HIP_E5M2_FNUZ = 3 };

namespace __hip_fp8 {
// bias, bits of the mantissa, largest finite code; the codes of NaN and infinity
struct Format {
  int bias, mantissa;
  unsigned char largest, nan, infinity;
  bool has_negative_zero;
};
constexpr __HIP_BOTH__ Format format_of(__hip_fp8_interpretation_t kind) {
  return kind == __HIP_E4M3   ? Format{7, 3, 0x7E, 0x7F, 0x7F, true}
         : kind == __HIP_E5M2 ? Format{15, 2, 0x7B, 0x7F, 0x7C, true}
         : kind == __HIP_E4M3_FNUZ ? Format{8, 3, 0x7F, 0x80, 0x80, false} : Format{16, 2, 0x7F, 0x80, 0x80, false};
}
__HIP_INLINE_BOTH__ float power_of_two(int power) { return __builtin_bit_cast(float, unsigned(power + 127) << 23); }

// Rounds to nearest even in software.
__HIP_INLINE_BOTH__ unsigned char encode(float value, const Format format, bool saturate) {
  const unsigned bits = __builtin_bit_cast(unsigned, value);
  const unsigned char sign = bits >> 24 & 0x80;
  const float size = __builtin_fabsf(value);
  if (size != size) return format.has_negative_zero ? sign | format.nan : format.nan;
  const bool is_infinite = size > 3.4e38f;
  int power = int(bits >> 23 & 255) - 127;
  if (power < 1 - format.bias) power = 1 - format.bias;
  // A normal number has 2^mantissa to 2 * 2^mantissa steps, so the carry of a rounding goes on into the exponent.
  const int steps = is_infinite ? 0 : int(__builtin_rintf(size * power_of_two(format.mantissa - power)));
  const int code = is_infinite ? 256 : ((power + format.bias - 1) << format.mantissa) + steps;
  if (code > format.largest) {
    const unsigned char beyond = saturate ? format.largest : format.infinity;
    return beyond == 0x80 ? beyond : sign | beyond;
  }
  return code == 0 && !format.has_negative_zero ? 0 : sign | code;
}
__HIP_INLINE_BOTH__ float decode(unsigned char code, const Format format) {
  const unsigned char size = code & 0x7F;
  if (!format.has_negative_zero && code == 0x80) return __builtin_nanf("");
  const int exponent = size >> format.mantissa, fraction = size & ((1 << format.mantissa) - 1);
  const int steps = exponent == 0 ? fraction : fraction + (1 << format.mantissa);
  const int power = (exponent == 0 ? 1 : exponent) - format.bias - format.mantissa;
  float value = float(steps) * power_of_two(power);
  if (format.has_negative_zero && size > format.largest) {
    const bool is_infinite = size == format.infinity && format.infinity != format.nan;
    value = is_infinite ? __builtin_inff() : __builtin_nanf("");
  }
  return code & 0x80 ? -value : value;
}

template <__hip_fp8_interpretation_t kind>
__HIP_INLINE_BOTH__ unsigned char from_float(float value, bool saturate = true) {
#if defined(__HIP_DEVICE_COMPILE__)
  if constexpr (kind == __HIP_E4M3_FNUZ || kind == __HIP_E5M2_FNUZ) {
    constexpr float largest = kind == __HIP_E4M3_FNUZ ? 240.0f : 57344.0f;
    if (saturate && value == value) value = __builtin_amdgcn_fmed3f(value, largest, -largest);
    const int pair = kind == __HIP_E4M3_FNUZ ? __builtin_amdgcn_cvt_pk_fp8_f32(value, value, 0, false)
                                             : __builtin_amdgcn_cvt_pk_bf8_f32(value, value, 0, false);
    return (unsigned char)pair;
  }
#endif
  return encode(value, format_of(kind), saturate);
}
template <__hip_fp8_interpretation_t kind>
__HIP_INLINE_BOTH__ float to_float(unsigned char code) {
#if defined(__HIP_DEVICE_COMPILE__)
  if constexpr (kind == __HIP_E4M3_FNUZ) return __builtin_amdgcn_cvt_f32_fp8(code, 0);
  if constexpr (kind == __HIP_E5M2_FNUZ) return __builtin_amdgcn_cvt_f32_bf8(code, 0);
#endif
  return decode(code, format_of(kind));
}

template <__hip_fp8_interpretation_t kind>
struct Number {
  __hip_fp8_storage_t __x;

  Number() = default;
  __HIP_BOTH__ Number(float value) : __x(from_float<kind>(value)) {}
  __HIP_BOTH__ Number(double value) : Number(float(value)) {}
  __HIP_BOTH__ Number(int value) : Number(float(value)) {}
  __HIP_BOTH__ Number(unsigned value) : Number(float(value)) {}
  __HIP_BOTH__ Number(__half value) : Number(float(value)) {}
  __HIP_BOTH__ Number(__hip_bfloat16 value) : Number(float(value)) {}
  __HIP_BOTH__ operator float() const { return to_float<kind>(__x); }
  __HIP_BOTH__ explicit operator __half() const { return __half(float(*this)); }
  __HIP_BOTH__ explicit operator __hip_bfloat16() const { return __hip_bfloat16(float(*this)); }
};
// Two and four numbers, the first in the lowest byte.
template <__hip_fp8_interpretation_t kind>
struct Pair {
  __hip_fp8x2_storage_t __x;

  Pair() = default;
  __HIP_BOTH__ Pair(float2 value) : __x(from_float<kind>(value.x) | from_float<kind>(value.y) << 8) {}
  __HIP_BOTH__ operator float2() const { return float2(to_float<kind>(__x & 255), to_float<kind>(__x >> 8)); }
};
template <__hip_fp8_interpretation_t kind>
struct Quadruple {
  __hip_fp8x4_storage_t __x;

  Quadruple() = default;
  __HIP_BOTH__ Quadruple(float4 value)
      : __x(unsigned(Pair<kind>(float2(value.x, value.y)).__x) |
            unsigned(Pair<kind>(float2(value.z, value.w)).__x) << 16) {}
  __HIP_BOTH__ operator float4() const {
    return float4(to_float<kind>(__x & 255), to_float<kind>(__x >> 8 & 255), to_float<kind>(__x >> 16 & 255),
                  to_float<kind>(__x >> 24));
  }
};
}  // namespace __hip_fp8

#define __HIP_FP8_TYPES(name, kind)                 \
  typedef __hip_fp8::Number<kind> __hip_fp8_##name; \
  typedef __hip_fp8::Pair<kind> __hip_fp8x2_##name; \
  typedef __hip_fp8::Quadruple<kind> __hip_fp8x4_##name;
__HIP_FP8_TYPES(e4m3, __HIP_E4M3)
__HIP_FP8_TYPES(e5m2, __HIP_E5M2)
__HIP_FP8_TYPES(e4m3_fnuz, __HIP_E4M3_FNUZ)
__HIP_FP8_TYPES(e5m2_fnuz, __HIP_E5M2_FNUZ)
#undef __HIP_FP8_TYPES

__HIP_INLINE_BOTH__ __hip_fp8_storage_t __hip_cvt_float_to_fp8(float value, __hip_saturation_t saturation,
                                                               __hip_fp8_interpretation_t kind) {
  const bool saturate = saturation == __HIP_SATFINITE;
  switch (kind) {
    case __HIP_E4M3: return __hip_fp8::from_float<__HIP_E4M3>(value, saturate);
    case __HIP_E5M2: return __hip_fp8::from_float<__HIP_E5M2>(value, saturate);
    case __HIP_E4M3_FNUZ: return __hip_fp8::from_float<__HIP_E4M3_FNUZ>(value, saturate);
    default: return __hip_fp8::from_float<__HIP_E5M2_FNUZ>(value, saturate);
  }
}
__HIP_INLINE_BOTH__ __hip_fp8x2_storage_t __hip_cvt_float2_to_fp8x2(float2 value, __hip_saturation_t saturation,
                                                                    __hip_fp8_interpretation_t kind) {
  return __hip_fp8x2_storage_t(__hip_cvt_float_to_fp8(value.x, saturation, kind) |
                               __hip_cvt_float_to_fp8(value.y, saturation, kind) << 8);
}
__HIP_INLINE_BOTH__ __half_raw __hip_cvt_fp8_to_halfraw(__hip_fp8_storage_t code, __hip_fp8_interpretation_t kind) {
  const float value = kind == __HIP_E4M3        ? __hip_fp8::to_float<__HIP_E4M3>(code)
                      : kind == __HIP_E5M2      ? __hip_fp8::to_float<__HIP_E5M2>(code)
                      : kind == __HIP_E4M3_FNUZ ? __hip_fp8::to_float<__HIP_E4M3_FNUZ>(code)
                                                : __hip_fp8::to_float<__HIP_E5M2_FNUZ>(code);
  return __half(value);
}
