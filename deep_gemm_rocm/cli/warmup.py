"""``warmup``: compiles a model's kernels into the cache."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .. import jit
from ..api import warmup
from ..jit import folders


def run(console: Console, file: Path, ranks: int, jobs: int | None) -> bool:
    """Compiles one rank's kernels for the workloads in ``file``, and prints their number and the time."""
    start = time.perf_counter()
    try:
        wanted = warmup.plan(warmup.load(file, ranks))
    except (ValueError, TypeError, OSError) as error:
        console.print(f"[red]{type(error).__name__}[/]: {escape(str(error))}")
        return False
    if not console.is_terminal:  # where nobody sees the bar
        console.print(f"{file.stem}: compiling {len(wanted)} kernels")
    kernels: list[jit.Kernel] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("compiling", total=len(wanted))

        def done(kernel: jit.Kernel) -> None:
            kernels.append(kernel)
            progress.advance(task)

        warmup.compile_all(wanted, jobs, done)
    found = sum(kernel.artefact.from_cache for kernel in kernels)
    seconds = time.perf_counter() - start
    console.print(
        f"{file.stem}: {len(kernels)} kernels in {seconds:.1f} s, {len(kernels) - found} compiled and {found} "
        f"found in the cache {escape(str(folders.folder()))}"
    )
    root = folders.folder()
    elsewhere = [kernel.artefact.library for kernel in kernels if not kernel.artefact.library.is_relative_to(root)]
    if elsewhere:
        *_, last = folders.places(root)
        is_kept = all(library.is_relative_to(last) for library in elsewhere)
        then = f"but in {escape(str(last))}" if is_kept else "and will be compiled again"
        console.print(f"[red]{len(elsewhere)} of them could not be kept there[/], {then}")
    return not elsewhere
