// Races between the workgroups of a dispatch on global memory: two of them touch the same byte, at least one writes,
// not both access it atomically, and nothing orders the accesses. Two that store the same value don't race: the order
// makes no difference. Nor do a plain read and a compare-and-swap: that is how loops of compare-and-swap begin.
//
// What orders two accesses is a release by the one workgroup after its access (BUFFER_WBL2 with device scope) and an
// acquire by the other before its own (BUFFER_INV with device scope), the acquire later than the release: that is how
// LLVM implements fences and ordered atomics (AMDGPU usage, "Memory model gfx942"). The atomic that carries the signal
// isn't looked at, so a program that orders too little may go unreported; one that orders enough never is.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "../engine.h"
#include "arena.h"

namespace mi300x {

class GlobalWatch {
 public:
  // The ranges are sorted and disjoint.
  GlobalWatch(const MemoryRange* ranges, size_t count);
  ~GlobalWatch();

  // A workgroup as the watch knows it. One host thread at a time uses it.
  struct Visitor {
    uint32_t workgroup = 0;  // flat id
    uint32_t releases = 0;   // so far
    uint64_t acquired = 0;   // when it last acquired; 0: never
  };
  void release(Visitor& visitor);
  void acquire(Visitor& visitor) const { visitor.acquired = clock_; }

  struct Span {
    uint64_t address;
    uint32_t bytes;
    bool writes, atomic, compares;  // compares: an atomic that only writes where it finds the expected value
    bool may_overfetch;   // reads whole dwords, of which the program may use a part
    const uint8_t* data;  // what is stored; null for reads and atomics
  };
  struct Conflict {
    bool found = false;
    uint64_t address = 0;  // of the dword
    uint32_t workgroup = 0;
    bool was_write = false;
  };
  // Records an access and tells whether it races with an earlier one. Memory outside the ranges isn't watched.
  Conflict access(const Visitor& visitor, const Span& span);

 private:
  struct Access {
    uint32_t workgroup_plus_1 = 0;  // 0: none
    uint32_t releases : 26, bytes : 4, atomic : 1, compares : 1;  // bytes of the dword, a bit each
    Access() : releases(0), bytes(0), atomic(0), compares(0) {}
    bool is_like(const Access& other) const {
      return workgroup_plus_1 == other.workgroup_plus_1 && releases == other.releases && atomic == other.atomic &&
             compares == other.compares;
    }
  };
  // One dword of memory. Of the readers the last two workgroups are known: whoever writes then, another one is among
  // them.
  struct Cell {
    Access writer, readers[2];
  };
  static constexpr uint64_t page_bytes = 256;
  static constexpr uint64_t page_cells = page_bytes / 4;
  using Bytes = std::array<uint64_t, page_bytes / 64>;  // of a page, a bit each

  // What accesses of one kind by one workgroup, all between the same releases, have touched of a page.
  struct Share {
    Access by;
    Bytes read{}, written{};
  };
  // As long as the accesses of several workgroups don't overlap, or do so without harm, a page has only a few shares;
  // from then on it has cells.
  static constexpr size_t further_shares = 3;
  struct Page {
    std::atomic_flag lock = ATOMIC_FLAG_INIT;
    Share first;
    Share* others = nullptr;    // further_shares of them
    Cell* cells = nullptr;      // page_cells
    uint8_t* stored = nullptr;  // the values of the last plain stores

    template <class F>
    void for_each_share(F f);
  };
  struct Range {
    MemoryRange memory;
    std::atomic<Page*>* pages;  // zeroed when they are touched first
  };

  const Range* range_of(uint64_t address) const;
  Page& page_of(const Range& range, uint64_t offset);
  bool conflicts(const Access& earlier, const Access& now, const Visitor& visitor) const;
  bool is_ordered(const Access& earlier, const Visitor& visitor) const;
  bool can_share(Page& page, const Access& now, const Span& span, const Bytes& bytes);
  Share* share_of(Page& page, const Access& now);
  static bool is_known_without(Page& page, const Share& share);
  static Bytes bytes_between(uint64_t begin, uint64_t end);
  void make_cells(Page& page);
  static uint32_t bytes_alike(const Page& page, uint64_t position, uint32_t bytes, const uint8_t* data);
  void keep_data(Page& page, uint64_t position, const uint8_t* data, uint64_t bytes);
  bool visit(Cell& cell, const Access& now, const Span& span, uint32_t alike, const Visitor& visitor,
             Conflict& conflict) const;

  std::vector<Range> ranges_;
  Arena arena_;
  std::atomic<uint64_t> clock_{0};  // releases so far, of all workgroups
  mutable std::mutex releases_mutex_;
  std::unordered_map<uint32_t, std::vector<uint64_t>> releases_;  // of each workgroup, by the clock
};

}  // namespace mi300x
