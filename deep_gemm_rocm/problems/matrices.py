"""Checks of a GEMM's tensors one by one, by their types, shapes and strides."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..checks import check_tensor, one_of, share_memory
from .layout import OCP_DTYPES
from .tensors import ALIGNMENT, overlaps

# Kernels address a tile, of at most TILE_ROWS rows, with 32-bit offsets from its first row. The 4 KiB below 2 GiB are
# for prefetches of K-blocks past the last one, whose offsets must not wrap around.
TILE_ROWS = 256
TILE_BYTES = 2**31 - 2**12
_K_BLOCK_BYTES = 128  # also the most columns of a K-block, which row-major operands address with 32-bit offsets

FP8_DTYPES = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
OUTPUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# How functions that take four-bit weights of these dtypes are named.
_FUNCTIONS_FOR = {torch.int8: "fp4", torch.uint8: "fp4", torch.int64: "fp4", torch.int32: "int4", torch.int16: "int4"}


class TensorMeta(NamedTuple):
    """The properties of a tensor that the cached checks depend on."""

    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]
    device: torch.device


def meta_of(name: str, tensor: Any) -> TensorMeta:
    check_plain(name, tensor)
    return TensorMeta(tensor.dtype, tensor.shape, tensor.stride(), tensor.device)


def check_plain(name: str, tensor: Any) -> None:
    """Checks that an argument is a tensor with strides and values of its own, and that no gradient is asked for."""
    if type(tensor) is not torch.Tensor or tensor.layout != torch.strided or tensor.is_neg():
        check_tensor(name, tensor)
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{name} must not require grad, for this GEMM has no backward; .detach() it or call under torch.no_grad()"
        )


def check_dtype(name: str, meta: TensorMeta, dtypes: tuple[torch.dtype, ...]) -> None:
    if meta.dtype not in dtypes:
        advice = ""
        if meta.dtype in OCP_DTYPES and dtypes == FP8_DTYPES:
            advice = "; gfx942 has another FP8 format, convert data and scales with convert_fp8_fn_to_fnuz"
        elif meta.dtype in _FUNCTIONS_FOR and dtypes[0] in (*FP8_DTYPES, *_FUNCTIONS_FOR):
            advice = f"; functions with {_FUNCTIONS_FOR[meta.dtype]} in their names take such weights"
        raise TypeError(f"{name} must be {one_of(dtypes)}, got {meta.dtype}{advice}")


def check_same_type(a_name: str, a: TensorMeta, b_name: str, b: TensorMeta) -> None:
    """Checks that both operands have one dtype; the two FP8 types may be mixed."""
    if a.dtype != b.dtype and a.dtype not in FP8_DTYPES:
        raise TypeError(f"{b_name} must have the dtype of {a_name}, {a.dtype}, got {b.dtype}")


def check_same_device(name: str, meta: TensorMeta, first_name: str, first: TensorMeta) -> None:
    if meta.device != first.device:
        raise ValueError(f"{name} must be on the device of {first_name}, {first.device}, got {meta.device}")


def major_of(meta: TensorMeta) -> str:
    """The contiguous dimension of an operand, as in ``GemmKind``."""
    return "rows" if meta.strides[-2] == 1 != meta.strides[-1] else "k"


def check_matrices(name: str, meta: TensorMeta, grouped: bool) -> None:
    if len(meta.shape) != 2 + grouped:
        expected = "one matrix for each group, three dimensions" if grouped else "a matrix"
        raise ValueError(f"{name} must be {expected}, got shape {tuple(meta.shape)}")
    rows, columns = meta.shape[-2:]
    tile_bytes = (min(rows - 1, TILE_ROWS - 1) * meta.strides[-2] + columns) * meta.dtype.itemsize
    if max(meta.shape) >= 2**31 or (tile_bytes > TILE_BYTES and major_of(meta) == "k"):
        raise ValueError(
            f"{name} must have dimensions below 2^31 and {TILE_ROWS} rows within 2 GiB, "
            f"got shape {tuple(meta.shape)} and strides {meta.strides}; .contiguous() it"
        )


def check_operand(name: str, meta: TensorMeta, dtypes: tuple[torch.dtype, ...], grouped: bool) -> torch.Size:
    check_dtype(name, meta, dtypes)
    check_matrices(name, meta, grouped)
    rows, k = meta.shape[-2:]
    stride, stride_k = meta.strides[-2:]
    if 0 in meta.shape[:-1]:
        return meta.shape  # without rows, it may have any strides; they are 0 if it comes from NumPy
    if major_of(meta) == "rows":
        check_contiguous_rows(name, meta)
        if stride_k < rows or (_K_BLOCK_BYTES * stride_k > TILE_BYTES):
            raise ValueError(
                f"columns of {name} must not overlap, and {_K_BLOCK_BYTES} of them be within 2 GiB, "
                f"got strides {meta.strides}; .contiguous() it"
            )
        return meta.shape
    if k > 1 and stride_k != 1:
        raise ValueError(
            f"{name} must be contiguous along K, its last dimension, or along its rows, got strides {meta.strides}; "
            ".contiguous() it"
        )
    if rows > 1 and stride < k:
        raise ValueError(f"rows of {name} must not overlap, got strides {meta.strides}; .contiguous() it")
    return meta.shape


def check_contiguous_rows(name: str, meta: TensorMeta) -> None:
    """Checks that 4-byte loads cover contiguous rows exactly."""
    unit = ALIGNMENT // 4 // meta.dtype.itemsize
    if meta.shape[-2] % unit:
        raise ValueError(
            f"{name} must have a multiple of {unit} rows where these are contiguous in memory, got shape "
            f"{tuple(meta.shape)} and strides {meta.strides}; pad it, or .contiguous() it"
        )


def check_aligned_lines(name: str, meta: TensorMeta) -> None:
    """Checks that contiguous lines, and groups, start at multiples of the 16 bytes that a lane loads."""
    copy = ".contiguous() it"
    # A copy has the same columns where the caller's matrix is this one transposed.
    lines = (-2, "rows", copy) if major_of(meta) == "k" else (-1, "columns", "pad them, or make K contiguous")
    for dimension, what, advice in (lines, (-3, "groups", copy)):
        if len(meta.shape) < -dimension or meta.shape[dimension] <= 1:
            continue
        if meta.strides[dimension] * meta.dtype.itemsize % ALIGNMENT:
            raise ValueError(
                f"{what} of {name} must be a multiple of {ALIGNMENT} bytes apart, got strides {meta.strides}; {advice}"
            )


def check_aligned_start(name: str, operand: torch.Tensor) -> None:
    if operand.data_ptr() % ALIGNMENT:
        raise ValueError(
            f"{name} must start at a multiple of {ALIGNMENT} bytes, got {operand.data_ptr():#x}; .clone() it"
        )


def check_scales(name: str, meta: TensorMeta, shape: tuple[int, ...], meaning: str) -> None:
    if meta.dtype != torch.float32:
        raise TypeError(f"{name} must be float32, got {meta.dtype}")
    if meta.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, {meaning}, got {tuple(meta.shape)}")
    check_matrices(name, meta, len(shape) == 3)


def check_layout(name: str, meta: TensorMeta, size: int, meaning: str) -> None:
    if meta.dtype != torch.int32:
        raise TypeError(f"{name} must be int32, got {meta.dtype}")
    if meta.shape != (size,):
        raise ValueError(f"{name} must have shape ({size},), one number for each {meaning}, got {tuple(meta.shape)}")
    if size > 1 and meta.strides != (1,):
        raise ValueError(f"{name} must be contiguous, got strides {meta.strides}; .contiguous() it")


def check_output(name: str, meta: TensorMeta, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> None:
    if meta.dtype not in dtypes:
        raise TypeError(f"{name} must be {one_of(dtypes)}, got {meta.dtype}")
    if meta.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(meta.shape)}")
    if len(shape) > 1:
        check_matrices(name, meta, len(shape) == 3)
    if (0 not in shape and shape[-1] > 1 and meta.strides[-1] != 1) or overlaps(meta.shape, meta.strides):
        raise ValueError(f"{name} must have contiguous rows that don't overlap, got strides {meta.strides}")


def check_no_shared_memory(d_name: str, tensors: dict[str, torch.Tensor]) -> None:
    """Checks that the output shares no memory with the other tensors; c may be d itself."""
    if tensors[d_name].is_meta:
        return
    d = tensors[d_name]
    for name, tensor in tensors.items():
        is_d = name == "c" and tensor.data_ptr() == d.data_ptr() and tensor.stride() == d.stride()
        if name != d_name and not is_d and share_memory(d, tensor):
            raise ValueError(f"{d_name} must not share memory with {name}, which is accessed while {d_name} is written")


def check_extent(name: str, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> None:
    """Checks that kernels reach each matrix of these last two dimensions with 32-bit offsets.

    Raises:
        ValueError: it is larger.
    """
    extent = sum((size - 1) * stride for size, stride in zip(shape[-2:], strides[-2:], strict=True) if size)
    if extent * itemsize > TILE_BYTES:
        raise ValueError(f"{name} must lie within 2 GiB, got strides {strides}; .contiguous() it")
