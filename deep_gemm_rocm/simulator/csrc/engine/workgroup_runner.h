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
#include "wave.h"

namespace mi300x {

class WorkgroupRunner {
 public:
  explicit WorkgroupRunner(Launch& launch);

  // Makes a workgroup of the dispatch resident, in the state that the hardware launches it with.
  void start(uint64_t id);

  // Executes the resident workgroup until it ends or fails.
  void run();

  const std::vector<std::unique_ptr<Wave>>& waves() const { return waves_; }

 private:
  void run_slice(Wave& wave);
  void open_barrier();

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
  std::mt19937 random_;
};

}  // namespace mi300x
