// Widens rows of FP4 or FP8 with a scale for 32 values along K to bf16, for kernels that take rows of one scale only.
#pragma once

#include "deep_gemm_rocm/arithmetic/rounding.h"
#include "deep_gemm_rocm/hardware/global.h"
#include "deep_gemm_rocm/hardware/conditional.h"
#include "deep_gemm_rocm/loading/four_bits.h"
#include "deep_gemm_rocm/tiles/gemm_arguments.h"

namespace deep_gemm_rocm {

// WidenArguments in launch/widen.py is the same structure.
struct WidenArguments {
  const uint8_t* data;
  int64_t group_bytes, row_bytes;  // from a group to the next, and from a row to the next
  Scales scales;                   // as of an operand of four bits
  __bf16* out;                     // contiguous
  const int* group_rows;           // how many rows of each group are widened; null for all
  unsigned vectors, vectors_of_row, rows_of_group;
};

constexpr int kWidenedVector = 8;  // values of a lane
constexpr int kWidenThreads = 256;

// The values of a vector in memory.
template <class T>
struct Narrow {
  using Words = Vector<unsigned, 2>;
  static constexpr int kBytes = 8;

  static DG_DEVICE void widened(Words words, float (&values)[kWidenedVector]) {
#pragma unroll
    for (int i = 0; i < kWidenedVector; ++i) {
      const auto byte = static_cast<uint8_t>(words[i / 4] >> i % 4 * 8);
      values[i] = Storage<T>::widened(byte);
    }
  }
};

template <>
struct Narrow<E2M1> {
  using Words = unsigned;
  static constexpr int kBytes = 4;

  static DG_DEVICE void widened(Words codes, float (&values)[kWidenedVector]) {
    constexpr unsigned kExponentOfHalf = 126u << 23;
#pragma unroll
    for (int i = 0; i < kWidenedVector; ++i) {
      const unsigned code = codes >> i * 4 & 0xf, magnitude = code & 7;
      const float number = __builtin_bit_cast(float, kExponentOfHalf + (magnitude << 22));
      const float value = magnitude < 2 ? 0.5f * static_cast<float>(magnitude) : number;
      values[i] = code & 8 ? -value : value;
    }
  }
};

// One vector of a row. Scale is the scales' type, float or E8M0.
template <class T, class Scale>
DG_DEVICE void widen_rows(const WidenArguments& args, unsigned vector) {
  if (vector >= args.vectors) return;
  const unsigned row = vector / args.vectors_of_row, part = vector % args.vectors_of_row;
  const unsigned group = row / args.rows_of_group, row_of_group = row % args.rows_of_group;
  if (args.group_rows && static_cast<int>(row_of_group) >= ((Global<int>*)args.group_rows)[group]) return;

  using Stored = StoredScale<Scale>;
  const unsigned k = part * kWidenedVector;
  const int64_t place = group * args.scales.group_stride + row_of_group * args.scales.row_stride +
                        k / kScaleBlockK * args.scales.k_block_stride + k % kScaleBlockK / GroupScale<Scale>::kValues;
  const float scale = scale_of(StagedScale<Scale>{((Global<Stored>*)args.scales.data)[place]});

  using From = Narrow<T>;
  const uint8_t* first = args.data + group * args.group_bytes + row_of_group * args.row_bytes + part * From::kBytes;
  float values[kWidenedVector];
  From::widened(*(Global<typename From::Words>*)first, values);
#pragma unroll
  for (float& value : values) value *= scale;
  using Widened = Vector<__bf16, kWidenedVector>;
  ((Global<Widened>*)args.out)[vector] = Storage<__bf16>::rounded<kWidenedVector>(values);
}

}  // namespace deep_gemm_rocm
