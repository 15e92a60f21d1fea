"""How plug-ins lay out MXFP4 weights when a model has been loaded."""

from __future__ import annotations

import contextlib

from ..api.shuffle import shuffle_weight
from ..problems.layout import Pair


def shuffled_if_possible(*weights: Pair) -> tuple[Pair, ...]:
    """A layer's weights shuffled, or all as they are if some scale is so large or small that kernels need it so."""
    with contextlib.suppress(ValueError):
        return tuple(shuffle_weight(*weight) for weight in weights)
    return weights
