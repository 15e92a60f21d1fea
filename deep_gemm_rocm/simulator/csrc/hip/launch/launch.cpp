#include "launch.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "../base/host_memory.h"
#include "../base/stack_limit.h"
#include "../base/status.h"
#include "../device/device.h"
#include "../memory/memory_map.h"
#include "../modules/registration.h"
#include "../streams/stream.h"
#include "debugger.h"
#include "engine_library.h"
#include "grid_sync.h"
#include "host_calls.h"
#include "occupancy.h"
#include "records.h"

namespace {

// HIP's markers in `extra`.
void* const kBufferPointer = reinterpret_cast<void*>(1);
void* const kBufferSize = reinterpret_cast<void*>(2);
void* const kEnd = reinterpret_cast<void*>(3);

uint64_t hidden_value(const KernelInfo& kernel, ArgumentKind kind, const LaunchShape& shape) {
  switch (kind) {
    case ArgumentKind::hidden_block_count_x: return shape.grid.x;
    case ArgumentKind::hidden_block_count_y: return shape.grid.y;
    case ArgumentKind::hidden_block_count_z: return shape.grid.z;
    case ArgumentKind::hidden_group_size_x: return shape.block.x;
    case ArgumentKind::hidden_group_size_y: return shape.block.y;
    case ArgumentKind::hidden_group_size_z: return shape.block.z;
    case ArgumentKind::hidden_dynamic_lds_size: return shape.dynamic_lds;
    // AMD's runtime always reports 3 dimensions.
    case ArgumentKind::hidden_grid_dims: return 3;
    // Every block is whole and the grid begins at 0.
    case ArgumentKind::hidden_remainder_x:
    case ArgumentKind::hidden_remainder_y:
    case ArgumentKind::hidden_remainder_z:
    case ArgumentKind::hidden_global_offset_x:
    case ArgumentKind::hidden_global_offset_y:
    case ArgumentKind::hidden_global_offset_z:
    case ArgumentKind::hidden_none: return 0;
    // The heap of device malloc, which the simulator doesn't have. Using it is an illegal access.
    case ArgumentKind::hidden_heap_v1: return mi300x::device_heap;
    case ArgumentKind::hidden_hostcall_buffer:     // differ from run to run, see KernelWork::run
    case ArgumentKind::hidden_multigrid_sync_arg:
    case ArgumentKind::hidden_printf_buffer:       // see require_services
    case ArgumentKind::hidden_default_queue:
    case ArgumentKind::hidden_completion_action:
    case ArgumentKind::hidden_queue_ptr: return 0;
    default:
      fail(hipErrorNotSupported,
           "kernel %s takes hidden_private_base or hidden_shared_base, which only targets without aperture registers "
           "need",
           kernel.name.c_str());
  }
}

// Null where the kernel doesn't take it.
const KernelArgument* find_argument(const KernelInfo& kernel, ArgumentKind kind) {
  for (const KernelArgument& argument : kernel.arguments) {
    if (argument.kind == kind) return &argument;
  }
  return nullptr;
}

// Refuses kernels that are known to print by way of a buffer that the host reads after they have ended. The compiler
// drops hidden arguments that a kernel doesn't use, except in unoptimised code or where it can't tell. Such kernels are
// recognised by the queue's argument, which only OpenCL uses.
void require_services(const KernelInfo& kernel) {
  if (find_argument(kernel, ArgumentKind::hidden_default_queue)) return;
  if (find_argument(kernel, ArgumentKind::hidden_printf_buffer)) {
    fail(hipErrorNotSupported,
         "kernel %s was compiled with -mprintf-kind=buffered, which the simulated MI300X does not offer; compile it "
         "with -mprintf-kind=hostcall",
         kernel.name.c_str());
  }
}

bool is_plain(ArgumentKind kind) { return kind == ArgumentKind::by_value || kind == ArgumentKind::global_buffer; }

void require_shape(const KernelInfo& kernel, const LaunchShape& shape) {
  const char* name = kernel.name.c_str();
  const auto [gx, gy, gz] = shape.grid;
  const auto [bx, by, bz] = shape.block;
  if (gx == 0 || gy == 0 || gz == 0) {
    fail(hipErrorInvalidConfiguration, "kernel %s: the grid of %u x %u x %u blocks is empty", name, gx, gy, gz);
  }
  if (bx == 0 || by == 0 || bz == 0) {
    fail(hipErrorInvalidConfiguration, "kernel %s: the block of %u x %u x %u threads is empty", name, bx, by, bz);
  }
  for (const uint32_t extent : {bx, by, bz}) {
    if (extent > device::kMaxBlockThreads) {
      fail(hipErrorInvalidConfiguration, "kernel %s: a block of %u x %u x %u threads, at most %d fit", name, bx, by, bz,
           device::kMaxBlockThreads);
    }
  }
  const uint64_t threads = shape.threads_of_block();
  if (threads > device::kMaxBlockThreads) {
    fail(hipErrorInvalidConfiguration, "kernel %s: a block of %u x %u x %u = %llu threads, at most %d fit", name, bx,
         by, bz, static_cast<unsigned long long>(threads), device::kMaxBlockThreads);
  }
  if (threads > kernel.max_block_threads) {
    fail(hipErrorLaunchFailure, "kernel %s: a block of %llu threads, but it was compiled for at most %u", name,
         static_cast<unsigned long long>(threads), kernel.max_block_threads);
  }
  const auto [rx, ry, rz] = kernel.required_block;
  if (rx != 0 && (bx != rx || by != ry || bz != rz)) {
    fail(hipErrorInvalidConfiguration,
         "kernel %s: a block of %u x %u x %u threads, but it was compiled for %u x %u x %u", name, bx, by, bz, rx, ry,
         rz);
  }
  // The dispatch packet counts work-items in 32 bits for each dimension.
  const std::pair<uint32_t, uint32_t> dimensions[] = {{gx, bx}, {gy, by}, {gz, bz}};
  for (const auto& [blocks, extent] : dimensions) {
    if (uint64_t{blocks} * extent > UINT32_MAX) {
      fail(hipErrorInvalidConfiguration, "kernel %s: %u blocks of %u threads in one dimension are more than 2^32 - 1",
           name, blocks, extent);
    }
  }
  if (shape.dynamic_lds > device::kLdsBytes || kernel.descriptor.lds_bytes + shape.dynamic_lds > device::kLdsBytes) {
    fail(hipErrorInvalidConfiguration, "kernel %s: %u bytes of LDS and %zu dynamic ones, a workgroup has %u", name,
         kernel.descriptor.lds_bytes, shape.dynamic_lds, device::kLdsBytes);
  }
}

// HIP refuses cooperative launches whose blocks don't all fit on the device at once.
void require_room(const KernelInfo& kernel, const LaunchShape& shape) {
  const auto threads = static_cast<int>(shape.threads_of_block());
  const int fitting = blocks_per_compute_unit(kernel, threads, shape.dynamic_lds) * device::kComputeUnits;
  if (shape.blocks() <= static_cast<uint64_t>(fitting)) return;
  fail(hipErrorCooperativeLaunchTooLarge,
       "kernel %s: a cooperative launch of %llu blocks, %d fit on the device at once", kernel.name.c_str(),
       static_cast<unsigned long long>(shape.blocks()), fitting);
}

struct PlaceOfFailure {
  uint64_t offset = mi300x::Outcome::nowhere, other_offset = mi300x::Outcome::nowhere, address = 0;
};
thread_local PlaceOfFailure last_failure;

hipError_t status_of(mi300x::Outcome::Status status) {
  switch (status) {
    case mi300x::Outcome::Status::ok: return hipSuccess;
    case mi300x::Outcome::Status::invalid_dispatch: return hipErrorInvalidConfiguration;
    case mi300x::Outcome::Status::memory_fault: return hipErrorIllegalAddress;
    case mi300x::Outcome::Status::deadlock: return hipErrorLaunchTimeOut;
    default: return hipErrorLaunchFailure;
  }
}

// A description of where the memory at fault was freed; empty if it wasn't.
std::string past_of(uint64_t address) {
  const std::optional<FreedBlock> freed = MemoryMap::instance().find_freed(address);
  if (!freed) return "";
  return "; the memory was freed: byte " + std::to_string(address - freed->begin) + " of " +
         std::to_string(freed->end - freed->begin) + " that " + freed->allocated_by + " allocated and " +
         freed->freed_by + " freed";
}

// A kernel by the address of its host stub or by its handle.
std::shared_ptr<const Function> function_named(const void* name) {
  if (is_registered(name)) return registered_function(name);
  return function_of(static_cast<hipFunction_t>(const_cast<void*>(name)));
}

}  // namespace

