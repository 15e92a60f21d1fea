// The constants of the timing model. Their values, units and sources are in
// deep_gemm_rocm/simulator/mi300x_timing.toml.
#pragma once

#include <string>

namespace mi300x::timing {

// Section, name, whether it is a whole number, and the least and the most that the model computes with. Beyond them it
// would divide by zero, wait for ever or take the host's memory.
#define TIMING_CONSTANTS(CONSTANT) \
  CONSTANT(chip, clock_mhz, real, 1, 1e6) \
  CONSTANT(chip, xcds, whole, 1, 32) \
  CONSTANT(chip, cus_per_xcd, whole, 1, 64) \
  CONSTANT(sampling, most_instructions, real, 0, 1e18) \
  CONSTANT(launch, overhead_ns, real, 0, 1e6) \
  CONSTANT(launch, dispatch_clocks, real, 0, 1e6) \
  CONSTANT(launch, workgroup_clocks, real, 0, 1e6) \
  CONSTANT(cu, simds, whole, 4, 16) \
  CONSTANT(cu, waves_per_simd, whole, 4, 64) \
  CONSTANT(cu, registers, whole, 512, 4096) \
  CONSTANT(cu, register_granule, whole, 1, 512) \
  CONSTANT(cu, lds_bytes, whole, 65536, 1 << 20) \
  CONSTANT(cu, lds_granule, whole, 1, 65536) \
  CONSTANT(cu, branch_clocks, real, 0, 1e6) \
  CONSTANT(cu, barrier_clocks, real, 0, 1e6) \
  CONSTANT(cu, waitcnt_clocks, real, 0, 1e6) \
  CONSTANT(cu, sleep_clocks, real, 0, 1e6) \
  CONSTANT(alu, vector_clocks, real, 0, 1e6) \
  CONSTANT(alu, transcendental_clocks, real, 0, 1e6) \
  CONSTANT(alu, multiply_clocks, real, 0, 1e6) \
  CONSTANT(alu, scalar_clocks, real, 0, 1e6) \
  CONSTANT(matrix, clocks_per_pass, real, 0, 1e6) \
  CONSTANT(matrix, issue_clocks, real, 0, 1e6) \
  CONSTANT(lds, banks, whole, 1, 1024) \
  CONSTANT(lds, port_bytes, real, 0.1, 1e6) \
  CONSTANT(lds, latency_clocks, real, 0, 1e6) \
  CONSTANT(lds, queue_clocks, real, 0, 1e6) \
  CONSTANT(l1, bytes, whole, 1, 1 << 20) \
  CONSTANT(l1, ways, whole, 1, 1024) \
  CONSTANT(l1, hit_clocks, real, 0, 1e6) \
  CONSTANT(l1, port_bytes, real, 0.1, 1e6) \
  CONSTANT(l1, to_lds_bytes, real, 0.1, 1e6) \
  CONSTANT(l1, fill_bytes, real, 0.1, 1e6) \
  CONSTANT(l1, tags_per_clock, real, 0.01, 1e6) \
  CONSTANT(l1, queue_clocks, real, 0, 1e6) \
  CONSTANT(l1, outstanding_lines, whole, 1, 1 << 20) \
  CONSTANT(scalar_cache, bytes, whole, 1, 1 << 20) \
  CONSTANT(scalar_cache, ways, whole, 1, 1024) \
  CONSTANT(scalar_cache, hit_clocks, real, 0, 1e6) \
  CONSTANT(scalar_cache, miss_clocks, real, 0, 1e6) \
  CONSTANT(l2, bytes, whole, 1, 1 << 26) \
  CONSTANT(l2, ways, whole, 1, 1024) \
  CONSTANT(l2, channels, whole, 1, 1024) \
  CONSTANT(l2, channel_bytes, real, 0.1, 1e6) \
  CONSTANT(l2, channel_write_bytes, real, 0.1, 1e6) \
  CONSTANT(l2, hit_clocks, real, 1, 1e6) \
  CONSTANT(tlb, reach_bytes, whole, 4096, 1 << 30) \
  CONSTANT(tlb, page_bytes, whole, 4096, 1 << 30) \
  CONSTANT(tlb, miss_ns, real, 0, 1e6) \
  CONSTANT(fabric, xcd_bytes_per_ns, real, 0.1, 1e6) \
  CONSTANT(fabric, xcd_write_bytes_per_ns, real, 0.1, 1e6) \
  CONSTANT(mall, bytes, whole, 1, 1 << 30) \
  CONSTANT(mall, ways, whole, 1, 1024) \
  CONSTANT(mall, slices, whole, 1, 4096) \
  CONSTANT(mall, bytes_per_ns, real, 0.1, 1e6) \
  CONSTANT(mall, extra_ns, real, 0, 1e6) \
  CONSTANT(hbm, bytes_per_ns, real, 0.1, 1e6) \
  CONSTANT(hbm, extra_ns, real, 0, 1e6)

struct Constants {
#define CONSTANT(section, name, kind, least, most) double section##_##name = -1;
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
