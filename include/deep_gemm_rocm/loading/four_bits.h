// Widens four-bit values to types of the matrix cores. For e2m1, v_perm_b32 looks up each byte of the result in a table
// of eight, and the sign is added. Tables include the scale, so that scaling takes no instruction for each value.
// Integers are converted arithmetically.
#pragma once

#include "deep_gemm_rocm/arithmetic/rounding.h"
#include "deep_gemm_rocm/hardware/mfma.h"
#include "deep_gemm_rocm/hardware/types.h"
#include "deep_gemm_rocm/loading/fragment.h"
#include "deep_gemm_rocm/loading/tile_loader.h"

namespace deep_gemm_rocm {

// A group's scale as a biased exponent (plus 127). 0 stands for a scale of 0, and 255 for one that isn't a power of
// two.
constexpr unsigned kLargestExponent = 254;
DG_DEVICE unsigned exponent_of(unsigned scale) { return scale; }
DG_DEVICE unsigned exponent_of(float scale) {
  const unsigned bits = __builtin_bit_cast(unsigned, scale);
  return bits & 0x807fffff ? kLargestExponent + 1 : bits >> 23;
}

// The fp32 scale of such an exponent.
DG_DEVICE float scale_of(unsigned exponent) {
  return __builtin_bit_cast(float, exponent > kLargestExponent ? 0x7fc00000u : exponent << 23);
}
DG_DEVICE float scale_of(float scale) { return scale; }

// The type of a scale of type T in memory, and in a register.
template <class T>
using StoredScale = Conditional<kIsSame<T, E8M0>, uint8_t, T>;
template <class T>
using StagedScale = Conditional<kIsSame<T, E8M0>, unsigned, T>;

// v_perm_b32: bytes of two words, of which `low` has numbers 0 to 3.
DG_DEVICE unsigned bytes_of(unsigned high, unsigned low, unsigned numbers) {
  return __builtin_amdgcn_perm(high, low, numbers);
}

// A byte for each magnitude of e2m1, the lower three bits of a code.
struct TableOfBytes {
  unsigned low, high;
  DG_DEVICE unsigned at(unsigned magnitudes) const { return bytes_of(high, low, magnitudes); }
};

constexpr unsigned kLowNibbles = 0x0f0f0f0f;
constexpr unsigned kMagnitudes = 0x07070707;
constexpr unsigned kSigns = 0x80808080;
constexpr unsigned kNans = 0x80808080;  // of FP8
// Bytes 0 and 1 of two words in turn, and bytes 2 and 3.
constexpr unsigned kFirstInTurn = 0x05010400;
constexpr unsigned kLastInTurn = 0x07030602;

// How four bits of type Code are widened to a type T of the matrix cores.
//   kBytes: bytes of memory for a chunk.
//   kChunks, Loaded: chunks that a thread loads at once on their way to LDS.
//   Table: what a scale, or a group's distance to the largest exponent, makes of each magnitude.
//   chunk(words, table): the chunk of kBytes of memory.
template <class T, class Code = E2M1>
struct FourBits;

// e5m2, with scales relative to a reference scale. Values are exact if their scale is the reference or up to 2^27 times
// smaller.
template <>
struct FourBits<E5M2> {
  static constexpr int kBytes = 8;
  static constexpr int kChunks = 2;
  using Loaded = Vector<unsigned, 4>;
  static constexpr int kExponentOfOne = 13;  // 6 becomes 6 * 2^13, near the largest number
  static constexpr unsigned kUnit = 4;       // of the exponent in a number's bits
  static constexpr unsigned kMostUnits = 27 * kUnit;
  // As a rule, all scales of weights are at most this one, and at most 2^27 times smaller.
  static constexpr unsigned kUsualReference = 127 + 3;

  // The factor by which products of values relative to a reference are multiplied.
  static DG_DEVICE float scale_of_products(unsigned reference) {
    return __builtin_ldexpf(1, static_cast<int>(reference) - 127 - kExponentOfOne);
  }

  struct Table {
    TableOfBytes magnitudes;
    unsigned signs;  // kSigns, or 0 if all values are

