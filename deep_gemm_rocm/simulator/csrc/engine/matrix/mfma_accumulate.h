// How the matrix core adds a group of products to C, for FP8, BF8, F16, BF16 and XF32 operands.
//
// The arithmetic is the one that arXiv 2511.10909 ("Bit-Accurate Modeling of GPU Matrix Multiply-Accumulate Units")
// found by experiments on the MI300X; its model is published as the Python package `mmasim`. Products are summed in
// groups, and the groups one after another, the result of one being the C of the next. For a group:
//
//  1. Products are exact. Each is truncated toward zero to a multiple of 2^(E-24), where E is the largest exponent of
//     the group's non-zero products; the exponent of a product is that of A plus that of B, which may be one less than
//     the product's own. Their sum is exact. FP8 and BF8 do so for even k and odd k apart, round both sums down to
//     a multiple of 2^(E-24) for the larger E of the two, and add them.
//  2. With X the larger of E and C's exponent, the sum is rounded down to a multiple of 2^(X-32), and C is rounded down
//     to a multiple of 2^(X-24). FP8 and BF8 drop a C whose exponent is below X - 25.
//  3. The total is rounded down to 31 fractional bits, then to the nearest F32, ties to even.
//
// Everywhere the exponent of a subnormal number is that of the smallest normal one. The sums of step 1 fit 32-bit
// integers in units of 2^(E-24): 16 products are less than 2^30 units. This file has steps 2 and 3.
#pragma once

#include "mfma_vector.h"

namespace mi300x::mfma {

// The sums of step 1 for a vector of elements of D.
struct Sums {
  Int32Vector sum;  // in units of 2^(E-24)
  Int32Vector top;  // E plus the format's bias in the place of an F32's exponent, negative where all products are zero
};

// The same sums in F64, which can also hold infinite and NaN ones.
struct DoubleSums {
  alignas(64) double sum[kLanes];
  alignas(64) int32_t exponent[kLanes];  // E
};

// Steps 2 and 3 for products whose top has the given bias. Units and their inverses have to be normal F32 numbers.
template <int bias, bool drops_far_c>
struct Accumulator {
  static FloatVector unit(Int32Vector top) { return bit_cast<FloatVector>(top + ((127 - 24 - bias) << 23)); }
  static FloatVector inverse_unit(Int32Vector top) { return bit_cast<FloatVector>(((127 + 24 + bias) << 23) - top); }

  // Adds the sums of 4 rows to C.
  __attribute__((always_inline)) static void add(const Sums (&sums)[4], FloatVector (&c)[4]) {
    FloatVector d[4];
    Int32Vector misfits[4];
    MFMA_UNROLL for (int row = 0; row < 4; ++row) d[row] = add_to_usual_c(sums[row], c[row], misfits[row]);
    if (any_negative(misfits[0] | misfits[1] | misfits[2] | misfits[3])) return add_to_any_c(sums, misfits, d, c);
    MFMA_UNROLL for (int row = 0; row < 4; ++row) c[row] = d[row];
  }

  // Adds sums to C where E doesn't matter. They are in units of 2^(top-24-room), and E is top at most. If both are
  // whole in units of 2^(top-24), or in larger ones where those would make C 2^30 or more, nothing but the total has to
  // be rounded. Elsewhere the result is undefined and misfits becomes negative.
  static FloatVector add_to_whole_c(const Sums& sums, Int32Vector room, FloatVector c, Int32Vector& misfits) {
    const Int32Vector top = larger(sums.top, top_for(c));
    const Int32Vector shift = room - ((top - sums.top) >> 23);
    const Int32Vector whole_c = truncate(c * inverse_unit(top));
    misfits |= (to_float(whole_c) * unit(top) != c) | shift;
    return to_float((sums.sum << shift) + whole_c) * unit(top);
  }

