"""A layer of experts in one call."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..heuristics import choose_gemm_config
from ..heuristics.cast_config import CastConfig, RowCastConfig, lanes_and_passes
from ..launch.cast import cast_launch, row_cast_launch
from ..launch.experts import sort_launch, sum_of_experts_launch
from ..launch.gemm import gemm_launch
from ..launch.repeated import Described, checked_once, launches
from ..problems.arguments import Argument, Arguments, present
from ..problems.cast import FP8_MAX
from ..problems.experts import Experts, check_experts
from ..problems.four_bits import FOUR_BIT_DTYPES, forms_of_scales, type_of_data
from ..problems.gemm_kind import Gemm, GemmKind
from ..problems.layout import FP8, SCALE_BLOCK, Pair, ceil_div, data_and_scales
from ..problems.tensors import TYPES, meta_of
from ..runtime import settings
from .casts import new_scales_of_rows, per_row_cast_to_fp8, per_token_cast_to_fp8
from .fused_casts import silu_and_mul_cast_to_fp8

_Operand = torch.Tensor | Pair
_checked = checked_once(
    check_experts,
    aligned=("x", "x[0]", "gate_up", "gate_up[0]", "down", "down[0]", "out"),
    written=("out",),
)


class _Sorted(NamedTuple):
    """The tokens' choices, sorted by expert.

    Attributes:
        ends: int32 [E], one past each expert's last row.
        tokens: int32 [tokens · top_k], the token of each row.
        rows: int32 [tokens · top_k], the row of each choice, -1 for none.
    """

    ends: torch.Tensor
    tokens: torch.Tensor
    rows: torch.Tensor


def fused_moe(
    x: torch.Tensor | Pair,
    gate_up: torch.Tensor | Pair,
    down: torch.Tensor | Pair,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    *,
    activation: str = "silu_and_mul",
    expert_map: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    alpha: float | None = None,
    limit: float | None = None,
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """A layer of experts: ``out[t] = Σ_i topk_weights[t, i] · down[e] · (silu(gate[e] · x[t]) · (up[e] · x[t]))``.

    e is ``topk_ids[t, i]``. The steps are: the choices are sorted by expert; the first GEMM gathers its rows of ``x``
    by the sorted choices and activates its results, which are quantised; the second multiplies these with ``down``; its
    results, rounded to bf16, are weighted and added up in fp32, in the order of a token's choices. Nothing waits for
    the device, and no size comes from it, so that the call can be captured and replayed with other routing. The same
    inputs give the same bits on every run. What a token's bits depend on is as for
    ``m_grouped_fp8_gemm_nt_contiguous``.

    Args:
        x: bf16 [T, hidden], T up to 65536, which is quantised if the weights are FP8; or a pair, float8_e4m3fnuz and
            fp32 scales as ``per_token_cast_to_fp8`` (weights with scales of blocks, or of four bits) or
            ``per_row_cast_to_fp8`` (weights with scales of rows) returns them. Less than 2 GiB.
        gate_up: [E, 2 I, hidden], gate before up, E up to 512, in one of these forms. Rows are contiguous and a
            multiple of 16 bytes apart, and so are experts.

            - bf16;
            - a pair of float8_e4m3fnuz and fp32 scales, either of blocks, [E, ceil(2 I/128), ceil(hidden/128)], or of
              rows, [E, 2 I, 1];
            - a pair of four bits (MXFP4), int8 or uint8 [E, 2 I, hidden/2], and a scale for each 32 values along
              ``hidden``, as ``b`` of ``m_grouped_fp8_fp4_gemm_nt_contiguous``. A bf16 ``x`` is multiplied as it is,
              with scales as for ``bf16_fp4_gemm_nt``;
            - a pair of int4 codes and scales, as ``b`` of ``m_grouped_bf16_int4_gemm_nt_contiguous`` or, for an FP8
              ``x``, of ``m_grouped_fp8_int4_gemm_nt_contiguous``.

        down: [E, hidden, I], as ``gate_up``; its scales are [E, ceil(hidden/128), ceil(I/128)] or [E, hidden, 1].
            ``hidden`` and I are multiples of 16, with bf16 of 8, with four bits of their groups.
        topk_weights: fp32 [T, top_k], contiguous, top_k up to 16.
        topk_ids: int32 [T, top_k], contiguous: the experts. Ids that no expert has, such as -1, count as none.
        activation: ``silu_and_mul``.
        expert_map: None, or int32 [experts of the model], contiguous: the expert here for each id, negative for experts
            of other ranks, whose contributions are left out.
        out: None for a new tensor, or bf16 [T, hidden] to be written, rows contiguous and a multiple of 16 bytes apart.
        alpha, limit: None, or positive numbers, which change the activation as for ``silu_and_mul_cast_to_fp8``.
        gate_up_bias, down_bias: None, or bf16, f16 or fp32 [E, 2 I] and [E, hidden], contiguous rows: are added to what
            an expert's weights give, in fp32, before the activation and before a result is weighted.

    Returns:
        ``out``. A token without experts gets zeros.

    Intermediate results are quantised with a scale for each row and 128 columns, or for each row where weights have
    scales of rows. They stay bf16 for bf16 weights, and for four bits with a bf16 ``x``. The GEMM's results are rounded
    to bf16 before they are quantised by a kernel of their own: it takes 4 µs for few tokens, and kernels for many
    tokens can't quantise.

    Raises:
        TypeError, ValueError: an argument is not as above; nothing is written then.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    if torch.compiler.is_compiling():
        data, scales = data_and_scales(x)
        if out is None:
            out = data.new_empty(data.shape, dtype=torch.bfloat16)
        operands = (data, scales, *data_and_scales(gate_up), *data_and_scales(down))
        others = (activation, expert_map, out, alpha, limit, gate_up_bias, down_bias)
        torch.ops.deep_gemm_rocm.fused_moe(*operands, topk_weights, topk_ids, *others)
        return out
    biases = gate_up_bias, down_bias
    layer = _checked(x, gate_up, down, topk_weights, topk_ids, activation, expert_map, out, (alpha, limit), *biases)
    if out is None:
        out = topk_weights.new_empty(layer.tokens, layer.hidden, dtype=torch.bfloat16)
    if layer.tokens > 0:
        compute_experts(layer, x, gate_up, down, topk_weights, topk_ids, expert_map, out, *biases)
    return out


