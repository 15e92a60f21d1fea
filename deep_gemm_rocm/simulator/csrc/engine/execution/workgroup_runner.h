// Executes a workgroup. Owns the waves, LDS and scratch of the resident one, and can be reused for another one after
// it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "../sanitizer/checker.h"
#include "../timing/trace.h"
#include "launch.h"
#include "tally.h"
#include "wave.h"

namespace mi300x {

class WorkgroupRunner {
 public:
  explicit WorkgroupRunner(Launch& launch);
  ~WorkgroupRunner();

  // Makes a workgroup of the dispatch resident, in the state that the hardware launches it with.
  void start(uint64_t id);

  // The work of the resident workgroup from when it was resumed to when it was suspended.
  struct Slice {
    bool has_ended = false;       // or failed
    bool has_progressed = false;  // it did more than to poll memory
    uint64_t instructions = 0;
  };

  // A workgroup is suspended after so many instructions of its waves, as it may wait for another one in a way that
  // polls() doesn't recognise. Few kernels have so many.
  static constexpr uint64_t usual_slice = 1 << 22;

  // Executes the resident workgroup until it ends or fails, only waits for other workgroups, or has executed about so
  // many instructions.
  Slice run(uint64_t most_instructions = usual_slice);

  // Fails the dispatch by a wave that polls memory.
  void report_waiting(const std::string& message);

  // Counts what the waves execute; null where that isn't asked for. One host thread at a time may count there.
  void count_into(Statistics* statistics);

  // From now on, executes only what the tally says that has to be executed.
  void count_into(Tally* tally) { tally_ = tally; }

  // For the timing model, which decides when each wave continues. There is a trace for each wave.
  void trace_into(timing::Trace* traces) { traces_ = traces; }

  // Executes a wave until it ends, fails, reaches a barrier or has had its turn.
  void run_turn(Wave& wave);
  void open_barrier();

  const std::vector<std::unique_ptr<Wave>>& waves() const { return waves_; }

 private:
  // Passes the instruction that the wave is about to execute to the sanitizer, counters and traces. False where it must
  // not execute now.
  bool watch(Wave& wave, const Instruction& inst, const Effects& effects, const Instruction& in_code);

  // For the sanitizer: fails a wave at a barrier where other waves have ended without reaching it.
  bool check_barrier();

  // Whether the wave only waits until something changes in memory. Called after a turn. Executes some instructions to
  // find out.
  bool polls(Wave& wave);
  void execute(Wave& wave, uint64_t most_instructions);
  uint64_t executed_instructions() const;

  // Describes where the other waves of the workgroup are, for messages about waves that never end.
  std::string others(const Wave& wave) const;

  void set_watched();
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
  std::minstd_rand random_;  // seeded for each workgroup, which is slow for better generators
  Wave* postponed_ = nullptr;  // the first wave in that state
  timing::Trace* traces_ = nullptr;
  Statistics* statistics_ = nullptr;
  Tally* tally_ = nullptr;
  WaveTrace* wave_trace_ = nullptr;  // null unless the resident workgroup has the traced wave
  bool is_debugged_ = false;         // the resident workgroup has the debugged wave
  bool watched_ = false;             // any of the above is there
};

}  // namespace mi300x
