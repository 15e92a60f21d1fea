"""Counters for the metrics of a server."""

from __future__ import annotations

from ..jit import loaded
from ..jit.counters import Counters
from ..launch.repeated import Calls
from ..runtime import session


def stats() -> dict[str, float]:
    """Counters and times of this process, each since its start unless noted.

    Returns:
        A new dictionary with always the same names:

        - ``compiles``, ``compile_seconds``: kernels that this process compiled, and the time.
        - ``cache_hits``, ``cache_misses``: kernels that were found in the cache on disk, or not.
        - ``cache_evictions``: kernels that this process removed, since the cache was larger than its limit.
        - ``cache_refusals``: kernels in the cache that were not used, since they were damaged or others could write to
          them; and unsafe cache folders.
        - ``lock_waits``, ``lock_seconds``: waits for a process that compiled the same kernel, and their time.
        - ``kernels_loaded``: kernels that are loaded now.
        - ``calls_remembered``, ``call_bytes``: calls that can be repeated cheaply now, and an estimate of their memory.
    """
    current = session.current()
    calls = current.of(Calls)
    return {
        **current.of(Counters).values(),
        "kernels_loaded": len(loaded()),
        "calls_remembered": len(calls.known),
        "call_bytes": calls.bytes,
    }
