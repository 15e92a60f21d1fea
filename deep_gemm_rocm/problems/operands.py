"""Brings operands from the other forms that public functions take into the form that kernels take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..checks import check_int, check_tensor
from .layout import Pair
from .recipe import num_scales


def pair_of(name: str, pair: Any, four_bits: str = "") -> Pair:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        came = f"a {type(pair).__name__}" + (f" of {len(pair)}" if isinstance(pair, (tuple, list)) else "")
        if four_bits:
            data, cast = ("int4", "repack_int4") if four_bits == "int4" else ("FP4", "per_token_cast_to_fp4")
            raise TypeError(f"{name} must be a pair ({data} data, scales) as {cast} returns it, got {came}")
        cast = "per_block_cast_to_fp8" if name == "b" else "per_token_cast_to_fp8"
        raise TypeError(f"{name} must be a pair (FP8 data, scales) as {cast} returns it, got {came}")
    return pair[0], pair[1]


def transposed(name: str, tensor: Any) -> torch.Tensor:
    """The tensor with its last two dimensions swapped; ValueError if it has fewer than two."""
    check_tensor(name, tensor)
    if tensor.dim() < 2:
        raise ValueError(f"{name} must be a matrix, got shape {tuple(tensor.shape)}")
    return tensor.mT


def transposed_pair(name: str, pair: Any) -> Pair:
    """``transposed`` for both the data and its scales."""
    data, scales = pair_of(name, pair)
    return transposed(f"{name}[0]", data), transposed(f"{name}[1]", scales)


def flattened_pair(name: str, pair: Any) -> Pair:
    """The data flattened and the scales transposed; ValueError if the data is not contiguous."""
    data, scales = pair_of(name, pair)
    check_tensor(f"{name}[0]", data)
    if not data.is_contiguous():
        raise ValueError(f"{name}[0] must be contiguous, got strides {data.stride()}; .contiguous() it")
    return data.view(-1), transposed(f"{name}[1]", scales)


def permuted(name: str, tensor: Any, letters: str, order: str, sizes: dict[str, int]) -> torch.Tensor:
    """Permutes a tensor's dimensions, named by ``letters``, into another ``order``.

    Args:
        sizes: sizes of known dimensions, by letter; the tensor must agree with them. Sizes of new letters are added.
    """
    check_tensor(name, tensor)
    shape = tuple(tensor.shape)
    if len(shape) != len(letters) or any(
        sizes.setdefault(letter, size) != size for letter, size in zip(letters, shape, strict=True)
    ):
        known = ", ".join(str(sizes.get(letter, letter)) for letter in letters)
        raise ValueError(f"{name} must have the dimensions {letters}, here ({known}), got shape {shape}")
    return tensor.permute([letters.index(letter) for letter in order])


def permuted_pair(
    name: str, pair: Any, letters: str, order: str, sizes: dict[str, int], shared: dict[str, int | None]
) -> Pair:
    """``permuted`` for both the data and its scales; ``shared`` says how many values of a dimension share a scale."""
    data, scales = pair_of(name, pair)
    data = permuted(f"{name}[0]", data, letters, order, sizes)
    sizes_of_scales = {letter: num_scales(sizes[letter], shared.get(letter, 1)) for letter in letters}
    return data, permuted(f"{name}[1]", scales, letters, order, sizes_of_scales)


def group_sizes(name: str, sizes: Any, unit: int) -> list[int]:
    """``sizes`` as ints, all multiples of ``unit``."""
    if isinstance(sizes, torch.Tensor) or not isinstance(sizes, Sequence):
        raise TypeError(f"{name} must be a list of ints, got {type(sizes).__name__}")
    checked = [check_int(f"{name}[{group}]", k, 0) for group, k in enumerate(sizes)]
    for group, k in enumerate(checked):
        if k % unit:
            raise ValueError(f"{name}[{group}] must be a multiple of {unit}, got {k}; pad the group with zeros")
    if not checked or sum(checked) >= 2**31:
        raise ValueError(
            f"{name} must have at least one group and a sum below 2^31, got {len(checked)}, {sum(checked)}"
        )
    return checked


def check_head_splits(value: Any) -> tuple[int, int, int]:
    """Returns the left, mid and right columns of a head.

    Raises:
        TypeError, ValueError: ``value`` is not three non-negative ints, or both left and right are 0.
    """
    if not isinstance(value, (tuple, list)) or len(value) != 3:
        raise TypeError(f"head_splits must be a tuple of 3 ints, got {value!r}")
    left, mid, right = (check_int(f"head_splits[{i}]", columns, 0) for i, columns in enumerate(value))
    if left + right == 0:
        raise ValueError(f"head_splits must have columns on the left or right, got {value}")
    return left, mid, right
