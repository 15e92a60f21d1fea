"""Scratch memory, through which one kernel of a launch passes results to the next.

Each thread keeps its own for each stream, so that launches of other threads can't overwrite it. Asking torch for memory
each time would take a third as long as the rest of a repeated call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

import torch

from ..runtime import session
from ..runtime.hip import Memory, Runtime

_LEAST_BYTES = 2**20


class Scratch(session.Part):
    """The scratch memory of all threads."""

    def __init__(self) -> None:
        self._of_thread = _OfThread()

    def kept(self) -> dict[Hashable, tuple[int, Memory]]:
        """Size and memory of this thread's scratch, by runtime, device and stream."""
        return self._of_thread.by_stream

    def memory(self, runtime: Runtime, size: int, tensor: torch.Tensor) -> Memory:
        """At least ``size`` bytes on the tensor's device, for one launch of this thread on the current stream.

        The next call may return the same memory. A captured launch gets memory of its graph, since the graph may run
        beside later launches of this thread.

        Raises:
            hip.HipError, torch.OutOfMemoryError: there isn't enough memory.
        """
        device = tensor.get_device()
        if runtime.is_capturing(device):
            return runtime.allocate_in_capture(size, tensor)
        kept = self._of_thread.by_stream
        key = runtime, device, runtime.current_stream(tensor)
        held, found = kept.get(key, _NOTHING)
        if found is None or held < size:
            held = _room_for(size)
            found = runtime.allocate(held, device)
            kept[key] = held, found
        return found

    def address_of(self, runtime: Runtime, size: int) -> Callable[[torch.Tensor], int]:
        """A function that takes a tensor, and returns the address of ``memory`` on its device."""
        return lambda tensor: self.memory(runtime, size, tensor).address


def _room_for(size: int) -> int:
    """Bytes that are allocated, so that a few sizes serve all calls."""
    return max(_LEAST_BYTES, 1 << (size - 1).bit_length())


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.by_stream: dict[Hashable, tuple[int, Memory]] = {}


_NOTHING: tuple[int, None] = 0, None
