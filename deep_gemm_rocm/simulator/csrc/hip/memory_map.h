// What memory the device may touch: allocations, registered host memory, and the data of loaded modules. Device
// addresses are host addresses.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "../engine.h"

enum class MemoryKind { device, host, managed, registered, module };

struct MemoryBlock {
  uint64_t begin = 0;
  uint64_t end = 0;
  MemoryKind kind = MemoryKind::device;
  unsigned flags = 0;

  uint64_t size() const { return end - begin; }
};

using MemoryRanges = std::vector<mi300x::MemoryRange>;

class MemoryMap {
 public:
  // The one map of the process. It is never destroyed: static destructors of the host program still use it.
  static MemoryMap& instance();

  // 256-byte aligned, of the exact size; pages are committed when they are touched. Fails with hipErrorOutOfMemory.
  void* allocate(size_t size, MemoryKind kind, unsigned flags = 0);

  // Frees what allocate() returned. Waits for running dispatches, as hipFree does.
  void release(void* pointer);

  // Frees everything that allocate() returned for the device and the host; managed memory belongs to variables.
  void release_all();

  // Memory that others own. Ranges may overlap, and the same range may be added more than once.
  void add(uint64_t begin, uint64_t size, MemoryKind kind, unsigned flags = 0);

  // Forgets one added range that begins there (the oldest); false where there is none. Waits for running dispatches.
  bool remove(uint64_t begin, MemoryKind kind);

  // The block that holds the address.
  std::optional<MemoryBlock> find(uint64_t address) const;

  // Whether [address, address + size) is all device-accessible.
  bool covers(uint64_t address, uint64_t size) const;

  uint64_t allocated_bytes() const;

  // The memory as one dispatch sees it; while a lease is held, none of it is taken away.
  struct Lease {
    std::shared_lock<std::shared_mutex> in_use;
    std::shared_ptr<const MemoryRanges> ranges;
  };
  Lease lease() const;

 private:
  using Blocks = std::multimap<uint64_t, MemoryBlock>;

  void insert(const MemoryBlock& block);
  Blocks::iterator unmap(Blocks::iterator allocation);
  std::shared_ptr<const MemoryRanges> ranges() const;

  mutable std::shared_mutex in_use_;  // shared by dispatches, exclusive to take memory away; locked before mutex_
  mutable std::mutex mutex_;
  Blocks blocks_;
  uint64_t allocated_ = 0;
  mutable std::shared_ptr<const MemoryRanges> ranges_;  // null when blocks_ changed since it was built
};
