// What the simulated device is. Numbers: AMD Instinct MI300X data sheet and the CDNA3 ISA manual.
#pragma once

#include <cstddef>
#include <cstdint>

namespace device {

constexpr char kName[] = "AMD Instinct MI300X (simulated)";
constexpr char kProcessor[] = "gfx942";
constexpr char kTarget[] = "gfx942:sramecc+:xnack-";

constexpr int kComputeUnits = 304;
constexpr int kSimdsPerComputeUnit = 4;
constexpr int kWavesPerSimd = 8;
constexpr int kWaveSize = 64;
constexpr int kRegistersPerLane = 512;  // VGPRs and AccVGPRs share them
constexpr int kRegisterGranule = 8;     // registers are given to a wave in this unit
constexpr int kMaxBlockThreads = 1024;
constexpr int kMaxWavesPerComputeUnit = kSimdsPerComputeUnit * kWavesPerSimd;
constexpr uint32_t kLdsBytes = 64 << 10;  // of a compute unit, and the most that a workgroup may have
constexpr uint32_t kLdsGranule = 512;
constexpr uint64_t kMemoryBytes = 192ull << 30;

}  // namespace device

// Fails with hipErrorInvalidDevice unless the number is that of the one device.
void require_device(int number);
