"""Calls constexpr functions of the device headers on the host, so that tests don't retype them."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

from deep_gemm_rocm.paths import include_dir


def compile_functions(folder: Path, source: str) -> ctypes.CDLL:
    """The ``extern "C"`` functions of ``source``, which may include the headers that need no device."""
    file, library = folder / "functions.cpp", folder / "functions.so"
    file.write_text(source)
    compiler = [sys.executable, "-m", "ziglang", "c++", "-std=c++17", "-O1", "-shared", "-fPIC", "-nostdlib"]
    subprocess.run([*compiler, "-I", include_dir(), file, "-o", library], check=True)
    return ctypes.CDLL(str(library))
