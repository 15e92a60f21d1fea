// Mistakes as people make them: each kernel <name>_bug has one, and <name>_fix is what was meant.
#include "device.h"

#define PAIR(name)                                                        \
  KERNEL name##_bug(int* x, int* y, int n) { name<true>(x, y, n); }       \
  KERNEL name##_fix(int* x, int* y, int n) { name<false>(x, y, n); }
#define MISTAKE template <bool bug> static __device__ void

static __device__ int item() { return threadIdx.x; }

// Bins are read while other waves still count.
MISTAKE count_in_lds(int* x, int* y, int n) {
  __shared__ int bins[16];
  if (item() < 16) bins[item()] = 0;
  __syncthreads();
  __hip_atomic_fetch_add(&bins[x[item()] & 15], 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
  if (!bug) __syncthreads();
  if (item() < 16) y[item()] = bins[item()];
}
PAIR(count_in_lds)

// Only an address at run time tells that it is LDS.
static __device__ __attribute__((noinline)) int* one_of(int* a, int* b, int n) { return n > 0 ? a : b; }
MISTAKE reverse_by_flat_addresses(int* x, int* y, int n) {
  __shared__ int shared[256];
  shared[item()] = 0;
  __syncthreads();
  int* place = one_of(shared, x, n);
  place[item()] = item();
  if (!bug) __syncthreads();
  y[item()] = place[255 - item()];
}
PAIR(reverse_by_flat_addresses)

// The next tile is stored while other waves still read this one.
MISTAKE sum_of_tiles(int* x, int* y, int n) {
  __shared__ int tile[256];
  int sum = 0;
  for (int k = 0; k < 3; ++k) {
    tile[item()] = x[item()] + k;
    __syncthreads();
    for (int i = 0; i < 4; ++i) sum += tile[(item() + 64 * i + 1) & 255];
    if (!bug) __syncthreads();
  }
  y[item()] = sum;
}
PAIR(sum_of_tiles)

// Several waves add up as if they were one.
MISTAKE sum_as_a_tree(int* x, int* y, int n) {
  __shared__ int shared[256];
  shared[item()] = x[item()];
  __syncthreads();
  for (int distance = 128; distance > 0; distance >>= 1) {
    if (item() < distance) shared[item()] += shared[item() + distance];
    if (!bug || distance <= 64) __syncthreads();
  }
  if (item() == 0) y[0] = shared[0];
}
PAIR(sum_as_a_tree)

// The last workgroup goes one element too far.
MISTAKE copy(int* x, int* y, int n) {
  const int i = int(blockIdx.x) * 256 + item();
  if (bug ? i <= n : i < n) y[i] = x[i];
}
PAIR(copy)

extern __shared__ int dynamic[];
MISTAKE neighbours(int* x, int* y, int n) {
  dynamic[item()] = item();
  __syncthreads();
  y[item()] = dynamic[bug ? item() + 1 : (item() + 1) % 256];
}
PAIR(neighbours)

// A member that is forgotten.
struct Sums { int count, sum, largest; };
MISTAKE sums_of_others(int* x, int* y, int n) {
  __shared__ Sums sums[256];
  sums[item()].count = 1;
  if (!bug) sums[item()].sum = 0;
  sums[item()].largest = x[item()];
  __syncthreads();
  const Sums other = sums[item() ^ 64];
  y[item()] = other.count + other.sum + other.largest;
}
PAIR(sums_of_others)

// What is shuffled comes from lanes that hold nothing.
MISTAKE shuffle(int* x, int* y, int n) {
  __shared__ int shared[256];
  if (item() % 64 < 32) shared[item()] = x[item()];
  const int own = shared[item()];
  y[item()] = __builtin_amdgcn_ds_bpermute(4 * (item() & (bug ? 63 : 31)), own);
}
PAIR(shuffle)

// The end of a loop, and what is written, hang on memory that nothing has written.
MISTAKE sum_of_some(int* x, int* y, int n) {
  const int end = x[bug ? 1024 + item() : item()] & 7;
  int sum = 0;
  for (int i = 0; i < end; ++i) sum += x[i];
  y[item()] = sum;
}
PAIR(sum_of_some)
MISTAKE write_some(int* x, int* y, int n) {
  if (x[bug ? 1024 + item() : item()] > 5) y[item()] = 1;
}
PAIR(write_some)

// In place, though the next workgroup reads what this one writes.
MISTAKE difference(int* x, int* y, int n) {
  const int i = int(blockIdx.x) * 256 + item();
  const int next = x[i + 1];
  (bug ? x : y)[i] = next - i;
}
PAIR(difference)

// Tiles that overlap by an element.
MISTAKE write_tiles(int* x, int* y, int n) { y[int(blockIdx.x) * (bug ? 255 : 256) + item()] = int(blockIdx.x); }
PAIR(write_tiles)

// Waves that have less to do miss a barrier.
MISTAKE rounds(int* x, int* y, int n) {
  const int rounds = bug ? 1 + item() / 64 : 4;
  for (int i = 0; i < rounds; ++i) __syncthreads();
  y[item()] = 1;
}
PAIR(rounds)

// Nobody sets the flag.
MISTAKE wait_for_flag(int* x, int* y, int n) {
  __shared__ volatile int flag;
  if (item() == 0) flag = bug ? 0 : 1;
  __syncthreads();
  while (flag == 0) {}
  y[item()] = 1;
}
PAIR(wait_for_flag)

// The wait in the loop is for one of two loads.
#define SUM_IN_A_LOOP(wait)                                                                            \
  asm volatile(                                                                                        \
      "v_mov_b32 %0, 0\n s_mov_b32 s20, 4\n global_load_dword %1, %3, off\n"                           \
      "1: global_load_dword %2, %3, off offset:256\n s_waitcnt vmcnt(1)\n v_add_u32 %0, %0, %1\n"      \
      wait "v_add_u32 %0, %0, %2\n global_load_dword %1, %3, off\n s_sub_u32 s20, s20, 1\n"            \
      "s_cmp_lg_u32 s20, 0\n s_cbranch_scc1 1b\n s_waitcnt vmcnt(0)"                                   \
      : "=&v"(sum), "=&v"(a), "=&v"(b) : "v"(x + item()) : "memory", "scc", "s20")
MISTAKE sum_in_a_loop(int* x, int* y, int n) {
  int sum, a, b;
  if (bug) SUM_IN_A_LOOP("");
  else SUM_IN_A_LOOP("s_waitcnt vmcnt(0)\n");
  y[item()] = sum;
}
PAIR(sum_in_a_loop)
