// Settings from environment variables, read at each dispatch.
#pragma once

#include <cstdint>
#include <string>

namespace mi300x {

struct Settings {
  static constexpr uint64_t no_timeline = ~0ull;

  uint64_t threads;           // DG_SIM_THREADS
  uint64_t max_instructions;  // DG_SIM_MAX_INSTRUCTIONS, for each wave
  bool sanitize;              // DG_SIM_SANITIZE is 1 or more
  bool hazards_as_llvm;       // DG_SIM_SANITIZE is 2
  uint64_t seed;              // DG_SIM_SEED
  bool timing;                // DG_SIM_TIMING
  bool sampling;              // DG_SIM_TIMING_SAMPLING: whether the timing model may leave out parts of large launches
  uint64_t timeline_cu;       // DG_SIM_TIMING_TIMELINE: the CU whose waves are in the timeline, or no_timeline
  bool computes_all;          // DG_SIM_TIMING_COMPUTE: whether to compute results that don't influence the time
  std::string computed;       // DG_SIM_TIMING_COMPUTED: patterns of kernels that compute them all the same
  std::string mistake;        // describes the first invalid variable; empty if all are valid

  static Settings from_environment();
  bool computes(const std::string& kernel) const;
};

}  // namespace mi300x
