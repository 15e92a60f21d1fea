// The sanitizer (DG_SIM_SANITIZE=1 or 2): reports races, hazards, missing waits and undefined values.
//
// It watches the waves of one workgroup. Before an instruction executes, it checks the registers, memory and counters
// that the instruction uses. It never changes results.
#pragma once

#include <memory>
#include <vector>

#include "../execution/wave.h"
#include "../isa/effects.h"
#include "definedness.h"
#include "global_watch.h"
#include "hazards.h"
#include "lds_watch.h"
#include "wait_counters.h"
#include "written_memory.h"
#include "written_scratch.h"

namespace mi300x {

class Checker {
 public:
  // `global` is shared by all workgroups of the dispatch; null where there is only one.
  Checker(uint32_t waves, GlobalWatch* global, const Dispatch& dispatch, size_t instructions, bool hazards_as_llvm)
      : waves_(waves, PerWave(dispatch.kernel->scratch_bytes, hazards_as_llvm)),
        known_paths_(instructions),
        lds_(waves),
        global_(global),
        written_(dispatch.memory, dispatch.memory_count),
        grid_(dispatch.grid),
        registers_{dispatch.kernel->vector_registers(), dispatch.kernel->accumulators(),
                   dispatch.kernel->scalar_registers()} {}

  // Called once the waves have their launch state, which includes `scalars` SGPRs from s0 on.
  void start_workgroup(const std::vector<std::unique_ptr<Wave>>& waves, const Kernel& kernel, int scalars);

  // Checks the instruction and records its effects. Fails the wave and returns false where there is something to
  // report. `is_changed`: its registers were shifted at run time (GPR indexing).
  bool before(Wave& wave, const Instruction& inst, const Effects& effects, bool is_changed);
  void open_barrier();

  // True where the wave has read LDS, since the last barrier, that nothing had written: another wave that has yet to
  // reach the barrier may be about to write it.
  bool may_lack_barrier(const Wave& wave) const { return waves_[wave.index_in_group].has_read_unwritten_lds; }

 private:
  struct PerWave {
    WaitCounters counters;
    HazardRules hazards;
    Definedness definedness;
    WrittenScratch scratch;
    bool has_read_unwritten_lds = false;

    PerWave(uint32_t scratch_bytes, bool hazards_as_llvm) : hazards(hazards_as_llvm), scratch(scratch_bytes) {}
  };
  PerWave& state_of(const Wave& wave) { return waves_[wave.index_in_group]; }

  void wait(const Wave& wave, uint16_t simm16);
  bool check_registers(Wave& wave, const Effects& effects);
  bool check_counters(Wave& wave, const Effects& effects);
  bool check_definedness(Wave& wave, const Instruction& inst, const Effects& effects);
  bool check_stored(Wave& wave, const Instruction& inst, const Effects& effects);
  bool check_branch(Wave& wave, const Instruction& inst);
  // Fails the wave, with the register between `before` and `after`, and returns false where one isn't defined in the
  // `active` lanes. Gaps are allowed in the lanes `copied`.
  bool require_defined(Wave& wave, const RegisterRange& range, uint64_t active, uint64_t copied, const char* before,
                       const char* after);

  // The access_… functions check one instruction's accesses to one kind of memory. They fail the wave and return false
  // where there is a race.
  struct Lanes {
    uint64_t active = 0;
    uint64_t addresses[lanes];  // LDS and scratch: offsets
  };
  // The data registers of a plain store.
  struct Data {
    const uint32_t* rows = nullptr;  // null for reads and atomics
    int first_row = 0;
    bool is_defined = true;  // in all active lanes
  };
  Data data_of(Wave& wave, const MemoryAccess& access, const Operand& source) const;
  bool access_memory(Wave& wave, const Instruction& inst, const Effects& effects, Loaded& loaded);
  bool access_vector_memory(Wave& wave, const Instruction& inst, const MemoryAccess& access, Loaded& loaded);
  bool access_typed_buffer(Wave& wave, const Instruction& inst, const Effects& effects, Loaded& loaded);
  bool access_scalar_memory(Wave& wave, const Instruction& inst, const Effects& effects, Loaded& loaded);
  bool access_ds(Wave& wave, const Instruction& inst, const Effects& effects, Loaded& loaded);
  // `dword` is the first dword of the load's result that this access fills.
  bool access_lds(Wave& wave, const Lanes& positions, const MemoryAccess& access, const Data& data,
                  Loaded& loaded, uint32_t dword = 0);
  uint64_t places_in_lds(const Wave& wave, const Lanes& positions, uint32_t bytes);
  template <class Alike>
  bool check_lds(Wave& wave, uint64_t held, const Lanes& positions, const LdsWatch::Access& access, Alike alike);
  void access_scratch(const Wave& wave, const Lanes& positions, const MemoryAccess& access, const Data& data,
                      Loaded& loaded);
  bool load_to_lds(Wave& wave, const Instruction& inst, const Loaded& loaded);
  bool access_global(Wave& wave, const Lanes& places, const MemoryAccess& access, const uint32_t* data);
  void follow_data(const Wave& wave, const Lanes& places, const MemoryAccess& access, const Data& data, Loaded& loaded);
  template <class NoteWrite>
  void follow_stored(const Wave& wave, int lane, const MemoryAccess& access, const Data& data,
                     NoteWrite note_write) const;
  bool visit_global(Wave& wave, const GlobalWatch::Span& span, const Lanes* places);
  bool check_alignment(Wave& wave, const Lanes& places, const MemoryAccess& access, bool in_lds);
  bool check_lds_alignment(Wave& wave, const Lanes& positions, const MemoryAccess& access);
  bool report_lds(Wave& wave, const LdsWatch::Conflict& conflict, int lane, bool writes);

  std::vector<PerWave> waves_;
  KnownPaths known_paths_;
  LdsWatch lds_;
  LdsBytes lds_bytes_;  // of the instruction at hand
  GlobalWatch* const global_;
  GlobalWatch::Visitor visitor_;
  WrittenMemory written_;
  const Dim3 grid_;  // in workgroups
  const RegisterCounts registers_;  // that the kernel's descriptor asks for
};

}  // namespace mi300x
