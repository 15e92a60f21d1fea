// Matrix instructions with the usual arithmetic: F32 and F64 are fused multiply-adds, one for each k in turn (arXiv
// 2511.10909), and I8 is summed modulo 2^32.
#pragma once

#include "mfma_layout.h"
#include "mfma_vector.h"

namespace mi300x::mfma {

// An operand of one register, one element a lane.
struct Float32Operand {
  static constexpr int kRegisters = 1;
  alignas(64) float value[64];

  explicit Float32Operand(const uint32_t* registers) { std::memcpy(value, registers, sizeof value); }
};

struct Float32Dot {
  using Vector = FloatVector;
  using OperandA = Float32Operand;
  using OperandB = Float32Operand;

  template <int chunks, int stride>
  static void add(const OperandA& a, int a_lane, const OperandB& b, int b_lane, FloatVector (&c)[4]) {
    for (int shift = 0; shift < chunks * stride; shift += stride) {
      const auto b_value = load<FloatVector>(b.value + b_lane + shift);
      MFMA_UNROLL for (int row = 0; row < 4; ++row) {
        c[row] = multiply_add(splat<FloatVector>(a.value[a_lane + shift + row]), b_value, c[row]);
      }
    }
  }
};

// An operand of one or two registers, as pairs of 16-bit integers.
template <int registers>
struct Int8Operand {
  static constexpr int kRegisters = registers;
  static constexpr int kElementBits = 8;
  alignas(64) uint32_t pair[2 * registers][64];

  explicit Int8Operand(const uint32_t* from) {
    for (int r = 0; r < registers; ++r) {
      for (int lane = 0; lane < 64; lane += kLanes) {
        const auto bytes = load<Int32Vector>(from + 64 * r + lane);
        const auto integer = [&](int element) { return bytes << (24 - 8 * element) >> 24; };
        store(pair[2 * r] + lane, (integer(0) & 0xffff) | integer(1) << 16);
        store(pair[2 * r + 1] + lane, (integer(2) & 0xffff) | integer(3) << 16);
      }
    }
  }
};

template <int registers>
struct Int8Dot {
  using Vector = Int32Vector;
  using OperandA = Int8Operand<registers>;
  using OperandB = Int8Operand<registers>;

  template <int chunks, int stride>
  static void add(const OperandA& a, int a_lane, const OperandB& b, int b_lane, Int32Vector (&c)[4]) {
    Int32Vector sum[4] = {};
    for (int shift = 0; shift < chunks * stride; shift += stride) {
      MFMA_UNROLL for (int pair = 0; pair < 2 * registers; ++pair) {
        const uint32_t* a_pairs = a.pair[pair] + a_lane + shift;
        const auto b_pairs = load<Int32Vector>(b.pair[pair] + b_lane + shift);
        MFMA_UNROLL for (int row = 0; row < 4; ++row) {
          sum[row] += multiply_pairs(splat<Int32Vector>(a_pairs[row]), b_pairs);
        }
      }
    }
    MFMA_UNROLL for (int row = 0; row < 4; ++row) c[row] += sum[row];
  }
};

}  // namespace mi300x::mfma
