"""Times a device's work without the time that the host takes to enqueue it."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from ..runtime import hip

_FLUSHED_BYTES = 2**29  # twice what the Infinity Cache of an MI300X holds
_MOST_FILLS = 1024  # a tenth of a second


class Stopwatch:
    """Times work on torch's current stream with events.

    A kernel of a few microseconds ends before the host has enqueued the next event, so that the events would measure
    the host. Therefore the device first fills memory, which also flushes its caches. A time counts only if the device
    had not begun with the work when all of it was enqueued. In simulation there is no queue, and events tell the
    simulated time.
    """

    def __init__(self) -> None:
        self._runtime = hip.runtime()
        device = self._runtime.tensor_device
        self._stream = self._runtime.current_stream(torch.empty(0, device=device))
        self._fills = 0 if self._runtime.is_simulated else 1
        self._filled = torch.empty(_FLUSHED_BYTES, dtype=torch.uint8, device=device) if self._fills else None

    def microseconds(self, work: Callable[[], object]) -> float:
        """The device's time of all that ``work`` enqueues. Calls ``work`` again until a time counts."""
        while True:
            start, end = hip.Event(), hip.Event()
            for _ in range(self._fills):
                assert self._filled is not None
                self._filled.zero_()
            start.record(self._stream)
            work()
            end.record(self._stream)
            is_behind = self._fills > 0 and start.is_reached()
            end.synchronize()
            if not is_behind:
                return 1e3 * end.milliseconds_since(start)
            self._fills *= 2
            if self._fills > _MOST_FILLS:
                self._fills = 0
                warnings.warn(
                    "the timed work waits for the device itself, or takes the host very long: its times include the "
                    "host's. Time a captured graph of it instead.",
                    RuntimeWarning,
                    stacklevel=2,
                )
