// threadIdx, blockIdx, blockDim and gridDim.
#pragma once

#include "../hip_runtime_api.h"

namespace __hip_coordinates {
// "Hidden" kernel arguments (LLVM AMDGPU usage, code object V5) begin with the number of workgroups in x, y and z.
__HIP_INLINE_DEVICE__ uint32_t grid_dimension(int dimension) {
  return ((const __attribute__((address_space(4))) uint32_t*)__builtin_amdgcn_implicitarg_ptr())[dimension];
}
}  // namespace __hip_coordinates

#define __HIP_COORDINATES(Name, object, of_x, of_y, of_z)                            \
  struct Name {                                                                      \
    static __HIP_DEVICE__ uint32_t get_x() { return of_x; }                          \
    static __HIP_DEVICE__ uint32_t get_y() { return of_y; }                          \
    static __HIP_DEVICE__ uint32_t get_z() { return of_z; }                          \
    __declspec(property(get = get_x)) uint32_t x;                                    \
    __declspec(property(get = get_y)) uint32_t y;                                    \
    __declspec(property(get = get_z)) uint32_t z;                                    \
    __HIP_DEVICE__ operator dim3() const { return dim3(get_x(), get_y(), get_z()); } \
  };                                                                                 \
  extern const __device__ __attribute__((weak)) Name object;
__HIP_COORDINATES(__HIP_ThreadIdx, threadIdx, __builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(),
                  __builtin_amdgcn_workitem_id_z())
__HIP_COORDINATES(__HIP_BlockIdx, blockIdx, __builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(),
                  __builtin_amdgcn_workgroup_id_z())
__HIP_COORDINATES(__HIP_BlockDim, blockDim, __builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(),
                  __builtin_amdgcn_workgroup_size_z())
__HIP_COORDINATES(__HIP_GridDim, gridDim, __hip_coordinates::grid_dimension(0), __hip_coordinates::grid_dimension(1),
                  __hip_coordinates::grid_dimension(2))
#undef __HIP_COORDINATES

#define hipThreadIdx_x (threadIdx.x)
#define hipThreadIdx_y (threadIdx.y)
#define hipThreadIdx_z (threadIdx.z)
#define hipBlockIdx_x (blockIdx.x)
#define hipBlockIdx_y (blockIdx.y)
#define hipBlockIdx_z (blockIdx.z)
#define hipBlockDim_x (blockDim.x)
#define hipBlockDim_y (blockDim.y)
#define hipBlockDim_z (blockDim.z)
#define hipGridDim_x (gridDim.x)
#define hipGridDim_y (gridDim.y)
#define hipGridDim_z (gridDim.z)

static constexpr int warpSize = 64;
