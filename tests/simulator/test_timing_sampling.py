"""Sampling of large launches: the timing model skips arithmetic that doesn't affect time, and whole workgroups."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from helpers.simulated_hip import Compiler

import deep_gemm_rocm
from deep_gemm_rocm import simulator

pytestmark = pytest.mark.unsanitized  # kernels that only take time

GATHER = """
extern "C" __global__ void gather(const int* index, const float* x, float* y) {
  __shared__ int order[256];
  int lane = __builtin_amdgcn_workitem_id_x(), group = __builtin_amdgcn_workgroup_id_x();
  order[lane] = index[group * 256 + lane];
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  int at = order[lane * 7 % 256];
  if (lane % 3 == 0) at = index[at];
  else at = (at + 1) % 1024;
  float sum = 0;
  for (int i = 0; i < index[lane] % 16; ++i) {
    sum = __builtin_fmaf(x[at], x[(at + i) % 1024], sum * sum);
    at = index[at];
  }
  y[group * 256 + lane] = __builtin_sqrtf(sum);
}
"""


def test_addresses_and_branches_are_computed(compiler: Compiler) -> None:
    """The addresses that waves access, and the lengths of their loops, depend on values from memory and LDS."""
    code, generator = compiler.code_object(GATHER), np.random.default_rng(0)
    index, x = generator.integers(0, 1024, 1024, np.int32), generator.random(1024, np.float32)
    y = np.full(1024, -1, np.float32)
    profiles = []
    for compute in ("all", "sampled", "all", "sampled"):
        y[:] = -1
        with simulator.profile(compute=compute) as prof:
            simulator.launch(code, "gather", 4, 256, [index, x, y])
        profiles += prof.kernels
        assert (y >= 0).all()  # stored values may be loaded again, so they aren't skipped
    everything, sampled = profiles[2:]
    assert sampled.cycles == pytest.approx(everything.cycles, rel=0.05)  # lines are in other places of the caches
    assert [line.executed for line in sampled.listing] == [line.executed for line in everything.listing]
    assert sampled.lds_conflict_cycles == everything.lds_conflict_cycles
    assert sampled.l1_hit_rate == everything.l1_hit_rate


COUNT = """
extern "C" __global__ void count_turns(const int* x, int* turns) { *turns = *x * 3 + 1; }
extern "C" __global__ void turn(const int* turns, int* done) {
  int i = 0;
  for (; i < *turns; ++i) __builtin_amdgcn_s_sleep(1);
  *done = i;
}
"""


@pytest.mark.parametrize(("computed", "right"), [(("count_*", "other"), True), (("turn",), False), ((), False)])
def test_a_kernel_may_be_computed_for_those_after_it(
    compiler: Compiler, computed: tuple[str, ...], right: bool
) -> None:
    code = compiler.code_object(COUNT)
    x, turns, done = np.full(1, 33, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32)
    with simulator.profile(compute="sampled", computed=computed):
        simulator.launch(code, "count_turns", 1, 1, [x, turns])
        simulator.launch(code, "turn", 1, 1, [turns, done])
    assert (turns[0] == 100) == right
    assert (done[0] == 100) == right


MULTIPLY = """
typedef float Sums __attribute__((ext_vector_type(4)));
extern "C" __global__ void multiply(const long* a, float* d, int n) {
  __shared__ float whole[16384];
  int id = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
  Sums sums = {0, 0, 0, 0};
  for (int i = 0; i < n; ++i) {
    long x = a[(id * 24 + i) % 4194304];
    sums = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(x, x, sums, 0, 0, 0);
  }
  whole[id % 64] = sums.x;
  d[id] = whole[(id + 1) % 64] + 1;
}
"""
GROUPS = 304 * 9 + 100  # each fills a CU


@pytest.mark.parametrize("compute", [pytest.param("all", marks=pytest.mark.slow), "sampled"])
def test_sampling_changes_little(compiler: Compiler, compute: str) -> None:
    code = compiler.code_object(MULTIPLY)
    arguments = [np.zeros(1 << 22, np.int64), np.zeros(GROUPS * 64, np.float32), 40]
    profiles = []
    for sampling in (False, False, True):  # the first run has a cold Infinity Cache
        arguments[1][:] = -1
        with simulator.profile({"sampling.most_instructions": 1e5}, sampling=sampling, compute=compute) as prof:
            simulator.launch(code, "multiply", GROUPS, 64, arguments)
        profiles += prof.kernels
        assert (arguments[1] == (1 if compute == "all" else -1)).all()
    _, whole, sampled = profiles
    assert whole.sampled_workgroups == GROUPS
    assert sampled.sampled_workgroups == 304 * 4 + 100
    assert sampled.cycles == pytest.approx(whole.cycles, rel=0.05)
    assert sampled.instructions == whole.instructions
    assert sampled.mfma_utilization == pytest.approx(whole.mfma_utilization, rel=0.05)
    assert sampled.vmem_busy == pytest.approx(whole.vmem_busy, rel=0.05)


UNEVEN = """
typedef float Sums __attribute__((ext_vector_type(4)));
extern "C" __global__ void uneven(const int* work, const long* a, float* d) {
  __shared__ float whole[16384];
  int group = __builtin_amdgcn_workgroup_id_x(), lane = __builtin_amdgcn_workitem_id_x();
  Sums sums = {0, 0, 0, 0};
  for (int i = 0; i < work[group]; ++i) {
    long x = a[i % 4 * 64 + lane];
    sums = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(x, x, sums, 0, 0, 0);
  }
  whole[lane % 64] = sums.x;
  d[group * 64 + lane] = whole[(lane + 1) % 64] + 1;
}
"""
UNEVEN_GROUPS = 8 * 48 + 5

_ids = np.arange(UNEVEN_GROUPS)
WORK = {  # of each workgroup
    "equal": np.full(UNEVEN_GROUPS, 60),
    "triangles": 8 * (1 + _ids % 16),
    "triangles, heavy first": 8 * (16 - _ids % 16),
    "one triangle": 4 + _ids // 3,
    "one triangle, heavy first": 4 + _ids[::-1] // 3,
    "few have any": np.where(_ids % 13 < 4, 150, 0),
    "groups of random sizes": np.repeat(np.random.default_rng(0).integers(0, 150, UNEVEN_GROUPS), 24)[:UNEVEN_GROUPS],
    "an XCD has more": np.where(_ids % 8 == 3, 90, 50),
}


@pytest.mark.parametrize("compute", ["all", "sampled"])
@pytest.mark.parametrize("name", WORK)
def test_workgroups_of_unequal_work(compiler: Compiler, name: str, compute: Literal["all", "sampled"]) -> None:
    """Instructions are counted, not estimated, however work is spread. Times stay close to the whole launch's."""
    code = compiler.code_object(UNEVEN)
    arguments = [WORK[name].astype(np.int32), np.zeros(256, np.int64), np.zeros(UNEVEN_GROUPS * 64, np.float32)]
    profiles = []
    for sampling in (False, True):
        constants = {"chip.cus_per_xcd": 1, "sampling.most_instructions": 1}  # eight workgroups at a time
        with simulator.profile(constants, sampling=sampling, compute=compute) as prof:
            simulator.launch(code, "uneven", UNEVEN_GROUPS, 64, arguments)
        profiles += prof.kernels
    whole, sampled = profiles
    assert sampled.sampled_workgroups == 4 * 8 + 5
    assert [line.executed for line in sampled.listing] == [line.executed for line in whole.listing]
    for clocks in ("matrix_fp8_clocks", "vector_clocks"):
        assert sampled.activity[clocks] == whole.activity[clocks] > 0
    assert sampled.cycles == pytest.approx(whole.cycles, rel=0.03)


