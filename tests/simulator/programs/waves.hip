// What lanes of a wave tell one another.
#include "device.h"

KERNEL votes(const int* x, u64* masks, int* flags, int n) {
  const int i = global_thread();
  const int value = i < n ? x[i] : 0;
  if (value % 5 == 0) return;  // the others go on
  masks[i] = __ballot(value % 2);
  flags[i] = __any(value % 7 == 1) | __all(value > 0) << 1 | (__builtin_amdgcn_readfirstlane(value) == value) << 2;
}

// Lanes with the same key find one another, a key at a time.
KERNEL matches(const int* keys, u64* masks, int* ranks) {
  const int i = global_thread(), key = keys[i];
  for (u64 remaining = __ballot(true); remaining != 0;) {
    const u64 mask = __ballot(key == __shfl(key, __builtin_ctzll(remaining)));
    if (mask >> lane_id() & 1) {
      masks[i] = mask;
      ranks[i] = __builtin_amdgcn_mbcnt_hi(u32(mask >> 32), __builtin_amdgcn_mbcnt_lo(u32(mask), 0));
    }
    remaining &= ~mask;
  }
}

KERNEL moves(const int* x, int* out, int n) {
  const int i = global_thread(), value = x[i];
  out[0 * n + i] = __builtin_amdgcn_ds_swizzle(value, 0x041F);                   // lanes in pairs
  out[1 * n + i] = __builtin_amdgcn_update_dpp(-1, value, 0x111, 0xF, 0xF, false);  // row_shr:1
  out[2 * n + i] = __builtin_amdgcn_update_dpp(-1, value, 0x142, 0xA, 0xF, false);  // row_bcast:15
  out[3 * n + i] = __builtin_amdgcn_mov_dpp(value, 0x1B, 0xF, 0xF, true);        // quad_perm:[3,2,1,0]
  out[4 * n + i] = __builtin_amdgcn_ds_permute(4 * ((i * 5) & 63), value);
  out[5 * n + i] = __shfl(value, 63 - int(lane_id()));
  out[6 * n + i] = __builtin_amdgcn_readlane(value, 17);
  u64 wide = u64(value) << 32 | u32(i);
  out[7 * n + i] = int(__shfl_xor(wide, 9) >> 32) + int(__shfl_xor(wide, 9));
}
