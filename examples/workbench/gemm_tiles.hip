#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>

// C[m, n] = sum over k of A[m, k] * B[n, k], all row-major. M, N and K are multiples of 16.
__global__ void gemm(const __half* A, const __half* B, float* C, int M, int N, int K) {
  __shared__ float a[16][16], b[16][16];
  const int x = threadIdx.x, y = threadIdx.y;
  const int m = blockIdx.y * 16, n = blockIdx.x * 16;
  float sum = 0;
  for (int k = 0; k < K; k += 16) {
    a[y][x] = __half2float(A[(m + y) * K + k + x]);
    b[y][x] = __half2float(B[(n + y) * K + k + x]);
    __syncthreads();
    for (int i = 0; i < 16; ++i) sum += a[y][i] * b[x][i];
    __syncthreads();
  }
  C[(m + y) * N + n + x] = sum;
}
