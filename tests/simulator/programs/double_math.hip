// f64; every row of the result is one operation.
#include "device.h"

KERNEL doubles(const double* x, const double* y, const double* z, double* out, int n) {
#pragma clang fp contract(off)
  const int i = global_thread();
  if (i >= n) return;
  const double a = x[i], b = y[i], c = z[i];
  out[0 * n + i] = a + b;
  out[1 * n + i] = a * b;
  out[2 * n + i] = a / b;
  out[3 * n + i] = __builtin_sqrt(__builtin_fabs(a));
  out[4 * n + i] = __builtin_fma(a, b, c);
  out[5 * n + i] = __builtin_fmin(a, b);
  out[6 * n + i] = __builtin_fmax(a, b);
  out[7 * n + i] = __builtin_floor(a);
  out[8 * n + i] = __builtin_ceil(a);
  out[9 * n + i] = __builtin_trunc(a);
  out[10 * n + i] = __builtin_rint(a);
  out[11 * n + i] = __builtin_round(a);
  out[12 * n + i] = double(float(a));
  out[13 * n + i] = __builtin_copysign(a, b);
  out[14 * n + i] = a - b * __builtin_trunc(a / b);
  out[15 * n + i] = __builtin_ldexp(a, int(c));
}
