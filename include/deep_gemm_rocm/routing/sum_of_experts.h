// Combines the results of a token's experts: their weighted sum.
#pragma once

#include "deep_gemm_rocm/arithmetic/rounding.h"
#include "deep_gemm_rocm/hardware/buffer.h"
#include "deep_gemm_rocm/hardware/hip_declarations.h"
#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

struct SumOfExpertsArguments {
  const __bf16* results;  // rows sorted by expert, `columns` each
  const float* weights;   // [tokens, top_k]
  const int* rows;        // [tokens, top_k], negative for none
  __bf16* out;            // [tokens, columns]
  int64_t out_stride;
  int tokens;
  int columns;  // a multiple of kSumOfExpertsVector
  int top_k;
};

constexpr int kSumOfExpertsVector = 8;  // columns of a lane
constexpr int kSumOfExpertsThreads = 256;
constexpr int kSumOfExpertsColumns = kSumOfExpertsThreads * kSumOfExpertsVector;  // of a workgroup, of one token

// Adds in fp32, in the order of the token's choices. Lane i of each wave loads the i-th choice, all of them at once.
class SumOfExperts {
  using Values = Vector<__bf16, kSumOfExpertsVector>;
  using Sums = Vector<float, kSumOfExpertsVector>;  // for which compilers use packed instructions

 public:
  DG_DEVICE explicit SumOfExperts(const SumOfExpertsArguments& args) : args_(args), token_(workgroup_id()) {
    const unsigned bytes = args.top_k * static_cast<unsigned>(sizeof(int));
    const unsigned of_lane = lane_id() * static_cast<unsigned>(sizeof(int));
    const int row = Buffer{args.rows + token_ * args.top_k, bytes}.load<int>(of_lane);
    const float weight = Buffer{args.weights + token_ * args.top_k, bytes}.load<float>(of_lane);
    row_of_lane_ = lane_id() < args.top_k ? row : -1;
    weight_of_lane_ = row_of_lane_ >= 0 ? weight : 0;
    offset_ = (workgroup_id_y() * kSumOfExpertsColumns + thread_id() * kSumOfExpertsVector) *
              static_cast<unsigned>(sizeof(__bf16));
    row_bytes_ = args.columns * static_cast<unsigned>(sizeof(__bf16));
  }

  // All rows are in flight at once. Loads for choices that a token doesn't have only cost their issue.
  DG_DEVICE void add_up() {
    if (args_.top_k <= 4) add_rows<4>();
    else if (args_.top_k <= 8) add_rows<8>();
    else if (args_.top_k <= 12) add_rows<12>();
    else add_rows<kMostChoices>();
  }

  DG_DEVICE void store() const {
    float sums[kSumOfExpertsVector];
#pragma unroll
    for (int e = 0; e < kSumOfExpertsVector; ++e) sums[e] = sums_[e];
    const auto rounded = Storage<__bf16>::rounded<kSumOfExpertsVector>(sums);
    Buffer{args_.out + token_ * args_.out_stride, row_bytes_}.store(rounded, offset_);
  }

 private:
  static constexpr int kMostChoices = 16;

  template <int kRows>
  DG_DEVICE void add_rows() {
    Values loaded[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = read_lane(row_of_lane_, i);
      const Buffer results{args_.results + static_cast<int64_t>(max(row, 0)) * args_.columns, row_bytes_};
      loaded[i] = results.only_if(row >= 0).template load<Values>(offset_);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Sums weight(read_lane(weight_of_lane_, i));
      sums_ = __builtin_elementwise_fma(weight, __builtin_convertvector(loaded[i], Sums), sums_);
    }
  }

  SumOfExpertsArguments args_;
  int64_t token_;
  int row_of_lane_;
  float weight_of_lane_;
  unsigned offset_;
  unsigned row_bytes_;
  Sums sums_ = {};
};

}  // namespace deep_gemm_rocm
