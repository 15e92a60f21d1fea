"""Checks of the arguments of functions that quantise."""

from __future__ import annotations

from typing import Any

import torch

from ..checks import check_bool, check_int, check_positive, check_tensor
from .layout import FP8, SCALE_BLOCK, ceil_div
from .tensors import check_data, check_form, check_one_device

FP8_MAX = torch.finfo(FP8).max
FP4_MAX = 6.0
FP4_GROUPS = (32, SCALE_BLOCK)  # columns that share a scale
TYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
_MOST_TILES = 2**24 - 128  # workgroups of 256 threads in a grid, minus a window of CastOrder in cast_tile.h
_MOST_GROUPS = 2**16 - 1  # the grid's second dimension
_ROWS_OF_TILE, _COLUMNS_OF_TILE = 16, 128  # of the smallest tile
MAX_ROW = 2**16  # a workgroup's registers hold a row
MAX_COLUMNS = 2**23 - 1  # kernels address the rows of a tile with 32 bits


def check_castable(x: Any, use_ue8m0: Any, gran_k: Any, fp8_max: Any) -> None:
    """
    Raises:
        TypeError, ValueError, NotImplementedError: an argument is not as the casts document it.
    """
    if check_int("gran_k", gran_k, 1) != SCALE_BLOCK:
        raise NotImplementedError(f"gran_k must be {SCALE_BLOCK}, what kernels here have scales for, got {gran_k}")
    check_tensor("x", x)
    check_type("x", x)
    if x.dim() != 2:
        raise ValueError(f"x must be a matrix, got shape {tuple(x.shape)}")
    check_bool("use_ue8m0", use_ue8m0)
    check_fp8_max(fp8_max)


def check_castable_to_fp4(x: Any, use_ue8m0: Any, gran_k: Any, use_packed_ue8m0: Any) -> None:
    """
    Raises:
        TypeError, ValueError, NotImplementedError: an argument is not as ``per_token_cast_to_fp4`` documents it.
    """
    check_tensor("x", x)
    check_type("x", x)
    if x.dim() != 2:
        raise ValueError(f"x must be a matrix, got shape {tuple(x.shape)}")
    if x.shape[1] % 2:
        raise ValueError(f"x must have an even number of columns, two to a byte, got shape {tuple(x.shape)}")
    if check_int("gran_k", gran_k, 1) not in FP4_GROUPS:
        raise NotImplementedError(
            f"gran_k must be 32 or {SCALE_BLOCK}, what kernels here have scales for, got {gran_k}"
        )
    if check_bool("use_packed_ue8m0", use_packed_ue8m0) and not check_bool("use_ue8m0", use_ue8m0):
        raise ValueError("use_packed_ue8m0 needs use_ue8m0=True: only powers of two can be packed")
    check_bool("use_ue8m0", use_ue8m0)


def check_fp8_max(fp8_max: Any) -> None:
    """
    Raises:
        TypeError, ValueError: ``fp8_max`` is not a positive number of fp32 in the range of float8_e4m3fnuz.
    """
    check_positive("fp8_max", fp8_max, FP8_MAX)


def check_type(name: str, x: torch.Tensor) -> None:
    """
    Raises:
        TypeError: kernels don't quantise values of this dtype.
    """
    if x.dtype not in TYPES:
        raise TypeError(f"{name} must be bfloat16, float16 or float32, got {x.dtype}")


def check_size(rows: int, columns: int) -> None:
    """
    Raises:
        ValueError: kernels can't address so many rows or columns.
    """
    tiles = ceil_div(rows, _ROWS_OF_TILE) * ceil_div(columns, _COLUMNS_OF_TILE)
    if columns > MAX_COLUMNS or tiles > _MOST_TILES:
        raise ValueError(
            f"x must have at most {MAX_COLUMNS} columns and {_MOST_TILES} tiles of {_ROWS_OF_TILE} x "
            f"{_COLUMNS_OF_TILE}, got shape ({rows}, {columns}); cast it in parts"
        )


def check_row(columns: int) -> None:
    """
    Raises:
        ValueError: a workgroup's registers don't hold a row of so many columns.
    """
    if columns > MAX_ROW:
        raise ValueError(f"x must have at most {MAX_ROW} columns, which a workgroup can hold, got {columns}")


def check_same_form(name: str, tensor: Any, x: torch.Tensor) -> None:
    """
    Raises:
        TypeError, ValueError: ``tensor`` has not the dtype and shape of ``x``.
    """
    check_data(name, tensor)
    if tensor.dtype != x.dtype:
        raise TypeError(f"{name} must be {str(x.dtype).removeprefix('torch.')} as x, got {tensor.dtype}")
    if tensor.shape != x.shape:
        raise ValueError(f"{name} must have the shape of x, {tuple(x.shape)}, got {tuple(tensor.shape)}")


def check_normed(x: Any, weight: Any, residual: Any) -> None:
    """
    Raises:
        TypeError, ValueError: a tensor is not as ``rms_norm_cast_to_fp8`` documents it.
    """
    check_data("x", x)
    check_type("x", x)
    if x.dim() != 2:
        raise ValueError(f"x must be a matrix, got shape {tuple(x.shape)}")
    check_row(x.shape[1])
    check_data("weight", weight)
    if weight.dtype not in (x.dtype, torch.float32):
        raise TypeError(f"weight must be float32 or have the dtype of x, {x.dtype}, got {weight.dtype}")
    check_form("weight", weight, weight.dtype, (x.shape[1],))
    tensors = {"x": x, "weight": weight}
    if residual is not None:
        check_same_form("residual", residual, x)
        tensors["residual"] = residual
    check_one_device(tensors)


def check_activated(x: Any, *, masked: bool) -> None:
    """
    Raises:
        TypeError, ValueError: ``x`` is not as ``silu_and_mul_cast_to_fp8`` documents it.
    """
    check_data("x", x)
    check_type("x", x)
    if x.dim() != (3 if masked else 2) or x.shape[-1] % 2:
        wanted = "[G, M, 2 I] with masked_m" if masked else "[M, 2 I] without masked_m"
        raise ValueError(f"x must be {wanted}, got shape {tuple(x.shape)}")
    if masked and x.shape[0] > _MOST_GROUPS:
        raise ValueError(f"x must have at most {_MOST_GROUPS} groups, got {x.shape[0]}")
    check_size(x.shape[-2], x.shape[-1])
