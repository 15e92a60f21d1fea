// Executes workgroups one after another: the waves, LDS and scratch of the one that is resident.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "checker.h"
#include "launch.h"
#include "timing/trace.h"
#include "wave.h"

namespace mi300x {

class WorkgroupRunner {
 public:
  // `statistics`: of this host thread, null where nobody wants to know.
  WorkgroupRunner(Launch& launch, Statistics* statistics);
  ~WorkgroupRunner();

  // Makes a workgroup of the dispatch resident, in the state that the hardware launches it with.
  void start(uint64_t id);

  // Executes the resident workgroup until it ends or fails.
  void run();

  // For the timing model, which decides when each wave continues. `traces`, one for each wave, get what the waves do.
  void trace_into(timing::Trace* traces) { traces_ = traces; }

  // Executes a wave until it ends, fails, reaches a barrier or has used up its slice.
  void run_slice(Wave& wave);
  void open_barrier();

  const std::vector<std::unique_ptr<Wave>>& waves() const { return waves_; }

 private:
  // Shows the instruction that the wave is about to execute to the sanitizer and to those who take notes; false where
  // it must not execute now.
  bool watch(Wave& wave, const Instruction& inst, const Effects& effects, const Instruction& in_code);

  // For the sanitizer; fails a wave where others have ended without reaching the barrier that it is at.
  bool check_barrier();

  // Where the other waves of the workgroup are; those that wait at a barrier may be what this one holds up.
  std::string others(const Wave& wave) const;

  void start_wave(Wave& wave, uint32_t index);
  void poison_registers(Wave& wave);
  void set_scalar_registers(Wave& wave);
  void preload_arguments(Wave& wave, int first);
  void set_vector_registers(Wave& wave, uint32_t index);

  Launch& launch_;
  Memory memory_;
  Workgroup group_;
  std::vector<std::unique_ptr<Wave>> waves_;
  std::vector<Wave*> order_;  // in which the waves take turns
  std::vector<uint8_t> scratch_;
  int launch_scalars_ = 0;  // SGPRs that a wave is launched with
  std::optional<Checker> checker_;
  std::minstd_rand random_;  // seeded anew for each workgroup, which costs others a lot
  timing::Trace* traces_ = nullptr;
  Statistics* const statistics_;
  WaveTrace* wave_trace_ = nullptr;  // where the resident workgroup has the wave
  bool watched_ = false;             // by any of these
};

}  // namespace mi300x
