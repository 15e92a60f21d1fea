// What a kernel needs of HIP, for kernels of the tests.
#pragma once
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
using size_t = __SIZE_TYPE__;
using hipStream_t = struct ihipStream_t*;
struct dim3 {
  unsigned x, y, z;
};
extern "C" int __hipPushCallConfiguration(dim3 grid, dim3 block, size_t lds, hipStream_t stream);
extern "C" int __hipPopCallConfiguration(dim3* grid, dim3* block, size_t* lds, hipStream_t* stream);
extern "C" int hipLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t lds, hipStream_t stream);
