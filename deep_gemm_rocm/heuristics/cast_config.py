"""What the kernels that quantise are compiled for."""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple

import torch

from ..problems.layout import FP8, ceil_div

Shared = Literal["row_blocks", "blocks", "column_blocks", "tensor"]
"""Values that share a scale: 128 of a row, 128 x 128, 128 of a column, or all."""

_LANE_VALUES = 16  # see lane_values.h
# Waves of a workgroup, passes (sets of values of each lane), and values in a set. Small workgroups spread evenly over
# the CUs. With fewer values, each wave has fewer instructions, but all waves together have more. That is faster where
# each value takes many instructions.
_SHAPES = {"row_blocks": (2, 1, 16), "blocks": (8, 2, 16), "column_blocks": (8, 4, 8), "tensor": (4, 1, 16)}
_SHAPE_OF_ACTIVATION = (4, 1, 8)
_WAVE_LANES, _WORKGROUP_LANES, _MOST_LANES = 64, 256, 512
_FEW_PASSES = 1


class CastConfig(NamedTuple):
    """A kernel of ``cast_tiles.hip.j2``.

    Attributes:
        type: type of the input: ``bf16``, ``f16`` or ``f32``.
        shared: which values share a scale.
        clamps: whether quotients must be clamped to the largest value, see ``needs_clamp``.
        activation: ``identity`` or ``silu_and_mul``, before quantising.
        clamped: whether the activation's inputs are clamped.
        gpt_oss: whether the activation is that of gpt-oss.
        masked: whether the numbers of rows of groups are on the device.
        fp4_group: for FP4, columns of a row that share a scale; 0 for FP8.
        packed_scales: whether scales of FP4 are stored as exponents in bytes.
    """

    type: str
    shared: Shared
    clamps: bool = False
    activation: str = "identity"
    clamped: bool = False
    gpt_oss: bool = False
    masked: bool = False
    fp4_group: int = 0
    packed_scales: bool = False

    @property
    def template_values(self) -> dict[str, int | str | bool]:
        """The values by name. Callers share the one dictionary."""
        return _values_of_tiles(self)

    @property
    def lane_values(self) -> int:
        """How many neighbouring values a lane has."""
        return _shape_of_tiles(self)[-1]


class RowCastConfig(NamedTuple):
    """A kernel of ``cast_rows.hip.j2``.

    Attributes:
        type: type of the input: ``bf16``, ``f16`` or ``f32``.
        lanes: lanes that hold a row.
        passes: sets of 16 values of a lane.
        block_scales: whether 128 columns share a scale; otherwise a row does.
        clamps: whether quotients must be clamped to the largest value, see ``needs_clamp``.
        norm: whether rows are normalised by their root mean square.
        weight_type: type of the norm's weights.
        residual: whether the row is a sum of two.
        masked: whether the number of rows is on the device.
    """

    type: str
    lanes: int
    passes: int
    block_scales: bool
    clamps: bool = False
    norm: bool = False
    weight_type: str = "none"
    residual: bool = False
    masked: bool = False

    @property
    def template_values(self) -> dict[str, int | str | bool]:
        """The values by name. Callers share the one dictionary."""
        return _values_of_rows(self)


def _shape_of_tiles(config: CastConfig) -> tuple[int, int, int]:
    return _SHAPES[config.shared] if config.activation == "identity" else _SHAPE_OF_ACTIVATION


@functools.lru_cache(maxsize=256)
def _values_of_tiles(config: CastConfig) -> dict[str, int | str | bool]:
    waves, passes, lane_values = _shape_of_tiles(config)
    values = {**config._asdict(), "waves": waves, "passes": passes, "lane_values": lane_values}
    options = [name for name in ("clamped", "gpt_oss", "masked", "clamps", "packed_scales") if values[name]]
    names = [name for name in (config.activation,) if name != "identity"]
    shared = f"fp4_groups_of_{config.fp4_group}" if config.fp4_group else config.shared
    return {**values, "kernel_name": "_".join(["cast", *names, *options, config.type, shared])}


@functools.lru_cache(maxsize=256)
def _values_of_rows(config: RowCastConfig) -> dict[str, int | str | bool]:
    of_norm = ["rms_norm", config.weight_type] if config.norm else []
    options = [name for name in ("residual", "masked", "clamps") if getattr(config, name)]
    parts = ["cast", *of_norm, *options, config.type]
    scales = "row_blocks" if config.block_scales else "rows"
    name = "_".join([*parts, scales, f"l{config.lanes}x{config.passes}"])
    return {**config._asdict(), "kernel_name": name}


def lanes_and_passes(columns: int) -> tuple[int, int]:
    """How many lanes hold a row of so many columns, up to 65536, and how many sets of 16 values each of them has.

    A wave holds a short row, so that it needs no barrier; a workgroup a longer one, so that many loads are in flight.
    """
    for lanes in (_WAVE_LANES, _WORKGROUP_LANES, _MOST_LANES):
        passes = ceil_div(columns, lanes * _LANE_VALUES)
        if passes <= _FEW_PASSES:
            break
    return lanes, passes


@functools.lru_cache(maxsize=256)
def needs_clamp(fp8_max: float) -> bool:
    """Whether a quotient just above ``fp8_max`` rounds to another FP8 number than ``fp8_max`` does."""
    largest = torch.tensor(fp8_max, dtype=torch.float32)
    above = torch.nextafter(largest, torch.tensor(torch.inf))
    return bool(largest.to(FP8).float() != above.to(FP8).float())
