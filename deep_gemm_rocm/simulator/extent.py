"""Sizes and places in up to three dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_uint
from typing import TypeAlias

from ..checks import is_int

Extent: TypeAlias = "int | Sequence[int]"


def three(name: str, extent: Extent, rest: int = 1) -> tuple[c_uint, ...]:
    """x, y and z; missing ones are ``rest``.

    Raises:
        TypeError, ValueError: they are not one to three sizes of 32 bits.
    """
    extents = tuple(extent) if isinstance(extent, Sequence) else (extent,)
    if not all(map(is_int, extents)):
        raise TypeError(f"{name}: expected an int or up to three of them, got {extent!r}")
    if not 1 <= len(extents) <= 3 or any(not 0 <= size < 2**32 for size in extents):
        raise ValueError(f"{name}: expected one to three sizes below 2**32, got {extent}")
    return tuple(map(c_uint, extents + (rest,) * (3 - len(extents))))
