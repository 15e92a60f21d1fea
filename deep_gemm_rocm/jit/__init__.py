"""From a template's name and its values to a kernel that can be called: render, compile, cache, load."""

from __future__ import annotations

import time
from collections.abc import Mapping

from .. import arrays, changes, forking, planning, settings
from ..paths import include_dir
from . import cache, toolchain
from .errors import CacheError, CaptureError, CompileError, JitError, LoadError, ToolchainError
from .kernel import Kernel, PlannedKernel
from .render import Value, render
from .source import Source

__all__ = [
    "CacheError", "CaptureError", "CompileError", "JitError", "Kernel", "LoadError", "ToolchainError",
    "forget", "get_kernel", "loaded", "source_of",
]  # fmt: skip

_Key = tuple[Value, ...]  # template, names, values: flat, for a warm call spends most of its time on hashing it

_kernels: dict[_Key, Kernel] = {}
_being_made: dict[_Key, forking.Lock] = {}


def get_kernel(template: str, values: Mapping[str, Value], argtypes: tuple[type, ...]) -> Kernel:
    """The kernel that ``template`` rendered with ``values`` makes; compiled at most once, whoever asks.

    A kernel that this process already has is found without touching the disk. While calls are planned, the request is
    noted and the kernel does nothing.

    Args:
        template: file name below ``include/deep_gemm_rocm``, such as ``gemm.hip.j2``.
        values: see ``render``. The order of the names should be the same from call to call.
        argtypes: ctypes types of ``dg_launch``'s parameters; the same for every kernel of a template.

    Raises:
        TypeError, ValueError, jinja2.TemplateError: ``values`` don't fit the template, see ``render``.
        CaptureError: this process doesn't have the kernel, and a stream is being captured.
        ToolchainError: nothing here can compile for gfx942.
        CompileError: the compiler refused the kernel.
        CacheError: the cache folder must not be used.
        LoadError: the compiled kernel can't be loaded.
        hip.NoDeviceError: there is no device to load it for.
    """
    key = (template, *values, *values.values())
    plan = planning.current()
    if plan is not None:
        plan[key] = planning.Request(template, values, argtypes)
        return PlannedKernel()
    kernel = _kernels.get(key)
    if kernel is not None:
        return kernel
    if arrays.is_capturing():
        raise CaptureError(
            f"{values.get('kernel_name', template)} is not loaded, and can't be compiled or loaded while a stream is "
            "being captured. Before that, make this call once, or warm it up: warmup_kernels, or set_compile_mode(1)."
        )
    with _being_made.setdefault(key, forking.Lock()):
        kernel = _kernels.get(key)
        if kernel is None:
            kernel = _kernels[key] = _make(template, values, argtypes)
        return kernel


def loaded() -> list[Kernel]:
    """The kernels that this process has, in the order in which it asked for them."""
    return list(_kernels.values())


def forget() -> None:
    """Makes the next call look on the disk again. Libraries stay loaded: the runtime keeps pointers into them."""
    _kernels.clear()
    changes.note()


def source_of(template: str, values: Mapping[str, Value]) -> Source:
    """The source to compile for this device: ``get_kernel``'s template with its values, and the number of XCDs."""
    headers = include_dir()
    text = render(headers / "deep_gemm_rocm", template, {**values, "num_xcds": settings.device_num_xcds()})
    return Source.collect(str(values.get("kernel_name", template.removesuffix(".hip.j2"))), text, headers)


def _make(template: str, values: Mapping[str, Value], argtypes: tuple[type, ...]) -> Kernel:
    start = time.perf_counter()
    source = source_of(template, values)
    compiler = toolchain.choose()
    artefact = cache.obtain(source, compiler)
    try:
        kernel = Kernel(artefact, argtypes)
    except LoadError:
        if artefact.library.exists():
            raise
        kernel = Kernel(cache.obtain(source, compiler), argtypes)  # another process evicted it just now
    kernel.ready_seconds = time.perf_counter() - start
    return kernel
