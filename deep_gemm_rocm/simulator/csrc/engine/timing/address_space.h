// Maps memory to addresses as hipMalloc would have placed it. Device addresses are host addresses, which depend on the
// host's allocator; simulated times must not.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "../execution/launch.h"

namespace mi300x::timing {

class AddressSpace {
 public:
  // Host memory that is contiguous for the memory system too.
  struct Block {
    uint64_t begin = 0, end = 0;  // host addresses
    uint64_t place = 0;           // the address that `begin` is mapped to

    bool holds(uint64_t address) const { return address >= begin && address < end; }
  };

  // Places the memory that the launch may touch. Ranges of an earlier launch stay where they were.
  void enter(const Launch& launch);

  // Maps an address. `recent` caches the block of the previous one.
  uint64_t place_of(uint64_t address, Block& recent) const {
    if (!recent.holds(address) && !find(address, recent)) return address;
    return recent.place + (address - recent.begin);
  }

 private:
  bool find(uint64_t address, Block& found) const;
  void place(const MemoryRange& range);

  std::map<uint64_t, Block> placed_;  // by `begin`; disjoint
  std::vector<Block> blocks_;         // of the launch, by address
  uint64_t next_ = 0;                 // the first unused address
};

}  // namespace mi300x::timing
