"""Compilers that turn a rendered kernel into a shared library: ROCm's hipcc, or the clang in the ziglang package.

Both compile without any header or library of HIP or of the host (kernels bring the few declarations they need) and
both leave the HIP runtime's functions undefined in the result, which then binds to the runtime already in the process.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import struct
import subprocess
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from ..forking import no_fork
from ..hip import ARCH
from .errors import CompileError, ToolchainError
from .source import HEADER_FOLDER, KERNEL_FILE

LIBRARY_FILE = "kernel.so"

_FIRST_CLANG_WITH_GFX942 = 17

# The compiler may be newer than the runtime: newer clangs default to version 6, which takes ROCm 6.3 or later to load.
_CODE_OBJECT_VERSION = "-mcode-object-version=5"
_COMPILE_FLAGS = (
    *("-x", "hip", "-std=c++17", "-O3", "-fPIC", "-fno-exceptions"),
    # A kernel that reached for the host's headers or libraries would compile on one machine and not on the next.
    *("-nostdinc", "-nogpuinc", "-nogpulib", "-I", HEADER_FOLDER),
    f"--offload-arch={ARCH}",
    _CODE_OBJECT_VERSION,
    # Without it clang packs the promotion's FMAs in pairs, which needs moves and can't run beside an MFMA.
    "-fno-slp-vectorize",
    # The same source gives the same bytes in whatever folder it is compiled.
    "-fuse-cuid=none",
)

# Arguments in scalar registers when a wave starts; see FirstArguments in gemm_arguments.h. Before this version of clang
# a kernel that wants them traps where firmware is too old for it, since then it loads them itself; the first ones don't
# know the option.
_PRELOAD_FLAGS = ("-mllvm", "-amdgpu-kernarg-preload-count=16")
_FIRST_CLANG_WITH_PRELOAD = 20

# The runtime keeps pointers into a kernel's library, so it must never be unmapped; -Bsymbolic keeps two libraries
# with kernels of the same name apart.
_LINK_FLAGS = ("-shared", "-z", "nodelete", "-Bsymbolic")

_HOST = ("-target", "x86_64-linux-gnu")


def _compile_flags(clang: int | None) -> list[str]:
    preloads = clang is not None and clang >= _FIRST_CLANG_WITH_PRELOAD
    return [*_COMPILE_FLAGS, *(_PRELOAD_FLAGS if preloads else ())]


def _clang_in(version_text: str) -> int | None:
    """The major version of the clang that a compiler's ``--version`` names."""
    found = re.search(r"clang version (\d+)", version_text)
    return int(found[1]) if found else None


class Toolchain(Protocol):
    """Attributes:
    name: ``hipcc`` or ``ziglang``.
    version: one line for people.
    """

    name: str
    version: str

    def identity(self) -> Mapping[str, object]:
        """Everything but the source that can change what ``build`` makes; JSON types only."""

    def build(self, folder: Path) -> None:
        """Compiles ``kernel.hip`` in ``folder``, with the headers in ``include`` there, to ``kernel.so``.

        Raises:
            CompileError: a compiler or linker refused it.
            ToolchainError: a program that the build needs is missing.
        """


