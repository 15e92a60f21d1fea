"""Checks of the arguments of ``route_top_k``."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import torch

from ..checks import check_bool, check_int, check_number
from .cast import check_type
from .tensors import check_data, check_form, check_one_device

MAX_EXPERTS = 512
MAX_TOP_K = 64  # a wave stores one for each lane
_GROUPS = (1, 2, 4, 8, 16, 32)
Scoring = Literal["softmax", "sigmoid"]
_SCORINGS = get_args(Scoring)


class Routing(NamedTuple):
    """The choice of ``top_k`` experts, from the best ``top_groups`` of ``groups`` groups."""

    experts: int
    top_k: int
    groups: int
    top_groups: int
    scale: float


def check_routing(
    logits: Any, top_k: Any, scoring: Any, bias: Any, num_groups: Any, top_groups: Any, renormalize: Any, scale: Any
) -> Routing:
    """
    Raises:
        TypeError, ValueError: an argument is not as ``route_top_k`` documents it.
    """
    check_data("logits", logits)
    check_type("logits", logits)
    if logits.dim() != 2 or not 1 <= logits.shape[1] <= MAX_EXPERTS:
        raise ValueError(f"logits must be [tokens, 1 to {MAX_EXPERTS} experts], got shape {tuple(logits.shape)}")
    experts = logits.shape[1]
    tensors = {"logits": logits}
    if bias is not None:
        check_form("bias", bias, torch.float32, (experts,))
        tensors["bias"] = bias
    check_one_device(tensors)
    if scoring not in _SCORINGS:
        raise ValueError(f"scoring must be one of {_SCORINGS}, got {scoring!r}")
    check_bool("renormalize", renormalize)
    check_number("scale", scale)
    if (num_groups is None) != (top_groups is None):
        raise ValueError(f"num_groups and top_groups must be given together, got {num_groups} and {top_groups}")
    groups = 1 if num_groups is None else check_int("num_groups", num_groups, 1)
    best = 1 if top_groups is None else check_int("top_groups", top_groups, 1, groups)
    if groups not in _GROUPS or experts % groups:
        raise ValueError(f"num_groups must be one of {_GROUPS} that divides {experts} experts, got {groups}")
    if groups > 1 and bias is not None and experts // groups < 2:
        raise ValueError(f"num_groups must leave two experts in each group, got {groups} for {experts} experts")
    most = min(MAX_TOP_K, best * (experts // groups))
    return Routing(experts, check_int("top_k", top_k, 1, most), groups, best, float(scale))
