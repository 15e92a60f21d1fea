// Transfers between memory and registers for all 64 lanes at once.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "wave.h"

namespace mi300x {

// Turns the 4 dwords of each of 4 lanes into 4 rows of 4 lanes, or back.
inline void transpose(__m128i (&vectors)[4]) {
  const __m128i low01 = _mm_unpacklo_epi32(vectors[0], vectors[1]), high01 = _mm_unpackhi_epi32(vectors[0], vectors[1]);
  const __m128i low23 = _mm_unpacklo_epi32(vectors[2], vectors[3]), high23 = _mm_unpackhi_epi32(vectors[2], vectors[3]);
  vectors[0] = _mm_unpacklo_epi64(low01, low23);
  vectors[1] = _mm_unpackhi_epi64(low01, low23);
  vectors[2] = _mm_unpacklo_epi64(high01, high23);
  vectors[3] = _mm_unpackhi_epi64(high01, high23);
}

// True where the lanes' dwords are contiguous.
template <class Address>
bool is_contiguous(Address address) {
  const uint64_t first = reinterpret_cast<uint64_t>(address(0));
  uint64_t difference = 0;
  for (int l = 0; l < lanes; ++l) difference |= reinterpret_cast<uint64_t>(address(l)) - first - 4 * uint64_t(l);
  return difference == 0;
}

// Loads `dwords` dwords from address(l) to lane l of consecutive rows, for the lanes in `exec`. The rows may be those
// that the addresses are computed from.
template <int dwords, class Address>
void gather(uint64_t exec, Address address, uint32_t* rows) {
  const auto load_lane = [&](int l) {
    uint32_t values[dwords];
    memcpy(values, address(l), sizeof values);
    for (int i = 0; i < dwords; ++i) rows[i * lanes + l] = values[i];
  };
  if (exec != ~0ull) {
    for (; exec != 0; exec &= exec - 1) load_lane(__builtin_ctzll(exec));
  } else if constexpr (dwords > 1) {
    for (int l = 0; l < lanes; l += 4) {
      __m128i vectors[4] = {};
      for (int i = 0; i < 4; ++i) memcpy(&vectors[i], address(l + i), 4 * dwords);
      transpose(vectors);
      for (int i = 0; i < dwords; ++i) memcpy(rows + i * lanes + l, &vectors[i], sizeof vectors[i]);
    }
  } else if (is_contiguous(address)) {
    memcpy(rows, address(0), lanes * sizeof(uint32_t));
  } else {
    for (int l = 0; l < lanes; ++l) load_lane(l);
  }
}

// Stores `dwords` dwords of each lane in `exec` to address(l). Where lanes overlap, the last one wins.
template <int dwords, class Address>
void scatter(uint64_t exec, const uint32_t* rows, Address address) {
  const auto store_lane = [&](int l) {
    uint32_t values[dwords];
    for (int i = 0; i < dwords; ++i) values[i] = rows[i * lanes + l];
    memcpy(address(l), values, sizeof values);
  };
  if (exec != ~0ull) {
    for (; exec != 0; exec &= exec - 1) store_lane(__builtin_ctzll(exec));
  } else if constexpr (dwords > 1) {
    for (int l = 0; l < lanes; l += 4) {
      __m128i vectors[4] = {};
      for (int i = 0; i < dwords; ++i) memcpy(&vectors[i], rows + i * lanes + l, sizeof vectors[i]);
      transpose(vectors);
      for (int i = 0; i < 4; ++i) memcpy(address(l + i), &vectors[i], 4 * dwords);
    }
  } else if (is_contiguous(address)) {
    memcpy(address(0), rows, lanes * sizeof(uint32_t));
  } else {
    for (int l = 0; l < lanes; ++l) store_lane(l);
  }
}

}  // namespace mi300x
