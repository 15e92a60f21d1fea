// Address computation of memory instructions (CDNA3 ISA, "Flat memory instructions" and "Buffer resource descriptor").
#pragma once

#include <algorithm>
#include <cstring>

#include "../isa/opcodes.h"
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

// Scalar memory instructions: SGPR offset plus immediate offset. Scratch counts the SGPR offset in units of 64 bytes.
inline uint64_t scalar_offset(const Wave& wave, const Instruction& inst, uint64_t unit = 1) {
  const uint64_t soffset = inst.src[1].dwords ? uint32_t(wave.read_scalar(inst.src[1])) : 0;
  return uint64_t(int64_t(inst.imm)) + soffset * unit;
}

inline bool is_scalar_scratch(Op op) { return op >= Op::s_scratch_load_dword && op <= Op::s_scratch_store_dwordx4; }

// Scalar memory instructions without a buffer resource.
inline uint64_t scalar_address(const Wave& wave, const Instruction& inst) {
  return wave.pair(inst.src[0].index) + scalar_offset(wave, inst, is_scalar_scratch(inst.op) ? 64 : 1);
}

struct BufferResource {
  static constexpr uint32_t element_size = 4;  // swizzled buffers; chips before GFX9 had a field for it

  uint64_t base;
  uint32_t stride, records, data_format, index_stride;
  bool swizzled, adds_lane;

  explicit BufferResource(const uint32_t* words)
      : base(words[0] | uint64_t(words[1] & 0xFFFF) << 32),
        stride(words[1] >> 16 & 0x3FFF),
        records(words[2]),
        data_format(words[3] >> 15 & 15),
        index_stride(8u << (words[3] >> 21 & 3)),
        swizzled(words[1] >> 31),
        adds_lane(words[3] >> 23 & 1) {}
};

// A buffer as scalar memory instructions see it: base and size, never swizzled.
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

// The offsets of a lane. `offset` is the lane's plus the instruction's, wrapped at 32 bits.
struct BufferOffsets {
  bool has_index;
  uint32_t index, lane, offset;
  uint64_t scalar_offset;
};

// Bytes in range from a lane's offset on. The CDNA3 ISA ("Range checking") leaves details open; this is what AMD's
// emulator was corrected to after comparing with chips (ROCm/rocm-systems, pull request 10928). With an index and a
// stride only the index is checked, otherwise the byte offset including the SGPR's. Private buffers (ADD_TID without an
// index) aren't checked.
inline uint64_t bytes_in_range(const BufferResource& resource, const BufferOffsets& at) {
  if (resource.adds_lane && !at.has_index) return ~0ull;
  if (at.has_index && resource.stride != 0) return at.index < resource.records ? ~0ull : 0;
  const uint64_t offset = at.offset + at.scalar_offset;
  return offset < resource.records ? resource.records - offset : 0;
}

// ADD_TID adds the lane to the index, except for a linear buffer with an index, and makes DATA_FORMAT the upper bits of
// the stride, except for instructions that convert formats. Buffers without ADD_TID aren't swizzled.
inline BufferPosition locate(const BufferResource& resource, const BufferOffsets& at, bool converts) {
  const bool adds_lane = resource.adds_lane && (resource.swizzled || !at.has_index);
  const uint64_t index = at.index + uint64_t(adds_lane ? at.lane : 0);
  const uint64_t stride = resource.stride | (adds_lane && !converts ? resource.data_format << 14 : 0);
  const uint64_t base = resource.base + at.scalar_offset, in_range = bytes_in_range(resource, at);
  if (!resource.swizzled || !resource.adds_lane) return {base + index * stride + at.offset, in_range};
  constexpr uint64_t size = BufferResource::element_size;
  const uint64_t index_high = index / resource.index_stride, index_low = index % resource.index_stride;
  const uint64_t element = at.offset / size, byte = at.offset % size;
  const uint64_t swizzled = (index_high * stride + element * size) * resource.index_stride + index_low * size + byte;
  return {base + swizzled, std::min(in_range, size - byte)};
}

// Bytes of an element in memory, for buffer instructions that convert formats.
uint32_t element_bytes(const Wave& wave, const Instruction& inst);

struct BufferOperands {
  BufferResource resource;
  const uint32_t *index, *offset;  // null where the instruction has none
  uint32_t imm;
  uint64_t scalar_offset;
  bool converts;  // the instruction converts formats; only set where the resource has ADD_TID

  BufferOperands(Wave& wave, const Instruction& inst)
      : resource(&wave.sgpr[inst.src[1].index]),
        index(inst.mem.idxen ? wave.row(inst.src[0].index) : nullptr),
        offset(inst.mem.offen ? wave.row(inst.src[0].index + inst.mem.idxen) : nullptr),
        imm(uint32_t(inst.imm)),
        scalar_offset(uint32_t(wave.read_scalar(inst.src[2]))),
        converts(resource.adds_lane && opcode_of(inst).has(trait::converts)) {}

  BufferPosition position(int lane) const {
    const uint32_t row = index ? index[lane] : 0, bytes = (offset ? offset[lane] : 0) + imm;
    return locate(resource, {index != nullptr, row, uint32_t(lane), bytes, scalar_offset}, converts);
  }
};

}  // namespace mi300x