    // For a scale that is so many times 2^(1/kUnit) smaller than the reference, at most kMostUnits.
    static DG_DEVICE Table of(unsigned units) {
      constexpr unsigned kOfAll = 0, kOfAllButZero = 0x0000000c;  // the selector 0x0c gives a zero byte
      return {{0x76747000 - bytes_of(0, units, kOfAllButZero), 0x7e7c7a78 - bytes_of(0, units, kOfAll)}, kSigns};
    }
    // For values relative to the usual reference. If their scale is too far from it, they become NaN, unless all are
    // zero.
    template <class Scale>
    static DG_DEVICE Table of_usual(Scale scale, Loaded& codes) {
      const unsigned exponent = exponent_of(scale);
      const unsigned units = (kUsualReference - exponent) * kUnit;
      const bool is_near = units <= kMostUnits;
      TableOfBytes magnitudes = of(units).magnitudes;
      if (ballot(!is_near) != 0) {
        const unsigned any = (codes[0] | codes[1] | codes[2] | codes[3]) & 0x77777777;
        const bool is_zero = exponent == 0 || (any == 0 && exponent <= kLargestExponent);
        if (is_zero) codes = {};
        if (!is_near && !is_zero) magnitudes = {kNans, kNans};
      }
      return {magnitudes, kSigns};
    }
    static DG_DEVICE Table of_nan() { return {{kNans, kNans}, kSigns}; }

    DG_DEVICE Table only_if(bool condition) const {
      return {condition ? magnitudes.low : 0, condition ? magnitudes.high : 0, condition ? signs : 0};
    }
  };

  static DG_DEVICE MfmaOperand operand(unsigned codes, const Table& table) {
    const unsigned magnitudes = codes & 0x77777777;
    // Bit 3 of each negative code but that of -0, for with a sign, 0 is NaN.
    const unsigned signs = (magnitudes + 0x77777777) & codes;
    const unsigned even = table.magnitudes.at(magnitudes & kLowNibbles) | (signs << 4 & table.signs);
    const unsigned odd = table.magnitudes.at(magnitudes >> 4 & kLowNibbles) | (signs & table.signs);
    return static_cast<uint64_t>(bytes_of(odd, even, kLastInTurn)) << 32 | bytes_of(odd, even, kFirstInTurn);
  }

  static DG_DEVICE MfmaOperands chunk(const unsigned* words, const Table& table) {
    return {operand(words[0], table), operand(words[1], table)};
  }
};

// bf16, exactly if the scale is a power of two.
template <>
struct FourBits<__bf16> {
  static constexpr int kBytes = 4;
  static constexpr int kChunks = 2;
  using Loaded = Vector<unsigned, 2>;
  struct Table {
    TableOfBytes low, high;  // bytes of each number

    template <class Scale>
    static DG_DEVICE Table of(StagedScale<Scale> scale) {
      Float2 both = scale_of(scale) * Float2{1.0f, 1.5f};  // magnitudes are powers of two times one of these
      if constexpr (!kIsSame<Scale, E8M0>) both = {rounded(both[0]), rounded(both[1])};
      const Float2 small = both[0] * Float2{0.0f, 0.5f};
      const Float2 large = both * 2.0f, largest = both * 4.0f;
      return of_pairs(upper_halves(small), upper_halves(both), upper_halves(large), upper_halves(largest));
    }

    // The table of magnitudes that come in pairs, two to a word.
    static DG_DEVICE Table of_pairs(unsigned small, unsigned both, unsigned large, unsigned largest) {
      constexpr unsigned kLowBytes = 0x06040200, kHighBytes = 0x07050301;
      return {{bytes_of(both, small, kLowBytes), bytes_of(largest, large, kLowBytes)},
              {bytes_of(both, small, kHighBytes), bytes_of(largest, large, kHighBytes)}};
    }

   private:
    static DG_DEVICE float rounded(float value) {
      const unsigned bits = NumberRounding<__bf16>::prepared(value) & 0xffff0000;
      return __builtin_isunordered(value, value) ? value : __builtin_bit_cast(float, bits);
    }
    static DG_DEVICE unsigned upper_halves(Float2 pair) {
      const auto bits = __builtin_bit_cast(HalfChunk, pair);
      return bytes_of(bits[1], bits[0], 0x07060302);
    }
  };

