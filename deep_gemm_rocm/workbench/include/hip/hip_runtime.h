// HIP's device language for machines without ROCm: enough for kernels, not all of HIP. docs/workbench.md has the list.
// The compiler reads this file before the user's own (-include), as ROCm's clang reads its wrapper: the standard
// library's <cmath> then finds the device functions and offers them as std::exp and so on.
#pragma once

#include "hip_runtime_api.h"
#include "hip_vector_types.h"

#include "device/coordinates.h"
#include "device/synchronization.h"
#include "device/bits.h"
#include "device/math_f64.h"
#include "device/math_f32.h"
#include "device/math_parts.h"
#include "device/math_mixed.h"
#include "device/warp.h"
#include "device/atomics.h"
#include "device/failures.h"