class Hipcc:
    """hipcc of ROCm, or of a distribution, as the user's environment configures it."""

    name = "hipcc"

    # What hipcc and the clang behind it read from the environment. Not HIP_VISIBLE_DEVICES and the like: every rank
    # of a job has other ones, and they all share their kernels.
    _ENVIRONMENT = (
        "HIPCC_COMPILE_FLAGS_APPEND", "HIPCC_LINK_FLAGS_APPEND", "HIP_CLANG_PATH", "HIP_CLANG_INCLUDE_PATH",
        "HIP_CLANG_HCC_COMPAT_MODE", "HIP_COMPILER", "HIP_COMPILE_CXX_AS_HIP", "HIP_DEVICE_LIB_PATH",
        "HIP_LIB_PATH", "HIP_PATH", "HIP_PLATFORM", "HIP_ROCCLR_HOME", "HIP_RUNTIME", "ROCM_PATH", "HSA_PATH",
        "DEVICE_LIB_PATH", "CCC_OVERRIDE_OPTIONS", "COMPILER_PATH", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH",
    )  # fmt: skip

    def __init__(self, program: Path) -> None:
        self.program = program
        self.environment = {name: os.environ[name] for name in self._ENVIRONMENT if name in os.environ}
        self._version_text = _version_text((str(program), "--version"), tuple(os.environ.items()))
        self._clang = _clang_in(self._version_text)
        hip = re.search(r"HIP version: (\S+)", self._version_text)
        self._flags = _compile_flags(self._clang)
        self.version = f"HIP {hip[1] if hip else 'of unknown version'}, " + (
            f"clang {self._clang}" if self._clang else "no clang behind it"
        )

    @classmethod
    def find(cls) -> Hipcc | None:
        for root in (os.environ.get("ROCM_PATH"), os.environ.get("HIP_PATH"), "/opt/rocm"):
            if root and os.access(program := Path(root, "bin", "hipcc"), os.X_OK):
                return cls(program)
        on_path = shutil.which("hipcc")
        return cls(Path(on_path)) if on_path else None

    def why_unable(self) -> str | None:
        """Why this hipcc cannot target gfx942; None if it can, as it shows with a small kernel.

        That kernel is compiled once: then it is in the cache, until this hipcc or its environment is another.

        Raises:
            CacheError: see ``cache.obtain``.
        """
        from . import probe  # which imports this module

        found = f"{self.program} ({self.version}) can't compile for {ARCH}"
        needed = f"that takes clang {_FIRST_CLANG_WITH_GFX942} or later, as in ROCm 6"
        if self._clang is None:
            return f"{found}: `hipcc --version` names no clang, and {needed}"
        if self._clang < _FIRST_CLANG_WITH_GFX942:
            return f"{found}: {needed}"
        failure = probe.failure(self)
        return f"{found}: {failure}" if failure else None

    def identity(self) -> Mapping[str, object]:
        return {
            "name": self.name,
            "program": str(self.program.resolve()),
            "version": self._version_text,
            "environment": self.environment,
            "flags": [self._flags, _LINK_FLAGS],
        }

    def build(self, folder: Path) -> None:
        # hipcc adds libamdhip64 whenever it links, so the C linker does that part.
        linker = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
        if linker is None:
            raise ToolchainError("hipcc needs a C compiler to link with, and there is no cc, gcc or clang on PATH")
        _run([str(self.program), *self._flags, "-c", KERNEL_FILE, "-o", "kernel.o"], folder)
        link_flags = [flag if flag == "-shared" else f"-Wl,{flag}" for flag in _LINK_FLAGS]
        _run([linker, *link_flags, "kernel.o", "-o", LIBRARY_FILE], folder)


