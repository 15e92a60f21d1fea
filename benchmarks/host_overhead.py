"""What calls cost on the host, without what kernels take: ``python benchmarks/host_overhead.py``.

A warm call, from Python to the launch, beside ``torch.mm(out=)`` of 16 x 16; and the first call of a kernel that isn't
in the cache yet. In simulation the launch does nothing, for there it would run the kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import tempfile
import time
from collections.abc import Callable, Iterator

import torch
import typer

import deep_gemm_rocm
from deep_gemm_rocm import hip, jit
from deep_gemm_rocm.benchmarks import problems
from deep_gemm_rocm.benchmarks.shapes import Shape

_CALLS, _ROUNDS = 100, 300


def microseconds(*calls: Callable[[], object]) -> list[float]:
    """Of one of each of the calls, in their quickest rounds: what else the machine does isn't counted."""
    best = [float("inf")] * len(calls)
    for _ in range(_ROUNDS):
        for i, call in enumerate(calls):
            start = time.perf_counter()
            for _ in range(_CALLS):
                call()
            best[i] = min(best[i], time.perf_counter() - start)
    return [1e6 * seconds / _CALLS for seconds in best]


@contextlib.contextmanager
def launching_nothing() -> Iterator[None]:
    """In simulation kernels' entry points are replaced by a C function that does nothing."""
    runtime = hip.runtime()
    if not runtime.is_simulated:
        yield
        return
    nothing = ctypes.CDLL("libm.so.6").fegetround  # 0, as dg_launch returns
    nothing.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    before = {kernel: kernel.entry_point for kernel in jit.loaded()}
    runtime.relaunch = lambda launch, tensors, used: runtime.launch(launch, 0)  # type: ignore[method-assign]
    for kernel in before:
        kernel.entry_point = nothing
    try:
        yield
    finally:
        del runtime.relaunch
        for kernel, entry_point in before.items():
            kernel.entry_point = entry_point


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
        ("gemm_fp8", Shape(16, 128, 256)),
        ("fp8_gemm_nt", Shape(16, 128, 256)),
        ("fp8_gemm_nt", Shape(16, 512, 7168)),  # K is split
        ("bf16_gemm_nt", Shape(16, 128, 256)),
        ("m_grouped_fp8_gemm_nt_contiguous", Shape(16, 128, 256, 2)),
        ("m_grouped_fp8_gemm_nt_masked", Shape(16, 128, 256, 2)),
        # Of large tiles, which take longest to compile.
        ("fp8_gemm_nt", Shape(4096, 7168, 256)),
        ("m_grouped_fp8_gemm_nt_contiguous", Shape(1024, 4096, 256, 4)),
        ("m_grouped_fp8_gemm_nt_masked", Shape(1024, 4096, 256, 1)),
    )
    for name, shape in calls:
        op = "fp8_gemm_nt" if name == "gemm_fp8" else name
        problem = problems.make(op, shape, device)
        function = getattr(deep_gemm_rocm, name)
        ours = functools.partial(function, problem.a, problem.b, problem.d, *problems.OPERATIONS[op].more(problem))
        jit.forget()
        with empty_cache():
            ours()
            kernels = jit.loaded()
        with launching_nothing():
            ours_us, mm_us = microseconds(ours, functools.partial(torch.mm, x, y, out=z))
        print(
            f"{name} {shape}: {ours_us:.2f} µs a call, {ours_us / mm_us:.1f} times torch.mm ({mm_us:.2f} µs); "
            "compiling " + " and ".join(f"{kernel.artefact.compile_seconds:.2f} s" for kernel in kernels)
        )


if __name__ == "__main__":
    typer.run(main)
