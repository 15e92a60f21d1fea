// The launches of a decode kernel, on the host.
#pragma once

#include "deep_gemm_rocm/attention/combine_parts.h"
#include "deep_gemm_rocm/hardware/hip_declarations.h"

namespace deep_gemm_rocm {

using DecodeKernel = void(const DecodeArguments);

inline hipError_t launch_decode_kernel(DecodeKernel* kernel, const DecodeArguments* args, int64_t workgroups,
                                       int threads, hipStream_t stream) {
  void* arguments[] = {const_cast<DecodeArguments*>(args)};
  return hipLaunchKernel(reinterpret_cast<const void*>(kernel), {static_cast<unsigned>(workgroups), 1, 1},
                         {static_cast<unsigned>(threads), 1, 1}, arguments, 0, stream);
}

// `combine` combines the parts of the keys, if there are any.
template <class Shape>
hipError_t launch_decode(DecodeKernel* kernel, DecodeKernel* combine, const DecodeArguments* args,
                         hipStream_t stream) {
  const int64_t queries = static_cast<int64_t>(args->batch) * args->tokens_q * args->heads;
  if (queries == 0) return hipSuccess;
  const int row_tiles = ceil_div(args->tokens_q * args->group, Shape::kRows);
  const int64_t workgroups = static_cast<int64_t>(row_tiles) * args->num_pieces;
  const hipError_t status = launch_decode_kernel(kernel, args, workgroups, Shape::kThreads, stream);
  if (status != hipSuccess || args->num_splits == 1) return status;
  const int64_t combining_waves = queries * waves_of_query<Shape::kValueDim>(are_few(queries));
  return launch_decode_kernel(combine, args, (combining_waves + kCombiningWaves - 1) / kCombiningWaves,
                              kCombiningWaves * kWaveSize, stream);
}

}  // namespace deep_gemm_rocm
