"""Notes in the log which choice was made for a problem, and why."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

from ..problems.gemm_kind import changed
from ..runtime import session
from .cost import estimated_clocks, second_pass_clocks
from .forced import Forced
from .gemm_config import NUM_CUS
from .gemm_problem import Choice, GemmProblem, with_tail
from .gemm_table import table

_P = ParamSpec("_P")
_R = TypeVar("_R")
_log = logging.getLogger(__name__)


def noted(choose: Callable[_P, _R]) -> Callable[_P, _R]:
    """Notes the results of a function with the arguments of ``choose_gemm_config``, if somebody listens."""
    signature = inspect.signature(choose)

    @functools.wraps(choose)
    def noting(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        chosen = choose(*args, **kwargs)
        if _log.isEnabledFor(logging.DEBUG):
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            _note(chosen if isinstance(chosen, Choice) else Choice(chosen), **given.arguments)  # type: ignore[arg-type]
        return chosen

    return noting


def note_attention(case: object, choice: object, reason: str) -> None:
    """Notes a choice for attention."""
    _log.debug("%s: %s, by %s", case, choice, reason)


def _note(
    choice: Choice,
    kind: Any,
    m: int,
    n: int,
    k: int,
    num_cus: int,
    num_groups: int = 1,
    max_block_m: int = 256,
    max_block_n: int = 256,
) -> None:
    problem = GemmProblem(with_tail(kind, k), m, n, k, num_cus, num_groups, max_block_m, max_block_n=max_block_n)
    groups = f" groups={num_groups}" if num_groups > 1 else ""
    reason, microseconds = _reason(problem, choice), estimated_microseconds(problem, choice)
    _log.debug("m=%d n=%d k=%d%s: %s, by %s, estimated at %.1f us", m, n, k, groups, choice, reason, microseconds)


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
