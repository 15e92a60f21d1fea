"""Notes in the log which choice was made for a problem, and why."""

from __future__ import annotations

import logging

import numpy as np

from ..problems.gemm_kind import changed
from ..runtime import session
from .cost import estimated_clocks, second_pass_clocks
from .forced import Forced
from .gemm_config import NUM_CUS
from .gemm_problem import Choice, GemmProblem
from .gemm_table import table

_log = logging.getLogger(__name__)


def note_gemm(problem: GemmProblem, m: int, choice: Choice) -> None:
    """Notes a choice for a problem, but with this ``m``, if somebody listens."""
    if not _log.isEnabledFor(logging.DEBUG):
        return
    problem = problem._replace(m=m, k_order=None)
    groups = f" groups={problem.num_groups}" if problem.num_groups > 1 else ""
    reason, microseconds = _reason(problem, choice), estimated_microseconds(problem, choice)
    _log.debug(
        "m=%d n=%d k=%d%s: %s, by %s, estimated at %.1f us",
        m,
        problem.n,
        problem.k,
        groups,
        choice,
        reason,
        microseconds,
    )


def note_attention(case: object, choice: object, reason: str) -> None:
    """Notes a choice for attention."""
    _log.debug("%s: %s, by %s", case, choice, reason)


def _reason(problem: GemmProblem, choice: Choice) -> str:
    if session.current().of(Forced).choice is not None:
        return "the user"
    tuned = table().find(problem._replace(num_cus=NUM_CUS))
    is_tuned = tuned and tuned._replace(config=changed(tuned.config, kind=choice.config.kind)) == choice
    return "the table" if is_tuned else "the cost model"


def estimated_microseconds(problem: GemmProblem, choice: Choice) -> float:
    """The cost model's time of a choice, at the clock that the device names."""
    clock_mhz = session.current().runtime.devices()[0].clock_khz / 1000
    if not choice.is_in_parts:
        return estimated_clocks(choice.config, problem) / clock_mhz
    parts = problem.in_parts(choice.splits)
    second_pass = second_pass_clocks(np.array([problem.m]), parts.n, choice.splits)[0]
    return float(estimated_clocks(choice.config, parts) + second_pass) / clock_mhz
