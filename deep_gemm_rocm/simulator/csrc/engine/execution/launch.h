// A running dispatch.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "../../engine.h"
#include "../isa/effects.h"
#include "../reports/statistics.h"
#include "../reports/wave_trace.h"
#include "../sanitizer/global_watch.h"
#include "settings.h"
#include "wave.h"

namespace mi300x {

// A code segment: the instruction that begins at each dword.
class Code {
 public:
  explicit Code(std::vector<Instruction> decoded) : instructions(std::move(decoded)) {}

  const std::vector<Instruction> instructions;

  // The effects of each instruction, computed when the sanitizer, the timing model or the counters first need them.
  const Effects* effects() const {
    std::call_once(effects_once_, [&] {
      effects_.reserve(instructions.size());
      for (const Instruction& inst : instructions) effects_.push_back(effects_of(inst));
    });
    return effects_.data();
  }

 private:
  mutable std::once_flag effects_once_;
  mutable std::vector<Effects> effects_;
};

// A kernel dispatch packet (HSA Platform System Architecture), from which kernels read their launch dimensions.
struct DispatchPacket {
  uint16_t header = 0, setup = 3;
  uint16_t workgroup_size_x, workgroup_size_y, workgroup_size_z;
  uint16_t reserved0 = 0;
  uint32_t grid_size_x, grid_size_y, grid_size_z;  // in work-items
  uint32_t private_segment_size, group_segment_size;
  uint64_t kernel_object, kernarg_address;
  uint64_t reserved1 = 0, completion_signal = 0;
};
static_assert(sizeof(DispatchPacket) == 64, "the layout is fixed by HSA");

// The state that the workgroups of a dispatch share.
struct Launch {
  const Dispatch& dispatch;
  std::shared_ptr<const Code> code;
  DispatchPacket packet;
  alignas(64) uint8_t queue[256] = {};
  std::vector<MemoryRange> memory;
  const Effects* effects = nullptr;         // of each instruction; null where nothing watches the execution
  std::vector<uint8_t> needed;              // for each instruction whether it must execute; empty where all must
  std::optional<GlobalWatch> global_watch;  // under the sanitizer, with several workgroups
  std::optional<Statistics> statistics;     // sums of finished host threads, where counters are asked for
  std::optional<WaveTrace> wave_trace;      // where a trace is asked for
  uint32_t lds_bytes;
  uint32_t workgroup_size;
  uint64_t workgroups;
  const Settings settings;

  std::atomic<uint64_t> next_workgroup{0};
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> instructions{0};
  std::mutex outcome_mutex;
  Outcome outcome;

  Launch(const Dispatch& d, std::shared_ptr<const Code> decoded, Settings chosen);

  // Writes the counters' record once all workgroups have ended.
  void finish_records();

  // Lets the debugger stop the wave, if it is the debugged one, before its next instruction or because it failed. False
  // where the debugger ends the dispatch.
  bool debug(Wave& wave, const char* failure = nullptr) const;
  bool is_debugged(const Workgroup& group) const;

  // Records the first wave's failure and stops all others. `inst` is null where the wave failed before it started.
  void report(Wave& wave, const Instruction* inst);

 private:
  void add_memory(const void* begin, size_t bytes);
};

}  // namespace mi300x
