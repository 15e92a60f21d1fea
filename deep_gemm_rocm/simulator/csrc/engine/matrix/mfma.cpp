#include "mfma.h"

#include <array>

#include "../execution/arithmetic.h"
#include "mfma_float.h"
#include "mfma_float8.h"
#include "mfma_layout.h"
#include "mfma_plain.h"

namespace mi300x {
namespace mfma {
namespace {

// Out of line, so that the compiler moves no arithmetic out of in_default_mode.
#define MFMA_INSTRUCTION __attribute__((noinline)) void

// Computes 4 rows of D in consecutive registers, `columns` lanes of each from element `first` of them on.
template <class Dot, int chunks, int stride, int columns>
void multiply_rows(const MatrixOperands& o, int first, const typename Dot::OperandA& a, int a_lane,
                   const typename Dot::OperandB& b, int b_lane) {
  using Vector = typename Dot::Vector;
  for (int lane = 0; lane < columns; lane += kLanes) {
    Vector c[4];
    MFMA_UNROLL for (int row = 0; row < 4; ++row) c[row] = load<Vector>(o.c + first + lane + 64 * row);
    Dot::template add<chunks, stride>(a, a_lane, b, b_lane + lane, c);
    MFMA_UNROLL for (int row = 0; row < 4; ++row) store(o.d + first + lane + 64 * row, c[row]);
  }
}

// V_MFMA_* of one block of 16x16 or 32x32.
template <class Dot, int size>
MFMA_INSTRUCTION multiply(const MatrixOperands& o) {
  const auto& a = o.cache->get<typename Dot::OperandA>(MatrixOperandCache::Side::a, o.a_register, o.a);
  const auto& b = o.cache->get<typename Dot::OperandB>(MatrixOperandCache::Side::b, o.b_register, o.b);
  for_each_4_rows<size, 1>([&](int first, int a_lane, int b_lane) {
    multiply_rows<Dot, 64 / size, size, size>(o, first, a, a_lane, b, b_lane);
  });
}

// The operands after CBSZ, ABID and BLGP have rearranged the lanes of A and B. A's blocks have block_size lanes.
template <class Dot, int block_size>
struct Arranged {
  Registers<Dot::OperandA::kRegisters> a_registers;
  Registers<Dot::OperandB::kRegisters> b_registers;
  typename Dot::OperandA a;
  typename Dot::OperandB b;

