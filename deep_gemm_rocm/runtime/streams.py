"""The stream on which calls with device arrays work."""

from __future__ import annotations

import contextlib
import ctypes
import numbers
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

_current: ContextVar[int] = ContextVar("stream", default=0)

# Attributes that hold a handle: torch's, CuPy's and Numba's streams.
_HANDLES = ("cuda_stream", "ptr", "handle")

current = _current.get


@contextlib.contextmanager
def stream(stream: Any) -> Iterator[int]:
    """Inside, this thread's calls with device arrays work on a stream; contexts nest.

    Otherwise, calls with arrays from ``as_tensor`` work on HIP's null stream. Calls with torch's own tensors always
    work on torch's current stream.

    Args:
        stream: a stream of hip-python, CuPy, Numba or torch, an object with ``__cuda_stream__``, a ``c_void_p``, or the
            handle as an int; 0 is the null stream. It must belong to the arrays' device, and is kept alive inside.

    Yields:
        The stream's handle.

    Raises:
        TypeError: ``stream`` is none of these.
    """
    handle = _handle(stream)
    token = _current.set(handle)
    try:
        yield handle
    finally:
        _current.reset(token)


def _handle(stream: Any) -> int:
    found = stream
    if hasattr(found, "__cuda_stream__"):
        protocol = found.__cuda_stream__
        _version, found = protocol() if callable(protocol) else protocol
    else:
        found = next((getattr(found, name) for name in _HANDLES if hasattr(found, name)), found)
    if isinstance(found, ctypes.c_void_p):
        found = found.value or 0
    is_number = isinstance(found, numbers.Number) and not isinstance(found, numbers.Integral)
    if found is None or isinstance(found, bool) or is_number or not hasattr(found, "__int__"):
        raise TypeError(
            f"stream must be a stream's object or its handle as an int, got {type(stream).__name__}; 0 is the null "
            "stream"
        )
    handle = int(found)
    if not 0 <= handle < 2**64:
        raise ValueError(f"stream must be a handle from 0 to 2^64 - 1, got {handle}")
    return handle
