// Dot products of FP8 and BF8 operands: step 1 of the arithmetic in mfma_accumulate.h.
//
// The elements of a group in a row of A or a column of B are integers in the unit of the last bit that any of them has
// set. Their "range" is how many bits that is below the exponent of the largest, T. If the ranges of the row and the
// column add up to 24 at most, as they nearly always do, no product is truncated whatever E is, since E is T_A + T_B at
// most. Then the integers' products are summed. Nor does E matter to a C that is a whole number of 2^(T_A + T_B - 24).
//
// The rest is done row by row with E. Elements that would make the range too large for 16-bit integers are left out
// there, and their products truncated one by one.
#pragma once

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
// A byte of each lane, a sum of fields, in the place of an F32's exponent.
inline Int32Vector top_of(Int8Vector fields, int byte) { return bit_cast<Int32Vector>(fields) >> 8 * byte << 24 >> 1; }

// An operand of two registers, 8 elements a lane. A group has those of two chunks of lanes, `stride` apart.
template <class Format, int stride>
struct Float8Operand {
  static constexpr int kRegisters = 2;
  static constexpr int kElementBits = 8;
  static constexpr int kRangeBits = 31;
  static constexpr int kLeavesOut = 32;

  alignas(64) uint32_t code[2][64];   // the registers
  alignas(64) uint32_t field[2][64];  // the elements' exponent fields
  // The elements as integers: pair 2 r + i holds elements 4 r + i and 4 r + i + 2.
  alignas(64) uint32_t pair[4][64];
  // For each group, in the lanes of its first chunk: the exponent field of T in the place of an F32's; the range, plus
  // kLeavesOut if elements are left out; a bit for each element left out.
  alignas(64) int32_t top[64];
  alignas(64) int32_t range[64];
  alignas(64) uint32_t left_out[64];
  bool has_nan = false;

  explicit Float8Operand(const uint32_t* registers) {
    for (int group = 0; group < 64; group += 2 * stride) {
      for (int lane = group; lane < group + stride; lane += kLanes) convert(registers, lane);
    }
  }

  // True in the lanes from `lane` on that hold any NaN.
  Int32Vector have_nan(int lane) const {
    return is_any_nan(load<Int32Vector>(code[0] + lane), load<Int32Vector>(code[1] + lane));
  }
  // The same for one lane.
  Int32Vector has_nan_in(int lane) const {
    return is_any_nan(splat<Int32Vector>(code[0][lane]), splat<Int32Vector>(code[1][lane]));
  }

 private:
  static constexpr int kNaNCode = -128;
  static constexpr int kLargestRange = 14;  // of 16-bit integers

  // The registers of both chunks that a group's elements come from.
  struct Parts {
    Int32Vector of[2][2];  // [chunk][register]
  };

  static Int32Vector is_any_nan(Int32Vector codes, Int32Vector more_codes) {
    const auto nan = splat<Int8Vector>(kNaNCode);
    return bit_cast<Int32Vector>((bit_cast<Int8Vector>(codes) == nan) | (bit_cast<Int8Vector>(more_codes) == nan)) != 0;
  }

  // The groups whose first chunk is in the vector's lanes.
  void convert(const uint32_t* registers, int lane) {
    Parts codes, depths;
    auto largest = splat<Int8Vector>(1), deepest = splat<Int8Vector>(Format::kNoDepth);
    Int32Vector is_nan = {};
    MFMA_UNROLL for (int chunk = 0; chunk < 2; ++chunk) {
      const int from = lane + chunk * stride;
      MFMA_UNROLL for (int r = 0; r < 2; ++r) {
        const Int32Vector part = codes.of[chunk][r] = load<Int32Vector>(registers + 64 * r + from);
        const Int8Vector fields = Format::field(part), depth = Format::depth(part, fields);
        store(code[r] + from, part);
        store(field[r] + from, fields);
        depths.of[chunk][r] = bit_cast<Int32Vector>(depth);
        largest = larger(largest, fields);
        deepest = larger(deepest, depth);
      }
      is_nan |= is_any_nan(codes.of[chunk][0], codes.of[chunk][1]);
    }
    has_nan |= any_negative(is_nan);
    const Int32Vector group_top = top_of(larger_of_bytes(larger_of_halves(largest)), 0);
    const Int32Vector group_depth = top_of(larger_of_bytes(larger_of_halves(deepest)), 0);
    Int32Vector group_range = larger((group_top + group_depth) >> 23, Int32Vector{});
    Int32Vector group_left_out = {};
    if (any(group_range > kLargestRange)) leave_out(depths, group_top, codes, group_range, group_left_out);
    store(top + lane, group_top);
    store(range + lane, group_range);
    store(left_out + lane, group_left_out);
    convert(codes, lane, group_top, group_range & kRangeBits);
  }

