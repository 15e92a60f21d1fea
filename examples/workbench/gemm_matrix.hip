#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>

using half4 = _Float16 __attribute__((ext_vector_type(4)));
using float16 = float __attribute__((ext_vector_type(16)));

// C[m, n] = sum over k of A[m, k] * B[n, k], all row-major. M, N and K are multiples of 64.
// Each of four waves computes 32 x 32 results with matrix instructions, with operands straight from memory.
__global__ void __launch_bounds__(256) gemm(const __half* A, const __half* B, float* C, int M, int N, int K) {
  const int lane = threadIdx.x % 64, wave = threadIdx.x / 64;
  const int m = blockIdx.y * 64 + wave / 2 * 32, n = blockIdx.x * 64 + wave % 2 * 32;
  // A lane holds four neighbours in K of one row of A and of one row of B.
  const half4* a = reinterpret_cast<const half4*>(A + (m + lane % 32) * K + lane / 32 * 4);
  const half4* b = reinterpret_cast<const half4*>(B + (n + lane % 32) * K + lane / 32 * 4);
  float16 sum = 0;
  for (int k = 0; k < K / 4; k += 16) {
    half4 rows[8], columns[8];  // of 64 in K: all loads are under way before the first one is waited for
#pragma unroll
    for (int i = 0; i < 8; ++i) rows[i] = a[k + 2 * i], columns[i] = b[k + 2 * i];
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = __builtin_amdgcn_mfma_f32_32x32x8f16(rows[i], columns[i], sum, 0, 0, 0);
  }
  // Register i of a lane has row 8 (i / 4) + 4 (lane / 32) + i % 4 and column lane % 32.
#pragma unroll
  for (int i = 0; i < 16; ++i) C[(m + i / 4 * 8 + lane / 32 * 4 + i % 4) * N + n + lane % 32] = sum[i];
}
