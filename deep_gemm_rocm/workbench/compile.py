"""Compiles ordinary HIP source to code objects for gfx942."""

from __future__ import annotations

import functools
import itertools
import linecache
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..jit.errors import JitError
from ..jit.toolchain import Hipcc, Ziglang, choose
from ..runtime.hip import ARCH

SOURCE_FILE = "kernel.hip"

_INCLUDE = Path(__file__).parent / "include"
_DEVICE = ("-x", "hip", "--cuda-device-only", f"--offload-arch={ARCH}", "-mcode-object-version=5")
# The names of parameters go into the metadata, where the sanitizer's reports find them.
_NAMES = ("-fno-discard-value-names",)
_DEFAULT_FLAGS = ("-std=gnu++20", "-O3")
_DEBUG_FLAGS = ("-g",)


class SourceError(JitError):
    """The compiler refused a source. The message is the compiler's, with the lines of the source.

    Attributes:
        command: the program and its arguments.
    """

    def __init__(self, command: Sequence[str], log: str) -> None:
        super().__init__(log.strip() or f"{command[0]} failed without a message")
        self.command = tuple(command)


def compile(source: str | Path, *, debug: bool = False, flags: Sequence[str] = ()) -> bytes:
    """Compiles HIP source for the MI300X, with hipcc and ROCm's headers where they are installed, else with the clang
    in the package ziglang and the headers in ``workbench/include`` (docs/workbench.md lists what they have).
    ``DG_TOOLCHAIN`` forces one of them. Only device code is compiled.

    Args:
        source: the text (str), or the file (Path). Quoted includes are searched beside the file.
        debug: adds DWARF debug information, from which reports take lines; the code stays the same.
        flags: more flags for clang, after ``-std=gnu++20 -O3``.

    Returns:
        The code object (ELF), as ``simulator.launch`` takes it.

    Raises:
        SourceError: the compiler refused the source.
        ToolchainError: no compiler for gfx942 was found.
        FileNotFoundError: the file doesn't exist.
    """
    with tempfile.TemporaryDirectory(prefix="deep_gemm_rocm-") as temporary:
        folder = Path(temporary)
        if isinstance(source, Path):
            if not source.is_file():
                raise FileNotFoundError(f"no such file: {source}")
            path, work = source, Path.cwd()
        else:
            path, work = folder / SOURCE_FILE, folder
            path.write_text(source)
            # Reports show lines of this text as tracebacks show lines of generated Python.
            lines = source.splitlines(keepends=True)
            linecache.cache[str(path)] = (len(source), None, lines, str(path))
        options = [*_DEVICE, *_DEFAULT_FLAGS, *(_DEBUG_FLAGS if debug else ()), *_NAMES, *flags]
        toolchain = choose()
        if isinstance(toolchain, Hipcc):
            command = [
                str(toolchain.program),
                *options,
                "--no-gpu-bundle-output",
                str(path),
                "-o",
                str(folder / "kernel.co"),
            ]
            _run(command, work)
        else:
            assert isinstance(toolchain, Ziglang)
            _compile_with_zig(str(toolchain.program), options, path, work, folder)
        return (folder / "kernel.co").read_bytes()


def _compile_with_zig(zig: str, options: Sequence[str], path: Path, work: Path, folder: Path) -> None:
    # Clang's driver would start a program lld, which ziglang has only as a subcommand, so the steps run one by one.
    assembly, code = str(folder / "device.s"), str(folder / "device.o")
    headers = ["-nogpuinc", "-nogpulib", "-nostdinc", "-isystem", str(_INCLUDE), "-isystem", str(_INCLUDE / "hip")]
    standard = ["-target", "x86_64-linux-gnu", *_standard_headers(zig), "-include", "hip/hip_runtime.h"]
    _run([zig, "clang", *options, *headers, *standard, "-S", str(path), "-o", assembly], work)
    target = ["-target", "amdgcn-amd-amdhsa", f"-mcpu={ARCH}", "-mcode-object-version=5"]
    _run([zig, "clang", *target, "-c", assembly, "-o", code], work)
    _run([zig, "ld.lld", "-shared", "--no-undefined", code, "-o", str(folder / "kernel.co")], work)


@functools.cache
def _standard_headers(zig: str) -> list[str]:
    """The flags with which zig compiles C++ for Linux: the folders of libc++ and glibc, and libc++'s configuration."""
    with tempfile.TemporaryDirectory(prefix="deep_gemm_rocm-") as folder:
        empty = Path(folder, "empty.cpp")
        empty.touch()
        caches = {"ZIG_GLOBAL_CACHE_DIR": folder, "ZIG_LOCAL_CACHE_DIR": folder}
        command = [zig, "c++", "-target", "x86_64-linux-gnu", "-v", "-E", str(empty)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env={**os.environ, **caches})
    line = next((line for line in done.stderr.splitlines() if " -cc1 " in line), None)
    if line is None:
        raise SourceError(command, done.stderr)
    words = line.split()
    return [word for pair in itertools.pairwise(words) if pair[0] in ("-isystem", "-D") for word in pair]


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise SourceError(command, done.stdout.decode(errors="replace"))
