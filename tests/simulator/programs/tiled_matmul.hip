// c = a b, with tiles of a and b in LDS and four results a thread.
#include "device.h"

template <class T, class Sum>
__device__ void matmul(const T* a, const T* b, Sum* c, int m, int n, int k) {
  constexpr int tile = 16, results = 4;
  __shared__ T x[tile * results][tile + 1], y[tile][tile];
  const int column = blockIdx.x * tile + threadIdx.x, first_row = blockIdx.y * tile * results;
  Sum sums[results] = {};
  for (int start = 0; start < k; start += tile) {
    for (int r = threadIdx.y; r < tile * results; r += tile) {
      const int row = first_row + r, depth = start + threadIdx.x;
      x[r][threadIdx.x] = row < m && depth < k ? a[row * k + depth] : T(0);
    }
    const int depth = start + threadIdx.y;
    y[threadIdx.y][threadIdx.x] = depth < k && column < n ? b[depth * n + column] : T(0);
    __syncthreads();
    for (int i = 0; i < tile; ++i)
      for (int r = 0; r < results; ++r) sums[r] += Sum(x[threadIdx.y + r * tile][i]) * Sum(y[i][threadIdx.x]);
    __syncthreads();
  }
  for (int r = 0; r < results; ++r) {
    const int row = first_row + threadIdx.y + r * tile;
    if (row < m && column < n) c[row * n + column] = sums[r];
  }
}
KERNEL matmul_f32(const float* a, const float* b, float* c, int m, int n, int k) { matmul(a, b, c, m, n, k); }
KERNEL matmul_f64(const double* a, const double* b, double* c, int m, int n, int k) { matmul(a, b, c, m, n, k); }
KERNEL matmul_f16(const _Float16* a, const _Float16* b, float* c, int m, int n, int k) { matmul(a, b, c, m, n, k); }
KERNEL matmul_i8(const signed char* a, const signed char* b, int* c, int m, int n, int k) { matmul(a, b, c, m, n, k); }
