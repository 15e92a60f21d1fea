// Dot products of FP8 and BF8 operands: step 1 of the arithmetic in mfma_accumulate.h.
//
// Let L be the exponent of the largest number of an operand. Nearly all others are "large" too: their last bit is at
// least 2^(L-12), so that they are integers of 13 bits and a sign in this unit. Products of two large numbers are never
// truncated, whatever E is, since theirs is at least 2^(E-24). So the large numbers of all k are multiplied and summed
// as integers; only products with one of the others, the "small" numbers, are truncated, one by one.
#pragma once

#include <algorithm>

#include "mfma_accumulate.h"
#include "mfma_formats.h"
#include "mfma_vector.h"

namespace mi300x::mfma {

// The larger of both halves of a lane byte by byte, in the lower half; of both its bytes, in the lowest.
inline Int8Vector larger_of_halves(Int8Vector bytes) {
  return larger(bytes, bit_cast<Int8Vector>(bit_cast<Int32Vector>(bytes) >> 16));
}
inline Int8Vector larger_of_bytes(Int8Vector bytes) {
  return larger(bytes, bit_cast<Int8Vector>(bit_cast<Int32Vector>(bytes) >> 8));
}

// An operand of two registers, 8 elements a lane.
template <class Format>
struct Float8Operand {
  static constexpr int kRegisters = 2;
  static constexpr int kElementBits = 8;

  alignas(64) uint32_t code[2][64];   // the registers
  alignas(64) uint32_t field[2][64];  // the elements' exponent fields
  alignas(64) uint32_t small[2][64];  // 0xff for each small element
  // The large elements as 16-bit integers, small ones as 0: pair 2 r + i holds elements 4 r + i and 4 r + i + 2.
  alignas(64) uint32_t large_pair[4][64];
  // A bit for each element that is small in one of 4 lanes, and in one of a vector's lanes.
  uint8_t small_in_4[64 / 4] = {};
  uint8_t small_in_vector[64 / kLanes] = {};
  int largest_field;
  bool has_nan;

  explicit Float8Operand(const uint32_t* registers) {
    // The smallest for which F32 has the scale below.
    Int8Vector largest = splat<Int8Vector>(12);
    Int8Vector is_nan = {};
    for (int r = 0; r < 2; ++r) {
      for (int lane = 0; lane < 64; lane += kLanes) {
        const auto codes = load<Int32Vector>(registers + 64 * r + lane);
        const Int8Vector fields = Format::field(codes);
        store(code[r] + lane, codes);
        store(field[r] + lane, fields);
        largest = larger(largest, fields);
        is_nan |= bit_cast<Int8Vector>(codes) == splat<Int8Vector>(kNaNCode);
      }
    }
    has_nan = negative_bytes(is_nan) != 0;
    largest_field = largest_of(largest);

    const int smallest_large = largest_field - (12 - Format::kMantissaBits);
    const float scale = bit_cast<float>((127 + 12 + 127 - largest_field) << 23);
    for (int r = 0; r < 2; ++r) {
      for (int lane = 0; lane < 64; lane += kLanes) {
        const auto fields = load<Int8Vector>(field[r] + lane);
        const Int8Vector is_small = (fields < splat<Int8Vector>(smallest_large)) & (fields > Int8Vector{});
        const Int32Vector large = load<Int32Vector>(code[r] + lane) & ~bit_cast<Int32Vector>(is_small);
        const auto integer = [&](int element) { return truncate(Format::scaled_value(large, element) * scale); };
        store(small[r] + lane, is_small);
        store(large_pair[2 * r] + lane, (integer(0) & 0xffff) | integer(2) << 16);
        store(large_pair[2 * r + 1] + lane, (integer(1) & 0xffff) | integer(3) << 16);
        if (const uint64_t bits = negative_bytes(is_small)) note_small(bits, lane, 4 * r);
      }
    }
  }

  // Which of the lanes from `lane` on have some NaN.
  Int32Vector have_nan(int lane) const {
    return is_any_nan(load<Int32Vector>(code[0] + lane), load<Int32Vector>(code[1] + lane));
  }
  // The answer for one lane.
  Int32Vector has_nan_in(int lane) const {
    return is_any_nan(splat<Int32Vector>(code[0][lane]), splat<Int32Vector>(code[1][lane]));
  }

 private:
  static constexpr int kNaNCode = -128;

