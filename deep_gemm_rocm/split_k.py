"""GEMM whose K is split: parts of it are summed at once, by more workgroups, and these sums by a second kernel.

Both kernels are in one library and have one launch.
"""

from __future__ import annotations

import dataclasses

import torch

from .contracts import Gemm
from .gemm_kernel import launch_gemm
from .heuristics import GemmConfig
from .layout import Pair


def launch_split_gemm(
    config: GemmConfig,
    gemm: Gemm,
    a: Pair | torch.Tensor,
    b: Pair | torch.Tensor,
    d: Pair | torch.Tensor,
    num_splits: int,
    *,
    c: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> None:
    """``launch_gemm`` for [m, n] of a kind that deals K to groups, of which there will be ``num_splits``.

    Parts are added up in their order: the same inputs and ``num_splits`` give the same bits.
    """
    gemm = gemm._replace(groups=num_splits)
    if num_splits == 1:
        launch_gemm(config, gemm, a, b, d, c=c, bias=bias)
        return
    kind = dataclasses.replace(config.kind, sums_parts=True)
    launch_gemm(dataclasses.replace(config, kind=kind), gemm, a, b, d, c=c, bias=bias)
