// Seven points in three dimensions; a block holds a slab with its halo in LDS.
#include "device.h"

__constant__ float weights[2] = {0.5f, 0.0625f};  // of the point itself and of its neighbours

KERNEL stencil(const float* x, float* y, int nx, int ny, int nz) {
  __shared__ float plane[10][18];
  const int i = blockIdx.x * 16 + threadIdx.x, j = blockIdx.y * 8 + threadIdx.y;
  const bool inside = i < nx && j < ny;
  const auto at = [&](int a, int b, int c) {
    return a < 0 || b < 0 || c < 0 || a >= nx || b >= ny || c >= nz ? 0.0f : x[(c * ny + b) * nx + a];
  };
  float below = 0, here = at(i, j, 0);
  for (int k = 0; k < nz; ++k) {
    const float above = at(i, j, k + 1);
    const int a = threadIdx.x + 1, b = threadIdx.y + 1;
    plane[b][a] = here;
    if (threadIdx.x == 0) plane[b][0] = at(i - 1, j, k);
    if (threadIdx.x == 15) plane[b][17] = at(i + 1, j, k);
    if (threadIdx.y == 0) plane[0][a] = at(i, j - 1, k);
    if (threadIdx.y == 7) plane[9][a] = at(i, j + 1, k);
    __syncthreads();
    const float around = plane[b][a - 1] + plane[b][a + 1] + plane[b - 1][a] + plane[b + 1][a] + below + above;
    if (inside) y[(k * ny + j) * nx + i] = weights[0] * here + weights[1] * around;
    __syncthreads();
    below = here;
    here = above;
  }
}