  // Adds sums to C in units of 2^(top-24), in which C is less than 2^30. Then steps 2 and 3 come to rounding C down to
  // the unit and the total to nearest. The sums are rounded down too where C is 2^29 units or more: what that loses
  // only matters to totals halfway between two F32, which end in 4 zeros at least. For those, beside nothing but zeros
  // and where C is infinite or NaN, the result is undefined and misfits is negative.
  static FloatVector add_to_usual_c(const Sums& sums, FloatVector c, Int32Vector& misfits) {
    const Int32Vector top_for_c = top_for(c);
    const Int32Vector top = larger(sums.top, top_for_c);
    const Int32Vector shift = (top - sums.top) >> 23;
    const Int32Vector sum = shift_right(sums.sum, shift);
    const FloatVector c_in_units = c * inverse_unit(top);
    const Int32Vector truncated = truncate(c_in_units);
    const FloatVector truncated_c = to_float(truncated);
    // F32 can't represent the units of a C far below the sum, but that is needed only for a C that isn't dropped.
    const Int32Vector is_rounded_up = drops_far_c ? (truncated_c > c_in_units) & (c_in_units <= -0.5f)
                                                  : truncated_c * unit(top) > c;
    const Int32Vector total = sum + truncated + is_rounded_up;
    const Int32Vector loses_nothing = shift_left(sum, shift) == sums.sum;
    const Int32Vector may_be_halfway = total << 28 == 0;
    misfits = top | (kLargestTopForC - top_for_c) | (may_be_halfway & ~loses_nothing);
    return to_float(total) * unit(top);
  }

  // The top of the units that make C at least 2^29 and less than 2^30.
  static Int32Vector top_for(FloatVector c) {
    return (bit_cast<Int32Vector>(c) & 0x7f800000) + kTopOfField * (1 << 23);
  }
  static constexpr int kTopOfField = bias - 127 - 29 + 24;  // less C's exponent field
  static constexpr int kLargestTopForC = (254 + kTopOfField) << 23;

  // Adds sums to the other C, those of 2^30 units or more and those beside nothing but zeros, in integers of 2^(X-29):
  // C keeps all of its bits. misfits is negative where C is infinite, NaN, or F32 has no room for these units.
  static FloatVector add_to_large_c(const Sums& sums, FloatVector c, Int32Vector& misfits) {
    const auto bits = bit_cast<Int32Vector>(c);
    const Int32Vector field = bits >> 23 & 0xff;  // X + 127
    misfits = (field - (29 + 1)) | (254 - field);
    const Int32Vector scaled_c = truncate(bit_cast<FloatVector>((bits & 0x807fffff) | (127 + 29) << 23));
    const Int32Vector shift = field - (sums.top >> 23) + kTopOfField;
    const Int32Vector total = scaled_c + shift_right(sums.sum, shift);
    // The sum has 3 more bits, down to 2^(X-32). Rounding the total down keeps those that are among its first 32 bits.
    // For rounding to nearest only whether they are all zero matters: at least 27 bits of the total come before them.
    const Int32Vector further_bits = shift < 3 ? sums.sum << (3 - shift) : shift_right(sums.sum, shift - 3);
    const Int32Vector magnitude = total ^ (total >> 31);
    const Int32Vector kept = 4 | ((magnitude < 1 << 30) & 2) | ((magnitude < 1 << 29) & 1);
    const Int32Vector is_inexact = (further_bits & kept) != 0;
    return to_float(total | (is_inexact & 1)) * bit_cast<FloatVector>((field - 29) << 23);
  }

  // Adds sums to any C. d has the results of add_to_usual_c, which are valid except for misfits.
  __attribute__((noinline)) static void add_to_any_c(const Sums (&sums)[4], const Int32Vector (&misfits)[4],
                                                     const FloatVector (&d)[4], FloatVector (&c)[4]) {
    MFMA_UNROLL for (int row = 0; row < 4; ++row) {
      Int32Vector further_misfits;
      const FloatVector d_of_large_c = add_to_large_c(sums[row], c[row], further_misfits);
      const bool fits = !any_negative(misfits[row] & further_misfits);
      c[row] = fits ? (misfits[row] < 0 ? d_of_large_c : d[row]) : add(in_double(sums[row]), c[row]);
    }
  }

