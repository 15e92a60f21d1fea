"""Compilers that turn a rendered kernel into a shared library: ROCm's hipcc, or the clang in the ziglang package.

Both compile without headers or libraries of HIP or of the host: kernels bring the few declarations that they need. Both
leave the HIP runtime's functions undefined in the library, so that it binds to the runtime in the process.
"""

from __future__ import annotations

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
from ..runtime import session
from ..runtime.hip import ARCH
from .errors import CompileError, ToolchainError
from .source import HEADER_FOLDER, KERNEL_FILE

LIBRARY_FILE = "kernel.so"

_FIRST_CLANG_WITH_GFX942 = 17

# The compiler may be newer than the runtime: newer clangs default to version 6, which only ROCm 6.3 and later can load.
_CODE_OBJECT_VERSION = "-mcode-object-version=5"
_COMPILE_FLAGS = (
    *("-x", "hip", "-std=c++17", "-O3", "-fPIC", "-fno-exceptions"),
    # A kernel that used the host's headers or libraries might not compile on another machine.
    *("-nostdinc", "-nogpuinc", "-nogpulib", "-I", HEADER_FOLDER),
    f"--offload-arch={ARCH}",
    _CODE_OBJECT_VERSION,
    # The SLP vectorizer packs the FMAs of the promotion to fp32 in pairs, which need moves and can't overlap an MFMA.
    "-fno-slp-vectorize",
    # The same source gives the same bytes in any folder.
    "-fuse-cuid=none",
)

# Preloads the first arguments into SGPRs; see FirstArguments in gemm_arguments.h. From clang 20 on, kernels load the
# arguments themselves if the firmware is too old for preloading. Kernels of older clangs trap then, and the oldest
# clangs don't know the option.
_PRELOAD_FLAGS = ("-mllvm", "-amdgpu-kernarg-preload-count=16")
_FIRST_CLANG_WITH_PRELOAD = 20

# nodelete: the runtime keeps pointers into a kernel's library, so it must never be unmapped. -Bsymbolic: two libraries
# may have kernels of the same name.
_LINK_FLAGS = ("-shared", "-z", "nodelete", "-Bsymbolic")

_HOST = ("-target", "x86_64-linux-gnu")


def _compile_flags(clang: int | None) -> list[str]:
    preloads = clang is not None and clang >= _FIRST_CLANG_WITH_PRELOAD
    return [*_COMPILE_FLAGS, *(_PRELOAD_FLAGS if preloads else ())]


def _clang_in(version_text: str) -> int | None:
    """The major version of clang in a compiler's ``--version``."""
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
        """Everything except the source that can change the result of ``build``; JSON types only."""

    def build(self, folder: Path) -> None:
        """Compiles ``kernel.hip`` in ``folder``, with the headers in ``include`` there, to ``kernel.so``.

        Raises:
            CompileError: a compiler or linker refused it.
            ToolchainError: a program that the build needs is missing.
        """


class Hipcc:
    """hipcc of ROCm, or of a distribution, as the user's environment configures it."""

    name = "hipcc"

    # The environment variables that change what hipcc and its clang make. HIP_VISIBLE_DEVICES and the like are left
    # out: they differ between the ranks of a job, which share their kernels.
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
        """Compiles a small kernel. Returns the reason why this hipcc cannot target gfx942, or None if it can.

        The kernel stays in the cache, so it is compiled again only if hipcc or its environment changes.

        Raises:
            CacheError: see ``cache.obtain``.
        """
        from . import probe  # here, since it imports this module

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
        # hipcc always links libamdhip64, so the C compiler links instead.
        linker = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
        if linker is None:
            raise ToolchainError("hipcc needs a C compiler to link with, and there is no cc, gcc or clang on PATH")
        _run([str(self.program), *self._flags, "-c", KERNEL_FILE, "-o", "kernel.o"], folder)
        link_flags = [flag if flag == "-shared" else f"-Wl,{flag}" for flag in _LINK_FLAGS]
        _run([linker, *link_flags, "kernel.o", "-o", LIBRARY_FILE], folder)


