"""HIP kernels with one planted bug each: the report names the line, and the argument and element if there is one."""

from __future__ import annotations

import ctypes
import functools
import re
from dataclasses import dataclass

import numpy as np
import pytest

from deep_gemm_rocm import simulator, workbench
from deep_gemm_rocm.simulator.library import library

N = 256
SOURCE = """
#include <hip/hip_runtime.h>

__global__ void race(const float* x, float* y) {
  __shared__ float tile[256];
  const int i = threadIdx.x;
  tile[i] = x[i];
  __syncthreads();
  tile[i] += 1;              // race: write
  y[i] = tile[255 - i];      // race: read
}
__global__ void missing_barrier(const float* x, float* y) {
  __shared__ float tile[256];
  const int i = threadIdx.x;
  tile[i] = x[i];            // missing_barrier: write
  y[i] = tile[255 - i] * 2;  // missing_barrier: read
}
__global__ void unwritten_lds(const float* x, float* y) {
  __shared__ float tile[257];
  const int i = threadIdx.x;
  tile[i] = x[i];
  __syncthreads();
  y[i] = tile[i + 1];        // unwritten_lds
}
__global__ void out_of_bounds(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) y[i] = i;      // out_of_bounds
}
__global__ void before_the_start(const float* x, float* y) {
  const int i = threadIdx.x;
  y[i] = x[i - 1];           // before_the_start
}
__global__ void divergent_barrier(const float* x, float* y) {
  if (threadIdx.x < 64) __syncthreads();  // divergent_barrier
  else y[threadIdx.x] = x[threadIdx.x];
}
__global__ void race_of_groups(float* x, float* y) {
  const int i = threadIdx.x;
  if (blockIdx.x == 0) x[i] = 2;      // race_of_groups: write
  else y[i] = x[i];                   // race_of_groups: read
}
__global__ void unwritten_register(const float* x, float* y) {
  int i;
  asm volatile("" : "=v"(i));
  y[i & 255] = x[0];         // unwritten_register
}
__global__ void missing_wait(const float* x, float* y) {
  float value;
  asm volatile("global_load_dword %0, %1, off" : "=v"(value) : "v"(x + threadIdx.x));
  y[threadIdx.x] = value + 1;  // missing_wait
}
__global__ void misaligned_atomic(float* x, float* y) {
  unsigned* place = (unsigned*)((char*)x + 2);
  atomicAdd(place, 1u);      // misaligned_atomic
}
__global__ void endless(const float* x, volatile float* y) {
  while (y[0] == 0) {}       // endless
}
__global__ void asserts(const float* x, float* y) {
  if (x[threadIdx.x] > 2) __builtin_trap();  // asserts
  y[threadIdx.x] = 0;
}
__global__ void matrix_hazard(const float* x, float* y) {
  typedef float Four __attribute__((ext_vector_type(4)));
  Four sum;
  asm volatile("v_mfma_f32_16x16x4_f32 %0, %1, %1, 0" : "=v"(sum) : "v"(x[threadIdx.x]));
  asm volatile("global_store_dwordx4 %0, %1, off" : : "v"(y + 4 * threadIdx.x), "v"(sum));  // matrix_hazard
}
__global__ void lost_scope(float* x, float* y) {
  unsigned* const flag = (unsigned*)y;
  if (blockIdx.x == 0) {
    x[threadIdx.x] = 2;               // lost_scope: write
    __threadfence_block();
    if (threadIdx.x == 0) atomicExch(flag, 1u);
  } else {
    while (atomicAdd(flag, 0u) == 0) {}
    __threadfence_block();
    y[1 + threadIdx.x] = x[threadIdx.x];  // lost_scope: read
  }
}
__device__ __forceinline__ float element(const float* x, int i) {
  return x[i];               // inlined
}
__global__ void inlined(const float* x, float* y) {
  y[threadIdx.x] = element(x, threadIdx.x + 1);
}
"""
LINES = SOURCE.splitlines()


@dataclass(frozen=True)
class Bug:
    message: str
    mark: str  # the comment of the line
    other: str = ""  # that of the other access
    operand: str | None = None
    grid: int = 1
    block: int = N
    scalars: tuple[int, ...] = ()
    levels: tuple[str, ...] = ("-O0", "-O3")


