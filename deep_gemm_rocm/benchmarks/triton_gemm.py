"""Matrix products in Triton, as a baseline."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ..heuristics.gemm_config import NUM_CUS
from ..problems.four_bits import FOUR_BIT_DTYPES
from ..problems.layout import ceil_div, data_and_scales
from .problems import Problem
from .triton_launch import launch

# ruff: noqa: N803  (Triton's constants are upper case)

_GROUPINGS = {"dense": 0, "contiguous": 1, "masked": 2}


@triton.jit
def gemm(
    a, b, d, sfa, sfb, layout, M, N, K, sfa_group, sfa_row, sfa_k,
    SCALED: tl.constexpr, GROUPING: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """d[m, n] = sum_k a[m, k] b[n, k]. If SCALED, each 128 of K are multiplied with the scales of a's row and of b's
    block of 128 x 128. K is a multiple of BK. With GROUPING 1, `layout` has the group of each row, with 2 the number of
    each group's rows. With SPLIT_K > 1, d is [SPLIT_K, M, N], the sum of each part of K, and there are no groups."""
    row_tiles, column_tiles = tl.cdiv(M, BM), tl.cdiv(N, BN)
    program = tl.program_id(0)
    row_tile, column_tile = tl.swizzle2d(
        program // column_tiles, program % column_tiles, row_tiles, column_tiles, GROUP_M
    )
    rows = row_tile * BM + tl.arange(0, BM)
    end = M
    if GROUPING == 1:
        group = tl.load(layout + row_tile * BM)
        if group < 0:
            return
        b += group.to(tl.int64) * N * K
        sfb += group * tl.cdiv(N, 128) * (K // 128)
    if GROUPING == 2:
        group = tl.program_id(1)
        end = tl.load(layout + group)
        if row_tile * BM >= end:
            return
        a += group.to(tl.int64) * M * K
        b += group.to(tl.int64) * N * K
        d += group.to(tl.int64) * M * N
        sfa += group * sfa_group
        sfb += group * tl.cdiv(N, 128) * (K // 128)
    columns = column_tile * BN + tl.arange(0, BN)
    blocks = K // BK
    first, last = 0, blocks
    if SPLIT_K > 1:
        part = tl.program_id(1)
        first, last = part * blocks // SPLIT_K, (part + 1) * blocks // SPLIT_K
        d += part.to(tl.int64) * M * N
    depth = first * BK + tl.arange(0, BK)
    # Rows past the end wrap around to the first rows, instead of being masked.
    x_rows, y_rows = rows % M, columns % N
    x = a + x_rows[:, None] * K + depth[None, :]
    y = b + y_rows[None, :] * K + depth[:, None]
    x_scales, y_scales = sfa + x_rows * sfa_row, sfb + y_rows // 128 * (K // 128)
    accumulator = tl.zeros((BM, BN), tl.float32)
    for k in range(first, last):
        if SCALED:
            scales = tl.load(x_scales + k * sfa_k)[:, None] * tl.load(y_scales + k)[None, :]
            accumulator += tl.dot(tl.load(x), tl.load(y)) * scales
        else:
            accumulator = tl.dot(tl.load(x), tl.load(y), accumulator)
        x += BK
        y += BK
    inside = (rows[:, None] < end) & (columns[None, :] < N)
    tl.store(d + rows[:, None] * N + columns[None, :], accumulator.to(d.dtype.element_ty), mask=inside)


@triton.jit
def sum_of_parts(parts, d, size, SPLIT_K: tl.constexpr, BLOCK: tl.constexpr):
    """d = the sum of SPLIT_K parts, each with `size` elements."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < size
    total = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(SPLIT_K):
        total += tl.load(parts + part * size + places, mask=inside)
    tl.store(d + places, total.to(d.dtype.element_ty), mask=inside)


class Config(NamedTuple):
    BM: int
    BN: int
    num_warps: int
    num_stages: int
    GROUP_M: int = 8
    SPLIT_K: int = 1

    def __str__(self) -> str:
        split = f", K split in {self.SPLIT_K}" if self.SPLIT_K > 1 else ""
        tile = f"{self.BM}x{self.BN}, {self.num_warps} warps, {self.num_stages} stages, groups of {self.GROUP_M}"
        return tile + split


_SMALL = tuple(Config(16, bn, warps, stages) for bn in (32, 64, 128) for warps in (2, 4) for stages in (2, 3))
_MEDIUM = tuple(
    Config(bm, bn, warps, stages)
    for bm, bn, warps in ((32, 64, 4), (32, 128, 4), (64, 32, 4), (64, 64, 4), (64, 128, 4), (64, 128, 8))
    for stages in (2, 3)
)
_LARGE = (
    Config(64, 128, 4, 2),
    Config(128, 64, 4, 2),
    Config(128, 128, 4, 2),
    Config(128, 128, 8, 2),
    Config(128, 128, 8, 2, 4),
    Config(128, 256, 8, 2),
    Config(256, 128, 8, 2),
    Config(256, 128, 8, 2, 4),
    Config(256, 256, 8, 2),
    Config(256, 256, 8, 2, 4),
)
_BLOCK_K_BYTES = 128
_SUM_BLOCK = 1024


def configurations(problem: Problem) -> tuple[Config, ...]:
    """At least eight configurations for the problem's rows, as usual for Triton's matrix products on MI300X."""
    m = problem.shape.m
    configs = _SMALL if m <= 16 else _MEDIUM if m <= 128 else _LARGE
    if problem.op.endswith("contiguous"):  # all rows of a tile must belong to one group
        configs = tuple(config for config in configs if config.BM <= 128) + _MEDIUM
    if problem.group_sizes:
        return configs
    return configs + tuple(split for config in configs for split in _splits(problem, config))


def _splits(problem: Problem, config: Config) -> list[Config]:
    """The configuration with K split, where its tiles leave CUs without work: as far as useful, and half as far."""
    m, n, k, _ = problem.shape
    tiles = ceil_div(m, config.BM) * ceil_div(n, config.BN)
    blocks = k * data_and_scales(problem.a)[0].itemsize // _BLOCK_K_BYTES
    splits = [parts for parts in (2, 4, 8) if parts <= blocks // 2 and tiles * parts // 2 < NUM_CUS]
    return [config._replace(SPLIT_K=parts) for parts in splits[-2:]]


def missing(problem: Problem) -> str:
    """The reason why there is no kernel for the problem; empty if there is one."""
    _, _, k, _ = problem.shape
    if problem.op.startswith("k_grouped"):
        return "no Triton kernel with groups along K"
    if data_and_scales(problem.b)[0].dtype in FOUR_BIT_DTYPES:
        return "no Triton kernel with weights of four bits"
    a, _ = data_and_scales(problem.a)
    return f"K must be a multiple of 128 bytes, got {k}" if k * a.itemsize % _BLOCK_K_BYTES else ""


def run(problem: Problem, config: Config) -> None:
    """Launches with Triton's own launcher on hardware, otherwise on the simulated MI300X."""
    (a, sfa), (b, sfb) = data_and_scales(problem.a), data_and_scales(problem.b)
    grouping = problem.op.rpartition("_")[2]
    grouping = grouping if grouping in _GROUPINGS else "dense"
    *groups, m, k = a.shape
    n = b.shape[-2]
    grid = (ceil_div(m, config.BM) * ceil_div(n, config.BN), *groups)
    scales_strides = (1, 1, 1) if sfa is None else ((*sfa.stride(),) if groups else (1, *sfa.stride()))
    parts = problem.d
    if config.SPLIT_K > 1:
        grid = (*grid, config.SPLIT_K)
        parts = torch.empty(config.SPLIT_K, m, n, device=a.device)
    # Unused pointers need a placeholder.
    pointers = a, b, parts, *(problem.d if t is None else t for t in (sfa, sfb, problem.layout))
    constants = {
        "SCALED": sfa is not None,
        "GROUPING": _GROUPINGS[grouping],
        "BK": _BLOCK_K_BYTES // a.itemsize,
        "matrix_instr_nonkdim": 16,
        **config._asdict(),
    }
    launch(gemm, grid, *pointers, m, n, k, *scales_strides, **constants)
    if config.SPLIT_K > 1:
        size = problem.d.numel()
        summed = {"SPLIT_K": config.SPLIT_K, "BLOCK": _SUM_BLOCK}
        launch(sum_of_parts, (ceil_div(size, _SUM_BLOCK),), parts, problem.d, size, **summed)


def candidates(problem: Problem) -> Iterator[tuple[str, Callable[[Problem], None]]]:
    for config in configurations(problem):
        yield str(config), functools.partial(run, config=config)
