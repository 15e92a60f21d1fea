"""Attention of single tokens to paged caches in Triton, as a baseline: keys are split, and parts are combined."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ..heuristics.gemm_config import NUM_CUS
from ..problems.layout import ceil_div
from .attention_problems import AttentionProblem
from .triton_launch import launch

# ruff: noqa: N803  (Triton's constants are upper case)


@triton.jit
def attend_to_part(
    q, k, v, table, lengths, parts, sums, pages, heads, group, kv_stride, page_stride, scale,
    WIDTH: tl.constexpr, ROTARY: tl.constexpr, LATENT: tl.constexpr, PAGE: tl.constexpr, SPLIT: tl.constexpr,
    BH: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """One of SPLIT parts of a sequence's keys, for BH of the `group` heads that share a head of the cache.

    `parts` is [batch, heads, SPLIT, WIDTH], `sums` the logarithm to base 2 of each part's sum. Keys have WIDTH elements
    and ROTARY more. If LATENT, the first WIDTH elements of keys are the values. `scale` is for exp2."""
    sequence, kv_head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    blocks = tl.cdiv(group, BH)
    kv_head, block = kv_head // blocks, kv_head % blocks
    in_group = block * BH + tl.arange(0, BH)
    is_head = in_group < group
    head = kv_head * group + in_group
    width, more = tl.arange(0, WIDTH), tl.arange(0, max(ROTARY, 16))
    rows = (sequence * heads + head) * (WIDTH + ROTARY)
    q_tile = tl.load(q + rows[:, None] + width[None, :], mask=is_head[:, None], other=0)
    if ROTARY:
        q_more = tl.load(q + rows[:, None] + WIDTH + more[None, :], mask=is_head[:, None], other=0)
    length = tl.load(lengths + sequence)
    of_part = tl.cdiv(tl.cdiv(length, SPLIT), BN) * BN
    first = part * of_part
    last = tl.minimum(first + of_part, length)
    accumulator = tl.zeros((BH, WIDTH), tl.float32)
    largest = tl.full((BH,), float("-inf"), tl.float32)
    total = tl.zeros((BH,), tl.float32)
    for start in range(first, last, BN):
        tokens = start + tl.arange(0, BN)
        page = tl.load(table + sequence * pages + tokens // PAGE, mask=tokens < last, other=0).to(tl.int64)
        places = page * page_stride + tokens % PAGE * kv_stride + kv_head * (WIDTH + ROTARY)
        keys = tl.load(k + places[None, :] + width[:, None], mask=tokens[None, :] < last, other=0)
        scores = tl.dot(q_tile, keys)
        if ROTARY:
            keys_more = tl.load(k + places[None, :] + WIDTH + more[:, None], mask=tokens[None, :] < last, other=0)
            scores = tl.dot(q_more, keys_more, scores)
        scores = tl.where(tokens[None, :] < last, scores * scale, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        p = tl.exp2(scores - new_largest[:, None])
        shrink = tl.exp2(largest - new_largest)
        total = total * shrink + tl.sum(p, 1)
        if LATENT:
            values = tl.trans(keys)
        else:
            values = tl.load(v + places[:, None] + width[None, :], mask=tokens[:, None] < last, other=0)
        accumulator = tl.dot(p.to(values.dtype), values, accumulator * shrink[:, None])
        largest = new_largest
    results = (sequence * heads + head) * SPLIT + part
    if first < last:
        tl.store(parts + results[:, None] * WIDTH + width[None, :], accumulator / total[:, None], mask=is_head[:, None])
        tl.store(sums + results, largest + tl.log2(total), mask=is_head)


@triton.jit
def combine(parts, sums, lengths, out, heads, WIDTH: tl.constexpr, SPLIT: tl.constexpr, BN: tl.constexpr):
    """out = the parts of one head, each weighted with its sum."""
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = sequence * heads + head
    width = tl.arange(0, WIDTH)
    length = tl.load(lengths + sequence)
    of_part = tl.cdiv(tl.cdiv(length, SPLIT), BN) * BN
    largest, total = float("-inf"), 0.0
    result = tl.zeros((WIDTH,), tl.float32)
    for part in range(tl.cdiv(length, of_part)):
        sum_of_part = tl.load(sums + row * SPLIT + part)
        new_largest = tl.maximum(largest, sum_of_part)
        shrink, factor = tl.exp2(largest - new_largest), tl.exp2(sum_of_part - new_largest)
        result = result * shrink + tl.load(parts + (row * SPLIT + part) * WIDTH + width) * factor
        total = total * shrink + factor
        largest = new_largest
    tl.store(out + row * WIDTH + width, (result / total).to(out.dtype.element_ty))


class Config(NamedTuple):
    BH: int
    BN: int
    SPLIT: int
    num_warps: int
    num_stages: int

    def __str__(self) -> str:
        tile = f"{self.BH} heads x {self.BN} keys, {self.SPLIT} parts"
        return f"{tile}, {self.num_warps} warps, {self.num_stages} stages"


def configurations(problem: AttentionProblem) -> Iterator[Config]:
    """Parts for about one and two workgroups on each CU."""
    batch, _, tokens, heads, kv_heads, width = problem.shape
    for bh, bn, warps in ((16, 16, 4), (16, 32, 4), (32, 32, 4), (64, 32, 8)):
        programs = batch * kv_heads * ceil_div(heads // kv_heads, bh)
        if bh > max(16, heads // kv_heads):
            continue
        for per_cu in (1, 2):
            parts = max(1, min(per_cu * NUM_CUS // programs, tokens // bn))
            for stages in (1, 2) if width <= 256 else (1,):
                yield Config(bh, bn, 1 << (parts.bit_length() - 1), warps, stages)


def missing(problem: AttentionProblem) -> str:
    """The reason why there is no kernel for the problem; empty if there is one."""
    _, tokens_q, _, _, _, width = problem.shape
    cache = problem.arguments.get("kv_cache", problem.arguments.get("k_cache"))
    if cache.dtype != torch.bfloat16:
        return "no Triton kernel of ours for FP8"
    if tokens_q != 1:
        return "no Triton kernel of ours for several tokens of a sequence"
    if "k_cache" in problem.arguments and width & (width - 1):
        return f"the width must be a power of two, got {width}"
    return ""


def candidates(problem: AttentionProblem) -> Iterator[tuple[str, Callable[[AttentionProblem], None]]]:
    for config in dict.fromkeys(configurations(problem)):
        yield str(config), functools.partial(run, config=config)


def run(problem: AttentionProblem, config: Config) -> None:
    arguments = problem.arguments
    is_latent = "kv_cache" in arguments
    k, v = (arguments["kv_cache"],) * 2 if is_latent else (arguments["k_cache"], arguments["v_cache"])
    q, table, lengths = (arguments[name] for name in ("q", "block_table", "context_lens"))
    batch, _, heads, key_width = q.shape
    width, kv_heads = problem.d.shape[-1], k.shape[2]
    parts = torch.empty(batch, heads, config.SPLIT, width, device=q.device)
    sums = torch.empty(batch, heads, config.SPLIT, device=q.device)
    group = heads // kv_heads
    numbers = table.shape[1], heads, group, k.stride(1), k.stride(0), math.log2(math.e) / math.sqrt(key_width)
    constants = {"WIDTH": width, "ROTARY": key_width - width, "LATENT": is_latent, "PAGE": k.shape[1]}
    grid = (batch, kv_heads * ceil_div(group, config.BH), config.SPLIT)
    launch(attend_to_part, grid, q, k, v, table, lengths, parts, sums, *numbers, **constants, **config._asdict())
    combined = {"WIDTH": width, "SPLIT": config.SPLIT, "BN": config.BN, "num_warps": 4}
    launch(combine, (batch, heads), parts, sums, lengths, problem.d, heads, **combined)