def compute_experts(
    layer: Experts,
    x: _Operand,
    gate_up: _Operand,
    down: _Operand,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    expert_map: torch.Tensor | None,
    out: torch.Tensor,
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
) -> None:
    """Launches the kernels of ``fused_moe`` for checked arguments, with at least one token."""
    choices = _Sorted(*_sorted_choices(topk_ids, expert_map, layer.experts))
    activated = _activated(_quantised(x, layer), gate_up, gate_up_bias, choices, layer)
    results = out.new_empty(layer.tokens * layer.top_k, layer.hidden)
    _expert_gemm(activated, down, results, choices.ends, bias=down_bias)
    _add_up(results, topk_weights, choices.rows, out)


def _quantised(x: _Operand, layer: Experts) -> _Operand:
    """The layer's input as its first GEMM takes it."""
    if not layer.is_fp8 or not isinstance(x, torch.Tensor):
        return x
    return per_token_cast_to_fp8(x) if layer.scaling == "blocks" else per_row_cast_to_fp8(x)


def _activated(x: _Operand, gate_up: _Operand, bias: torch.Tensor | None, choices: _Sorted, layer: Experts) -> _Operand:
    """The rows of the second GEMM."""
    data, _ = data_and_scales(x)
    shape = (layer.tokens * layer.top_k, layer.intermediate)
    ends, tokens = choices.ends, choices.tokens
    has_whole_blocks = layer.intermediate % SCALE_BLOCK == 0  # otherwise rows of gate and up share a scale
    if layer.scaling == "blocks" and not has_whole_blocks:
        both = data.new_empty(shape[0], 2 * shape[1], dtype=torch.bfloat16)
        _expert_gemm(x, gate_up, both, ends, tokens, bias)
        alpha, limit = layer.clamps
        data, scales = silu_and_mul_cast_to_fp8(both[None], ends[-1:], alpha=alpha, limit=limit)
        return data[0], scales[0]
    rounded = data.new_empty(shape, dtype=torch.bfloat16)
    activation = "clamped_silu_and_mul" if layer.is_clamped else "silu_and_mul"
    _expert_gemm(x, gate_up, rounded, ends, tokens, bias, activation, layer.clamps)
    return _cast(rounded, ends[-1:], by_rows=layer.scaling == "rows") if layer.is_fp8 else rounded


