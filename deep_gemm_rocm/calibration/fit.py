"""Finds constants with which the model's figures are those of a device."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor

from ..runtime import hip
from ..simulator.constants import packaged
from .device import Device
from .probes import PROBES, Probe

# Differences of logarithms.
_CLOSE, _NEAR = 0.004, 0.05  # errors of figures that need no other argument, and that will do
_LEAST_STEP, _LARGEST_STEP = 0.05, 1.5
_BEYOND = 1.2  # a step goes so much beyond where the error may be 0, to have that between two arguments
_WIDEST_WITHOUT_EFFECT = 2.0

_LEAST_POWER = 0.02  # of its constant, with which a figure grows
_MOST_FIGURES = 12
_TURN = 4  # clocks from one turn of a SIMD to the next, in which its waves issue


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of one probe.

    Attributes:
        measured: the device's figure.
        modelled: the model's, with the constant that it had.
        before: the constant that the model had.
        after: the constant with which the model's figure is the device's; None if there is none.
    """

    probe: Probe
    measured: float
    modelled: float
    before: float
    after: float | None

    @property
    def disagrees(self) -> bool:
        """Whether the model was off by more than the 10% that docs/timing.md claims, or can't be made to agree."""
        return self.after is None or abs(self.modelled / self.measured - 1) > 0.1


def calibrate(probes: Sequence[Probe] = PROBES) -> Iterator[Finding]:
    """Measures the device of ``hip.runtime()``, and yields what is found, probe by probe.

    The model runs in another process, on the simulated chip, whatever this process runs on. It begins with the
    constants of the package.

    Raises:
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    device, found = Device(), dict[str, float]()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _use_model) as model:
        for probe in probes:
            with device.measuring():
                measured = probe.figure(device)
            before = packaged()[probe.constant]
            figure = functools.partial(_figure_of_model, model, PROBES.index(probe), probe.constant, dict(found))
            modelled = figure(before)
            try:
                after = _solution(figure, before, modelled, measured)
            except hip.HipError:  # on the way was a value that the model refuses
                after = None
            if after is not None:
                if after != before and "clocks" in probe.constant:
                    after = _whole(figure, after, in_turns=probe.in_turns)
                found[probe.constant] = after
            yield Finding(probe, measured, modelled, before, after)


def _solution(figure: Callable[[float], float], value: float, given: float, wanted: float) -> float | None:
    """The argument for which ``figure``, which rises or falls, is as wanted; None if it depends on something else.

    Figures in clocks rise in steps, for instructions issue every four clocks. Then the closest one counts.

    Args:
        value, given: an argument, and the figure for it.
    """
    if abs(math.log(given / wanted)) <= _CLOSE:
        return value
    tried = [(math.log(value), math.log(given / wanted))]  # arguments and errors
    while abs(tried[0][1]) > _CLOSE and len(tried) < _MOST_FIGURES:
        argument = _next_argument(tried)
        if argument is None:
            return None
        tried.append((argument, math.log(figure(math.exp(argument)) / wanted)))
        tried.sort(key=lambda point: abs(point[1]))
    argument, error = tried[0]
    return math.exp(argument) if abs(error) < _NEAR else None


def _whole(figure: Callable[[float], float], value: float, *, in_turns: bool) -> float:
    """The middle one of the whole numbers of clocks around ``value`` that have its figure.

    Args:
        in_turns: whether the clocks are whole turns of a SIMD; then it is the largest one.
    """
    clocks = math.floor(value)  # as the model counts
    alike = figure(clocks)
    below, above = (
        list(itertools.takewhile(lambda other: other > 0 and abs(figure(other) / alike - 1) < _CLOSE, others))
        for others in (range(clocks - 1, clocks - _TURN, -1), range(clocks + 1, clocks + _TURN))
    )
    numbers = sorted([*below, clocks, *above])
    return float(numbers[-1] if in_turns else numbers[len(numbers) // 2])


def _next_argument(tried: Sequence[tuple[float, float]]) -> float | None:
    """Where the error may be 0; None if it doesn't depend on the argument."""
    lowest, highest = min(tried), max(tried)
    below = max((point for point in tried if point[1] * lowest[1] > 0), default=lowest)
    above = min((point for point in tried if point[1] * lowest[1] <= 0), default=None)
    if above is not None:  # the zero lies between; halving gets there in steps, too
        share = below[1] / (below[1] - above[1]) if len(tried) % 2 else 0.5
        return below[0] + share * (above[0] - below[0])
    width = highest[0] - lowest[0]
    if width == 0:  # as if the figure were proportional
        return lowest[0] - math.copysign(max(abs(lowest[1]), _LEAST_STEP), lowest[1])
    power = (highest[1] - lowest[1]) / width
    if abs(power) < _LEAST_POWER:
        if width > _WIDEST_WITHOUT_EFFECT:
            return None
        return highest[0] + width if len(tried) % 2 else lowest[0] - width
    argument, error = tried[0]
    return argument + max(min(-_BEYOND * error / power, _LARGEST_STEP), -_LARGEST_STEP)


def _use_model() -> None:
    """Has this process run kernels on the simulated chip, with the package's constants."""
    os.environ["DG_DEVICE"] = "sim"
    os.environ.pop("DG_SIM_TIMING_CONSTANTS", None)


@functools.cache
def _simulated() -> Device:
    return Device()


def _figure_of_model(model: Executor, index: int, constant: str, others: dict[str, float], value: float) -> float:
    return model.submit(_figure_in_model, index, {**others, constant: value}).result()


def _figure_in_model(index: int, constants: dict[str, float]) -> float:
    device = _simulated()
    with device.measuring(constants):
        return PROBES[index].figure(device)
