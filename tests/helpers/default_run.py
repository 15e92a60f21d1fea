"""Which cases of a test the default run takes."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def some(cases: Iterable[Any], count: int) -> list[Any]:
    """Cases for ``pytest.mark.parametrize``: the default run takes ``count`` of them, evenly spread; others are slow.

    A case is one value, which may be a named tuple, or a tuple of values for as many names.
    """
    cases = list(cases)
    assert count < len(cases), "all cases are in the default run"
    chosen = {number * len(cases) // count for number in range(count)}
    return [case if number in chosen else _slow(case) for number, case in enumerate(cases)]


def these(cases: Iterable[Any], quick: Container[Any]) -> list[Any]:
    """The same, where the default run takes the cases that are in ``quick``."""
    return [case if case in quick else _slow(case) for case in cases]


def _slow(case: Any) -> Any:
    return pytest.param(*(case if type(case) is tuple else (case,)), marks=pytest.mark.slow)
