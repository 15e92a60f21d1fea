// Which bytes of global memory anything has written, of memory that only kernels and the HIP runtime write.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../engine.h"

namespace mi300x {

// One for each host thread; all of them share the bits.
class WrittenMemory {
 public:
  WrittenMemory(const MemoryRange* ranges, size_t count) {
    for (size_t i = 0; i < count; ++i)
      if (ranges[i].written != nullptr) ranges_.push_back(ranges[i]);
  }
  bool is_empty() const { return ranges_.empty(); }

  // False where nothing has written any of the bytes, a dword or part of one. Structures are loaded with their padding,
  // and bytes with the dword around them, so a part is enough.
  bool has_data(uint64_t address, uint32_t bytes) {
    if (!find(address)) return true;
    const uint64_t first = address - last_.begin, end = std::min(first + bytes, last_.end - last_.begin);
    for (uint64_t byte = first; byte < end; ++byte)
      if (__atomic_load_n(last_.written + byte / 8, __ATOMIC_RELAXED) >> byte % 8 & 1) return true;
    return false;
  }

  // `defined`: what is written holds something.
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
    const auto next = std::upper_bound(ranges_.begin(), ranges_.end(), address,
                                       [](uint64_t value, const MemoryRange& range) { return value < range.begin; });
    if (next == ranges_.begin() || address >= (next - 1)->end) return false;
    last_ = *(next - 1);
    return true;
  }

  std::vector<MemoryRange> ranges_;
  MemoryRange last_;
};

}  // namespace mi300x