KernelArguments KernelArguments::from_pointers(const KernelInfo& kernel, In<void*> arguments,
                                               const LaunchShape& shape) {
  KernelArguments result(kernel);
  size_t index = 0;
  for (const KernelArgument& argument : kernel.arguments) {
    if (argument.is_hidden()) continue;
    if (!is_plain(argument.kind)) {
      fail(hipErrorNotSupported, "kernel %s: argument %zu is an OpenCL object, which HIP does not pass",
           kernel.name.c_str(), index);
    }
    const void* source = arguments.at(index, "the array of kernel arguments");
    if (!source || !is_readable(source, argument.size)) {
      fail(hipErrorInvalidValue, "kernel %s: the pointer to argument %zu is %p, where %u bytes can't be read",
           kernel.name.c_str(), index, source, argument.size);
    }
    std::memcpy(result.at(argument.offset), source, argument.size);
    ++index;
  }
  result.fill_hidden(kernel, shape);
  return result;
}

KernelArguments KernelArguments::from_buffer(const KernelInfo& kernel, In<void*> extra, const LaunchShape& shape) {
  const void* buffer = nullptr;
  const size_t* size = nullptr;
  for (size_t i = 0;; i += 2) {
    const void* key = extra.at(i, "extra");
    if (key == kEnd) break;
    const void* value = extra.at(i + 1, "extra");
    if (key == kBufferPointer) {
      buffer = value;
    } else if (key == kBufferSize) {
      size = static_cast<const size_t*>(value);
    } else {
      fail(hipErrorInvalidValue, "extra holds %p where a HIP_LAUNCH_PARAM_ marker is due", key);
    }
  }
  if (!buffer || !size) {
    fail(hipErrorInvalidValue, "extra lacks HIP_LAUNCH_PARAM_BUFFER_POINTER or HIP_LAUNCH_PARAM_BUFFER_SIZE");
  }
  size_t bytes;
  read_from_host(&bytes, size, sizeof bytes, "the size of the argument buffer");
  const uint32_t needed = kernel.explicit_kernarg_bytes();
  if (bytes < needed) {
    fail(hipErrorInvalidValue, "kernel %s takes %u bytes of arguments, the buffer has %zu", kernel.name.c_str(), needed,
         bytes);
  }
  KernelArguments result(kernel);
  read_from_host(result.at(0), buffer, needed, "the argument buffer");
  result.fill_hidden(kernel, shape);
  return result;
}

