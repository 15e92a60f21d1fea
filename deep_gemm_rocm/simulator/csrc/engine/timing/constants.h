// The constants of the timing model. Their values, units and sources are in
// deep_gemm_rocm/simulator/mi300x_timing.toml.
#pragma once

#include <string>

namespace mi300x::timing {

#define TIMING_CONSTANTS(CONSTANT) \
  CONSTANT(chip, clock_mhz) \
  CONSTANT(chip, xcds) \
  CONSTANT(chip, cus_per_xcd) \
  CONSTANT(sampling, most_instructions) \
  CONSTANT(launch, overhead_ns) \
  CONSTANT(launch, dispatch_clocks) \
  CONSTANT(launch, workgroup_clocks) \
  CONSTANT(cu, simds) \
  CONSTANT(cu, waves_per_simd) \
  CONSTANT(cu, registers) \
  CONSTANT(cu, register_granule) \
  CONSTANT(cu, lds_bytes) \
  CONSTANT(cu, lds_granule) \
  CONSTANT(cu, branch_clocks) \
  CONSTANT(cu, barrier_clocks) \
  CONSTANT(cu, waitcnt_clocks) \
  CONSTANT(cu, sleep_clocks) \
  CONSTANT(alu, vector_clocks) \
  CONSTANT(alu, transcendental_clocks) \
  CONSTANT(alu, multiply_clocks) \
  CONSTANT(alu, scalar_clocks) \
  CONSTANT(matrix, clocks_per_pass) \
  CONSTANT(matrix, issue_clocks) \
  CONSTANT(lds, banks) \
  CONSTANT(lds, port_bytes) \
  CONSTANT(lds, latency_clocks) \
  CONSTANT(lds, queue_clocks) \
  CONSTANT(l1, bytes) \
  CONSTANT(l1, line_bytes) \
  CONSTANT(l1, ways) \
  CONSTANT(l1, hit_clocks) \
  CONSTANT(l1, port_bytes) \
  CONSTANT(l1, to_lds_bytes) \
  CONSTANT(l1, fill_bytes) \
  CONSTANT(l1, tags_per_clock) \
  CONSTANT(l1, queue_clocks) \
  CONSTANT(l1, outstanding_lines) \
  CONSTANT(scalar_cache, bytes) \
  CONSTANT(scalar_cache, line_bytes) \
  CONSTANT(scalar_cache, ways) \
  CONSTANT(scalar_cache, hit_clocks) \
  CONSTANT(scalar_cache, miss_clocks) \
  CONSTANT(l2, bytes) \
  CONSTANT(l2, ways) \
  CONSTANT(l2, channels) \
  CONSTANT(l2, channel_bytes) \
  CONSTANT(l2, channel_write_bytes) \
  CONSTANT(l2, hit_clocks) \
  CONSTANT(tlb, reach_bytes) \
  CONSTANT(tlb, page_bytes) \
  CONSTANT(tlb, miss_ns) \
  CONSTANT(fabric, xcd_bytes_per_ns) \
  CONSTANT(fabric, xcd_write_bytes_per_ns) \
  CONSTANT(mall, bytes) \
  CONSTANT(mall, ways) \
  CONSTANT(mall, slices) \
  CONSTANT(mall, bytes_per_ns) \
  CONSTANT(mall, extra_ns) \
  CONSTANT(hbm, bytes_per_ns) \
  CONSTANT(hbm, extra_ns)

struct Constants {
#define CONSTANT(section, name) double section##_##name = -1;
  TIMING_CONSTANTS(CONSTANT)
#undef CONSTANT

  // Reads the data file beside the library, then the file that DG_SIM_TIMING_CONSTANTS names. Sets `mistake` where one
  // of them can't be read or parsed, or a value is missing.
  static Constants read(std::string& mistake);

  // All values, one on each line.
  std::string text() const;

  // Core clocks of a time in nanoseconds.
  double clocks(double ns) const { return ns * chip_clock_mhz / 1000; }
};

}  // namespace mi300x::timing
