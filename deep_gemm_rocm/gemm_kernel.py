"""The kernel family behind every GEMM: its arguments and its launch."""

from __future__ import annotations

import math
from ctypes import Structure, c_int, c_int64, c_uint, c_void_p

import torch

from . import arrays, jit, settings, warm
from .contracts import Gemm
from .heuristics import GemmConfig
from .layout import SHUFFLED_ROWS, Pair, align, data_and_scales

_TEMPLATE = "gemm.hip.j2"
_FLOAT_BYTES = 4
_PART_ALIGNMENT = 4  # of a row of a part, see sum_of_parts.h
_MAX_WORKGROUPS = 2**22  # of a launch, with up to 512 threads each; a workgroup computes several tiles if need be


class Matrix(Structure):
    """The structure of the same name in gemm_arguments.h."""

    _fields_ = (("data", c_void_p), ("group_stride", c_int64), ("stride", c_int64))

    @classmethod
    def of(cls, tensor: torch.Tensor, major: str = "k") -> Matrix:
        if major == "shuffled":
            *group_stride, _, _, _, _, _ = tensor.stride()
            k = math.prod(tensor.shape[-4:]) // SHUFFLED_ROWS
            return cls(tensor.data_ptr(), *(group_stride or (0,)), k)
        *group_stride, row_stride, column_stride = tensor.stride()
        return cls(tensor.data_ptr(), *(group_stride or (0,)), row_stride if major == "k" else column_stride)


class _Scales(Structure):
    _fields_ = (("data", c_void_p), ("group_stride", c_int64), ("row_stride", c_int64), ("k_block_stride", c_int64))

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Scales:
        *group_stride, row_stride, k_block_stride = tensor.stride()
        # A single row's scales may be those of all rows, and a row's only scale that of all K.
        rows, k_blocks = tensor.shape[-2:]
        row_stride, k_block_stride = row_stride if rows > 1 else 0, k_block_stride if k_blocks > 1 else 0
        return cls(tensor.data_ptr(), *(group_stride or (0,)), row_stride, k_block_stride)


class _HeadSplits(Structure):
    _fields_ = (("left", c_int), ("mid", c_int), ("right", c_int))


class _SquareSums(Structure):
    _fields_ = (("data", c_void_p), ("group_stride", c_int64))

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _SquareSums:
        return cls(tensor.data_ptr(), tensor.stride(0) if tensor.dim() == 2 else 0)


class GemmArguments(Structure):
    """The structure of the same name in gemm_arguments.h."""

    _fields_ = (
        ("a", Matrix),
        ("b", Matrix),
        ("c", Matrix),
        ("d", Matrix),
        ("bias", Matrix),
        ("sfa", _Scales),
        ("sfb", _Scales),
        ("sfd", _Scales),
        ("grouped_layout", c_void_p),
        ("m", c_int),
        ("n", c_int),
        ("k", c_int),
        ("band_reciprocal", c_uint),  # set by the launch
        ("num_groups", c_int),
        ("num_summed", c_int),
        ("alignment", c_int),
        ("write_padding", c_int),
        ("max_workgroups", c_int),
        ("heads", _HeadSplits),
        ("square_sums", _SquareSums),
        ("parts", Matrix),
    )


_ARGTYPES = (c_void_p, c_void_p)  # GemmArguments by reference, and the stream


def launch_gemm(
    config: GemmConfig,
    gemm: Gemm,
    a: Pair | torch.Tensor,
    b: Pair | torch.Tensor,
    d: Pair | torch.Tensor,
    *,
    c: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    grouped_layout: torch.Tensor | None = None,
    write_padding: bool = False,
    head_splits: tuple[int, int, int] | None = None,
    square_sums: torch.Tensor | None = None,
) -> None:
    """Launches the kernel that ``config`` describes, on arguments that were checked.

    Args:
        config: its ``kind`` says what the others mean; see ``GemmKind`` and ``tile_source.h``.
        gemm: the problem's sizes.
        a, b, c, d: [rows, columns] or, with groups of their own, [groups, rows, columns]; with their scales where they
            have some.
        bias: [columns] or [groups, columns].
        grouped_layout: int32, where there are groups.
        write_padding: whether padding rows become zeros; else they aren't written.
        head_splits: how many columns of ``d`` each head has on the left, in the gap, and on the right.
        square_sums: fp32 [m] or [groups, m] to write the sums of the squares of ``a``'s rows into.
    """
    (a_data, sfa), (b_data, sfb) = data_and_scales(a), data_and_scales(b)
    d_data, sfd = data_and_scales(d)
    given = {
        "a": a_data,
        "b": b_data,
        "c": c,
        "d": d_data,
        "bias": bias,
        "sfa": sfa,
        "sfb": sfb,
        "sfd": sfd,
        "grouped_layout": grouped_layout,
        "sqr_sum": square_sums,
    }
    tensors = {name: tensor for name, tensor in given.items() if tensor is not None}
    # Before a compile; the others are on the same device.
    arrays.runtime_of(a_data).check_residence("a" if sfa is None else "a[0]", a_data)
    kernel = jit.get_kernel(_TEMPLATE, config.template_values, _ARGTYPES)
    parts = Matrix()
    if config.kind.sums_parts:
        stride = align(gemm.n, _PART_ALIGNMENT)
        scratch = warm.scratch(gemm.groups * gemm.m * stride * _FLOAT_BYTES, d_data)
        tensors |= {} if scratch.holder is None else {"parts": scratch.holder}
        parts = Matrix(scratch.address, gemm.m * stride, stride)
    arguments = GemmArguments(
        a=Matrix.of(a_data, config.kind.a_major),
        b=Matrix.of(b_data, config.kind.b_major),
        c=Matrix() if c is None else Matrix.of(c),
        d=Matrix.of(d_data),
        bias=Matrix() if bias is None else Matrix.of(bias.unsqueeze(-2)),
        sfa=_Scales() if sfa is None else _Scales.of(sfa),
        sfb=_Scales() if sfb is None else _Scales.of(sfb),
        sfd=_Scales() if sfd is None else _Scales.of(sfd),
        grouped_layout=None if grouped_layout is None else grouped_layout.data_ptr(),
        m=gemm.m,
        n=gemm.n,
        k=gemm.k,
        num_groups=gemm.groups,
        num_summed=len(a_data) if config.kind.grouping == "summed" else 1,
        alignment=settings.get_mk_alignment_for_contiguous_layout(),
        write_padding=write_padding,
        max_workgroups=_max_workgroups(config),
        heads=_HeadSplits(*head_splits) if head_splits else _HeadSplits(),
        square_sums=_SquareSums() if square_sums is None else _SquareSums.of(square_sums),
        parts=parts,
    )
    warm.launch(kernel, arguments, tensors, written=("d", "sfd", "sqr_sum"), aligned=("a", "b"))


def _max_workgroups(config: GemmConfig) -> int:
    num_cus = settings.get_num_sms()
    if num_cus < settings.device_num_cus():
        return num_cus
    # Ping-pong loads a workgroup's next tile beside the one that it computes.
    if config.kind.has_known_number_of_tiles and config.schedule != "pingpong":
        return _MAX_WORKGROUPS
    return num_cus * config.workgroups_per_cu
