"""Whether a compiler can make kernels at all: an installation may lack its linker, or what the headers ask for."""

from __future__ import annotations

import functools
import json
import shutil

from ..paths import include_dir
from . import cache
from .errors import CompileError, ToolchainError
from .render import render
from .source import Source
from .toolchain import Toolchain

_TEMPLATE = "compiler_probe.hip.j2"
_failures: dict[str, str | None] = {}


def failure(compiler: Toolchain) -> str | None:
    """Why a small kernel with the instructions that kernels are made of does not compile; None if it does.

    Asked once a process. A success is kept in the kernel cache, so that the next process only looks it up.

    Raises:
        CacheError: see ``cache.obtain``.
    """
    name = json.dumps(compiler.identity(), sort_keys=True)
    if name not in _failures:
        _failures[name] = _failure(compiler)
    return _failures[name]


def _failure(compiler: Toolchain) -> str | None:
    try:
        cache.obtain(_source(), compiler)
    except CompileError as error:
        shutil.rmtree(error.source.parent, ignore_errors=True)
        lines = [line.strip() for line in error.log.splitlines() if line.strip()] or ["(it printed nothing)"]
        return next((line for line in lines if "error" in line), lines[-1])
    except ToolchainError as error:
        return str(error)
    return None


@functools.cache
def _source() -> Source:
    headers = include_dir()
    text = render(headers / "deep_gemm_rocm", _TEMPLATE, {})
    return Source.collect(_TEMPLATE.removesuffix(".hip.j2"), text, headers)
