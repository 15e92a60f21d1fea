// The register layout of the matrix-core instructions (MFMA) that mfma.h wraps, from AMD's matrix instruction
// calculator for CDNA3. Plain constexpr, so that tests can use it on the host.
//
// Every operand is 8 bytes a lane, whatever its element type: lane l holds row l % kRows of A (column l % kRows of B)
// and the group l / kRows of consecutive k. D = A·B + C is fp32.
//
//   kRows  element      k of an instruction  k held by lane l        D element e of lane l
//   16     fp8, bf8     32                   8·(l/16) + 0…7          row 4·(l/16) + e,               column l % 16
//   16     f16, bf16    16                   4·(l/16) + 0…3          the same
//   16     fp32          8                   2·(l/16) + 0…1          the same
//   32     fp8, bf8     16                   8·(l/32) + 0…7          row 8·(e/4) + 4·(l/32) + e%4,   column l % 32
//   32     f16, bf16     8                   4·(l/32) + 0…3          the same
//   32     fp32          4                   2·(l/32) + 0…1          the same
#pragma once

#include "deep_gemm_rocm/hardware/types.h"

namespace deep_gemm_rocm {

template <int kRows_>
struct MfmaShape {
  static constexpr int kRows = kRows_;
  static constexpr int kLaneGroups = kWaveSize / kRows;
  static constexpr int kElements = kRows * kRows / kWaveSize;

  // The lane group and the element of its lanes that hold row `row` of D.
  static constexpr int group_of_row(int row) { return row / 4 % kLaneGroups; }
  static constexpr int element_of_row(int row) { return row / (4 * kLaneGroups) * 4 + row % 4; }
  // The row of D in an element of a lane group.
  static constexpr int row_of_element(int group, int element) {
    return element / 4 * 4 * kLaneGroups + group * 4 + element % 4;
  }
};

}  // namespace deep_gemm_rocm
