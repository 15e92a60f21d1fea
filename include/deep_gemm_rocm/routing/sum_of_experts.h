// Adds up what experts computed for each token.
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
};

constexpr int kSumOfExpertsVector = 8;  // columns of a lane
constexpr int kSumOfExpertsThreads = 256;
constexpr int kSumOfExpertsColumns = kSumOfExpertsThreads * kSumOfExpertsVector;  // of a workgroup, of one token

// Adds in fp32, in the order of the token's choices. Lane i of each wave loads the i-th choice, all of them at once, and
// all rows are in flight at once.
template <int kTopK>
DG_DEVICE void add_up_experts(const SumOfExpertsArguments& args) {
  using Values = Vector<__bf16, kSumOfExpertsVector>;
  const int64_t token = workgroup_id();
  constexpr unsigned kChoicesBytes = kTopK * static_cast<unsigned>(sizeof(int));
  const unsigned of_lane = lane_id() * static_cast<unsigned>(sizeof(int));
  const int row_of_lane = Buffer{args.rows + token * kTopK, kChoicesBytes}.load<int>(of_lane);
  const float weight_of_lane = Buffer{args.weights + token * kTopK, kChoicesBytes}.load<float>(of_lane);
  const unsigned offset = (workgroup_id_y() * kSumOfExpertsColumns + thread_id() * kSumOfExpertsVector) *
                          static_cast<unsigned>(sizeof(__bf16));
  const unsigned row_bytes = args.columns * static_cast<unsigned>(sizeof(__bf16));
  Values loaded[kTopK];
  bool exists[kTopK];
#pragma unroll
  for (int i = 0; i < kTopK; ++i) {
    const int row = read_lane(row_of_lane, i);
    exists[i] = row >= 0;
    const Buffer results{args.results + static_cast<int64_t>(max(row, 0)) * args.columns, row_bytes};
    loaded[i] = results.only_if(exists[i]).template load<Values>(offset);
  }
  float sums[kSumOfExpertsVector] = {};
#pragma unroll
  for (int i = 0; i < kTopK; ++i) {
    const float weight = read_lane(weight_of_lane, i);
#pragma unroll
    for (int e = 0; e < kSumOfExpertsVector; ++e) {
      const float product = weight * static_cast<float>(loaded[i][e]);
      sums[e] += exists[i] ? product : 0;
    }
  }
  const auto rounded = Storage<__bf16>::rounded<kSumOfExpertsVector>(sums);
  Buffer{args.out + token * args.out_stride, row_bytes}.store(rounded, offset);
}

}  // namespace deep_gemm_rocm
