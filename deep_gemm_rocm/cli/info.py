"""``info``: which runtime, device, toolchain, cache folder and settings are in use, and what is missing or wrong."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.text import Text

from .. import __version__
from ..heuristics import attention_choice, gemm_table
from ..jit import JitError, cache, folders, toolchain
from ..runtime import hip, settings
from ..simulator import constants

# These functions read environment variables, and raise an error if one is wrong.
_READERS = (settings.values, gemm_table.table, attention_choice.attention_table, constants.current)


def show(console: Console) -> bool:
    """Prints the information; returns whether kernels can be compiled and run here."""
    problems = []
    for lines in (_versions, _runtime, _toolchains, _cache, _settings):
        try:
            for name, value in lines():
                console.print(Text.assemble((f"{name:<15}", "bold"), value))
        except (hip.NoDeviceError, JitError) as error:
            problems.append(("missing", str(error)))
    for read in _READERS:
        try:
            read()
        except (ValueError, OSError) as error:
            problems.append(("wrong", str(error)))
    for kind, text in problems:
        console.print(Text.assemble((f"{kind:<15}", "bold red"), text))
    return not problems


def _versions() -> Iterator[tuple[str, str]]:
    yield "deep_gemm_rocm", __version__
    yield "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield "torch", torch.__version__


def _runtime() -> Iterator[tuple[str, str]]:
    runtime = hip.runtime()
    yield "device", runtime.describe()
    yield "HIP runtime", f"{runtime.version}, {runtime.path}"
    for index, device in enumerate(runtime.devices()):
        yield (
            f"device {index}",
            f"{device.arch}, {device.compute_units} compute units on {device.xcds} XCDs at "
            f"{device.clock_khz / 1000:.0f} MHz, {device.memory_bytes / 2**30:.0f} GiB",
        )


def _toolchains() -> Iterator[tuple[str, str]]:
    for found in toolchain.installed():
        yield "compiler found", found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an unusable hipcc, which the lines above mention
        chosen = toolchain.choose()
    yield "compiler used", f"{chosen.name}, {chosen.version}"


def _cache() -> Iterator[tuple[str, str]]:
    root = folders.folder()
    folders.check(root)
    yield "kernel cache", _contents(root)
    if reason := folders.why_unreadable(root):
        yield "", f"can't be read ({reason}); `chmod -R a+rX {root}` by its owner opens it"
    *_, last = folders.places(root)
    if reason := folders.why_unwritable(root):
        instead = f"new kernels go to {_contents(last)}" if last != root else "each process compiles its own kernels"
        yield "", f"can't be written ({reason}), so {instead}"
    if last.exists() and folders.is_noexec(last):
        yield "", f"{last} is mounted noexec, so its kernels can't be loaded: set DG_JIT_CACHE_DIR"


def _settings() -> Iterator[tuple[str, str]]:
    for name, value in sorted(os.environ.items()):
        if name.startswith("DG_"):
            yield "setting", f"{name}={value}"


def _contents(folder: Path) -> str:
    entries = cache.entries(folder)
    size, limit = sum(entry.bytes for entry in entries) / 2**20, cache.max_bytes() // 2**20
    return f"{folder} ({len(entries)} kernels, {size:.1f} of {limit} MiB)"
