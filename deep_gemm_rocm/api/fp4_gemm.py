"""GEMM with weights of four bits, dense and grouped."""

from __future__ import annotations

from typing import Any

import torch

from ..checks import is_traced
from ..launch.launch import Launch
from ..launch.repeated import Described, describing, launches, launches_of_number, launches_of_rows
from ..launch.widen import widen_launch
from ..problems.arguments import Argument
from ..problems.four_bits import check_narrow, has_scales_of_groups, is_four_bits
from ..problems.gemm import check_gemm
from ..problems.gemm_kind import GROUP, Epilogue
from ..problems.layout import Pair, data_and_scales
from ..problems.matrices import FP8_DTYPES
from ..problems.recipe import VECTORS, Recipe, check_recipe, check_recipe_of_four_bits
from .gemm import check_alpha, described_fp8_gemm, fp8_gemm_nn, fp8_gemm_tn, fp8_gemm_tt, launch_dense
from .grouped import (
    launch_contiguous,
    launch_masked,
    m_grouped_fp8_gemm_nn_contiguous,
)
from .variants import takes_arguments_of

_BF16 = (torch.bfloat16,)


@launches_of_rows("a[0]", "a[1]", "d", "c")
def fp8_fp4_gemm_nt(
    a: Pair,
    b: Pair,
    d: torch.Tensor | Pair,
    c: torch.Tensor | None = None,
    recipe: tuple[int, int, int] | None = None,
    recipe_a: tuple[int, int] | None = None,
    recipe_b: tuple[int, int] | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    alpha: float | None = None,
    *,
    bias: torch.Tensor | None = None,
    epilogue: Epilogue = "identity",
) -> Described[None]:
    """Writes ``d = epilogue((a · sfa) · (b · sfb)ᵀ + bias) + c`` for a weight of four bits; DeepGEMM's function.

    gfx942 has no four-bit matrix instructions. Kernels widen ``b`` to FP8 after they load it, so memory is read as four
    bits: with few rows, that is most of the time. For few rows, each wave widens its columns in registers, relative to
    one power of two for all of them. That is exact for scales down to 2^27 times smaller. Groups with other scales are
    multiplied separately, in turn. For many rows, a tile is widened on its way to LDS, relative to 2^3. Tiles in which
    a scale is too far from it are computed again, as for few rows. So results are as accurate for any scales. See
    docs/numerics.md.

    Args:
        a: data FP8 [M, K] and scales fp32 [M, ceil(K/128)], as for ``fp8_gemm_nt``; K is contiguous and a multiple of
            32. Or data FP8 [M, K] or FP4 [M, K/2], rows 16-byte aligned, with a scale for each 32 values in one of the
            forms of ``b``: a kernel of its own widens these to bf16, exactly if scales are powers of two, and the rest
            is ``bf16_fp4_gemm_nt``.
        b: int8 or uint8 [N, K/2], contiguous along K, rows 16-byte aligned: two e2m1 values to a byte, the first in
            the low half, as ``per_token_cast_to_fp4`` makes them. And a scale for each 32 of them, a power of two:

            - int32 [N, ceil(K/128)], any strides: four exponents, as ``pack_ue8m0_to_int`` makes them;
            - uint8 or float8_e8m0fnu [N, K/32], contiguous along K: exponents with a bias of 127. 0 is a scale of 0,
              255 is NaN;
            - fp32 [N, K/32], contiguous along K: 0, or powers of two from 2^-126 on. Values with another scale are NaN.

            Or as ``shuffle_weight`` makes it. With FP8 data the function is ``fp8_gemm_nt``.
        d: bf16, f16 or fp32 [M, N], as ``d`` of ``fp8_gemm_nt``. A pair, to quantise the result, only with FP8 ``b``.
        c, bias, epilogue: as for ``gemm_fp8``. ``silu_and_mul`` takes 2N rows of ``b``.
        recipe: None; it is for FP8 ``b``.
        recipe_a, recipe_b: None, or (1, 128) or (1, 32), and (1, 32): how many rows, and values along K, share a scale.
            Without ``recipe_a``, the shape and dtype of ``a``'s scales tell.
        compiled_dims, disable_ue8m0_cast, alpha: as for ``fp8_gemm_nt``.

    Raises:
        NotImplementedError: a recipe that has no kernel, another ``alpha``, or a pair ``d`` with four-bit ``b``.
        TypeError, ValueError and others: as ``gemm_fp8``.
    """
    check_alpha(alpha)
    four_bits = is_four_bits(b)
    whole = _recipe_of_a("fp8_fp4_gemm_nt", a, four_bits, recipe, recipe_a, recipe_b)
    if not four_bits:
        return described_fp8_gemm(a, b, d, c, whole, bias, epilogue)
    if is_traced():
        torch.ops.deep_gemm_rocm.fp8_fp4_gemm_nt(*a, *b, *data_and_scales(d), c, bias, epilogue)
        return None, None
    options: dict[str, Any] = {"four_bits": "e2m1", "c": c, "bias": bias, "epilogue": epilogue}
    if _is_widened(a, recipe_a):
        wide, widen = _widened(a)
        gemm, arguments = check_gemm(wide, b, d, dtypes=_BF16, **options)
        return None, _after(widen, launch_dense(gemm, arguments))
    gemm, arguments = check_gemm(a, b, d, dtypes=FP8_DTYPES, recipe=whole, **options)
    return None, launch_dense(gemm, arguments)


