"""The suite: measures problems and baselines one after another."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from .. import simulator
from ..runtime import hip
from . import measure, operations
from .baselines import BASELINES, Baseline, Run
from .measure import Sampling, Timing
from .operations import AnyProblem
from .problems import ImpossibleShapeError, WrongResultError, kernel_names
from .shapes import AnyShape

OURS = "deep_gemm_rocm"


@dataclass(frozen=True)
class Result:
    """One line of a report.

    Attributes:
        op, shape: what was computed.
        by: this package or a baseline's name.
        how: which kernel of it.
        timing: None where there is nothing to measure; ``missing`` says why then.
        error: the largest, in units of what rounding may cost; at most 1. None if results weren't checked.
        simulated: whether the times are those of the timing model.
    """

    op: str
    shape: AnyShape
    by: str
    how: str
    flops: int
    bytes: int
    simulated: bool
    timing: Timing | None = None
    error: float | None = None
    missing: str = ""

    @property
    def tflops(self) -> float | None:
        return self.flops / self.timing.microseconds / 1e6 if self.timing and self.flops else None

    @property
    def tflops_per_watt(self) -> float | None:
        return self.flops / self.timing.joules / 1e12 if self.timing and self.timing.joules and self.flops else None

    @property
    def gbps(self) -> float | None:
        return self.bytes / self.timing.microseconds / 1e3 if self.timing else None

    @property
    def share_of_bandwidth(self) -> float | None:
        """GB/s after the launch, as a share of what memory has in the model; in simulation, without matrix products."""
        if not (self.timing and self.timing.sustained_us) or self.flops:
            return None
        constants = simulator.constants.current()
        bytes_per_ns = constants["hbm.bytes_per_ns"] * constants["mall.slices"]
        return self.bytes / (1e3 * self.timing.sustained_us - constants["launch.overhead_ns"]) / bytes_per_ns


def run(
    op: str, shape: AnyShape, baselines: Sequence[str], sampling: Sampling, report: Callable[[str], None]
) -> Iterator[Result]:
    """Measures this package's kernel and the baselines on a shape, and checks what they compute.

    Raises:
        ImpossibleShapeError: the operation can't be computed for the shape.
        WrongResultError: a result of this package's kernel is wrong.
    """
    report(f"{op} {shape}: inputs")
    try:
        problem = operations.make(op, shape, hip.runtime().tensor_device)
        report(f"{op} {shape}: {OURS}")
        timing, error = _measured(problem, type(problem).run, sampling, None)
    except (TypeError, ValueError) as refused:
        raise ImpossibleShapeError(f"{op} {shape}: {refused}") from refused
    yield _result(problem, OURS, ", ".join(kernel_names(problem)), timing=timing, error=error)
    for name in baselines:
        report(f"{op} {shape}: {name}")
        yield _baseline(problem, name, sampling)


def _result(problem: AnyProblem, by: str, how: str, **more: object) -> Result:
    simulated = hip.runtime().is_simulated
    return Result(problem.op, problem.shape, by, how, problem.flops, problem.bytes, simulated, **more)  # type: ignore[arg-type]


def _measured(
    problem: AnyProblem,
    run: Run,
    sampling: Sampling,
    recipe: tuple[int | None, int | None, int | None] | None,
) -> tuple[Timing, float | None]:
    """Times it and checks every result, those of copies by comparing bits."""
    copies = sampling.copies(problem)
    returned: list[torch.Tensor | None] = [None] * len(copies)

    def call(index: int) -> None:
        returned[index] = run(copies[index])

    calls = [functools.partial(call, index) for index in range(len(copies))]
    timing = measure.time_calls(calls, sampling, computed=("*",) if sampling.check else problem.computed)
    if not sampling.check:
        return timing, None
    for copy, result in zip(copies, returned, strict=True):
        if result is not None:
            copy.d.copy_(result)
    error = copies[0].check(recipe) if recipe else copies[0].check()
    bits = copies[0].d.view(torch.uint8)
    for copy in copies[1:]:
        if not torch.equal(copy.d.view(torch.uint8), bits):
            raise WrongResultError(f"{problem.op} {problem.shape}: the same inputs gave different results")
    return timing, error


def _baseline(problem: AnyProblem, name: str, sampling: Sampling) -> Result:
    baseline = BASELINES[name]
    if missing := baseline.missing(problem):
        return _result(problem, name, "", missing=missing)
    try:
        computed = baseline.instead(problem)
        how, run = _fastest(computed, baseline)
        timing, error = _measured(computed, run, sampling, baseline.recipe)
    # A baseline that fails mustn't keep the others from being measured.
    except Exception as failure:
        return _result(problem, name, "", missing=f"{type(failure).__name__}: {failure}".splitlines()[0])
    # The baseline may compute on another number of weights, but with the same FLOPs.
    return dataclasses.replace(_result(problem, name, how, timing=timing, error=error), bytes=computed.bytes)


def _fastest(problem: AnyProblem, baseline: Baseline) -> tuple[str, Run]:
    """The fastest candidate that can run."""
    times, failures = [], []
    candidates = list(baseline.candidates(problem))
    if len(candidates) == 1:
        return candidates[0]
    trial, quick = problem.copy(), Sampling(1 if hip.runtime().is_simulated else 5, 0, 0)
    for how, run in candidates:
        try:
            if not hip.runtime().is_simulated:
                run(trial)  # compiles its kernel
            timing = measure.time_calls([functools.partial(run, trial)], quick, computed=problem.computed)
        except Exception as failure:
            failures.append(f"{how}: {failure}")
            continue
        times.append((timing.median_us, how, run))
    if not times:
        raise RuntimeError(failures[0])
    _, how, run = min(times, key=lambda entry: entry[0])
    return f"{how} (best of {len(times)})", run
