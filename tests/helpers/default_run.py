"""Which cases of a test the default run takes."""

from __future__ import annotations

from collections.abc import Iterable
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


def _slow(case: Any) -> Any:
    return pytest.param(*(case if type(case) is tuple else (case,)), marks=pytest.mark.slow)