class Ziglang:
    """The clang and lld in the PyPI package ziglang: a gfx942 compiler for machines without ROCm.

    The steps of hipcc run one by one, since clang's driver would start a program ``lld``, which ziglang has only as a
    subcommand.
    """

    name = "ziglang"

    # The host code's constructor calls atexit, which glibc has only in its static part, which C compilers link in.
    _HOST_SUPPORT_FILE = "host_support.h"
    _HOST_SUPPORT = """\
extern "C" int __cxa_atexit(void (*)(void*), void*, void*);
extern "C" __attribute__((visibility("hidden"))) void* __dso_handle = &__dso_handle;
extern "C" __attribute__((visibility("hidden"))) int atexit(void (*function)(void)) {
  return __cxa_atexit((void (*)(void*))function, nullptr, &__dso_handle);
}
"""
    # Host and device code are compiled at once; the host code refers to the device code by this name. In clang 19 the
    # name ends in an underscore and the compilation unit's name, which is empty here, and the host code defines no
    # variable for the runtime's handle.
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
        """The reason why the installed ziglang cannot target gfx942; None if it can."""
        if self._clang is not None and self._clang >= _FIRST_CLANG_WITH_GFX942:
            return None
        found = f"clang {self._clang}" if self._clang else "no clang in it"
        return (
            f"ziglang {self._zig} ({found}) can't compile for {ARCH}: "
            f"that takes clang {_FIRST_CLANG_WITH_GFX942} or later, as in ziglang 0.12"
        )

    def identity(self) -> Mapping[str, object]:
        # Without the program's path: a version of the package has the same bytes wherever it is installed.
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
        (folder / "device.hipfb.s").write_text(self._EMBEDDED, encoding="ascii")
        self._run(folder, "clang", *_HOST, "-c", "device.hipfb.s", "-o", "device.hipfb.o")

    def _build_host(self, folder: Path) -> None:
        (folder / self._HOST_SUPPORT_FILE).write_text(self._HOST_SUPPORT, encoding="ascii")
        host = [*_HOST, "--cuda-host-only", "-include", self._HOST_SUPPORT_FILE]
        self._run(folder, "clang", *_COMPILE_FLAGS, *host, "-c", KERNEL_FILE, "-o", "kernel.o")

    def _run(self, folder: Path, *arguments: str) -> None:
        # The user's environment is left out, so that the identity needs none of it.
        _run([str(self.program), *arguments], folder, {"PATH": os.defpath, "TMPDIR": str(folder)})


def choose() -> Toolchain:
    """Chooses the toolchain: the one in ``DG_TOOLCHAIN``, else hipcc if it can target gfx942, else ziglang.

    Warns once if a hipcc was found that can't target gfx942.

    Raises:
        CacheError: see ``Hipcc.why_unable``.
        ToolchainError: no toolchain, or not the one in ``DG_TOOLCHAIN``, can compile for gfx942.
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
    """A line for each toolchain that was found, for ``info``; for an unusable one, the reason."""
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


class Compilers(session.Part):
    """Facts about this machine's compilers.

    Attributes:
        versions: the output of a version command, by the command and its environment.
        failures: the reason why a compiler can't make kernels, or None, by the compiler's identity.
    """

    def __init__(self) -> None:
        self.versions: dict[tuple[tuple[str, ...], tuple[tuple[str, str], ...]], str] = {}
        self.failures: dict[str, str | None] = {}


def _version_text(command: tuple[str, ...], environment: tuple[tuple[str, str], ...]) -> str:
    """The output of ``command``, remembered by the session for each environment, since hipcc is slow."""
    versions = session.current().of(Compilers).versions
    if (command, environment) not in versions:
        _, output = _output(command, None, dict(environment), errors=subprocess.DEVNULL)
        versions[command, environment] = output.decode(errors="replace").strip()
    return versions[command, environment]


def _output(
    command: Sequence[str], folder: Path | None, environment: Mapping[str, str] | None, errors: int
) -> tuple[int, bytes]:
    """A program's exit status and output; ``errors`` says where its stderr goes.

    Raises:
        ToolchainError: the program can't be started.
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
