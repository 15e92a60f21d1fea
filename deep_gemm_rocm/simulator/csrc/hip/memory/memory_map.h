// The memory that the device may access: allocations, registered host memory, and data of loaded modules. Device
// addresses are host addresses.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "../../engine.h"

enum class MemoryKind { device, host, managed, registered, module };

struct MemoryBlock {
  uint64_t begin = 0;
  uint64_t end = 0;
  MemoryKind kind = MemoryKind::device;
  unsigned flags = 0;
  uint8_t* written = nullptr;  // a bit for each byte that was written; null where writes aren't tracked
  const char* allocated_by = nullptr;  // the HIP function; null for memory of others

  uint64_t size() const { return end - begin; }
};

// An allocation of the past.
struct FreedBlock {
  uint64_t begin, end;
  uint64_t mapped_end;
  const char *allocated_by, *freed_by;
};

using MemoryRanges = std::vector<mi300x::MemoryRange>;

class MemoryMap {
 public:
  // The one map of the process. It is never destroyed: static destructors of the host program still use it.
  static MemoryMap& instance();

  // 256-byte aligned, of the exact size; pages are committed when they are touched. Fails with hipErrorOutOfMemory.
  void* allocate(size_t size, MemoryKind kind, unsigned flags = 0);

  // Frees what allocate() returned. Waits for running dispatches, as hipFree does. The addresses stay unused for a
  // while, so that a use after free is found.
  void release(void* pointer);

  // Frees everything that allocate() returned for the device and the host; managed memory belongs to variables.
  void release_all();

  // Memory that others own. Ranges may overlap, and the same range may be added more than once.
  void add(uint64_t begin, uint64_t size, MemoryKind kind, unsigned flags = 0);

  // Forgets one added range that begins there (the oldest); false where there is none. Waits for running dispatches.
  bool remove(uint64_t begin, MemoryKind kind);

  // The block that holds the address.
  std::optional<MemoryBlock> find(uint64_t address) const;

  // The freed allocation that held the address, as long as it stays unused.
  std::optional<FreedBlock> find_freed(uint64_t address) const;

  // Whether [address, address + size) is all device-accessible.
  bool covers(uint64_t address, uint64_t size) const;

  // Track writes to device memory for the sanitizer: a range was written, or copied from another one; or a launch
  // without the sanitizer may have written anything.
  void note_write(uint64_t address, uint64_t size);
  void note_copy(uint64_t address, uint64_t source, uint64_t size);
  void forget_writes();

  uint64_t allocated_bytes() const;

  // The memory as one dispatch sees it; while a lease is held, none of it is taken away.
  struct Lease {
    std::shared_lock<std::shared_mutex> in_use;
    std::shared_ptr<const MemoryRanges> ranges;
  };
  Lease lease() const;

  // For a forked child, in which no other thread uses the map.
  void forget_other_threads();

 private:
  using Blocks = std::multimap<uint64_t, MemoryBlock>;

  std::unique_lock<std::shared_mutex> once_idle();
  void insert(const MemoryBlock& block);
  Blocks::iterator unmap(Blocks::iterator allocation);
  void quarantine(const MemoryBlock& block);
  MemoryBlock* tracked_block(uint64_t address, uint64_t size);
  std::shared_ptr<const MemoryRanges> ranges() const;

  mutable std::shared_mutex in_use_;  // shared by dispatches, exclusive to take memory away; locked before mutex_
  mutable std::mutex mutex_;
  Blocks blocks_;
  std::deque<FreedBlock> freed_;  // their address space is kept unused; the oldest first
  uint64_t freed_bytes_ = 0;
  uint64_t allocated_ = 0;
  std::atomic<size_t> tracked_{0};  // blocks with `written`
  mutable std::shared_ptr<const MemoryRanges> ranges_;  // null when blocks_ changed since it was built
};
