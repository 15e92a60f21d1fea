"""FP8 casts by torch's operators, for tensors in the host's memory that no kernel can access.

Kernels give the same bits.

A scale is the largest magnitude of its values over ``fp8_max``, and at least the least normal number, so that zeros
aren't divided by zero. Values over their scale are clamped to ``fp8_max`` and rounded to nearest, ties to even. Both
divisions are rounded to fp32.
"""

from __future__ import annotations

import torch

from ..problems.cast import FP8_MAX
from ..problems.layout import FP8, ceil_div

LEAST_SCALE = torch.finfo(torch.float32).tiny


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
