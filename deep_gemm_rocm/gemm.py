"""Dense GEMM."""

from __future__ import annotations

import torch

from . import settings
from .contracts import Gemm, Pair, check_fp8_gemm_nt, check_recipes
from .gemm_kernel import launch_gemm
from .heuristics import choose_gemm_config


def gemm_fp8(a: Pair, b: Pair, out: torch.Tensor | None = None) -> torch.Tensor:
    """Multiplies FP8 activations with FP8 weights: ``out = (a · sfa) · (b · sfb)ᵀ``, accumulated in fp32.

    Every 128 of K are summed by the matrix cores, then scaled and added up in fp32. The same inputs give the same bits.

    Args:
        a: data float8_e4m3fnuz [M, K] and scales fp32 [M, ceil(K/128)], as ``per_token_cast_to_fp8`` returns them.
        b: data float8_e4m3fnuz [N, K] and scales fp32 [ceil(N/128), ceil(K/128)], as ``per_block_cast_to_fp8`` returns
            them.
        out: bf16 [M, N] to write into, rows contiguous and not overlapping; a new one if None. It must not share memory
            with the inputs.

    M and N are arbitrary (an N that is a multiple of 8 with 16-byte aligned rows of ``out`` runs at full speed), K is a
    multiple of 16. Rows of the data are contiguous, 16-byte aligned and any distance apart; scales may have any
    strides, and are multiplied with the data to dequantise it.

    Returns:
        ``out``.

    Raises:
        TypeError, ValueError: an argument is not as above; nothing is written then.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    gemm = check_fp8_gemm_nt(a, b, out, "out")
    if out is None:
        out = torch.empty(gemm.m, gemm.n, dtype=torch.bfloat16, device=a[0].device)
    _launch(a, b, out, gemm)
    return out


def fp8_gemm_nt(
    a: Pair,
    b: Pair,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    recipe: tuple[int, int, int] | None = None,
    recipe_a: tuple[int, int] | None = None,
    recipe_b: tuple[int, int] | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
) -> None:
    """DeepGEMM's name and signature for ``gemm_fp8``: writes ``d = (a · sfa) · (b · sfb)ᵀ``.

    Args:
        a, b, d: as ``a``, ``b`` and ``out`` of ``gemm_fp8``.
        c: must be None: accumulation is not supported yet.
        recipe: None or (1, 128, 128), the rows of ``a``, rows of ``b`` and values along K that share a scale.
        recipe_a, recipe_b: None, or (1, 128) and (128, 128).
        compiled_dims: accepted and not used; no dimension is compiled into a kernel here.
        disable_ue8m0_cast: accepted and not used; scales stay fp32 on this hardware.

    Raises:
        NotImplementedError: ``c`` or a recipe that is not supported yet.
        TypeError, ValueError and others: as ``gemm_fp8``.
    """
    if c is not None:
        raise NotImplementedError("fp8_gemm_nt can't accumulate into c yet; pass c=None and add it afterwards")
    check_recipes("fp8_gemm_nt", recipe, recipe_a, recipe_b)
    if d is None:
        raise TypeError("d must be a torch.Tensor, got NoneType; gemm_fp8 makes a new output")
    _launch(a, b, d, check_fp8_gemm_nt(a, b, d, "d"))


# DeepGEMM's name for operands of which either may be FP4; here both are FP8.
fp8_fp4_gemm_nt = fp8_gemm_nt


def gemm_fp8_fp8_bf16_nt(lhs: Pair, rhs: Pair, out: torch.Tensor) -> None:
    """``fp8_gemm_nt(lhs, rhs, out)`` under the name that it had in DeepGEMM 1."""
    fp8_gemm_nt(lhs, rhs, out)


def _launch(a: Pair, b: Pair, d: torch.Tensor, gemm: Gemm) -> None:
    if gemm.m == 0 or gemm.n == 0:
        return
    launch_gemm(choose_gemm_config(gemm.m, gemm.n, gemm.k, settings.get_num_sms()), a, b, d)
