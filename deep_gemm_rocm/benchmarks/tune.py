"""Searches configurations: the cost model ranks what can be compiled, the best few are measured."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from .. import hip, planning
from ..heuristics import forced, tuned
from ..heuristics.attention_choice import (
    AttentionCase,
    AttentionChoice,
    AttentionTable,
    TunedAttention,
    attention_candidates,
)
from ..heuristics.choose import gemm_candidates, legal_configs, ranked_choices
from ..heuristics.tuned import Choice, GemmProblem, TunedRow, TunedTable
from ..jit import toolchain
from . import measure
from .measure import Sampling
from .operations import AnyProblem
from .problems import WrongResultError

Wanted = GemmProblem | AttentionCase
AnyChoice = Choice | AttentionChoice

# What another configuration has to save of the time that one of the heuristic's takes. Problems without a row run the
# heuristic's, so programs have these kernels anyway; another one is one more to compile and to load.
_WORTH_A_KERNEL = 0.02


class _Asked:
    """Notes what a configuration is asked for, and knows none."""

    problem: Wanted | None = None

    def find(self, problem: Wanted) -> None:
        self.problem = self.problem or problem  # what follows may be parts of it


@dataclasses.dataclass(frozen=True)
class Trial:
    """A choice and how long it took; ``failure`` says why there is no time."""

    choice: AnyChoice
    time_us: float | None = None
    failure: str = ""


def asked_for(problem: AnyProblem) -> Wanted:
    """What the heuristic has to choose a configuration for when this package's function is called."""
    asked = _Asked()
    with tuned.replaced(asked), planning.planning():
        problem.to_meta().run()
    assert asked.problem
    return asked.problem


def candidates(wanted: Wanted, count: int) -> Sequence[AnyChoice]:
    """The heuristic's choice, then the best by its estimate among all that can be compiled."""
    if isinstance(wanted, AttentionCase):
        return attention_candidates(wanted)[:count]
    chosen = ranked_choices(wanted, gemm_candidates(wanted.kind, wanted.max_block_m))[0]
    others = (choice for choice in ranked_choices(wanted, legal_configs(wanted)) if choice != chosen)
    return [chosen, *(choice for choice, _ in zip(others, range(count - 1), strict=False))]


def tune(
    problem: AnyProblem, count: int, sampling: Sampling, report: Callable[[Trial], None]
) -> TunedRow | TunedAttention:
    """Measures ``count`` configurations; the first of ``best_first`` whose result is right.

    Args:
        report: called with each of them.

    Raises:
        RuntimeError: none computes the right result.
    """
    wanted = asked_for(problem)
    trials = []
    for choice in candidates(wanted, count):
        trials.append(_tried(problem, choice, sampling))
        report(trials[-1])
    for trial in best_first(wanted, trials):
        copy = problem.copy()
        try:
            with forced(trial.choice):
                timing = measure.time_calls([copy.run], sampling)
            error = copy.check()
        except WrongResultError as failure:
            report(Trial(trial.choice, failure=str(failure)))
            continue
        return _row(wanted, trial.choice, timing.median_us, error)
    raise RuntimeError(
        f"{problem.op} {problem.shape}: no configuration works; the first failed with {trials[0].failure}"
    )


def best_first(wanted: Wanted, trials: Iterable[Trial]) -> list[Trial]:
    """Those that have a time, the fastest first; of GEMM, configurations that aren't among ``gemm_candidates`` count as
    2% slower than they are."""
    heuristics = () if isinstance(wanted, AttentionCase) else gemm_candidates(wanted.kind, wanted.max_block_m)

    def cost(trial: Trial) -> float:
        return (trial.time_us or 0) * (1 if trial.choice.config in heuristics else 1 + _WORTH_A_KERNEL)

    return sorted((trial for trial in trials if trial.time_us), key=cost)


def _tried(problem: AnyProblem, choice: AnyChoice, sampling: Sampling) -> Trial:
    copies = sampling.copies(problem)
    try:
        with forced(choice):
            calls = [functools.partial(type(problem).run, copy) for copy in copies]
            return Trial(choice, measure.time_calls(calls, sampling, compute="sampled").median_us)
    # One that the compiler or the device refuses is none.
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


def load(path: Path, attention: bool = False) -> tuned.Table[Any]:
    """The table so far, of attention or GEMM; an empty one if there is none.

    Raises:
        tuned.TableError, OSError: the file can't be used.
    """
    table: type[tuned.Table[Any]] = AttentionTable if attention else TunedTable
    return table.read(path) if path.exists() else table()
