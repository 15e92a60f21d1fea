"""Grouped GEMM for mixtures of experts: one launch multiplies each group of rows with its expert's weight."""

from __future__ import annotations

from typing import Any

import torch

from ..checks import check_bool, check_int, is_traced
from ..heuristics import ChoicesByM, gemm_choices
from ..launch.gemm import SizesOfGemm, gemm_launch
from ..launch.launch import Launch
from ..launch.repeated import Described, describing, launches_of_number, launches_of_rows
from ..problems.gemm import check_gemm
from ..problems.gemm_kind import ROWS_OF_SIGNAL, Epilogue, Gemm
from ..problems.layout import Pair, ceil_div, data_and_scales
from ..problems.matrices import FP8_DTYPES
from ..problems.operands import transposed, transposed_pair
from ..problems.recipe import Recipe, check_recipe, flat_recipe
from ..runtime import settings
from .variants import takes_arguments_of, with_names_of_v1

_BF16 = (torch.bfloat16,)
_MAX_BLOCK_N = 256  # columns of the widest tile


@launches_of_rows("a[0]", "a[1]", "d", "grouped_layout", "m_indices")
def m_grouped_fp8_gemm_nt_contiguous(
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
    """Multiplies consecutive groups of rows: row i of ``d`` is row i of ``a`` times the ``b`` of its group.

    DeepGEMM's function of this name, as one launch that doesn't wait for the device. Each group's first row is a
    multiple of ``get_mk_alignment_for_contiguous_layout()``, by default 128. Rows between groups are padding, whose
    values in ``a`` don't matter.

    A row's bits depend on its values and its group's ``b`` only: K is added up in order, whatever other rows and groups
    there are. With ``set_batch_invariant(True)`` this holds for any table of tuned configurations. Four-bit weights in
    the psum layout need that setting: without it, M and ``expected_m_for_psum_layout`` also decide.

    Args:
        a: data float8_e4m3fnuz [M, K] and scales fp32 [M, ceil(K/128)].
        b: data float8_e4m3fnuz [G, N, K] and scales fp32 [G, ceil(N/128), ceil(K/128)].
        d: bf16, f16 or fp32 [M, N] to write into; or a pair to quantise the result, as for ``fp8_gemm_nt``. Strides and
            alignment of ``a``, ``b`` and ``d`` are as for ``gemm_fp8``; groups of ``b`` are a multiple of 16 bytes
            apart.
        grouped_layout: int32 [M], contiguous, on the device: each row's group, negative for padding. Errors in it
            show as NaN: the rows of a group that doesn't exist, or that isn't the group of their tile.
        use_psum_layout: whether ``grouped_layout`` is int32 [G] instead, one past each group's last row. Group g starts
            at the end of group g - 1, rounded up to the alignment. Rows after the last group's padding are not written.
        ensure_zero_padding: with ``use_psum_layout``, whether zeros are written into padding rows; otherwise they are
            not written. Without ``use_psum_layout`` they always are, as in DeepGEMM where ``a`` has zeros there.
        expected_m_for_psum_layout: about how many rows a group has. It affects the choice of a kernel and, by
            default with four-bit weights, the last bits of results.
        bias, epilogue: as for ``gemm_fp8``; ``bias`` is [G, N] with contiguous rows any distance apart.
        m_indices: another name for ``grouped_layout``.
        recipe, recipe_a, recipe_b: as for ``fp8_gemm_nt``; scales of ``b`` have a first dimension G.
        compiled_dims, disable_ue8m0_cast: as for ``fp8_gemm_nt``.

    Raises:
        TypeError, ValueError: an argument is not as above; nothing is written then.
        NotImplementedError: a recipe that has no kernel.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    whole = check_recipe("m_grouped_fp8_gemm_nt_contiguous", recipe, recipe_a, recipe_b)
    operands = (a, b, d, grouped_layout, m_indices, whole)
    rows = (use_psum_layout, ensure_zero_padding, expected_m_for_psum_layout)
    return None, launch_contiguous(*operands, *rows, bias, epilogue)


@launches_of_rows("a[0]", "a[1]", "d", "grouped_layout", "m_indices")
@takes_arguments_of(m_grouped_fp8_gemm_nt_contiguous)
def m_grouped_fp8_gemm_nn_contiguous(a: Pair, b: Pair, *others: Any, **options: Any) -> Described[None]:
    """``m_grouped_fp8_gemm_nt_contiguous`` with ``b`` transposed: [G, K, N], scales [G, ceil(K/128), ceil(N/128)].

    If N is contiguous, it must be a multiple of 4.
    """
    return describing(m_grouped_fp8_gemm_nt_contiguous)(a, transposed_pair("b", b), *others, **options)


@launches_of_rows("a", "d", "grouped_layout", "m_indices")
def m_grouped_bf16_gemm_nt_contiguous(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor | Pair,
    grouped_layout: torch.Tensor | None = None,
    compiled_dims: str = "nk",
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    expected_m_for_psum_layout: int | None = None,
    *,
    m_indices: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    epilogue: Epilogue = "identity",
) -> Described[None]:
    """``m_grouped_fp8_gemm_nt_contiguous`` for bf16 operands without scales; DeepGEMM's function of this name.

    Args:
        a: bf16 [M, K].
        b: bf16 [G, N, K]; K is a multiple of 8.
        d: bf16, f16 or fp32 [M, N] to write into.
        grouped_layout and the others: as for ``m_grouped_fp8_gemm_nt_contiguous``.

    Raises:
        TypeError, ValueError and others: as ``m_grouped_fp8_gemm_nt_contiguous``.
    """
    operands = (a, b, d, grouped_layout, m_indices, None)
    rows = (use_psum_layout, ensure_zero_padding, expected_m_for_psum_layout)
    return None, launch_contiguous(*operands, *rows, bias, epilogue)


@launches_of_rows("a", "d", "grouped_layout", "m_indices")
@takes_arguments_of(m_grouped_bf16_gemm_nt_contiguous)
def m_grouped_bf16_gemm_nn_contiguous(
    a: torch.Tensor, b: torch.Tensor, *others: Any, **options: Any
) -> Described[None]:
    """``m_grouped_bf16_gemm_nt_contiguous`` with ``b`` transposed: [G, K, N]. If N is contiguous, it must be even."""
    return describing(m_grouped_bf16_gemm_nt_contiguous)(a, transposed("b", b), *others, **options)


@launches_of_number("expected_m")
def m_grouped_fp8_gemm_nt_masked(
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
    enable_overlap: bool = False,
    max_block_n: int | None = None,
    signal: torch.Tensor | None = None,
) -> Described[tuple[int, int] | None]:
    """Computes ``d[g] = a[g] · b[g]ᵀ`` for the first ``masked_m[g]`` rows of each group g.

    DeepGEMM's function of this name, for decoding under graph capture: one launch that allocates nothing and doesn't
    wait for the device, and whose grid doesn't depend on ``masked_m``. What a row's bits depend on is as for
    ``m_grouped_fp8_gemm_nt_contiguous``.

    Args:
        a: data float8_e4m3fnuz [G, M, K] and scales fp32 [G, M, ceil(K/128)]; the scales may have any strides.
        b: data float8_e4m3fnuz [G, N, K] and scales fp32 [G, ceil(N/128), ceil(K/128)].
        d: bf16, f16 or fp32 [G, M, N] to write into; or a pair to quantise the result, as for ``fp8_gemm_nt``. Strides
            and alignment of ``a``, ``b`` and ``d`` are as for ``gemm_fp8``; groups of ``a`` and ``b`` are a multiple of
            16 bytes apart. Rows from ``masked_m[g]`` on are not written.
        masked_m: int32 [G], contiguous, on the device, clamped to 0 … M.
        expected_m: about how many rows a group has. It affects the choice of a kernel, but no result.
        bias, epilogue: as for ``gemm_fp8``; ``bias`` is [G, N] with contiguous rows any distance apart.
        recipe, recipe_a, recipe_b: as for ``fp8_gemm_nt``; scales of ``b`` have a first dimension G.
        compiled_dims, disable_ue8m0_cast: as for ``fp8_gemm_nt``.
        enable_overlap: whether finished rows are counted in ``signal``, as by SGLang's build of DeepGEMM, so that a
            kernel on another stream can send some results while others are computed. It needs compute units of its own:
            see ``set_num_sms``.
        max_block_n: the most columns of ``d`` that a tile may have; None for any.
        signal: int32, contiguous, on the device, zeros, with a counter for each group and 64 rows,
            ``G * ceil(M/64)`` of them. Counter ``g * ceil(M/block_m) + i`` is for rows ``i * block_m`` to
            ``(i + 1) * block_m - 1`` of group g. When it is read as ``threshold`` with acquire semantics at the scope
            of the device, those of these rows that are computed are visible. Counters of rows from ``masked_m[g]`` on
            stay zero. Not used without ``enable_overlap``.

    Returns:
        With ``enable_overlap``, ``block_m`` and ``threshold``, which don't depend on ``masked_m``; otherwise None.

    Raises:
        TypeError, ValueError: an argument is not as above; nothing is written then.
        NotImplementedError: a recipe that has no kernel, or ``enable_overlap`` in ``torch.compile``.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    whole = check_recipe("m_grouped_fp8_gemm_nt_masked", recipe, recipe_a, recipe_b)
    check_bool("enable_overlap", enable_overlap)
    most_columns = _MAX_BLOCK_N if max_block_n is None else check_int("max_block_n", max_block_n, 1)
    if enable_overlap and signal is None:
        raise TypeError("signal must be a torch.Tensor with enable_overlap, got None")
    counters = signal if enable_overlap else None
    return launch_masked(a, b, d, masked_m, expected_m, whole, bias, epilogue, most_columns, counters)


@launches_of_number("expected_m")
def m_grouped_bf16_gemm_nt_masked(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor | Pair,
    masked_m: torch.Tensor,
    expected_m: int,
    compiled_dims: str = "nk",
    *,
    bias: torch.Tensor | None = None,
    epilogue: Epilogue = "identity",
) -> Described[None]:
    """``m_grouped_fp8_gemm_nt_masked`` for bf16 operands without scales; DeepGEMM's function of this name.

    Args:
        a: bf16 [G, M, K].
        b: bf16 [G, N, K]; K is a multiple of 8.
        d: bf16, f16 or fp32 [G, M, N] to write into.
        masked_m, expected_m, compiled_dims, bias, epilogue: as for ``m_grouped_fp8_gemm_nt_masked``.

    Raises:
        TypeError, ValueError and others: as ``m_grouped_fp8_gemm_nt_masked``.
    """
    return None, launch_masked(a, b, d, masked_m, expected_m, None, bias, epilogue)[1]


# DeepGEMM's other names for these.
fp8_m_grouped_gemm_nt_masked = m_grouped_fp8_gemm_nt_masked
bf16_m_grouped_gemm_nt_masked = m_grouped_bf16_gemm_nt_masked

_contiguous_of_v1 = with_names_of_v1(m_grouped_fp8_gemm_nt_contiguous)
_masked_of_v1 = with_names_of_v1(m_grouped_fp8_gemm_nt_masked)


def m_grouped_gemm_fp8_fp8_bf16_nt_contiguous(
    lhs: Pair,
    rhs: Pair,
    out: torch.Tensor | Pair,
    m_indices: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    epilogue: Epilogue = "identity",
) -> None:
    """``m_grouped_fp8_gemm_nt_contiguous`` with the names of DeepGEMM 1."""
    _contiguous_of_v1(lhs, rhs, out, m_indices=m_indices, bias=bias, epilogue=epilogue)


def m_grouped_gemm_fp8_fp8_bf16_nt_masked(
    lhs: Pair,
    rhs: Pair,
    out: torch.Tensor | Pair,
    masked_m: torch.Tensor,
    expected_m: int,
    *,
    bias: torch.Tensor | None = None,
    epilogue: Epilogue = "identity",
) -> None:
    """``m_grouped_fp8_gemm_nt_masked`` with the names of DeepGEMM 1."""
    _masked_of_v1(lhs, rhs, out, masked_m, expected_m, bias=bias, epilogue=epilogue)


def launch_contiguous(
    a: Any,
    b: Any,
    d: torch.Tensor | Pair,
    grouped_layout: torch.Tensor | None,
    m_indices: torch.Tensor | None,
    recipe: Recipe | None,
    use_psum_layout: bool,
    ensure_zero_padding: bool,
    expected_m: int | None,
    bias: torch.Tensor | None,
    epilogue: Epilogue,
    *,
    four_bits: str = "",
) -> Launch | None:
    layout, layout_name = (grouped_layout, "grouped_layout") if m_indices is None else (m_indices, "m_indices")
    if grouped_layout is not None and m_indices is not None:
        raise TypeError("grouped_layout and m_indices are two names for the same argument; pass one of them")
    if is_traced():
        ops, output = torch.ops.deep_gemm_rocm, data_and_scales(d)
        rest = (use_psum_layout, ensure_zero_padding, expected_m, bias, epilogue)
        if four_bits == "int4" and recipe is None:
            ops.m_grouped_bf16_int4_gemm_nt_contiguous(a, *b, d, layout, *rest)
        elif four_bits == "int4":
            ops.m_grouped_fp8_int4_gemm_nt_contiguous(*a, *b, d, layout, *rest)
        elif four_bits:
            ops.m_grouped_fp8_fp4_gemm_nt_contiguous(*a, *b, *output, layout, *rest)
        elif recipe is None:
            ops.m_grouped_bf16_gemm_nt_contiguous(a, b, *output, layout, *rest)
        else:
            ops.m_grouped_fp8_gemm_nt_contiguous(*a, *b, *output, layout, flat_recipe(recipe), *rest)
        return None
    check_bool("use_psum_layout", use_psum_layout)
    check_bool("ensure_zero_padding", ensure_zero_padding)
    if expected_m is not None:
        check_int("expected_m_for_psum_layout", expected_m, 1)
        if not use_psum_layout:
            raise ValueError("expected_m_for_psum_layout is for use_psum_layout=True only; leave it out")
    grouping = "psum" if use_psum_layout else "contiguous"
    gemm, arguments = check_gemm(
        a,
        b,
        d,
        dtypes=_BF16 if recipe is None else FP8_DTYPES,
        recipe=recipe,
        four_bits=four_bits,
        grouping=grouping,
        layout=layout,
        layout_name=layout_name,
        bias=bias,
        epilogue=epilogue,
    )
    if gemm.m == 0 or gemm.n == 0:
        return None
    if use_psum_layout:
        rows = expected_m or ceil_div(gemm.m, gemm.groups)
        config = _choices(gemm, num_groups=gemm.groups)(rows).config
        return gemm_launch(config, gemm, arguments, write_padding=ensure_zero_padding)
    choices = _choices(gemm, max_block_m=settings.values().alignment)
    launch = gemm_launch(choices(gemm.m).config, gemm, arguments)
    return launch._replace(sizes=SizesOfGemm(gemm, choices))


def launch_masked(
    a: Any,
    b: Any,
    d: torch.Tensor | Pair,
    masked_m: torch.Tensor,
    expected_m: int,
    recipe: Recipe | None,
    bias: torch.Tensor | None,
    epilogue: Epilogue,
    max_block_n: int = _MAX_BLOCK_N,
    signal: torch.Tensor | None = None,
    *,
    four_bits: str = "",
) -> Described[tuple[int, int] | None]:
    if is_traced():
        if signal is not None:
            raise NotImplementedError("enable_overlap must be False in torch.compile: the operator returns no numbers")
        ops, rows = torch.ops.deep_gemm_rocm, (*data_and_scales(d), masked_m, expected_m)
        if four_bits == "int4" and recipe is None:
            ops.m_grouped_bf16_int4_gemm_nt_masked(a, *b, d, masked_m, expected_m, bias, epilogue)
        elif four_bits == "int4":
            ops.m_grouped_fp8_int4_gemm_nt_masked(*a, *b, d, masked_m, expected_m, bias, epilogue)
        elif four_bits:
            ops.m_grouped_fp8_fp4_gemm_nt_masked(*a, *b, *rows, bias, epilogue)
        elif recipe is None:
            ops.m_grouped_bf16_gemm_nt_masked(a, b, *rows, bias, epilogue)
        else:
            ops.m_grouped_fp8_gemm_nt_masked(*a, *b, *rows, flat_recipe(recipe), bias, epilogue)
        return None, None
    check_int("expected_m", expected_m, 0)
    gemm, arguments = check_gemm(
        a,
        b,
        d,
        dtypes=_BF16 if recipe is None else FP8_DTYPES,
        recipe=recipe,
        four_bits=four_bits,
        grouping="masked",
        layout=masked_m,
        layout_name="masked_m",
        bias=bias,
        epilogue=epilogue,
        signal=signal,
    )
    if gemm.m == 0 or gemm.n == 0:
        return None if signal is None else (ROWS_OF_SIGNAL, 0), None
    choices = _choices(gemm, num_groups=gemm.groups, max_block_n=max_block_n)
    config = choices(_expected_rows(expected_m, gemm)).config
    launch = gemm_launch(config, gemm, arguments)
    if signal is not None:  # the configuration decides what is returned
        return (config.rows_of_signal, config.tiles_of_signal(gemm.n)), launch
    sizes = SizesOfGemm(gemm, choices)
    return None, launch._replace(sizes=lambda number: sizes.of(choices(_expected_rows(number, gemm)), gemm.m))


def _expected_rows(expected_m: int, gemm: Gemm) -> int:
    return min(max(check_int("expected_m", expected_m, 0), 1), gemm.m)


def _choices(gemm: Gemm, **limits: int) -> ChoicesByM:
    return gemm_choices(gemm.kind, gemm.n, gemm.k, settings.num_cus(), **limits)
