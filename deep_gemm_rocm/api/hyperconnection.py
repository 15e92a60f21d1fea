"""GEMM of hyper-connections, which also sums the squares of its input rows for a later normalisation."""

from __future__ import annotations

import torch

from ..checks import is_traced
from ..heuristics import choose_gemm_config
from ..launch.gemm import gemm_launch
from ..launch.repeated import Described, launches
from ..problems.prenorm import check_prenorm_gemm
from ..runtime import settings


@launches
def tf32_hc_prenorm_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor,
    sqr_sum: torch.Tensor,
    num_splits: int | None = None,
) -> Described[None]:
    """Writes ``d = a · bᵀ`` and the sums of the squares of ``a``'s rows; DeepGEMM's function of this name.

    One launch reads ``a`` once for every 32 columns of ``d``. The matrix cores multiply xf32, AMD's TF32. Each product
    takes two xf32 MFMAs, for the high and the low part of ``b``, which lose only the last three bits of fp32. A row's
    bits depend on ``num_splits``, and neither on M nor on other rows.

    Args:
        a: bf16 [M, K].
        b: fp32 [N, K]. Rows of both are contiguous, 16-byte aligned and any distance apart; K is a multiple of 8, N at
            least 1 (24 in hyper-connections).
        d: fp32 [M, N], rows contiguous and not overlapping; or [num_splits, M, N].
        sqr_sum: fp32 [M], contiguous; or [num_splits, M]. Like ``d``, it must share memory with no other argument.
        num_splits: into how many parts K is split, so that more workgroups share the work. Each part has its own sums,
            which the caller adds up while normalising. None is a single part; ``d`` and ``sqr_sum`` then lack the
            first dimension.

    Raises:
        TypeError, ValueError: an argument is not as above; nothing is written then.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    if is_traced():
        torch.ops.deep_gemm_rocm.tf32_hc_prenorm_gemm(a, b, d, sqr_sum, num_splits)
        return None, None
    gemm, arguments = check_prenorm_gemm(a, b, d, sqr_sum, num_splits)
    if gemm.m == 0:
        return None, None
    config = choose_gemm_config(gemm.kind, gemm.m, gemm.n, gemm.k, settings.num_cus(), num_groups=gemm.groups)
    return None, gemm_launch(config, gemm, arguments)
