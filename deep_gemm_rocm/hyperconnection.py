"""GEMM of hyper-connections, whose input is normalised afterwards by the squares that it sums up as well."""

from __future__ import annotations

import torch

from . import settings
from .contracts import check_prenorm_gemm
from .gemm_kernel import launch_gemm
from .heuristics import choose_gemm_config
from .warm import repeatable


@repeatable
def tf32_hc_prenorm_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor,
    sqr_sum: torch.Tensor,
    num_splits: int | None = None,
) -> None:
    """Writes ``d = a · bᵀ`` and the sums of the squares of ``a``'s rows; DeepGEMM's function of this name.

    One launch reads ``a`` once for every 32 columns of ``d``. Products are made by the matrix cores' xf32 instructions,
    TF32 elsewhere, of which two make up for what fp32 has more than xf32: the result is that of an fp32 GEMM.

    Args:
        a: bf16 [M, K].
        b: fp32 [N, K]. Rows of both are contiguous, 16-byte aligned and any distance apart; K is a multiple of 8, N at
            least 1 (24 in hyper-connections).
        d: fp32 [M, N], rows contiguous and not overlapping; or [num_splits, M, N].
        sqr_sum: fp32 [M], contiguous; or [num_splits, M]. Like ``d``, it must share memory with no other argument.
        num_splits: K is dealt to so many parts, each of which has sums of its own: more workgroups share the work. To
            add them up is left to the caller, who does so while normalising. None is one part without that dimension.

    Raises:
        TypeError, ValueError: an argument is not as above; nothing is written then.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    if torch.compiler.is_compiling():
        torch.ops.deep_gemm_rocm.tf32_hc_prenorm_gemm(a, b, d, sqr_sum, num_splits)
        return
    gemm = check_prenorm_gemm(a, b, d, sqr_sum, num_splits)
    if gemm.m == 0:
        return
    num_cus = settings.get_num_sms()
    config = choose_gemm_config(gemm.kind, gemm.m, gemm.n, gemm.k, num_cus, num_groups=gemm.groups)
    launch_gemm(config, gemm, a, b, d, square_sums=sqr_sum)
