"""How operands and their scales lie in memory."""

from __future__ import annotations

import torch

SCALE_BLOCK = 128  # values along K, and rows of a weight, that share a scale
FP8 = torch.float8_e4m3fnuz

Pair = tuple[torch.Tensor, torch.Tensor]  # data and scales


def ceil_div(x: int, y: int) -> int:
    """The smallest integer that is at least ``x / y``, for ``y > 0``."""
    return -(-x // y)


def align(x: int, y: int) -> int:
    """The smallest multiple of ``y`` that is at least ``x``, for ``y > 0``."""
    return ceil_div(x, y) * y


def data_and_scales(operand: Pair | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """An operand's data and scales; a single tensor has no scales."""
    return (operand, None) if isinstance(operand, torch.Tensor) else (operand[0], operand[1])
