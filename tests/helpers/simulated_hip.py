"""The simulated HIP runtime through ctypes, and device code for it compiled by the clang in the ziglang package."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import subprocess
from collections.abc import Callable, Sequence
from ctypes import byref, c_char_p, c_size_t, c_uint, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import ziglang

from deep_gemm_rocm import simulator

ZIG = Path(ziglang.__file__).with_name("zig")

_DEVICE_ONLY = (
    "-x",
    "hip",
    "-std=c++17",
    "-nogpulib",
    "-nogpuinc",
    "-nostdinc",
    "--cuda-device-only",
    "--offload-arch=gfx942",
)

HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, DEFAULT_KIND = 1, 2, 3, 4

# Stands in for HIP's headers.
PRELUDE = """
#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __constant__ __attribute__((constant))
#define __managed__ __attribute__((managed))
#define __shared__ __attribute__((shared))
struct dim3 {
  unsigned x, y, z;
  __host__ __device__ dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
extern "C" int hipLaunchKernel(const void*, dim3, dim3, void**, __SIZE_TYPE__, struct ihipStream_t*);
extern "C" int __hipPushCallConfiguration(dim3, dim3, __SIZE_TYPE__ = 0, struct ihipStream_t* = nullptr);
extern "C" int __hipPopCallConfiguration(dim3*, dim3*, __SIZE_TYPE__*, struct ihipStream_t**);
extern "C" int hipGetLastError();
"""

# Stands in for a C compiler's crt files: registers clang's clean-up, which unregisters the kernels, and calls it when
# the library is closed.
HOST_SUPPORT = """
extern "C" int __cxa_atexit(void (*)(void*), void*, void*);
extern "C" void __cxa_finalize(void*);
extern "C" __attribute__((visibility("hidden"))) void* __dso_handle = &__dso_handle;
extern "C" __attribute__((visibility("hidden"))) int atexit(void (*function)()) {
  return __cxa_atexit((void (*)(void*))function, nullptr, &__dso_handle);
}
__attribute__((destructor)) static void finalize() { __cxa_finalize(&__dso_handle); }
"""


class HipCallError(Exception):
    """A HIP call failed; has the error's name and the simulator's message."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name
        self.message = message


class Hip:
    """The HIP API with checked calls: ``hip.hipFree(pointer)`` raises HipCallError if the call fails."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL(str(simulator.library_path()), mode=ctypes.RTLD_GLOBAL)
        self.lib.dgSimLastMessage.restype = c_char_p
        self.lib.hipGetErrorName.restype = c_char_p
        self.lib.hipGetErrorString.restype = c_char_p

    def __getattr__(self, name: str) -> Callable[..., None]:
        function = getattr(self.lib, name)

        def call(*arguments: Any) -> None:
            if status := function(*map(_as_ctypes, arguments)):
                raise HipCallError(self.lib.hipGetErrorName(status).decode(), self.last_message())

        return call

    def last_message(self) -> str:
        return self.lib.dgSimLastMessage().decode()

    def malloc(self, size: int) -> int:
        pointer = c_void_p()
        self.hipMalloc(byref(pointer), size)
        return pointer.value or 0

    def upload(self, array: np.ndarray) -> int:
        pointer = self.malloc(array.nbytes)
        self.hipMemcpy(pointer, array, array.nbytes, HOST_TO_DEVICE)
        return pointer

    def download(self, pointer: int, like: np.ndarray) -> np.ndarray:
        result = np.empty_like(like)
        self.hipMemcpy(result, pointer, result.nbytes, DEVICE_TO_HOST)
        return result

    def load(self, image: bytes) -> c_void_p:
        module = c_void_p()
        self.hipModuleLoadData(byref(module), ctypes.create_string_buffer(image, len(image)))
        return module

    def function(self, module: c_void_p, name: str) -> c_void_p:
        function = c_void_p()
        self.hipModuleGetFunction(byref(function), module, name.encode())
        return function

    def variable(self, module: c_void_p, name: str) -> tuple[int, int]:
        address, size = c_void_p(), c_size_t()
        self.hipModuleGetGlobal(byref(address), byref(size), module, name.encode())
        return address.value or 0, size.value

    def launch(
        self, function: c_void_p, grid: Any, block: Any, *arguments: Any, dynamic_lds: int = 0, stream: int = 0
    ) -> None:
        """Launches ``grid`` blocks of ``block`` threads, each an int or up to three. Arguments are ctypes values, or
        ints for pointers."""
        values = [c_void_p(value) if isinstance(value, int) else value for value in arguments]
        pointers = (c_void_p * (len(values) + 1))(*[ctypes.addressof(value) for value in values], None)
        self.hipModuleLaunchKernel(
            function, *_three(grid), *_three(block), c_uint(dynamic_lds), c_void_p(stream), pointers, None
        )


def _three(extent: Any) -> tuple[c_uint, ...]:
    extents = (extent,) if isinstance(extent, int) else tuple(extent)
    return tuple(map(c_uint, extents + (1,) * (3 - len(extents))))


def _as_ctypes(argument: Any) -> Any:
    """Converts integers to 64 bits, which by the x86-64 convention is right for pointers, sizes and ints."""
    if isinstance(argument, np.ndarray):
        return argument.ctypes.data_as(c_void_p)
    return c_size_t(argument) if isinstance(argument, int) and argument >= 0 else argument


def _run(*command: str | Path, cwd: Path) -> None:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stderr}"


class Compiler:
    """Compiles HIP source to gfx942 code objects, and to host libraries with `<<<...>>>` launches."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.code_object = functools.cache(self._code_object)
        self.library = functools.cache(self._library)

