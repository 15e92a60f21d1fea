// The memory a dispatch may touch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../../engine.h"

namespace mi300x {

// A sorted set of address ranges that remembers the last hit. Each host thread has its own.
class Memory {
 public:
  explicit Memory(std::vector<MemoryRange> ranges) : ranges_(std::move(ranges)) {
    std::sort(ranges_.begin(), ranges_.end(), [](auto& a, auto& b) { return a.begin < b.begin; });
  }

  bool contains(uint64_t address, uint64_t bytes) {
    if (address >= last_.begin && bytes <= last_.end - last_.begin && address <= last_.end - bytes) return true;
    return find(address, bytes);
  }

 private:
  bool find(uint64_t address, uint64_t bytes) {
    const MemoryRange* range = find_range(ranges_.data(), ranges_.data() + ranges_.size(), address);
    if (range == nullptr || bytes > range->end - address) return false;
    last_ = *range;
    return true;
  }

  std::vector<MemoryRange> ranges_;
  MemoryRange last_;
};

// Apertures through which flat instructions reach LDS and scratch (LLVM AMDGPU usage, "Address spaces"). No process can
// map memory there.
constexpr uint64_t shared_aperture = 0x0001'0000'0000'0000;
constexpr uint64_t private_aperture = 0x0002'0000'0000'0000;
constexpr uint64_t aperture_bytes = 0x0000'0001'0000'0000;

// Describes an address outside all ranges of the kernel's memory.
inline const char* where_outside(uint64_t address) {
  return address >= device_heap && address - device_heap < device_heap_bytes
             ? "which stands for the heap of device malloc: the simulated MI300X does not offer it"
             : "outside the memory that the kernel was given";
}

}  // namespace mi300x
