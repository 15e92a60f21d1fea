// Narrow and unaligned loads and stores, in memory, LDS and scratch.
#include "device.h"

struct __attribute__((packed)) Packed {
  u8 a;
  short b;
  int c;
  i64 d;
  u16 e;
};
static_assert(sizeof(Packed) == 17);

KERNEL unpack(const Packed* x, i64* out, int n) {
  const int i = global_thread();
  if (i >= n) return;
  const Packed p = x[i];
  const i64 values[] = {p.a, p.b, p.c, p.d, p.e};
  for (int j = 0; j < 5; ++j) out[5 * i + j] = values[j];
}
KERNEL pack(const i64* x, Packed* out, int n) {
  const int i = global_thread();
  if (i < n) out[i] = {u8(x[5 * i]), short(x[5 * i + 1]), int(x[5 * i + 2]), x[5 * i + 3], u16(x[5 * i + 4])};
}

// Halves of a register loaded and stored apart.
KERNEL halves(const u16* x, const signed char* y, u16* out, int n) {
  __shared__ u16 local[256];
  __shared__ signed char small[256];
  const int i = global_thread(), t = threadIdx.x;
  if (i < n) {
    local[t] = x[i];
    small[t] = y[i];
  }
  __syncthreads();
  const int other = t ^ 1;
  if (i >= n || (i ^ 1) >= n) return;
  typedef u16 pair __attribute__((ext_vector_type(2)));
  const pair from_lds = {local[t], local[other]}, signs = {u16(small[other]), u16(u8(small[t]))};
  pair from_memory = {x[i], u16(y[i ^ 1])};
  from_memory += from_lds * signs;
  out[2 * i] = from_memory.x;
  out[2 * i + 1] = from_memory.y;
}

// A byte-wise state machine in scratch: RC4's key schedule and stream.
KERNEL rc4(const u8* keys, int key_bytes, u8* out, int length, int n) {
  const int i = global_thread();
  if (i >= n) return;
  u8 state[256];
  for (int a = 0; a < 256; ++a) state[a] = u8(a);
  u8 j = 0;
  for (int a = 0; a < 256; ++a) {
    j = u8(j + state[a] + keys[i * key_bytes + a % key_bytes]);
    const u8 kept = state[a];
    state[a] = state[j];
    state[j] = kept;
  }
  u8 a = 0;
  j = 0;
  for (int k = 0; k < length; ++k) {
    a = u8(a + 1);
    j = u8(j + state[a]);
    const u8 kept = state[a];
    state[a] = state[j];
    state[j] = kept;
    out[i * length + k] = state[u8(state[a] + state[j])];
  }
}
