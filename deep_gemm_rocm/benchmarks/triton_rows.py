"""Kernels between GEMMs in Triton, as a baseline: each does in one launch what ours does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl

from ..problems.cast import FP8_MAX
from ..problems.layout import SCALE_BLOCK, ceil_div
from .row_problems import RowsProblem
from .triton_launch import launch

# ruff: noqa: N803  (Triton's constants are upper case)

_EPSILON = 1e-6  # the default of rms_norm_cast_to_fp8


@triton.jit
def _store_quantised(
    values, data, scales, row, first, columns, row_stride, group_stride, LARGEST: tl.constexpr, BLOCK: tl.constexpr
):
    """Stores BLOCK values of a row, from column `first` on, with a scale for each 128 of them."""
    places = first + tl.arange(0, BLOCK)
    groups = tl.reshape(values, (BLOCK // 128, 128))
    scale = tl.maximum(tl.max(tl.abs(groups), 1) / LARGEST, 1.1754944e-38)
    quotients = tl.reshape(groups / scale[:, None], (BLOCK,))
    tl.store(data + row * columns + places, quotients.to(data.dtype.element_ty), mask=places < columns)
    group = first // 128 + tl.arange(0, BLOCK // 128)
    tl.store(scales + row * row_stride + group * group_stride, scale, mask=group * 128 < columns)


@triton.jit
def cast(x, data, scales, columns, row_stride, group_stride, LARGEST: tl.constexpr, BLOCK: tl.constexpr):
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK
    places = first + tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + places, mask=places < columns, other=0).to(tl.float32)
    _store_quantised(values, data, scales, row, first, columns, row_stride, group_stride, LARGEST, BLOCK)


@triton.jit
def silu_and_mul_cast(x, data, scales, columns, row_stride, group_stride, LARGEST: tl.constexpr, BLOCK: tl.constexpr):
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK
    places = first + tl.arange(0, BLOCK)
    gates = x + row * 2 * columns + places
    gate = tl.load(gates, mask=places < columns, other=0).to(tl.float32)
    up = tl.load(gates + columns, mask=places < columns, other=0).to(tl.float32)
    values = gate / (1 + tl.exp(-gate)) * up
    _store_quantised(values, data, scales, row, first, columns, row_stride, group_stride, LARGEST, BLOCK)


@triton.jit
def rms_norm_cast(
    x, weight, residual, added, data, scales, columns, row_stride, group_stride, epsilon,
    LARGEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK columns are a whole row."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, BLOCK)
    inside = places < columns
    values = tl.load(x + row * columns + places, mask=inside, other=0).to(tl.float32)
    values += tl.load(residual + row * columns + places, mask=inside, other=0).to(tl.float32)
    factors = tl.load(weight + places, mask=inside, other=0).to(tl.float32)
    rounded = values.to(added.dtype.element_ty)
    tl.store(added + row * columns + places, rounded, mask=inside)
    values = rounded.to(tl.float32)
    values *= tl.rsqrt(tl.sum(values * values, 0) / columns + epsilon) * factors
    _store_quantised(values, data, scales, row, 0, columns, row_stride, group_stride, LARGEST, BLOCK)


@triton.jit
def route(
    logits, bias, weights, ids, scale,
    EXPERTS: tl.constexpr, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, TOP_K: tl.constexpr,
):  # fmt: skip
    """DeepSeek's choice: of TOP_GROUPS groups, by the sum of each group's two largest biased scores, TOP_K experts."""
    row = tl.program_id(0)
    experts, groups = tl.arange(0, EXPERTS), tl.arange(0, GROUPS)
    score = tl.sigmoid(tl.load(logits + row * EXPERTS + experts))
    biased = tl.reshape(score + tl.load(bias + experts), (GROUPS, EXPERTS // GROUPS))
    lowest = float("-inf")
    first, at = tl.max(biased, 1, return_indices=True)
    others = tl.where(tl.arange(0, EXPERTS // GROUPS)[None, :] == at[:, None], lowest, biased)
    of_groups = first + tl.max(others, 1)
    allowed = tl.zeros((GROUPS,), tl.int32)
    for _ in tl.static_range(TOP_GROUPS):
        chosen = groups == tl.argmax(of_groups, 0)
        allowed += chosen.to(tl.int32)
        of_groups = tl.where(chosen, lowest, of_groups)
    left = tl.reshape(tl.where(allowed[:, None] != 0, biased, lowest), (EXPERTS,))
    places = tl.arange(0, TOP_K)
    of_choices, choices = tl.zeros((TOP_K,), tl.float32), tl.zeros((TOP_K,), tl.int32)
    for place in tl.static_range(TOP_K):
        chosen = tl.argmax(left, 0)
        choices = tl.where(places == place, chosen, choices)
        of_choices = tl.where(places == place, tl.sum(tl.where(experts == chosen, score, 0), 0), of_choices)
        left = tl.where(experts == chosen, lowest, left)
    tl.store(ids + row * TOP_K + places, choices)
    tl.store(weights + row * TOP_K + places, of_choices / tl.sum(of_choices, 0) * scale)


_CASTS = {"per_token_cast_to_fp8": cast, "silu_and_mul_cast_to_fp8": silu_and_mul_cast}
_WARPS = (1, 2, 4, 8)
_BLOCKS = (512, 1024, 2048, 4096)


def missing(problem: RowsProblem) -> str:
    """The reason why there is no kernel for the problem; empty if there is one."""
    if problem.op == "route_top_k":
        experts = problem.arguments["logits"].shape[1]
        return f"experts must be a power of two, got {experts}" if experts & (experts - 1) else ""
    if problem.op == "rms_norm_cast_to_fp8" or problem.op in _CASTS:
        return ""
    return f"no Triton kernel of ours for {problem.op}"


def cast_rows(
    kernel: object, x: torch.Tensor, data: torch.Tensor, scales: torch.Tensor, *, block: int, num_warps: int
) -> None:
    """Launches ``cast`` or ``silu_and_mul_cast`` for contiguous rows."""
    grid = (len(data), ceil_div(data.shape[1], block))
    numbers = data.shape[1], *scales.stride()
    launch(kernel, grid, x, data, scales, *numbers, LARGEST=FP8_MAX, BLOCK=block, num_warps=num_warps)


def candidates(problem: RowsProblem) -> Iterator[tuple[str, Callable[[RowsProblem], None]]]:
    """Each number of warps; of casts also each number of columns for a program."""
    if problem.op in _CASTS:
        for block in _BLOCKS:
            if block < max(2 * problem.shape.columns, _BLOCKS[1]):
                for warps in _WARPS:
                    yield f"{block} columns, {warps} warps", _cast(block, warps)
        return
    for warps in _WARPS:
        yield f"{warps} warps", _route(warps) if problem.op == "route_top_k" else _norm(warps)


def _cast(block: int, warps: int) -> Callable[[RowsProblem], None]:
    return lambda problem: cast_rows(
        _CASTS[problem.op], problem.arguments["x"], *problem.results, block=block, num_warps=warps
    )


def _norm(warps: int) -> Callable[[RowsProblem], None]:
    def run(problem: RowsProblem) -> None:
        x, weight, residual = (problem.arguments[name] for name in ("x", "weight", "residual"))
        data, scales, added = problem.results
        numbers = x.shape[1], *scales.stride(), _EPSILON
        block = max(triton.next_power_of_2(x.shape[1]), SCALE_BLOCK)
        constants = {"LARGEST": FP8_MAX, "BLOCK": block, "num_warps": warps}
        launch(rms_norm_cast, (len(x),), x, weight, residual, added, data, scales, *numbers, **constants)

    return run


def _route(warps: int) -> Callable[[RowsProblem], None]:
    def run(problem: RowsProblem) -> None:
        logits, bias, scale = (problem.arguments[name] for name in ("logits", "bias", "scale"))
        constants = {
            "EXPERTS": logits.shape[1],
            "GROUPS": problem.arguments["num_groups"],
            "TOP_GROUPS": problem.arguments["top_groups"],
            "TOP_K": problem.arguments["top_k"],
        }
        launch(route, (len(logits),), logits, bias, *problem.results, scale, **constants, num_warps=warps)

    return run
