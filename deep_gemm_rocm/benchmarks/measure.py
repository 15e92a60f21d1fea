"""Times calls with events. On hardware these measure; in simulation they tell the time of the timing model."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import simulator
from ..runtime import hip
from ..simulator import power
from ..testing.stopwatch import Stopwatch

# A measurement takes this long, or this many calls, so that the events' own time hardly counts.
_LEAST_MICROSECONDS, _MOST_CALLS = 100.0, 20


@dataclass(frozen=True)
class Sampling:
    """The extent of a measurement.

    Attributes:
        iters: times that are taken; on hardware each is the mean of several calls if these are short.
        cold_iters: calls before those.
        rotating_mb: memory of all copies of the inputs, between which calls alternate.
        check: whether results are checked. Without, a simulated kernel executes only what its time depends on, which
            is several times quicker.
        chip: the chip whose times are simulated, one of ``simulator.constants.chips()``; ignored on hardware.
    """

    iters: int
    cold_iters: int
    rotating_mb: int
    check: bool = True
    chip: str = "mi300x"

    @classmethod
    def default(cls) -> Sampling:
        """On hardware as many calls as give a steady median, on twice what the Infinity Cache holds. In simulation one
        call: each begins with an empty Infinity Cache, so the next would take as long."""
        return cls(1, 0, 0) if hip.runtime().is_simulated else cls(100, 20, 512)

    def copies(self, problem: Any) -> list[Any]:
        """The copies of a problem that calls take in turn."""
        count = max(1, math.ceil(self.rotating_mb * 2**20 / problem.held_bytes))
        return [problem.copy() for _ in range(min(count, self.iters + self.cold_iters))]


@dataclass(frozen=True)
class Timing:
    """Microseconds of one call.

    Attributes:
        median_us, p20_us, p80_us: of all calls; in simulation at a fixed clock, the boost clock.
        sustained_us: at the clock that the power limit leaves a kernel that runs again and again; in simulation only.
        joules: the energy of a call under sustained load; in simulation only.
        mfma_utilization, busiest: of the longest kernel; in simulation only.
    """

    median_us: float
    p20_us: float
    p80_us: float
    sustained_us: float | None = None
    joules: float | None = None
    mfma_utilization: float | None = None
    busiest: str = ""

    @property
    def interval_us(self) -> tuple[float, float] | None:
        """Between which times a measurement would lie in nine of ten cases; in simulation only."""
        return None if self.sustained_us is None else power.interval(self.sustained_us)

    @property
    def microseconds(self) -> float:
        """The time that reports compare: sustained in simulation, for that is what hardware shows."""
        return self.sustained_us or self.median_us


def time_calls(
    calls: Sequence[Callable[[], object]], sampling: Sampling, *, computed: Sequence[str] = ("*",)
) -> Timing:
    """Times the calls in turn.

    Args:
        computed: names of kernels, or patterns, that compute all of their results. Of the others the simulator only
            computes what their time depends on.
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
    profiled = (
        simulator.profile(chip=sampling.chip, compute="sampled", computed=computed)
        if runtime.is_simulated
        else contextlib.nullcontext()
    )
    with profiled as profile:
        times = [stopwatch.microseconds(lambda: call(count)) / count for _ in range(sampling.iters)]
    p20, median, p80 = np.percentile(times, (20, 50, 80)).tolist()
    if not profile or not profile.kernels:
        return Timing(median, p20, p80)
    longest = max(profile.kernels, key=lambda kernel: kernel.time_us)
    sustained = sum(kernel.sustained_us for kernel in profile.kernels) / sampling.iters
    joules = sum(kernel.sustained_joules for kernel in profile.kernels) / sampling.iters
    return Timing(median, p20, p80, sustained, joules, longest.mfma_utilization, longest.busiest)
