// f32; every row of the result is one operation. The second kernel has the functions that compilers expand themselves.
#include "device.h"

KERNEL floats(const float* x, const float* y, const float* z, float* out, int n) {
#pragma clang fp contract(off)
  const int i = global_thread();
  if (i >= n) return;
  const float a = x[i], b = y[i], c = z[i];
  out[0 * n + i] = a + b;
  out[1 * n + i] = a * b;
  out[2 * n + i] = a / b;
  out[3 * n + i] = __builtin_sqrtf(__builtin_fabsf(a));
  out[4 * n + i] = __builtin_fmaf(a, b, c);
  out[5 * n + i] = __builtin_fminf(a, b);
  out[6 * n + i] = __builtin_fmaxf(a, b);
  out[7 * n + i] = __builtin_floorf(a);
  out[8 * n + i] = __builtin_ceilf(a);
  out[9 * n + i] = __builtin_truncf(a);
  out[10 * n + i] = __builtin_rintf(a);
  out[11 * n + i] = __builtin_roundf(a);
  out[12 * n + i] = float(_Float16(a));
  out[13 * n + i] = __builtin_copysignf(a, b);
  out[14 * n + i] = __builtin_ldexpf(a, int(c));
  out[15 * n + i] = float(i64(a)) + float(u32(b < 0 ? -b : b));
}

KERNEL functions(const float* x, float* out, int n) {
  const int i = global_thread();
  if (i >= n) return;
  const float a = x[i], positive = __builtin_fabsf(a);
  out[0 * n + i] = __builtin_expf(a);
  out[1 * n + i] = __builtin_exp2f(a);
  out[2 * n + i] = __builtin_logf(positive);
  out[3 * n + i] = __builtin_log2f(positive);
  out[4 * n + i] = __builtin_log10f(positive);
  out[5 * n + i] = 1.0f / __builtin_sqrtf(positive);
}

KERNEL instructions(const float* x, float* out, int n) {
  const int i = global_thread();
  if (i >= n) return;
  const float a = x[i], positive = __builtin_fabsf(a);
  out[0 * n + i] = __builtin_amdgcn_rcpf(a);
  out[1 * n + i] = __builtin_amdgcn_rsqf(positive);
  out[2 * n + i] = __builtin_amdgcn_sqrtf(positive);
  out[3 * n + i] = __builtin_amdgcn_exp2f(a);
  out[4 * n + i] = __builtin_amdgcn_logf(positive);
  out[5 * n + i] = __builtin_amdgcn_sinf(a);
  out[6 * n + i] = __builtin_amdgcn_cosf(a);
  out[7 * n + i] = __builtin_amdgcn_fractf(a);
}
