"""Random calls for as long as a server runs: memory and the host's time must stay flat.

``python benchmarks/soak.py`` takes a minute, and ``python benchmarks/soak.py --minutes 60`` the hour that a release
should take. Threads call warmed-up functions with random M, N, K, addresses and settings. In simulation the launch does
nothing, since it would run the kernel. A line is printed for each twentieth of the time. The status is 1 if later lines
are worse than earlier ones, or if a call compiled a kernel.

Memory in use is what malloc has handed out, and the number of Python's blocks. Resident memory also has what malloc
keeps for later, of which ever more pages are touched: warming up leaves hundreds of MiB behind.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import math
import os
import random
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import typer
from host_overhead import launching_nothing

import deep_gemm_rocm as dg
from deep_gemm_rocm import jit
from deep_gemm_rocm.benchmarks import problems
from deep_gemm_rocm.benchmarks.shapes import Shape
from deep_gemm_rocm.launch import repeated
from deep_gemm_rocm.runtime import hip, session

_WINDOWS = 20
_ROWS = 2048  # the largest M
_PLACES = 64  # at which the output may begin, 256 bytes apart
_SETTINGS = (0, 200, 256)  # compute units; 0 for all
_CALLS_UNDER_A_SETTING = 50
_MIB = 2**20
_MOST_GROWTH = _MIB  # of memory in use
_MOST_NEW_BLOCKS = 1.01  # of the blocks before
_MOST_SLOWDOWN = 1.5  # of the median of the later lines' p99


class Weight(NamedTuple):
    """A function with a weight, and memory for operands and outputs of up to ``_ROWS`` rows."""

    op: str
    problem: problems.Problem
    outputs: torch.Tensor


class Window(NamedTuple):
    """Measurements of one part of the time.

    Attributes:
        p50, p99: of the time of a call, in µs, without those of other threads and processes.
        in_use: bytes that malloc has handed out; 0 where the C library doesn't tell.
        blocks: Python's blocks of memory.
        resident: bytes of the process.
        remembered: bytes of remembered calls, by their own estimate.
    """

    calls: int
    p50: float
    p99: float
    in_use: int
    blocks: int
    resident: int
    remembered: int


class MallocInfo(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


def in_use() -> int:
    """Bytes that malloc has handed out; 0 where the C library doesn't tell."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return 0
    mallinfo2.restype = MallocInfo
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)