fp4_gemm_nt = fp8_fp4_gemm_nt


@launches
@takes_arguments_of(fp8_fp4_gemm_nt)
def fp8_fp4_gemm_nn(a: Pair, b: Pair, *others: Any, **options: Any) -> Described[None]:
    """``fp8_gemm_nn``; for FP8 only. ``transpose_packed_fp4`` makes a [N, K/2] weight for ``fp8_fp4_gemm_nt``."""
    _check_is_fp8("fp8_fp4_gemm_nn", b)
    return describing(fp8_gemm_nn)(a, b, *others, **options)


@launches
@takes_arguments_of(fp8_fp4_gemm_nt, compiled_dims="mn")
def fp8_fp4_gemm_tn(a: Pair, b: Pair, *others: Any, **options: Any) -> Described[None]:
    """``fp8_gemm_tn``; for FP8 only, as ``fp8_fp4_gemm_nn``."""
    _check_is_fp8("fp8_fp4_gemm_tn", b)
    return describing(fp8_gemm_tn)(a, b, *others, **options)


@launches
@takes_arguments_of(fp8_fp4_gemm_nt, compiled_dims="mn")
def fp8_fp4_gemm_tt(a: Pair, b: Pair, *others: Any, **options: Any) -> Described[None]:
    """``fp8_gemm_tt``; for FP8 only, as ``fp8_fp4_gemm_nn``."""
    _check_is_fp8("fp8_fp4_gemm_tt", b)
    return describing(fp8_gemm_tt)(a, b, *others, **options)


@launches_of_rows("a", "d", "c")
def bf16_fp4_gemm_nt(
    a: torch.Tensor,
    b: Pair,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    *,
    bias: torch.Tensor | None = None,
    epilogue: Epilogue = "identity",
) -> Described[None]:
    """Writes ``d = epilogue(a · (b · sfb)ᵀ + bias) + c`` for a bf16 ``a`` and a weight of four bits (W4A16).

    Kernels widen ``b`` times its scales to bf16 after they load it, exactly if scales are powers of two. Sums are fp32.

    Args:
        a: bf16 [M, K], contiguous along K, which is a multiple of 32; rows 16-byte aligned.
        b: as for ``fp8_fp4_gemm_nt``. Scales of fp32 may be any numbers: then ``b`` times its scales is rounded to
            bf16, by at most 2^-8 of itself.
        d, c, bias, epilogue: as for ``fp8_fp4_gemm_nt``.

    Raises:
        NotImplementedError: a pair ``d``.
        TypeError, ValueError and others: as ``gemm_fp8``.
    """
    if is_traced():
        torch.ops.deep_gemm_rocm.bf16_fp4_gemm_nt(a, *b, d, c, bias, epilogue)
        return None, None
    gemm, arguments = check_gemm(a, b, d, dtypes=_BF16, four_bits="e2m1", c=c, bias=bias, epilogue=epilogue)
    return None, launch_dense(gemm, arguments)


