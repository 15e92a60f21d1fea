// The sanitizer (DG_SIM_SANITIZE=1): reports what a program only gets away with by luck.
//
// It watches the waves of one workgroup from outside. Before an instruction executes it looks at the registers, the
// memory and the counters that the instruction is about to use; it never changes what the program computes.
#pragma once

#include <memory>
#include <vector>

#include "definedness.h"
#include "effects.h"
#include "global_watch.h"
#include "hazards.h"
#include "lds_watch.h"
#include "wait_counters.h"
#include "wave.h"
#include "written_memory.h"
#include "written_scratch.h"

namespace mi300x {

class Checker {
 public:
  // `global`: what all workgroups of the dispatch share, null where there is only one.
  Checker(uint32_t waves, GlobalWatch* global, const Dispatch& dispatch, size_t instructions)
      : waves_(waves, PerWave(dispatch.kernel->scratch_bytes)),
        known_paths_(instructions),
        global_(global),
        written_(dispatch.memory, dispatch.memory_count),
        grid_(dispatch.grid) {}

  // After the waves have been given their launch state; `scalars` SGPRs from s0 on belong to it.
  void start_workgroup(const std::vector<std::unique_ptr<Wave>>& waves, int scalars);

  // Keeps what the instruction will change; fails the wave and returns false where it must not run in its present
  // state. `is_changed`: it isn't as the code has it.
  bool before(Wave& wave, const Instruction& inst, const Effects& effects, bool is_changed);
  void open_barrier();

 private:
  struct PerWave {
    WaitCounters counters;
    HazardRules hazards;
    Definedness definedness;
    WrittenScratch scratch;

    explicit PerWave(uint32_t scratch_bytes) : scratch(scratch_bytes) {}
  };
  PerWave& state_of(const Wave& wave) { return waves_[wave.index_in_group]; }

  void wait(const Wave& wave, uint16_t simm16);
  bool check_counters(Wave& wave, const Effects& effects);
  bool check_definedness(Wave& wave, const Instruction& inst, const Effects& effects);

  // The accesses of one instruction to one kind of memory. They fail the wave and return false where there is a race.
  struct Lanes {
    uint64_t active = 0;
    uint64_t addresses[lanes];  // LDS and scratch: offsets
  };
  bool access_memory(Wave& wave, const Instruction& inst, const Effects& effects, uint64_t& defined_lanes);
  bool access_vector_memory(Wave& wave, const Instruction& inst, const MemoryAccess& access, uint64_t& defined_lanes);
  bool access_typed_buffer(Wave& wave, const Instruction& inst, const Effects& effects, uint64_t& defined_lanes);
  bool access_scalar_memory(Wave& wave, const Instruction& inst, const Effects& effects, uint64_t& defined_dwords);
  bool access_ds(Wave& wave, const Instruction& inst, const Effects& effects, uint64_t& defined_lanes);
  bool access_lds(Wave& wave, const Lanes& positions, const MemoryAccess& access, const uint32_t* data,
                  uint64_t& defined_lanes);
  void access_scratch(const Wave& wave, const Lanes& positions, const MemoryAccess& access, const Operand& data,
                      uint64_t& defined_lanes);
  bool load_to_lds(Wave& wave, const Instruction& inst, uint64_t defined_lanes);
  bool access_global(Wave& wave, const Lanes& places, const MemoryAccess& access, const uint32_t* data);
  void follow_data(const Lanes& places, const MemoryAccess& access, uint64_t& defined_lanes);
  bool visit_global(Wave& wave, const GlobalWatch::Span& span, const Lanes* places);
  bool check_alignment(Wave& wave, const Lanes& places, const MemoryAccess& access, const char* where);
  bool report_lds(Wave& wave, const LdsWatch::Conflict& conflict, int lane, bool writes);

  std::vector<PerWave> waves_;
  KnownPaths known_paths_;
  LdsWatch lds_;
  LdsBytes lds_bytes_;  // of the instruction at hand
  GlobalWatch* const global_;
  GlobalWatch::Visitor visitor_;
  WrittenMemory written_;
  const Dim3 grid_;  // in workgroups
};

}  // namespace mi300x
