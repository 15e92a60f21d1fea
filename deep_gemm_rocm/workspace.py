"""Memory that a launch's first kernel writes for its second one.

Each thread keeps some for each stream it launches on, so that no launch of another comes in between. Asking torch each
time would take a third as long as all else of a warm call does.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable

from . import hip

_LEAST_BYTES = 2**20


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.by_stream: dict[Hashable, tuple[int, hip.Memory]] = {}  # with its size


_kept = _OfThread()


def address(runtime: hip.Runtime, size: int, device: int, stream: int) -> int:
    """Where at least ``size`` bytes are, for launches of this thread on ``stream`` that aren't captured.

    The next call for the same stream may give the same memory, or free it as soon as the stream has no use for it.

    Args:
        device: the number of the stream's device, as ``torch.Tensor.get_device`` gives it.
        stream: the device's current one.

    Raises:
        hip.HipError, torch.OutOfMemoryError: there isn't as much memory.
    """
    held, memory = _kept.by_stream.get((device, stream), (0, None))
    if memory is None or held < size:
        held = max(_LEAST_BYTES, 1 << (size - 1).bit_length())
        memory = runtime.allocate(held, device)
        _kept.by_stream[device, stream] = held, memory
    return memory.address