def weights(device: str) -> list[Weight]:
    """Weights of several sizes for each function, with all kernels for all M under all settings."""
    found = []
    for op, groups in (
        ("fp8_gemm_nt", 1),
        ("bf16_gemm_nt", 1),
        ("m_grouped_fp8_gemm_nt_contiguous", 4),
        ("m_grouped_fp8_gemm_nt_masked", 2),
    ):
        for n, k in ((256, 4096), (576, 1024), (2048, 512), (4096, 256)):
            for num_cus in _SETTINGS:
                dg.set_num_sms(num_cus)
                dg.warmup_kernels(op, range(1, _ROWS + 1), n, k, groups)
            problem = problems.make(op, Shape(_ROWS // (4 if groups == 4 else 1), n, k, groups), device)
            memory = problem.d.new_empty(problem.d.numel() + _PLACES * 128)
            found.append(Weight(op, problem, memory))
    dg.set_num_sms(0)
    return found


def random_call(generator: random.Random, weight: Weight) -> Callable[[], object]:
    """A call of random M that writes to a random address."""
    op, problem, memory = weight
    m = min(int(2 ** generator.uniform(0, 11.001)), _ROWS)
    d = memory[128 * generator.randrange(_PLACES) :][: problem.d.numel()].view(problem.d.shape)
    function = problems.OPERATIONS[op].function
    if op.endswith("masked"):
        return lambda: function(problem.a, problem.b, d, problem.layout, m)
    rows = tuple(part[:m] for part in problem.a) if isinstance(problem.a, tuple) else problem.a[:m]
    if problem.layout is not None:
        return lambda: function(rows, problem.b, d[:m], problem.layout[:m])
    if op == "fp8_gemm_nt" and generator.random() < 0.2:
        return lambda: dg.gemm_fp8(rows, problem.b)
    return lambda: function(rows, problem.b, d[:m])


class Times:
    """How many calls took how long, in steps of 2%. Unlike a list of times, it takes the same memory all the time."""

    def __init__(self) -> None:
        self.counts = [0] * 1000

    def add(self, seconds: float) -> None:
        self.counts[min(int(math.log(max(1e6 * seconds, 1), 1.02)), len(self.counts) - 1)] += 1

    def take(self) -> list[int]:
        """The counts since the last time."""
        counts, self.counts = self.counts, [0] * len(self.counts)
        return counts


def quantile(counts: list[int], share: float) -> float:
    """The time in µs that this share of the calls did not exceed."""
    below = itertools.accumulate(counts)
    return 1.02 ** (1 + next(step for step, count in enumerate(below) if count >= share * sum(counts)))


def caller(seed: int, all_weights: list[Weight], times: Times, stop: threading.Event) -> None:
    """Calls until ``stop``, and adds the time of each call to ``times``."""
    generator = random.Random(seed)
    count = 0
    while not stop.is_set():
        if count % _CALLS_UNDER_A_SETTING == 0:
            dg.set_num_sms(generator.choice(_SETTINGS))
        count += 1
        call = random_call(generator, generator.choice(all_weights))
        start = time.thread_time()
        call()
        times.add(time.thread_time() - start)


def measured(times: list[Times]) -> Window:
    """The measurements since the last window."""
    counts = [sum(of_threads) for of_threads in zip(*(of_thread.take() for of_thread in times), strict=True)]
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    remembered = session.current().of(repeated.Calls).bytes
    memory = (in_use(), sys.getallocatedblocks(), resident, remembered)
    return Window(sum(counts), quantile(counts, 0.5), quantile(counts, 0.99), *memory)


def complaints(windows: list[Window]) -> list[str]:
    """A line for each figure that got worse. The first windows are left out, for they fill what is remembered."""
    settled = windows[len(windows) // 4 :]
    half = len(settled) // 2
    earlier, later = settled[:half], settled[half:]
    found = []
    grown = later[-1].in_use - max(window.in_use for window in earlier)
    if grown > _MOST_GROWTH:
        found.append(f"memory in use grew by {grown / _MIB:.1f} MiB")
    most = max(window.blocks for window in earlier)
    if later[-1].blocks > _MOST_NEW_BLOCKS * most:
        found.append(f"Python's blocks grew from {most} to {later[-1].blocks}")
    before, after = (statistics.median(window.p99 for window in half_of_them) for half_of_them in (earlier, later))
    if after > _MOST_SLOWDOWN * before:
        found.append(f"the p99 of a call went from {before:.0f} to {after:.0f} µs")
    return found


def main(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long to call.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads that call.")] = max(2, min(8, os.cpu_count() or 2)),
) -> None:
    all_weights = weights(hip.runtime().tensor_device)
    kernels = len(jit.loaded())
    print(f"{len(all_weights)} weights, {kernels} kernels, {threads} threads, {minutes:g} minutes")
    times = [Times() for _ in range(threads)]
    stop = threading.Event()
    callers = [
        threading.Thread(target=caller, args=(seed, all_weights, times[seed], stop), daemon=True)
        for seed in range(threads)
    ]
    windows = []
    with launching_nothing():
        for thread in callers:
            thread.start()
        for number in range(1, _WINDOWS + 1):
            time.sleep(60 * minutes / _WINDOWS)
            windows.append(window := measured(times))
            print(
                f"{number * minutes / _WINDOWS:6.2f} min: {window.calls} calls, p50 {window.p50:.1f} µs, "
                f"p99 {window.p99:.1f} µs; {window.in_use / _MIB:.1f} MiB and {window.blocks} blocks in use, "
                f"{window.resident / _MIB:.1f} MiB resident, {window.remembered / _MIB:.1f} MiB remembered",
                flush=True,
            )
        alive = [thread.is_alive() for thread in callers]
        stop.set()
        for thread in callers:
            thread.join()
    found = complaints(windows)
    if not all(alive):
        found.append("a thread ended before its time")
    if len(jit.loaded()) != kernels:
        found.append(f"{len(jit.loaded()) - kernels} kernels were compiled that warming up had not found")
    sys.exit("\n".join(found) if found else 0)


if __name__ == "__main__":
    typer.run(main)
