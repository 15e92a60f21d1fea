// Function attributes and occupancy: the resources that a kernel needs, and how many of its blocks fit into a CU.
#include "occupancy.h"

#include <algorithm>
#include <climits>

#include "../base/abi.h"
#include "../base/host_memory.h"
#include "../base/status.h"
#include "../device/device.h"
#include "../modules/module.h"
#include "../modules/registration.h"

namespace {

constexpr int kIsaVersion = 94;  // of the target, as major * 10 + minor

hipFuncAttributes attributes_of(const KernelInfo& kernel) {
  hipFuncAttributes attributes = {};
  attributes.binaryVersion = kIsaVersion;
  attributes.ptxVersion = kIsaVersion;
  attributes.localSizeBytes = kernel.descriptor.scratch_bytes;
  attributes.maxDynamicSharedSizeBytes =
      static_cast<int>(device::kLdsBytes) - static_cast<int>(kernel.descriptor.lds_bytes);
  attributes.maxThreadsPerBlock = static_cast<int>(std::min<uint32_t>(kernel.max_block_threads, INT_MAX));
  attributes.numRegs = static_cast<int>(kernel.vgprs);
  attributes.sharedSizeBytes = kernel.descriptor.lds_bytes;
  return attributes;
}

int attribute_of(const KernelInfo& kernel, int selector) {
  const hipFuncAttributes a = attributes_of(kernel);
  switch (selector) {
    case HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return a.maxThreadsPerBlock;
    case HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: return static_cast<int>(a.sharedSizeBytes);
    case HIP_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: return static_cast<int>(a.constSizeBytes);
    case HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: return static_cast<int>(a.localSizeBytes);
    case HIP_FUNC_ATTRIBUTE_NUM_REGS: return a.numRegs;
    case HIP_FUNC_ATTRIBUTE_PTX_VERSION: return a.ptxVersion;
    case HIP_FUNC_ATTRIBUTE_BINARY_VERSION: return a.binaryVersion;
    case HIP_FUNC_ATTRIBUTE_CACHE_MODE_CA: return a.cacheModeCA;
    case HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: return a.maxDynamicSharedSizeBytes;
    case HIP_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: return a.preferredShmemCarveout;
  }
  fail(hipErrorInvalidValue, "%d is not a function attribute", selector);
}

// Finds the largest block, in whole waves, with which the most threads are resident.
void best_block(Out<int> grid, Out<int> block, const KernelInfo& kernel, size_t dynamic_lds, int limit) {
  require(grid, "gridSize");
  require(block, "blockSize");
  int most = static_cast<int>(std::min<uint32_t>(kernel.max_block_threads, device::kMaxBlockThreads));
  if (limit > 0) most = std::min(most, limit);
  int best_threads = 0, best_resident = 0;
  for (int threads = most; threads > 0; threads = (threads - 1) / device::kWaveSize * device::kWaveSize) {
    const int resident = blocks_per_compute_unit(kernel, threads, dynamic_lds) * threads;
    if (resident <= best_resident) continue;
    best_resident = resident;
    best_threads = threads;
  }
  if (best_threads == 0) {
    fail(hipErrorInvalidValue, "no block of kernel %s fits with %zu bytes of dynamic LDS", kernel.name.c_str(),
         dynamic_lds);
  }
  grid.give(best_resident / best_threads * device::kComputeUnits);
  block.give(best_threads);
}

void count_blocks(Out<int> blocks, const KernelInfo& kernel, int block_threads, size_t dynamic_lds) {
  require(blocks, "numBlocks");
  blocks.give(blocks_per_compute_unit(kernel, block_threads, dynamic_lds));
}

}  // namespace

int blocks_per_compute_unit(const KernelInfo& kernel, int block_threads, size_t dynamic_lds) {
  if (block_threads <= 0) fail(hipErrorInvalidValue, "a block of %d threads", block_threads);
  if (block_threads > device::kMaxBlockThreads || static_cast<uint32_t>(block_threads) > kernel.max_block_threads) {
    return 0;
  }
  const int waves = (block_threads + device::kWaveSize - 1) / device::kWaveSize;
  if (dynamic_lds > device::kLdsBytes) return 0;
  const auto lds = static_cast<uint32_t>(kernel.descriptor.lds_bytes + dynamic_lds);
  return device::Occupancy(waves, kernel.descriptor.all_vector_registers(), lds).workgroups();
}

