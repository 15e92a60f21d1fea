// Where a tile's columns are in the output, relative to where its first column would be without gaps.
#pragma once

#include "deep_gemm_rocm/tiles/gemm_arguments.h"
#include "deep_gemm_rocm/hardware/hip_declarations.h"

namespace deep_gemm_rocm {

struct ColumnsInOrder {
  ColumnsInOrder() = default;
  DG_DEVICE ColumnsInOrder(const GemmArguments&, int) {}

  DG_DEVICE int position(int column) const { return column; }

  // Whether vectors of kVector columns have no gaps, and start at multiples of their size.
  template <int kVector>
  DG_DEVICE bool keep_vectors() const {
    return true;
  }
};

// Heads with a gap of `mid` columns between their left and right ones.
class ColumnsOfHeads {
 public:
  DG_DEVICE ColumnsOfHeads(const GemmArguments& args, int first) : heads_(args.heads), first_(first) {}

  DG_DEVICE int position(int column) const {
    const unsigned gaps = static_cast<unsigned>(first_ + column + heads_.right) / (heads_.left + heads_.right);
    return column + static_cast<int>(gaps) * heads_.mid;
  }

  template <int kVector>
  DG_DEVICE bool keep_vectors() const {
    return (heads_.left | heads_.mid | heads_.right) % kVector == 0;
  }

 private:
  HeadSplits heads_;
  int first_;
};

}  // namespace deep_gemm_rocm
