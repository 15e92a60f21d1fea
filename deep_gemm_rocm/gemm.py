"""Dense GEMM."""

from __future__ import annotations

import torch

from . import settings
from .contracts import (
    FP8_DTYPES,
    Gemm,
    check_gemm,
    check_head_splits,
    check_recipe,
    flat_recipe,
    transposed,
    transposed_pair,
)
from .gemm_kernel import launch_gemm
from .heuristics import choose_dense
from .heuristics.gemm_config import PARTS_OF_B
from .layout import Pair, data_and_scales, unshuffled_shape
from .split_k import launch_split_gemm
from .warm import output, repeatable


@repeatable
def gemm_fp8(
    a: Pair,
    b: Pair,
    out: torch.Tensor | None = None,
    *,
    c: torch.Tensor | None = None,
    recipe: tuple[int | None, int | None, int | None] | None = None,
    bias: torch.Tensor | None = None,
    epilogue: str = "identity",
) -> torch.Tensor:
    """Multiplies FP8 activations with FP8 weights: ``out = epilogue((a · sfa) · (b · sfb)ᵀ + bias) + c``.

    All sums are fp32. Where scales vary along K, every 128 of K are summed by the matrix cores, then scaled and added
    up in fp32. The same inputs give the same bits.

    Args:
        a: data float8_e4m3fnuz [M, K] and scales fp32 [M, ceil(K/128)], as ``per_token_cast_to_fp8`` returns them.
        b: data float8_e4m3fnuz [N, K] and scales fp32 [ceil(N/128), ceil(K/128)], as ``per_block_cast_to_fp8`` returns
            them.
        out: bf16, f16 or fp32 [M, N] to write into, rows contiguous and not overlapping; a new bf16 one if None. It
            must not share memory with the inputs.
        c: [M, N] of ``out``'s dtype, added before the result is rounded; may be ``out`` itself. Only with the epilogue
            ``identity``.
        recipe: rows of ``a``, rows of ``b`` and values along K that share a scale, None for all of them:

            - (1, 128, 128), the default, as above;
            - (1, 1, 128): ``sfb`` is [N, ceil(K/128)], as ``per_token_cast_to_fp8`` returns it for a weight;
            - (1, 1, None): one for each token and one for each output channel, ``sfa`` [M, 1] and ``sfb`` [N, 1];
            - (None, None, None): one for each tensor, [1, 1]; (1, None, None) and (None, 1, None) likewise.

        bias: bf16, f16 or fp32 [N], contiguous, added to each row before the epilogue.
        epilogue: ``identity``, or ``silu_and_mul``: ``b`` is [2N, K] (its scales and ``bias`` likewise), the gate's
            weights before up's, and the result ``silu(gate) * up``. N is a multiple of 128 then where blocks of ``b``
            share scales.

    M and N are arbitrary (an N that is a multiple of 8 with 16-byte aligned rows of ``out`` runs at full speed), K is a
    multiple of 16. Rows of the data are contiguous, 16-byte aligned and any distance apart; scales may have any
    strides, and are multiplied with the data to dequantise it. The data may be float8_e5m2fnuz as well, either of them.

    Returns:
        ``out``.

    Raises:
        TypeError, ValueError: an argument is not as above; nothing is written then.
        NotImplementedError: another recipe.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    whole = check_recipe("gemm_fp8", recipe, None, None)
    if torch.compiler.is_compiling():
        traced = _new_output(a, b, epilogue) if out is None else out
        torch.ops.deep_gemm_rocm.fp8_gemm_nt(*a, *b, traced, None, c, flat_recipe(whole), bias, epilogue)
        return traced
    gemm = check_gemm(a, b, out, dtypes=FP8_DTYPES, recipe=whole, c=c, d_name="out", bias=bias, epilogue=epilogue)
    if out is None:
        out = output(gemm.m, gemm.n, dtype=torch.bfloat16, beside=a[0])
    _launch(a, b, out, c, gemm, bias=bias)
    return out


@repeatable
def fp8_gemm_nt(
    a: Pair,
    b: Pair,
    d: torch.Tensor | Pair,
    c: torch.Tensor | None = None,
    recipe: tuple[int, int, int] | None = None,
    recipe_a: tuple[int, int] | None = None,
    recipe_b: tuple[int, int] | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    *,
    bias: torch.Tensor | None = None,
    epilogue: str = "identity",
) -> None:
    """DeepGEMM's name and signature for ``gemm_fp8``: writes ``d = epilogue((a · sfa) · (b · sfb)ᵀ + bias) + c``.

    Args:
        a, b, c, d, bias, epilogue: as ``a``, ``b``, ``c``, ``out``, ``bias`` and ``epilogue`` of ``gemm_fp8``. ``d``
            may also be a pair, to quantise the result: FP8 [M, N] and fp32 [M, ceil(N/128)] of any strides, which
            become what ``per_token_cast_to_fp8`` would return for the fp32 result. ``c`` must be None then.
        recipe: as for ``gemm_fp8``.
        recipe_a, recipe_b: the same as pairs, (rows of ``a``, values along K) and (rows of ``b``, values along K).
        compiled_dims: accepted and not used; no dimension is compiled into a kernel here.
        disable_ue8m0_cast: accepted and not used; scales stay fp32 on this hardware.

    Raises:
        NotImplementedError: a recipe that has no kernel.
        TypeError, ValueError and others: as ``gemm_fp8``.
    """
    whole = check_recipe("fp8_gemm_nt", recipe, recipe_a, recipe_b)
    if torch.compiler.is_compiling():
        torch.ops.deep_gemm_rocm.fp8_gemm_nt(*a, *b, *data_and_scales(d), c, flat_recipe(whole), bias, epilogue)
        return
    gemm = check_gemm(a, b, d, dtypes=FP8_DTYPES, recipe=whole, c=c, bias=bias, epilogue=epilogue)
    _launch(a, b, d, c, gemm, bias=bias)


def fp8_gemm_nn(
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
    """``fp8_gemm_nt`` of ``b`` transposed, data and scales: ``b`` is [K, N], its scales [ceil(K/128), ceil(N/128)].

    As in DeepGEMM. Whichever dimension of the data is contiguous, the same kernel family multiplies it without a copy;
    contiguous N must be a multiple of 4. See ``fp8_gemm_nt`` for the other arguments and the errors.
    """
    fp8_gemm_nt(a, transposed_pair("b", b), d, c, recipe, recipe_a, recipe_b, compiled_dims, disable_ue8m0_cast)


def fp8_gemm_tn(
    a: Pair,
    b: Pair,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    recipe: tuple[int, int, int] | None = None,
    recipe_a: tuple[int, int] | None = None,
    recipe_b: tuple[int, int] | None = None,
    compiled_dims: str = "mn",
    disable_ue8m0_cast: bool = False,
) -> None:
    """``fp8_gemm_nt`` of ``a`` and ``b`` transposed: [K, M] and [K, N], scales likewise. See ``fp8_gemm_nn``."""
    a, b = transposed_pair("a", a), transposed_pair("b", b)
    fp8_gemm_nt(a, b, d, c, recipe, recipe_a, recipe_b, compiled_dims, disable_ue8m0_cast)


def fp8_gemm_tt(
    a: Pair,
    b: Pair,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    recipe: tuple[int, int, int] | None = None,
    recipe_a: tuple[int, int] | None = None,
    recipe_b: tuple[int, int] | None = None,
    compiled_dims: str = "mn",
    disable_ue8m0_cast: bool = False,
) -> None:
    """``fp8_gemm_nt`` of ``a`` transposed: [K, M], scales likewise. See ``fp8_gemm_nn``."""
    fp8_gemm_nt(transposed_pair("a", a), b, d, c, recipe, recipe_a, recipe_b, compiled_dims, disable_ue8m0_cast)


@repeatable
def fp8_gemm_nt_skip_head_mid(
    a: Pair,
    b: Pair,
    d: torch.Tensor,
    head_splits: tuple[int, int, int],
    recipe: tuple[int, int, int] | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
) -> None:
    """``fp8_gemm_nt`` that leaves a gap in each head's columns of ``d``; DeepGEMM's function of this name.

    Attention keeps what has rotary positions in the middle of a head, where something else writes it.

    Args:
        a, b: as for ``fp8_gemm_nt``; N is a multiple of left + right.
        d: bf16, f16 or fp32 [M, N / (left + right) · (left + mid + right)], as ``out`` of ``gemm_fp8``. Of each head,
            the ``mid`` columns behind the ``left`` ones are not written.
        head_splits: the columns of a head, (left, mid, right), any three numbers; multiples of 8 (4 for fp32) are
            fastest.
        recipe, compiled_dims, disable_ue8m0_cast: as for ``fp8_gemm_nt``.

    Raises:
        NotImplementedError: a recipe that has no kernel.
        TypeError, ValueError and others: as ``gemm_fp8``.
    """
    whole = check_recipe("fp8_gemm_nt_skip_head_mid", recipe, None, None)
    splits = check_head_splits(head_splits)
    if torch.compiler.is_compiling():
        torch.ops.deep_gemm_rocm.fp8_gemm_nt_skip_head_mid(*a, *b, d, splits, flat_recipe(whole))
        return
    gemm = check_gemm(a, b, d, dtypes=FP8_DTYPES, recipe=whole, head_splits=splits)
    _launch(a, b, d, None, gemm, head_splits=splits)


# DeepGEMM's names for operands of which either may be FP4; here both are FP8.
fp8_fp4_gemm_nt = fp8_gemm_nt
fp8_fp4_gemm_nn = fp8_gemm_nn
fp8_fp4_gemm_tn = fp8_gemm_tn
fp8_fp4_gemm_tt = fp8_gemm_tt


def gemm_fp8_fp8_bf16_nt(lhs: Pair, rhs: Pair, out: torch.Tensor) -> None:
    """``fp8_gemm_nt(lhs, rhs, out)`` under the name that it had in DeepGEMM 1."""
    fp8_gemm_nt(lhs, rhs, out)


@repeatable
def bf16_gemm_nt(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor | Pair,
    c: torch.Tensor | None = None,
    compiled_dims: str = "nk",
    *,
    bias: torch.Tensor | None = None,
    epilogue: str = "identity",
) -> None:
    """Writes ``d = epilogue(a · bᵀ + bias) + c``, accumulated in fp32; DeepGEMM's function of this name.

    Args:
        a: bf16 [M, K].
        b: bf16 [N, K]. Strides and alignment of both as for ``gemm_fp8``; K is a multiple of 8.
        d: bf16, f16 or fp32 [M, N], or a pair, as ``d`` of ``fp8_gemm_nt``.
        c, bias, epilogue: as for ``gemm_fp8``.
        compiled_dims: accepted and not used; no dimension is compiled into a kernel here.

    Raises:
        TypeError, ValueError and others: as ``gemm_fp8``.
    """
    if torch.compiler.is_compiling():
        torch.ops.deep_gemm_rocm.bf16_gemm_nt(a, b, *data_and_scales(d), c, bias, epilogue)
        return
    gemm = check_gemm(a, b, d, dtypes=(torch.bfloat16,), c=c, bias=bias, epilogue=epilogue)
    _launch(a, b, d, c, gemm, bias=bias)


def bf16_gemm_nn(
    a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None, compiled_dims: str = "nk"
) -> None:
    """``bf16_gemm_nt(a, b.T, d, c)``: ``b`` is [K, N]; contiguous N must be even."""
    bf16_gemm_nt(a, transposed("b", b), d, c, compiled_dims)


def bf16_gemm_tn(
    a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None, compiled_dims: str = "mn"
) -> None:
    """``bf16_gemm_nt(a.T, b.T, d, c)``: ``a`` is [K, M], ``b`` [K, N]; contiguous M and N must be even."""
    bf16_gemm_nt(transposed("a", a), transposed("b", b), d, c, compiled_dims)


def bf16_gemm_tt(
    a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None, compiled_dims: str = "mn"
) -> None:
    """``bf16_gemm_nt(a.T, b, d, c)``: ``a`` is [K, M]; contiguous M must be even."""
    bf16_gemm_nt(transposed("a", a), b, d, c, compiled_dims)


@repeatable
def f16_gemm_nt(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor | Pair,
    c: torch.Tensor | None = None,
    *,
    bias: torch.Tensor | None = None,
    epilogue: str = "identity",
) -> None:
    """``bf16_gemm_nt`` for f16 operands; DeepGEMM has no such function."""
    if torch.compiler.is_compiling():
        torch.ops.deep_gemm_rocm.f16_gemm_nt(a, b, *data_and_scales(d), c, bias, epilogue)
        return
    gemm = check_gemm(a, b, d, dtypes=(torch.float16,), c=c, bias=bias, epilogue=epilogue)
    _launch(a, b, d, c, gemm, bias=bias)


def _new_output(a: Pair, b: Pair, epilogue: str) -> torch.Tensor:
    (m, _), data_of_b = a[0].shape, b[0]
    shape_of_b = unshuffled_shape(data_of_b.shape, data_of_b.dtype) if data_of_b.dim() >= 5 else data_of_b.shape
    n = (shape_of_b or (0, 0))[-2] // PARTS_OF_B.get(epilogue, 1)
    return torch.empty(m, n, dtype=torch.bfloat16, device=data_of_b.device)


def _launch(
    a: Pair | torch.Tensor,
    b: Pair | torch.Tensor,
    d: Pair | torch.Tensor,
    c: torch.Tensor | None,
    gemm: Gemm,
    *,
    bias: torch.Tensor | None = None,
    head_splits: tuple[int, int, int] | None = None,
) -> None:
    if gemm.m == 0 or gemm.n == 0:
        return
    config, splits = choose_dense(gemm.kind, gemm.m, gemm.n, gemm.k, settings.get_num_sms())
    if splits == 1:
        launch_gemm(config, gemm, a, b, d, c=c, bias=bias, head_splits=head_splits)
    else:
        launch_split_gemm(config, gemm, a, b, d, splits, c=c, bias=bias)
