"""Sparse attention as DeepSeek-V3.2 has it, from the indexer to the output: ``python benchmarks/sparse_attention.py``.

A chunk of a prompt's last tokens goes through the indexer's logits, the choice of 2048 tokens and attention to these;
beside it dense attention of the same chunk, with heads of 192 and 128 elements. Then steps of decoding, and the choice
alone. Times are simulated, under sustained load, with an empty Infinity Cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Literal

import torch
import typer

import deep_gemm_rocm as dg
from deep_gemm_rocm import simulator

HEADS, TOP_K = 128, 2048
INDEXER_HEADS, INDEXER_WIDTH = 64, 128
INDEXER_TOKEN_BYTES = INDEXER_WIDTH + 4
WIDTH, VALUE_WIDTH = 576, 512
FP8_TOKEN_BYTES = 656
BF16_FLOPS, HBM_BYTES = 708e6, 4300e3  # for each microsecond; AMD's sustained rates
PAGE = 64

Profiled = list[simulator.KernelProfile]
GENERATOR = torch.Generator().manual_seed(0)


def kernels(call: Callable[[], object], compute: Literal["all", "sampled"] = "sampled") -> Profiled:
    with simulator.profile(compute=compute) as prof:
        call()
    return prof.kernels


def logits(queries: int, tokens: int) -> Profiled:
    """The last queries of a prompt, each of which sees the tokens up to its own."""
    q = torch.zeros(queries, INDEXER_HEADS, INDEXER_WIDTH, dtype=torch.float8_e4m3fnuz)
    keys = torch.zeros(tokens, INDEXER_WIDTH, dtype=torch.float8_e4m3fnuz), torch.ones(tokens)
    ends = torch.arange(tokens - queries + 1, tokens + 1, dtype=torch.int32)
    weights = torch.ones(queries, INDEXER_HEADS)
    return kernels(lambda: dg.fp8_mqa_logits(q, keys, weights, torch.zeros_like(ends), ends, clean_logits=False))


def paged_logits(sequences: int, tokens: int, *, has_schedule: bool) -> Profiled:
    """A step of decoding; the schedule comes from a kernel before that of the logits."""
    q = torch.zeros(sequences, 1, INDEXER_HEADS, INDEXER_WIDTH, dtype=torch.float8_e4m3fnuz)
    cache = torch.zeros(sequences * tokens // PAGE, PAGE, 1, INDEXER_TOKEN_BYTES, dtype=torch.uint8)
    weights = torch.ones(sequences, INDEXER_HEADS)
    lengths = torch.full((sequences,), tokens, dtype=torch.int32)
    table = torch.arange(len(cache), dtype=torch.int32).view(sequences, -1)

    def call() -> torch.Tensor:
        schedule = dg.get_paged_mqa_logits_metadata(lengths, PAGE, dg.get_num_sms()) if has_schedule else None
        return dg.fp8_paged_mqa_logits(q, cache, weights, lengths, table, schedule, tokens)

    return kernels(call)


def top_k(rows: int, columns: int) -> Profiled:
    """The largest of normally distributed logits, on which its time depends."""
    values = torch.randn(rows, columns, generator=GENERATOR)
    return kernels(lambda: dg.top_k_per_row(values, TOP_K), compute="all")


def chosen(queries: int, tokens: int, sequences: int) -> torch.Tensor:
    """Random slots in ascending order, as ``top_k_per_row`` returns them; each sequence has its own tokens."""
    keys = torch.rand(queries, tokens, generator=GENERATOR)
    slots = keys.topk(TOP_K, dim=1).indices.sort(dim=1).values.int()
    return slots + (torch.arange(queries) * sequences // queries * tokens).int()[:, None]


def sparse(queries: int, tokens: int, sequences: int, *, is_fp8: bool) -> Profiled:
    width, dtype = (FP8_TOKEN_BYTES, torch.uint8) if is_fp8 else (WIDTH, torch.bfloat16)
    cache = torch.zeros(sequences * tokens // PAGE, PAGE, 1, width, dtype=dtype)
    q = torch.zeros(queries, HEADS, WIDTH, dtype=torch.bfloat16)
    slots = chosen(queries, tokens, sequences)
    return kernels(lambda: dg.sparse_mla(q, cache, slots))


def dense(queries: int, tokens: int) -> Profiled:
    q, k, v = (
        torch.zeros(1, count, HEADS, width, dtype=torch.bfloat16)
        for count, width in ((queries, 192), (tokens, 192), (tokens, 128))
    )
    return kernels(lambda: dg.flash_attention(q, k, v, causal=True))


def sustained(profiled: Profiled) -> float:
    return sum(kernel.sustained_us for kernel in profiled)


def chain(queries: int, tokens: int) -> Iterator[str]:
    """A table of the steps for the last queries of a prompt, and of dense attention."""
    yield f"| the last {queries} of {tokens} tokens | µs | kernels |"
    yield "|---|---|---|"
    steps = {
        "logits": lambda: logits(queries, tokens),
        "top 2048": lambda: top_k(queries, tokens),
        "attention to these, bf16 cache": lambda: sparse(queries, tokens, 1, is_fp8=False),
    }
    total = 0.0
    for name, step in steps.items():
        profiled = step()
        total += sustained(profiled)
        yield f"| {name} | {sustained(profiled):.0f} | {', '.join(kernel.name for kernel in profiled)} |"
    yield f"| sparse, all three | {total:.0f} | |"
    profiled = dense(queries, tokens)
    yield f"| dense | {sustained(profiled):.0f} | {', '.join(kernel.name for kernel in profiled)} |"


def parts() -> Iterator[str]:
    """A table of single steps, and the part of the limit that they reach.

    The last column is the time that the power limit leaves the same work if each kernel's busiest resource never idles.
    """
    yield "| what | µs | limit, µs | reached | without idling, µs |"
    yield "|---|---|---|---|---|"

    def row(name: str, profiled: Profiled, limit: float) -> str:
        time = sustained(profiled)
        busy = sum(kernel.without_idling_us for kernel in profiled)
        return f"| {name} | {time:.1f} | {limit:.1f} | {limit / time:.0%} | {busy:.1f} |"

    products = 2 * HEADS * TOP_K * (WIDTH + VALUE_WIDTH)  # FLOPs of a query
    for queries in (64, 128):
        for is_fp8 in (False, True):
            token_bytes = FP8_TOKEN_BYTES if is_fp8 else 2 * WIDTH
            limit = max(queries * products / BF16_FLOPS, queries * TOP_K * token_bytes / HBM_BYTES)
            name = f"{queries} sequences, 2048 of 32768 tokens, {'656-byte' if is_fp8 else 'bf16'} cache"
            yield row(name, sparse(queries, 2**15, queries, is_fp8=is_fp8), limit)
    for sequences in (4, 64, 512):
        limit = sequences * 8192 * INDEXER_TOKEN_BYTES / HBM_BYTES
        for has_schedule in (False, True):
            name = f"logits, {sequences} sequences of 8192 tokens{', and their schedule' if has_schedule else ''}"
            yield row(name, paged_logits(sequences, 8192, has_schedule=has_schedule), limit)
    for rows, columns in ((512, 2**15), (64, 2**18)):
        yield row(f"top 2048, {rows} x {columns}", top_k(rows, columns), rows * columns * 4 / HBM_BYTES)


def main(
    queries: Annotated[int, typer.Option(help="Tokens of the chunk.", min=1)] = 512,
    tokens: Annotated[int, typer.Option(help="Tokens of the prompt, a multiple of 64.", min=TOP_K)] = 32768,
) -> None:
    """Print both tables."""
    if queries > tokens:
        raise typer.BadParameter(f"expected at most --tokens, {tokens}, got {queries}", param_hint="--queries")
    if tokens % PAGE:
        raise typer.BadParameter(f"expected a multiple of {PAGE}, got {tokens}", param_hint="--tokens")
    for table in (chain(queries, tokens), parts()):
        for line in table:
            print(line, flush=True)
        print()


if __name__ == "__main__":
    typer.run(main)
