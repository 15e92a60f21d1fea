"""Kernels from templates: rendered, compiled, cached on disk and loaded."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import c_void_p

from ..runtime import session
from .errors import CacheError, CaptureError, CompileError, JitError, LoadError, ToolchainError
from .kernel import Kernel
from .kernels import Kernels, Request, source_of
from .render import Value

__all__ = [
    "CacheError", "CaptureError", "CompileError", "JitError", "Kernel", "Kernels", "LoadError", "Request",
    "ToolchainError", "forget", "get_kernel", "loaded", "source_of",
]  # fmt: skip


def get_kernel(template: str, values: Mapping[str, Value], argtypes: tuple[type, ...] = (c_void_p, c_void_p)) -> Kernel:
    """The kernel of ``template`` rendered with ``values``, compiled at most once for all processes.

    A kernel that the session has already is found without touching the disk.

    Args:
        template, values, argtypes: see ``Request``.

    Raises:
        TypeError, ValueError, jinja2.TemplateError: ``values`` don't fit the template, see ``render``.
        CaptureError: the session doesn't have the kernel, and a stream is being captured.
        ToolchainError: nothing here can compile for gfx942.
        CompileError: the compiler refused the kernel.
        CacheError: the cache folder is unsafe.
        LoadError: the compiled kernel can't be loaded.
        hip.NoDeviceError: there is no device to load it for.
    """
    return session.current().of(Kernels).get(Request(template, values, argtypes))


def loaded() -> list[Kernel]:
    """The session's kernels, in the order of their first use."""
    return session.current().of(Kernels).loaded()


def forget() -> None:
    """Forgets the session's kernels, so that the next call looks for its kernel on the disk again."""
    current = session.current()
    current.of(Kernels).forget()
    current.forget_choices()
