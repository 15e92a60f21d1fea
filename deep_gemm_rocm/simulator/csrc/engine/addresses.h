// Where vector memory instructions access memory (CDNA3 ISA, "Flat memory instructions" and "Buffer resource
// descriptor").
#pragma once

#include "wave.h"

namespace mi300x {

// Flat and global instructions: the address of each lane.
inline void global_addresses(Wave& wave, const Instruction& inst, uint64_t* addresses) {
  const uint32_t* low = wave.row(inst.src[0].index);
  if (inst.src[2].kind != Operand::Kind::none) {  // SGPR base and a 32-bit offset
    const uint64_t base = wave.read_scalar(inst.src[2]) + uint64_t(int64_t(inst.imm));
    for (int l = 0; l < lanes; ++l) addresses[l] = base + low[l];
  } else {
    const uint32_t* high = wave.row(inst.src[0].index + 1);
    for (int l = 0; l < lanes; ++l) addresses[l] = (low[l] | uint64_t(high[l]) << 32) + uint64_t(int64_t(inst.imm));
  }
}

// Scratch instructions: the offset in the private segment of a lane.
inline uint32_t scratch_offset(Wave& wave, const Instruction& inst, int lane) {
  const uint32_t base = inst.src[2].kind != Operand::Kind::none ? uint32_t(wave.read_scalar(inst.src[2])) : 0;
  const bool has_vaddr = inst.src[0].kind != Operand::Kind::none;
  return base + (has_vaddr ? wave.row(inst.src[0].index)[lane] : 0) + uint32_t(inst.imm);
}

inline bool in_aperture(uint64_t address, uint64_t aperture) { return address - aperture < aperture_bytes; }

// Scalar memory instructions: SGPR and immediate offset. Scratch counts the SGPR's in units of 64 bytes.
inline uint64_t scalar_offset(const Wave& wave, const Instruction& inst, uint64_t unit = 1) {
  const uint64_t soffset = inst.src[1].dwords ? uint32_t(wave.read_scalar(inst.src[1])) : 0;
  return uint64_t(int64_t(inst.imm)) + soffset * unit;
}

inline bool is_scalar_scratch(Op op) { return op >= Op::s_scratch_load_dword && op <= Op::s_scratch_store_dwordx4; }

// Of those that have no buffer resource.
inline uint64_t scalar_address(const Wave& wave, const Instruction& inst) {
  return wave.pair(inst.src[0].index) + scalar_offset(wave, inst, is_scalar_scratch(inst.op) ? 64 : 1);
}

struct BufferResource {
  uint64_t base;
  uint32_t stride, records, index_stride, element_size;
  bool swizzled, adds_lane;

  explicit BufferResource(const uint32_t* words)
      : base(words[0] | uint64_t(words[1] & 0xFFFF) << 32),
        stride(words[1] >> 16 & 0x3FFF),
        records(words[2]),
        index_stride(8u << (words[3] >> 21 & 3)),
        element_size(2u << (words[3] >> 19 & 3)),
        swizzled(words[1] >> 31),
        adds_lane(words[3] >> 23 & 1) {}
};

// What scalar memory instructions see of a buffer: base and size alone count, it is not swizzled.
struct ScalarBuffer {
  uint64_t base, size;

  ScalarBuffer(const Wave& wave, const Instruction& inst) {
    const BufferResource resource(&wave.sgpr[inst.src[0].index]);
    base = resource.base & ~3ull;
    size = uint64_t(resource.records) * (resource.stride ? resource.stride : 1);
  }
  bool holds(uint64_t offset, uint32_t bytes) const { return offset <= size && bytes <= size - offset; }
};

struct BufferPosition {
  uint64_t address;    // of the first byte
  uint64_t in_bounds;  // bytes from there that are in range
};

// CDNA3 ISA, "Range checking". Raw buffers check the byte offset against num_records, structured ones the index; the
// SGPR offset takes no part in it, and private ones (ADD_TID without an index) check nothing. Sums aren't truncated to
// 32 bits: an offset close to 2^32 stays out of range.
inline BufferPosition locate(const BufferResource& resource, bool has_index, uint64_t index, uint64_t offset,
                             uint64_t scalar_offset) {
  const uint64_t base = resource.base + scalar_offset;
  if (resource.swizzled && resource.stride != 0) {
    const uint64_t index_high = index / resource.index_stride, index_low = index % resource.index_stride;
    const uint64_t element = offset / resource.element_size, byte = offset % resource.element_size;
    const uint64_t swizzled = (index_high * resource.stride + element * resource.element_size) * resource.index_stride +
                              index_low * resource.element_size + byte;
    const bool checked = has_index || !resource.adds_lane;
    const bool valid = !checked || (index < resource.records && offset < resource.stride);
    return {base + swizzled, valid ? resource.element_size - byte : 0};
  }
  const uint64_t address = base + index * resource.stride + offset;
  if (resource.adds_lane && !has_index) return {address, ~0ull};
  if (has_index && resource.stride != 0) return {address, index < resource.records ? ~0ull : 0};
  return {address, offset < resource.records ? resource.records - offset : 0};
}

// Bytes of an element in memory, of buffer instructions that convert its format.
uint32_t element_bytes(const Wave& wave, const Instruction& inst);

struct BufferOperands {
  BufferResource resource;
  const uint32_t *index, *offset;  // null where the instruction has none
  uint64_t imm, scalar_offset;

  BufferOperands(Wave& wave, const Instruction& inst)
      : resource(&wave.sgpr[inst.src[1].index]),
        index(inst.mem.idxen ? wave.row(inst.src[0].index) : nullptr),
        offset(inst.mem.offen ? wave.row(inst.src[0].index + inst.mem.idxen) : nullptr),
        imm(uint64_t(inst.imm)),
        scalar_offset(uint32_t(wave.read_scalar(inst.src[2]))) {}

  BufferPosition position(int lane) const {
    const uint64_t row = (index ? index[lane] : 0) + (resource.adds_lane ? uint64_t(lane) : 0);
    return locate(resource, index != nullptr, row, (offset ? offset[lane] : 0) + imm, scalar_offset);
  }
};

}  // namespace mi300x