  static Int32Vector is_any_nan(Int32Vector codes, Int32Vector more_codes) {
    const auto nan = splat<Int8Vector>(kNaNCode);
    return bit_cast<Int32Vector>((bit_cast<Int8Vector>(codes) == nan) | (bit_cast<Int8Vector>(more_codes) == nan)) != 0;
  }

  static int largest_of(Int8Vector fields) {
    const auto lanes = bit_cast<Int32Vector>(larger_of_bytes(larger_of_halves(fields)));
    int largest = 0;
    for (int lane = 0; lane < kLanes; ++lane) largest = std::max(largest, lanes[lane] & 0xff);
    return largest;
  }

  // Takes in four bits for each of the vector's lanes.
  void note_small(uint64_t bits, int lane, int first_element) {
    for (int quad = lane / 4; bits != 0; bits >>= 16, ++quad) {
      const unsigned pairs = bits | bits >> 8;
      const unsigned elements = ((pairs | pairs >> 4) & 15) << first_element;
      small_in_4[quad] |= elements;
      small_in_vector[lane / kLanes] |= elements;
    }
  }
};

template <class A, class B>
struct Float8Dot {
  using Vector = FloatVector;
  using OperandA = Float8Operand<A>;
  using OperandB = Float8Operand<B>;

  // Adds the products of `chunks` chunks of lanes, `stride` apart, to 4 rows and a vector of columns of D, c. The rows'
  // elements of A are in 4 lanes from a_lane on, the columns' of B in those from b_lane on.
  template <int chunks, int stride>
  __attribute__((always_inline)) static void add(const OperandA& a, int a_lane, const OperandB& b, int b_lane,
                                                 FloatVector (&c)[4]) {
    for (int chunk = 0; chunk < chunks; chunk += 2) {
      add_group<stride>(a, a_lane + stride * chunk, b, b_lane + stride * chunk, c);
    }
  }

 private:
  using Total = Accumulator<A::kBias + B::kBias, true>;

  // A group is the 16 products of two chunks.
  template <int stride>
  __attribute__((always_inline)) static void add_group(const OperandA& a, int a_lane, const OperandB& b, int b_lane,
                                                       FloatVector (&c)[4]) {
    Int8Vector fields[4];
    Int32Vector large_sum[4];
    largest_fields<stride>(a, a_lane, b, b_lane, fields);
    sum_large<stride>(a, a_lane, b, b_lane, large_sum);

    Sums sums[4];
    MFMA_UNROLL for (int row = 0; row < 4; ++row) {
      fields[row] = larger_of_halves(fields[row]);
      const Int32Vector top = top_of(larger_of_bytes(fields[row]), 0);
      sums[row] = {large_sum[row] << (a.largest_field + b.largest_field - (top >> 23)), top};
    }
    const unsigned small = a.small_in_4[a_lane / 4] | b.small_in_vector[b_lane / kLanes] |
                           (a.small_in_4[(a_lane + stride) / 4] | b.small_in_vector[(b_lane + stride) / kLanes]) << 8;
    if (small != 0) add_small<stride>(a, a_lane, b, b_lane, small, fields, sums);
    Total::add(sums, c);
    if (a.has_nan || b.has_nan) set_nan<stride>(a, a_lane, b, b_lane, c);
  }

  // The largest sums of exponent fields: each byte of a lane has that of the elements with its place in their register.
  template <int stride>
  static void largest_fields(const OperandA& a, int a_lane, const OperandB& b, int b_lane, Int8Vector (&fields)[4]) {
    Int8Vector largest[4];
    MFMA_UNROLL for (int row = 0; row < 4; ++row) largest[row] = splat<Int8Vector>(-128);
    for (int shift = 0; shift <= stride; shift += stride) {
      MFMA_UNROLL for (int r = 0; r < 2; ++r) {
        const uint32_t* a_fields = a.field[r] + a_lane + shift;
        const auto b_fields = load<Int8Vector>(b.field[r] + b_lane + shift);
        MFMA_UNROLL for (int row = 0; row < 4; ++row) {
          largest[row] = larger(largest[row], bit_cast<Int8Vector>(splat<Int32Vector>(a_fields[row])) + b_fields);
        }
      }
    }
    MFMA_UNROLL for (int row = 0; row < 4; ++row) fields[row] = largest[row];
  }

