// HIP's memory calls. Asynchronous ones are done when they return: a stream has no queue here.
#include <algorithm>
#include <cstring>

#include "abi.h"
#include "device.h"
#include "host_memory.h"
#include "memory_map.h"
#include "status.h"
#include "stream.h"

namespace {

constexpr size_t kPitchAlignment = 256;

uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

MemoryMap& memory() { return MemoryMap::instance(); }

void allocate(void** pointer, size_t size, MemoryKind kind, unsigned flags) {
  require(pointer, "the output pointer");
  *pointer = nullptr;
  if (size > 0) *pointer = memory().allocate(size, kind, flags);
}

void release(void* pointer) {
  if (pointer) memory().release(pointer);
}

// width bytes in each of height rows in each of depth slices.
struct Box {
  size_t width, height, depth;

  bool empty() const { return width == 0 || height == 0 || depth == 0; }
};

// Where a box lies in memory.
struct Placement {
  char* base;
  size_t pitch;        // bytes from row to row
  size_t slice_pitch;  // bytes from slice to slice

  // Bytes from the first to the last one of the box.
  size_t span(const Box& box, const char* name) const {
    if (box.height > 1 && pitch < box.width) {
      fail(hipErrorInvalidPitchValue, "%s: a pitch of %zu is less than the width of %zu bytes", name, pitch, box.width);
    }
    size_t rows, slices, bytes;
    if (__builtin_mul_overflow(box.height - 1, pitch, &rows) ||
        __builtin_mul_overflow(box.depth - 1, slice_pitch, &slices) || __builtin_add_overflow(rows, slices, &bytes) ||
        __builtin_add_overflow(bytes, box.width, &bytes)) {
      fail(hipErrorInvalidValue, "%s: %zu x %zu x %zu bytes with a pitch of %zu overflow the address space", name,
           box.width, box.height, box.depth, pitch);
    }
    return bytes;
  }

