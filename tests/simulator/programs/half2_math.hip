// Pairs of f16 and single ones; every row of the result is one operation.
#include "device.h"

KERNEL pairs(const half2* x, const half2* y, const half2* z, half2* out, int n) {
  const int i = global_thread();
  if (i >= n) return;
  const half2 a = x[i], b = y[i], c = z[i];
  out[0 * n + i] = a + b;
  out[1 * n + i] = a - b;
  out[2 * n + i] = a * b;
  out[3 * n + i] = __builtin_elementwise_fma(a, b, c);
  out[4 * n + i] = __builtin_elementwise_fma(-a, b.yx, c);
  out[5 * n + i] = __builtin_elementwise_min(a, b);
  out[6 * n + i] = __builtin_elementwise_max(a, b);
  out[7 * n + i] = __builtin_elementwise_abs(a);
  out[8 * n + i] = a / b;
  out[9 * n + i] = __builtin_elementwise_sqrt(__builtin_elementwise_abs(a));
  out[10 * n + i] = __builtin_elementwise_floor(a);
  out[11 * n + i] = __builtin_elementwise_rint(a * half2(8));
}

KERNEL mixed(const _Float16* x, const _Float16* y, const float* z, float* sums, _Float16* halves, int* integers, int n) {
  const int i = global_thread();
  if (i >= n) return;
  sums[i] = float(x[i]) * float(y[i]) + z[i];
  halves[i] = _Float16(__builtin_fmaf(x[i], y[i], z[i]));
  integers[i] = int(x[i] * _Float16(100)) + (x[i] < y[i] ? 1000000 : 0) + (x[i] == x[i] ? 0 : 2000000);
}
