// Tracks which bytes of global memory were written, in memory that only kernels and the HIP runtime write.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../../engine.h"

namespace mi300x {

// One for each host thread; all of them share the bits.
class WrittenMemory {
 public:
  WrittenMemory(const MemoryRange* ranges, size_t count) {
    for (size_t i = 0; i < count; ++i)
      if (ranges[i].written != nullptr) ranges_.push_back(ranges[i]);
  }
  bool is_empty() const { return ranges_.empty(); }

  // True where any of the bytes (a dword or part of one) was written. One is enough, since programs load structures
  // with their padding, and single bytes with the dword around them.
  bool has_data(uint64_t address, uint32_t bytes) {
    if (!find(address)) return true;
    const uint64_t first = address - last_.begin, end = std::min(first + bytes, last_.end - last_.begin);
    for (uint64_t byte = first; byte < end; ++byte)
      if (__atomic_load_n(last_.written + byte / 8, __ATOMIC_RELAXED) >> byte % 8 & 1) return true;
    return false;
  }

  // `defined` is false where undefined values are stored.
  void note_write(uint64_t address, uint32_t bytes, bool defined = true) {
    if (!find(address)) return;
    const uint64_t first = address - last_.begin, end = std::min(first + bytes, last_.end - last_.begin);
    for (uint64_t byte = first; byte < end; ++byte) {
      const uint8_t bit = uint8_t(1u << byte % 8);
      uint8_t* bits = last_.written + byte / 8;
      if (bool(__atomic_load_n(bits, __ATOMIC_RELAXED) & bit) == defined) continue;
      if (defined) __atomic_fetch_or(bits, bit, __ATOMIC_RELAXED);
      else __atomic_fetch_and(bits, uint8_t(~bit), __ATOMIC_RELAXED);
    }
  }

 private:
  bool find(uint64_t address) {
    if (address >= last_.begin && address < last_.end) return true;
    const MemoryRange* range = find_range(ranges_.data(), ranges_.data() + ranges_.size(), address);
    if (range == nullptr) return false;
    last_ = *range;
    return true;
  }

  std::vector<MemoryRange> ranges_;
  MemoryRange last_;
};

}  // namespace mi300x
