// What one wave does, with the registers that each of its instructions reads and writes.
#pragma once

#include <string>

#include "effects.h"

namespace mi300x {

class WaveTrace {
 public:
  WaveTrace(RecordSink& sink, const Kernel& kernel, const TracedWave& traced);

  bool is_in(const Workgroup& group) const {
    const Dim3 &a = group.id, &b = traced_.workgroup;
    return a.x == b.x && a.y == b.y && a.z == b.z;
  }

  // Before a wave of that workgroup executes the instruction. What it writes is known when the wave's next one comes;
  // finish() is for one that has none.
  void record(Wave& wave, const Instruction& inst, const Effects& effects);
  void finish();

 private:
  RecordSink& sink_;
  const Kernel& kernel_;
  const TracedWave traced_;
  uint64_t executed_ = 0;
  Wave* wave_ = nullptr;  // null where no instruction waits to be finished
  std::string pending_;
  RangeList<3> written_;
};

}  // namespace mi300x
