// SHA-256 of one block of 55 bytes or fewer, and CRC-32 with a table: rotations, byte orders, lookups in constant memory.
#include "device.h"

__constant__ u32 round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

__device__ u32 rotated(u32 x, int by) { return x >> by | x << (32 - by); }

KERNEL sha256(const u8* messages, int length, u32* digests, int n) {
  const int t = global_thread();
  if (t >= n) return;
  u8 block[64] = {};
  for (int i = 0; i < length; ++i) block[i] = messages[t * length + i];
  block[length] = 0x80;
  block[62] = u8(length >> 5);
  block[63] = u8(length << 3);
  u32 w[64];
  for (int i = 0; i < 16; ++i)
    w[i] = u32(block[4 * i]) << 24 | u32(block[4 * i + 1]) << 16 | u32(block[4 * i + 2]) << 8 | block[4 * i + 3];
  for (int i = 16; i < 64; ++i) {
    const u32 a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (rotated(a, 7) ^ rotated(a, 18) ^ a >> 3) + w[i - 7] + (rotated(b, 17) ^ rotated(b, 19) ^ b >> 10);
  }
  const u32 start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  u32 s[8];
  for (int i = 0; i < 8; ++i) s[i] = start[i];
  for (int i = 0; i < 64; ++i) {
    const u32 e = s[4], a = s[0];
    const u32 first = s[7] + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + ((e & s[5]) ^ (~e & s[6])) +
                      round_constants[i] + w[i];
    const u32 second = (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
    for (int j = 7; j > 0; --j) s[j] = s[j - 1];
    s[4] += first;
    s[0] = first + second;
  }
  for (int i = 0; i < 8; ++i) digests[8 * t + i] = __builtin_bswap32(start[i] + s[i]);
}

KERNEL crc32(const u8* messages, int length, u32* checks, int n) {
  __shared__ u32 table[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) {
    u32 value = i;
    for (int bit = 0; bit < 8; ++bit) value = value & 1 ? value >> 1 ^ 0xEDB88320u : value >> 1;
    table[i] = value;
  }
  __syncthreads();
  const int t = global_thread();
  if (t >= n) return;
  u32 check = ~0u;
  for (int i = 0; i < length; ++i) check = table[(check ^ messages[t * length + i]) & 255] ^ check >> 8;
  checks[t] = ~check;
}