@launches
def _sorted_choices(
    topk_ids: torch.Tensor, expert_map: torch.Tensor | None, experts: int
) -> Described[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    ends = topk_ids.new_empty(experts)
    tokens, rows = topk_ids.new_empty(topk_ids.numel()), topk_ids.new_empty(topk_ids.numel())
    return (ends, tokens, rows), sort_launch(topk_ids, expert_map, ends, tokens, rows)


@launches
def _expert_gemm(
    a: _Operand,
    b: _Operand,
    d: _Operand,
    ends: torch.Tensor,
    tokens: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    activation: str = "identity",
    clamps: tuple[float | None, float | None] = (None, None),
) -> Described[None]:
    """Multiplies each expert's rows of ``a``, or those that ``tokens`` names, with its ``b``."""
    arguments = {**_scaled("a", a), **_scaled("b", b), **_scaled("d", d)}
    arguments |= present(grouped_layout=("ends", ends), row_indices=("tokens", tokens), bias=("bias", bias))
    a, b, d = (arguments[role].tensor for role in "abd")
    experts, n, _ = b.shape
    has_four_bits = b.dtype in FOUR_BIT_DTYPES
    forms = forms_of_scales(*(meta_of(*arguments[role]) for role in ("b", "sfb"))) if has_four_bits else {}
    kind = GemmKind(
        a_type=TYPES[a.dtype],
        b_type=type_of_data(b.dtype) if has_four_bits else TYPES[b.dtype],
        d_type=TYPES[d.dtype],
        scaling=_scaling_of(b, arguments.get("sfb")),
        grouping="psum",
        bias="none" if bias is None else TYPES[bias.dtype],
        activation=activation,
        gathers_a=tokens is not None,
        **forms,
    )
    m, k = len(d), a.shape[1]
    gemm = Gemm(m, n // kind.parts, k, experts, kind)
    groups = _experts_of_rows(m, experts)
    config = choose_gemm_config(kind, ceil_div(m, groups), gemm.n, k, settings.num_cus(), num_groups=groups)
    return None, gemm_launch(config, gemm, arguments, alignment=1, clamps=clamps)


def _experts_of_rows(rows: int, experts: int) -> int:
    """How many experts may have rows, rounded up to a power of two, so that few numbers of rows differ in kernels."""
    return min(experts, 1 << (rows - 1).bit_length())


def numbers_of_few_rows(experts: int) -> tuple[int, ...]:
    """Numbers of rows, fewer than experts, one of each that kernels are chosen for by themselves."""
    return tuple(1 << exponent for exponent in range((experts - 1).bit_length()))


def _scaling_of(weight: torch.Tensor, scales: Argument | None) -> str:
    """``scaling`` of the GEMM."""
    if scales is None:
        return "none"
    if weight.dtype in FOUR_BIT_DTYPES:
        return "groups"
    return "rows" if scales.tensor.shape[1] == weight.shape[1] else "blocks"


def _scaled(name: str, operand: _Operand) -> Arguments:
    """An operand's tensors by their roles."""
    if isinstance(operand, torch.Tensor):
        return {name: Argument(name, operand)}
    data, scales = operand
    return {name: Argument(f"{name}[0]", data), f"sf{name}": Argument(f"{name}[1]", scales)}


@launches
def _cast(x: torch.Tensor, masked_m: torch.Tensor, by_rows: bool) -> Described[Pair]:
    """Quantises as many of the rows as have experts here; other rows of the results are undefined."""
    data = x.new_empty(x.shape, dtype=FP8)
    if not by_rows:
        scales = new_scales_of_rows(x, x.shape)
        tiles = CastConfig("bf16", "row_blocks", masked=True)
        launch = cast_launch(tiles, x, data, scales, use_ue8m0=False, fp8_max=FP8_MAX, group_rows=masked_m)
        return (data, scales), launch
    scales = x.new_empty(len(x), 1, dtype=torch.float32)
    rows = RowCastConfig("bf16", *lanes_and_passes(x.shape[1]), block_scales=False, masked=True)
    launch = row_cast_launch(rows, x, data, scales, use_ue8m0=False, fp8_max=FP8_MAX, group_rows=masked_m)
    return (data, scales), launch


@launches
def _add_up(results: torch.Tensor, weights: torch.Tensor, rows: torch.Tensor, out: torch.Tensor) -> Described[None]:
    return None, sum_of_experts_launch(results, weights, rows, out)
