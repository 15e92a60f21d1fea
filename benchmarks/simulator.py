"""How fast the simulated MI300X is on this machine: ``python benchmarks/simulator.py``.

Throughput is that of the host, not of the simulated chip. Every figure is the median of several runs. "Cores" is the
processor time that a run took over the time that passed: less than the machine has means that the simulator left some
idle, or that something else ran beside it. "A core" is the rate by processor time, which other programs change little.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import streaming
import torch
import typer
from rich.console import Console
from rich.table import Table

import deep_gemm_rocm as dg
from deep_gemm_rocm import testing
from deep_gemm_rocm.jit import toolchain
from deep_gemm_rocm.runtime import hip

FP8_SHAPES = ((128, 2112, 7168), (512, 1024, 4096), (2048, 1024, 2048))  # M, N, K
BF16_SHAPES = ((128, 2112, 2048), (1024, 1024, 1024))
STREAM_ROWS, STREAM_COLUMNS = 4096, 2048  # 32 MiB of fp32
GRIDS = (512, 2048, 8192)

# The first kernel of a process, on whose compiled form in the cache it depends.
FIRST_KERNEL = """
import time, torch
start = time.perf_counter()
import deep_gemm_rocm as dg
data, scales = torch.ones(16, 128).to(torch.float8_e4m3fnuz), torch.ones(16, 1)
dg.gemm_fp8((data, scales), (data, scales[:1]))
print(time.perf_counter() - start)
"""

# MiB that a process takes at most, beyond what it has before its first call: torch and the tensors.
PEAK_MEMORY = """
import pathlib, re, torch
def mebibytes(name):
    return int(re.search(name + r":\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) / 1024
a, b = (torch.randint(0, 127, (rows, 4096), dtype=torch.uint8).view(torch.float8_e4m3fnuz) for rows in (512, 1024))
sfa, sfb, out = torch.ones(512, 32), torch.ones(8, 32), torch.zeros(512, 1024, dtype=torch.bfloat16)
before = mebibytes("VmRSS")
pathlib.Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
import deep_gemm_rocm as dg
dg.gemm_fp8((a, sfa), (b, sfb), out)
print(mebibytes("VmHWM") - before)
"""


@dataclass(frozen=True)
class Timing:
    """Seconds of one run."""

    passed: float
    of_processors: float


@dataclass(frozen=True)
class Workload:
    """``amount`` is what a run gets done, in units of 1e9: FLOP or bytes, as ``unit`` tells."""

    name: str
    amount: float
    unit: str
    run: Callable[[], object]


def main(
    runs: Annotated[int, typer.Option(min=1, help="How often each is run; the median counts.")] = 5,
    sanitizer: Annotated[bool, typer.Option(help="Run everything under the sanitizer too.")] = True,
) -> None:
    """Measure how fast the simulated MI300X executes kernels, starts up and launches, and the memory it takes."""
    os.environ["DG_DEVICE"] = "sim"
    console = Console(highlight=False, soft_wrap=True)
    workloads = list(_workloads())
    workloads[0].run()  # loads the engine
    console.print(_machine())
    console.print(_throughput(workloads, runs, sanitizer))
    console.print(_costs(runs, sanitizer))
    console.print(_linearity(runs))


def _machine() -> str:
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    engine = re.search(r"libmi300x_(\S+)\.so", Path("/proc/self/maps").read_text(encoding="utf-8"))
    return (
        f"{model[1] if model else platform.processor()}, {len(os.sched_getaffinity(0))} cores, "
        f"load {os.getloadavg()[0]:.1f}; engine for {engine[1] if engine else '?'}; "
        f"kernels compiled by {toolchain.choose().version}"
    )


def _workloads() -> Iterator[Workload]:
    for m, n, k in FP8_SHAPES:
        a, b = testing.gemm_problem(m, n, k)
        run = functools.partial(dg.gemm_fp8, a, b, torch.empty(m, n, dtype=torch.bfloat16))
        yield Workload(f"FP8 GEMM {m}x{n}x{k}", 2e-9 * m * n * k, "GFLOP/s", run)
    for m, n, k in BF16_SHAPES:
        operands = testing.activations(m, k), testing.weights(n, k), torch.empty(m, n, dtype=torch.bfloat16)
        run = functools.partial(dg.bf16_gemm_nt, *operands)
        yield Workload(f"bf16 GEMM {m}x{n}x{k}", 2e-9 * m * n * k, "GFLOP/s", run)
    for name, tensors_moved in (("copy", 2), ("add", 3), ("row_sum", 1)):
        amount = 4e-9 * tensors_moved * STREAM_ROWS * STREAM_COLUMNS
        yield Workload(f"{name} of fp32", amount, "GB/s", _stream(name, STREAM_ROWS, STREAM_COLUMNS))


def _stream(name: str, rows: int, columns: int) -> Callable[[], None]:
    """A launch of one of the kernels in streaming.hip."""
    number = streaming.NAMES.index(name)
    x, y = torch.randn(rows, columns), torch.randn(rows, columns)
    out = torch.empty(rows, columns)

    def run() -> None:
        with hip.runtime().launching(x=x, y=y, out=out) as stream:
            streaming.kernels()(number, x.data_ptr(), y.data_ptr(), out.data_ptr(), rows, columns, stream)

    return run


def _time(run: Callable[[], object], runs: int) -> Timing:
    """The median run, after one that doesn't count."""
    run()
    timings = []
    for _ in range(runs):
        start, start_of_processors = time.perf_counter(), time.process_time()
        run()
        timings.append(Timing(time.perf_counter() - start, time.process_time() - start_of_processors))
    return sorted(timings, key=lambda timing: timing.passed)[runs // 2]


@contextlib.contextmanager
def _sanitizing() -> Iterator[None]:
    """Launches read the variable."""
    before = os.environ.get("DG_SIM_SANITIZE", "")
    os.environ["DG_SIM_SANITIZE"] = "1"
    try:
        yield
    finally:
        os.environ["DG_SIM_SANITIZE"] = before


def _throughput(workloads: list[Workload], runs: int, sanitizer: bool) -> Table:
    with_sanitizer = ("sanitizer on", "slower by") if sanitizer else ()
    table = _table("Throughput", "kernel", "rate", "cores", "a core", *with_sanitizer)
    for workload in workloads:
        timing = _time(workload.run, runs)
        cores = timing.of_processors / timing.passed
        row = [
            f"{_rate(workload, timing)} {workload.unit}",
            f"{cores:.2f}",
            f"{workload.amount / timing.of_processors:.2f}",
        ]
        if sanitizer:
            with _sanitizing():
                sanitized = _time(workload.run, runs)
            row += [_rate(workload, sanitized), f"{sanitized.of_processors / timing.of_processors:.1f}x"]
        table.add_row(workload.name, *row)
    return table


def _rate(workload: Workload, timing: Timing) -> str:
    return f"{workload.amount / timing.passed:.2f}"


def _costs(runs: int, sanitizer: bool) -> Table:
    table = _table("Costs", "what", "figure")
    start_up = statistics.median(_report_of(FIRST_KERNEL) for _ in range(runs + 1))
    table.add_row("import of the library and one small cached kernel, beyond importing torch", f"{start_up:.2f} s")
    table.add_row("a launch of one empty workgroup, three tensors registered", _microseconds(_stream("copy", 1, 4)))
    data, scales = torch.ones(16, 128).to(torch.float8_e4m3fnuz), torch.ones(16, 1)
    gemm = functools.partial(dg.gemm_fp8, (data, scales), (data, scales[:1]))
    table.add_row("gemm_fp8 of 16x16x128, all of it", _microseconds(gemm))
    table.add_row("registering a tensor of 64 MiB and forgetting it", _microseconds(_registering(1 << 26)))
    table.add_row("memory beyond torch and the tensors of a GEMM", f"{_report_of(PEAK_MEMORY):.0f} MiB")
    if sanitizer:
        with _sanitizing():
            table.add_row("the same, sanitizer on", f"{_report_of(PEAK_MEMORY):.0f} MiB")
    return table


def _report_of(program: str) -> float:
    """The number that a Python process of its own prints."""
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", program], cwd=root, check=True, stdout=subprocess.PIPE)
    return float(done.stdout)


def _registering(size: int) -> Callable[[], None]:
    runtime, tensor = hip.runtime(), torch.ones(size, dtype=torch.uint8)

    def run() -> None:
        runtime.check(runtime.lib.hipHostRegister(tensor.data_ptr(), ctypes.c_size_t(size), 0))
        runtime.check(runtime.lib.hipHostUnregister(tensor.data_ptr()))

    return run


def _microseconds(run: Callable[[], object]) -> str:
    return f"{_time(run, 301).passed * 1e6:.0f} µs"


def _linearity(runs: int) -> Table:
    table = _table("Growth with the grid (row_sum, a workgroup a row)", "workgroups", "time", "a core's time for each")
    for grid in GRIDS:
        timing = _time(_stream("row_sum", grid, STREAM_COLUMNS), runs)
        table.add_row(str(grid), f"{timing.passed * 1e3:.1f} ms", f"{timing.of_processors / grid * 1e6:.2f} µs")
    return table


def _table(title: str, name: str, *figures: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(name)
    for figure in figures:
        table.add_column(figure, justify="right", no_wrap=True)
    return table


if __name__ == "__main__":
    typer.run(main)