  char* row(size_t y, size_t z) const { return base + z * slice_pitch + y * pitch; }
};

void require_device_memory(const char* name, const void* pointer, size_t size) {
  if (memory().covers(address_of(pointer), size)) return;
  const auto block = memory().find(address_of(pointer));
  if (!block) {
    fail(hipErrorInvalidValue, "%s %p is neither allocated with HIP nor registered with hipHostRegister", name,
         pointer);
  }
  fail(hipErrorInvalidValue, "%s: %zu bytes from %p run past the end of the %llu bytes at %#llx", name, size, pointer,
       static_cast<unsigned long long>(block->size()), static_cast<unsigned long long>(block->begin));
}

void require_source(const char* name, const void* pointer, size_t size, bool on_device) {
  require(pointer, name);
  if (on_device) return require_device_memory(name, pointer, size);
  if (memory().covers(address_of(pointer), size)) return;
  if (!is_readable(pointer, size)) fail(hipErrorInvalidValue, "%s: %zu bytes at %p can't be read", name, size, pointer);
}

void require_destination(const char* name, void* pointer, size_t size, bool on_device) {
  require(pointer, name);
  if (on_device) return require_device_memory(name, pointer, size);
  if (memory().covers(address_of(pointer), size)) return;
  if (!is_writable(pointer, size)) {
    fail(hipErrorInvalidValue, "%s: %zu bytes at %p can't be written", name, size, pointer);
  }
}

struct Direction {
  bool source_on_device;
  bool destination_on_device;
};

Direction direction_of(hipMemcpyKind kind) {
  switch (kind) {
    case hipMemcpyHostToHost:
    case hipMemcpyDefault: return {false, false};  // either side may be anything: host checks admit device memory
    case hipMemcpyHostToDevice: return {false, true};
    case hipMemcpyDeviceToHost: return {true, false};
    case hipMemcpyDeviceToDevice:
    case hipMemcpyDeviceToDeviceNoCU: return {true, true};
  }
  fail(hipErrorInvalidMemcpyDirection, "%d is not a hipMemcpyKind", static_cast<int>(kind));
}

void copy_box(const Placement& destination, const Placement& source, const Box& box, hipMemcpyKind kind) {
  const Direction direction = direction_of(kind);
  if (box.empty()) return;
  require_source("source", source.base, source.span(box, "source"), direction.source_on_device);
  require_destination("destination", destination.base, destination.span(box, "destination"),
                      direction.destination_on_device);
  for (size_t z = 0; z < box.depth; ++z) {
    for (size_t y = 0; y < box.height; ++y) std::memmove(destination.row(y, z), source.row(y, z), box.width);
  }
}

void copy(void* destination, const void* source, size_t size, hipMemcpyKind kind) {
  copy_box({static_cast<char*>(destination), size, size}, {static_cast<char*>(const_cast<void*>(source)), size, size},
           {size, 1, 1}, kind);
}

void copy_2d(void* destination, size_t destination_pitch, const void* source, size_t source_pitch, size_t width,
             size_t height, hipMemcpyKind kind) {
  copy_box({static_cast<char*>(destination), destination_pitch, 0},
           {static_cast<char*>(const_cast<void*>(source)), source_pitch, 0}, {width, height, 1}, kind);
}

void copy_2d(const hip_Memcpy2D* p) {
  require(p, "the copy's description");
  const auto on_device = [](hipMemoryType type) {
    if (type == hipMemoryTypeArray) fail(hipErrorNotSupported, "the simulated MI300X has no arrays");
    return type != hipMemoryTypeHost;
  };
  const bool from_device = on_device(p->srcMemoryType), to_device = on_device(p->dstMemoryType);
  const auto* source = static_cast<const char*>(from_device ? p->srcDevice : p->srcHost);
  auto* destination = static_cast<char*>(to_device ? p->dstDevice : p->dstHost);
  require(source, "source");
  require(destination, "destination");
  const hipMemcpyKind kind = from_device ? (to_device ? hipMemcpyDeviceToDevice : hipMemcpyDeviceToHost)
                                         : (to_device ? hipMemcpyHostToDevice : hipMemcpyHostToHost);
  copy_2d(destination + p->dstY * p->dstPitch + p->dstXInBytes, p->dstPitch,
          source + p->srcY * p->srcPitch + p->srcXInBytes, p->srcPitch, p->WidthInBytes, p->Height, kind);
}

Placement placement_of(const hipPitchedPtr& pointer, const hipPos& position, const char* name) {
  require(pointer.ptr, name);
  const size_t slice_pitch = pointer.pitch * pointer.ysize;
  return {static_cast<char*>(pointer.ptr) + position.z * slice_pitch + position.y * pointer.pitch + position.x,
          pointer.pitch, slice_pitch};
}

void copy_3d(const hipMemcpy3DParms* p) {
  require(p, "the copy's description");
  if (p->srcArray || p->dstArray) fail(hipErrorNotSupported, "the simulated MI300X has no arrays");
  copy_box(placement_of(p->dstPtr, p->dstPos, "destination"), placement_of(p->srcPtr, p->srcPos, "source"),
           {p->extent.width, p->extent.height, p->extent.depth}, p->kind);
}

template <class Element>
void fill(void* destination, Element value, size_t count) {
  size_t size;
  if (__builtin_mul_overflow(count, sizeof(Element), &size)) fail(hipErrorInvalidValue, "%zu elements", count);
  if (size == 0) return;
  if (address_of(destination) % sizeof(Element) != 0) {
    fail(hipErrorInvalidValue, "destination %p is not aligned to %zu bytes", destination, sizeof(Element));
  }
  require_destination("destination", destination, size, true);
  std::fill_n(static_cast<Element*>(destination), count, value);
}

void fill_box(const Placement& destination, int value, const Box& box) {
  if (box.empty()) return;
  require_destination("destination", destination.base, destination.span(box, "destination"), true);
  for (size_t z = 0; z < box.depth; ++z) {
    for (size_t y = 0; y < box.height; ++y) std::memset(destination.row(y, z), value, box.width);
  }
}

Placement placement_of(const hipPitchedPtr& pointer) {
  return {static_cast<char*>(pointer.ptr), pointer.pitch, pointer.pitch * pointer.ysize};
}

void allocate_pitched(void** pointer, size_t* pitch, size_t width, size_t rows) {
  require(pitch, "pitch");
  size_t padded, size;
  if (__builtin_add_overflow(width, kPitchAlignment - 1, &padded) ||
      __builtin_mul_overflow(padded / kPitchAlignment * kPitchAlignment, rows, &size)) {
    fail(hipErrorOutOfMemory, "%zu rows of %zu bytes", rows, width);
  }
  allocate(pointer, size, MemoryKind::device, 0);
  *pitch = padded / kPitchAlignment * kPitchAlignment;
}

MemoryBlock block_at(const void* pointer) {
  const auto block = memory().find(address_of(pointer));
  if (!block) {
    fail(hipErrorInvalidValue, "%p is neither allocated with HIP nor registered with hipHostRegister", pointer);
  }
  return *block;
}

bool is_host_kind(MemoryKind kind) { return kind == MemoryKind::host || kind == MemoryKind::registered; }

hipPointerAttribute_t attributes_of(const void* pointer) {
  const MemoryBlock block = block_at(pointer);
  hipPointerAttribute_t attributes = {};
  attributes.type = block.kind == MemoryKind::managed ? hipMemoryTypeManaged
                    : is_host_kind(block.kind)        ? hipMemoryTypeHost
                                                      : hipMemoryTypeDevice;
  attributes.devicePointer = const_cast<void*>(pointer);
  attributes.hostPointer = attributes.type == hipMemoryTypeDevice ? nullptr : const_cast<void*>(pointer);
  attributes.isManaged = block.kind == MemoryKind::managed;
  attributes.allocationFlags = block.flags;
  return attributes;
}

}  // namespace

