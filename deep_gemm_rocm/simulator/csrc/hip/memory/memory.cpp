// HIP's memory calls. Asynchronous ones have finished when they return, since streams have no queue here.
#include <cstring>
#include <vector>

#include "../base/abi.h"
#include "../base/host_memory.h"
#include "../base/status.h"
#include "../device/device.h"
#include "../streams/capture.h"
#include "../streams/stream.h"
#include "memory_map.h"
#include "memory_pool.h"
#include "transfer.h"

namespace {

constexpr size_t kPitchAlignment = 256;
constexpr unsigned kRegisterReadOnly = 8;  // hipHostRegisterReadOnly

uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

MemoryMap& memory() { return MemoryMap::instance(); }

void allocate(Out<void*> pointer, size_t size, MemoryKind kind, unsigned flags) {
  require(pointer, "the output pointer");
  forbid_unsafe_call_while_capturing();
  pointer.give(nullptr);
  if (size > 0) pointer.give(memory().allocate(size, kind, flags));
}

void release(void* pointer) {
  forbid_unsafe_call_while_capturing();
  forget_pooled(pointer);
  if (pointer) memory().release(pointer);
}

struct PitchedSize {
  size_t pitch, bytes;
};
PitchedSize pitched_size(size_t width, size_t height, size_t depth = 1) {
  size_t rows, padded, bytes;
  if (__builtin_mul_overflow(height, depth, &rows) || __builtin_add_overflow(width, kPitchAlignment - 1, &padded) ||
      __builtin_mul_overflow(padded / kPitchAlignment * kPitchAlignment, rows, &bytes)) {
    fail(hipErrorOutOfMemory, "%zu x %zu rows of %zu bytes", depth, height, width);
  }
  return {padded / kPitchAlignment * kPitchAlignment, bytes};
}

void allocate_pitched(Out<void*> pointer, Out<size_t> pitch, size_t width, size_t height) {
  require(pointer, "the output pointer");
  require(pitch, "pitch");
  const PitchedSize size = pitched_size(width, height);
  allocate(pointer, size.bytes, MemoryKind::device, 0);
  pitch.give(size.pitch);
}

MemoryBlock block_at(const void* pointer) {
  const auto block = memory().find(address_of(pointer));
  if (!block) {
    fail(hipErrorInvalidValue, "%p is neither allocated with HIP nor registered with hipHostRegister", pointer);
  }
  return *block;
}

template <class Element>
FillWork fill_rows(void* destination, size_t pitch, Element value, size_t width, size_t height) {
  return FillWork::described_by(hipMemsetParams{destination, sizeof(Element), height, pitch, value, width});
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

// One attribute, in as many bytes as it has for the caller.
class AttributeValue {
 public:
  template <class Value>
  AttributeValue(Value value) : size_(sizeof value) {
    static_assert(sizeof value <= sizeof bytes_);
    std::memcpy(bytes_, &value, sizeof value);
  }

  void require_writable_at(void* out) const { require_writable(out, size_, 1, "data"); }
  void give(void* out) const {
    require_writable_at(out);
    std::memcpy(out, bytes_, size_);
  }

 private:
  uint8_t bytes_[sizeof(uint64_t)];
  size_t size_;
};

AttributeValue attribute_of(void* pointer, int selector) {
  const MemoryBlock block = block_at(pointer);
  const hipPointerAttribute_t attributes = attributes_of(pointer);
  switch (selector) {
    case HIP_POINTER_ATTRIBUTE_MEMORY_TYPE: return static_cast<int>(attributes.type);
    case HIP_POINTER_ATTRIBUTE_DEVICE_POINTER: return attributes.devicePointer;
    case HIP_POINTER_ATTRIBUTE_HOST_POINTER: return attributes.hostPointer;
    case HIP_POINTER_ATTRIBUTE_IS_MANAGED: return attributes.isManaged != 0;
    case HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return 0;
    case HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR: return block.begin;
    case HIP_POINTER_ATTRIBUTE_RANGE_SIZE: return block.size();
    case HIP_POINTER_ATTRIBUTE_MAPPED: return true;
  }
  fail(hipErrorNotSupported, "the simulated MI300X doesn't know pointer attribute %d", selector);
}

}  // namespace

// ---- allocation

HIP_API hipError_t hipMalloc(Out<void*> pointer, size_t size) {
  return api(__func__, [&] { allocate(pointer, size, MemoryKind::device, 0); });
}

HIP_API hipError_t hipExtMallocWithFlags(Out<void*> pointer, size_t size, unsigned flags) {
  return api(__func__, [&] { allocate(pointer, size, MemoryKind::device, flags); });
}

HIP_API hipError_t hipMallocManaged(Out<void*> pointer, size_t size, unsigned flags) {
  return api(__func__, [&] { allocate(pointer, size, MemoryKind::managed, flags); });
}

HIP_API hipError_t hipHostMalloc(Out<void*> pointer, size_t size, unsigned flags) {
  return api(__func__, [&] { allocate(pointer, size, MemoryKind::host, flags); });
}

HIP_API hipError_t hipHostAlloc(Out<void*> pointer, size_t size, unsigned flags) {
  return api(__func__, [&] { allocate(pointer, size, MemoryKind::host, flags); });
}

HIP_API hipError_t hipExtHostAlloc(Out<void*> pointer, size_t size, unsigned flags) {
  return api(__func__, [&] { allocate(pointer, size, MemoryKind::host, flags); });
}

HIP_API hipError_t hipMallocHost(Out<void*> pointer, size_t size) {
  return api(__func__, [&] { allocate(pointer, size, MemoryKind::host, 0); });
}

HIP_API hipError_t hipMemAllocHost(Out<void*> pointer, size_t size) {
  return api(__func__, [&] { allocate(pointer, size, MemoryKind::host, 0); });
}

HIP_API hipError_t hipMallocPitch(Out<void*> pointer, Out<size_t> pitch, size_t width, size_t height) {
  return api(__func__, [&] { allocate_pitched(pointer, pitch, width, height); });
}

HIP_API hipError_t hipMemAllocPitch(Out<hipDeviceptr_t> pointer, Out<size_t> pitch, size_t width, size_t height,
                                    unsigned) {
  return api(__func__, [&] { allocate_pitched(pointer, pitch, width, height); });
}

HIP_API hipError_t hipMalloc3D(Out<hipPitchedPtr> pointer, hipExtent extent) {
  return api_giving(__func__, pointer, "the output pointer", [&] {
    const PitchedSize size = pitched_size(extent.width, extent.height, extent.depth);
    hipPitchedPtr result = {nullptr, size.pitch, extent.width, extent.height};
    allocate(&result.ptr, size.bytes, MemoryKind::device, 0);
    return result;
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
    // Probing all pages would fault them in, which takes seconds for a large tensor that is hardly touched.
    const auto both_ends = [&](auto&& is_usable) {
      return is_usable(pointer, 1) && is_usable(static_cast<char*>(pointer) + size - 1, 1);
    };
    if (!is_mapped(pointer, size) || !both_ends(is_readable)) {
      fail(hipErrorInvalidValue, "%zu bytes at %p are not all memory of this process", size, pointer);
    }
    if (!(flags & kRegisterReadOnly) && !both_ends(is_writable)) {
      fail(hipErrorInvalidValue, "%zu bytes at %p can't all be written, and hipHostRegisterReadOnly isn't set", size,
           pointer);
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

HIP_API hipError_t hipHostGetDevicePointer(Out<void*> device_pointer, void* host_pointer, unsigned flags) {
  return api_giving(__func__, device_pointer, "the output pointer", [&] {
    if (flags != 0) fail(hipErrorInvalidValue, "flags must be 0, not %u", flags);
    if (attributes_of(host_pointer).type == hipMemoryTypeDevice) {
      fail(hipErrorInvalidValue, "%p is device memory, not host memory", host_pointer);
    }
    return host_pointer;
  });
}

HIP_API hipError_t hipHostGetFlags(Out<unsigned> flags, void* pointer) {
  return api_giving(__func__, flags, "flags", [&] {
    const MemoryBlock block = block_at(pointer);
    if (!is_host_kind(block.kind)) fail(hipErrorInvalidValue, "%p is not host memory", pointer);
    return block.flags;
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

HIP_API hipError_t hipMemcpyParam2D(In<hip_Memcpy2D> parameters) {
  return api(__func__, [&] { submit(nullptr, CopyWork::described_by(parameters.read("the copy's description"))); });
}

HIP_API hipError_t hipMemcpyParam2DAsync(In<hip_Memcpy2D> parameters, hipStream_t stream) {
  return api(__func__, [&] {
    submit(stream, CopyWork::described_by(parameters.read("the copy's description")));
  });
}

HIP_API hipError_t hipDrvMemcpy2DUnaligned(In<hip_Memcpy2D> parameters) {
  return api(__func__, [&] { submit(nullptr, CopyWork::described_by(parameters.read("the copy's description"))); });
}

HIP_API hipError_t hipMemcpy3D(In<hipMemcpy3DParms> parameters) {
  return api(__func__, [&] { submit(nullptr, CopyWork::described_by(parameters.read("the copy's description"))); });
}

HIP_API hipError_t hipMemcpy3DAsync(In<hipMemcpy3DParms> parameters, hipStream_t stream) {
  return api(__func__, [&] {
    submit(stream, CopyWork::described_by(parameters.read("the copy's description")));
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
    submit(nullptr, FillWork::of_box(Placement::of(destination, {}, "destination"), value, box));
  });
}

HIP_API hipError_t hipMemset3DAsync(hipPitchedPtr destination, int value, hipExtent extent, hipStream_t stream) {
  return api(__func__, [&] {
    const Box box{extent.width, extent.height, extent.depth};
    submit(stream, FillWork::of_box(Placement::of(destination, {}, "destination"), value, box));
  });
}

// ---- queries

HIP_API hipError_t hipMemGetInfo(Out<size_t> free_bytes, Out<size_t> total_bytes) {
  return api(__func__, [&] {
    allow(free_bytes, "the free bytes");
    allow(total_bytes, "the total bytes");
    free_bytes.give_if_wanted(device::kMemoryBytes - memory().allocated_bytes());
    total_bytes.give_if_wanted(device::kMemoryBytes);
  });
}

HIP_API hipError_t hipPointerGetAttributes(Out<hipPointerAttribute_t> attributes, const void* pointer) {
  return api_giving(__func__, attributes, "attributes", [&] { return attributes_of(pointer); });
}

HIP_API hipError_t hipMemGetAddressRange(Out<hipDeviceptr_t> base, Out<size_t> size, hipDeviceptr_t pointer) {
  return api(__func__, [&] {
    allow(base, "base");
    allow(size, "size");
    const MemoryBlock block = block_at(pointer);
    base.give_if_wanted(reinterpret_cast<void*>(block.begin));
    size.give_if_wanted(block.size());
  });
}

HIP_API hipError_t hipMemPtrGetInfo(void* pointer, Out<size_t> size) {
  return api_giving(__func__, size, "size", [&] { return block_at(pointer).size(); });
}

HIP_API hipError_t hipPointerGetAttribute(void* data, hipPointer_attribute selector, hipDeviceptr_t pointer) {
  return api(__func__, [&] { attribute_of(pointer, selector).give(data); });
}

HIP_API hipError_t hipDrvPointerGetAttributes(unsigned count, In<hipPointer_attribute> selectors, In<void*> data,
                                              hipDeviceptr_t pointer) {
  return api(__func__, [&] {
    const std::vector<void*> outs = data.read(count, "data");
    std::vector<AttributeValue> values;
    for (const hipPointer_attribute selector : selectors.read(count, "attributes")) {
      values.push_back(attribute_of(pointer, selector));
    }
    for (unsigned i = 0; i < count; ++i) values[i].require_writable_at(outs[i]);
    for (unsigned i = 0; i < count; ++i) values[i].give(outs[i]);
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
