// Finds races between workgroups of a dispatch on global memory: two workgroups touch the same byte, at least one
// writes, not both access it atomically, and nothing orders the accesses. Two stores of the same value don't race: the
// order makes no difference. A plain read doesn't race with a compare-and-swap: compare-and-swap loops begin with one.
//
// Two accesses are ordered by a release of the first workgroup after its access (BUFFER_WBL2 with device scope) and a
// later acquire of the second workgroup before its access (BUFFER_INV with device scope): LLVM implements fences and
// ordered atomics this way (AMDGPU usage, "Memory model gfx942"). The atomic that carries the signal isn't checked, so
// a program that orders too little may go unreported; one that orders enough is never reported.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "../../engine.h"
#include "arena.h"

namespace mi300x {

class GlobalWatch {
 public:
  // The ranges are sorted and disjoint.
  GlobalWatch(const MemoryRange* ranges, size_t count);
  ~GlobalWatch();

  // The state of a workgroup, used by one host thread at a time.
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
    bool may_overfetch;   // reads whole dwords; the program may use only a part of them
    const uint8_t* data;  // the stored bytes; null for reads and atomics
    uint32_t site;        // the instruction's index
  };
  static constexpr uint32_t unknown_site = ~0u;
  struct Conflict {
    bool found = false;
    uint64_t address = 0;  // of the dword
    uint32_t workgroup = 0;
    bool was_write = false;
    uint32_t site = unknown_site;  // the instruction that made the earlier access
  };
  // Records an access and tells whether it races with an earlier one. Memory outside the ranges isn't watched.
  Conflict access(const Visitor& visitor, const Span& span);

 private:
  struct Access {
    uint32_t workgroup_plus_1 = 0;  // 0: none
    uint32_t releases : 26, bytes : 4, atomic : 1, compares : 1;  // bytes of the dword, a bit each
    uint32_t site = unknown_site;  // the instruction's index; unknown where there are several
    Access() : releases(0), bytes(0), atomic(0), compares(0) {}
    bool is_like(const Access& other) const {
      return workgroup_plus_1 == other.workgroup_plus_1 && releases == other.releases && atomic == other.atomic &&
             compares == other.compares;
    }
  };
  // One dword of memory. The last two reading workgroups are kept: whichever workgroup writes next, at least one of
  // them is another workgroup.
  struct Cell {
    Access writer, readers[2];
  };
  static constexpr uint64_t page_bytes = 256;
  static constexpr uint64_t page_cells = page_bytes / 4;
  using Bytes = std::array<uint64_t, page_bytes / 64>;  // of a page, a bit each

  // The one instruction that made all accesses of a kind, or that there were several.
  struct Sites {
    uint32_t only = unknown_site;
    bool any = false;
    void add(uint32_t site) {
      only = !any || only == site ? site : unknown_site;
      any = true;
    }
  };
  // The bytes of a page that one workgroup has touched by accesses of one kind, all between the same two releases.
  struct Share {
    Access by;
    Bytes read{}, written{};
    Sites read_by, written_by;
  };
  // A page has a few shares while the accesses of its workgroups don't conflict, and a cell for each dword from then
  // on.
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
  struct Range : MemoryRange {
    std::atomic<Page*>* pages;  // null until a page is touched
  };

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
  std::unordered_map<uint32_t, std::vector<uint64_t>> releases_;  // clocks of each workgroup's releases
};

}  // namespace mi300x
