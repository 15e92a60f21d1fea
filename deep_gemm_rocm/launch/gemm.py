"""Arguments and launches of the GEMM kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ctypes import Structure, c_float, c_int, c_int64, c_uint, c_void_p
from math import inf
from typing import NamedTuple

import torch

from ..heuristics import GemmConfig
from ..heuristics.gemm_problem import Choice
from ..jit import Request
from ..problems.arguments import Arguments
from ..problems.gemm_kind import PARTS_OF_B, Gemm, changed
from ..problems.layout import SCALE_BLOCK, align
from ..runtime import session, settings
from .launch import Launch, Sizes

_TEMPLATE = "gemm.hip.j2"
_FLOAT_BYTES = 4
_EXPONENTS = 4  # in an int32
_PART_ALIGNMENT = 4  # the columns of a part are padded to a multiple of this, see sum_of_parts.h
_MAX_WORKGROUPS = 2**22  # of up to 512 threads in a launch; with more tiles, a workgroup computes several


class Matrix(Structure):
    """The structure of the same name in gemm_arguments.h."""

    _fields_ = (("data", c_void_p), ("group_stride", c_int64), ("stride", c_int64))

    def take_strides(self, tensor: torch.Tensor, major: str = "k", unit: int = 1) -> None:
        """Takes the strides of a matrix or, with groups, of a batch of matrices, times ``unit``."""
        strides = tensor.stride()
        if major == "k":
            self.stride = unit * strides[-2]
        else:
            # With a K of 1 the stride may be anything, but kernels also load k = 1, which must be out of bounds.
            self.stride = unit * (strides[-1] if tensor.shape[-1] > 1 else tensor.shape[-2])
        if len(strides) > 2:
            self.group_stride = unit * strides[0]

    def take_strides_of_rows(self, rows: torch.Tensor) -> None:
        """Takes the strides of one row or, with groups, of one row for each."""
        if rows.dim() > 1:
            self.group_stride = rows.stride(0)


class Scales(Structure):
    """The structure of the same name in gemm_arguments.h."""

    _fields_ = (("data", c_void_p), ("group_stride", c_int64), ("row_stride", c_int64), ("k_block_stride", c_int64))

    def take_strides_of_groups(self, tensor: torch.Tensor, group_k: int, are_exponents: bool) -> None:
        """Takes the strides of scales of ``group_k`` values, in units of what kernels load: numbers or exponents.

        ``k_block_stride`` is from the scales of 128 values of K to the next.
        """
        strides = tensor.stride()
        is_packed = are_exponents and tensor.dtype == torch.int32
        unit = _EXPONENTS if is_packed else 1
        self.row_stride = unit * strides[-2]
        self.k_block_stride = SCALE_BLOCK // group_k * strides[-1]
        if len(strides) > 2:
            self.group_stride = unit * strides[0]

    def take_strides(self, tensor: torch.Tensor) -> None:
        """Takes the strides of scales; 0 in a dimension of size 1, so that its only scale is used everywhere."""
        strides, shape = tensor.stride(), tensor.shape
        self.row_stride = strides[-2] if shape[-2] > 1 else 0
        self.k_block_stride = strides[-1] if shape[-1] > 1 else 0
        if len(strides) > 2:
            self.group_stride = strides[0]


class HeadSplits(Structure):
    """The structure of the same name in gemm_arguments.h."""

    _fields_ = (("left", c_int), ("mid", c_int), ("right", c_int))


class SquareSums(Structure):
    """The structure of the same name in gemm_arguments.h."""

    _fields_ = (("data", c_void_p), ("group_stride", c_int64))

    def take_strides(self, tensor: torch.Tensor) -> None:
        """Takes the stride between the sums of consecutive parts of K."""
        if tensor.dim() == 2:
            self.group_stride = tensor.stride(0)


class GateArguments(Structure):
    """The structure of the same name in activation.h."""

    _fields_ = (("alpha", c_float), ("limit", c_float), ("added_to_up", c_float))

    @classmethod
    def of(cls, alpha: float | None, limit: float | None) -> GateArguments:
        """The numbers of ``clamped_silu_and_mul`` for those of ``fused_moe``."""
        return cls(1 if alpha is None else alpha, inf if limit is None else limit, alpha is not None)


class GemmArguments(Structure):
    """The structure of the same name in gemm_arguments.h."""

    _fields_ = (
        ("a", Matrix),
        ("b", Matrix),
        ("c", Matrix),
        ("d", Matrix),
        ("bias", Matrix),
        ("sfa", Scales),
        ("sfb", Scales),
        ("sfd", Scales),
        ("grouped_layout", c_void_p),
        ("m", c_int),
        ("n", c_int),
        ("k", c_int),
        ("band_reciprocal", c_uint),  # set by dg_launch
        ("num_groups", c_int),
        ("num_summed", c_int),
        ("alignment", c_int),
        ("write_padding", c_int),
        ("max_workgroups", c_int),
        ("heads", HeadSplits),
        ("square_sums", SquareSums),
        ("parts", Matrix),
        ("row_indices", c_void_p),
        ("signals", c_void_p),
        ("gate", GateArguments),
    )


_WITH_STRIDES = ("c", "d", "sfa", "sfb", "sfd", "square_sums")
_POINTERS = {name: f"{name}.data" for name in ("a", "b", "bias", *_WITH_STRIDES)} | {
    name: name for name in ("grouped_layout", "row_indices", "signals")
}


def gemm_launch(
    config: GemmConfig,
    gemm: Gemm,
    arguments: Arguments,
    *,
    write_padding: bool = False,
    alignment: int | None = None,
    head_splits: tuple[int, int, int] | None = None,
    clamps: tuple[float | None, float | None] | None = None,
    made: dict[str, torch.Tensor] | None = None,
) -> Launch:
    """Describes the launch of ``config``'s kernel.

    Args:
        config: the configuration; its ``kind`` decides how the other arguments are used, see ``GemmKind``.
        gemm: the problem's sizes.
        arguments: as ``check_gemm`` returns them: matrices [rows, columns] or, if grouped, [groups, rows, columns].
        write_padding: whether zeros are written into padding rows of the psum layout; otherwise they aren't written.
        alignment: where groups of the psum layout start; None for the session's.
        head_splits: columns of each head in ``d``: left, in the gap, and right.
        clamps: ``alpha`` and ``limit`` of the activation ``clamped_silu_and_mul``, see ``fused_moe``; None with others.
        made: see ``Launch``.
    """
    kind = config.kind
    a, b = arguments["a"].tensor, arguments["b"].tensor
    filled = GemmArguments(
        m=gemm.m,
        n=gemm.n,
        k=gemm.k,
        num_groups=gemm.groups,
        num_summed=len(a) if kind.grouping == "summed" else 1,
        alignment=settings.values().alignment if alignment is None else alignment,
        write_padding=write_padding,
        max_workgroups=_max_workgroups(config),
        heads=head_splits or (),
    )
    filled.a.take_strides(a, kind.a_major)
    filled.b.take_strides(b, kind.b_major, b.itemsize if kind.widens_b else 1)
    for role in _WITH_STRIDES:
        if role in arguments:
            getattr(filled, role).take_strides(arguments[role].tensor)
    if kind.widens_b:
        filled.sfb.take_strides_of_groups(arguments["sfb"].tensor, kind.group_k, kind.b_scale_type == "e8m0")
    if clamps is not None:
        filled.gate = GateArguments.of(*clamps)
    if "bias" in arguments:
        filled.bias.take_strides_of_rows(arguments["bias"].tensor)
    *strides, bytes_of_parts = _parts(config, gemm)
    filled.parts = (None, *strides)
    return Launch(
        Request(_TEMPLATE, config.template_values),
        filled,
        {_POINTERS[role]: argument for role, argument in arguments.items()},
        {"parts.data": bytes_of_parts} if bytes_of_parts else {},
        made or {},
        written=("d.data", "sfd.data", "square_sums.data", "signals"),
        aligned=("a.data", "b.data"),
        column_strides={"sfa.data": "sfa.k_block_stride"},
    )


def _parts(config: GemmConfig, gemm: Gemm) -> tuple[int, int, int]:
    """For split-K: the strides between parts and between their rows, and the bytes of all parts. Else zeros."""
    kind = config.kind
    if not kind.sums_parts:
        return 0, 0, 0
    row = align(gemm.n * PARTS_OF_B[kind.activation], _PART_ALIGNMENT)
    return gemm.m * row, row, gemm.groups * gemm.m * row * _FLOAT_BYTES


class _SizesOfChoice(NamedTuple):
    """The part of ``SizesOfGemm`` that depends on a choice only.

    Attributes:
        fields: as of ``Sizes``.
        row: elements in a row of a part, 0 if K isn't split.
        groups: how many parts or groups there are.
    """

    choice: Choice
    kernel: Request
    fields: Mapping[str, int]
    row: int
    groups: int


class SizesOfGemm:
    """``Launch.sizes`` of a GEMM whose rows are contiguous in all but scales."""

    def __init__(self, gemm: Gemm, choices: Callable[[int], Choice]) -> None:
        """
        Args:
            gemm: the problem for any number of rows.
            choices: how it is computed, by the number of rows.
        """
        self._gemm, self._choices = gemm, choices
        self._last: _SizesOfChoice | None = None

    def __call__(self, rows: int, strides_of_scales: tuple[int, ...] = ()) -> Sizes:
        """
        Args:
            strides_of_scales: of ``a``, if these are no arguments of the public function.
        """
        return self.of(self._choices(rows), rows, strides_of_scales)

    def of(self, choice: Choice, rows: int, strides_of_scales: tuple[int, ...] = ()) -> Sizes:
        """The sizes for a choice."""
        last = self._last
        if last is None or last.choice is not choice:
            last = self._last = self._sizes_of(choice)
        part = rows * last.row
        fields = {**last.fields, "m": rows, "parts.group_stride": part}
        if strides_of_scales:
            fields["sfa.row_stride"], fields["sfa.k_block_stride"] = strides_of_scales
        scratch = {"parts.data": last.groups * part * _FLOAT_BYTES} if part else {}
        return Sizes(last.kernel, fields, {"d.data": rows}, {}, scratch)

    def _sizes_of(self, choice: Choice) -> _SizesOfChoice:
        config, gemm = computed(choice, self._gemm)
        _, row, _ = _parts(config, gemm)
        fields = {"num_groups": gemm.groups, "max_workgroups": _max_workgroups(config), "parts.stride": row}
        return _SizesOfChoice(choice, Request(_TEMPLATE, config.template_values), fields, row, gemm.groups)


def split_gemm_launch(
    config: GemmConfig,
    gemm: Gemm,
    arguments: Arguments,
    num_splits: int,
    *,
    made: dict[str, torch.Tensor] | None = None,
) -> Launch:
    """``gemm_launch`` with K split into ``num_splits`` groups, so that more workgroups share the work.

    A second kernel of the same launch adds the parts up in order. The same inputs and ``num_splits`` give the same
    bits.
    """
    return gemm_launch(*in_parts(config, gemm, num_splits), arguments, made=made)


def computed(choice: Choice, gemm: Gemm) -> tuple[GemmConfig, Gemm]:
    """The configuration of a choice, and the problem that it computes."""
    return in_parts(choice.config, gemm, choice.splits) if choice.is_in_parts else (choice.config, gemm)


def in_parts(config: GemmConfig, gemm: Gemm, num_splits: int) -> tuple[GemmConfig, Gemm]:
    """The configuration, and the problem of as many groups, whose sums a second kernel adds up if there are several."""
    if num_splits > 1:
        config = changed(config, kind=changed(config.kind, sums_parts=True))
    return config, gemm._replace(groups=num_splits)


def _max_workgroups(config: GemmConfig) -> int:
    num_cus = settings.num_cus()
    if num_cus < session.current().runtime.num_cus:
        return num_cus
    # Ping-pong kernels are persistent: a workgroup loads its next tile while it computes the current one.
    if config.kind.has_known_number_of_tiles and config.schedule != "pingpong":
        return _MAX_WORKGROUPS
    return num_cus * config.workgroups_per_cu