  // Adds sums to any C, infinities and NaN included.
  static FloatVector add(const DoubleSums& sums, FloatVector c) {
    alignas(64) float c_lanes[kLanes], d_lanes[kLanes];
    store(c_lanes, c);
    for (int lane = 0; lane < kLanes; lane += kLanes / 2) {
      const auto c_half = __builtin_convertvector(load<FloatHalfVector>(c_lanes + lane), DoubleVector);
      const auto exponent = __builtin_convertvector(load<Int32HalfVector>(sums.exponent + lane), Int64Vector);
      const DoubleVector d_half = add_in_double(load<DoubleVector>(sums.sum + lane), power_of_two(exponent), c_half);
      store(d_lanes + lane, __builtin_convertvector(d_half, FloatHalfVector));
    }
    const auto d = load<FloatVector>(d_lanes);
    return d != d ? bit_cast<FloatVector>(splat<Int32Vector>(kNaN)) : d;
  }

  static DoubleSums in_double(const Sums& sums) {
    constexpr int kFarBelow = -900;  // any product and any C
    alignas(64) int32_t units[kLanes];
    DoubleSums result;
    store(units, sums.sum);
    store(result.exponent, sums.top < 0 ? splat<Int32Vector>(kFarBelow) : (sums.top >> 23) - bias);
    for (int lane = 0; lane < kLanes; lane += kLanes / 2) {
      const auto exponent = __builtin_convertvector(load<Int32HalfVector>(result.exponent + lane), Int64Vector);
      const auto units_half = __builtin_convertvector(load<Int32HalfVector>(units + lane), DoubleVector);
      store(result.sum + lane, units_half * power_of_two(exponent - 24));
    }
    return result;
  }

 private:
  static DoubleVector power_of_two(Int64Vector exponent) { return bit_cast<DoubleVector>((exponent + 1023) << 52); }

  // Steps 2 and 3 but for the rounding to nearest.
  static DoubleVector add_in_double(DoubleVector sum, DoubleVector sum_power, DoubleVector c) {
    constexpr int64_t kExponentBits = 0x7ffll << 52;
    const Int64Vector c_is_finite = (bit_cast<Int64Vector>(c) & kExponentBits) != kExponentBits;
    if (drops_far_c) c = (c_is_finite | (sum_power <= 0x1p24)) ? c : DoubleVector{};
    const DoubleVector c_power =
        larger(bit_cast<DoubleVector>(bit_cast<Int64Vector>(c) & kExponentBits), splat<DoubleVector>(0x1p-126));
    const DoubleVector power = larger(sum_power, c_power);  // 2^X
    // 31 fractional bits of a subnormal F32 end at 2^-157.
    const DoubleVector rounded_sum = round_down(sum, larger(power * 0x1p-32, splat<DoubleVector>(0x1p-157)));
    DoubleVector rounded_c = round_down(c, power * 0x1p-24);
    if (drops_far_c) rounded_c = c_power < power * 0x1p-25 ? DoubleVector{} : rounded_c;

    // Down to 32 significant bits: further ones are cut off a positive number and rounded up in a negative one's
    // magnitude.
    constexpr int64_t kFurtherBits = (1 << 21) - 1;
    const auto total = bit_cast<Int64Vector>(rounded_sum + rounded_c);
    const Int64Vector is_negative = total < 0;
    const Int64Vector rounded_total = (total + (is_negative & kFurtherBits)) & ~kFurtherBits;
    const DoubleVector plain_total = sum + c;
    const Int64Vector is_finite = (bit_cast<Int64Vector>(plain_total) & kExponentBits) != kExponentBits;
    return is_finite ? bit_cast<DoubleVector>(rounded_total) : plain_total;
  }

  // Rounds x, whose magnitude is less than 2^50 units, down to a multiple of unit, a power of two.
  static DoubleVector round_down(DoubleVector x, DoubleVector unit) {
    const DoubleVector shift = unit * 0x1.8p52;
    const DoubleVector nearest = (x + shift) - shift;
    return nearest - (nearest > x ? unit : DoubleVector{});
  }
};

}  // namespace mi300x::mfma
