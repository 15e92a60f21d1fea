// Where memory lies for the memory system: as hipMalloc would have placed it. Device addresses are host addresses, and
// those of tensors are what the host's allocator made of them; times must not depend on that.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "../launch.h"

namespace mi300x::timing {

class AddressSpace {
 public:
  // Host memory that is one piece for the memory system too.
  struct Block {
    uint64_t begin = 0, end = 0;  // host addresses
    uint64_t place = 0;           // of its beginning

    bool holds(uint64_t address) const { return address >= begin && address < end; }
  };

  // Places what the launch may touch. Memory that an earlier launch knew, of the same extent, stays where it was.
  void enter(const Launch& launch);

  // Where an address lies. `recent`: the block of the address before, which is probably that of the next one.
  uint64_t place_of(uint64_t address, Block& recent) const {
    if (!recent.holds(address) && !find(address, recent)) return address;
    return recent.place + (address - recent.begin);
  }

 private:
  bool find(uint64_t address, Block& found) const;
  void place(const MemoryRange& range);

  std::map<uint64_t, Block> placed_;  // by their beginnings; disjoint
  std::vector<Block> blocks_;         // of the launch, by address
  uint64_t next_ = 0;                 // the first address that was never given away
};

}  // namespace mi300x::timing
