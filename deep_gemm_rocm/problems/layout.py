"""How operands and their scales lie in memory."""

from __future__ import annotations

import torch

SCALE_BLOCK = 128  # values along K, and rows of a weight, that share a scale
FP8 = torch.float8_e4m3fnuz

Pair = tuple[torch.Tensor, torch.Tensor]  # data and scales

# A shuffled weight has chunks of 16 bytes of a row. The chunks of 16 rows are adjacent; 8 of these make a K-block.
SHUFFLED_ROWS = 16
SHUFFLED_BYTES = 16
SHUFFLED_CHUNKS = 8


def ceil_div(x: int, y: int) -> int:
    """The smallest integer that is at least ``x / y``, for ``y > 0``."""
    return -(-x // y)


def align(x: int, y: int) -> int:
    """The smallest multiple of ``y`` that is at least ``x``, for ``y > 0``."""
    return ceil_div(x, y) * y


def data_and_scales(operand: Pair | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """An operand's data and scales; a single tensor has no scales."""
    return (operand, None) if isinstance(operand, torch.Tensor) else (operand[0], operand[1])


def unshuffled_shape(shape: torch.Size, dtype: torch.dtype) -> tuple[int, ...] | None:
    """The shape of the weight before ``shuffle_weight``; None if ``shape`` is not that of a shuffled weight."""
    values = SHUFFLED_BYTES // dtype.itemsize
    *groups, row_blocks, k_blocks, chunks, rows, inner = shape if len(shape) in (5, 6) else (0,) * 5
    if (chunks, rows, inner) != (SHUFFLED_CHUNKS, SHUFFLED_ROWS, values):
        return None
    return (*groups, row_blocks * rows, k_blocks * chunks * values)
