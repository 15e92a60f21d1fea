// The trace of one wave, with the registers that each instruction reads and writes.
#pragma once

#include <string>

#include "../execution/wave.h"
#include "../isa/effects.h"

namespace mi300x {

class WaveTrace {
 public:
  WaveTrace(RecordSink& sink, const Kernel& kernel, const TracedWave& traced);

  bool is_in(const Workgroup& group) const {
    const Dim3 &a = group.id, &b = traced_.workgroup;
    return a.x == b.x && a.y == b.y && a.z == b.z;
  }

  // Called before a wave of that workgroup executes an instruction. The written values are known when the wave's next
  // instruction comes; finish() is for the last one.
  void record(Wave& wave, const Instruction& inst, const Effects& effects);
  void finish();

 private:
  RecordSink& sink_;
  const Kernel& kernel_;
  const TracedWave traced_;
  uint64_t executed_ = 0;
  Wave* wave_ = nullptr;  // null where no instruction is pending
  std::string pending_;
  RangeList<3> written_;
};

}  // namespace mi300x
