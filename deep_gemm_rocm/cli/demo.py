"""``demo``: a projection of DeepSeek-V3, from bf16 tensors to a checked FP8 result.

``run_cases`` serves all demos.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .. import gemm_fp8, jit, per_block_cast_to_fp8, per_token_cast_to_fp8, testing
from ..jit import toolchain
from ..runtime import hip

_N, _K = 2112, 7168  # DeepSeek-V3's fused projection of the hidden state to queries and latent keys and values
_MS = (128, 77)  # tokens: a full tile, and a ragged one
_STEPS = 5  # progress steps of _measure


@dataclasses.dataclass(frozen=True)
class Inputs:
    """A prepared case: ``call()`` runs its kernel, ``check()`` compares the result with a reference."""

    call: Callable[[], torch.Tensor]
    check: Callable[[torch.Tensor], testing.Accuracy]


@dataclasses.dataclass(frozen=True)
class Case:
    """A row of a demo's table. ``preparation`` describes ``prepare``, which makes the inputs on a device."""

    name: str
    preparation: str
    prepare: Callable[[str], Inputs]


@dataclasses.dataclass(frozen=True)
class _Row:
    name: str
    compile_seconds: float
    load_seconds: float
    run_seconds: float
    accuracy: testing.Accuracy


def run(console: Console) -> bool:
    """Runs the demo and prints its measurements; returns whether every element is within its bound."""
    cases = [Case(f"M={m}", "quantising activations and weights", functools.partial(_projection, m)) for m in _MS]
    return run_cases(
        console,
        f"gemm_fp8, N={_N} K={_K}",
        cases,
        "The bound is what the FP8 sums and the last rounding, to bf16, may lose: an error of it is expected.",
    )


def run_cases(console: Console, title: str, cases: Sequence[Case], note: str) -> bool:
    """Measures and checks each case and prints a table; returns whether every element is within its bound."""
    runtime, compiler = hip.runtime(), toolchain.choose()
    with _progress(console, _STEPS * len(cases)) as report:
        rows = [_measure(case, runtime.tensor_device, report) for case in cases]

    console.print(f"device: {runtime.describe()}")
    console.print(f"compiler: {compiler.name}, {compiler.version}")
    console.print(_table(title, rows))
    console.print(note)
    if runtime.is_simulated:
        console.print("Run times are of the simulation on this CPU; the chip's own are thousands of times shorter.")
    wrong = sum(row.accuracy.failures for row in rows)
    if wrong:
        console.print(f"[red]{wrong} elements are outside their bound: these results are wrong.[/]")
    else:
        console.print("Every element is as close to the exact result as the hardware's arithmetic allows.")
    return not wrong


def _projection(m: int, device: str) -> Inputs:
    a = per_token_cast_to_fp8(testing.activations(m, _K).to(device))
    b = per_block_cast_to_fp8(testing.weights(_N, _K).to(device))
    return Inputs(lambda: gemm_fp8(a, b), lambda result: testing.measure(result, testing.gemm_reference(a, b)))


def _measure(case: Case, device: str, report: Callable[[str], None]) -> _Row:
    report(f"{case.name}: {case.preparation}")
    inputs = case.prepare(device)

    report(f"{case.name}: compiling, running")
    with _empty_cache():
        compile_seconds = _first_call(inputs.call)
        report(f"{case.name}: loading from the cache, running")
        load_seconds = _first_call(inputs.call)

    report(f"{case.name}: running")
    start = time.perf_counter()
    result = inputs.call()
    done = hip.Event()
    done.record(hip.runtime().current_stream(result))
    done.synchronize()
    run_seconds = time.perf_counter() - start

    report(f"{case.name}: computing the exact result")
    return _Row(case.name, compile_seconds, load_seconds, run_seconds, inputs.check(result))


def _first_call(call: Callable[[], torch.Tensor]) -> float:
    """The time that a process's first call spends on getting its kernels, in seconds."""
    jit.forget()
    call()
    return sum(kernel.ready_seconds for kernel in jit.loaded())


@contextlib.contextmanager
def _empty_cache() -> Iterator[None]:
    """Inside, the cache is an empty temporary folder, so that kernels are really compiled."""
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
    """Yields a function that reports the next step: in a progress bar on a terminal, else as a line."""
    if not console.is_terminal:
        yield console.print
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=steps, completed=-1)

        def report(description: str) -> None:
            progress.update(task, description=description, advance=1)

        yield report


def _table(title: str, rows: list[_Row]) -> Table:
    table = Table(title=title)
    for heading in ("", "compile, cold", "from cache", "run", "worst error", "error / bound"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.name,
            *map(_duration, (row.compile_seconds, row.load_seconds, row.run_seconds)),
            f"{row.accuracy.max_error:.3g}",
            f"{row.accuracy.max_error_over_bound:.2f}",
        )
    return table


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"
