"""Dense GEMM."""

from __future__ import annotations

from typing import Any

import torch

from ..checks import is_traced
from ..heuristics import dense_choices
from ..heuristics.gemm_problem import are_scale_rows_apart
from ..launch.gemm import SizesOfGemm, computed, gemm_launch
from ..launch.launch import Launch
from ..launch.repeated import Described, describing, launches, launches_of_rows
from ..problems.arguments import Argument, Arguments
from ..problems.gemm import check_gemm
from ..problems.gemm_kind import PARTS_OF_B, Epilogue, Gemm
from ..problems.layout import Pair, data_and_scales
from ..problems.matrices import FP8_DTYPES
from ..problems.operands import check_head_splits, transposed, transposed_pair
from ..problems.recipe import Recipe, check_recipe, flat_recipe
from ..runtime import settings
from .variants import takes_arguments_of, with_names_of_v1


@launches_of_rows("a[0]", "a[1]", "out", "c")
def gemm_fp8(
    a: Pair,
    b: Pair,
    out: torch.Tensor | None = None,
    c: torch.Tensor | None = None,
    recipe: tuple[int | None, int | None, int | None] | None = None,
    *,
    bias: torch.Tensor | None = None,
    epilogue: Epilogue = "identity",
) -> Described[torch.Tensor]:
    """Multiplies FP8 activations with FP8 weights: ``out = epilogue((a · sfa) · (b · sfb)ᵀ + bias) + c``.

    All sums are fp32. If scales vary along K, the matrix cores sum each 128 values along K; these sums are scaled and
    added up in fp32. The same inputs give the same bits. A row's bits depend on no other row, but by default on M,
    which decides into how many parts K is split. With ``set_batch_invariant(True)`` they don't: a row has the same bits
    for any M. This holds for all functions of dense GEMM.

    Args:
        a: data float8_e4m3fnuz [M, K] and scales fp32 [M, ceil(K/128)], as ``per_token_cast_to_fp8`` returns them.
        b: data float8_e4m3fnuz [N, K] and scales fp32 [ceil(N/128), ceil(K/128)], as ``per_block_cast_to_fp8`` returns
            them.
        out: bf16, f16 or fp32 [M, N] to write into, rows contiguous and not overlapping; a new bf16 one if None. It
            must not share memory with the inputs.
        c: [M, N] of ``out``'s dtype, added before the result is rounded; may be ``out`` itself. Only with the epilogue
            ``identity``.
        recipe: how many rows of ``a``, rows of ``b`` and values along K share a scale, None for all of them:

            - (1, 128, 128), the default, as above;
            - (1, 1, 128): ``sfb`` is [N, ceil(K/128)], as ``per_token_cast_to_fp8`` returns it for a weight;
            - (1, 1, None): one scale for each token and one for each output channel, ``sfa`` [M, 1] and ``sfb`` [N, 1];
            - (None, None, None): one scale for each tensor, [1, 1]; (1, None, None) and (None, 1, None) likewise.

        bias: bf16, f16 or fp32 [N], contiguous, added to each row before the epilogue.
        epilogue: ``identity``, also as None, or ``silu_and_mul``, which returns ``silu(gate) * up``. Then ``b`` is
            [2N, K] with the weights of gate before those of up, its scales and ``bias`` likewise; if blocks of ``b``
            share scales, N is a multiple of 128.

    M and N are arbitrary; N runs at full speed if it is a multiple of 8 and rows of ``out`` are 16-byte aligned. K is a
    multiple of 16. Rows of the data are contiguous, 16-byte aligned and any distance apart. Scales may have any
    strides; multiplying data with its scales dequantises it. Of each tensor, any 256 rows in sequence take less than
    2 GiB. The data of either operand may be float8_e5m2fnuz instead.

    Returns:
        ``out``.

    Raises:
        TypeError, ValueError: an argument is not as above; nothing is written then.
        NotImplementedError: another recipe.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    whole = check_recipe("gemm_fp8", recipe, None, None)
    if is_traced():
        traced = _new_output(a, b, epilogue) if out is None else out
        torch.ops.deep_gemm_rocm.fp8_gemm_nt(*a, *b, traced, None, c, flat_recipe(whole), bias, epilogue)
        return traced, None
    gemm, arguments = check_gemm(
        a, b, out, dtypes=FP8_DTYPES, recipe=whole, c=c, d_name="out", bias=bias, epilogue=epilogue
    )
    made = {}
    if out is None:
        out = made["out"] = a[0].new_empty(gemm.m, gemm.n, dtype=torch.bfloat16)
        arguments["d"] = Argument("out", out)
    return out, launch_dense(gemm, arguments, made=made)


@launches_of_rows("a[0]", "a[1]", "d", "c")
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
    alpha: float | None = None,
    *,
    bias: torch.Tensor | None = None,
    epilogue: Epilogue = "identity",
) -> Described[None]:
    """DeepGEMM's name and signature for ``gemm_fp8``: writes ``d = epilogue((a · sfa) · (b · sfb)ᵀ + bias) + c``.

    Args:
        a, b, c, bias, epilogue: as for ``gemm_fp8``.
        d: as ``out`` of ``gemm_fp8``; or a pair, to quantise the result: FP8 [M, N] and scales fp32 [M, ceil(N/128)] of
            any strides. They become what ``per_token_cast_to_fp8`` would return for the fp32 result. Then ``c`` must be
            None.
        recipe: as for ``gemm_fp8``.
        recipe_a, recipe_b: the recipe as pairs instead: (rows of ``a``, values along K) and (rows of ``b``, values
            along K).
        compiled_dims: accepted and not used; no dimension is compiled into a kernel here.
        disable_ue8m0_cast: accepted and not used; scales stay fp32 on this hardware.
        alpha: None or 1.

    Raises:
        NotImplementedError: a recipe that has no kernel, or another ``alpha``.
        TypeError, ValueError and others: as ``gemm_fp8``.
    """
    check_alpha(alpha)
    whole = check_recipe("fp8_gemm_nt", recipe, recipe_a, recipe_b)
    return described_fp8_gemm(a, b, d, c, whole, bias, epilogue)


def described_fp8_gemm(
    a: Pair,
    b: Pair,
    d: torch.Tensor | Pair,
    c: torch.Tensor | None,
    recipe: Recipe,
    bias: torch.Tensor | None,
    epilogue: Epilogue,
) -> Described[None]:
    if is_traced():
        torch.ops.deep_gemm_rocm.fp8_gemm_nt(*a, *b, *data_and_scales(d), c, flat_recipe(recipe), bias, epilogue)
        return None, None
    gemm, arguments = check_gemm(a, b, d, dtypes=FP8_DTYPES, recipe=recipe, c=c, bias=bias, epilogue=epilogue)
    return None, launch_dense(gemm, arguments)


@launches_of_rows("a[0]", "a[1]", "d", "c")
@takes_arguments_of(fp8_gemm_nt)
def fp8_gemm_nn(a: Pair, b: Pair, *others: Any, **options: Any) -> Described[None]:
    """DeepGEMM's ``fp8_gemm_nt`` with ``b`` transposed: ``b`` is [K, N], its scales [ceil(K/128), ceil(N/128)].

    Either dimension of the data may be contiguous; nothing is copied. If N is contiguous, it must be a multiple of 4.
    See ``fp8_gemm_nt`` for the other arguments and the errors.
    """
    return describing(fp8_gemm_nt)(a, transposed_pair("b", b), *others, **options)


@launches
@takes_arguments_of(fp8_gemm_nt, compiled_dims="mn")
def fp8_gemm_tn(a: Pair, b: Pair, *others: Any, **options: Any) -> Described[None]:
    """``fp8_gemm_nt`` with ``a`` and ``b`` transposed: [K, M] and [K, N], scales likewise.

    If M is contiguous, it must be a multiple of 4, and so must N. See ``fp8_gemm_nn``.
    """
    return describing(fp8_gemm_nt)(transposed_pair("a", a), transposed_pair("b", b), *others, **options)


@launches
@takes_arguments_of(fp8_gemm_nt, compiled_dims="mn")
def fp8_gemm_tt(a: Pair, b: Pair, *others: Any, **options: Any) -> Described[None]:
    """``fp8_gemm_nt`` with ``a`` transposed: [K, M], scales likewise.

    If M is contiguous, it must be a multiple of 4. See ``fp8_gemm_nn``.
    """
    return describing(fp8_gemm_nt)(transposed_pair("a", a), b, *others, **options)


@launches_of_rows("a[0]", "a[1]", "d")
def fp8_gemm_nt_skip_head_mid(
    a: Pair,
    b: Pair,
    d: torch.Tensor,
    head_splits: tuple[int, int, int],
    recipe: tuple[int, int, int] | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    *,
    bias: torch.Tensor | None = None,
    epilogue: Epilogue = "identity",
) -> Described[None]:
    """``fp8_gemm_nt`` that leaves a gap in each head's columns of ``d``; DeepGEMM's function of this name.

    The gap is for elements with rotary positions, which another kernel writes.

    Args:
        a, b: as for ``fp8_gemm_nt``; N is a multiple of left + right.
        d: bf16, f16 or fp32 [M, N / (left + right) · (left + mid + right)], as ``out`` of ``gemm_fp8``. In each head,
            the ``mid`` columns after the first ``left`` ones are not written. It can't be a pair: no kernel quantises
            around gaps.
        head_splits: the columns of a head, (left, mid, right), any three numbers; multiples of 8 (4 for fp32) are
            fastest.
        recipe, compiled_dims, disable_ue8m0_cast: as for ``fp8_gemm_nt``.
        bias, epilogue: as for ``gemm_fp8``. ``bias`` is [N], without gaps; ``silu_and_mul`` takes 2N rows of ``b``.

    Raises:
        NotImplementedError: a recipe that has no kernel.
        TypeError, ValueError and others: as ``gemm_fp8``.
    """
    whole = check_recipe("fp8_gemm_nt_skip_head_mid", recipe, None, None)
    splits = check_head_splits(head_splits)
    if is_traced():
        torch.ops.deep_gemm_rocm.fp8_gemm_nt_skip_head_mid(*a, *b, d, splits, flat_recipe(whole), bias, epilogue)
        return None, None
    gemm, arguments = check_gemm(
        a, b, d, dtypes=FP8_DTYPES, recipe=whole, head_splits=splits, bias=bias, epilogue=epilogue
    )
    return None, launch_dense(gemm, arguments, head_splits=splits)


fp8_gemm_nt_of_v1 = with_names_of_v1(fp8_gemm_nt)


def gemm_fp8_fp8_bf16_nt(
    lhs: Pair,
    rhs: Pair,
    out: torch.Tensor | Pair,
    *,
    bias: torch.Tensor | None = None,
    epilogue: Epilogue = "identity",
) -> None:
    """``fp8_gemm_nt(lhs, rhs, out)`` under its name in DeepGEMM 1."""
    fp8_gemm_nt_of_v1(lhs, rhs, out, bias=bias, epilogue=epilogue)


@launches_of_rows("a", "d", "c")
def bf16_gemm_nt(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor | Pair,
    c: torch.Tensor | None = None,
    compiled_dims: str = "nk",
    alpha: float | None = None,
    *,
    bias: torch.Tensor | None = None,
    epilogue: Epilogue = "identity",
) -> Described[None]:
    """Writes ``d = epilogue(a · bᵀ + bias) + c``, accumulated in fp32; DeepGEMM's function of this name.

    A row's bits depend on the same as for ``gemm_fp8``.

    Args:
        a: bf16 [M, K].
        b: bf16 [N, K]. Strides and alignment of both are as for ``gemm_fp8``; K is a multiple of 8.
        d: bf16, f16 or fp32 [M, N], or a pair, as ``d`` of ``fp8_gemm_nt``.
        c, bias, epilogue: as for ``gemm_fp8``.
        compiled_dims: accepted and not used; no dimension is compiled into a kernel here.
        alpha: None or 1.

    Raises:
        NotImplementedError: another ``alpha``.
        TypeError, ValueError and others: as ``gemm_fp8``.
    """
    check_alpha(alpha)
    if is_traced():
        torch.ops.deep_gemm_rocm.bf16_gemm_nt(a, b, *data_and_scales(d), c, bias, epilogue)
        return None, None
    gemm, arguments = check_gemm(a, b, d, dtypes=(torch.bfloat16,), c=c, bias=bias, epilogue=epilogue)
    return None, launch_dense(gemm, arguments)


@launches_of_rows("a", "d", "c")
@takes_arguments_of(bf16_gemm_nt)
def bf16_gemm_nn(a: torch.Tensor, b: torch.Tensor, *others: Any, **options: Any) -> Described[None]:
    """``bf16_gemm_nt(a, b.T, d, c)``: ``b`` is [K, N]. If N is contiguous, it must be even."""
    return describing(bf16_gemm_nt)(a, transposed("b", b), *others, **options)


@launches
@takes_arguments_of(bf16_gemm_nt, compiled_dims="mn")
def bf16_gemm_tn(a: torch.Tensor, b: torch.Tensor, *others: Any, **options: Any) -> Described[None]:
    """``bf16_gemm_nt(a.T, b.T, d, c)``: ``a`` is [K, M], ``b`` [K, N]. If M or N is contiguous, it must be even."""
    return describing(bf16_gemm_nt)(transposed("a", a), transposed("b", b), *others, **options)


@launches
@takes_arguments_of(bf16_gemm_nt, compiled_dims="mn")
def bf16_gemm_tt(a: torch.Tensor, b: torch.Tensor, *others: Any, **options: Any) -> Described[None]:
    """``bf16_gemm_nt(a.T, b, d, c)``: ``a`` is [K, M]. If M is contiguous, it must be even."""
    return describing(bf16_gemm_nt)(transposed("a", a), b, *others, **options)


@launches_of_rows("a", "d", "c")
def f16_gemm_nt(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor | Pair,
    c: torch.Tensor | None = None,
    *,
    bias: torch.Tensor | None = None,
    epilogue: Epilogue = "identity",
) -> Described[None]:
    """``bf16_gemm_nt`` for f16 operands; DeepGEMM has no such function."""
    if is_traced():
        torch.ops.deep_gemm_rocm.f16_gemm_nt(a, b, *data_and_scales(d), c, bias, epilogue)
        return None, None
    gemm, arguments = check_gemm(a, b, d, dtypes=(torch.float16,), c=c, bias=bias, epilogue=epilogue)
    return None, launch_dense(gemm, arguments)


def check_alpha(alpha: Any) -> None:
    """
    Raises:
        NotImplementedError: the factor of a whole result isn't None or 1.
    """
    if alpha is not None and alpha != 1:
        raise NotImplementedError(
            f"alpha must be None or 1, got {alpha!r}: kernels here don't multiply the result by a number; multiply the "
            "scales of b by it, or an operand without scales"
        )


def _new_output(a: Pair, b: Pair, epilogue: Epilogue) -> torch.Tensor:
    (m, _), data_of_b = a[0].shape, b[0]
    n = data_of_b.shape[-2] // PARTS_OF_B.get(epilogue or "identity", 1)
    return torch.empty(m, n, dtype=torch.bfloat16, device=data_of_b.device)


def launch_dense(
    gemm: Gemm,
    arguments: Arguments,
    *,
    head_splits: tuple[int, int, int] | None = None,
    made: dict[str, torch.Tensor] | None = None,
) -> Launch | None:
    if gemm.m == 0 or gemm.n == 0:
        return None
    rows_are_apart = gemm.kind.scaling == "blocks" and are_scale_rows_apart(arguments["sfa"].tensor.stride())
    choices = dense_choices(gemm.kind, gemm.n, gemm.k, settings.num_cus(), scale_rows_are_apart=rows_are_apart)
    launch = gemm_launch(*computed(choices(gemm.m), gemm), arguments, head_splits=head_splits, made=made)
    return launch._replace(sizes=SizesOfGemm(gemm, choices))
