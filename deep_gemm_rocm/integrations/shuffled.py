"""How plug-ins lay out MXFP4 weights when a model has been loaded."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from ..api.shuffle import shuffle_weight
from ..problems.layout import Pair


def shuffle_if_possible(layer: Any, *weights: str, replace: Callable[[Any, str, torch.Tensor], object]) -> None:
    """Shuffles a layer's weights, or leaves all as they are if one has scales that kernels can only take unshuffled.

    Args:
        weights: names of parameters; those of their scales end in ``_scale``.
        replace: replaces the layer's parameter of a name.
    """
    names = [(weight, f"{weight}_scale") for weight in weights]
    pairs: list[Pair] = [(getattr(layer, weight).data, getattr(layer, scales).data) for weight, scales in names]
    with contextlib.suppress(ValueError):
        pairs = [shuffle_weight(*pair) for pair in pairs]
    for of_weight, pair in zip(names, pairs, strict=True):
        for name, tensor in zip(of_weight, pair, strict=True):
            replace(layer, name, tensor)
