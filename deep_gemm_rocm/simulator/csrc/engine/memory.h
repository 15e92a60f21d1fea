// The memory a dispatch may touch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../engine.h"

namespace mi300x {

// A sorted set of address ranges with a fast path for the range that was hit last. One for each host thread.
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
    auto next = std::upper_bound(ranges_.begin(), ranges_.end(), address,
                                 [](uint64_t value, const MemoryRange& range) { return value < range.begin; });
    if (next == ranges_.begin()) return false;
    const MemoryRange& range = *(next - 1);
    if (address >= range.end || bytes > range.end - address) return false;
    last_ = range;
    return true;
  }

  std::vector<MemoryRange> ranges_;
  MemoryRange last_;
};

// Kernels see LDS and scratch through windows of the flat address space (LLVM AMDGPU usage, "Address spaces"). Both lie
// beyond what a process can map.
constexpr uint64_t shared_aperture = 0x0001'0000'0000'0000;
constexpr uint64_t private_aperture = 0x0002'0000'0000'0000;
constexpr uint64_t aperture_bytes = 0x0000'0001'0000'0000;


// Where an address leads that is in no range of the kernel's memory.
inline const char* where_outside(uint64_t address) {
  return address >= host_services && address - host_services < host_services_bytes
             ? "which stands for device printf, assert and malloc: the simulated MI300X does not offer them"
             : "outside the memory that the kernel was given";
}

}  // namespace mi300x
