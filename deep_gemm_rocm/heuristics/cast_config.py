"""What the kernels that quantise are compiled for."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch

from .. import forking
from ..problems.layout import FP8, ceil_div

Shared = Literal["row_blocks", "blocks", "column_blocks", "tensor"]
"""Values that share a scale: 128 of a row, 128 x 128, 128 of a column, or all."""

# Waves of a workgroup, and how many sets of 16 values each lane has. Small workgroups spread evenly over the CUs. Where
# waves wait for one another, fewer of them wait less.
_WAVES_AND_PASSES = {"row_blocks": (2, 1), "blocks": (8, 2), "column_blocks": (4, 4), "tensor": (4, 1)}
_LANE_VALUES = 16  # see lane_values.h
_WAVE_LANES, _WORKGROUP_LANES, _MOST_LANES = 64, 256, 512
_FEW_PASSES = 1


@dataclasses.dataclass(frozen=True)
class CastConfig:
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

    @forking.cached_property
    def template_values(self) -> dict[str, int | str | bool]:
        """The values by name. Callers share the one dictionary."""
        waves, passes = _WAVES_AND_PASSES[self.shared]
        values = {**dataclasses.asdict(self), "waves": waves, "passes": passes}
        options = [name for name in ("clamped", "gpt_oss", "masked", "clamps", "packed_scales") if values[name]]
        names = [name for name in (self.activation,) if name != "identity"]
        shared = f"fp4_groups_of_{self.fp4_group}" if self.fp4_group else self.shared
        return {**values, "kernel_name": "_".join(["cast", *names, *options, self.type, shared])}


@dataclasses.dataclass(frozen=True)
class RowCastConfig:
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

    @forking.cached_property
    def template_values(self) -> dict[str, int | str | bool]:
        """The values by name. Callers share the one dictionary."""
        of_norm = ["rms_norm", self.weight_type] if self.norm else []
        options = [name for name in ("residual", "masked", "clamps") if getattr(self, name)]
        parts = ["cast", *of_norm, *options, self.type]
        scales = "row_blocks" if self.block_scales else "rows"
        name = "_".join([*parts, scales, f"l{self.lanes}x{self.passes}"])
        return {**dataclasses.asdict(self), "kernel_name": name}


def lanes_and_passes(columns: int) -> tuple[int, int]:
    """How many lanes hold a row of so many columns, up to 65536, and how many sets of 16 values each of them has.

    A wave holds a short row, so that it needs no barrier; a workgroup a longer one, so that many loads are in flight.
    """
    for lanes in (_WAVE_LANES, _WORKGROUP_LANES, _MOST_LANES):
        passes = ceil_div(columns, lanes * _LANE_VALUES)
        if passes <= _FEW_PASSES:
            break
    return lanes, passes


def needs_clamp(fp8_max: float) -> bool:
    """Whether a quotient just above ``fp8_max`` rounds to another FP8 number than ``fp8_max`` does."""
    largest = torch.tensor(fp8_max, dtype=torch.float32)
    above = torch.nextafter(largest, torch.tensor(torch.inf))
    return bool(largest.to(FP8).float() != above.to(FP8).float())