  // Four values with magnitudes in the lower bits of `codes`, and signs in the upper bits of `signs`.
  static DG_DEVICE MfmaOperand operand(unsigned codes, unsigned signs, const Table& table) {
    const unsigned magnitudes = codes & kMagnitudes;
    const unsigned low = table.low.at(magnitudes);
    const unsigned high = table.high.at(magnitudes) | (signs & kSigns);
    return static_cast<uint64_t>(bytes_of(high, low, kLastInTurn)) << 32 | bytes_of(high, low, kFirstInTurn);
  }

  static DG_DEVICE MfmaOperands chunk(const unsigned* words, const Table& table) {
    const unsigned even = *words & kLowNibbles, odd = *words >> 4 & kLowNibbles;
    const unsigned first = bytes_of(odd, even, kFirstInTurn), last = bytes_of(odd, even, kLastInTurn);
    return {operand(first, first << 4, table), operand(last, last << 4, table)};
  }
};

// A word of shuffled codes with its first four and last four swapped.
DG_DEVICE unsigned turned(unsigned codes) { return __builtin_rotateright32(codes, 4); }

template <>
struct FourBits<E5M2, ShuffledE2M1> {
  using OfAnyScale = FourBits<E5M2>;
  static constexpr int kBytes = OfAnyScale::kBytes;
  static constexpr int kChunks = OfAnyScale::kChunks;
  using Loaded = OfAnyScale::Loaded;
  struct Table {
    TableOfBytes magnitudes;

    template <class Scale>
    static DG_DEVICE Table of(StagedScale<Scale> exponent) {
      return {OfAnyScale::Table::of((OfAnyScale::kUsualReference - exponent) * OfAnyScale::kUnit).magnitudes};
    }
  };

  static DG_DEVICE MfmaOperand operand(unsigned codes, const Table& table) {
    return static_cast<uint64_t>(numbers(turned(codes), table)) << 32 | numbers(codes, table);
  }

  static DG_DEVICE MfmaOperands chunk(const unsigned* words, const Table& table) {
    return {operand(words[0], table), operand(words[1], table)};
  }

 private:
  static DG_DEVICE unsigned numbers(unsigned codes, const Table& table) {
    return table.magnitudes.at(codes & kMagnitudes) | (codes & kSigns);
  }
};

template <>
struct FourBits<__bf16, ShuffledE2M1> {
  using InOrder = FourBits<__bf16>;
  static constexpr int kBytes = InOrder::kBytes;
  static constexpr int kChunks = InOrder::kChunks;
  using Loaded = InOrder::Loaded;
  struct Table {
    InOrder::Table values;

    // Exponents are far from the smallest and largest, so scaling can add to the exponents' bits.
    template <class Scale>
    static DG_DEVICE Table of(StagedScale<Scale> exponent) {
      constexpr unsigned kExponents = 0x00800080, kExponent = 0x00800000;  // the least bits, of two numbers and of one
      const unsigned both = exponent * kExponents;
      return {InOrder::Table::of_pairs((both & 0xffff0000) - kExponent, both + 0x00400000, both + 0x00c00080,
                                       both + 0x01400100)};
    }
  };

