"""``selftest``: reports whether everything works on this machine, for instance to attach to an issue."""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.text import Text

from .. import jit
from ..api.gemm import gemm_fp8
from ..jit import cache
from ..runtime import hip
from ..selftest import families, mfma
from ..testing import gemm_problem
from . import info


def run(console: Console) -> bool:
    """Prints the output of ``info``, then a line for each check; returns whether all passed."""
    if not info.show(console):
        return False
    device = hip.runtime().tensor_device
    checks: dict[str, Callable[[], str | None]] = {
        "matrix cores": lambda: mfma.check(device),
        "compiler, cache": lambda: _compile_into_an_empty_cache(device),
        **families.checks(device),
    }
    failed = [name for name, check in checks.items() if not _passes(console, name, check)]
    if failed:
        console.print(Text.assemble((f"{len(failed)} of {len(checks)} checks failed", "red"), f": {', '.join(failed)}"))
    else:
        console.print(f"all {len(checks)} checks passed on {hip.runtime().describe()}")
    return not failed


def _passes(console: Console, name: str, check: Callable[[], str | None]) -> bool:
    start = time.perf_counter()
    try:
        detail = check() or ""
        if hip.runtime().tensor_device == "cuda":
            torch.cuda.synchronize()
    except Exception as error:
        told = str(error) if isinstance(error, AssertionError) else traceback.format_exc()
        console.print(Text.assemble(f"{name:<24}", ("FAILED", "red"), f"  {told}"))
        return False
    seconds = time.perf_counter() - start
    console.print(Text.assemble(f"{name:<24}", ("ok", "green"), f"  {seconds:6.1f} s  {detail}"))
    return True


def _compile_into_an_empty_cache(device: str) -> str:
    """Compiles a kernel, and checks that it is found in the cache the next time."""
    a, b = ((data.to(device), scales.to(device)) for data, scales in gemm_problem(5, 32, 128))
    before = os.environ.get("DG_JIT_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="deep_gemm_rocm-selftest-") as folder:
        os.environ["DG_JIT_CACHE_DIR"] = folder
        try:
            jit.forget()
            first = gemm_fp8(a, b)
            (compiled,) = jit.loaded()
            jit.forget()
            second = gemm_fp8(a, b)
            (found,) = jit.loaded()
            kept = len(cache.entries(Path(folder)))
        finally:
            jit.forget()
            os.environ.pop("DG_JIT_CACHE_DIR")
            if before is not None:
                os.environ["DG_JIT_CACHE_DIR"] = before
    assert not compiled.artefact.from_cache, "a kernel was found in an empty cache"
    assert found.artefact.from_cache, "a kernel that had just been compiled was not found"
    assert kept == 1, f"the cache holds {kept} kernels where one was compiled"
    assert torch.equal(first, second), "the same kernel gave two results"
    return f"compiled in {compiled.ready_seconds:.1f} s, found in {found.ready_seconds * 1e3:.0f} ms"
