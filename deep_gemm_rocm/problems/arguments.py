"""Tensors together with the names of the public function's arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from ..checks import renaming


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
        check: takes the tensors, and raises an error that says what is wrong.
        of: the names of the tensors among the public function's arguments.
    """

    check: Callable[..., None]
    of: tuple[str, ...]

    def renamed(self, names: Mapping[str, str]) -> Contents:
        """The same check for a function that has other names for these tensors."""
        own = {name: names[name] for name in self.of if name in names}
        return Contents(renaming(self.check, own), tuple([own.get(name, name) for name in self.of])) if own else self


def present(**arguments: tuple[str, torch.Tensor | None]) -> Arguments:
    """The arguments whose tensors aren't None."""
    return {role: Argument(name, tensor) for role, (name, tensor) in arguments.items() if tensor is not None}
