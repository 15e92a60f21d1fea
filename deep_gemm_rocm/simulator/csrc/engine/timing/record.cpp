#include "record.h"

#include <algorithm>

#include "../isa/disassembler.h"
#include "../reports/json.h"

namespace mi300x::timing {
namespace {

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

std::string listing(const Launch& launch, const Counters& counters) {
  const Kernel& kernel = *launch.dispatch.kernel;
  std::string lines;
  for (size_t pc = 0; pc < counters.by_instruction.size(); ++pc) {
    const InstructionCounters& instruction = counters.by_instruction[pc];
    if (instruction.executed == 0) continue;
    JsonObject line;
    line.add("offset", double(kernel.code_begin + 4 * pc) - double(kernel.entry));
    line.add("text", JsonObject::quoted(disassemble(launch.code->instructions[pc])));
    line.add("executed", double(instruction.executed));
    line.add("cycles", double(instruction.clocks));
    lines += (lines.empty() ? "" : ", ") + line.text();
  }
  return "[" + lines + "]";
}

std::string list_of(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ", ") + item;
  return "[" + text + "]";
}

std::string residences_of(const std::vector<const Timeline*>& timelines) {
  std::vector<std::string> items;
  for (const Timeline* timeline : timelines)
    for (const Residence& r : timeline->residences) {
      JsonObject item;
      items.push_back(item.add("workgroup", r.workgroup).add("cu", uint64_t(r.cu)).add("begin", r.begin)
                          .add("end", r.end).text());
    }
  return list_of(items);
}

std::string events_of(const Launch& launch, const std::vector<const Timeline*>& timelines) {
  const Kernel& kernel = *launch.dispatch.kernel;
  const int64_t entry = int64_t(kernel.entry - kernel.code_begin);
  std::vector<std::string> items;
  for (const Timeline* timeline : timelines)
    for (const WaveEvent& event : timeline->events) {
      JsonObject item;
      item.add("workgroup", event.workgroup).add("wave", uint64_t(event.wave)).add("simd", uint64_t(event.simd));
      item.add("begin", event.begin).add("end", event.end);
      if (event.pc >= 0) item.add("offset", double(4 * event.pc - entry));
      else item.add("stall", JsonObject::quoted(stall_names[size_t(event.stall)]));
      items.push_back(item.text());
    }
  return list_of(items);
}

std::string requests_of(const std::vector<const Timeline*>& timelines) {
  constexpr const char* names[] = {"load", "store", "atomic", "scalar load"};  // in the order of Request
  std::vector<std::string> items;
  for (const Timeline* timeline : timelines)
    for (const MemoryEvent& request : timeline->requests) {
      JsonObject item;
      item.add("begin", request.begin).add("end", request.end).add("bytes", uint64_t(request.bytes));
      items.push_back(item.add("kind", JsonObject::quoted(names[size_t(request.kind)])).text());
    }
  return list_of(items);
}

// Counts of the launch's work that takes energy; the power model (power.py) turns it into joules.
std::string activity_of(const Constants& constants, const Sums& sums, const MemoryCounters& memory, double cu_clocks) {
  const double others =
      double(sums.matrix_clocks - sums.matrix_clocks_fp8 - sums.matrix_clocks_i8 - sums.matrix_clocks_f16);
  const double l2_lines = double(memory.l2_hits + memory.l2_misses);
  const double mall_lines = double(memory.mall_hits + memory.mall_misses + memory.mall_writes);
  JsonObject activity;
  activity.add("matrix_fp8_clocks", double(sums.matrix_clocks_fp8))
      .add("matrix_i8_clocks", double(sums.matrix_clocks_i8))
      .add("matrix_f16_clocks", double(sums.matrix_clocks_f16))
      .add("matrix_other_clocks", others)
      .add("vector_clocks", double(sums.vector_clocks))
      .add("lds_clocks", double(sums.lds_clocks))
      .add("l1_bytes", sums.l1_bytes)
      .add("l2_bytes", l2_lines * double(line_bytes))
      .add("mall_bytes", mall_lines * double(line_bytes))
      .add("hbm_bytes", double(memory.hbm_read_bytes + memory.hbm_write_bytes))
      .add("cu_clocks", cu_clocks);
  return activity.text();
}

// The fraction of the time that each resource was busy; for resources of CUs, over the CUs that had workgroups.
std::string busy(const Launch& launch, const Constants& constants, const Sums& sums, const MemoryCounters& memory,
                 double clocks) {
  const double chip_cus = constants.chip_xcds * constants.chip_cus_per_xcd;
  const double cu_clocks = clocks * std::min(double(launch.workgroups), chip_cus);
  const double simd_clocks = cu_clocks * constants.cu_simds;
  const double hbm_bytes_per_clock =
      constants.hbm_bytes_per_ns * constants.mall_slices * 1000 / constants.chip_clock_mhz;
  const double hbm_bytes = double(memory.hbm_read_bytes + memory.hbm_write_bytes);
  const double fabric_bytes_per_clock =
      constants.fabric_xcd_bytes_per_ns * constants.chip_xcds * 1000 / constants.chip_clock_mhz;
  const double fabric_bytes = double(memory.mall_hits + memory.mall_misses) * double(line_bytes);
  JsonObject shares;
  shares.add("matrix cores", ratio(double(sums.matrix_clocks), simd_clocks))
      .add("vector ALUs", ratio(double(sums.vector_clocks), simd_clocks))
      .add("LDS", ratio(double(sums.lds_clocks), cu_clocks))
      .add("vector L1", ratio(double(sums.memory_clocks), cu_clocks))
      .add("fabric", ratio(fabric_bytes, clocks * fabric_bytes_per_clock))
      .add("HBM", ratio(hbm_bytes, clocks * hbm_bytes_per_clock));
  return shares.text();
}

}  // namespace

