"""Tests whether a compiler can make kernels: an installation may lack its linker, or features that the headers need."""

from __future__ import annotations

import json
import shutil

from ..runtime import session
from . import cache
from .errors import CompileError, ToolchainError
from .paths import include_dir
from .render import render
from .source import Source
from .toolchain import Compilers, Toolchain

_TEMPLATE = "compiler_probe.hip.j2"


def failure(compiler: Toolchain) -> str | None:
    """Compiles a small kernel with typical instructions. Returns the reason if that fails, else None.

    It runs once in a session. The kernel is kept in the cache, so that the next process only looks it up.

    Raises:
        CacheError: see ``cache.obtain``.
    """
    name = json.dumps(compiler.identity(), sort_keys=True)
    failures = session.current().of(Compilers).failures
    if name not in failures:
        failures[name] = _failure(compiler)
    return failures[name]


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


def _source() -> Source:
    headers = include_dir()
    text = render(headers / "deep_gemm_rocm", _TEMPLATE, {})
    return Source.collect(_TEMPLATE.removesuffix(".hip.j2"), text, headers)
