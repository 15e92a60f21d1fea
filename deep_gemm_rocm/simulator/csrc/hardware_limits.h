// The hardware's limits: what a compute unit (CU) offers, and how many workgroups of a kernel fit into one. Numbers:
// AMD Instinct MI300X data sheet, CDNA3 ISA manual and LLVM AMDGPU usage.
#pragma once

#include <algorithm>
#include <cstdint>

namespace device {

constexpr int kComputeUnits = 304;
constexpr int kSimdsPerComputeUnit = 4;
constexpr int kWavesPerSimd = 8;
constexpr int kWaveSize = 64;
constexpr int kMaxBlockThreads = 1024;
constexpr int kRegistersPerLane = 512;  // VGPRs and AccVGPRs share them
constexpr int kMaxWavesPerComputeUnit = kSimdsPerComputeUnit * kWavesPerSimd;
constexpr uint32_t kLdsBytes = 64 << 10;  // of a CU, and the most that a workgroup may have
constexpr uint32_t kLdsGranule = 512;

// Workgroups that fit into a CU, by each resource.
struct Occupancy {
  int by_wave_slots, by_registers, by_lds;

  // `registers` as allocated, `lds_bytes` with dynamic LDS.
  Occupancy(int waves, int registers, uint32_t lds_bytes)
      : by_wave_slots(kMaxWavesPerComputeUnit / waves),
        by_registers(kRegistersPerLane / registers * kSimdsPerComputeUnit / waves),
        by_lds(int(kLdsBytes / kLdsGranule / std::max(1u, (lds_bytes + kLdsGranule - 1) / kLdsGranule))) {}

  int workgroups() const { return std::min({by_wave_slots, by_registers, by_lds}); }
};

}  // namespace device
