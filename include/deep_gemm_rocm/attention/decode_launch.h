// Host code that launches a decode kernel and the kernel that combines its partial results.
#pragma once

#include "deep_gemm_rocm/attention/combine_parts.h"
#include "deep_gemm_rocm/hardware/hip_declarations.h"

namespace deep_gemm_rocm {

inline hipError_t launch_decode_kernel(const void* kernel, void** arguments, int64_t workgroups, int threads,
                                       hipStream_t stream) {
  return hipLaunchKernel(kernel, {static_cast<unsigned>(workgroups), 1, 1}, {static_cast<unsigned>(threads), 1, 1},
                         arguments, 0, stream);
}

// `combine` is the kernel that combines partial results. It isn't launched with num_splits = 1.
template <class Shape>
hipError_t launch_decode(const void* kernel, const void* combine, const DecodeArguments* of_call, hipStream_t stream) {
  DecodeArguments args = *of_call;
  unsigned queries = args.tokens_q * args.group;  // that share a head of keys
  unsigned all_queries = args.batch * args.kv_heads * queries;
  if (all_queries == 0) return hipSuccess;
  int row_tiles = ceil_div(static_cast<int>(queries), Shape::kRows);
  unsigned row_tiles_reciprocal = reciprocal(row_tiles);
  unsigned kv_heads_reciprocal = reciprocal(args.kv_heads);
  unsigned deal_reciprocal = reciprocal(args.num_splits > 0 ? args.batch * args.kv_heads : args.num_pieces);
  void* arguments[] = {&args.context_lens, &args.batch,           &args.kv_heads,   &kv_heads_reciprocal,
                       &row_tiles,         &row_tiles_reciprocal, &args.num_splits, &args.num_pieces,
                       &deal_reciprocal,   &args};
  const int64_t workgroups = static_cast<int64_t>(row_tiles) * args.num_pieces;
  const hipError_t status = launch_decode_kernel(kernel, arguments, workgroups, Shape::kThreads, stream);
  if (status != hipSuccess || args.num_splits == 1) return status;
  unsigned queries_reciprocal = reciprocal(queries);
  int fixed_parts = args.split_keys > 0 ? 0 : args.num_splits;
  void* of_combine[] = {&args.parts, &args.split_lse,      &args.split_out, &all_queries,
                        &queries,    &queries_reciprocal,  &fixed_parts,    &args};
  constexpr int kValueDim = Shape::kValueDim;
  const int64_t combining_waves = all_queries * waves_of_query<kValueDim>(are_few<kValueDim>(all_queries));
  return launch_decode_kernel(combine, of_combine, (combining_waves + kCombiningWaves - 1) / kCombiningWaves,
                              kCombiningWaves * kWaveSize, stream);
}

}  // namespace deep_gemm_rocm
