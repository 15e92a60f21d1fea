"""Events of HIP streams."""

from __future__ import annotations

from ctypes import byref, c_float, c_void_p

from . import session

_NOT_READY = 600  # hipErrorNotReady


class Event:
    """A point in a stream's work.

    The time between two events is measured on hardware; in simulation it is that of the timing model.
    """

    def __init__(self) -> None:
        self._runtime = session.current().runtime
        self._handle = c_void_p()
        self._runtime.check(self._runtime.lib.hipEventCreate(byref(self._handle)))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._runtime.lib.hipEventDestroy(self._handle)

    def record(self, stream: int = 0) -> None:
        """Records the event in a stream, given by its handle as from ``current_stream``."""
        self._runtime.check(self._runtime.lib.hipEventRecord(self._handle, stream))

    def is_reached(self) -> bool:
        """Whether all work before the event is done."""
        status = self._runtime.lib.hipEventQuery(self._handle)
        if status == _NOT_READY:
            return False
        self._runtime.check(status)
        return True

    def synchronize(self) -> None:
        """Waits until all work before the event is done."""
        self._runtime.check(self._runtime.lib.hipEventSynchronize(self._handle))

    def milliseconds_since(self, start: Event) -> float:
        """The device's time from ``start`` to this event; both must be recorded and reached."""
        milliseconds = c_float()
        self._runtime.check(self._runtime.lib.hipEventElapsedTime(byref(milliseconds), start._handle, self._handle))
        return milliseconds.value
