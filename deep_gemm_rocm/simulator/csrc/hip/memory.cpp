// HIP's memory calls. Asynchronous ones are done when they return: a stream has no queue here.
#include <cstring>

#include "abi.h"
#include "device.h"
#include "capture.h"
#include "host_memory.h"
#include "memory_map.h"
#include "memory_pool.h"
#include "status.h"
#include "stream.h"
#include "transfer.h"

namespace {

constexpr size_t kPitchAlignment = 256;

uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

MemoryMap& memory() { return MemoryMap::instance(); }

void allocate(void** pointer, size_t size, MemoryKind kind, unsigned flags) {
  require(pointer, "the output pointer");
  forbid_unsafe_call_while_capturing();
  *pointer = nullptr;
  if (size > 0) *pointer = memory().allocate(size, kind, flags);
}

void release(void* pointer) {
  forbid_unsafe_call_while_capturing();
  forget_pooled(pointer);
  if (pointer) memory().release(pointer);
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

Placement placement_of(const hipPitchedPtr& pointer) {
  return {static_cast<char*>(pointer.ptr), pointer.pitch, pointer.pitch * pointer.ysize};
}

template <class Element>
FillWork fill_rows(void* destination, size_t pitch, Element value, size_t width, size_t height) {
  const hipMemsetParams rows{destination, sizeof(Element), height, pitch, value, width};
  return FillWork::described_by(&rows);
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

void give_attribute(void* out, int selector, void* pointer) {
  const MemoryBlock block = block_at(pointer);
  const hipPointerAttribute_t attributes = attributes_of(pointer);
  const auto give = [&](auto value) {
    if (!is_writable(out, sizeof value)) fail(hipErrorInvalidValue, "data: %p can't be written", out);
    std::memcpy(out, &value, sizeof value);
  };
  switch (selector) {
    case HIP_POINTER_ATTRIBUTE_MEMORY_TYPE: return give(static_cast<int>(attributes.type));
    case HIP_POINTER_ATTRIBUTE_DEVICE_POINTER: return give(attributes.devicePointer);
    case HIP_POINTER_ATTRIBUTE_HOST_POINTER: return give(attributes.hostPointer);
    case HIP_POINTER_ATTRIBUTE_IS_MANAGED: return give(attributes.isManaged != 0);
    case HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return give(0);
    case HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR: return give(block.begin);
    case HIP_POINTER_ATTRIBUTE_RANGE_SIZE: return give(block.size());
    case HIP_POINTER_ATTRIBUTE_MAPPED: return give(true);
  }
  fail(hipErrorNotSupported, "the simulated MI300X doesn't know pointer attribute %d", selector);
}

}  // namespace

// ---- allocation

HIP_API hipError_t hipMalloc(void** pointer, size_t size) {
  return api(__func__, [&] { allocate(pointer, size, MemoryKind::device, 0); });
}

HIP_API hipError_t hipExtMallocWithFlags(void** pointer, size_t size, unsigned flags) {
  return api(__func__, [&] { allocate(pointer, size, MemoryKind::device, flags); });
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
  return api(__func__, [&] { submit(nullptr, CopyWork::of_bytes(destination, source, size, kind)); });
}

HIP_API hipError_t hipMemcpyAsync(void* destination, const void* source, size_t size, hipMemcpyKind kind,
                                  hipStream_t stream) {
  return api(__func__, [&] {
    submit(stream, CopyWork::of_bytes(destination, source, size, kind));
  });
}

HIP_API hipError_t hipMemcpyWithStream(void* destination, const void* source, size_t size, hipMemcpyKind kind,
                                       hipStream_t stream) {
  return api(__func__, [&] {
    require_not_capturing(stream);
    submit(stream, CopyWork::of_bytes(destination, source, size, kind));
  });
}

HIP_API hipError_t hipMemcpyHtoD(hipDeviceptr_t destination, void* source, size_t size) {
  return api(__func__, [&] { submit(nullptr, CopyWork::of_bytes(destination, source, size, hipMemcpyHostToDevice)); });
}

HIP_API hipError_t hipMemcpyDtoH(void* destination, hipDeviceptr_t source, size_t size) {
  return api(__func__, [&] { submit(nullptr, CopyWork::of_bytes(destination, source, size, hipMemcpyDeviceToHost)); });
}

HIP_API hipError_t hipMemcpyDtoD(hipDeviceptr_t destination, hipDeviceptr_t source, size_t size) {
  return api(__func__, [&] {
    submit(nullptr, CopyWork::of_bytes(destination, source, size, hipMemcpyDeviceToDevice));
  });
}

HIP_API hipError_t hipMemcpyHtoDAsync(hipDeviceptr_t destination, void* source, size_t size, hipStream_t stream) {
  return api(__func__, [&] {
    submit(stream, CopyWork::of_bytes(destination, source, size, hipMemcpyHostToDevice));
  });
}

HIP_API hipError_t hipMemcpyDtoHAsync(void* destination, hipDeviceptr_t source, size_t size, hipStream_t stream) {
  return api(__func__, [&] {
    submit(stream, CopyWork::of_bytes(destination, source, size, hipMemcpyDeviceToHost));
  });
}

HIP_API hipError_t hipMemcpyDtoDAsync(hipDeviceptr_t destination, hipDeviceptr_t source, size_t size,
                                      hipStream_t stream) {
  return api(__func__, [&] {
    submit(stream, CopyWork::of_bytes(destination, source, size, hipMemcpyDeviceToDevice));
  });
}

HIP_API hipError_t hipMemcpyPeer(void* destination, int destination_device, const void* source, int source_device,
                                 size_t size) {
  return api(__func__, [&] {
    require_device(destination_device);
    require_device(source_device);
    submit(nullptr, CopyWork::of_bytes(destination, source, size, hipMemcpyDeviceToDevice));
  });
}

HIP_API hipError_t hipMemcpyPeerAsync(void* destination, int destination_device, const void* source, int source_device,
                                      size_t size, hipStream_t stream) {
  return api(__func__, [&] {
    require_device(destination_device);
    require_device(source_device);
    submit(stream, CopyWork::of_bytes(destination, source, size, hipMemcpyDeviceToDevice));
  });
}

HIP_API hipError_t hipMemcpy2D(void* destination, size_t destination_pitch, const void* source, size_t source_pitch,
                               size_t width, size_t height, hipMemcpyKind kind) {
  return api(__func__, [&] {
    submit(nullptr, CopyWork::of_rows(destination, destination_pitch, source, source_pitch, width, height, kind));
  });
}

HIP_API hipError_t hipMemcpy2DAsync(void* destination, size_t destination_pitch, const void* source,
                                    size_t source_pitch, size_t width, size_t height, hipMemcpyKind kind,
                                    hipStream_t stream) {
  return api(__func__, [&] {
    submit(stream, CopyWork::of_rows(destination, destination_pitch, source, source_pitch, width, height, kind));
  });
}

HIP_API hipError_t hipMemcpyParam2D(const hip_Memcpy2D* parameters) {
  return api(__func__, [&] { submit(nullptr, CopyWork::described_by(parameters)); });
}

HIP_API hipError_t hipMemcpyParam2DAsync(const hip_Memcpy2D* parameters, hipStream_t stream) {
  return api(__func__, [&] {
    submit(stream, CopyWork::described_by(parameters));
  });
}

HIP_API hipError_t hipDrvMemcpy2DUnaligned(const hip_Memcpy2D* parameters) {
  return api(__func__, [&] { submit(nullptr, CopyWork::described_by(parameters)); });
}

HIP_API hipError_t hipMemcpy3D(const hipMemcpy3DParms* parameters) {
  return api(__func__, [&] { submit(nullptr, CopyWork::described_by(parameters)); });
}

HIP_API hipError_t hipMemcpy3DAsync(const hipMemcpy3DParms* parameters, hipStream_t stream) {
  return api(__func__, [&] {
    submit(stream, CopyWork::described_by(parameters));
  });
}

// ---- fills

HIP_API hipError_t hipMemset(void* destination, int value, size_t size) {
  return api(__func__, [&] {
    submit(nullptr, FillWork::of_elements(destination, static_cast<uint8_t>(value), 1, size));
  });
}

HIP_API hipError_t hipMemsetAsync(void* destination, int value, size_t size, hipStream_t stream) {
  return api(__func__, [&] {
    submit(stream, FillWork::of_elements(destination, static_cast<uint8_t>(value), 1, size));
  });
}

HIP_API hipError_t hipMemsetD8(hipDeviceptr_t destination, unsigned char value, size_t count) {
  return api(__func__, [&] { submit(nullptr, FillWork::of_elements(destination, value, 1, count)); });
}

HIP_API hipError_t hipMemsetD8Async(hipDeviceptr_t destination, unsigned char value, size_t count, hipStream_t stream) {
  return api(__func__, [&] {
    submit(stream, FillWork::of_elements(destination, value, 1, count));
  });
}

HIP_API hipError_t hipMemsetD16(hipDeviceptr_t destination, unsigned short value, size_t count) {
  return api(__func__, [&] { submit(nullptr, FillWork::of_elements(destination, value, 2, count)); });
}

HIP_API hipError_t hipMemsetD16Async(hipDeviceptr_t destination, unsigned short value, size_t count,
                                     hipStream_t stream) {
  return api(__func__, [&] {
    submit(stream, FillWork::of_elements(destination, value, 2, count));
  });
}

HIP_API hipError_t hipMemsetD32(hipDeviceptr_t destination, int value, size_t count) {
  return api(__func__, [&] {
    submit(nullptr, FillWork::of_elements(destination, static_cast<uint32_t>(value), 4, count));
  });
}

HIP_API hipError_t hipMemsetD32Async(hipDeviceptr_t destination, int value, size_t count, hipStream_t stream) {
  return api(__func__, [&] {
    submit(stream, FillWork::of_elements(destination, static_cast<uint32_t>(value), 4, count));
  });
}

#define HIP_FILL_ROWS(name, Element)                                                                                  \
  HIP_API hipError_t name(hipDeviceptr_t destination, size_t pitch, Element value, size_t width, size_t height) {     \
    return api(__func__, [&] { submit(nullptr, fill_rows<Element>(destination, pitch, value, width, height)); });     \
  }                                                                                                                   \
  HIP_API hipError_t name##Async(hipDeviceptr_t destination, size_t pitch, Element value, size_t width, size_t height, \
                                 hipStream_t stream) {                                                                \
    return api(__func__, [&] { submit(stream, fill_rows<Element>(destination, pitch, value, width, height)); });      \
  }
HIP_FILL_ROWS(hipMemsetD2D8, uint8_t)
HIP_FILL_ROWS(hipMemsetD2D16, uint16_t)
HIP_FILL_ROWS(hipMemsetD2D32, uint32_t)

HIP_API hipError_t hipMemset2D(void* destination, size_t pitch, int value, size_t width, size_t height) {
  return api(__func__, [&] {
    submit(nullptr, FillWork::of_box({static_cast<char*>(destination), pitch, 0}, value, {width, height, 1}));
  });
}

HIP_API hipError_t hipMemset2DAsync(void* destination, size_t pitch, int value, size_t width, size_t height,
                                    hipStream_t stream) {
  return api(__func__, [&] {
    submit(stream, FillWork::of_box({static_cast<char*>(destination), pitch, 0}, value, {width, height, 1}));
  });
}

HIP_API hipError_t hipMemset3D(hipPitchedPtr destination, int value, hipExtent extent) {
  return api(__func__, [&] {
    const Box box{extent.width, extent.height, extent.depth};
    submit(nullptr, FillWork::of_box(placement_of(destination), value, box));
  });
}

HIP_API hipError_t hipMemset3DAsync(hipPitchedPtr destination, int value, hipExtent extent, hipStream_t stream) {
  return api(__func__, [&] {
    submit(stream, FillWork::of_box(placement_of(destination), value, {extent.width, extent.height, extent.depth}));
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

HIP_API hipError_t hipPointerGetAttribute(void* data, hipPointer_attribute selector, hipDeviceptr_t pointer) {
  return api(__func__, [&] { give_attribute(data, selector, pointer); });
}

HIP_API hipError_t hipDrvPointerGetAttributes(unsigned count, hipPointer_attribute* selectors, void** data,
                                              hipDeviceptr_t pointer) {
  return api(__func__, [&] {
    for (unsigned i = 0; i < count; ++i) {
      hipPointer_attribute selector;
      void* out;
      read_from_host(&selector, selectors + i, sizeof selector, "attributes");
      read_from_host(&out, data + i, sizeof out, "data");
      give_attribute(out, selector, pointer);
    }
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
