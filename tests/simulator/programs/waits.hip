// Of everything that compilers wait for on gfx942: memory, LDS, other waves, and results that take a while. A wave's
// work each, but where it waits for others.
#include "device.h"

typedef float float16 __attribute__((ext_vector_type(16)));
typedef float float32 __attribute__((ext_vector_type(32)));
typedef double double4 __attribute__((ext_vector_type(4)));
typedef _Float16 half4 __attribute__((ext_vector_type(4)));
typedef int int4 __attribute__((ext_vector_type(4)));

static __device__ int item() { return __builtin_amdgcn_workitem_id_x(); }
template <class T>
static __device__ T* of_item(void* x) { return static_cast<T*>(x) + item(); }
#define MFMA(name, a, b, c) __builtin_amdgcn_mfma_##name(a, b, c, 0, 0, 0)

KERNEL fp8_16(void* x, int n) {
  const long a = *of_item<long>(x);
  const float4 c = MFMA(f32_16x16x32_fp8_fp8, a, a + n, float4{});
  *of_item<float>(x) = c[0] + c[3];
}
KERNEL fp8_32(void* x, int n) {
  const long a = *of_item<long>(x);
  const float16 c = MFMA(f32_32x32x16_fp8_fp8, a, a + n, float16{});
  *of_item<float>(x) = c[15];
}
KERNEL result_stored(void* x, int) {
  const half4 a = *of_item<half4>(x);
  *of_item<float4>(x) = MFMA(f32_16x16x16f16, a, a, float4{});
}
KERNEL result_multiplied(void* x, int) {
  const half4 a = *of_item<half4>(x);
  const float4 c = MFMA(f32_16x16x16f16, a, a, float4{});
  *of_item<float4>(x) = MFMA(f32_16x16x16f16, __builtin_bit_cast(half4, float2{c[0], c[1]}), a, c);
}
KERNEL result_to_lds(void* x, int) {
  __shared__ float shared[64];
  const half4 a = *of_item<half4>(x);
  shared[item()] = MFMA(f32_16x16x16f16, a, a, float4{})[0];
  *of_item<float>(x) = shared[item()];
}
KERNEL results_in_a_loop(void* x, int n) {
  half4 a = *of_item<half4>(x);
  float4 c = {};
  for (int i = 0; i < n; ++i) {
    c = MFMA(f32_16x16x16f16, a, a, c);
    a = half4{_Float16(c[0]), _Float16(c[1]), _Float16(c[2]), _Float16(c[3])};
  }
  *of_item<float4>(x) = c;
}
KERNEL c_computed(void* x, int) {
  const float v = *of_item<float>(x) * 3;
  *of_item<float>(x) = MFMA(f32_16x16x4f32, v, v + 1, (float4{v, v, v, v}))[0];
}
KERNEL f32_32(void* x, int) {
  const float a = *of_item<float>(x);
  const float16 c = MFMA(f32_32x32x2f32, a, a, float16{});
  *of_item<float>(x) = c[1] * c[12];
}
KERNEL two_blocks(void* x, int) {
  const half4 a = *of_item<half4>(x);
  const float32 c = MFMA(f32_32x32x4f16, a, a, float32{});
  *of_item<float>(x) = c[1] * c[30];
}
KERNEL sixteen_blocks(void* x, int) {
  const half4 a = *of_item<half4>(x);
  const float4 c = MFMA(f32_4x4x4f16, a, a, float4{});
  *of_item<float>(x) = c[1] * c[3];
}
KERNEL f64_stored(void* x, int) {
  const double a = *of_item<double>(x);
  *of_item<double4>(x) = MFMA(f64_16x16x4f64, a, a, double4{});
}
KERNEL f64_multiplied(void* x, int) {
  double a = *of_item<double>(x);
  a = MFMA(f64_4x4x4f64, a, a, a);
  *of_item<double>(x) = MFMA(f64_4x4x4f64, a, a, a);
}
KERNEL i8(void* x, int) {
  const long a = *of_item<long>(x);
  const int4 c = MFMA(i32_16x16x32_i8, a, a, int4{});
  *of_item<int>(x) = c[1] + c[3];
}
KERNEL xf32(void* x, int) {
  const float2 a = *of_item<float2>(x);
  const float4 c = MFMA(f32_16x16x8_xf32, a, a, float4{});
  *of_item<float>(x) = c[1] + c[3];
}
KERNEL neighbours(void* x, int n) {
  int v = *of_item<int>(x) + n;
  v += __builtin_amdgcn_update_dpp(0, v, 0x111, 0xF, 0xF, false);
  v += __builtin_amdgcn_update_dpp(0, v, 0x142, 0xA, 0xF, false);
  *of_item<int>(x) = v;
}
KERNEL other_lanes(void* x, int) {
  int v = *of_item<int>(x);
  v = __builtin_amdgcn_ds_bpermute(4 * (item() ^ 5), v);
  *of_item<int>(x) = v + __builtin_amdgcn_ds_swizzle(v, 0x401F);
}
KERNEL uniform_addresses(void* x, int n) {
  const int* const found = static_cast<const int*>(x) + __builtin_amdgcn_readfirstlane(*static_cast<const int*>(x) & 15);
  *of_item<int>(x) = found[item() & 15] + found[n];
}
KERNEL masks(void* x, int n) {
  const u64 greater = __ballot(*of_item<int>(x) > n);
  *of_item<int>(x) = __builtin_popcountl(greater) + int(greater >> item() & 1);
}
KERNEL dot(void* x, int n) {
  const int v = *of_item<int>(x);
  const int sum = __builtin_amdgcn_sdot4(v, v + 1, n, false);
  *of_item<int>(x) = __builtin_amdgcn_sdot4(v, sum, sum, false) * 2;
}
KERNEL quotients(void* x, int n) {
  *of_item<float>(x) = *of_item<float>(x) / (n + 0.5f + item());
  *(of_item<double>(x) + 64) = *(of_item<double>(x) + 64) / (n + 0.5 + item());
}
KERNEL transcendental(void* x, int) {
  const float v = __builtin_amdgcn_exp2f(*of_item<float>(x));
  *of_item<float>(x) = __builtin_amdgcn_sinf(v + __builtin_amdgcn_rcpf(v + 1) * __builtin_amdgcn_sqrtf(v));
}
KERNEL branches(void* x, int n) {
  int v = *of_item<int>(x);
  for (int i = 0; i < v + item() % 3; ++i) v = item() & i ? v + i : v ^ n;
  *of_item<int>(x) = v;
}
KERNEL other_waves(void* x, int) {
  __shared__ float shared[256];
  shared[item()] = *of_item<float>(x);
  __syncthreads();
  const float other = shared[255 - item()];
  __syncthreads();
  shared[item()] = other;
  __syncthreads();
  *of_item<float>(x) = shared[item() ^ 64];
}
