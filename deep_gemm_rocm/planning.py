"""Finds out which kernels calls need, without memory, by making the calls on tensors of the meta device.

While a thread plans, ``hip.runtime()`` takes such tensors and launches nothing, and ``jit.get_kernel`` notes what it is
asked for. Other threads don't notice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import NamedTuple


class Request(NamedTuple):
    """The arguments of a call of ``jit.get_kernel``."""

    template: str
    values: Mapping[str, int | bool | str]
    argtypes: tuple[type, ...]


Plan = dict[tuple[int | bool | str, ...], Request]  # by what distinguishes one kernel from another

_plan: ContextVar[Plan | None] = ContextVar("plan", default=None)

current = _plan.get  # a warm call asks twice, so no function of ours is in between


@contextlib.contextmanager
def planning() -> Iterator[Plan]:
    """Plans what this thread calls inside of it; gives the plan, which grows with each call that needs a new kernel."""
    plan: Plan = {}
    token = _plan.set(plan)
    try:
        yield plan
    finally:
        _plan.reset(token)
