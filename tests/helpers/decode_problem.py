"""Decode attention over a scattered cache, checked against the oracle."""

from __future__ import annotations

import dataclasses

import torch

import deep_gemm_rocm as dg
from deep_gemm_rocm.testing import attention_reference, visible_keys
from helpers.latent_bytes import rounded

FP8 = torch.float8_e4m3fnuz
POISON = -1234.0


@dataclasses.dataclass
class Problem:
    """Sequences scattered over a cache, which has NaNs in all unused places. The block table names only used blocks."""

    context_lens: tuple[int, ...]
    tokens_q: int = 1
    heads: int = 8
    kv_heads: int = 2
    widths: tuple[int, int] = (128, 128)
    dtype: torch.dtype = torch.bfloat16
    page_size: int = 16
    window: tuple[int, int] | None = None
    sink: bool = False
    softcap: float = 0.0
    factors: str = ""  # of an FP8 cache under q in bf16: one for the "tensor", or of "heads", "sequences" or "tokens"
    seed: int = 0

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        batch, pages = len(self.context_lens), [-(-tokens // self.page_size) for tokens in self.context_lens]
        used = sum(pages)
        self.cache_dtype = FP8 if self.factors else self.dtype
        self.q = self._random((batch, self.tokens_q, self.heads, self.widths[0]), generator, self.dtype)
        # An extra head, and blocks at both ends, belong to no sequence.
        around = (used + 5, self.page_size, self.kv_heads + 1)
        self.k_cache, self.v_cache = (
            torch.full((*around, width), torch.nan).to(self.cache_dtype)[1:-1, :, : self.kv_heads]
            for width in self.widths
        )
        self.block_table = torch.full((batch, max(pages, default=0) + 2), -7, dtype=torch.int32)
        order = torch.randperm(used + 3, generator=generator)[:used].int()
        self.k, self.v = [], []
        for sequence, tokens in enumerate(self.context_lens):
            own, order = order[: pages[sequence]], order[pages[sequence] :]
            self.block_table[sequence, : len(own)] = own
            for cache, kept, width in ((self.k_cache, self.k, 0), (self.v_cache, self.v, 1)):
                values = self._random((tokens, self.kv_heads, self.widths[width]), generator, self.cache_dtype)
                kept.append(values)
                for page, first in zip(own.tolist(), range(0, tokens, self.page_size), strict=True):
                    part = values[first : first + self.page_size]
                    cache[page, : len(part)] = part
        self.attn_sink = torch.randn(self.heads, generator=generator) * 3 if self.sink else None
        self.descales = {}
        if self.dtype == FP8:
            self.descales["q_descale"] = torch.empty(batch, self.heads).uniform_(0.05, 0.3, generator=generator)
        for name in ("k", "v") if self.cache_dtype == FP8 else ():
            self.descales[f"{name}_descale"] = self._factors(generator)

    def _factors(self, generator: torch.Generator) -> torch.Tensor:
        """Factors of keys or values; those of tokens are NaN in all unused places."""
        blocks = self.k_cache.shape[0]
        shapes = {"tensor": (1,), "heads": (self.kv_heads,), "tokens": (blocks, self.page_size, self.kv_heads + 1)}
        shape = shapes.get(self.factors, (len(self.context_lens), self.kv_heads))
        factors = torch.empty(shape).uniform_(0.02, 0.3, generator=generator)
        if self.factors == "tokens":
            used = torch.zeros(blocks, self.page_size, 1, dtype=torch.bool)
            for sequence, tokens in enumerate(self.context_lens):
                used[self._places(sequence, tokens)] = True
            factors = torch.where(used, factors, torch.nan)[:, :, : self.kv_heads]
        return factors

    def _places(self, sequence: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Block and offset of each of the sequence's tokens."""
        token = torch.arange(tokens)
        return self.block_table[sequence, token // self.page_size].long(), token % self.page_size

    def dequantised(self, which: str, sequence: int, round_tokens: bool = False) -> torch.Tensor:
        """Keys or values of a sequence, fp64 [1, tokens, heads, width].

        Args:
            round_tokens: whether products with factors of tokens are rounded to bf16.
        """
        values = (self.k if which == "k" else self.v)[sequence].double()
        if self.cache_dtype != FP8:
            return values[None]
        factors = self.descales[f"{which}_descale"]
        if factors.dim() == 3:
            products = values * factors[self._places(sequence, len(values))][..., None]
            return (rounded(products.float()).double() if round_tokens else products)[None]
        return (values * (factors[sequence] if factors.dim() == 2 else factors)[:, None])[None]

    def put(self, which: str, sequence: int, token: int, column: int, value: float, head: int = 0) -> None:
        """Replaces a value of "k" or "v", both in the cache and in the oracle's input."""
        cache, kept = (self.k_cache, self.k) if which == "k" else (self.v_cache, self.v)
        page = self.block_table[sequence, token // self.page_size]
        cache[page, token % self.page_size, head, column] = value
        kept[sequence][token, head, column] = value

    def _random(self, shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * (8 if dtype == FP8 else 1)).to(dtype)

    @property
    def arguments(self) -> dict:
        lens = torch.tensor(self.context_lens, dtype=torch.int32)
        return {
            "q": self.q, "k_cache": self.k_cache, "v_cache": self.v_cache, "block_table": self.block_table,
            "context_lens": lens, "window": self.window, **self.options, **self.descales,
        }  # fmt: skip

    @property
    def options(self) -> dict:
        return {"attn_sink": self.attn_sink, "softcap": self.softcap}

    def run(self, num_splits: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the result after checking it against the oracle, and that nothing outside the output was written."""
        out_dtype = torch.bfloat16 if self.dtype == FP8 else self.dtype
        around = torch.full((*self.q.shape[:2], self.heads + 1, self.widths[1] + 8), POISON, dtype=out_dtype)
        out = around[..., : self.heads, : self.widths[1]]
        _, lse = dg.flash_attention_decode(**self.arguments, out=out, return_lse=True, num_splits=num_splits)
        for i, tokens in enumerate(self.context_lens):
            seen = visible_keys(self.tokens_q, tokens, True, self.window)
            of_q = {"q_descale": self.descales["q_descale"][i : i + 1]} if self.dtype == FP8 else {}
            keys, values = self.dequantised("k", i), self.dequantised("v", i)
            reference = attention_reference(
                self.q[i : i + 1], keys, values, seen=seen, in_parts=True, **self.options, **of_q
            )
            reference.assert_accurate(out[i : i + 1], lse[i : i + 1])
        result = out.clone()
        out.fill_(POISON)
        assert (around == POISON).all()
        return result, lse