@launches_of_rows("a[0]", "a[1]", "d", "grouped_layout", "m_indices")
def m_grouped_fp8_fp4_gemm_nt_contiguous(
    a: Pair,
    b: Pair,
    d: torch.Tensor | Pair,
    grouped_layout: torch.Tensor | None = None,
    recipe: tuple[int, int, int] | None = None,
    recipe_a: tuple[int, int] | None = None,
    recipe_b: tuple[int, int] | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    expected_m_for_psum_layout: int | None = None,
    *,
    m_indices: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    epilogue: Epilogue = "identity",
) -> Described[None]:
    """``m_grouped_fp8_gemm_nt_contiguous`` for weights of four bits; DeepGEMM's function of this name.

    Args:
        a, d, grouped_layout and the others: as for ``m_grouped_fp8_gemm_nt_contiguous``; K is a multiple of 32.
        b: as for ``fp8_fp4_gemm_nt``, with a first dimension G: data [G, N, K/2] and scales [G, N, K/32] or, as int32,
            [G, N, ceil(K/128)]. With FP8 data the function is ``m_grouped_fp8_gemm_nt_contiguous``.
        recipe, recipe_a, recipe_b: as for ``fp8_fp4_gemm_nt``.

    Raises:
        NotImplementedError: a recipe that has no kernel, or a pair ``d`` with four-bit ``b``.
        TypeError, ValueError and others: as ``m_grouped_fp8_gemm_nt_contiguous``.
    """
    name, four_bits = "m_grouped_fp8_fp4_gemm_nt_contiguous", is_four_bits(b)
    whole = _recipe_of_a(name, a, four_bits, recipe, recipe_a, recipe_b)
    operands = (b, d, grouped_layout, m_indices)
    rows = (use_psum_layout, ensure_zero_padding, expected_m_for_psum_layout)
    if four_bits and _is_widened(a, recipe_a):
        wide, widen = _widened(a)
        multiply = launch_contiguous(wide, *operands, None, *rows, bias, epilogue, four_bits="e2m1")
        return None, _after(widen, multiply)
    kind = "e2m1" if four_bits else ""
    return None, launch_contiguous(a, *operands, whole, *rows, bias, epilogue, four_bits=kind)


@launches
@takes_arguments_of(m_grouped_fp8_fp4_gemm_nt_contiguous)
def m_grouped_fp8_fp4_gemm_nn_contiguous(a: Pair, b: Pair, *others: Any, **options: Any) -> Described[None]:
    """``m_grouped_fp8_gemm_nn_contiguous``; for FP8 only, as ``fp8_fp4_gemm_nn``."""
    _check_is_fp8("m_grouped_fp8_fp4_gemm_nn_contiguous", b)
    return describing(m_grouped_fp8_gemm_nn_contiguous)(a, b, *others, **options)