void KernelArguments::fill_hidden(const KernelInfo& kernel, const LaunchShape& shape) {
  for (const KernelArgument& argument : kernel.arguments) {
    if (!argument.is_hidden() || argument.kind == ArgumentKind::hidden_none) continue;
    const uint64_t value = hidden_value(kernel, argument.kind, shape);
    std::memcpy(at(argument.offset), &value, argument.size);
  }
}

KernelWork KernelWork::prepare(std::shared_ptr<const Function> function, const void* named, const LaunchShape& shape,
                               In<void*> arguments, In<void*> extra) {
  last_failure = {};  // a launch that is refused fails at no instruction
  const KernelInfo& kernel = *function->kernel;
  require_services(kernel);
  require_shape(kernel, shape);
  if (shape.cooperative) require_room(kernel, shape);
  if (arguments && extra) fail(hipErrorInvalidValue, "both kernelParams and extra are given");
  if (!arguments && !extra && kernel.explicit_kernarg_bytes() > 0) {
    fail(hipErrorInvalidValue, "kernel %s takes arguments, and neither kernelParams nor extra is given",
         kernel.name.c_str());
  }
  KernelArguments kernarg = extra ? KernelArguments::from_buffer(kernel, extra, shape)
                                  : KernelArguments::from_pointers(kernel, arguments, shape);
  return {std::move(function), const_cast<void*>(named), shape, std::move(kernarg)};
}

