#include "transfer.h"

#include <algorithm>
#include <cstring>

#include "../base/host_memory.h"
#include "../base/status.h"
#include "memory_map.h"

namespace {

uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

MemoryMap& memory() { return MemoryMap::instance(); }

// Registered memory belongs to the program, which may have unmapped it since.
bool is_allocated(const void* pointer, size_t size) {
  if (!memory().covers(address_of(pointer), size)) return false;
  const auto block = memory().find(address_of(pointer));
  return block && block->kind != MemoryKind::registered && block->end - address_of(pointer) >= size;
}

void require_source(const char* name, const void* pointer, size_t size, bool on_device) {
  require(pointer, name);
  if (on_device) require_device_memory(name, pointer, size);
  if (!is_allocated(pointer, size)) require_readable(pointer, size, 1, name);
}

void require_destination(const char* name, void* pointer, size_t size, bool on_device) {
  require(pointer, name);
  if (on_device) require_device_memory(name, pointer, size);
  if (!is_allocated(pointer, size)) require_writable(pointer, size, 1, name);
}

// The offset of a position from the beginning of a placement.
size_t distance(const hipPos& position, size_t pitch, size_t slice_pitch, const char* name) {
  size_t rows, slices, bytes;
  if (__builtin_mul_overflow(position.y, pitch, &rows) || __builtin_mul_overflow(position.z, slice_pitch, &slices) ||
      __builtin_add_overflow(rows, slices, &bytes) || __builtin_add_overflow(bytes, position.x, &bytes)) {
    fail(hipErrorInvalidValue, "%s: the position (%zu, %zu, %zu) with a pitch of %zu is beyond the address space", name,
         position.x, position.y, position.z, pitch);
  }
  return bytes;
}

char* place(const void* begin, const hipPos& position, size_t pitch, size_t slice_pitch, const char* name) {
  require(begin, name);
  uint64_t address;
  if (__builtin_add_overflow(address_of(begin), distance(position, pitch, slice_pitch, name), &address)) {
    fail(hipErrorInvalidValue, "%s: the position (%zu, %zu, %zu) from %p is beyond the address space", name, position.x,
         position.y, position.z, begin);
  }
  return reinterpret_cast<char*>(address);
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

hipPitchedPtr pitched(const Placement& placement, const Box& box) {
  return {placement.base, placement.pitch, box.width,
          placement.pitch == 0 ? box.height : placement.slice_pitch / placement.pitch};
}

template <class Element>
void fill_row(char* row, uint32_t value, size_t bytes) {
  std::fill_n(reinterpret_cast<Element*>(row), bytes / sizeof(Element), static_cast<Element>(value));
}

}  // namespace

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

Placement Placement::of(const hipPitchedPtr& pointer, const hipPos& position, const char* name) {
  size_t slice_pitch;
  if (__builtin_mul_overflow(pointer.pitch, pointer.ysize, &slice_pitch)) {
    fail(hipErrorInvalidValue, "%s: %zu rows of %zu bytes are more than an address space has", name, pointer.ysize,
         pointer.pitch);
  }
  return {place(pointer.ptr, position, pointer.pitch, slice_pitch, name), pointer.pitch, slice_pitch};
}

size_t Placement::span(const Box& box, const char* name) const {
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

// ---- copies

CopyWork CopyWork::of_bytes(void* destination, const void* source, size_t size, hipMemcpyKind kind) {
  return of_rows(destination, size, source, size, size, 1, kind);
}

CopyWork CopyWork::of_rows(void* destination, size_t destination_pitch, const void* source, size_t source_pitch,
                           size_t width, size_t height, hipMemcpyKind kind) {
  direction_of(kind);
  return {{static_cast<char*>(destination), destination_pitch, 0},
          {static_cast<char*>(const_cast<void*>(source)), source_pitch, 0},
          {width, height, 1},
          kind};
}

CopyWork CopyWork::described_by(const hip_Memcpy2D& p) {
  const auto on_device = [](hipMemoryType type) {
    if (type == hipMemoryTypeArray) fail(hipErrorNotSupported, "the simulated MI300X has no arrays");
    return type != hipMemoryTypeHost;
  };
  const bool from_device = on_device(p.srcMemoryType), to_device = on_device(p.dstMemoryType);
  const void* begin = from_device ? p.srcDevice : p.srcHost;
  const void* source = place(begin, {p.srcXInBytes, p.srcY, 0}, p.srcPitch, 0, "source");
  void* const into = to_device ? p.dstDevice : p.dstHost;
  void* destination = place(into, {p.dstXInBytes, p.dstY, 0}, p.dstPitch, 0, "destination");
  const hipMemcpyKind kind = from_device ? (to_device ? hipMemcpyDeviceToDevice : hipMemcpyDeviceToHost)
                                         : (to_device ? hipMemcpyHostToDevice : hipMemcpyHostToHost);
  return of_rows(destination, p.dstPitch, source, p.srcPitch, p.WidthInBytes, p.Height, kind);
}

CopyWork CopyWork::described_by(const hipMemcpy3DParms& p) {
  if (p.srcArray || p.dstArray) fail(hipErrorNotSupported, "the simulated MI300X has no arrays");
  direction_of(p.kind);
  return {Placement::of(p.dstPtr, p.dstPos, "destination"),
          Placement::of(p.srcPtr, p.srcPos, "source"),
          {p.extent.width, p.extent.height, p.extent.depth},
          p.kind};
}

hipMemcpy3DParms CopyWork::description() const {
  hipMemcpy3DParms p = {};
  p.srcPtr = pitched(source, box);
  p.dstPtr = pitched(destination, box);
  p.extent = {box.width, box.height, box.depth};
  p.kind = kind;
  return p;
}

void CopyWork::run() const {
  const Direction direction = direction_of(kind);
  if (box.empty()) return;
  require_source("source", source.base, source.span(box, "source"), direction.source_on_device);
  require_destination("destination", destination.base, destination.span(box, "destination"),
                      direction.destination_on_device);
  for (size_t z = 0; z < box.depth; ++z) {
    for (size_t y = 0; y < box.height; ++y) {
      std::memmove(destination.row(y, z), source.row(y, z), box.width);
      memory().note_copy(address_of(destination.row(y, z)), address_of(source.row(y, z)), box.width);
    }
  }
}

// ---- fills

FillWork FillWork::of_elements(void* destination, uint32_t value, unsigned element_size, size_t count) {
  size_t size;
  if (__builtin_mul_overflow(count, element_size, &size)) fail(hipErrorInvalidValue, "%zu elements", count);
  return {{static_cast<char*>(destination), size, 0}, {size, 1, 1}, value, element_size};
}

FillWork FillWork::of_box(const Placement& destination, int value, const Box& box) {
  return {destination, box, static_cast<uint8_t>(value), 1};
}

FillWork FillWork::described_by(const hipMemsetParams& p) {
  if (p.elementSize != 1 && p.elementSize != 2 && p.elementSize != 4) {
    fail(hipErrorInvalidValue, "elements of %u bytes; fills have 1, 2 or 4", p.elementSize);
  }
  require(p.dst, "destination");
  size_t width;
  if (__builtin_mul_overflow(p.width, p.elementSize, &width)) fail(hipErrorInvalidValue, "%zu elements", p.width);
  return {{static_cast<char*>(p.dst), p.pitch, 0}, {width, p.height, 1}, p.value, p.elementSize};
}

hipMemsetParams FillWork::description() const {
  return {destination.base, element_size, box.height, destination.pitch, value, box.width / element_size};
}

void FillWork::run() const {
  if (box.empty()) return;
  if (address_of(destination.base) % element_size != 0 || (box.height > 1 && destination.pitch % element_size != 0)) {
    fail(hipErrorInvalidValue, "destination %p with rows %zu bytes apart is not aligned to %u bytes",
         static_cast<void*>(destination.base), destination.pitch, element_size);
  }
  require_destination("destination", destination.base, destination.span(box, "destination"), true);
  for (size_t z = 0; z < box.depth; ++z) {
    for (size_t y = 0; y < box.height; ++y) {
      char* row = destination.row(y, z);
      memory().note_write(address_of(row), box.width);
      switch (element_size) {
        case 1: fill_row<uint8_t>(row, value, box.width); break;
        case 2: fill_row<uint16_t>(row, value, box.width); break;
        default: fill_row<uint32_t>(row, value, box.width); break;
      }
    }
  }
}