// ---- allocation

HIP_API hipError_t hipMalloc(void** pointer, size_t size) {
  return api(__func__, [&] { allocate(pointer, size, MemoryKind::device, 0); });
}

HIP_API hipError_t hipExtMallocWithFlags(void** pointer, size_t size, unsigned flags) {
  return api(__func__, [&] { allocate(pointer, size, MemoryKind::device, flags); });
}

HIP_API hipError_t hipMallocAsync(void** pointer, size_t size, hipStream_t stream) {
  return api(__func__, [&] {
    require_stream(stream);
    allocate(pointer, size, MemoryKind::device, 0);
  });
}

HIP_API hipError_t hipMallocManaged(void** pointer, size_t size, unsigned flags) {
  return api(__func__, [&] { allocate(pointer, size, MemoryKind::managed, flags); });
}

HIP_API hipError_t hipHostMalloc(void** pointer, size_t size, unsigned flags) {
  return api(__func__, [&] { allocate(pointer, size, MemoryKind::host, flags); });
}

HIP_API hipError_t hipHostAlloc(void** pointer, size_t size, unsigned flags) {
  return api(__func__, [&] { allocate(pointer, size, MemoryKind::host, flags); });
}

HIP_API hipError_t hipExtHostAlloc(void** pointer, size_t size, unsigned flags) {
  return api(__func__, [&] { allocate(pointer, size, MemoryKind::host, flags); });
}

HIP_API hipError_t hipMallocHost(void** pointer, size_t size) {
  return api(__func__, [&] { allocate(pointer, size, MemoryKind::host, 0); });
}

HIP_API hipError_t hipMemAllocHost(void** pointer, size_t size) {
  return api(__func__, [&] { allocate(pointer, size, MemoryKind::host, 0); });
}

HIP_API hipError_t hipMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  return api(__func__, [&] { allocate_pitched(pointer, pitch, width, height); });
}

HIP_API hipError_t hipMemAllocPitch(hipDeviceptr_t* pointer, size_t* pitch, size_t width, size_t height, unsigned) {
  return api(__func__, [&] { allocate_pitched(pointer, pitch, width, height); });
}

