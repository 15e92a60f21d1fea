// The timing of the whole chip. Its memory system outlives launches: the Infinity Cache keeps earlier launches' lines.
#pragma once

#include "../execution/launch.h"
#include "address_space.h"
#include "memory_system.h"

namespace mi300x::timing {

class Chip {
 public:
  explicit Chip(const Constants& constants) : constants_(constants), memory_(constants) {}

  // Runs every workgroup of the launch, sets the simulated time of its outcome, and writes its record to the dispatch's
  // profile.
  void run(Launch& launch);

 private:
  const Constants constants_;
  MemorySystem memory_;
  AddressSpace addresses_;
};

}  // namespace mi300x::timing
