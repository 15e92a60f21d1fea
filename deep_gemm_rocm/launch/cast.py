"""Arguments and launches of the kernels that quantise."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from ctypes import Structure, c_double, c_float, c_int, c_int64, c_uint, c_void_p

import torch

from ..heuristics.cast_config import CastConfig, RowCastConfig
from ..jit import Request
from ..problems.arguments import Argument, present
from ..problems.cast import FP4_MAX, check_size
from ..problems.layout import mn_major_strides
from .launch import Launch, Sizes

_MOST_LARGEST = 1024  # kMostLargest in cast_tiles.hip.j2
_MAGNITUDE_BYTES = 4
_ROW_VECTOR = 16  # neighbouring values of a lane in cast_row.h
_INSTRUCTION_BYTES = 16  # what a lane loads or stores with one instruction
_MOST_ROW_BYTES = 2**23  # so that 128 rows take less than 2 GiB


class StridedMatrix(Structure):
    """The structure of the same name in matrix_tile.h."""

    _fields_ = (("data", c_void_p), ("row_stride", c_int64), ("column_stride", c_int64), ("has_vectors", c_int64))


class Fp8Range(Structure):
    """The structure of the same name in fp8_scale.h."""

    _fields_ = (("reciprocal", c_double), ("largest", c_float), ("has_power_of_two_scales", c_int))


class CastArguments(Structure):
    """The structure of the same name in cast_arguments.h."""

    _fields_ = (
        ("x", StridedMatrix),
        ("residual", StridedMatrix),
        ("sum", StridedMatrix),
        ("weight", StridedMatrix),
        ("data", StridedMatrix),
        ("scales", StridedMatrix),
        ("x_group_stride", c_int64),
        ("data_group_stride", c_int64),
        ("scales_group_stride", c_int64),
        ("group_rows", c_void_p),
        ("largest", c_void_p),
        ("epsilon", c_double),
        ("columns_reciprocal", c_double),
        ("range", Fp8Range),
        ("rows", c_int),
        ("columns", c_int),
        ("num_groups", c_int),
        ("num_largest", c_int),
        ("num_tiles", c_int),
        ("column_tiles", c_int),
        ("row_parts", c_int),
        ("column_tiles_reciprocal", c_uint),
        ("alpha", c_float),
        ("limit", c_float),
    )


def cast_launch(
    config: CastConfig,
    x: torch.Tensor,
    data: torch.Tensor,
    scales: torch.Tensor,
    *,
    use_ue8m0: bool,
    fp8_max: float,
    group_rows: torch.Tensor | None = None,
    alpha: float = 0,
    limit: float = 0,
) -> Launch:
    """Describes the launch for checked arguments; all tensors are [M, K], or with groups [G, M, K].

    Args:
        x: what is quantised, or twice as many columns for ``silu_and_mul``.
        data, scales: new tensors.
        group_rows: int32 [G], or [1] for matrices without groups: how many rows are computed.
    """
    vector = config.lane_values
    arguments = _arguments(x, data, scales, use_ue8m0, fp8_max, vector)
    arguments.alpha, arguments.limit = alpha, limit
    arguments.x.has_vectors &= data.shape[-1] % vector == 0  # each half of the columns consists of vectors
    pointers = _pointers(x, data, scales) | present(group_rows=("masked_m", group_rows))
    request = Request("cast_tiles.hip.j2", config.template_values)
    return Launch(
        request,
        arguments,
        pointers,
        scratch={"largest": _MOST_LARGEST * _MAGNITUDE_BYTES} if config.shared == "tensor" else {},
        made={"data": data, "scales": scales},
        written=("data.data", "scales.data"),
        sizes=_sizes_of_rows(request, x, scales) if config.shared == "row_blocks" else None,
    )


def fp4_cast_launch(
    config: CastConfig, x: torch.Tensor, data: torch.Tensor, scales: torch.Tensor, *, use_ue8m0: bool
) -> Launch:
    """Describes the launch for a checked ``x`` [M, K]; the others are new tensors, ``data`` of two values to a byte."""
    arguments = _arguments(x, data, scales, use_ue8m0, FP4_MAX, config.lane_values)
    arguments.data = _matrix(data, config.lane_values // 2)
    arguments.columns = x.shape[-1]
    request = Request("cast_tiles.hip.j2", config.template_values)
    return Launch(
        request,
        arguments,
        _pointers(x, data, scales),
        made={"data": data, "scales": scales},
        written=("data.data", "scales.data"),
        sizes=_sizes_of_rows(request, x, scales),
    )


def row_cast_launch(
    config: RowCastConfig,
    x: torch.Tensor,
    data: torch.Tensor,
    scales: torch.Tensor,
    *,
    use_ue8m0: bool,
    fp8_max: float,
    group_rows: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    epsilon: float = 0,
    residual: torch.Tensor | None = None,
    total: torch.Tensor | None = None,
    as_one_row: bool = False,
) -> Launch:
    """Describes the launch for checked arguments; ``data``, ``scales`` and ``total``, the sum, are new tensors.

    Args:
        group_rows: int32 [1], how many rows are computed.
        as_one_row: whether the kernel takes all of ``x``, which is contiguous, as a single row.
    """
    rows, data_rows = (x.view(1, -1), data.view(1, -1)) if as_one_row else (x, data)
    arguments = _arguments(rows, data_rows, scales, use_ue8m0, fp8_max, _ROW_VECTOR)
    arguments.epsilon = epsilon
    pointers = _pointers(x, data, scales) | present(group_rows=("masked_m", group_rows))
    made = {"data": data, "scales": scales}
    if weight is not None:
        arguments.weight = _matrix(weight.expand(x.shape), _ROW_VECTOR)
        pointers["weight.data"] = Argument("weight", weight)
    if residual is not None and total is not None:
        arguments.residual, arguments.sum = _matrix(residual, _ROW_VECTOR), _matrix(total, _ROW_VECTOR)
        pointers |= {"residual.data": Argument("residual", residual), "sum.data": Argument("sum", total)}
        made["sum"] = total
    request = Request("cast_rows.hip.j2", config.template_values)
    return Launch(
        request,
        arguments,
        pointers,
        made=made,
        written=("data.data", "scales.data", "sum.data"),
        sizes=None if as_one_row else _sizes_of_rows(request, x, scales, *(["sum.data"] if "sum" in made else [])),
    )


def _sizes_of_rows(
    request: Request, x: torch.Tensor, scales: torch.Tensor, *more: str
) -> Callable[[int], Sizes] | None:
    """``Launch.sizes`` of a cast that has scales of rows; None for groups of rows.

    Args:
        more: paths of new tensors of as many rows as ``x``.
    """
    if x.dim() != 2:
        return None
    mn_major_columns = scales.shape[1] if scales.stride(1) != 1 else 0
    return functools.partial(_sizes, request, x.shape[1], mn_major_columns, ("data.data", "scales.data", *more))


def _sizes(request: Request, columns: int, mn_major_columns: int, made: tuple[str, ...], rows: int) -> Sizes:
    check_size(rows, columns)
    fields, strides = {"rows": rows}, {}
    if mn_major_columns:
        strides["scales.data"] = mn_major_strides(2, rows, mn_major_columns)
        fields["scales.row_stride"], fields["scales.column_stride"] = strides["scales.data"]
    return Sizes(request, fields, dict.fromkeys(made, rows), strides)


def _pointers(x: torch.Tensor, data: torch.Tensor, scales: torch.Tensor) -> dict[str, Argument]:
    return {"x.data": Argument("x", x), "data.data": Argument("data", data), "scales.data": Argument("scales", scales)}


def _matrix(tensor: torch.Tensor, vector: int) -> StridedMatrix:
    """The matrix as kernels take it: whether lanes can access vectors of neighbouring values, 16 bytes with an
    instruction, at offsets of 32 bits.
    """
    row_bytes = tensor.stride(-2) * tensor.itemsize
    vectors = tensor.stride(-1) == 1 and tensor.shape[-1] % vector == 0 and row_bytes < _MOST_ROW_BYTES
    aligned = row_bytes % min(vector * tensor.itemsize, _INSTRUCTION_BYTES) == 0
    return StridedMatrix(None, tensor.stride(-2), tensor.stride(-1), vectors and aligned)


def _arguments(
    x: torch.Tensor, data: torch.Tensor, scales: torch.Tensor, use_ue8m0: bool, fp8_max: float, vector: int
) -> CastArguments:
    groups, *group_strides = 1, 0, 0, 0
    if x.dim() == 3:
        groups, *group_strides = x.shape[0], x.stride(0), data.stride(0), scales.stride(0)
    largest = struct.unpack("f", struct.pack("f", fp8_max))[0]
    return CastArguments(
        x=_matrix(x, vector),
        data=_matrix(data, vector),
        scales=_matrix(scales, vector),
        **dict(zip(("x_group_stride", "data_group_stride", "scales_group_stride"), group_strides, strict=True)),
        range=Fp8Range(1 / largest, largest, use_ue8m0),
        columns_reciprocal=1 / data.shape[-1],
        rows=data.shape[-2],
        columns=data.shape[-1],
        num_groups=groups,
    )
