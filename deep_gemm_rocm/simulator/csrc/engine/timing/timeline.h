// The timeline of a launch: on which CU each workgroup ran and when, and what the waves of one CU did.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "counters.h"
#include "memory_system.h"

namespace mi300x::timing {

struct Residence {
  uint64_t workgroup, begin, end;
  uint32_t cu;
};

// An instruction of a wave, from its issue until the wave could issue the next one, or a stall.
struct WaveEvent {
  uint64_t workgroup, begin, end;
  uint32_t wave, simd;
  int64_t pc;   // of the instruction, in dwords from the start of the code; -1 for a stall
  Stall stall;  // valid where pc is -1
};

// A request of a CU to the memory beyond it, until its answer.
struct MemoryEvent {
  double begin, end;
  Request kind;
  uint16_t bytes;
};

// The timeline of one CU.
struct Timeline {
  static constexpr size_t most_events = 400'000;

  std::vector<Residence> residences;
  bool shows_waves = false;
  // The first `most_events`, where shows_waves is set.
  std::vector<WaveEvent> events;
  std::vector<MemoryEvent> requests;

  void add(const WaveEvent& event) {
    if (event.end > event.begin && events.size() < most_events) events.push_back(event);
  }
  void add(const MemoryEvent& request) {
    if (requests.size() < most_events) requests.push_back(request);
  }
};

}  // namespace mi300x::timing
