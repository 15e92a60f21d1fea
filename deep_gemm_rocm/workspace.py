"""Memory that a launch's first kernel writes for its second one.

Each thread keeps some for each stream it launches on, so that no launch of another comes in between. It isn't torch's:
asking torch takes a third as long as all else of a warm call does, and what it gives may belong to the pool of a graph.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable

from . import hip

_LEAST_BYTES = 2**20


class _Memory:
    def __init__(self, runtime: hip.Runtime, size: int, device: int) -> None:
        self._runtime = runtime
        self.size = size
        self.address = runtime.allocate(size, device)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._runtime.free(self.address)


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.by_stream: dict[Hashable, _Memory] = {}


_kept = _OfThread()


def address(runtime: hip.Runtime, size: int, device: int, stream: int) -> int:
    """Where at least ``size`` bytes are, for launches of this thread on ``stream`` that aren't captured.

    The next call for the same stream may give the same memory, or free it as soon as the device has no use for it.

    Args:
        device: the number of the stream's device, as ``torch.Tensor.get_device`` gives it.

    Raises:
        hip.HipError: there isn't as much memory.
    """
    memory = _kept.by_stream.get((device, stream))
    if memory is None or memory.size < size:
        memory = _Memory(runtime, max(_LEAST_BYTES, 1 << (size - 1).bit_length()), device)
        _kept.by_stream[device, stream] = memory
    return memory.address
