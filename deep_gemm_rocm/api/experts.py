"""A layer of experts in one call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch

from ..checks import is_traced
from ..heuristics import ChoicesByM, gemm_choices
from ..heuristics.cast_config import CastConfig, RowCastConfig, lanes_and_passes
from ..heuristics.gemm_problem import Choice
from ..launch.cast import cast_launch, row_cast_launch
from ..launch.experts import sort_and_cast_launch, sort_launch, sum_of_experts_launch
from ..launch.gemm import SizesOfGemm, gemm_launch
from ..launch.launch import Launch, Sizes
from ..launch.repeated import Described, launches_of_rows
from ..problems.arguments import Argument
from ..problems.cast import FP8_MAX, check_row, check_size
from ..problems.experts import Experts, check_experts
from ..problems.four_bits import FOUR_BIT_DTYPES, forms_of_scales, type_of_data
from ..problems.gemm_kind import Gemm, GemmKind
from ..problems.layout import FP8, SCALE_BLOCK, TYPES, Pair, ceil_div, data_and_scales, mn_major_strides
from ..problems.matrices import meta_of
from ..runtime import settings
from .casts import new_scales_of_rows

_Operand = tuple[Argument, ...]  # data, and scales if there are any


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


@launches_of_rows("x", "x[0]", "x[1]", "topk_weights", "topk_ids", "out")
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
) -> Described[torch.Tensor]:
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
            ``per_row_cast_to_fp8`` (weights with scales of rows) returns them. Each tensor less than 2 GiB.
        gate_up: [E, 2 I, hidden], gate before up, E up to 512, in one of these forms. Rows are contiguous and a
            multiple of 16 bytes apart, and so are experts. Data and scales of an expert are less than 2 GiB each.

            - bf16;
            - a pair of float8_e4m3fnuz and fp32 scales, either of blocks, [E, ceil(2 I/128), ceil(hidden/128)], or of
              rows, [E, 2 I, 1];
            - a pair of four bits (MXFP4), int8 or uint8 [E, 2 I, hidden/2], and a scale for each 32 values along
              ``hidden``, as ``b`` of ``m_grouped_fp8_fp4_gemm_nt_contiguous``, or of ``shuffle_weight``. A bf16
              ``x`` is multiplied as it is, with scales as for ``bf16_fp4_gemm_nt``;
            - a pair of int4 codes and scales, as ``b`` of ``m_grouped_bf16_int4_gemm_nt_contiguous`` or, for an FP8
              ``x``, of ``m_grouped_fp8_int4_gemm_nt_contiguous``, also as ``shuffle_weight`` makes it.

        down: [E, hidden, I], as ``gate_up`` and of its dtype; its scales are [E, ceil(hidden/128), ceil(I/128)] or
            [E, hidden, 1]. ``hidden`` and I are multiples of 16, with bf16 of 8, with four bits of their groups, and
            with int4 and an FP8 ``x`` of 128.
        topk_weights: fp32 [T, top_k], contiguous, top_k up to 16.
        topk_ids: int32 [T, top_k], contiguous: the experts. Ids that no expert has, such as -1, count as none.
        activation: ``silu_and_mul``.
        expert_map: None, or int32 [experts of the model], contiguous: the expert here for each id, negative for experts
            of other ranks, whose contributions are left out.
        out: None for a new tensor, or bf16 [T, hidden] to be written, rows contiguous and a multiple of 16 bytes apart.
        alpha, limit: None, or positive numbers of fp32: change the activation as for ``silu_and_mul_cast_to_fp8``.
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
    if is_traced():
        data, scales = data_and_scales(x)
        if out is None:
            out = data.new_empty(data.shape, dtype=torch.bfloat16)
        operands = (data, scales, *data_and_scales(gate_up), *data_and_scales(down))
        others = (activation, expert_map, out, alpha, limit, gate_up_bias, down_bias)
        torch.ops.deep_gemm_rocm.fused_moe(*operands, topk_weights, topk_ids, *others)
        return out, None
    biases = gate_up_bias, down_bias
    layer = check_experts(
        x, gate_up, down, topk_weights, topk_ids, activation, expert_map, out, (alpha, limit), *biases
    )
    made = {}
    if out is None:
        out = made["out"] = topk_weights.new_empty(layer.tokens, layer.hidden, dtype=torch.bfloat16)
    if layer.tokens == 0:
        return out, None
    *first, last = launches_of_layer(layer, x, gate_up, down, topk_weights, topk_ids, expert_map, out, *biases)
    return out, [*first, last._replace(made=made)]


def launches_of_layer(
    layer: Experts,
    x: torch.Tensor | Pair,
    gate_up: torch.Tensor | Pair,
    down: torch.Tensor | Pair,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    expert_map: torch.Tensor | None,
    out: torch.Tensor,
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
) -> list[Launch]:
    """Describes the launches of ``fused_moe`` for checked arguments, with at least one token."""
    choices, sort = _sorted_choices(topk_ids, expert_map, layer.experts)
    operand, in_order = _operand("x", x), [sort]
    if layer.is_fp8 and isinstance(x, torch.Tensor):
        check_row(layer.hidden) if layer.scaling == "rows" else check_size(layer.tokens, layer.hidden)
        operand, quantise = _quantised(operand[0], "quantised", layer.hidden, layer)
        in_order = [sort, quantise] if layer.scaling == "rows" else [sort_and_cast_launch(sort, quantise)]
    gate_up_bias_of, down_bias_of = (
        None if bias is None else Argument(name, bias)
        for name, bias in (("gate_up_bias", gate_up_bias), ("down_bias", down_bias))
    )
    operand, activate = _activated(operand, _operand("gate_up", gate_up), gate_up_bias_of, choices, layer)
    results = Argument("results", out.new_empty(layer.tokens * layer.top_k, layer.hidden))
    multiply = _expert_gemm(operand, _operand("down", down), results, choices, layer.top_k, bias=down_bias_of)
    add_up = sum_of_experts_launch(results.tensor, topk_weights, choices.rows, out)
    launches = [*in_order, *activate, multiply, add_up]
    return launches if layer.takes_any_tokens else [launch._replace(sizes=None) for launch in launches]


def _operand(name: str, operand: torch.Tensor | Pair) -> _Operand:
    if isinstance(operand, torch.Tensor):
        return (Argument(name, operand),)
    return tuple(Argument(f"{name}[{i}]", tensor) for i, tensor in enumerate(operand))


def _activated(
    x: _Operand, gate_up: _Operand, bias: Argument | None, choices: _Sorted, layer: Experts
) -> tuple[_Operand, list[Launch]]:
    """The rows of the second GEMM, and the launches that compute them."""
    rows, columns = layer.tokens * layer.top_k, layer.intermediate
    new_empty = functools.partial(choices.rows.new_empty, dtype=torch.bfloat16)
    has_whole_blocks = columns % SCALE_BLOCK == 0  # otherwise rows of gate and up share a scale
    if layer.scaling == "blocks" and not has_whole_blocks:
        both = Argument("both", new_empty(rows, 2 * columns))
        multiply = _expert_gemm(x, gate_up, both, choices, layer.top_k, gathers=True, bias=bias)
        activated, activate = _quantised(both, "activated", columns, layer, choices.ends, activates=True)
        return activated, [multiply, activate]
    rounded = Argument("rounded", new_empty(rows, columns))
    activation = "clamped_silu_and_mul" if layer.is_clamped else "silu_and_mul"
    multiply = _expert_gemm(
        x, gate_up, rounded, choices, layer.top_k, gathers=True, bias=bias, activation=activation, clamps=layer.clamps
    )
    if not layer.is_fp8:
        return (rounded,), [multiply]
    activated, quantise = _quantised(rounded, "activated", columns, layer, choices.ends)
    return activated, [multiply, quantise]


def _sorted_choices(topk_ids: torch.Tensor, expert_map: torch.Tensor | None, experts: int) -> tuple[_Sorted, Launch]:
    ends = topk_ids.new_empty(experts)
    tokens, rows = topk_ids.new_empty(topk_ids.numel()), topk_ids.new_empty(topk_ids.numel())
    return _Sorted(ends, tokens, rows), sort_launch(topk_ids, expert_map, ends, tokens, rows)


def _expert_gemm(
    a: _Operand,
    b: _Operand,
    d: Argument,
    choices: _Sorted,
    top_k: int,
    *,
    gathers: bool = False,
    bias: Argument | None = None,
    activation: str = "identity",
    clamps: tuple[float | None, float | None] = (None, None),
) -> Launch:
    """Multiplies each expert's rows of ``a``, or those that the sorted tokens name, with its ``b``; ``d`` is new."""
    arguments = dict(zip(("a", "sfa"), a, strict=False)) | dict(zip(("b", "sfb"), b, strict=False))
    arguments |= {"d": d, "grouped_layout": Argument("ends", choices.ends)}
    if gathers:
        arguments["row_indices"] = Argument("tokens", choices.tokens)
    if bias is not None:
        arguments["bias"] = bias
    weight = b[0].tensor
    experts, n, _ = weight.shape
    has_four_bits = weight.dtype in FOUR_BIT_DTYPES
    forms = forms_of_scales(*(meta_of(*part) for part in b)) if has_four_bits else {}
    kind = GemmKind(
        a_type=TYPES[a[0].tensor.dtype],
        b_type=type_of_data(weight.dtype) if has_four_bits else TYPES[weight.dtype],
        d_type=TYPES[d.tensor.dtype],
        scaling=_scaling_of(b),
        grouping="psum",
        bias="none" if bias is None else TYPES[bias.tensor.dtype],
        activation=activation,
        gathers_a=gathers,
        **forms,
    )
    gemm = Gemm(len(d.tensor), n // kind.parts, a[0].tensor.shape[1], experts, kind)
    by_rows = _ChoicesByRows(gemm)
    config = by_rows(gemm.m).config
    launch = gemm_launch(config, gemm, arguments, alignment=1, clamps=clamps, made={d.name: d.tensor})
    columns_of_scales = 0
    if len(a) == 2 and a[1].tensor.shape[1] > 1 and 1 == a[1].tensor.stride(0) < a[1].tensor.stride(1):
        columns_of_scales = a[1].tensor.shape[1]
    sizes = SizesOfGemm(gemm, by_rows)
    return launch._replace(sizes=functools.partial(_sizes_of_gemm, sizes, gathers, top_k, columns_of_scales))


class _ChoicesByRows:
    """How a GEMM over all experts is computed, by the total number of rows."""

    def __init__(self, gemm: Gemm) -> None:
        self._gemm, self._num_cus = gemm, settings.num_cus()
        self._by_groups: dict[int, ChoicesByM] = {}

    def __call__(self, rows: int) -> Choice:
        # Assumes one expert for each row, up to all experts. Rows are rounded up to a power of two, so that few numbers
        # of rows have kernels of their own.
        groups = min(self._gemm.groups, 1 << (rows - 1).bit_length())
        choices = self._by_groups.get(groups)
        if choices is None:
            _, n, k, _, kind = self._gemm
            choices = self._by_groups[groups] = gemm_choices(kind, n, k, self._num_cus, groups)
        return choices(ceil_div(rows, groups))


def _sizes_of_gemm(sizes: SizesOfGemm, gathers: bool, top_k: int, columns_of_scales: int, tokens: int) -> Sizes:
    """``Launch.sizes`` of ``_expert_gemm``.

    Args:
        columns_of_scales: of ``a``, if they lie as those of a cast.
    """
    rows = tokens * top_k
    of_scales = mn_major_strides(2, tokens if gathers else rows, columns_of_scales) if columns_of_scales else ()
    return sizes(rows, of_scales)


def numbers_of_few_rows(experts: int) -> tuple[int, ...]:
    """Numbers of rows, fewer than experts, one of each that kernels are chosen for by themselves."""
    return tuple(1 << exponent for exponent in range((experts - 1).bit_length()))


def _scaling_of(weight: _Operand) -> str:
    """``scaling`` of the GEMM."""
    if len(weight) == 1:
        return "none"
    data, scales = weight
    if data.tensor.dtype in FOUR_BIT_DTYPES:
        return "groups"
    return "rows" if scales.tensor.shape[1] == data.tensor.shape[1] else "blocks"


def _quantised(
    x: Argument,
    name: str,
    columns: int,
    layer: Experts,
    ends: torch.Tensor | None = None,
    *,
    activates: bool = False,
) -> tuple[_Operand, Launch]:
    """Quantises rows, or twice as many columns that are activated before.

    Args:
        name: of the result.
        ends: if given, only as many rows are quantised as have experts here; other rows of the result are undefined.
    """
    rows, masked, last = x.tensor, ends is not None, None if ends is None else ends[-1:]
    data = rows.new_empty(len(rows), columns, dtype=FP8)
    alpha, limit = layer.clamps if activates else (None, None)
    if layer.scaling == "rows":
        scales = rows.new_empty(len(rows), 1, dtype=torch.float32)
        of_row = RowCastConfig("bf16", *lanes_and_passes(columns), block_scales=False, masked=masked)
        launch = row_cast_launch(of_row, rows, data, scales, use_ue8m0=False, fp8_max=FP8_MAX, group_rows=last)
    else:
        scales = new_scales_of_rows(rows, data.shape)
        config = CastConfig(
            "bf16",
            "row_blocks",
            activation="silu_and_mul" if activates else "identity",
            clamped=limit is not None,
            gpt_oss=alpha is not None,
            masked=masked,
        )
        launch = cast_launch(
            config,
            rows,
            data,
            scales,
            use_ue8m0=False,
            fp8_max=FP8_MAX,
            group_rows=last,
            alpha=alpha or 0,
            limit=limit or 0,
        )
    launch = launch._replace(aligned=("x.data",))
    if ends is not None:
        assert launch.sizes is not None
        launch = launch._replace(sizes=functools.partial(_sizes_of_choices, launch.sizes, layer.top_k))
    names = {"x": x.name, "data": f"{name}[0]", "scales": f"{name}[1]", "masked_m": "ends"}
    return _operand(name, (data, scales)), launch.renamed(**names)


def _sizes_of_choices(sizes_of_rows: Callable[[int], Sizes], top_k: int, tokens: int) -> Sizes:
    return sizes_of_rows(tokens * top_k)
