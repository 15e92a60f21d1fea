// The whole chip in time. Its memory system outlives launches: the Infinity Cache keeps what earlier ones left.
#pragma once

#include "../launch.h"
#include "address_space.h"
#include "memory_system.h"

namespace mi300x::timing {

class Chip {
 public:
  explicit Chip(const Constants& constants) : constants_(constants), memory_(constants) {}

  // Runs every workgroup of the launch and writes its record to the dispatch's profile. Sets the simulated time of the
  // launch's outcome.
  void run(Launch& launch);

 private:
  const Constants constants_;
  MemorySystem memory_;
  AddressSpace addresses_;
};

}  // namespace mi300x::timing