BUGS = {
    "race": Bug("race: lane .* of LDS", "race: (write|read)", "race: (write|read)"),
    "missing_barrier": Bug("a barrier is missing", "missing_barrier: (write|read)", "missing_barrier: (write|read)"),
    "unwritten_lds": Bug("was never written", "unwritten_lds"),
    "out_of_bounds": Bug(
        "lane 0 accesses 4 bytes", "out_of_bounds", operand="y[256] of 256, float32, argument 1", grid=2, scalars=(N,)
    ),
    "before_the_start": Bug("lane 0", "before_the_start", operand="x[-1] of 256, float32, argument 0"),
    "divergent_barrier": Bug("a barrier that not all waves reach", "divergent_barrier"),
    "race_of_groups": Bug(
        "race between workgroups", "race_of_groups: (write|read)", "race_of_groups: (write|read)",
        operand="x[0] of 256, float32, argument 0", grid=2, block=64,
    ),
    # Without optimisation, the compiler's own copies use the registers first.
    "unwritten_register": Bug("the address in .* was never written", "unwritten_register", levels=("-O3",)),
    "missing_wait": Bug("is used before an s_waitcnt", "missing_wait", levels=("-O3",)),
    "misaligned_atomic": Bug(
        "misaligned atomic", "misaligned_atomic", operand="byte 2 of x[0] of 256, float32, argument 0"
    ),
    "endless": Bug("without an end", "endless", block=64),
    "asserts": Bug("s_trap", "asserts"),
    "matrix_hazard": Bug("the matrix result v.* needs", "matrix_hazard", block=64, levels=("-O3",)),
    "lost_scope": Bug(
        "race between workgroups", "lost_scope: (write|read)", "lost_scope: (write|read)",
        operand="x[0] of 256, float32, argument 0", grid=2, block=64,
    ),
    "inlined": Bug("outside the memory", "inlined", operand="x[256] of 256, float32, argument 0"),
}  # fmt: skip


@functools.cache
def code(level: str) -> bytes:
    return workbench.compile(SOURCE, debug=True, flags=[level])


