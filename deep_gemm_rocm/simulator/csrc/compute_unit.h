// A compute unit of the MI300X, and how many workgroups of a kernel it holds at a time. Numbers: CDNA3 ISA manual and
// LLVM AMDGPU usage.
#pragma once

#include <algorithm>
#include <cstdint>

namespace device {

constexpr int kSimdsPerComputeUnit = 4;
constexpr int kWavesPerSimd = 8;
constexpr int kWaveSize = 64;
constexpr int kRegistersPerLane = 512;  // VGPRs and AccVGPRs share them
constexpr int kRegisterGranule = 8;     // registers are given to a wave in this unit
constexpr int kMaxWavesPerComputeUnit = kSimdsPerComputeUnit * kWavesPerSimd;
constexpr uint32_t kLdsBytes = 64 << 10;  // of a compute unit, and the most that a workgroup may have
constexpr uint32_t kLdsGranule = 512;

}  // namespace device

// Registers of one lane that a wave occupies, VGPRs and AccVGPRs together: GRANULATED_WORKITEM_VGPR_COUNT of
// COMPUTE_PGM_RSRC1, in units of 8 less one.
inline int allocated_registers(uint32_t compute_pgm_rsrc1) {
  return int((compute_pgm_rsrc1 & 0x3F) + 1) * device::kRegisterGranule;
}

// Workgroups that fit into a compute unit, by each thing that they share.
struct Residency {
  int by_wave_slots, by_registers, by_lds;

  // `registers` as allocated, `lds_bytes` dynamic ones included.
  Residency(int waves, int registers, uint32_t lds_bytes) {
    using namespace device;
    by_wave_slots = kMaxWavesPerComputeUnit / waves;
    by_registers = kRegistersPerLane / registers * kSimdsPerComputeUnit / waves;
    const uint32_t granules = std::max(1u, (lds_bytes + kLdsGranule - 1) / kLdsGranule);
    by_lds = int(kLdsBytes / kLdsGranule / granules);
  }
  int workgroups() const { return std::min({by_wave_slots, by_registers, by_lds}); }
};
