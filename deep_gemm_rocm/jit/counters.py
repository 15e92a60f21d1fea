"""Counts what happens to kernels before they can be called."""

from __future__ import annotations

from .. import forking
from ..runtime import session


class Counters(session.Part):
    """Counters and times of a session, for metrics."""

    def __init__(self) -> None:
        self._changing = forking.Lock()
        self._values: dict[str, float] = {
            "compiles": 0,
            "compile_seconds": 0.0,
            "cache_hits": 0,
            "cache_misses": 0,
            "cache_evictions": 0,
            "cache_refusals": 0,
            "lock_waits": 0,
            "lock_seconds": 0.0,
        }

    def add(self, **amounts: float) -> None:
        """Adds to counters, by their names."""
        with self._changing:
            for name, amount in amounts.items():
                self._values[name] += amount

    def values(self) -> dict[str, float]:
        """All counters, by their names."""
        return dict(self._values)


def count(**amounts: float) -> None:
    """Adds to counters of the current session."""
    session.current().of(Counters).add(**amounts)
