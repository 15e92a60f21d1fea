// Vector instructions on f32 and f64, and conversions (CDNA3 ISA, "Vector ALU operations").

#include <algorithm>
#include <iterator>
#include <limits>

#include "arithmetic.h"
#include "lanes.h"

namespace mi300x {
namespace {

constexpr uint32_t quiet_nan = 0x7FC00000;

// Flushes subnormals where the mode says so, by multiplying with a 1 that the compiler can't see.
float canonical(float value) { return value * one_f32; }
double canonical(double value) { return value * one_f64; }

// Quieting signaling NaNs is for MODE.IEEE, which compute kernels set.
template <class T>
T minimum(T a, T b) {
  return canonical(lesser(a, b));
}
template <class T>
T maximum(T a, T b) {
  return canonical(greater(a, b));
}
float median(float a, float b, float c) {
  if (is_nan(a) || is_nan(b) || is_nan(c)) return minimum(minimum(a, b), c);
  const float largest = maximum(maximum(a, b), c);
  return largest == a ? maximum(b, c) : largest == b ? maximum(a, c) : maximum(a, b);
}

// The transcendental unit flushes f32 subnormals in operands and results.
float flushed(float value) {
  return std::fabs(value) < std::numeric_limits<float>::min() ? std::copysign(0.0f, value) : value;
}

template <class Float>
int exponent_of(Float value);
template <>
int exponent_of(float value) { return value == 0 || !std::isfinite(value) ? 0 : std::ilogb(value) + 1; }
template <>
int exponent_of(double value) { return value == 0 || !std::isfinite(value) ? 0 : std::ilogb(value) + 1; }
template <class Float>
Float mantissa_of(Float value) {
  if (value == 0 || !std::isfinite(value)) return value;
  int exponent;
  return std::frexp(value, &exponent);
}

// Conversions to integers truncate, saturate, and take NaN to zero.
template <class Int, class Float>
Int saturating(Float value) {
  constexpr Float low = Float(std::numeric_limits<Int>::min());
  const Float high = std::ldexp(Float(1), std::numeric_limits<Int>::digits);
  if (!(value == value)) return 0;
  if (value <= low) return std::numeric_limits<Int>::min();
  if (value >= high) return std::numeric_limits<Int>::max();
  return Int(value);
}

float fraction(float x) { return std::min(x - rounded_down(x), bit_cast<float>(0x3F7FFFFFu)); }
double fraction(double x) { return std::min(x - rounded_down(x), bit_cast<double>(0x3FEFFFFFFFFFFFFFull)); }

constexpr double turn = 6.283185307179586476925286766559;  // sine and cosine take revolutions

int raw_exponent(float value) { return int(bit_cast<uint32_t>(value) >> 23 & 0xFF); }
int raw_exponent(double value) { return int(bit_cast<uint64_t>(value) >> 52 & 0x7FF); }
template <class Float>
bool is_subnormal(Float value) { return value != 0 && raw_exponent(value) == 0; }

VECTOR(v_add_f32, float, (float a, float b), return sum_of(a, b))
VECTOR(v_sub_f32, float, (float a, float b), return difference_of(a, b))
VECTOR(v_subrev_f32, float, (float a, float b), return difference_of(b, a))
VECTOR(v_mul_f32, float, (float a, float b), return product_of(a, b))
VECTOR(v_mul_legacy_f32, float, (float a, float b), return a == 0 || b == 0 ? 0.0f : product_of(a, b))
VECTOR(v_min_f32, float, (float a, float b), return minimum(a, b))
VECTOR(v_max_f32, float, (float a, float b), return maximum(a, b))
VECTOR(v_fma_f32, float, (float a, float b, float c), return fused_sum(a, b, c))
VECTOR_ACCUMULATE(v_fmac_f32, float, (float a, float b, float d), return fused_sum(a, b, d))
VECTOR(v_min3_f32, float, (float a, float b, float c), return minimum(minimum(a, b), c))
VECTOR(v_max3_f32, float, (float a, float b, float c), return maximum(maximum(a, b), c))
VECTOR(v_med3_f32, float, (float a, float b, float c), return median(a, b, c))
// Computed in f64, so that the result is rounded once.
float scaled_by_power(float a, int32_t exponent) {
  const int64_t biased = 1023 + std::clamp(exponent, -512, 512);
  return float(double(a) * bit_cast<double>(biased << 52));
}
VECTOR(v_ldexp_f32, float, (float a, int32_t exponent), return scaled_by_power(a, exponent))

VECTOR(v_add_f64, double, (double a, double b), return sum_of(a, b))
VECTOR(v_mul_f64, double, (double a, double b), return product_of(a, b))
VECTOR(v_min_f64, double, (double a, double b), return minimum(a, b))
VECTOR(v_max_f64, double, (double a, double b), return maximum(a, b))
VECTOR(v_fma_f64, double, (double a, double b, double c), return fused_sum(a, b, c))
VECTOR_ACCUMULATE(v_fmac_f64, double, (double a, double b, double d), return fused_sum(a, b, d))
VECTOR(v_ldexp_f64, double, (double a, int32_t exponent), return std::ldexp(a, std::clamp(exponent, -4096, 4096)))

const Semantics fmamk(Op::v_fmamk_f32, bind_literal_factor<v_fma_f32_lane>);
const Semantics fmaak(Op::v_fmaak_f32, bind_literal_addend<v_fma_f32_lane>);

VECTOR(v_trunc_f32, float, (float a), return truncated(a))
VECTOR(v_ceil_f32, float, (float a), return rounded_up(a))
VECTOR(v_rndne_f32, float, (float a), return __builtin_roundevenf(a))
VECTOR(v_floor_f32, float, (float a), return rounded_down(a))
VECTOR(v_fract_f32, float, (float a), return fraction(a))
VECTOR(v_trunc_f64, double, (double a), return truncated(a))
VECTOR(v_ceil_f64, double, (double a), return rounded_up(a))
VECTOR(v_rndne_f64, double, (double a), return __builtin_roundeven(a))
VECTOR(v_floor_f64, double, (double a), return rounded_down(a))
VECTOR(v_fract_f64, double, (double a), return fraction(a))

VECTOR(v_exp_f32, float, (float a), return flushed(std::exp2(flushed(a))))
VECTOR(v_log_f32, float, (float a), return std::log2(flushed(a)))
VECTOR(v_exp_legacy_f32, float, (float a), return flushed(std::exp2(flushed(a))))
VECTOR(v_log_legacy_f32, float, (float a), return std::log2(flushed(a)))
VECTOR(v_rcp_f32, float, (float a), return flushed(1.0f / flushed(a)))
VECTOR(v_rcp_iflag_f32, float, (float a), return flushed(1.0f / flushed(a)))
VECTOR(v_rsq_f32, float, (float a), return float(1.0 / std::sqrt(double(flushed(a)))))
VECTOR(v_sqrt_f32, float, (float a), return std::sqrt(flushed(a)))
VECTOR(v_sin_f32, float, (float a),
       return std::isfinite(a) ? float(std::sin(turn * (a - truncated(a)))) : bit_cast<float>(quiet_nan))
VECTOR(v_cos_f32, float, (float a),
       return std::isfinite(a) ? float(std::cos(turn * (a - truncated(a)))) : bit_cast<float>(quiet_nan))
VECTOR(v_rcp_f64, double, (double a), return 1.0 / a)
VECTOR(v_rsq_f64, double, (double a), return 1.0 / std::sqrt(a))
VECTOR(v_sqrt_f64, double, (double a), return std::sqrt(a))
const Approximate transcendentals({Op::v_exp_f32, Op::v_log_f32, Op::v_exp_legacy_f32, Op::v_log_legacy_f32,
                                   Op::v_rcp_f32, Op::v_rcp_iflag_f32, Op::v_rsq_f32, Op::v_sqrt_f32, Op::v_sin_f32,
                                   Op::v_cos_f32},
                                  "correctly rounded to a bit or so, the chip to 1 ulp: last bits may differ");
const Approximate f64_seeds({Op::v_rcp_f64, Op::v_rsq_f64, Op::v_sqrt_f64},
                            "correctly rounded, where the chip gives a first approximation of about 26 bits");

VECTOR(v_frexp_exp_i32_f32, int32_t, (float a), return exponent_of(a))
VECTOR(v_frexp_mant_f32, float, (float a), return mantissa_of(a))
VECTOR(v_frexp_exp_i32_f64, int32_t, (double a), return exponent_of(a))
VECTOR(v_frexp_mant_f64, double, (double a), return mantissa_of(a))

VECTOR(v_cvt_f32_i32, float, (int32_t a), return float(a))
VECTOR(v_cvt_f32_u32, float, (uint32_t a), return float(a))
VECTOR(v_cvt_i32_f32, int32_t, (float a), return saturating<int32_t>(a))
VECTOR(v_cvt_u32_f32, uint32_t, (float a), return saturating<uint32_t>(a))
VECTOR(v_cvt_rpi_i32_f32, int32_t, (float a), return saturating<int32_t>(std::floor(a + 0.5f)))
VECTOR(v_cvt_flr_i32_f32, int32_t, (float a), return saturating<int32_t>(std::floor(a)))
VECTOR(v_cvt_off_f32_i4, float, (uint32_t a), return float(int32_t(a << 28) >> 28) * 0.0625f)
VECTOR(v_cvt_f64_i32, double, (int32_t a), return double(a))
VECTOR(v_cvt_f64_u32, double, (uint32_t a), return double(a))
VECTOR(v_cvt_i32_f64, int32_t, (double a), return saturating<int32_t>(a))
VECTOR(v_cvt_u32_f64, uint32_t, (double a), return saturating<uint32_t>(a))
VECTOR(v_cvt_f32_f64, float, (double a), return float(a))
VECTOR(v_cvt_f64_f32, double, (float a), return double(a))
VECTOR(v_cvt_f32_ubyte0, float, (uint32_t a), return float(a & 0xFF))
VECTOR(v_cvt_f32_ubyte1, float, (uint32_t a), return float(a >> 8 & 0xFF))
VECTOR(v_cvt_f32_ubyte2, float, (uint32_t a), return float(a >> 16 & 0xFF))
VECTOR(v_cvt_f32_ubyte3, float, (uint32_t a), return float(a >> 24))
VECTOR(v_cvt_f32_f16, float, (Half a), return a)

VECTOR(v_cvt_f16_f32, Half, (float a), return Half::from(a))

uint32_t pair_of(uint16_t low, uint16_t high) { return low | uint32_t(high) << 16; }
template <class Int>
uint16_t normalised(float value) {
  constexpr float scale = float(std::numeric_limits<Int>::max());
  const float clamped_value = std::clamp(value, std::is_signed_v<Int> ? -1.0f : 0.0f, 1.0f);
  return is_nan(value) ? uint16_t(0) : uint16_t(Int(std::nearbyint(clamped_value * scale)));
}

VECTOR(v_cvt_pkrtz_f16_f32, uint32_t, (float a, float b),
       return pair_of(f32_to_f16_toward_zero(a), f32_to_f16_toward_zero(b)))
VECTOR(v_cvt_pknorm_i16_f32, uint32_t, (float a, float b),
       return pair_of(normalised<int16_t>(a), normalised<int16_t>(b)))
VECTOR(v_cvt_pknorm_u16_f32, uint32_t, (float a, float b),
       return pair_of(normalised<uint16_t>(a), normalised<uint16_t>(b)))
VECTOR(v_cvt_pknorm_i16_f16, uint32_t, (Half a, Half b), return pair_of(normalised<int16_t>(a), normalised<int16_t>(b)))
VECTOR(v_cvt_pknorm_u16_f16, uint32_t, (Half a, Half b),
       return pair_of(normalised<uint16_t>(a), normalised<uint16_t>(b)))
VECTOR(v_cvt_norm_i16_f16, uint16_t, (Half a), return normalised<int16_t>(a))
VECTOR(v_cvt_norm_u16_f16, uint16_t, (Half a), return normalised<uint16_t>(a))

uint32_t byte_of(float value) { return saturating<uint32_t>(std::clamp(std::nearbyint(value), 0.0f, 255.0f)); }
VECTOR(v_cvt_pk_u8_f32, uint32_t, (float a, uint32_t position, uint32_t old), const int shift = 8 * (position & 3);
       return (old & ~(0xFFu << shift)) | byte_of(a) << shift)

void bind_pkaccum(Instruction& inst) {
  inst.src[2] = inst.dst;
  bind_lanes<v_cvt_pk_u8_f32_lane>(inst);
}
const Semantics pkaccum(Op::v_cvt_pkaccum_u8_f32, bind_pkaccum);

// ---- FP8 (FNUZ) ----

constexpr uint32_t fp16_overflow = 1u << 23;  // MODE.FP16_OVFL: overflow saturates

template <class Format>
float from_fp8(uint32_t code) { return Format::to_f32(uint8_t(code)); }
template <class Format>
uint64_t pair_from_fp8(uint32_t codes) {
  const uint32_t low = bit_cast<uint32_t>(Format::to_f32(uint8_t(codes)));
  return low | uint64_t(bit_cast<uint32_t>(Format::to_f32(uint8_t(codes >> 8)))) << 32;
}
VECTOR(v_cvt_f32_fp8, float, (uint32_t a), return from_fp8<Fp8>(a))
VECTOR(v_cvt_f32_bf8, float, (uint32_t a), return from_fp8<Bf8>(a))
VECTOR(v_cvt_pk_f32_fp8, uint64_t, (uint32_t a), return pair_from_fp8<Fp8>(a))
VECTOR(v_cvt_pk_f32_bf8, uint64_t, (uint32_t a), return pair_from_fp8<Bf8>(a))

// Converts two floats into the half of the destination that op_sel[3] selects; the other half stays.
template <class Format>
void convert_pair_to_fp8(Wave& wave, const Instruction& inst) {
  alignas(64) Lanes<float> buffer_a, buffer_b;
  const float* a = load_source(wave, inst.src[0], false, buffer_a);
  const float* b = load_source(wave, inst.src[1], false, buffer_b);
  const bool saturate = wave.mode.bits & fp16_overflow;
  Lanes<uint16_t> results;
  for (int l = 0; l < lanes; ++l)
    results[l] = uint16_t(Format::from_f32(a[l], saturate) | Format::from_f32(b[l], saturate) << 8);
  store_result<uint16_t>(wave, inst.dst, results, HalfResult::keeps_other, inst.vop.op_sel >> 3 & 1);
}
const Semantics cvt_pk_fp8(Op::v_cvt_pk_fp8_f32, bind_handler<convert_pair_to_fp8<Fp8>, ConstantType::f32>);
const Semantics cvt_pk_bf8(Op::v_cvt_pk_bf8_f32, bind_handler<convert_pair_to_fp8<Bf8>, ConstantType::f32>);

// Stochastic rounding with the random bits of S1, to the byte that op_sel[3:2] names.
template <class Format>
void convert_stochastic_to_fp8(Wave& wave, const Instruction& inst) {
  alignas(64) Lanes<float> buffer;
  alignas(64) Lanes<uint32_t> random_buffer, results;
  const float* a = load_source(wave, inst.src[0], false, buffer);
  const uint32_t* random = load_source(wave, inst.src[1], false, random_buffer);
  const bool saturate = wave.mode.bits & fp16_overflow;
  const int shift = 8 * (inst.vop.op_sel >> 2 & 3);
  const uint32_t* row = wave.row(inst.dst.index);
  for (int l = 0; l < lanes; ++l) {
    const uint32_t converted = uint32_t(Format::from_f32_stochastic(a[l], random[l], saturate));
    results[l] = (row[l] & ~(0xFFu << shift)) | converted << shift;
  }
  store_result<uint32_t>(wave, inst.dst, results, HalfResult::clears_upper, false);
}
const Semantics cvt_sr_fp8(Op::v_cvt_sr_fp8_f32, bind_handler<convert_stochastic_to_fp8<Fp8>, ConstantType::f32>);
const Semantics cvt_sr_bf8(Op::v_cvt_sr_bf8_f32, bind_handler<convert_stochastic_to_fp8<Bf8>, ConstantType::f32>);

// ---- Division: V_DIV_SCALE, V_DIV_FMAS and V_DIV_FIXUP, as the ISA manual's pseudocode has them, but for its factors
// where V_DIV_SCALE sets VCC: those here undo each other, without which compilers' divisions would be wrong. ----

template <class Float>
struct DivisionLimits;
template <>
struct DivisionLimits<float> {
  static constexpr int far_exponents = 96, scale = 64, tiny_numerator = 23, bias = 127, underflow = -150, special = 255;
};
template <>
struct DivisionLimits<double> {
  static constexpr int far_exponents = 768, scale = 128, tiny_numerator = 53, bias = 1023, underflow = -1075,
                       special = 2047;
};

template <class Float>
Float division_scale(Float value, Float denominator, Float numerator, bool& scaled_later) {
  using Limits = DivisionLimits<Float>;
  scaled_later = false;
  const Float up = std::ldexp(value, Limits::scale), down = std::ldexp(value, -Limits::scale);
  if (numerator == 0 || denominator == 0) return std::numeric_limits<Float>::quiet_NaN();
  const bool reciprocal_is_tiny = is_subnormal(Float(1) / denominator);
  const bool quotient_is_tiny = is_subnormal(numerator / denominator);
  if (raw_exponent(numerator) - raw_exponent(denominator) >= Limits::far_exponents) {
    scaled_later = true;
    return value == denominator ? up : value;
  }
  if (is_subnormal(denominator)) return up;
  if (reciprocal_is_tiny && quotient_is_tiny) {
    scaled_later = true;
    return value == denominator ? down : value;
  }
  if (reciprocal_is_tiny) return down;
  if (quotient_is_tiny) {
    scaled_later = true;
    return value == numerator ? up : value;
  }
  return raw_exponent(numerator) <= Limits::tiny_numerator ? up : value;
}

// True for nearly all divisions.
template <class Float>
bool needs_no_scale(Float denominator, Float numerator) {
  using Limits = DivisionLimits<Float>;
  const int below = raw_exponent(denominator), above = raw_exponent(numerator);
  const bool in_range = (below > 0) & (below < Limits::special - 4) & (above > Limits::tiny_numerator) &
                        (above < Limits::special);
  return in_range & (above - below < Limits::far_exponents) & (above - below > 4 - Limits::bias);
}

template <class Float>
void run_division_scale(Wave& wave, const Instruction& inst) {
  const EnvironmentOf<Float> environment(wave);
  alignas(64) Lanes<Float> buffers[3], results;
  const Float* sources[3];
  for (int i = 0; i < 3; ++i) sources[i] = load_source(wave, inst.src[i], false, buffers[i]);
  bool flags[lanes];
  for (int l = 0; l < lanes; ++l) flags[l] = !needs_no_scale(sources[1][l], sources[2][l]);
  if ((mask_of(flags) & wave.exec()) == 0) {
    wave.write_scalar(inst.sdst, 0);
    memcpy(results, sources[0], sizeof results);
    return store_result<Float>(wave, inst.dst, results, HalfResult::clears_upper, false);
  }
  for (int l = 0; l < lanes; ++l) results[l] = division_scale(sources[0][l], sources[1][l], sources[2][l], flags[l]);
  wave.write_scalar(inst.sdst, mask_of(flags) & wave.exec());
  store_result<Float>(wave, inst.dst, results, HalfResult::clears_upper, false);
}
const Semantics div_scale_f32(Op::v_div_scale_f32, bind_handler<run_division_scale<float>, ConstantType::f32>);
const Semantics div_scale_f64(Op::v_div_scale_f64, bind_handler<run_division_scale<double>, ConstantType::f64>);

// How far a * b + c lies from its rounded value: exact in its sign.
double rounding_error(double a, double b, double c, double rounded) {
  const double product = a * b, product_error = host_fma(a, b, -product);
  const double sum = product + c, shifted = sum - product;
  const double sum_error = (product - (sum - shifted)) + (c - shifted);
  return (sum - rounded) + (sum_error + product_error);
}

// `rounded` times 2^exponent to the nearest number, where the value before its rounding was larger or smaller by
// `error`.
template <class Float>
Float scaled_to_nearest(double rounded, double error, int exponent) {
  const bool was_larger = std::signbit(error) == std::signbit(rounded);
  if constexpr (std::is_same_v<Float, float>) {
    // f64 has so many more bits that the last one can stand for all that follow.
    uint64_t bits = bit_cast<uint64_t>(rounded);
    if (error != 0) bits = (was_larger ? bits : bits - 1) | 1;
    return float(std::ldexp(bit_cast<double>(bits), exponent));
  } else {
    // Only subnormal results lose bits, and a tie is none where `rounded` wasn't exact.
    const double result = std::ldexp(rounded, exponent), rest = rounded - std::ldexp(result, -exponent);
    const bool is_tie = rest != 0 && std::fabs(rest) == std::ldexp(1.0, -1075 - exponent);
    if (!is_tie || error == 0 || std::signbit(rest) != std::signbit(error)) return result;
    return std::nextafter(result, std::copysign(std::numeric_limits<double>::infinity(), error));
  }
}

// The quotient times the factor that V_DIV_SCALE left out, rounded once: a large quotient was made smaller and a small
// one larger.
template <class Float>
Float division_fmas(Float a, Float b, Float quotient, bool to_nearest) {
  using Limits = DivisionLimits<Float>;
  const int exponent = raw_exponent(quotient) > Limits::bias ? Limits::scale : -Limits::scale;
  const double rounded = fused_sum(double(a), double(b), double(quotient));
  if (!to_nearest || !std::isfinite(rounded)) return Float(std::ldexp(rounded, exponent));
  return scaled_to_nearest<Float>(rounded, rounding_error(a, b, quotient, rounded), exponent);
}

template <class Float>
void run_division_fmas(Wave& wave, const Instruction& inst) {
  const EnvironmentOf<Float> environment(wave);
  alignas(64) Lanes<Float> buffers[3], results;
  const Float* sources[3];
  for (int i = 0; i < 3; ++i) sources[i] = load_source(wave, inst.src[i], false, buffers[i]);
  const uint64_t scale = wave.vcc();
  const bool to_nearest = (std::is_same_v<Float, float> ? wave.mode.round_f32() : wave.mode.round_f16_f64()) == 0;
  for (int l = 0; l < lanes; ++l) {
    const Float a = sources[0][l], b = sources[1][l], c = sources[2][l];
    results[l] = scale >> l & 1 ? division_fmas(a, b, c, to_nearest) : fused_sum(a, b, c);
  }
  apply_output_modifiers(wave, inst, results);
  store_result<Float>(wave, inst.dst, results, HalfResult::clears_upper, false);
}
const Semantics div_fmas_f32(Op::v_div_fmas_f32, bind_handler<run_division_fmas<float>, ConstantType::f32>);
const Semantics div_fmas_f64(Op::v_div_fmas_f64, bind_handler<run_division_fmas<double>, ConstantType::f64>);

template <class Float>
Float division_fixup(Float quotient, Float denominator, Float numerator) {
  using Limits = DivisionLimits<Float>;
  const Float infinity = std::numeric_limits<Float>::infinity();
  const Float sign = std::signbit(denominator) != std::signbit(numerator) ? Float(-1) : Float(1);
  if (is_nan(numerator)) return quieted(numerator);
  if (is_nan(denominator)) return quieted(denominator);
  if (denominator == 0 && numerator == 0) return -std::numeric_limits<Float>::quiet_NaN();
  if (std::isinf(denominator) && std::isinf(numerator)) return -std::numeric_limits<Float>::quiet_NaN();
  if (denominator == 0 || std::isinf(numerator)) return std::copysign(infinity, sign);
  if (std::isinf(denominator) || numerator == 0) return std::copysign(Float(0), sign);
  if (raw_exponent(numerator) - raw_exponent(denominator) < Limits::underflow) return std::copysign(Float(0), sign);
  if (raw_exponent(denominator) == Limits::special) return std::copysign(infinity, sign);
  if (is_nan(quotient)) return std::copysign(infinity, sign);  // it has overflowed on the way
  return std::copysign(quotient, sign);
}
VECTOR(v_div_fixup_f32, float, (float a, float b, float c), return division_fixup(a, b, c))
VECTOR(v_div_fixup_f64, double, (double a, double b, double c), return division_fixup(a, b, c))

// ---- Range reduction of large f64 angles ----

// The first 1201 bits of the fraction of 2/pi.
constexpr uint32_t two_over_pi[] = {
    0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB, 0xDEBBC561,
    0xB7246E3A, 0x424DD2E0, 0x06492EEA, 0x09D1921C, 0xFE1DEB1C, 0xB129A73E, 0xE88235F5, 0x2EBB4484,
    0xE99C7026, 0xB45F7E41, 0x3991D639, 0x835339F4, 0x9C845F8B, 0xBDF9283B, 0x1FF897FF, 0xDE05980F,
    0xEF2F118B, 0x5A0A6D1F, 0x6D367ECF, 0x27CB09B7, 0x4F463F66, 0x9E5FEA2D, 0x7527BAC7, 0xEBE5F17B,
    0x3D0739F7, 0x8A5292EA, 0x6BFB5FB1, 0x1F8D5D08, 0x56033046, 0xFC7B0000};

// The segment of 53 bits of 2/pi that makes the integer part and the fraction of a product with `a`.
double pi_segment(double a, uint32_t segment) {
  constexpr int segment_bits = 53, near_exponent = 1077, far_exponent = 1968, far_scale = 128;
  const int exponent = raw_exponent(a);
  const int first = int(segment & 31) * segment_bits + std::max(exponent - near_exponent, 0);
  uint64_t bits = 0;
  for (int i = first; i < first + segment_bits; ++i) {
    const bool bit = i / 32 < int(std::size(two_over_pi)) && two_over_pi[i / 32] >> (31 - i % 32) & 1;
    bits = bits << 1 | bit;
  }
  return std::ldexp(double(bits), -segment_bits - first + (exponent >= far_exponent ? far_scale : 0));
}
VECTOR(v_trig_preop_f64, double, (double a, uint32_t segment), return pi_segment(a, segment))

// ---- Cube maps: kept for completeness of the VALU ----

VECTOR(v_cubema_f32, float, (float x, float y, float z),
       if (std::fabs(z) >= std::fabs(x) && std::fabs(z) >= std::fabs(y)) return 2.0f * z;
       return 2.0f * (std::fabs(y) >= std::fabs(x) ? y : x))
VECTOR(v_cubeid_f32, float, (float x, float y, float z),
       if (std::fabs(z) >= std::fabs(x) && std::fabs(z) >= std::fabs(y)) return z < 0 ? 5.0f : 4.0f;
       if (std::fabs(y) >= std::fabs(x)) return y < 0 ? 3.0f : 2.0f; return x < 0 ? 1.0f : 0.0f)
VECTOR(v_cubesc_f32, float, (float x, float y, float z),
       if (std::fabs(z) >= std::fabs(x) && std::fabs(z) >= std::fabs(y)) return z < 0 ? -x : x;
       if (std::fabs(y) >= std::fabs(x)) return x; return x < 0 ? z : -z)
VECTOR(v_cubetc_f32, float, (float x, float y, float z),
       if (std::fabs(z) >= std::fabs(x) && std::fabs(z) >= std::fabs(y)) return -y;
       if (std::fabs(y) >= std::fabs(x)) return y < 0 ? -z : z; return -y)

}  // namespace
}  // namespace mi300x
