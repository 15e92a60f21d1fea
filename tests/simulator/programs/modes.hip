// Rounding and subnormals as the MODE register has them.
#include "device.h"

// hwreg(HW_REG_MODE, 0, 8): rounding of f32 and of f16 and f64, two bits each, then their subnormals likewise.
#define SET_MODE(bits) __builtin_amdgcn_s_setreg(1 | 0 << 6 | 7 << 11, bits)

template <class T>
__device__ void compute(const T* x, const T* y, T* out, int n, u32 mode) {
  const int i = global_thread();
  if (i >= n) return;
  volatile T a = x[i], b = y[i];
  SET_MODE(__builtin_amdgcn_readfirstlane(mode));
  volatile T sum = a + b, product = a * b;
  SET_MODE(0xF0);
  out[i] = sum;
  out[n + i] = product;
}
KERNEL modes_f32(const float* x, const float* y, float* out, int n, u32 mode) { compute(x, y, out, n, mode); }
KERNEL modes_f64(const double* x, const double* y, double* out, int n, u32 mode) { compute(x, y, out, n, mode); }
KERNEL modes_f16(const _Float16* x, const _Float16* y, _Float16* out, int n, u32 mode) { compute(x, y, out, n, mode); }
