// Dot products of F16, BF16 and XF32 operands: step 1 of the arithmetic in mfma_accumulate.h.
#pragma once

#include <cmath>

#include "mfma_accumulate.h"
#include "mfma_formats.h"
#include "mfma_vector.h"

namespace mi300x::mfma {

// An operand of two registers.
template <class Format>
struct FloatOperand {
  static constexpr int kRegisters = 2;
  static constexpr int kElementBits = 32 / Format::kPerRegister;
  static constexpr int kElements = 2 * Format::kPerRegister;  // of a lane

  // Products of numbers between 2^-50 and 2^61 are moderate: F32 has room for what steps 1 and 2 do with them, and for
  // all products of a narrower format.
  static constexpr bool kIsWide = Format::kLargestField > 31;
  static constexpr int kSmallestModerateField = kIsWide ? Format::kBias - 50 : 1;
  static constexpr int kLargestModerateField = kIsWide ? Format::kBias + 60 : Format::kLargestField;
  // Subtracted from stored fields, so that the sum of two moderate ones is a valid F32 exponent field.
  static constexpr int kFieldOffset = kIsWide ? kSmallestModerateField : 0;

  alignas(64) float value[kElements][64];
  alignas(64) uint32_t field[2][64];  // the elements' exponent fields less kFieldOffset
  bool is_finite;
  bool is_moderate;  // but for zeros

  explicit FloatOperand(const uint32_t* registers) {
    using FieldVector = typename Format::FieldVector;
    using Unsigned = typename Format::UnsignedFieldVector;
    FieldVector largest = {};
    Unsigned smallest = ~Unsigned{};  // but for zeros: their fields are negative
    for (int r = 0; r < 2; ++r) {
      for (int lane = 0; lane < 64; lane += kLanes) {
        const auto bits = load<Int32Vector>(registers + 64 * r + lane);
        MFMA_UNROLL for (int e = 0; e < Format::kPerRegister; ++e) {
          store(value[Format::kPerRegister * r + e] + lane, Format::value(bits, e));
        }
        const FieldVector fields = Format::field(bits);
        store(field[r] + lane, fields - splat<FieldVector>(kFieldOffset));
        largest = larger(largest, fields);
        smallest = smaller(smallest, bit_cast<Unsigned>(fields));
      }
    }
    const auto is_immoderate = (largest > splat<FieldVector>(kLargestModerateField)) |
                               bit_cast<FieldVector>(smallest < splat<Unsigned>(kSmallestModerateField));
    is_moderate = !any(bit_cast<Int32Vector>(is_immoderate));
    is_finite = !any(bit_cast<Int32Vector>(largest > splat<FieldVector>(Format::kLargestField)));
  }
};

template <class Format>
struct FloatDot {
  using Vector = FloatVector;
  using OperandA = FloatOperand<Format>;
  using OperandB = FloatOperand<Format>;

  // Adds the products of `chunks` chunks of lanes, `stride` apart, to 4 rows and a vector of columns of D, c. The rows'
  // elements of A are in 4 lanes from a_lane on, the columns' of B in those from b_lane on.
  template <int chunks, int stride>
  static void add(const OperandA& a, int a_lane, const OperandB& b, int b_lane, FloatVector (&c)[4]) {
    constexpr int group = chunks == 1 ? 1 : 2;
    for (int chunk = 0; chunk < chunks; chunk += group) {
      add_group<group, stride>(a, a_lane + stride * chunk, b, b_lane + stride * chunk, c);
    }
  }

 private:
  using FieldVector = typename Format::FieldVector;
  // Formats with 8 bits of exponent have products for which the units of step 1 or their inverses are no F32 numbers.
  static constexpr bool kIsWide = OperandA::kIsWide;
  static constexpr int kSmallestExponent = -100;
  static constexpr int kLargestExponent = 126;
  static constexpr int kBias = 2 * Format::kBias;
  using Total = Accumulator<kIsWide ? -kSmallestExponent : kBias, false>;
  static_assert(!kIsWide || 2 * OperandA::kFieldOffset == kBias + kSmallestExponent, "moderate fields have E's bias");

  // A group is the products of one or two chunks: at most 8.
  template <int chunks, int stride>
  static void add_group(const OperandA& a, int a_lane, const OperandB& b, int b_lane, FloatVector (&c)[4]) {
    if (!a.is_moderate || !b.is_moderate) return add_any_group<chunks, stride>(a, a_lane, b, b_lane, c);
    FieldVector largest[4];
    Sums sums[4];
    largest_fields<chunks, stride>(a, a_lane, b, b_lane, -1, largest);
    MFMA_UNROLL for (int row = 0; row < 4; ++row) sums[row].top = moderate_top(largest[row]);
    sum_products<chunks, stride>(a, a_lane, b, b_lane, sums);
    Total::add(sums, c);
  }