HIP_API hipError_t hipMalloc3D(hipPitchedPtr* pointer, hipExtent extent) {
  return api(__func__, [&] {
    require(pointer, "the output pointer");
    size_t rows;
    if (__builtin_mul_overflow(extent.height, extent.depth, &rows)) {
      fail(hipErrorOutOfMemory, "%zu x %zu rows", extent.height, extent.depth);
    }
    allocate_pitched(&pointer->ptr, &pointer->pitch, extent.width, rows);
    pointer->xsize = extent.width;
    pointer->ysize = extent.height;
  });
}

HIP_API hipError_t hipFree(void* pointer) {
  return api(__func__, [&] { release(pointer); });
}

HIP_API hipError_t hipFreeAsync(void* pointer, hipStream_t stream) {
  return api(__func__, [&] {
    require_stream(stream);
    release(pointer);
  });
}

HIP_API hipError_t hipHostFree(void* pointer) {
  return api(__func__, [&] { release(pointer); });
}

HIP_API hipError_t hipFreeHost(void* pointer) {
  return api(__func__, [&] { release(pointer); });
}

// ---- host memory that the device may use

HIP_API hipError_t hipHostRegister(void* pointer, size_t size, unsigned flags) {
  return api(__func__, [&] {
    require(pointer, "the host pointer");
    if (size == 0) fail(hipErrorInvalidValue, "the size is 0");
    if (!is_mapped(pointer, size)) {
      fail(hipErrorInvalidValue, "%zu bytes at %p are not all memory of this process", size, pointer);
    }
    memory().add(address_of(pointer), size, MemoryKind::registered, flags);
  });
}

HIP_API hipError_t hipHostUnregister(void* pointer) {
  return api(__func__, [&] {
    require(pointer, "the host pointer");
    if (!memory().remove(address_of(pointer), MemoryKind::registered)) {
      fail(hipErrorHostMemoryNotRegistered, "no registered memory begins at %p", pointer);
    }
  });
}

HIP_API hipError_t hipHostGetDevicePointer(void** device_pointer, void* host_pointer, unsigned flags) {
  return api(__func__, [&] {
    require(device_pointer, "the output pointer");
    if (flags != 0) fail(hipErrorInvalidValue, "flags must be 0, not %u", flags);
    if (attributes_of(host_pointer).type == hipMemoryTypeDevice) {
      fail(hipErrorInvalidValue, "%p is device memory, not host memory", host_pointer);
    }
    *device_pointer = host_pointer;
  });
}

HIP_API hipError_t hipHostGetFlags(unsigned* flags, void* pointer) {
  return api(__func__, [&] {
    require(flags, "flags");
    const MemoryBlock block = block_at(pointer);
    if (!is_host_kind(block.kind)) fail(hipErrorInvalidValue, "%p is not host memory", pointer);
    *flags = block.flags;
  });
}

// ---- copies

HIP_API hipError_t hipMemcpy(void* destination, const void* source, size_t size, hipMemcpyKind kind) {
  return api(__func__, [&] { copy(destination, source, size, kind); });
}

HIP_API hipError_t hipMemcpyAsync(void* destination, const void* source, size_t size, hipMemcpyKind kind,
                                  hipStream_t stream) {
  return api(__func__, [&] {
    require_stream(stream);
    copy(destination, source, size, kind);
  });
}

HIP_API hipError_t hipMemcpyWithStream(void* destination, const void* source, size_t size, hipMemcpyKind kind,
                                       hipStream_t stream) {
  return api(__func__, [&] {
    require_stream(stream);
    copy(destination, source, size, kind);
  });
}

HIP_API hipError_t hipMemcpyHtoD(hipDeviceptr_t destination, void* source, size_t size) {
  return api(__func__, [&] { copy(destination, source, size, hipMemcpyHostToDevice); });
}

HIP_API hipError_t hipMemcpyDtoH(void* destination, hipDeviceptr_t source, size_t size) {
  return api(__func__, [&] { copy(destination, source, size, hipMemcpyDeviceToHost); });
}

