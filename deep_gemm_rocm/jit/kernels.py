"""From a template's name and its values to a kernel that can be called: render, compile, cache, load."""

from __future__ import annotations

import time
from collections.abc import Mapping
from ctypes import c_void_p
from typing import NamedTuple

from .. import forking
from ..runtime import arrays, session
from . import cache, toolchain
from .errors import CaptureError, LoadError
from .kernel import Kernel
from .paths import include_dir
from .render import Value, render
from .source import Source

_Key = tuple[Value, ...]  # template, values


class Request(NamedTuple):
    """A request for one kernel.

    Attributes:
        template: file name below ``include/deep_gemm_rocm``, such as ``gemm.hip.j2``.
        values: the template's values, see ``render``. All requests of a template have the same names in the same order.
        argtypes: ctypes types of ``dg_launch``'s parameters, the same for every kernel of a template.
    """

    template: str
    values: Mapping[str, Value]
    argtypes: tuple[type, ...] = (c_void_p, c_void_p)  # the arguments' structure and the stream

    @property
    def key(self) -> _Key:
        """Identifies the kernel in the session."""
        return (self.template, *self.values.values())


class Kernels(session.Part):
    """The session's loaded kernels."""

    def __init__(self) -> None:
        self._loaded: dict[_Key, Kernel] = {}
        self._being_made: dict[_Key, forking.Lock] = {}

    def get(self, request: Request) -> Kernel:
        """See ``jit.get_kernel``."""
        key = request.key
        kernel = self._loaded.get(key)
        if kernel is not None:
            return kernel
        if arrays.is_capturing():
            name = request.values.get("kernel_name", request.template)
            raise CaptureError(
                f"{name} is not loaded, and can't be compiled or loaded while a stream is being captured. Before that, "
                "make this call once, or warm it up: warmup_kernels, or set_compile_mode(1)."
            )
        with self._being_made.setdefault(key, forking.Lock()):
            kernel = self._loaded.get(key)
            if kernel is None:
                kernel = self._loaded[key] = _make(request)
            return kernel

    def loaded(self) -> list[Kernel]:
        """The kernels, in the order of their first use."""
        return list(self._loaded.values())

    def forget(self) -> None:
        """Forgets all kernels. Their libraries stay loaded, since the runtime keeps pointers into them."""
        self._loaded.clear()


def source_of(template: str, values: Mapping[str, Value]) -> Source:
    """The source to compile for this device: ``template`` with ``values`` and the device's number of XCDs."""
    headers = include_dir()
    num_xcds = session.current().runtime.num_xcds
    text = render(headers / "deep_gemm_rocm", template, {**values, "num_xcds": num_xcds})
    return Source.collect(str(values.get("kernel_name", template.removesuffix(".hip.j2"))), text, headers)


def _make(request: Request) -> Kernel:
    start = time.perf_counter()
    source = source_of(request.template, request.values)
    compiler = toolchain.choose()
    artefact = cache.obtain(source, compiler)
    try:
        kernel = Kernel(artefact, request.argtypes)
    except LoadError:
        if artefact.library.exists():
            raise
        kernel = Kernel(cache.obtain(source, compiler), request.argtypes)  # another process evicted it just now
    kernel.ready_seconds = time.perf_counter() - start
    return kernel
