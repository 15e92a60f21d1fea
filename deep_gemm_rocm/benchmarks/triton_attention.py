"""Fused attention in Triton, as a baseline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .attention_problems import AttentionProblem
from .triton_launch import launch

# ruff: noqa: N803  (Triton's constants are upper case)


@triton.jit
def _block(
    accumulator, largest, total, q_tile, q_more, k, v, start, rows, k_stride, v_stride, scale,
    WIDTH: tl.constexpr, MORE: tl.constexpr, BN: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    columns = start + tl.arange(0, BN)
    width = tl.arange(0, WIDTH)
    keys = k + columns[None, :] * k_stride
    scores = tl.dot(q_tile, tl.load(keys + width[:, None]))
    if MORE:
        scores = tl.dot(q_more, tl.load(keys + WIDTH + tl.arange(0, MORE)[:, None]), scores)
    if MASKED:
        scores = tl.where(rows[:, None] >= columns[None, :], scores, float("-inf"))
    new_largest = tl.maximum(largest, tl.max(scores, 1) * scale)
    p = tl.exp2(scores * scale - new_largest[:, None])
    shrink = tl.exp2(largest - new_largest)
    total = total * shrink + tl.sum(p, 1)
    v_tile = tl.load(v + columns[:, None] * v_stride + width[None, :])
    accumulator = tl.dot(p.to(v.dtype.element_ty), v_tile, accumulator * shrink[:, None])
    return accumulator, new_largest, total


@triton.jit
def attention(
    q, k, v, out, tokens, heads, kv_heads, scale,
    WIDTH: tl.constexpr, MORE: tl.constexpr, CAUSAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """softmax(scale q k^T) v for [batch, tokens, heads, WIDTH], where q and k have MORE elements. Tokens are a multiple
    of BM, and BM of BN. `scale` is for exp2. Only blocks on the diagonal, which come last, are masked."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # under a causal mask, tiles with the most keys first
    head = tl.program_id(1) % heads
    sequence = (tl.program_id(1) // heads).to(tl.int64)
    kv_head = head // (heads // kv_heads)
    q_stride, k_stride = heads * (WIDTH + MORE), kv_heads * (WIDTH + MORE)
    out_stride, v_stride = heads * WIDTH, kv_heads * WIDTH
    q += sequence * tokens * q_stride + head * (WIDTH + MORE)
    out += sequence * tokens * out_stride + head * WIDTH
    k += sequence * tokens * k_stride + kv_head * (WIDTH + MORE)
    v += sequence * tokens * v_stride + kv_head * WIDTH
    rows = tile * BM + tl.arange(0, BM)
    width = tl.arange(0, WIDTH)
    q_tile = tl.load(q + rows[:, None] * q_stride + width[None, :])
    q_more = q_tile
    if MORE:
        q_more = tl.load(q + rows[:, None] * q_stride + WIDTH + tl.arange(0, MORE)[None, :])
    accumulator = tl.zeros((BM, WIDTH), tl.float32)
    largest = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    seen_by_all = tile * BM if CAUSAL else tokens
    for masked in tl.static_range(2 if CAUSAL else 1):
        first, last = masked * seen_by_all, seen_by_all + masked * BM
        for start in range(first, last, BN):
            accumulator, largest, total = _block(
                accumulator, largest, total, q_tile, q_more, k, v, start, rows, k_stride, v_stride, scale,
                WIDTH, MORE, BN, masked,
            )  # fmt: skip
    result = (accumulator / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + rows[:, None] * out_stride + width[None, :], result)


class Config(NamedTuple):
    BM: int
    BN: int
    num_warps: int
    num_stages: int
    waves_per_eu: int
    matrix_instr_nonkdim: int

    def __str__(self) -> str:
        return (
            f"{self.BM}x{self.BN}, {self.num_warps} warps, {self.num_stages} stages, MFMA {self.matrix_instr_nonkdim}"
        )


# Configurations that people try on MI300X: 4 and 8 warps, one and two stages where LDS suffices, both MFMA shapes.
CONFIGS = tuple(
    Config(bm, bn, warps, stages, waves, mfma)
    for bm, bn, warps, waves in ((128, 64, 4, 2), (128, 64, 8, 2), (128, 128, 8, 2), (256, 64, 8, 2), (128, 32, 4, 2))
    for stages in (1, 2)
    for mfma in (16, 32)
    if (bn, stages) != (128, 2)
)

_LEAST_TOKENS = 128


def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, causal: bool, config: Config) -> None:
    """``out[...] = softmax(q kᵀ / sqrt(D)) v`` for contiguous q and k [B, S, H, D], S a multiple of ``config.BM``."""
    batch, tokens, heads, key_width = q.shape
    kv_heads, width = v.shape[2:]
    grid = (tokens // config.BM, batch * heads)
    numbers = tokens, heads, kv_heads, math.log2(math.e) / math.sqrt(key_width)
    constants = {"WIDTH": width, "MORE": key_width - width, "CAUSAL": causal, **config._asdict()}
    launch(attention, grid, q, k, v, out, *numbers, **constants)


def missing(problem: AttentionProblem) -> str:
    """The reason why there is no kernel for the problem; empty if there is one."""
    _, tokens_q, tokens_k, _, _, key_width = problem.shape
    width = problem.d.shape[-1]
    if any(problem.arguments[name].dtype != problem.d.dtype for name in ("q", "k")):
        return "no Triton kernel of ours for FP8"
    if (
        tokens_q != tokens_k
        or tokens_q % _LEAST_TOKENS
        or width & (width - 1)
        or (more := key_width - width) & more - 1
    ):
        return f"tokens must be a multiple of {_LEAST_TOKENS}, widths a power of two or the sum of two"
    return ""


def candidates(problem: AttentionProblem) -> Iterator[tuple[str, Callable[[AttentionProblem], None]]]:
    """All configurations whose tiles divide the problem evenly."""

    def of(config: Config) -> Callable[[AttentionProblem], None]:
        def call(problem: AttentionProblem) -> None:
            q, k, v, causal = (problem.arguments[name] for name in ("q", "k", "v", "causal"))
            run(q, k, v, problem.d, causal, config)

        return call

    for config in CONFIGS:
        if problem.shape.tokens_q % config.BM == 0:
            yield str(config), of(config)
