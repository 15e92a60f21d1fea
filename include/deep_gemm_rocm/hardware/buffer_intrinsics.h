// Loads and stores through buffer resources: clang's builtins, or LLVM's intrinsics, for which clang has no names
// before LLVM 19.
#pragma once

#include "deep_gemm_rocm/hardware/hip_declarations.h"
#include "deep_gemm_rocm/hardware/types.h"

namespace deep_gemm_rocm {

using HalfChunk = Vector<unsigned, 2>;

#if DG_HAS_LLVM_19_BUILTINS

using BufferResource = __amdgpu_buffer_rsrc_t;

DG_DEVICE BufferResource buffer_resource(const void* base, unsigned bytes, int word3) {
  return __builtin_amdgcn_make_buffer_rsrc(const_cast<void*>(base), 0, bytes, word3);
}

#define DG_BUFFER_LOAD(T, width, intrinsic)                                                     \
  DG_DEVICE T buffer_load_##width(BufferResource resource, int offset, int scalar_offset) {     \
    return __builtin_amdgcn_raw_buffer_load_##width(resource, offset, scalar_offset, 0);        \
  }
#define DG_BUFFER_STORE(T, width, intrinsic)                                                    \
  DG_DEVICE void buffer_store_##width(T value, BufferResource resource, int offset) {           \
    __builtin_amdgcn_raw_buffer_store_##width(value, resource, offset, 0, 0);                   \
  }

#else

using BufferResource = Vector<int, 4>;

DG_DEVICE BufferResource buffer_resource(const void* base, unsigned bytes, int word3) {
  const auto address = reinterpret_cast<uint64_t>(base);  // word 1 has its upper bits and a stride, which is 0
  return {static_cast<int>(address), static_cast<int>(address >> 32), static_cast<int>(bytes), word3};
}

// A function whose assembler name is that of an intrinsic is the intrinsic.
#define DG_BUFFER_LOAD(T, width, intrinsic)                                                     \
  __attribute__((device)) T llvm_buffer_load_##width(BufferResource, int, int, int) __asm(      \
      "llvm.amdgcn.raw.buffer.load." intrinsic);                                                \
  DG_DEVICE T buffer_load_##width(BufferResource resource, int offset, int scalar_offset) {     \
    return llvm_buffer_load_##width(resource, offset, scalar_offset, 0);                        \
  }
#define DG_BUFFER_STORE(T, width, intrinsic)                                                    \
  __attribute__((device)) void llvm_buffer_store_##width(T, BufferResource, int, int, int) __asm( \
      "llvm.amdgcn.raw.buffer.store." intrinsic);                                               \
  DG_DEVICE void buffer_store_##width(T value, BufferResource resource, int offset) {           \
    llvm_buffer_store_##width(value, resource, offset, 0, 0);                                   \
  }

#endif

DG_BUFFER_LOAD(Chunk, b128, "v4i32")
DG_BUFFER_LOAD(HalfChunk, b64, "v2i32")
DG_BUFFER_LOAD(unsigned, b32, "i32")
DG_BUFFER_LOAD(unsigned short, b16, "i16")
DG_BUFFER_LOAD(unsigned char, b8, "i8")
DG_BUFFER_STORE(Chunk, b128, "v4i32")
DG_BUFFER_STORE(HalfChunk, b64, "v2i32")
DG_BUFFER_STORE(unsigned, b32, "i32")
DG_BUFFER_STORE(unsigned short, b16, "i16")
DG_BUFFER_STORE(unsigned char, b8, "i8")

#undef DG_BUFFER_LOAD
#undef DG_BUFFER_STORE

}  // namespace deep_gemm_rocm
