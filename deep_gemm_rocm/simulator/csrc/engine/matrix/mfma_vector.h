// SIMD vectors of 32-bit lanes, as wide as the x86-64 level of the build allows.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace mi300x::mfma {

#if defined(__AVX512BW__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kLanes = kVectorBytes / 4;

// The vector extension that GCC and Clang share. Comparisons give -1 where they hold, otherwise 0.
typedef float FloatVector __attribute__((vector_size(kVectorBytes)));
typedef double DoubleVector __attribute__((vector_size(kVectorBytes)));
typedef int8_t Int8Vector __attribute__((vector_size(kVectorBytes)));
typedef int16_t Int16Vector __attribute__((vector_size(kVectorBytes)));
typedef int32_t Int32Vector __attribute__((vector_size(kVectorBytes)));
typedef uint16_t UnsignedInt16Vector __attribute__((vector_size(kVectorBytes)));
typedef uint32_t UnsignedInt32Vector __attribute__((vector_size(kVectorBytes)));
typedef int64_t Int64Vector __attribute__((vector_size(kVectorBytes)));
typedef float FloatHalfVector __attribute__((vector_size(kVectorBytes / 2)));
typedef int32_t Int32HalfVector __attribute__((vector_size(kVectorBytes / 2)));

// Unrolls a loop, so that the small arrays of vectors that it runs over stay in registers.
#define MFMA_UNROLL _Pragma("GCC unroll 16")

// Forces x to be computed here. GCC otherwise delays sums until the summands spill out of registers.
template <class Vector>
inline void keep(Vector& x) {
  __asm__("" : "+x"(x));
}

// The NaN that the matrix core makes.
constexpr int32_t kNaN = 0x7fffffff;

template <class To, class From>
inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

template <class Vector>
inline Vector load(const void* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

template <class Vector>
inline void store(void* to, Vector vector) {
  std::memcpy(to, &vector, sizeof vector);
}

// A vector whose elements are all x. (x - 0 is x even for -0.0.)
template <class Vector, class Scalar>
inline Vector splat(Scalar x) {
  using Element = std::decay_t<decltype(Vector{}[0])>;
  return static_cast<Element>(x) - Vector{};
}

template <class Vector>
inline Vector larger(Vector x, Vector y) {
  return x > y ? x : y;
}

template <class Vector>
inline Vector smaller(Vector x, Vector y) {
  return x < y ? x : y;
}

inline FloatVector to_float(Int32Vector x) { return __builtin_convertvector(x, FloatVector); }

// The AVX-512 intrinsics below are the masked ones with all lanes on: GCC 12 warns about the others.

// Rounds toward zero. Numbers out of range become -2^31; __builtin_convertvector leaves them undefined.
inline Int32Vector truncate(FloatVector x) {
#if defined(__AVX512BW__)
  return (Int32Vector)_mm512_maskz_cvttps_epi32(-1, (__m512)x);
#elif defined(__AVX2__)
  return (Int32Vector)_mm256_cvttps_epi32((__m256)x);
#else
  return (Int32Vector)_mm_cvttps_epi32((__m128)x);
#endif
}

// Shifts by any number of bits: 31 or more leave only signs (right) or zeros (left).
inline Int32Vector shift_right(Int32Vector x, Int32Vector bits) {
#if defined(__AVX512BW__)
  return (Int32Vector)_mm512_maskz_srav_epi32(-1, (__m512i)x, (__m512i)bits);
#elif defined(__AVX2__)
  return (Int32Vector)_mm256_srav_epi32((__m256i)x, (__m256i)bits);
#else
  return x >> smaller(bits, splat<Int32Vector>(31));
#endif
}
inline Int32Vector shift_left(Int32Vector x, Int32Vector bits) {
#if defined(__AVX512BW__)
  return (Int32Vector)_mm512_maskz_sllv_epi32(-1, (__m512i)x, (__m512i)bits);
#elif defined(__AVX2__)
  return (Int32Vector)_mm256_sllv_epi32((__m256i)x, (__m256i)bits);
#else
  return bits > 31 ? Int32Vector{} : x << (bits & 31);
#endif
}

inline bool any_negative(Int32Vector x) {
#if defined(__AVX512BW__)
  return _mm512_movepi32_mask((__m512i)x) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps((__m256)x) != 0;
#else
  return _mm_movemask_ps((__m128)x) != 0;
#endif
}

inline bool any(Int32Vector mask) { return any_negative(mask != 0); }

// The OR of all lanes.
inline uint32_t any_lane(Int32Vector x) {
  uint32_t bits = 0;
  for (int lane = 0; lane < kLanes; ++lane) bits |= static_cast<uint32_t>(x[lane]);
  return bits;
}

// A bit for each byte, set where it is negative.
inline uint64_t negative_bytes(Int8Vector x) {
#if defined(__AVX512BW__)
  return _mm512_movepi8_mask((__m512i)x);
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_epi8((__m256i)x));
#else
  return static_cast<uint32_t>(_mm_movemask_epi8((__m128i)x));
#endif
}

// In each 32-bit lane, the sum of the products of the two pairs of 16-bit integers.
inline Int32Vector multiply_pairs(Int32Vector x, Int32Vector y) {
#if defined(__AVX512BW__)
  return (Int32Vector)_mm512_madd_epi16((__m512i)x, (__m512i)y);
#elif defined(__AVX2__)
  return (Int32Vector)_mm256_madd_epi16((__m256i)x, (__m256i)y);
#else
  return (Int32Vector)_mm_madd_epi16((__m128i)x, (__m128i)y);
#endif
}

// x * y + z, rounded once. Where operands are NaN, the result is another.
inline FloatVector multiply_add_numbers(FloatVector x, FloatVector y, FloatVector z) {
#if defined(__AVX512BW__)
  return _mm512_fmadd_ps(x, y, z);
#elif defined(__AVX2__) && defined(__FMA__)
  return _mm256_fmadd_ps(x, y, z);
#else
  for (int lane = 0; lane < kLanes; ++lane) z[lane] = __builtin_fmaf(x[lane], y[lane], z[lane]);
  return z;
#endif
}

// x * y + z, rounded once. Of several NaNs, the first one is the result.
inline FloatVector multiply_add(FloatVector x, FloatVector y, FloatVector z) {
  const FloatVector result = multiply_add_numbers(x, y, z);
  if (!any_negative(result != result)) return result;
  const FloatVector nan = x != x ? x : y != y ? y : z;
  return nan != nan ? bit_cast<FloatVector>(bit_cast<Int32Vector>(nan) | 0x00400000) : result;
}

}  // namespace mi300x::mfma
