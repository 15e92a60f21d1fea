"""What else DeepGEMM's own tests import from ``deep_gemm.testing``."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def count_bytes(*tensors: Any) -> int:
    """The bytes of all elements of tensors, of tuples and lists of such, and of Nones, which have none."""
    return sum(
        count_bytes(*part) if isinstance(part, (tuple, list)) else part.numel() * part.element_size()
        for part in tensors
        if part is not None
    )


def assert_bitwise_equal(x: torch.Tensor, y: torch.Tensor, label: str = "") -> None:
    """
    Raises:
        AssertionError: shapes, dtypes or any bits differ. The message names the first element that does.
    """
    assert x.shape == y.shape, f"{label}: shapes {tuple(x.shape)} and {tuple(y.shape)}"
    assert x.dtype == y.dtype, f"{label}: {x.dtype} and {y.dtype}"
    bits_x, bits_y = (tensor.contiguous().flatten().view(torch.uint8) for tensor in (x, y))
    differ = (bits_x != bits_y).view(-1, x.element_size()).any(dim=1).nonzero()
    if len(differ):
        first = int(differ[0])
        place = tuple(int(index) for index in torch.unravel_index(torch.tensor(first), x.shape))
        raise AssertionError(
            f"{label}: {len(differ)} of {x.numel()} elements differ, the first at {place}: "
            f"{x.flatten()[first].item()} and {y.flatten()[first].item()}"
        )


def get_arch_major() -> int:
    """9, the major number of gfx942, real or simulated, and of the NVIDIA generation whose semantics functions have."""
    return 9


def test_filter(condition: Callable[[], bool]) -> Decorator:
    """A decorator: the function runs only if the condition holds when it is called, otherwise a line is printed."""

    def decorator(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> None:
            if condition():
                function(*args, **kwargs)
            else:
                print(f"{function.__name__}: skipped by its condition\n")

        return wrapper

    return decorator


test_filter.__test__ = False  # type: ignore[attr-defined]  # pytest would take it for a test


def ignore_env(name: str, condition: Callable[[], bool]) -> Decorator:
    """A decorator: the function runs without an environment variable, if the condition holds when it is called."""

    def decorator(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> None:
            kept = os.environ.pop(name, None) if condition() else None
            try:
                function(*args, **kwargs)
            finally:
                if kept is not None:
                    os.environ[name] = kept

        return wrapper

    return decorator
