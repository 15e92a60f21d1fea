"""Arguments and launches of the kernel that chooses experts."""

from __future__ import annotations

from ctypes import Structure, c_double, c_int, c_int64, c_void_p

import torch

from ..heuristics.route_config import RouteConfig
from ..jit import Request
from ..problems.arguments import present
from .launch import Launch, Sizes


class RouteArguments(Structure):
    """The structure of the same name in route_top_k.h."""

    _fields_ = (
        ("logits", c_void_p),
        ("bias", c_void_p),
        ("weights", c_void_p),
        ("ids", c_void_p),
        ("row_stride", c_int64),
        ("column_stride", c_int64),
        ("scale", c_double),
        ("tokens", c_int),
        ("experts", c_int),
        ("top_k", c_int),
        ("top_groups", c_int),
        ("renormalize", c_int),
    )


def route_launch(
    config: RouteConfig,
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    weights: torch.Tensor,
    ids: torch.Tensor,
    *,
    top_groups: int,
    renormalize: bool,
    scale: float,
) -> Launch:
    """Describes the launch for checked arguments; ``weights`` and ``ids`` are new tensors [tokens, top_k]."""
    arguments = RouteArguments(
        row_stride=logits.stride(0),
        column_stride=logits.stride(1),
        scale=scale,
        tokens=logits.shape[0],
        experts=logits.shape[1],
        top_k=ids.shape[1],
        top_groups=top_groups,
        renormalize=renormalize,
    )
    request = Request("route_top_k.hip.j2", config.template_values)
    return Launch(
        request,
        arguments,
        present(logits=("logits", logits), bias=("bias", bias), weights=("weights", weights), ids=("ids", ids)),
        made={"weights": weights, "ids": ids},
        written=("weights", "ids"),
        sizes=lambda tokens: Sizes(request, {"tokens": tokens}, {"weights": tokens, "ids": tokens}),
    )
