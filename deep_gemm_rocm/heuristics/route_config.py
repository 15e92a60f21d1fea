"""What the kernel that chooses experts is compiled for."""

from __future__ import annotations

import dataclasses

from .. import forking
from ..problems.layout import ceil_div

_WAVE_LANES = 64


@dataclasses.dataclass(frozen=True)
class RouteConfig:
    """A kernel of ``route_top_k.hip.j2``.

    Attributes:
        type: type of the logits: ``bf16``, ``f16`` or ``f32``.
        slots: experts of a lane.
        groups: groups of experts, a power of two up to 32.
        softmax: whether scores are a softmax; otherwise sigmoids.
        bias: whether a bias is added to scores for the choice.
    """

    type: str
    slots: int
    groups: int
    softmax: bool
    bias: bool

    @forking.cached_property
    def template_values(self) -> dict[str, int | str | bool]:
        """The values by name. Callers share the one dictionary."""
        scoring = "softmax" if self.softmax else "sigmoid"
        name = f"route_top_k_{scoring}{'_bias' if self.bias else ''}_{self.type}_g{self.groups}x{self.slots}"
        shares_tokens = not self.softmax and self.slots > 1  # see the template
        return {**dataclasses.asdict(self), "kernel_name": name, "shares_tokens": shares_tokens}


def slots_of(experts: int, groups: int) -> int:
    """How many experts a lane gets, when each group has as many lanes."""
    return ceil_div(experts // groups, _WAVE_LANES // groups)
