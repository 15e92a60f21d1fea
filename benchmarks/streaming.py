"""The kernels of streaming.hip, for the programs beside it."""

from __future__ import annotations

import functools
from ctypes import c_int, c_void_p
from pathlib import Path

from deep_gemm_rocm.jit import Kernel, cache, toolchain
from deep_gemm_rocm.jit.paths import include_dir
from deep_gemm_rocm.jit.source import Source

NAMES = ("copy", "add", "row_sum", "read")  # by number, the first argument


@functools.cache
def kernels() -> Kernel:
    """Takes a kernel's number, x, y, out, rows, columns and the stream."""
    text = Path(__file__).with_name("streaming.hip").read_text()
    source = Source.collect("streaming", text, include_dir())
    return Kernel(cache.obtain(source, toolchain.choose()), (c_int, *(c_void_p,) * 3, *(c_int,) * 2, c_void_p))
