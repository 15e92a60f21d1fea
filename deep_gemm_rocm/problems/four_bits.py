"""Checks of four-bit operands: e2m1, two values to a byte, and a scale for each 32 of them along K."""

from __future__ import annotations

from typing import Any

import torch

from ..checks import one_of
from .gemm_kind import GROUP
from .layout import SCALE_BLOCK, ceil_div
from .tensors import TILE_BYTES, TensorMeta, check_matrices, major_of

FOUR_BIT_DTYPES = (torch.int8, torch.uint8)
_PACKED = torch.int32  # four exponents
E8M0_DTYPES = (torch.uint8, *filter(None, (getattr(torch, "float8_e8m0fnu", None),)))
_SCALE_DTYPES = (torch.float32, *E8M0_DTYPES, _PACKED)


def is_four_bits(pair: Any) -> bool:
    """Whether a weight has four-bit data; not whether it is a good one."""
    if not isinstance(pair, (tuple, list)) or not pair:
        return False
    return isinstance(pair[0], torch.Tensor) and pair[0].dtype in FOUR_BIT_DTYPES


def type_of_scales(scales: TensorMeta) -> str:
    """The value of ``GemmKind.b_scale_type``."""
    return "f32" if scales.dtype == torch.float32 else "e8m0"


def check_k_of_four_bits(a_name: str, a: TensorMeta, b_name: str, b: TensorMeta) -> None:
    """Checks that a four-bit ``b`` fits ``a`` along K."""
    k = a.shape[-1]
    for name, meta in ((a_name, a), (b_name, b)):
        if major_of(meta) != "k":
            raise ValueError(
                f"{name} must be contiguous along K, its last dimension, got strides {meta.strides}; .contiguous() it"
            )
    if k != 2 * b.shape[-1]:
        raise ValueError(
            f"{b_name} must have half as many columns as {a_name}, two values to a byte, got {tuple(b.shape)} and "
            f"{tuple(a.shape)}"
        )
    if k % GROUP:
        raise ValueError(f"K must be a multiple of {GROUP}, got {k}; pad {a_name} and {b_name} with zeros")


def check_scales_of_groups(operand: str, scales: TensorMeta, shape: tuple[int, ...]) -> None:
    """Checks the scales of an operand whose data have ``shape``."""
    name = f"{operand}[1]"
    if scales.dtype not in _SCALE_DTYPES:
        raise TypeError(f"{name} must be {one_of(_SCALE_DTYPES)}, got {scales.dtype}")
    *rows, half_k = shape
    of_scale = SCALE_BLOCK if scales.dtype == _PACKED else GROUP
    expected = (*rows, ceil_div(2 * half_k, of_scale))
    if scales.shape != expected:
        meaning = "four exponents" if scales.dtype == _PACKED else "one scale"
        raise ValueError(
            f"{name} must have shape {expected}, {meaning} for each row and {of_scale} of K of {operand}[0], got "
            f"{tuple(scales.shape)}"
        )
    check_matrices(name, scales, len(rows) == 2)
    if scales.dtype != _PACKED and scales.shape[-1] > 1 and scales.strides[-1] != 1:
        raise ValueError(f"{name} must have contiguous rows, got strides {scales.strides}; .contiguous() it")
    extent = sum((size - 1) * stride for size, stride in zip(expected[-2:], scales.strides[-2:], strict=True) if size)
    if extent * scales.dtype.itemsize > TILE_BYTES:
        raise ValueError(f"{name} must lie within 2 GiB, got strides {scales.strides}; .contiguous() it")
