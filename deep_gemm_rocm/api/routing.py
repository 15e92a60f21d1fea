"""The choice of experts."""

from __future__ import annotations

import torch

from ..checks import is_traced
from ..heuristics.route_config import RouteConfig, slots_of
from ..launch.repeated import Described, launches_of_rows
from ..launch.routing import route_launch
from ..problems.cast import TYPES
from ..problems.routing import Scoring, check_routing


@launches_of_rows("logits")
def route_top_k(
    logits: torch.Tensor,
    top_k: int,
    *,
    scoring: Scoring = "softmax",
    bias: torch.Tensor | None = None,
    num_groups: int | None = None,
    top_groups: int | None = None,
    renormalize: bool = True,
    scale: float = 1.0,
) -> Described[tuple[torch.Tensor, torch.Tensor]]:
    """Chooses each token's experts and their weights, in one launch.

    Scores are the softmax of a token's logits, or the logits' sigmoids, rounded to fp32. The experts with the highest
    scores are chosen; of equal ones, those with the lower indices. The same logits give the same bits on every run, and
    a token's don't depend on its batch. With ``bias`` and groups this is DeepSeek-V3's routing, with groups alone that
    of DeepSeek-V2.

    Args:
        logits: bf16, f16 or fp32 [tokens, E], any strides, E up to 512.
        top_k: experts of a token, up to 64.
        scoring: ``softmax`` or ``sigmoid``.
        bias: None, or fp32 [E], contiguous: added to the scores for the choice, but not for the weights.
        num_groups: None, or how many groups of E / num_groups neighbouring experts there are: a power of two up to 32
            that divides E. With ``bias``, groups have two experts at least.
        top_groups: of how many groups the experts are chosen; given with ``num_groups``. These are the groups with the
            highest scores, of equal ones the lower. A group's score is its best expert's or, with ``bias``, the fp32
            sum of its two best experts' biased scores.
        renormalize: whether a token's weights are divided by their sum (plus 1e-20) before they are scaled.
        scale: a factor of all weights.

    Returns:
        fp32 weights and int32 ids, both [tokens, top_k], best experts first. Ids always are those of different experts.
        A NaN is chosen after all numbers, and makes its own weight NaN; with softmax or ``renormalize``, those that
        depend on it as well.

    Raises:
        TypeError, ValueError: an argument is not as above.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    if is_traced():
        options = (scoring, bias, num_groups, top_groups, renormalize, scale)
        return torch.ops.deep_gemm_rocm.route_top_k(logits, top_k, *options), None
    routing = check_routing(logits, top_k, scoring, bias, num_groups, top_groups, renormalize, scale)
    shape = (len(logits), routing.top_k)
    weights, ids = logits.new_empty(shape, dtype=torch.float32), logits.new_empty(shape, dtype=torch.int32)
    if len(logits) == 0:
        return (weights, ids), None
    config = RouteConfig(
        TYPES[logits.dtype],
        slots_of(routing.experts, routing.groups),
        routing.groups,
        scoring == "softmax",
        bias is not None,
    )
    launch = route_launch(
        config,
        logits,
        bias,
        weights,
        ids,
        top_groups=routing.top_groups,
        renormalize=renormalize,
        scale=routing.scale,
    )
    return (weights, ids), launch
