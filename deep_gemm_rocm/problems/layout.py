"""How operands and their scales lie in memory."""

from __future__ import annotations

import torch

SCALE_BLOCK = 128  # values along K, and rows of a weight, that share a scale
FP8 = torch.float8_e4m3fnuz
OCP_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
TYPES = {  # kernels' names of them
    torch.float8_e4m3fnuz: "e4m3",
    torch.float8_e5m2fnuz: "e5m2",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.float32: "f32",
}
TMA_ALIGNMENT = 16  # bytes
_SCALE_BYTES = 4

Pair = tuple[torch.Tensor, torch.Tensor]  # data and scales


def ceil_div(x: int, y: int) -> int:
    """The smallest integer that is at least ``x / y``, for ``y > 0``."""
    return -(-x // y)


def align(x: int, y: int) -> int:
    """The smallest multiple of ``y`` that is at least ``x``, for ``y > 0``."""
    return ceil_div(x, y) * y


def mn_major_strides(dims: int, rows: int, columns: int) -> tuple[int, ...]:
    """Strides of fp32 scales, maybe with groups, in DeepGEMM's layout, see ``get_mn_major_tma_aligned_tensor``."""
    pitch = align(rows, TMA_ALIGNMENT // _SCALE_BYTES)
    return (pitch * columns, 1, pitch)[-dims:]


def data_and_scales(operand: Pair | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """An operand's data and scales; a single tensor has no scales."""
    return (operand, None) if isinstance(operand, torch.Tensor) else (operand[0], operand[1])
