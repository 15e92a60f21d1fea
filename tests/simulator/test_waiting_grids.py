"""Grids whose workgroups wait for each other, without the timing model: they are suspended and resumed."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from deep_gemm_rocm import simulator, workbench
from deep_gemm_rocm.__main__ import app

SOURCE = """
#include <hip/hip_cooperative_groups.h>
#include <hip/hip_runtime.h>
namespace cg = cooperative_groups;

// Each round adds the neighbour's value of the round before.
extern "C" __global__ void rounds(int* x, int* y, int count) {
  cg::grid_group grid = cg::this_grid();
  const int i = int(grid.thread_rank()), n = int(grid.num_threads());
  for (int round = 0; round < count; ++round) {
    y[i] = x[i] + x[(i + blockDim.x) % n];
    grid.sync();
    int* other = x;
    x = y, y = other;
  }
}
extern "C" __global__ void is_cooperative(int* out) { *out = cg::this_grid().is_valid(); }

// Workgroup 0 waits for the last one, which starts last.
extern "C" __global__ void first_waits(int* flag, int* out) {
  if (blockIdx.x == gridDim.x - 1) __hip_atomic_store(flag, 7, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
  if (blockIdx.x != 0) return;
  while (__hip_atomic_load(flag, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT) == 0) {}
  *out = *flag;
}
// As above, but the loop counts and so never has the same registers twice.
extern "C" __global__ void first_counts(int* flag, int* out) {
  if (blockIdx.x == gridDim.x - 1) __hip_atomic_store(flag, 7, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
  if (blockIdx.x != 0) return;
  int polled = 0;
  while (__hip_atomic_load(flag, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT) == 0) ++polled;
  *out = *flag, out[1] = polled > 0;
}
// Workgroups add in turn: a lock by compare-and-swap, whose holder waits for its turn.
extern "C" __global__ void turns(int* turn, int* sum) {
  if (threadIdx.x == 0) {
    const int own = int(gridDim.x - 1 - blockIdx.x);
    while (atomicCAS(turn, own, -1) != own) {}
    __threadfence();
    *sum = *sum * 3 % 1009 + own;
    __threadfence();
    atomicExch(turn, own + 1);
  }
}
extern "C" __global__ void counts(int* flag) {
  int polled = 0;
  while (__hip_atomic_load(flag, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT) == 0) ++polled;
  flag[1] = polled;
}
extern "C" __global__ void never(int* flag) {
  if (threadIdx.x == 0)
    while (__hip_atomic_load(flag, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT) == 0) __builtin_amdgcn_s_sleep(1);
  __syncthreads();
}
extern "C" __global__ void paced(int* out, int count) {
  int sum = 0;
  for (int i = 0; i < count; ++i) {
    sum = sum * 3 + i;
    __builtin_amdgcn_s_sleep(1);
    asm volatile("" : "+v"(sum));
  }
  out[blockIdx.x] = sum;
}
"""


@functools.cache
def _code() -> bytes:
    return workbench.compile(SOURCE, debug=True)


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize(("grid", "block"), [((6,), 128), ((5, 2, 2), 64)])
def test_grid_sync(monkeypatch: pytest.MonkeyPatch, threads: str, grid: tuple[int, ...], block: int) -> None:
    monkeypatch.setenv("DG_SIM_THREADS", threads)
    x = np.random.default_rng(1).integers(0, 100, int(np.prod(grid)) * block).astype(np.int32)
    y, expected = np.zeros_like(x), x.copy()
    simulator.launch(_code(), "rounds", grid, block, [x, y, 5], cooperative=True)
    for _ in range(5):
        expected = expected + np.roll(expected, -block)
    np.testing.assert_array_equal(y, expected)


def test_grid_sync_of_the_whole_chip() -> None:
    x = np.arange(304 * 64, dtype=np.int32)
    y = np.zeros_like(x)
    simulator.launch(_code(), "rounds", 304, 64, [x, y, 2], cooperative=True)
    np.testing.assert_array_equal(x, np.arange(x.size) + 2 * np.roll(np.arange(x.size), -64)
                                  + np.roll(np.arange(x.size), -128))  # fmt: skip


def test_plain_launches_are_not_cooperative() -> None:
    out = np.full(1, 9, np.int32)
    simulator.launch(_code(), "is_cooperative", 1, 64, [out])
    assert out[0] == 0
    simulator.launch(_code(), "is_cooperative", 1, 64, [out], cooperative=True)
    assert out[0] == 1


def test_cooperative_launches_must_fit() -> None:
    """1024 work-items are 16 waves, and a CU has 32 wave slots."""
    out = np.zeros(1, np.int32)
    simulator.launch(_code(), "is_cooperative", 608, 1024, [out], cooperative=True)
    with pytest.raises(simulator.SimulatorError, match="609 blocks, 608 fit on the device at once"):
        simulator.launch(_code(), "is_cooperative", 609, 1024, [out], cooperative=True)


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("kernel", ["first_waits", "first_counts"])
def test_first_workgroup_waits_for_last(monkeypatch: pytest.MonkeyPatch, threads: str, kernel: str) -> None:
    monkeypatch.setenv("DG_SIM_THREADS", threads)
    monkeypatch.setenv("DG_SIM_SANITIZE", "0")  # `first_counts` executes four million instructions first
    flag, out = np.zeros(1, np.int32), np.zeros(2, np.int32)
    simulator.launch(_code(), kernel, 2000, 64, [flag, out])
    assert out[0] == 7


def test_workgroups_take_turns() -> None:
    turn, total = np.zeros(1, np.int32), np.zeros(1, np.int32)
    simulator.launch(_code(), "turns", 40, 64, [turn, total])
    expected = functools.reduce(lambda value, own: value * 3 % 1009 + own, range(40), 0)
    assert (turn[0], total[0]) == (40, expected)


@pytest.mark.parametrize("sanitize", ["0", "1"])
def test_grids_without_progress_are_reported(monkeypatch: pytest.MonkeyPatch, sanitize: str) -> None:
    monkeypatch.setenv("DG_SIM_MAX_INSTRUCTIONS", "100000")
    monkeypatch.setenv("DG_SIM_SANITIZE", sanitize)
    with pytest.raises(simulator.SimulatorError, match="wait for each other: 5 of 5 have polled") as caught:
        simulator.launch(_code(), "never", 5, 128, [np.zeros(1, np.int32)])
    assert caught.value.place is not None
    assert "== 0" in caught.value.place.text
    assert "at the s_barrier" in str(caught.value)


@pytest.mark.parametrize("sanitize", ["0", "1"])
def test_waves_that_sleep_between_their_work_wait_for_nobody(monkeypatch: pytest.MonkeyPatch, sanitize: str) -> None:
    monkeypatch.setenv("DG_SIM_MAX_INSTRUCTIONS", "100000")
    monkeypatch.setenv("DG_SIM_SANITIZE", sanitize)
    out = np.zeros(64, np.int32)
    simulator.launch(_code(), "paced", 64, 64, [out, 100])
    expected = functools.reduce(lambda value, i: (value * 3 + i) % 2**32, range(100), 0)
    assert (out.view(np.uint32) == expected).all()


@pytest.mark.unsanitized
def test_endless_loops_that_count_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """They don't look like polling, so a wave has to reach the limit."""
    monkeypatch.setenv("DG_SIM_MAX_INSTRUCTIONS", "6000000")
    with pytest.raises(simulator.SimulatorError, match="a wave has executed 6000000 instructions without an end"):
        simulator.launch(_code(), "counts", 4, 64, [np.zeros(2, np.int32)])


def test_grids_that_do_not_fit_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all of its LDS, a CU has one workgroup; the last one only starts when another one ends."""
    monkeypatch.setenv("DG_SIM_MAX_INSTRUCTIONS", "100000")
    flag = np.zeros(1, np.int32)
    with pytest.raises(simulator.SimulatorError, match="no more fit on the chip, so that 1 never start"):
        simulator.launch(_code(), "never", 305, 64, [flag], dynamic_lds=65536)


@pytest.mark.parametrize(("option", "valid"), [([], 0), (["--cooperative"], 1)])
def test_commands_launch_cooperatively(tmp_path: Path, option: list[str], valid: int) -> None:
    path = tmp_path / "kernel.co"
    path.write_bytes(_code())
    command = ["sim", "run", str(path), "--kernel", "is_cooperative", "--arg", "int32[1]=7", *option]
    done = CliRunner().invoke(app, command)
    assert f"arg0 int32[1]: [{valid}]" in done.output