  static DG_DEVICE MfmaOperands chunk(const unsigned* words, const Table& table) {
    const unsigned first = *words, last = turned(first);
    return {InOrder::operand(first, first, table.values), InOrder::operand(last, last, table.values)};
  }
};

// The scale of a group of integers, and its zero point.
struct ScaleOfIntegers {
  float scale, zero;
};
constexpr unsigned kZeroBits = 0x1f;
DG_DEVICE unsigned zero_code(ScaleAndZero both) { return both.bits & kZeroBits; }
DG_DEVICE ScaleOfIntegers scale_and_zero(ScaleAndZero both) {
  return {__builtin_bit_cast(float, both.bits & ~kZeroBits), static_cast<float>(static_cast<int>(zero_code(both)) - 8)};
}
template <class T>
DG_DEVICE ScaleOfIntegers scale_and_zero(T scale) {
  return {static_cast<float>(scale), 0};
}

// The integer in the low half of byte n, as fp32 over 16. Inline assembly wouldn't do: LLVM doesn't count its
// instructions among those that must keep away from results of MFMAs.
template <int kByte>
DG_DEVICE float sixteenths_of_byte(unsigned bytes) {
#if __has_builtin(__builtin_amdgcn_cvt_off_f32_i4)
  return __builtin_amdgcn_cvt_off_f32_i4(bytes >> 8 * kByte & 0xff);  // one instruction, as SDWA selects the byte
#else
  return static_cast<float>(static_cast<int>(bytes << 28 - 8 * kByte) >> 28) * 0.0625f;
#endif
}

struct Sixteenths {
  Float2 first, last;
  DG_DEVICE explicit Sixteenths(unsigned bytes)
      : first{sixteenths_of_byte<0>(bytes), sixteenths_of_byte<1>(bytes)},
        last{sixteenths_of_byte<2>(bytes), sixteenths_of_byte<3>(bytes)} {}
};
constexpr float kSixteen = 16;

// The upper halves of two numbers.
DG_DEVICE unsigned upper_halves(Vector<unsigned, 2> bits) { return bytes_of(bits[1], bits[0], 0x07060302); }

// bf16 of integers times their scale, rounded.
template <>
struct FourBits<__bf16, Int4> {
  static constexpr int kBytes = 4;
  static constexpr int kChunks = 2;
  using Loaded = Vector<unsigned, 2>;
  struct Table {
    // The value of a sixteenth is sixteenth * scale + offset, rounded once. Both are a pair of registers, because
    // v_pk_fma_f32 reads a pair even if it uses one half twice. Were the other half the target of a load in flight,
    // widening would wait for that load.
    Float2 scale_and_offset;

    template <class Scale>
    static DG_DEVICE Table of(Scale of_group) {
      const ScaleOfIntegers both = scale_and_zero(of_group);
      // Rounding could turn other NaNs into numbers.
      const float scale = __builtin_isunordered(both.scale, both.scale) ? __builtin_nanf("") : both.scale;
      Float2 scale_and_offset{kSixteen * scale, -both.zero * scale};
      asm("" : "+v"(scale_and_offset));
      return {scale_and_offset};
    }
  };

  static DG_DEVICE MfmaOperand operand(unsigned bytes, const Table& table) {
    const Sixteenths values(bytes);
    return static_cast<uint64_t>(pair(values.last, table)) << 32 | pair(values.first, table);
  }

  static DG_DEVICE MfmaOperands chunk(const unsigned* words, const Table& table) {
    return {operand(*words, table), operand(*words >> 4, table)};
  }

 private:
  // Rounds to the nearest, away from 0 where there are two, which takes one instruction less than to even.
  static DG_DEVICE unsigned pair(Float2 sixteenths, const Table& table) {
    const float scale = table.scale_and_offset[0], offset = table.scale_and_offset[1];
    const Float2 values = __builtin_elementwise_fma(sixteenths, Float2{scale, scale}, Float2{offset, offset});
    constexpr unsigned kHalfUnit = 0x8000;
    return upper_halves(__builtin_bit_cast(HalfChunk, values) + kHalfUnit);
  }
};

// Integers that are converted exactly and multiplied unscaled. Their sums are promoted with their scales times kUnit.
template <bool kHasZeros>
struct Integers {};
struct ShuffledIntegers {};

// Whether widening takes the groups' scales, or at least their zeros.
template <class Form>
constexpr bool kTakesScales = true;
template <class T>
constexpr bool kTakesScales<FourBits<T, Integers<false>>> = false;
template <class T>
constexpr bool kTakesScales<FourBits<T, ShuffledIntegers>> = false;

template <bool kHasZeros>
struct FourBits<__bf16, Integers<kHasZeros>> {
  static constexpr int kBytes = 4;
  static constexpr int kChunks = 2;
  using Loaded = Vector<unsigned, 2>;
  static constexpr float kUnit = kSixteen;
  struct Table {
    float zero;  // divided by 16

    template <class Scale>
    static DG_DEVICE Table of(Scale of_group) {
      return {scale_and_zero(of_group).zero / kSixteen};
    }
  };