@launches_of_number("expected_m")
def m_grouped_fp8_fp4_gemm_nt_masked(
    a: Pair,
    b: Pair,
    d: torch.Tensor | Pair,
    masked_m: torch.Tensor,
    expected_m: int,
    recipe: tuple[int, int, int] | None = None,
    recipe_a: tuple[int, int] | None = None,
    recipe_b: tuple[int, int] | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    *,
    bias: torch.Tensor | None = None,
    epilogue: Epilogue = "identity",
) -> Described[None]:
    """``m_grouped_fp8_gemm_nt_masked`` for weights of four bits; DeepGEMM's function of this name.

    Args:
        a, d, masked_m, expected_m and the others: as for ``m_grouped_fp8_gemm_nt_masked``; K is a multiple of 32.
        b, recipe, recipe_a, recipe_b: as for ``m_grouped_fp8_fp4_gemm_nt_contiguous``. With FP8 data the function is
            ``m_grouped_fp8_gemm_nt_masked``.

    Raises:
        NotImplementedError: a recipe that has no kernel, or a pair ``d`` with four-bit ``b``.
        TypeError, ValueError and others: as ``m_grouped_fp8_gemm_nt_masked``.
    """
    four_bits = is_four_bits(b)
    whole = _recipe_of_a("m_grouped_fp8_fp4_gemm_nt_masked", a, four_bits, recipe, recipe_a, recipe_b)
    if four_bits and _is_widened(a, recipe_a):
        wide, widen = _widened(a, masked_m)
        multiply = launch_masked(wide, b, d, masked_m, expected_m, None, bias, epilogue, four_bits="e2m1")[1]
        return None, _after(widen, multiply)
    operands = (a, b, d, masked_m, expected_m, whole)
    return None, launch_masked(*operands, bias, epilogue, four_bits="e2m1" if four_bits else "")[1]


# DeepGEMM's other names for these.
m_grouped_fp4_gemm_nt_contiguous = m_grouped_fp8_fp4_gemm_nt_contiguous
m_grouped_fp4_gemm_nt_masked = m_grouped_fp8_fp4_gemm_nt_masked


def _is_widened(a: Any, recipe_a: Any) -> bool:
    """Whether ``a`` is widened before it is multiplied. torch.compile's operators find out by themselves."""
    given = None if recipe_a is None else tuple(recipe_a)
    return not is_traced() and has_scales_of_groups(a, given)


def _widened(a: Any, masked_m: Any = None) -> tuple[torch.Tensor, Launch | None]:
    """A new bf16 tensor for the values of an ``a`` with a scale for 32 values along K, and the launch that fills it.

    An empty tensor has None for the launch.

    Raises:
        TypeError, ValueError: ``a`` is not as documented.
    """
    grouped = masked_m is not None
    (data, scales), shape = check_narrow("a", a, grouped=grouped)
    wide = data.new_empty(shape, dtype=torch.bfloat16)
    if not wide.numel():
        return wide, None
    return wide, widen_launch("a", (data, scales), Argument("widened", wide), masked_m)


def _after(widen: Launch | None, multiply: Any) -> list[Launch] | Launch | None:
    """The launches of a GEMM whose ``a`` is what ``widen`` makes."""
    if multiply is None:
        return None
    multiply = multiply.renamed(a="widened")
    if widen is None:
        return multiply._replace(made={**multiply.made, "widened": multiply.tensors["widened"]})
    return [widen, multiply]


def _recipe_of_a(function: str, a: Any, four_bits: bool, recipe: Any, recipe_a: Any, recipe_b: Any) -> Recipe:
    """The recipe of both operands or, if ``b`` has four bits, one whose numbers for ``a`` hold.

    Raises:
        NotImplementedError: there is no kernel for the recipe.
        TypeError, ValueError: an argument is not a recipe, or the arguments contradict each other.
    """
    if not four_bits:
        if is_four_bits(a):
            raise NotImplementedError(f"b of {function} must have four bits where a has: no kernel takes it otherwise")
        return check_recipe(function, recipe, recipe_a, recipe_b)
    check_recipe_of_four_bits(function, recipe, recipe_a, recipe_b)
    if is_four_bits(a) and recipe_a is not None and tuple(recipe_a) != (1, GROUP):
        raise NotImplementedError(f"recipe_a must be (1, {GROUP}) where a has four bits, got {recipe_a}")
    return VECTORS


def _check_is_fp8(function: str, b: Any) -> None:
    """
    Raises:
        NotImplementedError: ``b`` has four bits.
    """
    if is_four_bits(b):
        raise NotImplementedError(
            f"b of {function} must be FP8, got {b[0].dtype}: kernels take four bits along K; make b [N, K/2], for "
            "instance with transpose_packed_fp4, and call fp8_fp4_gemm_nt"
        )
