"""How plug-ins lay out MXFP4 weights when a model has been loaded."""

from __future__ import annotations

import contextlib

import torch

from ..api.shuffle import shuffle_weight
from ..problems.layout import Pair


def shuffled_if_possible(data: torch.Tensor, scales: torch.Tensor) -> Pair:
    """The weight shuffled, or as it is if some of its scales are so large or small that kernels need it so."""
    with contextlib.suppress(ValueError):
        return shuffle_weight(data, scales)
    return data, scales