    def _code_object(self, source: str, *flags: str, arch: str = "gfx942", language: str = "hip") -> bytes:
        """Compiles ``source``, by default with -O3. ``language`` is ``hip``, with the prelude, or ``cl`` (OpenCL C)."""
        folder = self._work_folder(source, PRELUDE if language == "hip" else "")
        target = ["-target", "amdgcn-amd-amdhsa", f"-mcpu={arch}"]
        device = ["--cuda-device-only", f"--offload-arch={arch}"] if language == "hip" else target
        self._clang(folder, "-x", language, *device, *(flags or ["-O3"]), "-S", "kernel.hip", "-o", "kernel.s")
        version = [flag for flag in flags if flag.startswith("-mcode-object-version")]
        return self._assemble(folder, *target, *version)

    def hipcc_code_object(self, hipcc: Path, program: Path, *flags: str) -> bytes:
        """Like ``device_code_object``, but compiled by the clang behind a hipcc."""
        folder = self._new_folder()
        _run(hipcc, *_DEVICE_ONLY, *flags, program, "-o", "kernel.co", cwd=folder)
        return (folder / "kernel.co").read_bytes()

    def device_code_object(self, program: Path, *flags: str) -> bytes:
        """The code object of a HIP file that has its own declarations."""
        folder = self._new_folder()
        self._clang(folder, *_DEVICE_ONLY, *flags, "-S", program, "-o", "kernel.s")
        return self._assemble(folder, "-target", "amdgcn-amd-amdhsa", "-mcpu=gfx942")

    def assemble(self, *sources: str) -> bytes:
        """Assembles AMDGCN assembly with metadata to a code object. Several sources are linked."""
        folder = self._new_folder()
        names = [f"kernel{i}.s" for i in range(len(sources))]
        for name, source in zip(names, sources, strict=True):
            (folder / name).write_text(source)
        return self._assemble(folder, "-target", "amdgcn-amd-amdhsa", "-mcpu=gfx942", sources=names)

    def _assemble(self, folder: Path, *flags: str, sources: Sequence[str] = ("kernel.s",)) -> bytes:
        objects = [f"{source}.o" for source in sources]
        for source, to in zip(sources, objects, strict=True):
            _run(ZIG, "clang", *flags, "-c", source, "-o", to, cwd=folder)
        _run(ZIG, "ld.lld", "-shared", *objects, "-o", "kernel.co", cwd=folder)
        return (folder / "kernel.co").read_bytes()

    def _library(self, source: str) -> Path:
        """A shared library of host and device code, which registers its kernels when it is opened."""
        code = self.code_object(source)
        folder = self._work_folder(source, PRELUDE + HOST_SUPPORT)
        (folder / "kernel.hipfb").write_bytes(bundle({"hipv4-amdgcn-amd-amdhsa--gfx942": code}))
        host = ["--cuda-host-only", "-target", "x86_64-linux-gnu", "-Xclang", "-fcuda-include-gpubinary"]
        flags = [*host, "-Xclang", "kernel.hipfb", "-fPIC", "-O1"]
        self._clang(folder, "-x", "hip", *flags, "-c", "kernel.hip", "-o", "kernel.o")
        _run(ZIG, "ld.lld", "-shared", "-Bsymbolic", "kernel.o", "-o", "kernel.so", cwd=folder)
        return folder / "kernel.so"

    def _clang(self, folder: Path, *arguments: str | Path) -> None:
        _run(ZIG, "clang", "-nogpulib", "-nogpuinc", "-nostdinc", "-cl-no-stdinc", *arguments, cwd=folder)

    def _work_folder(self, source: str, prelude: str) -> Path:
        folder = self._new_folder()
        (folder / "kernel.hip").write_text(prelude + source)
        return folder

    def _new_folder(self) -> Path:
        folder = self._folder / f"{len(os.listdir(self._folder))}"
        folder.mkdir()
        return folder


GFX942 = "hipv4-amdgcn-amd-amdhsa--gfx942"  # an entry's ID


def bundle(entries: dict[str, bytes]) -> bytes:
    """Clang's offload bundle of code objects, given by their entry IDs."""
    head = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(entries))
    at = 4096
    for name, code in entries.items():
        head += struct.pack("<QQQ", at, len(code), len(name)) + name.encode()
        at += len(code)
    return head.ljust(4096, b"\0") + b"".join(entries.values())
