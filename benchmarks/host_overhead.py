"""What calls cost on the host, without what kernels take: ``python benchmarks/host_overhead.py``.

A warm call, from Python to the launch, beside ``torch.mm(out=)`` of 16 x 16; and the first call of a kernel that isn't
in the cache yet. In simulation the launch does nothing, for there it would run the kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
import time
from collections.abc import Callable, Iterator

import torch
import typer

from deep_gemm_rocm import hip, jit
from deep_gemm_rocm.benchmarks import problems
from deep_gemm_rocm.benchmarks.shapes import Shape

_CALLS, _ROUNDS = 100, 300


def microseconds(call: Callable[[], object]) -> float:
    """Of one call, in the quickest round: what else the machine does isn't counted."""
    best = float("inf")
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        for _ in range(_CALLS):
            call()
        best = min(best, time.perf_counter() - start)
    return 1e6 * best / _CALLS


@contextlib.contextmanager
def launching_nothing() -> Iterator[None]:
    """In simulation kernels' entry points are replaced by a C function that does nothing."""
    runtime = hip.runtime()
    if not runtime.is_simulated:
        yield
        return
    nothing = ctypes.CDLL("libm.so.6").fegetround  # 0, as dg_launch returns
    nothing.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    before = {kernel: kernel._launch for kernel in jit.loaded()}
    runtime.relaunch = lambda kernel, arguments, *_: kernel(arguments, 0)  # type: ignore[method-assign]
    for kernel in before:
        kernel._launch = nothing
    try:
        yield
    finally:
        del runtime.relaunch
        for kernel, launch in before.items():
            kernel._launch = launch


@contextlib.contextmanager
def empty_cache() -> Iterator[None]:
    before = os.environ.get("DG_JIT_CACHE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DG_JIT_CACHE_DIR"] = folder
        try:
            yield
        finally:
            del os.environ["DG_JIT_CACHE_DIR"]
            if before is not None:
                os.environ["DG_JIT_CACHE_DIR"] = before


def main() -> None:
    device = hip.runtime().tensor_device
    x, y, z = (torch.randn(16, 16, device=device) for _ in range(3))
    calls = (
        ("fp8_gemm_nt", Shape(16, 128, 256)),
        ("fp8_gemm_nt", Shape(1, 512, 7168)),  # K is split: two kernels
        ("bf16_gemm_nt", Shape(16, 128, 256)),
        ("m_grouped_fp8_gemm_nt_contiguous", Shape(16, 128, 256, 2)),
        ("m_grouped_fp8_gemm_nt_masked", Shape(16, 128, 256, 2)),
    )
    for op, shape in calls:
        problem = problems.make(op, shape, device)
        jit.forget()
        with empty_cache():
            problem.run()
            kernels = jit.loaded()
        with launching_nothing():
            operation = problems.OPERATIONS[op]
            more = operation.more(problem)
            mm = microseconds(lambda: torch.mm(x, y, out=z))
            ours = microseconds(lambda: operation.function(problem.a, problem.b, problem.d, *more))  # noqa: B023
        print(
            f"{op} {shape}: {ours:.2f} µs a call, {ours / mm:.1f} times torch.mm ({mm:.2f} µs); compiling "
            + " and ".join(f"{kernel.artefact.compile_seconds:.2f} s" for kernel in kernels)
        )


if __name__ == "__main__":
    typer.run(main)