HIP_API hipError_t hipMemcpyDtoD(hipDeviceptr_t destination, hipDeviceptr_t source, size_t size) {
  return api(__func__, [&] { copy(destination, source, size, hipMemcpyDeviceToDevice); });
}

HIP_API hipError_t hipMemcpyHtoDAsync(hipDeviceptr_t destination, void* source, size_t size, hipStream_t stream) {
  return api(__func__, [&] {
    require_stream(stream);
    copy(destination, source, size, hipMemcpyHostToDevice);
  });
}

HIP_API hipError_t hipMemcpyDtoHAsync(void* destination, hipDeviceptr_t source, size_t size, hipStream_t stream) {
  return api(__func__, [&] {
    require_stream(stream);
    copy(destination, source, size, hipMemcpyDeviceToHost);
  });
}

HIP_API hipError_t hipMemcpyDtoDAsync(hipDeviceptr_t destination, hipDeviceptr_t source, size_t size,
                                      hipStream_t stream) {
  return api(__func__, [&] {
    require_stream(stream);
    copy(destination, source, size, hipMemcpyDeviceToDevice);
  });
}

HIP_API hipError_t hipMemcpyPeer(void* destination, int destination_device, const void* source, int source_device,
                                 size_t size) {
  return api(__func__, [&] {
    require_device(destination_device);
    require_device(source_device);
    copy(destination, source, size, hipMemcpyDeviceToDevice);
  });
}

HIP_API hipError_t hipMemcpyPeerAsync(void* destination, int destination_device, const void* source, int source_device,
                                      size_t size, hipStream_t stream) {
  return api(__func__, [&] {
    require_device(destination_device);
    require_device(source_device);
    require_stream(stream);
    copy(destination, source, size, hipMemcpyDeviceToDevice);
  });
}

HIP_API hipError_t hipMemcpy2D(void* destination, size_t destination_pitch, const void* source, size_t source_pitch,
                               size_t width, size_t height, hipMemcpyKind kind) {
  return api(__func__, [&] { copy_2d(destination, destination_pitch, source, source_pitch, width, height, kind); });
}

HIP_API hipError_t hipMemcpy2DAsync(void* destination, size_t destination_pitch, const void* source,
                                    size_t source_pitch, size_t width, size_t height, hipMemcpyKind kind,
                                    hipStream_t stream) {
  return api(__func__, [&] {
    require_stream(stream);
    copy_2d(destination, destination_pitch, source, source_pitch, width, height, kind);
  });
}

HIP_API hipError_t hipMemcpyParam2D(const hip_Memcpy2D* parameters) {
  return api(__func__, [&] { copy_2d(parameters); });
}

HIP_API hipError_t hipMemcpyParam2DAsync(const hip_Memcpy2D* parameters, hipStream_t stream) {
  return api(__func__, [&] {
    require_stream(stream);
    copy_2d(parameters);
  });
}

HIP_API hipError_t hipDrvMemcpy2DUnaligned(const hip_Memcpy2D* parameters) {
  return api(__func__, [&] { copy_2d(parameters); });
}

HIP_API hipError_t hipMemcpy3D(const hipMemcpy3DParms* parameters) {
  return api(__func__, [&] { copy_3d(parameters); });
}

HIP_API hipError_t hipMemcpy3DAsync(const hipMemcpy3DParms* parameters, hipStream_t stream) {
  return api(__func__, [&] {
    require_stream(stream);
    copy_3d(parameters);
  });
}

// ---- fills

HIP_API hipError_t hipMemset(void* destination, int value, size_t size) {
  return api(__func__, [&] { fill(destination, static_cast<uint8_t>(value), size); });
}

HIP_API hipError_t hipMemsetAsync(void* destination, int value, size_t size, hipStream_t stream) {
  return api(__func__, [&] {
    require_stream(stream);
    fill(destination, static_cast<uint8_t>(value), size);
  });
}

