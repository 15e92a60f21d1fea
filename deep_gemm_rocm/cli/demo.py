"""``demo``: a projection of DeepSeek-V3, from bf16 tensors to a checked FP8 result."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .. import gemm_fp8, hip, jit, per_block_cast_to_fp8, per_token_cast_to_fp8, testing
from ..jit import toolchain
from ..layout import Pair

_N, _K = 2112, 7168  # DeepSeek-V3's fused projection of the hidden state to queries and latent keys and values
_MS = (128, 77)  # tokens: a full tile, and a ragged one
_STEPS = 5  # that _measure reports


@dataclasses.dataclass(frozen=True)
class _Row:
    m: int
    compile_seconds: float
    load_seconds: float
    run_seconds: float
    accuracy: testing.Accuracy


def run(console: Console) -> bool:
    """Runs it and prints what it measured; whether every element is within its bound."""
    runtime, compiler = hip.runtime(), toolchain.choose()
    rows = []
    with _progress(console, _STEPS * len(_MS)) as report:
        for m in _MS:
            rows.append(_measure(m, runtime.tensor_device, report))

    console.print(f"device: {runtime.describe()}")
    console.print(f"compiler: {compiler.name}, {compiler.version}")
    console.print(_table(rows))
    console.print(
        "The bound is what the FP8 sums and the last rounding, to bf16, may lose: an error of it is expected."
    )
    if runtime.is_simulated:
        console.print("Run times are of the simulation on this CPU; the chip's own are thousands of times shorter.")
    wrong = sum(row.accuracy.failures for row in rows)
    if wrong:
        console.print(f"[red]{wrong} elements are outside their bound: these results are wrong.[/]")
    else:
        console.print("Every element is as close to the exact result as the hardware's arithmetic allows.")
    return not wrong


def _measure(m: int, device: str, report: Callable[[str], None]) -> _Row:
    report(f"M={m}: quantising activations and weights")
    a = per_token_cast_to_fp8(testing.activations(m, _K).to(device))
    b = per_block_cast_to_fp8(testing.weights(_N, _K).to(device))

    report(f"M={m}: compiling, running")
    with _empty_cache():
        compile_seconds = _first_call(a, b)
        report(f"M={m}: loading from the cache, running")
        load_seconds = _first_call(a, b)

    report(f"M={m}: running")
    start = time.perf_counter()
    result = gemm_fp8(a, b)
    done = hip.Event()
    done.record(hip.runtime().current_stream(result))
    done.synchronize()
    run_seconds = time.perf_counter() - start

    report(f"M={m}: computing the exact result")
    accuracy = testing.measure(result, testing.gemm_reference(a, b))
    return _Row(m, compile_seconds, load_seconds, run_seconds, accuracy)


def _first_call(a: Pair, b: Pair) -> float:
    """Seconds that a process's first call spends on getting its kernel."""
    jit.forget()
    gemm_fp8(a, b)
    (kernel,) = jit.loaded()
    return kernel.ready_seconds


@contextlib.contextmanager
def _empty_cache() -> Iterator[None]:
    """An empty cache folder, so that the first compile is one; the user's own is left alone."""
    before = os.environ.get("DG_JIT_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="deep_gemm_rocm-demo-") as folder:
        os.environ["DG_JIT_CACHE_DIR"] = folder
        try:
            yield
        finally:
            os.environ.pop("DG_JIT_CACHE_DIR")
            if before is not None:
                os.environ["DG_JIT_CACHE_DIR"] = before


@contextlib.contextmanager
def _progress(console: Console, steps: int) -> Iterator[Callable[[str], None]]:
    """Calls with the next step's name: a bar on a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield console.print
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=steps, completed=-1)

        def report(description: str) -> None:
            progress.update(task, description=description, advance=1)

        yield report


def _table(rows: list[_Row]) -> Table:
    table = Table(title=f"gemm_fp8, N={_N} K={_K}")
    for heading in ("M", "compile, cold", "from cache", "run", "worst error", "error / bound"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row.m),
            *map(_duration, (row.compile_seconds, row.load_seconds, row.run_seconds)),
            f"{row.accuracy.max_error:.3g}",
            f"{row.accuracy.max_error_over_bound:.2f}",
        )
    return table


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"