std::string record_of(const Launch& launch, const Constants& constants, const Sampling& sampling, const Cost& cost,
                      const std::vector<Plan>& plans, const std::vector<const Timeline*>& timelines) {
  const Counters& counters = cost.work.counters;
  const MemoryCounters& memory = cost.work.memory;
  const Sums sums(counters.by_instruction, plans);
  const double clocks = std::round(cost.clocks);
  const double cus = constants.chip_xcds * constants.chip_cus_per_xcd;
  const double cu_clocks = clocks * cus, simd_clocks = cu_clocks * constants.cu_simds;
  JsonObject stalls;
  for (size_t i = 0; i < stall_count; ++i) stalls.add(stall_names[i], double(counters.stalls[i]));
  JsonObject record;
  record.add("name", JsonObject::quoted(launch.dispatch.kernel->name))
      .add("grid", json_of(launch.dispatch.grid))
      .add("block", json_of(launch.dispatch.block))
      .add("sampled_workgroups", double(launch.workgroups - sampling.left_out()))
      .add("cycles", clocks)
      .add("time_us", launch.outcome.nanoseconds / 1000)
      .add("clock_mhz", constants.chip_clock_mhz)
      .add("activity", activity_of(constants, sums, memory, cu_clocks))
      .add("instructions", double(sums.instructions))
      .add("mfma_utilization", ratio(double(sums.matrix_clocks), simd_clocks))
      .add("valu_busy", ratio(double(sums.vector_clocks), simd_clocks))
      .add("lds_busy", ratio(double(sums.lds_clocks), cu_clocks))
      .add("vmem_busy", ratio(double(sums.memory_clocks), cu_clocks))
      .add("lds_conflict_cycles", double(counters.lds_conflict_clocks))
      .add("l1_hit_rate", ratio(double(counters.l1_hits), double(counters.l1_hits + counters.l1_misses)))
      .add("l2_hit_rate", ratio(double(memory.l2_hits), double(memory.l2_hits + memory.l2_misses)))
      .add("mall_hit_rate", ratio(double(memory.mall_hits), double(memory.mall_hits + memory.mall_misses)))
      .add("hbm_bytes", double(memory.hbm_read_bytes + memory.hbm_write_bytes))
      .add("hbm_read_bytes", double(memory.hbm_read_bytes))
      .add("hbm_write_bytes", double(memory.hbm_write_bytes))
      .add("tlb_misses", double(memory.tlb_misses))
      .add("occupancy", ratio(double(counters.wave_clocks), simd_clocks * constants.cu_waves_per_simd))
      .add("busy", busy(launch, constants, sums, memory, clocks))
      .add("stalls", stalls.text())
      .add("listing", listing(launch, counters));
  if (!timelines.empty()) {
    JsonObject timeline;
    timeline.add("residences", residences_of(timelines)).add("events", events_of(launch, timelines));
    timeline.add("requests", requests_of(timelines));
    record.add("timeline", timeline.add("clock_mhz", constants.chip_clock_mhz).text());
  }
  return record.text();
}

}  // namespace mi300x::timing
