"""Finds the kernels that calls need, by making the calls on meta tensors, which need no memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from ..jit import Request

Plan = dict[tuple[int | bool | str, ...], Request]  # by ``Request.key``

_plan: ContextVar[Plan | None] = ContextVar("plan", default=None)

current = _plan.get  # without a wrapper, since every repeated call asks for it


@contextlib.contextmanager
def planning() -> Iterator[Plan]:
    """Inside, launches of this thread only add their kernel to the plan; tensors may be meta tensors."""
    plan: Plan = {}
    token = _plan.set(plan)
    try:
        yield plan
    finally:
        _plan.reset(token)
