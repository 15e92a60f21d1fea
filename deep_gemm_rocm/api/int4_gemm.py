"""GEMM with int4 weights, which kernels widen to bf16 after they load them, dense and grouped."""

from __future__ import annotations

import torch

from ..launch.repeated import Described, launches
from ..problems.gemm import check_gemm
from ..problems.gemm_kind import Epilogue
from ..problems.layout import Pair
from .gemm import launch_dense
from .grouped import launch_contiguous, launch_masked


@launches
def bf16_int4_gemm_nt(
    a: torch.Tensor,
    b: Pair,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    *,
    bias: torch.Tensor | None = None,
    epilogue: Epilogue = "identity",
) -> Described[None]:
    """Writes ``d = epilogue(a · wᵀ + bias) + c`` for a bf16 ``a`` and an int4 weight w (W4A16).

    ``w[n, k]`` is ``(code[n, k] - zero[n, k // g]) · scale[n, k // g]``, rounded to bf16: by at most 2^-8 of itself.
    Kernels widen ``b`` to it after they load it, so memory is read as four bits. Sums are fp32. See docs/numerics.md.

    Args:
        a: bf16 [M, K], contiguous along K, which is a multiple of 32; rows 16-byte aligned.
        b: a weight as ``repack_int4`` makes it: int32 [N, K/8] of eight codes, contiguous along K, rows 16-byte
            aligned; and scales [N, K/g] for groups of g = 32, 64 or 128 values, contiguous along K: bf16, f16 or fp32,
            where zero is 8, or int32, with a zero in each scale. A NaN or infinite scale makes its values NaN.
        d, c, bias, epilogue: as for ``gemm_fp8``; ``d`` is bf16, f16 or fp32 [M, N]. ``silu_and_mul`` takes 2N rows of
            ``b``.

    Raises:
        NotImplementedError: a pair ``d``.
        TypeError, ValueError and others: as ``gemm_fp8``.
    """
    if torch.compiler.is_compiling():
        torch.ops.deep_gemm_rocm.bf16_int4_gemm_nt(a, *b, d, c, bias, epilogue)
        return None, None
    gemm, arguments = check_gemm(a, b, d, dtypes=(torch.bfloat16,), four_bits="int4", c=c, bias=bias, epilogue=epilogue)
    return None, launch_dense(gemm, arguments)


@launches
def m_grouped_bf16_int4_gemm_nt_contiguous(
    a: torch.Tensor,
    b: Pair,
    d: torch.Tensor,
    grouped_layout: torch.Tensor,
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    expected_m_for_psum_layout: int | None = None,
    *,
    bias: torch.Tensor | None = None,
    epilogue: Epilogue = "identity",
) -> Described[None]:
    """``m_grouped_bf16_gemm_nt_contiguous`` for int4 weights.

    Args:
        a, d, grouped_layout and the others: as for ``m_grouped_bf16_gemm_nt_contiguous``; K is a multiple of 32.
        b: as for ``bf16_int4_gemm_nt``, with a first dimension G: codes [G, N, K/8] and scales [G, N, K/g].

    Raises:
        NotImplementedError: a pair ``d``.
        TypeError, ValueError and others: as ``m_grouped_fp8_gemm_nt_contiguous``.
    """
    rows = (use_psum_layout, ensure_zero_padding, expected_m_for_psum_layout)
    return None, launch_contiguous(a, b, d, grouped_layout, None, None, *rows, bias, epilogue, four_bits="int4")


@launches
def m_grouped_bf16_int4_gemm_nt_masked(
    a: torch.Tensor,
    b: Pair,
    d: torch.Tensor,
    masked_m: torch.Tensor,
    expected_m: int,
    *,
    bias: torch.Tensor | None = None,
    epilogue: Epilogue = "identity",
) -> Described[None]:
    """``m_grouped_bf16_gemm_nt_masked`` for int4 weights.

    Args:
        a, d, masked_m, expected_m, bias, epilogue: as for ``m_grouped_bf16_gemm_nt_masked``; K is a multiple of 32.
        b: as for ``m_grouped_bf16_int4_gemm_nt_contiguous``.

    Raises:
        NotImplementedError: a pair ``d``.
        TypeError, ValueError and others: as ``m_grouped_fp8_gemm_nt_masked``.
    """
    return None, launch_masked(a, b, d, masked_m, expected_m, None, bias, epilogue, four_bits="int4")[1]
