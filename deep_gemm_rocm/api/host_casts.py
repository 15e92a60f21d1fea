"""Casts by torch's operators, for tensors in the host's memory that no kernel can access.

Kernels give the same bits.

In FP8, a scale is the largest magnitude of its values over ``fp8_max``, and at least the least normal number, so that
zeros aren't divided by zero. Values over their scale are clamped to ``fp8_max`` and rounded to nearest, ties to even.
Both divisions are rounded to fp32.
"""

from __future__ import annotations

import itertools

import torch

from ..problems.cast import FP4_MAX, FP8_MAX
from ..problems.layout import FP8, align, ceil_div
from .fp4 import EXPONENTS_IN_INT, FP4_MAGNITUDES, ceil_to_ue8m0, pack_codes, pack_ue8m0_to_int

LEAST_SCALE = torch.finfo(torch.float32).tiny
_LEAST_AMAX_OF_FP4 = 1e-4  # DeepGEMM's, for blocks of zeros
_BETWEEN_FP4 = tuple((low + high) / 2 for low, high in itertools.pairwise(FP4_MAGNITUDES))


def cast_blocks(
    x: torch.Tensor, rows_of_scale: int, columns_of_scale: int, use_ue8m0: bool = False, fp8_max: float = FP8_MAX
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantises a matrix whose blocks of so many rows and columns share a scale, those at the edges as well.

    Returns:
        FP8 of the shape of ``x``, contiguous, and fp32 scales, one for each block.
    """
    rows, columns = x.shape
    row_blocks, column_blocks = ceil_div(rows, rows_of_scale), ceil_div(columns, columns_of_scale)
    padding = (0, column_blocks * columns_of_scale - columns, 0, row_blocks * rows_of_scale - rows)
    padded = torch.nn.functional.pad(x.detach().float(), padding)
    blocks = padded.view(row_blocks, rows_of_scale, column_blocks, columns_of_scale)
    quotients, scales = divide_by_scales(blocks, (1, 3), use_ue8m0, fp8_max)
    return quotients.view(padded.shape)[:rows, :columns].contiguous().to(FP8), scales[:, 0, :, 0]


def divide_by_scales(
    x: torch.Tensor, shared: tuple[int, ...], use_ue8m0: bool, fp8_max: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Divides fp32 values by scales that are shared along some dimensions, which the scales have with size 1."""
    scales = (x.abs().amax(dim=shared, keepdim=True) / fp8_max).clamp_min(LEAST_SCALE)
    if use_ue8m0:
        mantissa, exponent = torch.frexp(scales)  # a power of two has mantissa 0.5
        rounded = torch.ldexp(torch.ones_like(scales), exponent - (mantissa == 0.5).int())
        scales = torch.where(scales.isfinite(), rounded, scales)
    return (x / scales).clamp(-fp8_max, fp8_max), scales


def cast_to_fp4(
    x: torch.Tensor, use_ue8m0: bool, group: int, use_packed_ue8m0: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """What ``per_token_cast_to_fp4`` documents, for any ``group``."""
    rows, columns = x.shape
    groups = ceil_div(columns, group)
    values = torch.nn.functional.pad(x.detach().float(), (0, groups * group - columns)).view(rows, groups, group)
    scales = values.abs().amax(dim=2).clamp_min(_LEAST_AMAX_OF_FP4) / FP4_MAX
    if use_ue8m0:
        scales = ceil_to_ue8m0(scales)
    # DeepGEMM multiplies by the reciprocal, which rounds otherwise than a division.
    quotients = values * scales.reciprocal()[:, :, None]
    magnitudes, codes = quotients.abs(), torch.zeros_like(quotients, dtype=torch.uint8)
    for halfway in _BETWEEN_FP4:
        codes += ~(magnitudes <= halfway)  # true of NaNs
    codes |= ((quotients < 0) & (codes != 0)).to(torch.uint8) << 3
    if use_packed_ue8m0:
        fill = align(groups, EXPONENTS_IN_INT) - groups
        scales = pack_ue8m0_to_int(torch.nn.functional.pad(scales, (0, fill), value=1.0))
    return pack_codes(codes.view(rows, groups * group)[:, :columns]), scales