  // Sets elements to zero that are too far below the largest for 16-bit integers.
  __attribute__((noinline)) static void leave_out(const Parts& depths, Int32Vector group_top, Parts& codes,
                                                  Int32Vector& group_range, Int32Vector& group_left_out) {
    const Int32Vector deepest = kLargestRange - (group_top >> 23);
    for (int e = 0; e < 16; ++e) {
      const int chunk = e / 8, r = e / 4 % 2, shift = 24 - e % 4 * 8;
      const Int32Vector is_too_deep = depths.of[chunk][r] << shift >> 24 > deepest;
      codes.of[chunk][r] &= ~(is_too_deep & static_cast<int32_t>(0xff000000u >> shift));
      group_left_out |= is_too_deep & 1 << e;
    }
    group_range = group_range > kLargestRange ? splat<Int32Vector>(kLargestRange + kLeavesOut) : group_range;
  }

  void convert(const Parts& codes, int lane, Int32Vector group_top, Int32Vector group_range) {
    const auto scale = bit_cast<FloatVector>(((group_range + (127 + Format::kBias)) << 23) - group_top);
    MFMA_UNROLL for (int chunk = 0; chunk < 2; ++chunk) {
      MFMA_UNROLL for (int r = 0; r < 2; ++r) {
        const auto integer = [&](int element) {
          return truncate(Format::value(codes.of[chunk][r], element) * scale);
        };
        uint32_t* pairs = pair[2 * r] + lane + chunk * stride;
        store(pairs, (integer(0) & 0xffff) | integer(2) << 16);
        store(pairs + 64, (integer(1) & 0xffff) | integer(3) << 16);
      }
    }
  }
};

template <class A, class B, int stride>
struct Float8Dot {
  using Vector = FloatVector;
  using OperandA = Float8Operand<A, stride>;
  using OperandB = Float8Operand<B, stride>;

  // Adds the products of `chunks` chunks of lanes, `stride` apart, to 4 rows and a vector of columns of D, c. The rows'
  // elements of A are in 4 lanes from a_lane on, the columns' of B in those from b_lane on.
  template <int chunks, int distance>
  __attribute__((always_inline)) static void add(const OperandA& a, int a_lane, const OperandB& b, int b_lane,
                                                 FloatVector (&c)[4]) {
    static_assert(distance == stride);
    for (int chunk = 0; chunk < chunks; chunk += 2) {
      add_group(a, a_lane + stride * chunk, b, b_lane + stride * chunk, c);
    }
  }

 private:
  using Total = Accumulator<A::kBias + B::kBias, true>;

  // A group is the 16 products of two chunks.
  __attribute__((always_inline)) static void add_group(const OperandA& a, int a_lane, const OperandB& b, int b_lane,
                                                       FloatVector (&c)[4]) {
    Int32Vector sum[4], misfits = {};
    FloatVector d[4];
    sum_integers(a, a_lane, b, b_lane, sum);
    const auto b_top = load<Int32Vector>(b.top + b_lane), b_room = 24 - load<Int32Vector>(b.range + b_lane);
    MFMA_UNROLL for (int row = 0; row < 4; ++row) {
      const Sums sums = {sum[row], b_top + a.top[a_lane + row]};
      d[row] = Total::add_to_whole_c(sums, b_room - a.range[a_lane + row], c[row], misfits);
    }
    if (any_negative(misfits)) {
      add_with_exponents(a, a_lane, b, b_lane, sum, c);
    } else {
      MFMA_UNROLL for (int row = 0; row < 4; ++row) c[row] = d[row];
    }
    if (a.has_nan || b.has_nan) set_nan(a, a_lane, b, b_lane, c);
  }

