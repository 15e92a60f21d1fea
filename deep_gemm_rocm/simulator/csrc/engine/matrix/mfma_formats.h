// The floating-point formats of the A and B operands that the matrix core multiplies exactly.
//
// A format decodes one element of each lane's 32-bit register at a time to F32, which holds all of its numbers, and all
// of them at once to the exponent fields by which products are aligned: a number's own exponent field, that of
// the smallest normal number for a subnormal one, and kZeroField for zero.
#pragma once

#include <array>
#include <limits>

#include "mfma_vector.h"

namespace mi300x::mfma {

constexpr float two_to_the(int exponent) {
  return exponent == 0 ? 1.0f : exponent < 0 ? 0.5f * two_to_the(exponent + 1) : 2.0f * two_to_the(exponent - 1);
}

// 8-bit floats without negative zero and infinity, NaN 0x80 ("FNUZ").
template <int exponent_bits>
struct Float8 {
  static constexpr int kPerRegister = 4;
  static constexpr int kMantissaBits = 7 - exponent_bits;
  static constexpr int kBias = 1 << (exponent_bits - 1);
  static constexpr int kLargestField = (1 << exponent_bits) - 1;
  static constexpr int kZeroField = -33;  // with the largest field of the other operand still negative
  using FieldVector = Int8Vector;

  // The value of each code; of NaN any finite one.
  static constexpr std::array<float, 256> kValues = [] {
    std::array<float, 256> values{};
    for (int code = 0; code < 256; ++code) {
      const int field = code >> kMantissaBits & kLargestField, mantissa = code & ((1 << kMantissaBits) - 1);
      const int significand = field == 0 ? mantissa : mantissa | 1 << kMantissaBits;
      const float magnitude = significand * two_to_the((field == 0 ? 1 : field) - kBias - kMantissaBits);
      values[code] = code & 0x80 ? -magnitude : magnitude;
    }
    return values;
  }();

  // The value times 2^(kBias - 127): the bits of the F8 in the place of an F32's.
  static FloatVector scaled_value(Int32Vector registers, int element) {
    return bit_cast<FloatVector>(((registers << (24 - 8 * element)) >> (8 - exponent_bits)) & kValueMask);
  }
  static FloatVector value(Int32Vector registers, int element) { return scaled_value(registers, element) * kScale; }

  static FieldVector field(Int32Vector registers) {
    const Int32Vector magnitudes = registers & 0x7f7f7f7f;
    const auto fields = bit_cast<FieldVector>((magnitudes >> kMantissaBits) & (kLargestField * 0x01010101));
    return bit_cast<FieldVector>(magnitudes) == 0 ? splat<FieldVector>(kZeroField)
                                                  : larger(fields, splat<FieldVector>(1));
  }

  // How many bits below the exponent of a field 0 the last bit set is; kNoDepth for zero.
  static constexpr int kNoDepth = -64;
  static FieldVector depth(Int32Vector registers, FieldVector fields) {
    const auto mantissas = registers & (((1 << kMantissaBits) - 1) * 0x01010101);
    const auto significands = bit_cast<FieldVector>(mantissas | (1 << kMantissaBits) * 0x01010101);
    const auto last_bit = bit_cast<Int32Vector>(significands & -significands);
    // log2 of a byte 1, 2, 4 or 8
    const auto place = (last_bit >> 1 & 0x07070707) - (last_bit >> 3 & 0x01010101);
    const auto depths = splat<FieldVector>(kMantissaBits) - bit_cast<FieldVector>(place) - fields;
    return fields < 0 ? splat<FieldVector>(kNoDepth) : depths;
  }

 private:
  static constexpr float kScale = two_to_the(127 - kBias);
  static constexpr int32_t kValueMask = static_cast<int32_t>(0x80000000u | 0x7fu << (23 - kMantissaBits));
};

using Fp8 = Float8<4>;  // E4M3
using Bf8 = Float8<5>;  // E5M2

// IEEE binary16 and bfloat16.
template <int exponent_bits>
struct Float16 {
  static constexpr int kPerRegister = 2;
  static constexpr int kMantissaBits = 15 - exponent_bits;
  static constexpr int kBias = (1 << (exponent_bits - 1)) - 1;
  static constexpr int kLargestField = (1 << exponent_bits) - 2;
  static constexpr int kZeroField = -kLargestField - 3;
  using FieldVector = Int16Vector;
  using UnsignedFieldVector = UnsignedInt16Vector;

  static FloatVector value(Int32Vector registers, int element) {
    const Int32Vector bits = ((registers << (16 - 16 * element)) >> (8 - exponent_bits)) & kValueMask;
    const FloatVector value = bit_cast<FloatVector>(bits) * kScale;
    if (exponent_bits == 8) return value;
    return (bits & kExponentMask) == kExponentMask ? bit_cast<FloatVector>(bits | 0x7f800000) : value;
  }

  static FieldVector field(Int32Vector registers) {
    const Int32Vector magnitudes = registers & 0x7fff7fff;
    const FieldVector fields = bit_cast<FieldVector>(magnitudes) >> kMantissaBits;
    return bit_cast<FieldVector>(magnitudes) == 0 ? splat<FieldVector>(kZeroField)
                                                  : larger(fields, splat<FieldVector>(1));
  }

 private:
  static constexpr float kScale = two_to_the(127 - kBias);
  static constexpr int32_t kExponentMask = (kLargestField + 1) << 23;
  static constexpr int32_t kValueMask = static_cast<int32_t>(0x80000000u | 0x7fffu << (23 - kMantissaBits));
};

using F16 = Float16<5>;
using Bf16 = Float16<8>;

// F32 cut off to 10 bits of mantissa.
struct Xf32 {
  static constexpr int kPerRegister = 1;
  static constexpr int kBias = 127;
  static constexpr int kLargestField = 254;
  static constexpr int kZeroField = -kLargestField - 3;
  using FieldVector = Int32Vector;
  using UnsignedFieldVector = UnsignedInt32Vector;

  static FloatVector value(Int32Vector registers, int) { return bit_cast<FloatVector>(registers & kUsedBits); }

  static FieldVector field(Int32Vector registers) {
    const Int32Vector magnitudes = registers & kUsedBits & 0x7fffffff;
    return magnitudes == 0 ? splat<FieldVector>(kZeroField) : larger(magnitudes >> 23, splat<FieldVector>(1));
  }

 private:
  static constexpr int32_t kUsedBits = static_cast<int32_t>(0xffffe000u);
};

}  // namespace mi300x::mfma