def run(level: str, kernel: str, bug: Bug) -> simulator.SimulatorError:
    room = np.full(3 * 4096 // 4 + 2 * N, 3, np.float32)  # so that the arrays aren't neighbours
    x, y = room[1024 : 1024 + N], room[-N:]
    y[:] = 0
    with pytest.raises(simulator.SimulatorError, match=bug.message) as caught:
        simulator.launch(code(level), kernel, bug.grid, bug.block, [x, y, *bug.scalars])
    return caught.value


@pytest.mark.parametrize(("kernel", "level"), [(kernel, level) for kernel in BUGS for level in BUGS[kernel].levels])
def test_a_bug_is_reported_at_its_line(kernel: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = BUGS[kernel]
    monkeypatch.setenv("DG_SIM_SANITIZE", "1")
    if kernel == "endless":
        monkeypatch.setenv("DG_SIM_MAX_INSTRUCTIONS", "20000")
    for seed in "012":
        monkeypatch.setenv("DG_SIM_SEED", seed)
        error = run(level, kernel, bug)
        assert error.place is not None
        marked = LINES[error.place.line - 1]
        assert re.search(f"// {bug.mark}$", marked), f"{error}\n{marked}"
        assert f"at {error.place}: {marked.strip()}" in str(error)
        assert error.place.name == "kernel.hip"
        assert error.place.column > 1
        assert error.place.function == ("element" if kernel == "inlined" else kernel)
        calls = [(place.function, LINES[place.line - 1]) for place in error.callers]
        inlined = "  y[threadIdx.x] = element(x, threadIdx.x + 1);"
        assert calls == ([("inlined", inlined)] if kernel == "inlined" else [])
        assert ("called at kernel.hip:" in str(error)) == (kernel == "inlined")
        if bug.other:
            assert error.other_place is not None, error
            other = LINES[error.other_place.line - 1]
            assert re.search(f"// {bug.other}$", other), f"{error}\n{other}"
            assert f"the other access is at {error.other_place}" in str(error)
            assert other != marked or kernel == "race"
        if bug.operand:
            assert error.operand == bug.operand
            assert f"the access is to {bug.operand}" in str(error)


def test_use_after_free_is_reported_at_its_line() -> None:
    address = ctypes.c_void_p()
    assert library().hipMalloc(ctypes.byref(address), ctypes.c_size_t(4 * N)) == 0
    assert library().hipFree(address) == 0
    with pytest.raises(simulator.SimulatorError, match="outside the memory") as caught:
        simulator.launch(code("-O3"), "out_of_bounds", 1, 64, [np.zeros(N, np.float32), address.value, N])
    assert caught.value.place is not None
    assert LINES[caught.value.place.line - 1].endswith("// out_of_bounds")
    assert caught.value.operand is None


def test_a_refused_launch_has_no_place() -> None:
    x = np.zeros(N, np.float32)
    with pytest.raises(simulator.SimulatorError, match="outside the memory") as failed:
        simulator.launch(code("-O3"), "before_the_start", 1, 4, [x, x.copy()])
    assert failed.value.place is not None
    with pytest.raises(simulator.SimulatorError, match="the grid of 0 x 1 x 1 blocks is empty") as refused:
        simulator.launch(code("-O3"), "before_the_start", 0, 4, [x, x.copy()])
    assert refused.value.place is None
    assert "kernel.hip" not in str(refused.value)


def test_code_without_debug_information_is_reported_by_offset() -> None:
    x = np.zeros(4, np.float32)
    plain = workbench.compile(SOURCE)
    with pytest.raises(simulator.SimulatorError, match="offset 0x") as caught:
        simulator.launch(plain, "before_the_start", 1, 4, [x, x.copy()])
    assert caught.value.place is None
    assert caught.value.operand == "x[-1] of 4, float32, argument 0"


PROFILED = """
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>
__global__ void columns(const __half* x, float* y) {
  __shared__ float tile[64][64];
  const int i = threadIdx.x;
  for (int k = 0; k < 64; ++k) tile[i][k] = __half2float(x[k * 64 + i]) + 1;  // conflicts
  __syncthreads();
  float sum = 0;
  for (int k = 0; k < 64; ++k) sum += tile[k][i];           // none
  y[i] = sum;                                               // store
}
"""


def test_profile_by_line() -> None:
    image = workbench.compile(PROFILED, debug=True)
    x, y = np.ones((64, 64), np.float16), np.zeros(64, np.float32)
    with simulator.profile(timeline=0) as profiled, simulator.counters() as counted:
        simulator.launch(image, "columns", 1, 64, [x, y])
    lines = simulator.profile_lines(image, profiled.kernels[0], counted.kernels[0])
    by_mark = {
        mark: [line for line in lines if line.place and line.place.text.endswith(f"// {mark}")]
        for mark in ("conflicts", "none", "store")
    }
    (conflicts,), (none,), (store,) = by_mark.values()
    assert sum(line.cycles for line in lines) == sum(line.cycles for line in profiled.kernels[0].listing)
    assert {line.place.name for line in lines if line.place} == {"kernel.hip"}, "headers have no lines of their own"
    assert conflicts.global_bytes == 64 * 64 * 2
    assert conflicts.lds_bytes == none.lds_bytes == 64 * 64 * 4
    assert conflicts.lds_conflict_clocks == counted.kernels[0].lds_conflict_clocks > 500
    assert none.lds_conflict_clocks == 0
    assert store.global_bytes == 64 * 4
    assert conflicts.stalls["wait_memory"] > 0
    assert {name for line in lines for name in line.stalls} <= set(profiled.kernels[0].stalls)
    # One wave, on the one CU that the timeline shows.
    for reason, clocks in profiled.kernels[0].stalls.items():
        assert sum(line.stalls.get(reason, 0) for line in lines) == clocks
    with pytest.raises(ValueError, match="compile the kernel with debug information"):
        simulator.profile_lines(workbench.compile(PROFILED), profiled.kernels[0])


WAITING = """
#include <hip/hip_runtime.h>
__global__ void wait(const float* x, float* y) {
  float sum = 0;
  if (threadIdx.x < 64)
    for (int i = 0; i < 100; ++i) sum += x[i] * sum + 1;
  __syncthreads();           // barrier
  y[threadIdx.x] = sum + 1;  // behind
}
"""


def test_waits_at_a_barrier_count_at_its_line() -> None:
    image = workbench.compile(WAITING, debug=True)
    with simulator.profile(timeline=0) as profiled:
        simulator.launch(image, "wait", 1, 256, [np.ones(100, np.float32), np.zeros(256, np.float32)])
    found = {line.place.text.split("// ")[-1]: line for line in simulator.profile_lines(image, *profiled.kernels)}
    assert found["barrier"].stalls["barrier"] == profiled.kernels[0].stalls["barrier"] > 1000
    assert "barrier" not in found["behind"].stalls