KernelWork KernelWork::described_by(const hipKernelNodeParams& p) {
  const LaunchShape shape{p.gridDim, p.blockDim, p.sharedMemBytes};
  return prepare(function_named(p.func), p.func, shape, p.kernelParams, p.extra);
}

hipKernelNodeParams KernelWork::description(std::vector<void*>& pointers) const {
  pointers.clear();
  for (const KernelArgument& argument : function->kernel->arguments) {
    if (!argument.is_hidden()) pointers.push_back(const_cast<uint8_t*>(arguments.at(argument.offset)));
  }
  return {shape.block, nullptr, named, shape.grid, pointers.data(), static_cast<unsigned>(shape.dynamic_lds)};
}

// The place of the thread's last failed kernel, in bytes from the start of the code: of the instruction, and of the
// other access of a race (all ones where there is none); and the address of the memory at fault, or 0. False where the
// thread's last kernel didn't fail at an instruction.
HIP_API bool dgSimLastFailure(Out<uint64_t> offset, Out<uint64_t> other_offset, Out<uint64_t> address) {
  return answer([&] {
    require(offset, "the offset");
    require(other_offset, "the other offset");
    require(address, "the address");
    offset.give(last_failure.offset);
    other_offset.give(last_failure.other_offset);
    address.give(last_failure.address);
    return last_failure.offset != mi300x::Outcome::nowhere;
  });
}

void KernelWork::run() const {
  const KernelInfo& kernel = *function->kernel;
  mi300x::Kernel descriptor = kernel.descriptor;
  // The compiler couldn't bound the depth of calls, so the stack gets hipLimitStackSize on top.
  if (kernel.uses_dynamic_stack) descriptor.scratch_bytes += static_cast<uint32_t>(stack_limit());

  mi300x::Engine& machine = engine();
  MemoryMap::instance().forget_writes();
  KernelArguments kernarg = arguments;
  std::optional<GridSync> grid;
  const KernelArgument* sync = find_argument(kernel, ArgumentKind::hidden_multigrid_sync_arg);
  if (shape.cooperative && sync) {
    grid.emplace(shape.blocks(), shape.blocks() * shape.threads_of_block());
    kernarg.set(sync->offset, grid->address());
  }
  const MemoryMap::Lease memory = MemoryMap::instance().lease();
  mi300x::Dispatch dispatch;
  dispatch.kernel = &descriptor;
  dispatch.grid = shape.grid;
  dispatch.block = shape.block;
  dispatch.dynamic_lds = static_cast<uint32_t>(shape.dynamic_lds);
  std::unique_ptr<HostCalls> host;
  if (const KernelArgument* buffer = find_argument(kernel, ArgumentKind::hidden_hostcall_buffer)) {
    host = std::make_unique<HostCalls>();
    kernarg.set(buffer->offset, host->address());
  }
  dispatch.kernarg = kernarg.data();
  dispatch.host = host.get();
  dispatch.memory = memory.ranges->data();
  dispatch.memory_count = memory.ranges->size();
  attach_sinks(dispatch);
  dispatch.debugger = thread_debugger();
  const mi300x::Outcome outcome = [&] {
    const MayFork may_fork;
    return machine.run(dispatch);
  }();
  advance_device_clock(outcome.nanoseconds);
  last_failure = {outcome.offset, outcome.other_offset, outcome.address};
  if (outcome.status == mi300x::Outcome::Status::ok) return;
  fail(status_of(outcome.status), "%s%s", outcome.message, past_of(outcome.address).c_str());
}