  // The general case, for operands that aren't moderate.
  template <int chunks, int stride>
  __attribute__((noinline)) static void add_any_group(const OperandA& a, int a_lane, const OperandB& b, int b_lane,
                                                      FloatVector (&c)[4]) {
    FieldVector largest[4];
    Int32Vector field[4];  // E + kBias
    Sums sums[4];
    largest_fields<chunks, stride>(a, a_lane, b, b_lane, 2 * (Format::kZeroField - OperandA::kFieldOffset), largest);
    Int32Vector leaving = {};
    MFMA_UNROLL for (int row = 0; row < 4; ++row) {
      field[row] = larger_half(largest[row]) + 2 * OperandA::kFieldOffset;
      leaving |= leaves_float(field[row]);
      sums[row].top = top_of(field[row]);
    }
    sum_products<chunks, stride>(a, a_lane, b, b_lane, sums);
    if (a.is_finite && b.is_finite && !any_negative(leaving)) return Total::add(sums, c);
    for (int row = 0; row < 4; ++row)
      c[row] = add_in_double<chunks, stride>(a, a_lane + row, b, b_lane, field[row], sums[row], c[row]);
  }

  // The largest sums of a field of A and one of B, `least` at least: of the even and of the odd elements, or of all, as
  // FieldVector has them.
  template <int chunks, int stride>
  static void largest_fields(const OperandA& a, int a_lane, const OperandB& b, int b_lane, int least,
                             FieldVector (&largest)[4]) {
    MFMA_UNROLL for (int row = 0; row < 4; ++row) largest[row] = splat<FieldVector>(least);
    for (int shift = 0; shift < chunks * stride; shift += stride) {
      MFMA_UNROLL for (int r = 0; r < 2; ++r) {
        const uint32_t* a_fields = a.field[r] + a_lane + shift;
        const auto b_fields = load<FieldVector>(b.field[r] + b_lane + shift);
        MFMA_UNROLL for (int row = 0; row < 4; ++row) {
          largest[row] = larger(largest[row], bit_cast<FieldVector>(splat<Int32Vector>(a_fields[row])) + b_fields);
        }
      }
    }
  }

  // top_of for sums of moderate fields.
  static Int32Vector moderate_top(FieldVector fields) {
    if (Format::kPerRegister == 2) {
      fields = larger(fields, bit_cast<FieldVector>(bit_cast<UnsignedInt32Vector>(fields) >> 16));
    }
    return bit_cast<Int32Vector>(fields) << 23;  // shifts the upper half out
  }

  static Int32Vector larger_half(FieldVector fields) {
    const auto lanes = bit_cast<Int32Vector>(fields);
    return Format::kPerRegister == 1 ? lanes : larger(lanes << 16 >> 16, lanes >> 16);
  }

  // Step 1 where the sums' tops are known.
  template <int chunks, int stride>
  static void sum_products(const OperandA& a, int a_lane, const OperandB& b, int b_lane, Sums (&sums)[4]) {
    FloatVector inverse_unit[4];
    Int32Vector sum[4] = {};
    MFMA_UNROLL for (int row = 0; row < 4; ++row) inverse_unit[row] = Total::inverse_unit(sums[row].top);
    for (int shift = 0; shift < chunks * stride; shift += stride) {
      MFMA_UNROLL for (int e = 0; e < OperandA::kElements; ++e) {
        const float* a_values = a.value[e] + a_lane + shift;
        const auto b_values = load<FloatVector>(b.value[e] + b_lane + shift);
        MFMA_UNROLL for (int row = 0; row < 4; ++row) {
          sum[row] += truncate(splat<FloatVector>(a_values[row]) * b_values * inverse_unit[row]);
        }
      }
    }
    MFMA_UNROLL for (int row = 0; row < 4; ++row) sums[row].sum = sum[row];
  }

  // E in the place of an F32's exponent. Only valid where leaves_float isn't negative.
  static Int32Vector top_of(Int32Vector field) {
    return (kIsWide ? larger(field - (kBias + kSmallestExponent), splat<Int32Vector>(-1)) : field) << 23;
  }

  static Int32Vector leaves_float(Int32Vector field) {
    if (!kIsWide) return Int32Vector{};
    return ((field - (kBias + kSmallestExponent)) | (kBias + kLargestExponent - field)) & ~field;
  }

  // Adds a whole group for one row in F64. `sums` are used where E fits F32 and all numbers are finite.
  template <int chunks, int stride>
  __attribute__((noinline)) static FloatVector add_in_double(const OperandA& a, int a_lane, const OperandB& b,
                                                             int b_lane, Int32Vector field, const Sums& sums,
                                                             FloatVector c) {
    DoubleSums all = Total::in_double(sums);
    const Int32Vector is_beyond = leaves_float(field) < 0;
    if (any(is_beyond) || !a.is_finite || !b.is_finite) {
      for (int lane = 0; lane < kLanes; ++lane) {
        if (is_beyond[lane]) all.exponent[lane] = field[lane] - kBias;
        double sum = 0, beyond = 0;
        for (int shift = 0; shift < chunks * stride; shift += stride) {
          for (int e = 0; e < OperandA::kElements; ++e) {
            const double product = static_cast<double>(a.value[e][a_lane + shift]) * b.value[e][b_lane + shift + lane];
            // A product that is infinite, NaN or too large for F32 makes the sum infinite or NaN.
            if (std::fabs(product) < 0x1p128) {
              sum += std::trunc(std::ldexp(product, 24 - all.exponent[lane]));
            } else {
              beyond += product * HUGE_VAL;
            }
          }
        }
        if (is_beyond[lane]) all.sum[lane] = std::ldexp(sum, all.exponent[lane] - 24);
        if (beyond != 0) all.sum[lane] = beyond;
      }
    }
    return Total::add(all, c);
  }
};

}  // namespace mi300x::mfma
