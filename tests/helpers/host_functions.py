"""Calls constexpr functions of the device headers on the host, so that tests needn't repeat them."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

from deep_gemm_rocm.jit.paths import include_dir

# The host side of a HIP compile knows the device's builtins, and generates no code for device functions.
_COMPILE = ("clang", "-x", "hip", "--cuda-host-only", "-nogpuinc", "-nogpulib", "-target", "x86_64-linux-gnu")


def compile_functions(folder: Path, source: str) -> ctypes.CDLL:
    """Compiles the ``extern "C"`` functions in ``source``, which may include any header.

    Raises:
        RuntimeError: it doesn't compile; the message is the compiler's output.
    """
    file, library = folder / "functions.hip", folder / "functions.so"
    file.write_text(source)
    _zig(*_COMPILE, "-std=c++17", "-O1", "-fPIC", "-I", str(include_dir()), "-c", str(file), "-o", f"{library}.o")
    _zig("ld.lld", "-shared", f"{library}.o", "-o", str(library))
    return ctypes.CDLL(str(library))


def including(declaration: str) -> list[str]:
    """``#include`` lines for all headers with a line that begins with ``declaration``."""
    headers = sorted(include_dir().rglob("*.h"))
    return [f'#include "{h.relative_to(include_dir())}"' for h in headers if f"\n{declaration}" in h.read_text()]


def _zig(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "ziglang", *arguments], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