namespace {

// hipExt… launches count the grid in threads.
dim3 blocks_of(const dim3& threads, const dim3& block) {
  if (block.x == 0 || block.y == 0 || block.z == 0) return threads;  // refused later, with the block named
  if (threads.x % block.x != 0 || threads.y % block.y != 0 || threads.z % block.z != 0) {
    fail(hipErrorInvalidConfiguration, "a grid of %u x %u x %u threads is no multiple of the block, %u x %u x %u",
         threads.x, threads.y, threads.z, block.x, block.y, block.z);
  }
  return {threads.x / block.x, threads.y / block.y, threads.z / block.z};
}

}  // namespace

namespace {

bool is_cooperative(In<hipLaunchAttribute> attributes, unsigned count) {
  bool result = false;
  for (const hipLaunchAttribute& attribute : attributes.read(count, "the launch's attributes")) {
    if (attribute.id == hipLaunchAttributeCooperative) result = attribute.cooperative != 0;
  }
  return result;
}

}  // namespace

HIP_API hipError_t hipLaunchKernelExC(In<hipLaunchConfig_t> config, const void* host_function,
                                      In<void*> arguments) {
  return api(__func__, [&] {
    const hipLaunchConfig_t c = config.read("the configuration");
    const LaunchShape shape{c.gridDim, c.blockDim, c.dynamicSmemBytes, is_cooperative(c.attrs, c.numAttrs)};
    submit(c.stream, KernelWork::prepare(function_named(host_function), host_function, shape, arguments, nullptr));
  });
}

HIP_API hipError_t hipDrvLaunchKernelEx(In<HIP_LAUNCH_CONFIG> config, hipFunction_t function, In<void*> arguments,
                                        In<void*> extra) {
  return api(__func__, [&] {
    const HIP_LAUNCH_CONFIG c = config.read("the configuration");
    const LaunchShape shape{c.gridDim, c.blockDim, c.sharedMemBytes, is_cooperative(c.attrs, c.numAttrs)};
    submit(c.hStream, KernelWork::prepare(function_of(function), function, shape, arguments, extra));
  });
}

HIP_API hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                         unsigned block_x, unsigned block_y, unsigned block_z, unsigned dynamic_lds,
                                         hipStream_t stream, In<void*> arguments, In<void*> extra) {
  return api(__func__, [&] {
    const LaunchShape shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, dynamic_lds};
    submit(stream, KernelWork::prepare(function_of(function), function, shape, arguments, extra));
  });
}

HIP_API hipError_t hipLaunchCooperativeKernel(const void* host_function, dim3 grid, dim3 block, In<void*> arguments,
                                              unsigned dynamic_lds, hipStream_t stream) {
  return api(__func__, [&] {
    const LaunchShape shape{grid, block, dynamic_lds, true};
    submit(stream, KernelWork::prepare(function_named(host_function), host_function, shape, arguments, nullptr));
  });
}

HIP_API hipError_t hipModuleLaunchCooperativeKernel(hipFunction_t function, unsigned grid_x, unsigned grid_y,
                                                    unsigned grid_z, unsigned block_x, unsigned block_y,
                                                    unsigned block_z, unsigned dynamic_lds, hipStream_t stream,
                                                    In<void*> arguments) {
  return api(__func__, [&] {
    const LaunchShape shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, dynamic_lds, true};
    submit(stream, KernelWork::prepare(function_of(function), function, shape, arguments, nullptr));
  });
}

HIP_API hipError_t hipExtModuleLaunchKernel(hipFunction_t function, uint32_t threads_x, uint32_t threads_y,
                                            uint32_t threads_z, uint32_t block_x, uint32_t block_y, uint32_t block_z,
                                            size_t dynamic_lds, hipStream_t stream, In<void*> arguments,
                                            In<void*> extra, hipEvent_t start, hipEvent_t stop, uint32_t) {
  return api(__func__, [&] {
    const dim3 block{block_x, block_y, block_z};
    const dim3 grid = blocks_of({threads_x, threads_y, threads_z}, block);
    record_event(start, stream);
    submit(stream, KernelWork::prepare(function_of(function), function, {grid, block, dynamic_lds}, arguments, extra));
    record_event(stop, stream);
  });
}
