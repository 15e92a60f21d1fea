"""Norms and activations between two GEMMs of a layer, quantised for the second one."""

from __future__ import annotations

import torch

from ..checks import check_bool, check_int, check_positive, is_traced
from ..heuristics.cast_config import CastConfig, RowCastConfig, lanes_and_passes, needs_clamp
from ..launch.cast import cast_launch, row_cast_launch
from ..launch.repeated import Described, launches_of_rows
from ..problems.cast import (
    FP8_MAX,
    TYPES,
    check_activated,
    check_fp8_max,
    check_normed,
)
from ..problems.layout import FP8, SCALE_BLOCK, Pair
from ..problems.tensors import check_form, check_one_device
from .casts import new_scales_of_rows
from .host_casts import LEAST_SCALE


@launches_of_rows("x", "residual")
def rms_norm_cast_to_fp8(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    residual: torch.Tensor | None = None,
    *,
    gran_k: int | None = SCALE_BLOCK,
    use_ue8m0: bool = False,
    fp8_max: float = FP8_MAX,
) -> Described[tuple[torch.Tensor, ...]]:
    """Normalises rows by their root mean square and quantises them, after adding the residual, in one launch.

    The sum ``x + residual`` is rounded to its dtype. The mean of its squares and the root are computed in fp64 and
    rounded to fp32 once; the products with the weights are fp32 and quantised as they are.

    Args:
        x: bf16, f16 or fp32 [M, K], any strides, K up to 65536.
        weight: [K], contiguous, of the dtype of ``x`` or fp32.
        eps: added to the mean of the squares; a positive number of fp32.
        residual: None, or as ``x``, any strides.
        gran_k: how many columns share a scale: 128, or None for a whole row.
        use_ue8m0: whether to round scales up to powers of two.
        fp8_max: the FP8 number that the largest magnitude of a scale is scaled to.

    Returns:
        float8_e4m3fnuz [M, K], contiguous, and fp32 scales as ``per_token_cast_to_fp8`` returns them, or [M, 1] for
        rows. With a residual also the sum, [M, K] of the dtype of ``x``, contiguous. A NaN makes its row NaN.

    Raises:
        TypeError, ValueError: an argument is not as above.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    if is_traced():
        options = (eps, residual, gran_k, use_ue8m0, fp8_max)
        data, scales, total = torch.ops.deep_gemm_rocm.rms_norm_cast_to_fp8(x, weight, *options)
        return ((data, scales) if residual is None else (data, scales, total)), None
    check_normed(x, weight, residual)
    epsilon = check_positive("eps", eps)
    check_bool("use_ue8m0", use_ue8m0)
    check_fp8_max(fp8_max)
    if gran_k is not None and check_int("gran_k", gran_k, 1) != SCALE_BLOCK:
        raise ValueError(f"gran_k must be {SCALE_BLOCK} or None, got {gran_k}")
    data, scales, total = new_results_of_norm(x, gran_k)
    result = (data, scales) if residual is None else (data, scales, total)
    if x.numel() == 0:
        scales.fill_(LEAST_SCALE)
        return result, None
    config = RowCastConfig(
        TYPES[x.dtype],
        *lanes_and_passes(x.shape[1]),
        block_scales=gran_k is not None,
        clamps=needs_clamp(fp8_max),
        norm=True,
        weight_type=TYPES[weight.dtype],
        residual=residual is not None,
    )
    launch = row_cast_launch(
        config,
        x,
        data,
        scales,
        use_ue8m0=use_ue8m0,
        fp8_max=fp8_max,
        weight=weight,
        epsilon=epsilon,
        residual=residual,
        total=None if residual is None else total,
    )
    return result, launch


@launches_of_rows("x")
def silu_and_mul_cast_to_fp8(
    x: torch.Tensor,
    masked_m: torch.Tensor | None = None,
    *,
    alpha: float | None = None,
    limit: float | None = None,
    use_ue8m0: bool = False,
    fp8_max: float = FP8_MAX,
) -> Described[Pair]:
    """Activates the result of a gated layer's first GEMM and quantises it for the second one, in one launch.

    With ``gate, up = x.chunk(2, dim=-1)``, quantises silu(gate) · up, computed in fp32 as the GEMMs' epilogue
    ``silu_and_mul`` does. With ``limit``, the gate is at most ``limit`` and ``up`` is clamped to ±``limit`` before.
    With ``alpha``, it is gpt-oss's gate · sigmoid(alpha · gate) · (up + 1); its model has alpha 1.702 and limit 7.

    Args:
        x: bf16, f16 or fp32 [M, 2 I] or, with ``masked_m``, [G, M, 2 I]; any strides.
        masked_m: None, or int32 [G], contiguous: how many rows of each group are computed. Other rows of the results
            are undefined.
        alpha, limit: None, or positive numbers of fp32.
        use_ue8m0: whether to round scales up to powers of two.
        fp8_max: the FP8 number that the largest magnitude of a scale is scaled to.

    Returns:
        float8_e4m3fnuz [M, I] or [G, M, I], contiguous, and fp32 scales [M, ceil(I/128)] or [G, M, ceil(I/128)] in the
        layout of ``get_mn_major_tma_aligned_tensor``: one for each row and 128 columns.

    Raises:
        TypeError, ValueError: an argument is not as above.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    if is_traced():
        options = (masked_m, alpha, limit, use_ue8m0, fp8_max)
        return torch.ops.deep_gemm_rocm.silu_and_mul_cast_to_fp8(x, *options), None
    check_activated(x, masked=masked_m is not None)
    check_bool("use_ue8m0", use_ue8m0)
    check_fp8_max(fp8_max)
    tensors = {"x": x}
    if masked_m is not None:
        check_form("masked_m", masked_m, torch.int32, (x.shape[0],))
        tensors["masked_m"] = masked_m
    check_one_device(tensors)
    for name, value in (("alpha", alpha), ("limit", limit)):
        if value is not None:
            check_positive(name, value)
    shape = (*x.shape[:-1], x.shape[-1] // 2)
    data, scales = x.new_empty(shape, dtype=FP8), new_scales_of_rows(x, shape)
    if data.numel() == 0:
        return (data, scales), None
    config = CastConfig(
        TYPES[x.dtype],
        "row_blocks",
        needs_clamp(fp8_max),
        activation="silu_and_mul",
        clamped=limit is not None,
        gpt_oss=alpha is not None,
        masked=masked_m is not None,
    )
    launch = cast_launch(
        config,
        x,
        data,
        scales,
        use_ue8m0=use_ue8m0,
        fp8_max=fp8_max,
        group_rows=masked_m,
        alpha=alpha or 0,
        limit=limit or 0,
    )
    return (data, scales), launch


def new_results_of_norm(x: torch.Tensor, gran_k: int | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Uninitialised data, scales and sum of ``rms_norm_cast_to_fp8``."""
    scales = x.new_empty(len(x), 1, dtype=torch.float32) if gran_k is None else new_scales_of_rows(x, x.shape)
    return x.new_empty(x.shape, dtype=FP8), scales, x.new_empty(x.shape)
