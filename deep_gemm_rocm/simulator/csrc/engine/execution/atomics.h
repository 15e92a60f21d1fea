// The functions of read-modify-write instructions, for LDS and global memory.
#pragma once

#include <algorithm>

#include "half_arithmetic.h"

namespace mi300x {
namespace atomic {

template <class T> T add(T old, T data) { return old + data; }
template <class T> T subtract(T old, T data) { return old - data; }
template <class T> T subtract_reversed(T old, T data) { return data - old; }
template <class T> T increment(T old, T limit) { return old >= limit ? T(0) : T(old + 1); }
template <class T> T decrement(T old, T limit) { return old == 0 || old > limit ? limit : T(old - 1); }
template <class T> T minimum(T old, T data) { return std::min(old, data); }
template <class T> T maximum(T old, T data) { return std::max(old, data); }
template <class T> T bit_and(T old, T data) { return old & data; }
template <class T> T bit_or(T old, T data) { return old | data; }
template <class T> T bit_xor(T old, T data) { return old ^ data; }
template <class T> T exchange(T, T data) { return data; }

inline uint32_t add_f16_pair(uint32_t old, uint32_t data) {
  const Half low = Half::from(f16_to_f32(uint16_t(old)) + f16_to_f32(uint16_t(data)));
  const Half high = Half::from(f16_to_f32(uint16_t(old >> 16)) + f16_to_f32(uint16_t(data >> 16)));
  return low.bits | uint32_t(high.bits) << 16;
}
inline uint16_t add_bf16(uint16_t a, uint16_t b) {
  const uint32_t sum = bit_cast<uint32_t>(bf16_to_f32(a) + bf16_to_f32(b));
  if ((sum & 0x7FFFFFFF) > 0x7F800000) return uint16_t(sum >> 16 | 0x40);
  return uint16_t((sum + 0x7FFF + (sum >> 16 & 1)) >> 16);
}
inline uint32_t add_bf16_pair(uint32_t old, uint32_t data) {
  return add_bf16(uint16_t(old), uint16_t(data)) | uint32_t(add_bf16(uint16_t(old >> 16), uint16_t(data >> 16))) << 16;
}

}  // namespace atomic
}  // namespace mi300x
