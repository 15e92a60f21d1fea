// Facts about the simulated device. Numbers: AMD Instinct MI300X data sheet and the CDNA3 ISA manual.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../hardware_limits.h"

namespace device {

constexpr char kName[] = "AMD Instinct MI300X (simulated)";
constexpr char kProcessor[] = "gfx942";
constexpr char kTarget[] = "gfx942:sramecc+:xnack-";

constexpr int kXcds = 8;
constexpr uint64_t kMemoryBytes = 192ull << 30;

}  // namespace device

// Fails with hipErrorInvalidDevice unless the number is that of the one device.
void require_device(int number);