  // 16 products of less than 2^26 fit 32 bits.
  template <int stride>
  static void sum_large(const OperandA& a, int a_lane, const OperandB& b, int b_lane, Int32Vector (&sums)[4]) {
    Int32Vector sum[4] = {};
    for (int shift = 0; shift <= stride; shift += stride) {
      MFMA_UNROLL for (int pair = 0; pair < 4; ++pair) {
        const uint32_t* a_pairs = a.large_pair[pair] + a_lane + shift;
        const auto b_pairs = load<Int32Vector>(b.large_pair[pair] + b_lane + shift);
        MFMA_UNROLL for (int row = 0; row < 4; ++row) {
          sum[row] += multiply_pairs(splat<Int32Vector>(a_pairs[row]), b_pairs);
        }
      }
    }
    MFMA_UNROLL for (int row = 0; row < 4; ++row) sums[row] = sum[row];
  }

  // Adds the products that a small number takes part in; `small` has a bit for each k with such.
  template <int stride>
  __attribute__((noinline)) static void add_small(const OperandA& a, int a_lane, const OperandB& b, int b_lane,
                                                  unsigned small, const Int8Vector (&fields)[4], Sums (&sums)[4]) {
    // Where all of them are whole in the units of the larger E, even and odd k make no difference.
    Int32Vector whole[4] = {};
    const Int32Vector top[4] = {sums[0].top, sums[1].top, sums[2].top, sums[3].top};
    if (sum_small<stride>(a, a_lane, b, b_lane, small, top, whole)) {
      MFMA_UNROLL for (int row = 0; row < 4; ++row) sums[row].sum += whole[row];
      return;
    }
    for (int odd = 0; odd < 2; ++odd) {
      Int32Vector top[4];
      Int32Vector sum[4] = {};
      MFMA_UNROLL for (int row = 0; row < 4; ++row) top[row] = top_of(fields[row], odd);
      sum_small<stride>(a, a_lane, b, b_lane, small & (odd ? 0xaaaa : 0x5555), top, sum);
      MFMA_UNROLL for (int row = 0; row < 4; ++row) {
        sums[row].sum += sum[row] >> smaller((sums[row].top - top[row]) >> 23, splat<Int32Vector>(31));
      }
    }
  }

  // Sums them in the units of `top`, and tells whether none of them had to be truncated.
  template <int stride>
  __attribute__((always_inline)) static bool sum_small(const OperandA& a, int a_lane, const OperandB& b, int b_lane,
                                                       unsigned small, const Int32Vector (&top)[4],
                                                       Int32Vector (&sum)[4]) {
    FloatVector inverse_unit[4];
    Int32Vector total[4] = {}, truncated = {};
    MFMA_UNROLL for (int row = 0; row < 4; ++row) inverse_unit[row] = Total::inverse_unit(top[row]);
    for (; small != 0; small &= small - 1) {
      const int k = __builtin_ctz(small);
      const int r = k / 4 % 2, element = k % 4, shift = k / 8 * stride;
      const auto b_code = load<Int32Vector>(b.code[r] + b_lane + shift);
      const auto b_small = load<Int32Vector>(b.small[r] + b_lane + shift);
      // Those that a large number of A and a small one are multiplied with.
      const FloatVector b_values[2] = {B::value(b_code & b_small, element), B::value(b_code, element)};
      MFMA_UNROLL for (int row = 0; row < 4; ++row) {
        const int byte = 4 * (a_lane + row + shift) + element;
        const float a_value = A::kValues[reinterpret_cast<const uint8_t*>(a.code[r])[byte]];
        const int a_is_small = reinterpret_cast<const uint8_t*>(a.small[r])[byte] & 1;
        const FloatVector product = a_value * inverse_unit[row] * b_values[a_is_small];
        const Int32Vector units = truncate(product);
        truncated |= to_float(units) != product;
        total[row] += units;
      }
    }
    MFMA_UNROLL for (int row = 0; row < 4; ++row) sum[row] = total[row];
    return !any_negative(truncated);
  }

  template <int stride>
  static void set_nan(const OperandA& a, int a_lane, const OperandB& b, int b_lane, FloatVector (&c)[4]) {
    for (int shift = 0; shift <= stride; shift += stride) {
      for (int row = 0; row < 4; ++row) {
        const Int32Vector is_nan = a.has_nan_in(a_lane + shift + row) | b.have_nan(b_lane + shift);
        c[row] = is_nan ? bit_cast<FloatVector>(splat<Int32Vector>(kNaN)) : c[row];
      }
    }
  }

  // A byte of each lane, a sum of fields, in the place of an F32's exponent.
  static Int32Vector top_of(Int8Vector fields, int byte) {
    return bit_cast<Int32Vector>(fields) >> 8 * byte << 24 >> 1;
  }
};

}  // namespace mi300x::mfma
