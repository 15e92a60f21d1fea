"""``python -m deep_gemm_rocm cache``: the compiled kernels on this machine."""

from __future__ import annotations

import contextlib
import datetime
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from ..jit import CacheError, cache, folders, maintenance

app = typer.Typer(no_args_is_help=True, help="Look at, check, clear up and ship the compiled kernels of this machine.")


@app.command("list")
def list_kernels() -> None:
    """List the kernels, the least recently used one first."""
    with _folder() as (console, root):
        entries, limit = cache.entries(root), cache.max_bytes()
        table = Table(Column("kernel", overflow="fold"), "KiB", "compile", "compiler", "last used", box=SIMPLE)
        for entry in entries:
            manifest = cache.manifest_of(entry.path)
            noted = (f"{manifest.compile_seconds:.1f} s", manifest.toolchain) if manifest else ("damaged", "")
            used = datetime.datetime.fromtimestamp(entry.last_used).isoformat(" ", "minutes")
            name, _, key = entry.path.name.rpartition("-")
            table.add_row(f"{name}-{key[:8]}", f"{entry.bytes / 1024:.0f}", *noted, used)
        if entries:
            console.print(table)
        console.print(f"{_amount(entries)} in {escape(str(root))}, which may grow to {limit // 2**20} MiB")


@app.command()
def verify() -> None:
    """Compare every kernel with the hash from its compile. Damaged kernels will be compiled again."""
    with _folder() as (console, root):
        whole, damaged = maintenance.verify(root)
        for entry in damaged:
            console.print(f"[red]damaged[/], set aside: {escape(entry.path.name)}")
        console.print(f"{_amount(whole)} whole, {len(damaged)} damaged")
        if damaged:
            raise typer.Exit(1)


@app.command()
def prune(
    max_mib: Annotated[int | None, typer.Option(min=0, help="Size to keep; DG_JIT_CACHE_MAX_MIB or 4096.")] = None,
) -> None:
    """Remove damaged and abandoned entries, and the least recently used kernels beyond the size."""
    with _folder() as (console, root):
        removed = maintenance.prune(root, cache.max_bytes() if max_mib is None else max_mib * 2**20)
        console.print(f"removed {_amount(removed)}, {_amount(cache.entries(root))} left")


@app.command("export")
def export_kernels(file: Annotated[Path, typer.Argument(help="The .tar.gz file to write.", dir_okay=False)]) -> None:
    """Write all kernels into a file for another machine."""
    with _folder() as (console, root):
        console.print(f"{maintenance.export(root, file)} kernels in {escape(str(file))}")


@app.command("import")
def import_kernels(
    file: Annotated[Path, typer.Argument(help="A file from export.", exists=True, dir_okay=False)],
) -> None:
    """Import the kernels in a file. They are code: import only what you trust."""
    with _folder() as (console, root):
        new, count = maintenance.import_from(root, file)
        console.print(f"{new} of {count} kernels were new, and are now in {escape(str(root))}")


@contextlib.contextmanager
def _folder() -> Iterator[tuple[Console, Path]]:
    """A console and the cache folder; errors end the command with a message."""
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 200)
    try:
        root = folders.folder()
        if root.is_file():
            raise CacheError(f"{root} is a file: set DG_JIT_CACHE_DIR to a folder")
        folders.check(root)
        yield console, root
    except (CacheError, OSError) as error:
        console.print(f"[red]{type(error).__name__}[/]: {escape(str(error))}")
        raise typer.Exit(1) from error


def _amount(entries: list[cache.Entry]) -> str:
    return f"{len(entries)} kernels ({sum(entry.bytes for entry in entries) / 2**20:.1f} MiB)"
