"""Searches configurations: the cost model ranks all that can be compiled, and the best few are measured."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from ..heuristics import forced
from ..heuristics.attention_choice import (
    AttentionCase,
    AttentionChoice,
    AttentionTable,
    TunedAttention,
    attention_candidates,
)
from ..heuristics.choices import replaced
from ..heuristics.gemm_choice import ranked_choices
from ..heuristics.gemm_problem import Choice, GemmProblem
from ..heuristics.gemm_table import TunedRow, TunedTable
from ..heuristics.gemm_tiles import gemm_candidates, legal_configs
from ..heuristics.tables import Table
from ..jit import toolchain
from ..launch import planning
from ..runtime import hip
from . import measure
from .measure import Sampling, Timing
from .operations import AnyProblem
from .problems import WrongResultError

Wanted = GemmProblem | AttentionCase
AnyChoice = Choice | AttentionChoice
Goal = Literal["time", "energy"]

# A configuration that the heuristic never chooses must save this share of the time. Programs need the heuristic's
# kernels anyway, for problems without a row; any other kernel is one more to compile and to load.
_WORTH_A_KERNEL = 0.02


class _Asked:
    """Stands in for a table: it records the problem that is looked up, and has no row for it."""

    problem: Wanted | None = None

    def find(self, problem: Wanted) -> None:
        self.problem = problem


@dataclasses.dataclass(frozen=True)
class Trial:
    """A choice and its timing; ``failure`` is the reason why there is none."""

    choice: AnyChoice
    timing: Timing | None = None
    failure: str = ""


def asked_for(problem: AnyProblem) -> Wanted:
    """The problem for which a call of this package's function looks up a configuration."""
    return asked_by(problem.to_meta().run)


def asked_by(call: Callable[[], object]) -> Wanted:
    """The problem for which a call looks up a configuration. It is made without running anything."""
    asked = _Asked()
    with replaced(asked), planning.planning():
        call()
    assert asked.problem
    return asked.problem


def candidates(wanted: Wanted, count: int) -> Sequence[AnyChoice]:
    """The heuristic's choice, then the other configurations that can be compiled, by estimated time."""
    if isinstance(wanted, AttentionCase):
        return attention_candidates(wanted)[:count]
    chosen = ranked_choices(wanted)[0]
    others = (choice for choice in ranked_choices(wanted, legal_configs) if choice != chosen)
    return [chosen, *itertools.islice(others, count - 1)]


def tune(
    problem: AnyProblem, count: int, sampling: Sampling, report: Callable[[Trial], None], by: Goal = "time"
) -> TunedRow | TunedAttention:
    """Measures ``count`` configurations, and returns a row for the first in ``best_first`` whose result is right.

    Args:
        report: called with each trial.
        by: what should be least.

    Raises:
        RuntimeError: no configuration computes the right result.
    """
    wanted = asked_for(problem)
    trials = []
    for choice in candidates(wanted, count):
        trials.append(_tried(problem, choice, sampling))
        report(trials[-1])
    for trial in best_first(wanted, trials, by):
        copy = problem.copy()
        try:
            with forced(trial.choice):
                timing = measure.time_calls([copy.run], sampling)
            error = copy.check()
        except WrongResultError as failure:
            report(Trial(trial.choice, failure=str(failure)))
            continue
        return _row(wanted, trial.choice, timing.microseconds, error)
    raise RuntimeError(
        f"{problem.op} {problem.shape}: no configuration works; the first failed with {trials[0].failure}"
    )


def best_first(wanted: Wanted, trials: Iterable[Trial], by: Goal = "time") -> list[Trial]:
    """The trials that have a timing, those of the least time or energy first. GEMM configurations that aren't among
    ``gemm_candidates`` count as 2% more than measured."""

    def is_candidate(choice: AnyChoice) -> bool:
        if isinstance(wanted, AttentionCase) or isinstance(choice, AttentionChoice):
            return False
        return choice.config in gemm_candidates(choice.config.kind, wanted.max_block_m)

    def cost(trial: Trial) -> float:
        assert trial.timing
        least = trial.timing.joules if by == "energy" else trial.timing.microseconds
        assert least is not None, "energy is known in simulation only"
        return least * (1 if is_candidate(trial.choice) else 1 + _WORTH_A_KERNEL)

    return sorted((trial for trial in trials if trial.timing), key=cost)


def _tried(problem: AnyProblem, choice: AnyChoice, sampling: Sampling) -> Trial:
    copies = sampling.copies(problem)
    try:
        with forced(choice):
            calls = [functools.partial(type(problem).run, copy) for copy in copies]
            return Trial(choice, measure.time_calls(calls, sampling, computed=()))
    # The compiler or the device rejects the configuration.
    except Exception as failure:
        return Trial(choice, failure=f"{type(failure).__name__}: {failure}".splitlines()[0])


def _row(wanted: Wanted, choice: AnyChoice, time_us: float, error: float) -> TunedRow | TunedAttention:
    runtime = hip.runtime()
    device = next(device for device in runtime.devices() if device.arch == hip.ARCH)
    compiler = toolchain.choose()
    measured: dict[str, Any] = {
        "time_us": round(time_us, 3),
        "error": round(error, 4),
        "device": device.name,
        "clock_mhz": device.clock_khz // 1000,
        "toolchain": f"{compiler.name} {compiler.version}",
        "simulated": runtime.is_simulated,
    }
    if isinstance(wanted, AttentionCase):
        return TunedAttention.of(wanted, cast(AttentionChoice, choice), **measured)
    config, splits = cast(Choice, choice)
    return TunedRow(
        config=config, splits=splits, m=wanted.m, n=wanted.n, k=wanted.k, groups=wanted.num_groups, **measured
    )


def load(path: Path, attention: bool = False) -> Table[Any]:
    """Loads the table for attention or GEMM; an empty one if there is no file.

    Raises:
        TableError, OSError: the file can't be used.
    """
    table: type[Table[Any]] = AttentionTable if attention else TunedTable
    return table.read(path) if path.exists() else table()