  // Sums the products of all elements that aren't left out.
  __attribute__((always_inline)) static void sum_integers(const OperandA& a, int a_lane, const OperandB& b, int b_lane,
                                                          Int32Vector (&sums)[4]) {
    Int32Vector sum[4] = {};
    MFMA_UNROLL for (int shift = 0; shift <= stride; shift += stride) {
      MFMA_UNROLL for (int pair = 0; pair < 4; ++pair) {
        const uint32_t* a_pairs = a.pair[pair] + a_lane + shift;
        const auto b_pairs = load<Int32Vector>(b.pair[pair] + b_lane + shift);
        MFMA_UNROLL for (int row = 0; row < 4; ++row) {
          sum[row] += multiply_pairs(splat<Int32Vector>(a_pairs[row]), b_pairs);
          keep(sum[row]);
        }
      }
    }
    MFMA_UNROLL for (int row = 0; row < 4; ++row) sums[row] = sum[row];
  }

  // The slow path, for elements left out or where E matters. The integers' sums are right modulo 2^32: in units of
  // 2^(E-24) they fit.
  __attribute__((noinline)) static void add_with_exponents(const OperandA& a, int a_lane, const OperandB& b, int b_lane,
                                                           const Int32Vector (&sum)[4], FloatVector (&c)[4]) {
    Int8Vector fields[4];
    Int32Vector room[4], top[4], misfits = {};
    Sums sums[4];
    largest_fields(a, a_lane, b, b_lane, fields);
    const auto b_top = load<Int32Vector>(b.top + b_lane), b_range = load<Int32Vector>(b.range + b_lane);
    MFMA_UNROLL for (int row = 0; row < 4; ++row) {
      top[row] = larger(top_of(fields[row], 0), top_of(fields[row], 1));
      const Int32Vector ranges = (b_range & OperandB::kRangeBits) + (a.range[a_lane + row] & OperandA::kRangeBits);
      room[row] = ((b_top + a.top[a_lane + row] - top[row]) >> 23) + 24 - ranges;
      sums[row] = {sum[row] << smaller(room[row], splat<Int32Vector>(31)), top[row]};
      misfits |= room[row] | (OperandB::kLeavesOut - 1 - (b_range | a.range[a_lane + row]));
    }
    if (any_negative(misfits)) complete(a, a_lane, b, b_lane, fields, room, sums);
    Total::add(sums, c);
  }