  static DG_DEVICE MfmaOperand operand(unsigned bytes, const Table& table) {
    const Sixteenths values(bytes);
    return static_cast<uint64_t>(pair(values.last, table)) << 32 | pair(values.first, table);
  }

  static DG_DEVICE MfmaOperands chunk(const unsigned* words, const Table& table) {
    return {operand(*words, table), operand(*words >> 4, table)};
  }

 private:
  static DG_DEVICE unsigned pair(Float2 sixteenths, const Table& table) {
    if constexpr (kHasZeros) sixteenths -= table.zero;
    return upper_halves(__builtin_bit_cast(HalfChunk, sixteenths));
  }
};

// e4m3, whose subnormal numbers and first normal ones are integers in the order of their bits.
struct IntegersInE4M3 {
  static constexpr int kBytes = 8;
  static constexpr int kChunks = 2;
  using Loaded = Vector<unsigned, 4>;
  static constexpr float kUnit = 1024;  // 1 over the smallest number
  static constexpr unsigned kOwn = 0x03020100, kBit2 = 0x04040404;  // of a selector: own byte, of the second word
};

template <>
struct FourBits<E4M3, Integers<false>> : IntegersInE4M3 {
  struct Table {};

  // Four integers in the low halves of bytes, whose signs are bit 2 of those of `signs`.
  static DG_DEVICE unsigned numbers(unsigned bytes, unsigned signs) {
    const unsigned if_positive = bytes & kMagnitudes;
    const unsigned if_negative = 0x88888888 - if_positive;  // -8 plus the three bits
    return bytes_of(if_negative, if_positive, (signs & kBit2) | kOwn);
  }

  static DG_DEVICE MfmaOperand operand(unsigned codes, const Table&) {
    return static_cast<uint64_t>(numbers(codes >> 4, codes >> 5)) << 32 | numbers(codes, codes >> 1);
  }

  static DG_DEVICE MfmaOperands chunk(const unsigned* words, const Table& table) {
    return {operand(words[0], table), operand(words[1], table)};
  }
};

template <>
struct FourBits<E4M3, ShuffledIntegers> : IntegersInE4M3 {
  struct Table {};

  static DG_DEVICE MfmaOperand operand(unsigned codes, const Table&) {
    return static_cast<uint64_t>(numbers(turned(codes))) << 32 | numbers(codes);
  }

  static DG_DEVICE MfmaOperands chunk(const unsigned* words, const Table& table) {
    return {operand(words[0], table), operand(words[1], table)};
  }

 private:
  static DG_DEVICE unsigned numbers(unsigned codes) {
    constexpr unsigned kOfSigns = 0x01010101;
    return (codes & (kMagnitudes | kSigns)) + (codes >> 7 & kOfSigns);
  }
};

// Integers minus their zero points, which are from -16 to 15.
template <>
struct FourBits<E4M3, Integers<true>> : IntegersInE4M3 {
  struct Table {
    // In each byte: from a code, which is the integer plus 8, to the difference plus 16. Zeros are 0 to 16, so this sum
    // takes five bits.
    unsigned offset;

    template <class Scale>
    static DG_DEVICE Table of(Scale of_group) {
      constexpr unsigned kOfAll = 0;
      return {bytes_of(0, 16 - zero_code(of_group), kOfAll)};
    }
  };

  // Differences of the codes in the low halves of bytes.
  static DG_DEVICE unsigned numbers(unsigned codes, const Table& table) {
    const unsigned raised = (codes & kLowNibbles) + table.offset;
    const unsigned if_positive = raised & kLowNibbles;  // raised - 16, if bit 4 is set
    const unsigned if_negative = 0x90909090 - raised;   // the sign, and 16 - raised
    return bytes_of(if_positive, if_negative, (raised >> 2 & kBit2) | kOwn);
  }

  static DG_DEVICE MfmaOperand operand(unsigned integers, const Table& table) {
    const unsigned codes = integers ^ 0x88888888;
    return static_cast<uint64_t>(numbers(codes >> 4, table)) << 32 | numbers(codes, table);
  }

  static DG_DEVICE MfmaOperands chunk(const unsigned* words, const Table& table) {
    return {operand(words[0], table), operand(words[1], table)};
  }
};

}  // namespace deep_gemm_rocm
