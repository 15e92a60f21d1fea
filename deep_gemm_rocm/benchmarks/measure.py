"""How long calls take: by events on hardware, by the timing model behind the same events in simulation."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .. import hip, simulator
from ..testing.stopwatch import Stopwatch

# A time is that of so many calls, so that the events' own time hardly counts.
_LEAST_MICROSECONDS, _MOST_CALLS = 100.0, 20


@dataclass(frozen=True)
class Sampling:
    """How much is measured.

    Attributes:
        iters: times that are taken; on hardware each is the mean of several calls if these are short.
        cold_iters: calls before those.
        rotating_mb: memory of all copies of the inputs, between which calls alternate.
    """

    iters: int
    cold_iters: int
    rotating_mb: int

    @classmethod
    def default(cls) -> Sampling:
        """On hardware as many calls as give a steady median, on twice what the Infinity Cache holds. In simulation one,
        for the next ones would take as long, and each begins with an empty Infinity Cache."""
        return cls(1, 0, 0) if hip.runtime().is_simulated else cls(100, 20, 512)

    def copies(self, problem: Any) -> list[Any]:
        """Of a problem: as many as calls take turns."""
        count = max(1, math.ceil(self.rotating_mb * 2**20 / problem.held_bytes))
        return [problem.copy() for _ in range(min(count, self.iters + self.cold_iters))]


@dataclass(frozen=True)
class Timing:
    """Microseconds of one call. In simulation, ``mfma_utilization`` and ``busiest`` are those of its longest kernel."""

    median_us: float
    p20_us: float
    p80_us: float
    mfma_utilization: float | None = None
    busiest: str = ""


def time_calls(
    calls: Sequence[Callable[[], None]], sampling: Sampling, *, compute: Literal["all", "sampled"] = "all"
) -> Timing:
    """Times calls that take turns.

    Args:
        compute: as of ``simulator.profile``; without meaning on hardware.
    """
    runtime = hip.runtime()
    stopwatch, turns = Stopwatch(), itertools.cycle(calls)

    def call(count: int) -> None:
        for turn in itertools.islice(turns, count):
            turn()

    call(sampling.cold_iters)
    count = 1
    if not runtime.is_simulated:
        count = min(math.ceil(_LEAST_MICROSECONDS / stopwatch.microseconds(lambda: call(1))), _MOST_CALLS)
    profiled = simulator.profile(compute=compute) if runtime.is_simulated else contextlib.nullcontext()
    with profiled as profile:
        times = [stopwatch.microseconds(lambda: call(count)) / count for _ in range(sampling.iters)]
    p20, median, p80 = np.percentile(times, (20, 50, 80)).tolist()
    longest = max(profile.kernels, key=lambda kernel: kernel.time_us, default=None) if profile else None
    if longest is None:
        return Timing(median, p20, p80)
    return Timing(median, p20, p80, longest.mfma_utilization, longest.busiest)