class Ziglang:
    """The clang and lld inside the PyPI package ziglang: a gfx942 compiler for machines without ROCm.

    hipcc's one step is taken apart here: clang's own driver would start a program named ``lld``, which that package
    has only as a subcommand.
    """

    name = "ziglang"

    # The host side's constructor calls atexit, which glibc has only in the static part that a C compiler links in.
    _HOST_SUPPORT_FILE = "host_support.h"
    _HOST_SUPPORT = """\
extern "C" int __cxa_atexit(void (*)(void*), void*, void*);
extern "C" __attribute__((visibility("hidden"))) void* __dso_handle = &__dso_handle;
extern "C" __attribute__((visibility("hidden"))) int atexit(void (*function)(void)) {
  return __cxa_atexit((void (*)(void*))function, nullptr, &__dso_handle);
}
"""
    # The host side, which is compiled meanwhile, only knows this name of the device's. Clang 19's ends in an underscore
    # and the name of the compilation unit, which is empty here; its host side has no place for the runtime's handle.
    _EMBEDDED = """\
.section .hip_fatbin, "a"
.p2align 12
.globl __hip_fatbin, __hip_fatbin_
.hidden __hip_fatbin, __hip_fatbin_
__hip_fatbin:
__hip_fatbin_:
.incbin "device.hipfb"
.section .bss.__hip_gpubin_handle_, "aw", @nobits
.p2align 3
.weak __hip_gpubin_handle_
.hidden __hip_gpubin_handle_
__hip_gpubin_handle_:
.zero 8
.section .note.GNU-stack, ""
"""

    def __init__(self, program: Path) -> None:
        self.program = program
        clang = _version_text((str(program), "clang", "--version"), ()).partition("\n")[0]
        self._clang = _clang_in(clang)
        self._flags = _compile_flags(self._clang)
        self._zig = _version_text((str(program), "version"), ())
        self.version = f"{clang}, zig {self._zig}"

    @classmethod
    def find(cls) -> Ziglang | None:
        package = importlib.util.find_spec("ziglang")
        if package is None or package.origin is None:
            return None
        program = Path(package.origin).with_name("zig")
        return cls(program) if os.access(program, os.X_OK) else None

    def why_unable(self) -> str | None:
        """Why the installed ziglang cannot target gfx942; None if it can."""
        if self._clang is not None and self._clang >= _FIRST_CLANG_WITH_GFX942:
            return None
        found = f"clang {self._clang}" if self._clang else "no clang in it"
        return (
            f"ziglang {self._zig} ({found}) can't compile for {ARCH}: "
            f"that takes clang {_FIRST_CLANG_WITH_GFX942} or later, as in ziglang 0.12"
        )

    def identity(self) -> Mapping[str, object]:
        # Not the program's path: a published package of this version holds these very bytes wherever it is installed.
        return {
            "name": self.name,
            "version": self.version,
            "flags": [self._flags, _LINK_FLAGS],
            "host support": [self._HOST_SUPPORT, self._EMBEDDED],
        }

    def build(self, folder: Path) -> None:
        with ThreadPoolExecutor(max_workers=1) as beside:
            host = beside.submit(self._build_host, folder)
            self._build_device(folder)
            host.result()
        self._run(folder, "ld.lld", *_LINK_FLAGS, "kernel.o", "device.hipfb.o", "-o", LIBRARY_FILE)

    def _build_device(self, folder: Path) -> None:
        device = ["-target", "amdgcn-amd-amdhsa", f"-mcpu={ARCH}", _CODE_OBJECT_VERSION]
        of_device = [*self._flags, "--cuda-device-only"]
        self._run(folder, "clang", *of_device, "-S", KERNEL_FILE, "-o", "device.s")
        self._run(folder, "clang", *device, "-c", "device.s", "-o", "device.o")
        self._run(folder, "ld.lld", "-shared", "--no-undefined", "device.o", "-o", "device.co")
        (folder / "device.hipfb").write_bytes(_fat_binary((folder / "device.co").read_bytes()))
        (folder / "device.hipfb.s").write_text(self._EMBEDDED)
        self._run(folder, "clang", *_HOST, "-c", "device.hipfb.s", "-o", "device.hipfb.o")

    def _build_host(self, folder: Path) -> None:
        (folder / self._HOST_SUPPORT_FILE).write_text(self._HOST_SUPPORT)
        host = [*_HOST, "--cuda-host-only", "-include", self._HOST_SUPPORT_FILE]
        self._run(folder, "clang", *_COMPILE_FLAGS, *host, "-c", KERNEL_FILE, "-o", "kernel.o")

    def _run(self, folder: Path, *arguments: str) -> None:
        # Nothing of the user's environment, so nothing of it need be in the identity.
        _run([str(self.program), *arguments], folder, {"PATH": os.defpath, "TMPDIR": str(folder)})