  explicit Arranged(const MatrixOperands& o)
      : a_registers(o.a, [&](int lane) { return broadcast_lane(lane, block_size, o.cbsz, o.abid); }),
        b_registers(o.b, [&](int lane) { return lane_group_lane(lane, o.blgp); }),
        a(a_registers.lanes),
        b(b_registers.lanes) {}
};

// V_MFMA_F32_*_F32 of one block: the only ones of one block with a lane group pattern.
template <class Dot, int size>
MFMA_INSTRUCTION multiply_with_pattern(const MatrixOperands& o) {
  const Arranged<Dot, 64> arranged(o);
  for_each_4_rows<size, 1>([&](int first, int a_lane, int b_lane) {
    multiply_rows<Dot, 64 / size, size, size>(o, first, arranged.a, a_lane, arranged.b, b_lane);
  });
}

// V_MFMA_*_2B_* of 32x32 and V_MFMA_*_4B_* of 16x16.
template <class Dot, int size>
MFMA_INSTRUCTION multiply_blocks(const MatrixOperands& o) {
  const Arranged<Dot, size> arranged(o);
  for_each_4_rows<size, 64 / size>([&](int first, int a_lane, int b_lane) {
    multiply_rows<Dot, 1, size, size>(o, first, arranged.a, a_lane, arranged.b, b_lane);
  });
}

// V_MFMA_*_4X4X*_16B_*: register r of D has the r-th rows of all blocks, 4 lanes each.
template <class Dot>
MFMA_INSTRUCTION multiply_4x4(const MatrixOperands& o) {
  using Vector = typename Dot::Vector;
  const Arranged<Dot, 4> arranged(o);
  for (int lane = 0; lane < 64; lane += 4) {
    const int vector_lane = lane & -kLanes;
    Vector c[4];
    MFMA_UNROLL for (int row = 0; row < 4; ++row) c[row] = load<Vector>(o.c + 64 * row + vector_lane);
    Dot::template add<1, 4>(arranged.a, lane, arranged.b, vector_lane, c);
    for (int row = 0; row < 4; ++row) {
      uint32_t d[kLanes];
      store(d, c[row]);
      std::memcpy(o.d + 64 * row + lane, d + lane - vector_lane, 4 * sizeof *d);
    }
  }
}

// The elements of B that go with those of a row of a sparse A, as a dense operand B.
//
// A has two elements for each 4 consecutive k. SRC2 holds their indices, two bits each, in the same lane as the
// elements. It has more bits than needed: ABID selects a part of them, or CBSZ != 0 the lowest ones.
template <int element_bits, int size>
Registers<2> matching_b(const MatrixOperands& o, int row) {
  constexpr int per_register = 32 / element_bits;
  constexpr int index_bits = 2 * 2 * per_register;
  const int first_index_bit = o.cbsz == 0 ? o.abid * index_bits % 32 : 0;
  Registers<2> dense(o.b, [](int lane) { return lane; });
  for (int lane = 0; lane < 64; ++lane) {
    const uint32_t index = o.index[lane / size * size + row] >> first_index_bit;
    for (int r = 0; r < 2; ++r) {
      uint32_t elements = 0;
      for (int e = per_register - 1; e >= 0; --e) {
        const int i = per_register * r + e;
        const int k = i / 2 * 4 + (index >> 2 * i & 3);
        const uint32_t element = o.b[64 * (k / per_register) + lane] >> element_bits * (k % per_register);
        elements = elements << element_bits | (element & (~0u >> (32 - element_bits)));
      }
      dense.lanes[64 * r + lane] = elements;
    }
  }
  return dense;
}

// V_SMFMAC_*. Approximate except for I8: how the chip groups the products is not published. Here A's elements form the
// same groups as in the dense instruction with as many elements.
template <class Dot, int size>
MFMA_INSTRUCTION multiply_sparse(const MatrixOperands& o) {
  using Vector = typename Dot::Vector;
  const typename Dot::OperandA a(o.a);
  for_each_4_rows<size, 1>([&](int first, int a_lane, int) {
    for (int row = 0; row < 4; ++row) {
      const typename Dot::OperandB b(matching_b<Dot::OperandB::kElementBits, size>(o, a_lane + row).lanes);
      for (int lane = 0; lane < size; lane += kLanes) {
        Vector c[4] = {};
        c[row] = load<Vector>(o.c + first + lane + 64 * row);
        Dot::template add<64 / size, size>(a, a_lane, b, lane, c);
        store(o.d + first + lane + 64 * row, c[row]);
      }
    }
  });
}

// V_MFMA_F64_16X16X4_F64 and V_MFMA_F64_4X4X4_4B_F64; BLGP negates A, B and C. An F64 is in two registers.
template <int size>
MFMA_INSTRUCTION multiply_f64(const MatrixOperands& o) {
  const auto read = [](const uint32_t* registers, int lane, bool negative) {
    const uint64_t bits = registers[lane] | static_cast<uint64_t>(registers[64 + lane]) << 32;
    return bit_cast<double>(bits ^ static_cast<uint64_t>(negative) << 63);
  };
  double a[64], b[64];
  for (int lane = 0; lane < 64; ++lane) {
    a[lane] = read(o.a, lane, o.blgp & 1);
    b[lane] = read(o.b, lane, o.blgp & 2);
  }
  for (int r = 0; r < (size == 16 ? 8 : 2); r += 2) {
    for (int lane = 0; lane < 64; ++lane) {
      // Each 16 lanes of A and B are a k; those of D are a row of each block.
      const int a_lane = lane / 16 + (size == 16 ? 2 * r : lane / 4 % 4 * 4);
      double d = read(o.c + 64 * r, lane, o.blgp & 4);
      for (int k = 0; k < 4; ++k) d = fused_sum(a[16 * k + a_lane], b[16 * k + lane % 16], d);
      const auto bits = bit_cast<uint64_t>(d);
      o.d[64 * r + lane] = static_cast<uint32_t>(bits);
      o.d[64 * r + 64 + lane] = static_cast<uint32_t>(bits >> 32);
    }
  }
}

template <int size>
using Fp8Fp8 = Float8Dot<Fp8, Fp8, size>;
template <int size>
using Fp8Bf8 = Float8Dot<Fp8, Bf8, size>;
template <int size>
using Bf8Fp8 = Float8Dot<Bf8, Fp8, size>;
template <int size>
using Bf8Bf8 = Float8Dot<Bf8, Bf8, size>;

// The matrix core ignores the MODE register: it rounds to nearest and keeps subnormals. The host's control register may
// have the wave's mode when an instruction starts.
template <MatrixInstruction instruction>
void in_default_mode(const MatrixOperands& o) {
  constexpr unsigned kDefault = 0x1f80, kStatus = 0x3f;
  const unsigned control = _mm_getcsr();
  const bool differs = (control & ~kStatus) != kDefault;
  if (differs) _mm_setcsr(kDefault);
  instruction(o);
  if (differs) _mm_setcsr(control);
}

struct Entry {
  Op op;
  MatrixInstruction instruction;
};

constexpr Entry kInstructions[] = {
    {Op::v_mfma_f32_16x16x32_bf8_bf8, in_default_mode<multiply<Bf8Bf8<16>, 16>>},
    {Op::v_mfma_f32_16x16x32_bf8_fp8, in_default_mode<multiply<Bf8Fp8<16>, 16>>},
    {Op::v_mfma_f32_16x16x32_fp8_bf8, in_default_mode<multiply<Fp8Bf8<16>, 16>>},
    {Op::v_mfma_f32_16x16x32_fp8_fp8, in_default_mode<multiply<Fp8Fp8<16>, 16>>},
    {Op::v_mfma_f32_32x32x16_bf8_bf8, in_default_mode<multiply<Bf8Bf8<32>, 32>>},
    {Op::v_mfma_f32_32x32x16_bf8_fp8, in_default_mode<multiply<Bf8Fp8<32>, 32>>},
    {Op::v_mfma_f32_32x32x16_fp8_bf8, in_default_mode<multiply<Fp8Bf8<32>, 32>>},
    {Op::v_mfma_f32_32x32x16_fp8_fp8, in_default_mode<multiply<Fp8Fp8<32>, 32>>},

    {Op::v_mfma_f32_16x16x16_f16, in_default_mode<multiply<FloatDot<F16>, 16>>},
    {Op::v_mfma_f32_32x32x8_f16, in_default_mode<multiply<FloatDot<F16>, 32>>},
    {Op::v_mfma_f32_32x32x4_2b_f16, in_default_mode<multiply_blocks<FloatDot<F16>, 32>>},
    {Op::v_mfma_f32_16x16x4_4b_f16, in_default_mode<multiply_blocks<FloatDot<F16>, 16>>},
    {Op::v_mfma_f32_4x4x4_16b_f16, in_default_mode<multiply_4x4<FloatDot<F16>>>},

    {Op::v_mfma_f32_16x16x16_bf16, in_default_mode<multiply<FloatDot<Bf16>, 16>>},
    {Op::v_mfma_f32_32x32x8_bf16, in_default_mode<multiply<FloatDot<Bf16>, 32>>},
    {Op::v_mfma_f32_32x32x4_2b_bf16, in_default_mode<multiply_blocks<FloatDot<Bf16>, 32>>},
    {Op::v_mfma_f32_16x16x4_4b_bf16, in_default_mode<multiply_blocks<FloatDot<Bf16>, 16>>},
    {Op::v_mfma_f32_4x4x4_16b_bf16, in_default_mode<multiply_4x4<FloatDot<Bf16>>>},

    {Op::v_mfma_f32_16x16x8_xf32, in_default_mode<multiply<FloatDot<Xf32>, 16>>},
    {Op::v_mfma_f32_32x32x4_xf32, in_default_mode<multiply<FloatDot<Xf32>, 32>>},

    {Op::v_mfma_f32_16x16x4_f32, in_default_mode<multiply_with_pattern<Float32Dot, 16>>},
    {Op::v_mfma_f32_32x32x2_f32, in_default_mode<multiply_with_pattern<Float32Dot, 32>>},
    {Op::v_mfma_f32_32x32x1_2b_f32, in_default_mode<multiply_blocks<Float32Dot, 32>>},
    {Op::v_mfma_f32_16x16x1_4b_f32, in_default_mode<multiply_blocks<Float32Dot, 16>>},
    {Op::v_mfma_f32_4x4x1_16b_f32, in_default_mode<multiply_4x4<Float32Dot>>},

    {Op::v_mfma_f64_16x16x4_f64, in_default_mode<multiply_f64<16>>},
    {Op::v_mfma_f64_4x4x4_4b_f64, in_default_mode<multiply_f64<4>>},

    {Op::v_mfma_i32_16x16x32_i8, in_default_mode<multiply<Int8Dot<2>, 16>>},
    {Op::v_mfma_i32_32x32x16_i8, in_default_mode<multiply<Int8Dot<2>, 32>>},
    {Op::v_mfma_i32_32x32x4_2b_i8, in_default_mode<multiply_blocks<Int8Dot<1>, 32>>},
    {Op::v_mfma_i32_16x16x4_4b_i8, in_default_mode<multiply_blocks<Int8Dot<1>, 16>>},
    {Op::v_mfma_i32_4x4x4_16b_i8, in_default_mode<multiply_4x4<Int8Dot<1>>>},

    {Op::v_smfmac_f32_16x16x64_bf8_bf8, in_default_mode<multiply_sparse<Bf8Bf8<16>, 16>>},
    {Op::v_smfmac_f32_16x16x64_bf8_fp8, in_default_mode<multiply_sparse<Bf8Fp8<16>, 16>>},
    {Op::v_smfmac_f32_16x16x64_fp8_bf8, in_default_mode<multiply_sparse<Fp8Bf8<16>, 16>>},
    {Op::v_smfmac_f32_16x16x64_fp8_fp8, in_default_mode<multiply_sparse<Fp8Fp8<16>, 16>>},
    {Op::v_smfmac_f32_32x32x32_bf8_bf8, in_default_mode<multiply_sparse<Bf8Bf8<32>, 32>>},
    {Op::v_smfmac_f32_32x32x32_bf8_fp8, in_default_mode<multiply_sparse<Bf8Fp8<32>, 32>>},
    {Op::v_smfmac_f32_32x32x32_fp8_bf8, in_default_mode<multiply_sparse<Fp8Bf8<32>, 32>>},
    {Op::v_smfmac_f32_32x32x32_fp8_fp8, in_default_mode<multiply_sparse<Fp8Fp8<32>, 32>>},
    {Op::v_smfmac_f32_16x16x32_f16, in_default_mode<multiply_sparse<FloatDot<F16>, 16>>},
    {Op::v_smfmac_f32_32x32x16_f16, in_default_mode<multiply_sparse<FloatDot<F16>, 32>>},
    {Op::v_smfmac_f32_16x16x32_bf16, in_default_mode<multiply_sparse<FloatDot<Bf16>, 16>>},
    {Op::v_smfmac_f32_32x32x16_bf16, in_default_mode<multiply_sparse<FloatDot<Bf16>, 32>>},
    {Op::v_smfmac_i32_16x16x64_i8, in_default_mode<multiply_sparse<Int8Dot<2>, 16>>},
    {Op::v_smfmac_i32_32x32x32_i8, in_default_mode<multiply_sparse<Int8Dot<2>, 32>>},
};

}  // namespace
}  // namespace mfma

MatrixInstruction find_matrix_instruction(Op op) {
  static const auto table = [] {
    std::array<MatrixInstruction, size_t(Op::count)> instructions{};
    for (const mfma::Entry& entry : mfma::kInstructions) instructions[size_t(entry.op)] = entry.instruction;
    return instructions;
  }();
  return table[size_t(op)];
}

}  // namespace mi300x