  // The largest sums of exponent fields of even k, in the lowest byte of a lane, and of odd k, in the next.
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
    MFMA_UNROLL for (int row = 0; row < 4; ++row) fields[row] = larger_of_halves(largest[row]);
  }

  // Adds the products left out, or recomputes the sums where some product of integers may have to be truncated.
  __attribute__((noinline)) static void complete(const OperandA& a, int a_lane, const OperandB& b, int b_lane,
                                                 const Int8Vector (&fields)[4], const Int32Vector (&room)[4],
                                                 Sums (&sums)[4]) {
    Int32Vector left_out[4], top[4], units[4];
    if (any_negative(room[0] | room[1] | room[2] | room[3])) {
      MFMA_UNROLL for (int row = 0; row < 4; ++row) sums[row].sum = Int32Vector{};
      MFMA_UNROLL for (int odd = 0; odd < 2; ++odd) {
        MFMA_UNROLL for (int row = 0; row < 4; ++row) top[row] = top_of(fields[row], odd);
        sum_truncated(a, a_lane, b, b_lane, odd, top, units);
        add_of_parity(top, units, sums);
      }
      return;
    }
    MFMA_UNROLL for (int row = 0; row < 4; ++row) {
      left_out[row] = load<Int32Vector>(b.left_out + b_lane) | int32_t(a.left_out[a_lane + row]);
      top[row] = sums[row].top;
    }
    // If all of them are multiples of the larger E's unit, even and odd k needn't be told apart.
    if (sum_left_out(a, a_lane, b, b_lane, 0xffff, left_out, top, units)) {
      MFMA_UNROLL for (int row = 0; row < 4; ++row) sums[row].sum += units[row];
      return;
    }
    for (int odd = 0; odd < 2; ++odd) {
      MFMA_UNROLL for (int row = 0; row < 4; ++row) top[row] = top_of(fields[row], odd);
      sum_left_out(a, a_lane, b, b_lane, odd ? 0xaaaa : 0x5555, left_out, top, units);
      add_of_parity(top, units, sums);
    }
  }

  // Adds sums in units of the E of even or odd k, rounded down to units of the larger E.
  static void add_of_parity(const Int32Vector (&top)[4], const Int32Vector (&units)[4], Sums (&sums)[4]) {
    MFMA_UNROLL for (int row = 0; row < 4; ++row) {
      sums[row].sum += shift_right(units[row], (sums[row].top - top[row]) >> 23);
    }
  }

  // Sums the products of even or odd k, each truncated to the units of its top.
  __attribute__((always_inline)) static void sum_truncated(const OperandA& a, int a_lane, const OperandB& b, int b_lane,
                                                           int odd, const Int32Vector (&top)[4],
                                                           Int32Vector (&sum)[4]) {
    FloatVector inverse_unit[4];
    Int32Vector total[4] = {};
    MFMA_UNROLL for (int row = 0; row < 4; ++row) inverse_unit[row] = Total::inverse_unit(top[row]);
    for (int shift = 0; shift <= stride; shift += stride) {
      MFMA_UNROLL for (int r = 0; r < 2; ++r) {
        const auto b_codes = load<Int32Vector>(b.code[r] + b_lane + shift);
        const auto* a_codes = reinterpret_cast<const uint8_t*>(a.code[r] + a_lane + shift);
        MFMA_UNROLL for (int element = odd; element < 4; element += 2) {
          const FloatVector b_value = B::value(b_codes, element);
          MFMA_UNROLL for (int row = 0; row < 4; ++row) {
            total[row] += truncate(A::kValues[a_codes[4 * row + element]] * inverse_unit[row] * b_value);
          }
        }
      }
    }
    MFMA_UNROLL for (int row = 0; row < 4; ++row) sum[row] = total[row];
  }

  // Sums the products of those of all_k that were left out, each truncated to the units of its top, and tells whether
  // none had to be truncated.
  __attribute__((always_inline)) static bool sum_left_out(const OperandA& a, int a_lane, const OperandB& b, int b_lane,
                                                          unsigned all_k, const Int32Vector (&left_out)[4],
                                                          const Int32Vector (&top)[4], Int32Vector (&sum)[4]) {
    FloatVector inverse_unit[4];
    Int32Vector total[4] = {}, is_inexact = {};
    MFMA_UNROLL for (int row = 0; row < 4; ++row) inverse_unit[row] = Total::inverse_unit(top[row]);
    all_k &= any_lane(left_out[0] | left_out[1] | left_out[2] | left_out[3]);
    for (; all_k != 0; all_k &= all_k - 1) {
      const int k = __builtin_ctz(all_k);
      const int r = k / 4 % 2, element = k % 4, shift = k / 8 * stride;
      const FloatVector b_value = B::value(load<Int32Vector>(b.code[r] + b_lane + shift), element);
      const auto* a_codes = reinterpret_cast<const uint8_t*>(a.code[r] + a_lane + shift) + element;
      MFMA_UNROLL for (int row = 0; row < 4; ++row) {
        const Int32Vector is_left_out = (left_out[row] & 1 << k) != 0;
        const FloatVector any_product = A::kValues[a_codes[4 * row]] * inverse_unit[row] * b_value;
        const auto product = bit_cast<FloatVector>(bit_cast<Int32Vector>(any_product) & is_left_out);
        const Int32Vector units = truncate(product);
        is_inexact |= to_float(units) != product;
        total[row] += units;
      }
    }
    MFMA_UNROLL for (int row = 0; row < 4; ++row) sum[row] = total[row];
    return !any_negative(is_inexact);
  }

  static void set_nan(const OperandA& a, int a_lane, const OperandB& b, int b_lane, FloatVector (&c)[4]) {
    for (int shift = 0; shift <= stride; shift += stride) {
      for (int row = 0; row < 4; ++row) {
        const Int32Vector is_nan = a.has_nan_in(a_lane + shift + row) | b.have_nan(b_lane + shift);
        c[row] = is_nan ? bit_cast<FloatVector>(splat<Int32Vector>(kNaN)) : c[row];
      }
    }
  }
};

}  // namespace mi300x::mfma
