"""Notes in the log which choice was made for a problem, and why."""

from __future__ import annotations

import logging

import numpy as np

from ..problems.gemm_kind import changed
from ..runtime import session
from .cost import estimated_clocks, second_pass_clocks
from .tables import Choice, GemmProblem

_log = logging.getLogger(__name__)


def note_gemm(problem: GemmProblem, choice: Choice, reason: str) -> None:
    """Notes a choice with its estimated time. It costs next to nothing unless somebody listens."""
    if _log.isEnabledFor(logging.DEBUG):
        groups = f" groups={problem.num_groups}" if problem.num_groups > 1 else ""
        _log.debug(
            "m=%d n=%d k=%d%s: %s, by %s, estimated at %.1f us",
            *(problem.m, problem.n, problem.k, groups, choice, reason, _microseconds(problem, choice)),
        )


def note_attention(case: object, choice: object, reason: str) -> None:
    """Notes a choice."""
    _log.debug("%s: %s, by %s", case, choice, reason)


def _microseconds(problem: GemmProblem, choice: Choice) -> float:
    """The cost model's time, at the clock that the device names."""
    clock_mhz = session.current().runtime.devices()[0].clock_khz / 1000
    if choice.splits == 1:
        return estimated_clocks(choice.config, problem) / clock_mhz
    parts = problem.in_parts(choice.splits)
    second_pass = second_pass_clocks(np.array([problem.m]), problem.n, choice.splits)[0]
    return float(estimated_clocks(changed(choice.config, kind=parts.kind), parts) + second_pass) / clock_mhz
