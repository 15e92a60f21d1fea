"""``demo --attention``: attention of a layer of Llama-3-8B, over a prompt and then over a paged cache, checked."""

from __future__ import annotations

import torch
from rich.console import Console

from .. import flash_attention, flash_attention_decode, testing
from .demo import Case, Inputs, run_cases

_HEADS, _KV_HEADS, _HEAD_DIM = 32, 8, 128
_TOKENS = 1024  # of the prompt
_CONTEXTS = (1024, 700, 65, 1)  # tokens of sequences that decode together
_PAGE = 64  # tokens of a cache's block


def run(console: Console) -> bool:
    """Runs the demo and prints its measurements; returns whether every element is within its bound."""
    return run_cases(
        console,
        f"Attention of {_HEADS} heads of {_HEAD_DIM}, {_KV_HEADS} of keys and values, bf16",
        [
            Case("prefill", f"making queries, keys and values of {_TOKENS} tokens", _prefill),
            Case("decode", f"filling the paged cache of {len(_CONTEXTS)} sequences", _decode),
        ],
        "The bound is what roundings of probabilities and result, to bf16, may lose: an error of it is expected.",
    )


def _prefill(device: str) -> Inputs:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (_random(1, _TOKENS, heads, generator).to(device) for heads in (_HEADS, _KV_HEADS, _KV_HEADS))
    seen = testing.visible_keys(_TOKENS, _TOKENS, True, None)
    return Inputs(
        lambda: flash_attention(q, k, v, causal=True),
        lambda out: testing.attention_reference(q, k, v, seen=seen).measure(out),
    )


def _decode(device: str) -> Inputs:
    """Decodes the next token of sequences whose blocks are scattered over the cache."""
    generator = torch.Generator().manual_seed(1)
    counts = [-(-tokens // _PAGE) for tokens in _CONTEXTS]
    order = torch.randperm(sum(counts), generator=generator).int()
    block_table = torch.zeros(len(counts), max(counts), dtype=torch.int32)
    for row, own in zip(block_table, order.split(counts), strict=True):
        row[: len(own)] = own
    q = _random(len(counts), 1, _HEADS, generator)
    k_cache, v_cache = (_random(sum(counts), _PAGE, _KV_HEADS, generator) for _ in range(2))
    context_lens = torch.tensor(_CONTEXTS, dtype=torch.int32)
    arguments = [tensor.to(device) for tensor in (q, k_cache, v_cache, block_table, context_lens)]

    def call() -> torch.Tensor:
        q, k_cache, v_cache, block_table, context_lens = arguments
        out: torch.Tensor = flash_attention_decode(
            q, k_cache, v_cache, block_table=block_table, context_lens=context_lens
        )
        return out

    def check(out: torch.Tensor) -> testing.Accuracy:
        longest = max(_CONTEXTS)
        k, v = (cache[block_table.long()].flatten(1, 2)[:, :longest] for cache in (k_cache, v_cache))
        seen = torch.arange(longest) < context_lens[:, None, None, None]
        return testing.attention_reference(q, k, v, seen=seen, in_parts=True).measure(out)

    return Inputs(call, check)


def _random(first: int, second: int, heads: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(first, second, heads, _HEAD_DIM, generator=generator).bfloat16()
