// Global memory through buffer resources, which check bounds in hardware: a load outside returns zeros, and a store
// outside is dropped. That masks the tails of tensors without branches.
#pragma once

#include "deep_gemm_rocm/hardware/buffer_intrinsics.h"
#include "deep_gemm_rocm/hardware/hip_declarations.h"
#include "deep_gemm_rocm/hardware/types.h"

namespace deep_gemm_rocm {

// A byte offset outside every buffer. Buffers are below 2 GiB, so adding a scalar offset can't wrap it around.
constexpr unsigned kOutOfBounds = 0x80000000u;

// `base` and `bytes` must be uniform. Offsets are in bytes: `offset` is a lane's own and checked, `scalar_offset` is
// uniform. Nothing relies on whether the hardware's check includes the latter.
struct Buffer {
  const void* base;
  unsigned bytes;

  // The same buffer, or one that has no bytes at all.
  DG_DEVICE Buffer only_if(bool condition) const { return {base, condition ? bytes : 0}; }

  // The same buffer in scalar registers. If a loop changes a buffer, compilers may keep it in vector registers, and
  // then access memory in a loop over all lanes.
  DG_DEVICE Buffer in_scalar_registers() const {
    const auto address = reinterpret_cast<uint64_t>(base);
    const unsigned low = uniform(static_cast<int>(address));
    const unsigned high = uniform(static_cast<int>(address >> 32));
    return Buffer{reinterpret_cast<const void*>(static_cast<uint64_t>(high) << 32 | low), bytes}.with_scalar_size();
  }

  // The same with the size alone in a scalar register. LLVM 19 may choose in vector registers what only_if() returns.
  // only_if() itself doesn't do this: LLVM 22 then keeps the address of ping-pong tiles in vector registers.
  DG_DEVICE Buffer with_scalar_size() const {
    return {base, static_cast<unsigned>(uniform(static_cast<int>(bytes)))};
  }

  // Keeps compilers from putting the address's computation off until the buffer is used.
  DG_DEVICE void compute_here() { asm volatile("" : "+s"(base), "+s"(bytes)); }

  template <class T>
  DG_DEVICE T load(unsigned offset, unsigned scalar_offset = 0) const {
    if constexpr (sizeof(T) == 16) {
      return __builtin_bit_cast(T, buffer_load_b128(resource(), offset, scalar_offset));
    } else if constexpr (sizeof(T) == 8) {
      return __builtin_bit_cast(T, buffer_load_b64(resource(), offset, scalar_offset));
    } else if constexpr (sizeof(T) == 4) {
      return __builtin_bit_cast(T, buffer_load_b32(resource(), offset, scalar_offset));
    } else if constexpr (sizeof(T) == 2) {
      return __builtin_bit_cast(T, buffer_load_b16(resource(), offset, scalar_offset));
    } else {
      static_assert(sizeof(T) == 1, "only 1, 2, 4, 8 and 16 bytes are loaded");
      return __builtin_bit_cast(T, buffer_load_b8(resource(), offset, scalar_offset));
    }
  }

  template <class T>
  DG_DEVICE void store(T value, unsigned offset) const {
    if constexpr (sizeof(T) == 16) {
      buffer_store_b128(__builtin_bit_cast(Chunk, value), resource(), offset);
    } else if constexpr (sizeof(T) == 8) {
      buffer_store_b64(__builtin_bit_cast(HalfChunk, value), resource(), offset);
    } else if constexpr (sizeof(T) == 4) {
      buffer_store_b32(__builtin_bit_cast(unsigned, value), resource(), offset);
    } else if constexpr (sizeof(T) == 2) {
      buffer_store_b16(__builtin_bit_cast(unsigned short, value), resource(), offset);
    } else {
      static_assert(sizeof(T) == 1, "only 1, 2, 4, 8 and 16 bytes are stored");
      buffer_store_b8(__builtin_bit_cast(unsigned char, value), resource(), offset);
    }
  }

 private:
  // Word 3 of the resource (CDNA3 ISA, "Buffer Resource Descriptor"): DATA_FORMAT 32, no swizzle, untyped raw buffer.
  static constexpr int kRawBuffer = 0x00020000;

  DG_DEVICE BufferResource resource() const { return buffer_resource(base, bytes, kRawBuffer); }
};

}  // namespace deep_gemm_rocm
