"""Layers of FP8 experts in Triton, as a baseline: GEMMs that gather rows, with kernels of their own to activate,
quantise and add up. Sorting tokens by expert is left out of the time, in favour of Triton."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ..problems.layout import FP8, SCALE_BLOCK, ceil_div, data_and_scales
from . import triton_rows
from .experts_problems import ExpertsProblem
from .triton_launch import launch

# ruff: noqa: N803  (Triton's constants are upper case)


@triton.jit
def gemm_of_experts(
    a, b, d, sfa, sfb, rows, experts, weights, num_rows, N, K, sfa_row, sfa_k,
    SHARE: tl.constexpr, WEIGHTED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """d[r, n] = sum_k a[r // SHARE, k] b[e, n, k] for the rows r of each tile of BM, all of expert e, with scales of
    1x128 and 128x128. `rows` lists them, with num_rows for those that pad a tile. If WEIGHTED, times weights[r]."""
    row_tiles, column_tiles = tl.num_programs(0) // tl.cdiv(N, BN), tl.cdiv(N, BN)
    program = tl.program_id(0)
    row_tile, column_tile = tl.swizzle2d(
        program // column_tiles, program % column_tiles, row_tiles, column_tiles, GROUP_M
    )
    row = tl.load(rows + row_tile * BM + tl.arange(0, BM)).to(tl.int64)
    exists = row < num_rows
    expert = tl.load(experts + row_tile).to(tl.int64)
    column = column_tile * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    x = a + row[:, None] // SHARE * K + depth[None, :]
    y = b + expert * N * K + (column % N)[None, :] * K + depth[:, None]
    x_scales = sfa + row // SHARE * sfa_row
    y_scales = sfb + expert * tl.cdiv(N, 128) * (K // 128) + column % N // 128 * (K // 128)
    accumulator = tl.zeros((BM, BN), tl.float32)
    for k in range(K // BK):
        x_tile = tl.load(x, mask=exists[:, None], other=0.0)
        x_scale = tl.load(x_scales + k * sfa_k, mask=exists, other=0)
        accumulator += tl.dot(x_tile, tl.load(y)) * (x_scale[:, None] * tl.load(y_scales + k)[None, :])
        x += BK
        y += BK
    if WEIGHTED:
        accumulator *= tl.load(weights + row, mask=exists, other=0)[:, None]
    inside = exists[:, None] & (column[None, :] < N)
    tl.store(d + row[:, None] * N + column[None, :], accumulator.to(d.dtype.element_ty), mask=inside)


@triton.jit
def sum_of_choices(x, d, N, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """d[t] = the sum of rows t TOP_K to (t + 1) TOP_K of x."""
    token = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for choice in tl.static_range(TOP_K):
        total += tl.load(x + (token * TOP_K + choice) * N + places, mask=places < N, other=0)
    tl.store(d + token * N + places, total.to(d.dtype.element_ty), mask=places < N)


class Config(NamedTuple):
    BM: int
    BN: int
    num_warps: int
    num_stages: int
    GROUP_M: int

    def __str__(self) -> str:
        return f"{self.BM}x{self.BN}, {self.num_warps} warps, {self.num_stages} stages, groups of {self.GROUP_M}"


_FEW = tuple(Config(bm, bn, 4, 2, 1) for bm in (16, 32) for bn in (32, 64, 128))
_MANY = tuple(
    Config(bm, bn, warps, 2, 8) for bm, bn, warps in ((64, 128, 4), (128, 128, 4), (128, 128, 8), (128, 256, 8))
)
_MANY_ROWS = 64  # of an expert, on average
_BLOCK_K = SCALE_BLOCK
_SUM_BLOCK = 1024


class Order(NamedTuple):
    """Tokens' choices by expert: the rows of each tile, and its expert."""

    rows: torch.Tensor
    experts: torch.Tensor

    @classmethod
    def of(cls, ids: torch.Tensor, tile: int) -> Order:
        flat = ids.flatten().cpu()
        rows, experts = [], []
        for expert in flat.unique().tolist():
            chosen = (flat == expert).nonzero()[:, 0].int()
            tiles = ceil_div(len(chosen), tile)
            rows.append(torch.nn.functional.pad(chosen, (0, tiles * tile - len(chosen)), value=len(flat)))
            experts += [expert] * tiles
        return cls(torch.cat(rows).to(ids.device), torch.tensor(experts, dtype=torch.int32, device=ids.device))


def missing(problem: ExpertsProblem) -> str:
    """The reason why there is no kernel for the problem; empty if there is one."""
    _, hidden, intermediate, _, _ = problem.shape
    if problem.op != "fused_moe":
        return f"no Triton kernel of ours for {problem.op}"
    return "sizes must be multiples of 128" if hidden % SCALE_BLOCK or intermediate % SCALE_BLOCK else ""


def candidates(problem: ExpertsProblem) -> Iterator[tuple[str, Callable[[ExpertsProblem], None]]]:
    tokens, _, _, experts, top_k = problem.shape

    def of(config: Config) -> Callable[[ExpertsProblem], None]:
        order = Order.of(problem.ids, config.BM)
        return lambda problem: run(problem, order, config)

    for config in _MANY if tokens * top_k >= _MANY_ROWS * experts else _FEW:
        yield str(config), of(config)


def run(problem: ExpertsProblem, order: Order, config: Config) -> None:
    tokens, hidden, intermediate, _, top_k = problem.shape
    choices, device = tokens * top_k, problem.d.device
    gated = torch.empty(choices, 2 * intermediate, dtype=torch.bfloat16, device=device)
    activated = torch.empty(choices, intermediate, dtype=FP8, device=device)
    scales = torch.empty(choices, intermediate // SCALE_BLOCK, device=device)
    results = torch.empty(choices, hidden, dtype=torch.bfloat16, device=device)
    _multiply(problem.x, problem.gate_up, gated, order, None, top_k, config)
    triton_rows.cast_rows(triton_rows.silu_and_mul_cast, gated, activated, scales, block=1024, num_warps=1)
    _multiply((activated, scales), problem.down, results, order, problem.weights, 1, config)
    grid = tokens, ceil_div(hidden, _SUM_BLOCK)
    launch(sum_of_choices, grid, results, problem.d, hidden, TOP_K=top_k, BLOCK=_SUM_BLOCK, num_warps=2)


def _multiply(
    a: tuple[torch.Tensor, torch.Tensor] | torch.Tensor,
    b: tuple[torch.Tensor, torch.Tensor] | torch.Tensor,
    d: torch.Tensor,
    order: Order,
    weights: torch.Tensor | None,
    share: int,
    config: Config,
) -> None:
    """Multiplies the rows of each expert; ``share`` rows of d have the same row of a."""
    (a_data, a_scales), (b_data, b_scales) = data_and_scales(a), data_and_scales(b)
    assert a_scales is not None
    assert b_scales is not None
    choices, n = d.shape
    grid = (len(order.experts) * ceil_div(n, config.BN),)
    pointers = a_data, b_data, d, a_scales, b_scales, *order, d if weights is None else weights
    constants = {"SHARE": share, "WEIGHTED": weights is not None, "BK": _BLOCK_K, "matrix_instr_nonkdim": 16}
    numbers = choices, n, a_data.shape[1], *a_scales.stride()
    launch(gemm_of_experts, grid, *pointers, *numbers, **constants, **config._asdict())
