// 64 and 128 bits; every row of the result is one operation.
#include "device.h"

KERNEL signed_math(const i64* x, const i64* y, i64* out, int n) {
  const int i = global_thread();
  if (i >= n) return;
  const i64 a = x[i], b = y[i];
  out[0 * n + i] = a + b;
  out[1 * n + i] = a - b;
  out[2 * n + i] = a * b;
  out[3 * n + i] = a / b;
  out[4 * n + i] = a % b;
  out[5 * n + i] = i64((__int128(a) * b) >> 64);
  out[6 * n + i] = a >> (b & 63);
  out[7 * n + i] = a < b ? a : b;
  out[8 * n + i] = -a ^ ~b;
  out[9 * n + i] = a / 1000003 + b % 97;
  i64 sum;
  out[10 * n + i] = __builtin_add_overflow(a, b, &sum);
  out[11 * n + i] = __builtin_mul_overflow(a, b, &sum);
}

KERNEL unsigned_math(const u64* x, const u64* y, u64* out, int n) {
  const int i = global_thread();
  if (i >= n) return;
  const u64 a = x[i], b = y[i];
  out[0 * n + i] = a / b;
  out[1 * n + i] = a % b;
  out[2 * n + i] = u64((unsigned __int128)(a) * b >> 64);
  out[3 * n + i] = a << (b & 63);
  out[4 * n + i] = a >> (b & 63);
  out[5 * n + i] = __builtin_clzll(a | 1);
  out[6 * n + i] = __builtin_ctzll(a | 1ull << 63);
  out[7 * n + i] = __builtin_popcountll(a);
  out[8 * n + i] = __builtin_bitreverse64(a);
  out[9 * n + i] = __builtin_bswap64(a);
  out[10 * n + i] = __builtin_rotateleft64(a, b);
  out[11 * n + i] = a > b ? a - b : b - a;
}

KERNEL floats_of_integers(const i64* x, const u64* y, double* doubles, float* floats, int n) {
  const int i = global_thread();
  if (i >= n) return;
  doubles[i] = double(x[i]);
  doubles[n + i] = double(y[i]);
  floats[i] = float(x[i]);
  floats[n + i] = float(y[i]);
}
KERNEL integers_of_floats(const double* x, const float* y, i64* signed_ones, u64* unsigned_ones, int n) {
  const int i = global_thread();
  if (i >= n) return;
  signed_ones[i] = i64(x[i]);
  signed_ones[n + i] = i64(y[i]);
  unsigned_ones[i] = u64(x[i] < 0 ? -x[i] : x[i]);
  unsigned_ones[n + i] = u64(y[i] < 0 ? -y[i] : y[i]);
}
