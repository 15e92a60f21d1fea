"""Tensors together with the names of the public function's arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch


class Argument(NamedTuple):
    """A tensor that was passed to a public function, or a view of it that begins at the same address.

    Attributes:
        name: the function's argument; ``a[0]`` is the first of the pair ``a``.
    """

    name: str
    tensor: torch.Tensor


Arguments = dict[str, Argument]  # by role in the problem: a, sfa, b, ...


class Contents(NamedTuple):
    """A check of tensors' contents, which calls with similar tensors have to repeat.

    Attributes:
        check: takes the tensors and raises an error that tells what is wrong.
        of: the names of the tensors among the public function's arguments.
    """

    check: Callable[..., None]
    of: tuple[str, ...]


def present(**arguments: tuple[str, torch.Tensor | None]) -> Arguments:
    """The arguments whose tensors aren't None."""
    return {role: Argument(name, tensor) for role, (name, tensor) in arguments.items() if tensor is not None}