TICKETS = """
extern "C" __global__ void tickets(int* next, int* order) {
  __shared__ int whole[16384];
  if (__builtin_amdgcn_workitem_id_x() == 0)
    whole[0] = __hip_atomic_fetch_add(next, 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  order[__builtin_amdgcn_workgroup_id_x()] = whole[0];
}
"""


def test_workgroups_that_know_of_others_are_not_sampled(compiler: Compiler) -> None:
    arrival, order = np.zeros(1, np.int32), np.full(GROUPS, -1, np.int32)
    with simulator.profile({"sampling.most_instructions": 1}) as prof:
        simulator.launch(compiler.code_object(TICKETS), "tickets", GROUPS, 64, [arrival, order])
    assert prof.kernels[0].sampled_workgroups == GROUPS
    np.testing.assert_array_equal(np.sort(order), np.arange(GROUPS))


def gemm(m: int, n: int, k: int) -> None:
    a = torch.zeros(m, k, dtype=torch.float8_e4m3fnuz), torch.ones(k // 128, m).t()
    b = torch.zeros(n, k, dtype=torch.float8_e4m3fnuz), torch.ones(-(-n // 128), k // 128)
    d = torch.empty(m, n, dtype=torch.bfloat16)
    deep_gemm_rocm.fp8_gemm_nt(a, b, d, recipe=(1, 128, 128))


def causal_attention(tokens: int, heads: int) -> None:
    q, k, v = torch.randn(3, 1, tokens, heads, 128, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    deep_gemm_rocm.flash_attention(q, k, v, causal=True)


CALLS = {"gemm": lambda: gemm(2048, 4096, 256), "causal attention": lambda: causal_attention(1024, 12)}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_sampling_our_kernels(name: str) -> None:
    profiles = []
    for sampling in (False, True):
        constants = {"chip.cus_per_xcd": 2, "sampling.most_instructions": 1}
        with simulator.profile(constants, compute="sampled", sampling=sampling) as prof:
            CALLS[name]()
        profiles += prof.kernels
    whole, sampled = profiles
    assert sampled.sampled_workgroups < whole.sampled_workgroups
    assert sampled.cycles == pytest.approx(whole.cycles, rel=0.03)
    assert sampled.mfma_utilization * sampled.cycles == pytest.approx(whole.mfma_utilization * whole.cycles, rel=1e-4)


@pytest.mark.slow
def test_a_large_gemm() -> None:
    """962 GFLOP take at most a minute on two idle cores."""
    with simulator.profile(compute="sampled") as prof:
        gemm(4096, 7168, 16384)
    (kernel,) = prof.kernels
    assert 0.2 < kernel.mfma_utilization < 1