HIP_API hipError_t hipFuncGetAttribute(Out<int> value, hipFunction_attribute selector, hipFunction_t function) {
  return api_giving(__func__, value, "value", [&] { return attribute_of(*function_of(function)->kernel, selector); });
}

HIP_API hipError_t hipFuncGetAttributes(Out<hipFuncAttributes> attributes, const void* host_function) {
  return api_giving(__func__, attributes, "attributes", [&] {
    return attributes_of(*registered_function(host_function)->kernel);
  });
}

// Every kernel may use all of the LDS, so there is nothing to set; the value is only checked.
HIP_API hipError_t hipFuncSetAttribute(const void* host_function, hipFuncAttribute selector, int value) {
  return api(__func__, [&] {
    const int most = attributes_of(*registered_function(host_function)->kernel).maxDynamicSharedSizeBytes;
    switch (selector) {
      case hipFuncAttributeMaxDynamicSharedMemorySize:
        if (value < 0 || value > most) fail(hipErrorInvalidValue, "%d bytes of dynamic LDS, of %d left", value, most);
        return;
      case hipFuncAttributePreferredSharedMemoryCarveout: return;
    }
    fail(hipErrorInvalidValue, "%d is not a function attribute that can be set", static_cast<int>(selector));
  });
}

HIP_API hipError_t hipFuncSetCacheConfig(const void* host_function, int) {
  return api(__func__, [&] { registered_function(host_function); });
}

HIP_API hipError_t hipFuncSetSharedMemConfig(const void* host_function, int) {
  return api(__func__, [&] { registered_function(host_function); });
}

HIP_API hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessor(Out<int> blocks, const void* host_function,
                                                                int block_threads, size_t dynamic_lds) {
  return api(__func__,
             [&] { count_blocks(blocks, *registered_function(host_function)->kernel, block_threads, dynamic_lds); });
}

HIP_API hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(Out<int> blocks, const void* host_function,
                                                                         int block_threads, size_t dynamic_lds,
                                                                         unsigned) {
  return api(__func__,
             [&] { count_blocks(blocks, *registered_function(host_function)->kernel, block_threads, dynamic_lds); });
}

HIP_API hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(Out<int> blocks, hipFunction_t function,
                                                                      int block_threads, size_t dynamic_lds) {
  return api(__func__, [&] { count_blocks(blocks, *function_of(function)->kernel, block_threads, dynamic_lds); });
}

HIP_API hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(Out<int> blocks, hipFunction_t function,
                                                                               int block_threads, size_t dynamic_lds,
                                                                               unsigned) {
  return api(__func__, [&] { count_blocks(blocks, *function_of(function)->kernel, block_threads, dynamic_lds); });
}

HIP_API hipError_t hipOccupancyMaxPotentialBlockSize(Out<int> grid, Out<int> block, const void* host_function,
                                                     size_t dynamic_lds, int limit) {
  return api(__func__,
             [&] { best_block(grid, block, *registered_function(host_function)->kernel, dynamic_lds, limit); });
}

HIP_API hipError_t hipModuleOccupancyMaxPotentialBlockSize(Out<int> grid, Out<int> block, hipFunction_t function,
                                                           size_t dynamic_lds, int limit) {
  return api(__func__, [&] { best_block(grid, block, *function_of(function)->kernel, dynamic_lds, limit); });
}

HIP_API hipError_t hipModuleOccupancyMaxPotentialBlockSizeWithFlags(Out<int> grid, Out<int> block,
                                                                    hipFunction_t function, size_t dynamic_lds,
                                                                    int limit, unsigned) {
  return api(__func__, [&] { best_block(grid, block, *function_of(function)->kernel, dynamic_lds, limit); });
}
