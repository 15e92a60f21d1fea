// Types that host and device share: fixed-width integers, vectors, and the FP8 formats of gfx942.
#pragma once

namespace deep_gemm_rocm {

using uint8_t = unsigned char;
using int64_t = long;
using uint64_t = unsigned long;

constexpr int kWaveSize = 64;

template <class T, int kSize>
using Vector = T __attribute__((ext_vector_type(kSize)));

// 16 bytes, which a lane moves with one global load, LDS access or store.
using Chunk = Vector<unsigned, 4>;
constexpr int kChunkBytes = 16;

// A K-block is 128 bytes of each row: 128 FP8 elements, one scale.
constexpr int kBlockKBytes = 128;
constexpr int kScaleBlockK = 128;
constexpr int kChunksPerRow = kBlockKBytes / kChunkBytes;

// FNUZ formats: no infinities, no -0, NaN is 0x80. They name a type for Mfma and hold no data.
struct E4M3 {};
struct E5M2 {};

// Values of four bits, two in a byte, the first in the low half: 0, 0.5, 1, 1.5, 2, 3, 4 and 6, and their negatives.
// Matrix cores take other types; see four_bits.h.
struct E2M1 {};
// The same, eight values in a word, as shuffle_weight makes them: byte i has the magnitude of value i in bits 0 to 2 and
// that of value i + 4 in bits 4 to 6. Signs are in bit 7 of these bytes, once with the word as it is, and once with it
// rotated right by four bits. No value is -0, and scales are from 2^-24 to 2^3.
struct ShuffledE2M1 {};
// Integers of four bits, -8 to 7: four bytes have the first four of eight in their low halves, the last four in their
// high ones. A group of them may have an integer that stands for 0, plus 8.
struct Int4 {};
// The same as shuffle_weight makes them. Signs and magnitudes lie as those of ShuffledE2M1; negative integers have 1 less
// than their magnitude. If groups have fewer than 128 integers, word 4 q + i of each 128 has the eight from 32 i + 8 q
// on, which lane group q multiplies in the i-th MFMA of KOrder::kInOrder. No integer but 0 stands for 0.
struct ShuffledInt4 {};
// Scales that are powers of two, as their exponents plus 127.
struct E8M0 {};
// An fp32 scale of integers, with what stands for 0, plus 8, in its last five bits. Without, 0 stands for 0.
struct ScaleAndZero {
  unsigned bits;
};
// The scales of an operand of four bits.
//   kValues: how many values along K share one.
//   kStepK: the scales of so many values of a row are neighbours in memory.
template <class T_, int kValues_ = 32, int kStepK_ = 128>
struct GroupScale {
  using T = T_;
  static constexpr int kValues = kValues_;
  static constexpr int kStepK = kStepK_;
};

// Numbers must not be negative: unsigned divisions by powers of two take fewer instructions.
constexpr int ceil_div(int a, int b) {
  const unsigned divisor = b;
  return (a + divisor - 1) / divisor;
}
constexpr int round_up(int a, int b) { return ceil_div(a, b) * b; }
constexpr int greatest_common_divisor(int a, int b) { return b == 0 ? a : greatest_common_divisor(b, a % b); }

template <class T>
constexpr T min(T a, T b) {
  return a < b ? a : b;
}
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}

}  // namespace deep_gemm_rocm