HIP_API hipError_t hipMemsetD8(hipDeviceptr_t destination, unsigned char value, size_t count) {
  return api(__func__, [&] { fill<uint8_t>(destination, value, count); });
}

HIP_API hipError_t hipMemsetD8Async(hipDeviceptr_t destination, unsigned char value, size_t count, hipStream_t stream) {
  return api(__func__, [&] {
    require_stream(stream);
    fill<uint8_t>(destination, value, count);
  });
}

HIP_API hipError_t hipMemsetD16(hipDeviceptr_t destination, unsigned short value, size_t count) {
  return api(__func__, [&] { fill<uint16_t>(destination, value, count); });
}

HIP_API hipError_t hipMemsetD16Async(hipDeviceptr_t destination, unsigned short value, size_t count,
                                     hipStream_t stream) {
  return api(__func__, [&] {
    require_stream(stream);
    fill<uint16_t>(destination, value, count);
  });
}

HIP_API hipError_t hipMemsetD32(hipDeviceptr_t destination, int value, size_t count) {
  return api(__func__, [&] { fill<int32_t>(destination, value, count); });
}

HIP_API hipError_t hipMemsetD32Async(hipDeviceptr_t destination, int value, size_t count, hipStream_t stream) {
  return api(__func__, [&] {
    require_stream(stream);
    fill<int32_t>(destination, value, count);
  });
}

HIP_API hipError_t hipMemset2D(void* destination, size_t pitch, int value, size_t width, size_t height) {
  return api(__func__, [&] { fill_box({static_cast<char*>(destination), pitch, 0}, value, {width, height, 1}); });
}

HIP_API hipError_t hipMemset2DAsync(void* destination, size_t pitch, int value, size_t width, size_t height,
                                    hipStream_t stream) {
  return api(__func__, [&] {
    require_stream(stream);
    fill_box({static_cast<char*>(destination), pitch, 0}, value, {width, height, 1});
  });
}

HIP_API hipError_t hipMemset3D(hipPitchedPtr destination, int value, hipExtent extent) {
  return api(__func__,
             [&] { fill_box(placement_of(destination), value, {extent.width, extent.height, extent.depth}); });
}

HIP_API hipError_t hipMemset3DAsync(hipPitchedPtr destination, int value, hipExtent extent, hipStream_t stream) {
  return api(__func__, [&] {
    require_stream(stream);
    fill_box(placement_of(destination), value, {extent.width, extent.height, extent.depth});
  });
}

// ---- queries

HIP_API hipError_t hipMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return api(__func__, [&] {
    if (free_bytes) *free_bytes = device::kMemoryBytes - memory().allocated_bytes();
    if (total_bytes) *total_bytes = device::kMemoryBytes;
  });
}

HIP_API hipError_t hipPointerGetAttributes(hipPointerAttribute_t* attributes, const void* pointer) {
  return api(__func__, [&] {
    require(attributes, "attributes");
    *attributes = attributes_of(pointer);
  });
}

HIP_API hipError_t hipMemGetAddressRange(hipDeviceptr_t* base, size_t* size, hipDeviceptr_t pointer) {
  return api(__func__, [&] {
    const MemoryBlock block = block_at(pointer);
    if (base) *base = reinterpret_cast<void*>(block.begin);
    if (size) *size = block.size();
  });
}

HIP_API hipError_t hipMemPtrGetInfo(void* pointer, size_t* size) {
  return api(__func__, [&] {
    require(size, "size");
    *size = block_at(pointer).size();
  });
}

// ---- hints for managed memory: host and device share it, so there is nothing to move

HIP_API hipError_t hipMemPrefetchAsync(const void* pointer, size_t size, int, hipStream_t stream) {
  return api(__func__, [&] {
    require_stream(stream);
    require_device_memory("pointer", pointer, size);
  });
}

HIP_API hipError_t hipMemAdvise(const void* pointer, size_t size, int, int) {
  return api(__func__, [&] { require_device_memory("pointer", pointer, size); });
}
