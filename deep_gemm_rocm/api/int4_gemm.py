"""GEMM with int4 weights, which kernels widen to bf16 or FP8 after they load them, dense and grouped."""

from __future__ import annotations

import torch

from ..checks import is_traced
from ..launch.repeated import Described, launches_of_number, launches_of_rows
from ..problems.gemm import check_gemm
from ..problems.gemm_kind import Epilogue
from ..problems.layout import Pair
from ..problems.matrices import FP8_DTYPES
from ..problems.recipe import VECTORS
from .gemm import launch_dense
from .grouped import launch_contiguous, launch_masked


@launches_of_rows("a", "d", "c")
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

    ``w[n, k]`` is ``(code[n, k] - zero[n, k // g]) · scale[n, k // g]``. Kernels widen ``b`` after they load it, so
    memory is read as four bits. For groups of 64 and 128 values, integers are multiplied exactly, and each group's sum
    with its scale, in fp32. For groups of 32, w is rounded to bf16 before: by at most 2^-8 of itself. See
    docs/numerics.md.

    Args:
        a: bf16 [M, K], contiguous along K, which is a multiple of 32; rows 16-byte aligned.
        b: a weight as ``repack_int4`` makes it: int32 [N, K/8] of eight codes, contiguous along K, rows 16-byte
            aligned; and scales [N, K/g] for groups of g = 32, 64 or 128 values: fp32 or, for g = 32, bf16 or f16,
            where zero is 8; or int32, with a zero in each scale. Scales have any strides, and are loaded the fastest if
            contiguous along N. Where a scale is NaN or infinite, results are not finite.
        d, c, bias, epilogue: as for ``gemm_fp8``; ``d`` is bf16, f16 or fp32 [M, N]. ``silu_and_mul`` takes 2N rows of
            ``b``.

    Raises:
        NotImplementedError: a pair ``d``, or an int4 weight of ``shuffle_weight``, which is for FP8 activations.
        TypeError, ValueError and others: as ``gemm_fp8``.
    """
    if is_traced():
        torch.ops.deep_gemm_rocm.bf16_int4_gemm_nt(a, *b, d, c, bias, epilogue)
        return None, None
    gemm, arguments = check_gemm(a, b, d, dtypes=(torch.bfloat16,), four_bits="int4", c=c, bias=bias, epilogue=epilogue)
    return None, launch_dense(gemm, arguments)


@launches_of_rows("a[0]", "a[1]", "d", "c")
def fp8_int4_gemm_nt(
    a: Pair,
    b: Pair,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    *,
    bias: torch.Tensor | None = None,
    epilogue: Epilogue = "identity",
) -> Described[None]:
    """``bf16_int4_gemm_nt`` for FP8 activations (W4A8): ``d = epilogue((a · sfa) · wᵀ + bias) + c``.

    Integers of -16 to 15 are exact in FP8. The sum of a group is multiplied with its scale, and that of 128 values with
    the scale of a, in fp32. Shorter groups are slower, for they have more sums: see docs/benchmarks.md.

    Args:
        a: data FP8 [M, K] and scales fp32 [M, K/128], as for ``fp8_gemm_nt``; K is contiguous and a multiple of 128.
        b: as for ``bf16_int4_gemm_nt``; or as ``shuffle_weight`` makes it, int16 [N, K/4] of four codes, and scales
            without zeros.
        d, c, bias, epilogue: as for ``bf16_int4_gemm_nt``.

    Raises:
        NotImplementedError: a pair ``d``.
        TypeError, ValueError and others: as ``gemm_fp8``.
    """
    if is_traced():
        torch.ops.deep_gemm_rocm.fp8_int4_gemm_nt(*a, *b, d, c, bias, epilogue)
        return None, None
    gemm, arguments = check_gemm(
        a, b, d, dtypes=FP8_DTYPES, recipe=VECTORS, four_bits="int4", c=c, bias=bias, epilogue=epilogue
    )
    return None, launch_dense(gemm, arguments)


@launches_of_rows("a", "d", "grouped_layout")
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


@launches_of_rows("a[0]", "a[1]", "d", "grouped_layout")
def m_grouped_fp8_int4_gemm_nt_contiguous(
    a: Pair,
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
    """``m_grouped_fp8_gemm_nt_contiguous`` for int4 weights.

    Args:
        a, d, grouped_layout and the others: as for ``m_grouped_fp8_gemm_nt_contiguous``; K is a multiple of 128.
        b: as for ``fp8_int4_gemm_nt``, with a first dimension G: codes [G, N, K/8], or shuffled ones [G, N, K/4], and
            scales [G, N, K/g].

    Raises:
        NotImplementedError: a pair ``d``.
        TypeError, ValueError and others: as ``m_grouped_fp8_gemm_nt_contiguous``.
    """
    rows = (use_psum_layout, ensure_zero_padding, expected_m_for_psum_layout)
    return None, launch_contiguous(a, b, d, grouped_layout, None, VECTORS, *rows, bias, epilogue, four_bits="int4")


@launches_of_number("expected_m")
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


@launches_of_number("expected_m")
def m_grouped_fp8_int4_gemm_nt_masked(
    a: Pair,
    b: Pair,
    d: torch.Tensor,
    masked_m: torch.Tensor,
    expected_m: int,
    *,
    bias: torch.Tensor | None = None,
    epilogue: Epilogue = "identity",
) -> Described[None]:
    """``m_grouped_fp8_gemm_nt_masked`` for int4 weights.

    Args:
        a, d, masked_m, expected_m, bias, epilogue: as for ``m_grouped_fp8_gemm_nt_masked``; K is a multiple of 128.
        b: as for ``m_grouped_fp8_int4_gemm_nt_contiguous``.

    Raises:
        NotImplementedError: a pair ``d``.
        TypeError, ValueError and others: as ``m_grouped_fp8_gemm_nt_masked``.
    """
    return None, launch_masked(a, b, d, masked_m, expected_m, VECTORS, bias, epilogue, four_bits="int4")[1]
