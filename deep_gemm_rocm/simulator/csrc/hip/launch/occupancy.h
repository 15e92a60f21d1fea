// Occupancy: how many blocks of a kernel fit into a CU.
#pragma once

#include <cstddef>

#include "../modules/code_object.h"

// 0 where a block doesn't fit.
int blocks_per_compute_unit(const KernelInfo& kernel, int block_threads, size_t dynamic_lds);