def choose() -> Toolchain:
    """The toolchain to compile with: what ``DG_TOOLCHAIN`` forces, else hipcc if it can target gfx942, else ziglang.

    Warns, once, where a hipcc was found and passed over.

    Raises:
        CacheError: see ``Hipcc.why_unable``.
        ToolchainError: nothing here can compile for gfx942, or not what ``DG_TOOLCHAIN`` asks for.
    """
    forced = os.environ.get("DG_TOOLCHAIN") or None
    if forced not in (None, Hipcc.name, Ziglang.name):
        raise ToolchainError(f"DG_TOOLCHAIN must be {Hipcc.name} or {Ziglang.name}, not {forced!r}")

    hipcc = Hipcc.find() if forced != Ziglang.name else None
    unable = hipcc.why_unable() if hipcc else None
    if hipcc and not unable:
        return hipcc
    if forced == Hipcc.name:
        raise ToolchainError(
            unable
            or "DG_TOOLCHAIN=hipcc, but no hipcc is in ROCM_PATH, HIP_PATH, /opt/rocm or PATH. Install ROCm 6, "
            "or unset DG_TOOLCHAIN and `pip install ziglang`."
        )

    ziglang = Ziglang.find()
    lacking = ziglang.why_unable() if ziglang else "ziglang is not installed"
    if ziglang is None or lacking:
        found = lacking if forced else f"{unable or f'no compiler for {ARCH} found: no hipcc'}, and {lacking}"
        install = "pip install --upgrade ziglang" if ziglang else "pip install ziglang"
        raise ToolchainError(f"{found}. Install ROCm 6 or later, or `{install}`.")
    if unable:
        warnings.warn(f"{unable}; using ziglang instead (DG_TOOLCHAIN=ziglang does so silently)", stacklevel=1)
    return ziglang


def installed() -> Iterator[str]:
    """A line for each toolchain found here, for ``info``; it says so where one can't be used."""
    if hipcc := Hipcc.find():
        yield hipcc.why_unable() or f"{hipcc.program}, {hipcc.version}"
    if ziglang := Ziglang.find():
        yield ziglang.why_unable() or ziglang.version


def _fat_binary(code_object: bytes) -> bytes:
    """Clang's offload bundle ("Clang Offload Bundler", Bundled Binary File Layout): an empty entry for the host and
    the code object, at the alignment that HIP's runtime expects."""
    alignment = 4096
    entries = [
        (alignment, 0, b"host-x86_64-unknown-linux-gnu-"),
        (alignment, len(code_object), f"hipv4-amdgcn-amd-amdhsa--{ARCH}".encode()),
    ]
    header = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(entries))
    for offset, size, target in entries:
        header += struct.pack("<QQQ", offset, size, len(target)) + target
    return header.ljust(alignment, b"\0") + code_object


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
    status, output = _output(command, folder, environment, errors=subprocess.STDOUT)
    if status:
        log = output.decode(errors="replace")
        if status < 0:
            log += f"\n(the program was ended by signal {-status})"
        raise CompileError(command, folder / KERNEL_FILE, log)


@functools.cache
def _version_text(command: tuple[str, ...], environment: tuple[tuple[str, str], ...]) -> str:
    """What ``command`` prints; asked once a process for each environment, for hipcc takes its time."""
    _, output = _output(command, None, dict(environment), errors=subprocess.DEVNULL)
    return output.decode(errors="replace").strip()


def _output(
    command: Sequence[str], folder: Path | None, environment: Mapping[str, str] | None, errors: int
) -> tuple[int, bytes]:
    """A program's exit status and what it prints; ``errors`` is where its stderr goes.

    Raises:
        ToolchainError: it can't be started.
    """
    try:
        with no_fork:
            program = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
            )
    except OSError as error:
        raise ToolchainError(f"{command[0]} could not be started: {error}") from error
    with program:
        try:
            output, _ = program.communicate()
        except BaseException:
            program.kill()
            raise
    return program.returncode, output
