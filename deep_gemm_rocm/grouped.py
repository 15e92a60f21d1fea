"""Grouped GEMM for mixtures of experts: one launch multiplies each group of rows with its expert's weight."""

from __future__ import annotations

import torch

from . import settings
from .contracts import Pair, check_int, check_m_grouped_fp8_gemm_nt, check_recipes
from .gemm_kernel import launch_gemm
from .heuristics import choose_gemm_config
from .layout import ceil_div


def m_grouped_fp8_gemm_nt_contiguous(
    a: Pair,
    b: Pair,
    d: torch.Tensor,
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
) -> None:
    """Multiplies groups of rows that lie behind one another: row i of ``d`` is row i of ``a`` times its group's ``b``.

    As DeepGEMM's function of this name, on one launch and without waiting for the device. Each group's first row is a
    multiple of ``get_mk_alignment_for_contiguous_layout()``, 128 unless it was set; the rows between groups are
    padding, whose values in ``a`` don't matter.

    Args:
        a: data float8_e4m3fnuz [M, K] and scales fp32 [M, ceil(K/128)].
        b: data float8_e4m3fnuz [G, N, K] and scales fp32 [G, ceil(N/128), ceil(K/128)].
        d: bf16 [M, N] to write into. Strides and alignment of it, ``a`` and ``b`` as for ``gemm_fp8``, and groups of
            ``b`` a multiple of 16 bytes apart.
        grouped_layout: int32 [M], contiguous, on the device: each row's group, negative for padding. A layout that
            isn't as described shows as NaN: rows of a group that doesn't exist, or of another than their tile's.
        use_psum_layout: ``grouped_layout`` is int32 [G] instead: the row behind each group's last one. Group g starts
            at the end of group g - 1, rounded up to the alignment. Rows behind the last group's padding are not
            written.
        ensure_zero_padding: write zeros into padding rows; else they are not written.
        expected_m_for_psum_layout: about how many rows a group has. Helps to choose a kernel, changes no result.
        m_indices: another name for ``grouped_layout``.
        recipe, recipe_a, recipe_b: None, or (1, 128, 128), (1, 128) and (128, 128).
        compiled_dims, disable_ue8m0_cast: as for ``fp8_gemm_nt``.

    Raises:
        TypeError, ValueError: an argument is not as above; nothing is written then.
        NotImplementedError: a recipe that is not supported yet.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    check_recipes("m_grouped_fp8_gemm_nt_contiguous", recipe, recipe_a, recipe_b)
    layout_name = "grouped_layout" if m_indices is None else "m_indices"
    if m_indices is not None and grouped_layout is not None:
        raise TypeError("grouped_layout and m_indices are two names for the same argument; pass one of them")
    layout = grouped_layout if m_indices is None else m_indices
    if expected_m_for_psum_layout is not None:
        check_int("expected_m_for_psum_layout", expected_m_for_psum_layout, 1)
        if not use_psum_layout:
            raise ValueError("expected_m_for_psum_layout is for use_psum_layout=True only; leave it out")

    grouping = "psum" if use_psum_layout else "contiguous"
    m, n, k, groups = check_m_grouped_fp8_gemm_nt(grouping, a, b, d, layout, layout_name)
    if m == 0 or n == 0:
        return
    if use_psum_layout:
        rows = expected_m_for_psum_layout or ceil_div(m, groups)
        config = choose_gemm_config(rows, n, k, settings.get_num_sms(), grouping=grouping, num_groups=groups)
    else:
        alignment = settings.get_mk_alignment_for_contiguous_layout()
        config = choose_gemm_config(m, n, k, settings.get_num_sms(), grouping=grouping, max_block_m=alignment)
    launch_gemm(config, a, b, d, layout, write_padding=ensure_zero_padding)


def m_grouped_fp8_gemm_nt_masked(
    a: Pair,
    b: Pair,
    d: torch.Tensor,
    masked_m: torch.Tensor,
    expected_m: int,
    recipe: tuple[int, int, int] | None = None,
    recipe_a: tuple[int, int] | None = None,
    recipe_b: tuple[int, int] | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
) -> None:
    """Multiplies the first ``masked_m[g]`` rows of each group g: ``d[g] = a[g] · b[g]ᵀ`` there.

    As DeepGEMM's function of this name, for decoding under graph capture: one launch that allocates nothing and doesn't
    wait for the device, whose grid doesn't depend on ``masked_m``.

    Args:
        a: data float8_e4m3fnuz [G, M, K] and scales fp32 [G, M, ceil(K/128)]; the scales may have any strides.
        b: data float8_e4m3fnuz [G, N, K] and scales fp32 [G, ceil(N/128), ceil(K/128)].
        d: bf16 [G, M, N] to write into. Strides and alignment of it, ``a`` and ``b`` as for ``gemm_fp8``, and groups of
            ``a`` and ``b`` a multiple of 16 bytes apart. Rows from ``masked_m[g]`` on are not written.
        masked_m: int32 [G], contiguous, on the device, from 0 to M (numbers outside count as the nearer of the two).
        expected_m: about how many rows a group has. Helps to choose a kernel, changes no result.
        recipe, recipe_a, recipe_b: None, or (1, 128, 128), (1, 128) and (128, 128).
        compiled_dims, disable_ue8m0_cast: as for ``fp8_gemm_nt``.

    Raises:
        TypeError, ValueError: an argument is not as above; nothing is written then.
        NotImplementedError: a recipe that is not supported yet.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    check_recipes("m_grouped_fp8_gemm_nt_masked", recipe, recipe_a, recipe_b)
    expected_m = check_int("expected_m", expected_m, 0)
    m, n, k, groups = check_m_grouped_fp8_gemm_nt("masked", a, b, d, masked_m, "masked_m")
    if m == 0 or n == 0:
        return
    rows = min(max(expected_m, 1), m)
    config = choose_gemm_config(rows, n, k, settings.get_num_sms(), grouping="masked", num_groups=groups)
    launch_gemm(config, a, b, d, masked_m)


# Other names that DeepGEMM has for these. Of the operands of fp8_fp4 functions either may be FP4; here both are FP8.
fp8_m_grouped_gemm_nt_masked = m_grouped_fp8_gemm_nt_masked
m_grouped_fp8_fp4_gemm_nt_masked = m_grouped_fp8_gemm_nt_masked
m_grouped_fp8_fp4_gemm_nt_contiguous = m_grouped_fp8_gemm_nt_contiguous


def m_grouped_gemm_fp8_fp8_bf16_nt_contiguous(lhs: Pair, rhs: Pair, out: torch.Tensor, m_indices: torch.Tensor) -> None:
    """``m_grouped_fp8_gemm_nt_contiguous`` under the names that it and its arguments had in DeepGEMM 1."""
    m_grouped_fp8_gemm_nt_contiguous(lhs, rhs, out, m_indices=m_indices)


def m_grouped_gemm_fp8_fp8_bf16_nt_masked(
    lhs: Pair, rhs: Pair, out: torch.Tensor, masked_m: torch.Tensor, expected_m: int
) -> None:
    """``m_grouped_fp8_gemm_nt_masked`` under the names that it and its arguments had in DeepGEMM 1."""
    m_grouped_fp8_gemm_nt_masked(lhs, rhs, out, masked_m, expected_m)
