"""Attention to chosen tokens of the latent cache, against an fp64 oracle."""

from __future__ import annotations

import pytest
import torch
from helpers.latent_bytes import BF16, FNUZ, OCP, LatentCache, random_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.testing import attention_reference

POISON = -1234.0
LAYOUTS = ("bf16", "e4m3_656", "e4m3_584")
layouts = pytest.mark.parametrize("layout", LAYOUTS)


class Problem:
    """Queries that name slots of a cache, which has NaNs in all slots that are not named, the first one among them.

    Rows of slots are ``lengths`` long, then come slots that must not count. A quarter of the others name no token.
    """

    def __init__(
        self, layout: str, lengths: tuple[int, ...], top_k: int = 40, heads: int = 16, page_size: int = 16,
        dtype: torch.dtype = FNUZ, sink: bool = False, seed: int = 0,
    ) -> None:  # fmt: skip
        generator = torch.Generator().manual_seed(seed)
        queries, slots = len(lengths), 12 * page_size * max(16 // page_size, 1)
        self.cache = LatentCache(layout, slots // page_size, page_size, dtype)
        used = torch.randperm(slots - 1, generator=generator)[: slots // 2] + 1
        data, scales, values = random_tokens(layout, len(used), dtype, generator)
        self.cache.put(used, data, scales)
        self.values = torch.full((slots, values.shape[1]), torch.nan, dtype=BF16)
        self.values[used] = values
        picked = used[torch.randint(0, len(used), (queries, top_k), generator=generator)].int()
        none = torch.tensor([-1, slots, -(2**31), 2**31 - 1], dtype=torch.int32)
        gaps = torch.rand(queries, top_k, generator=generator) < 0.25
        self.indices = torch.where(gaps, none[torch.randint(0, 4, gaps.shape, generator=generator)], picked)
        for row, length in zip(self.indices, lengths, strict=True):
            row[length:] = 0  # a NaN
        self.lengths = torch.tensor(lengths, dtype=torch.int32)
        self.q = torch.randn(queries, heads, values.shape[1], generator=generator).to(BF16) / 8
        self.sink = torch.randn(heads, generator=generator) * 3 if sink else None
        if sink:
            self.sink[:2] = torch.tensor([torch.inf, -torch.inf])[: len(self.sink[:2])]

    def check(self, out: torch.Tensor, lse: torch.Tensor, max_logits: torch.Tensor | None = None) -> None:
        for i, length in enumerate(self.lengths.tolist()):
            named = [slot for slot in self.indices[i, :length].tolist() if 0 <= slot < len(self.values)]
            if not named:
                assert (out[i] == 0).all()
                assert (lse[i] == torch.inf).all()
                assert max_logits is None or (max_logits[i] == -torch.inf).all()
                continue
            keys = self.values[named].double()[None, :, None]
            seen = torch.ones(1, len(named), dtype=torch.bool)
            reference = attention_reference(self.q[i : i + 1, None], keys, keys[..., :512], seen=seen)
            logits = self.q[i].double() @ self.values[named].double().T * self.q.shape[-1] ** -0.5
            if max_logits is not None:
                assert torch.allclose(max_logits[i].double(), logits.amax(1), rtol=1e-5, atol=1e-5)
            if self.sink is None:
                reference.assert_accurate(out[i : i + 1, None], lse[i : i + 1, :, None])
            else:
                share = torch.sigmoid(logits.logsumexp(1) - self.sink.double())[:, None]
                exact = logits.softmax(1) @ self.values[named].double()[:, :512]
                bound = 0.01 * (logits.softmax(1) @ self.values[named].double()[:, :512].abs())
                assert ((out[i].double() - exact * share).abs() <= bound * share).all()
                assert torch.allclose(lse[i].double(), logits.logsumexp(1), rtol=1e-5, atol=1e-5)

    def run(self, num_splits: int | None = None) -> torch.Tensor:
        queries, heads, _ = self.q.shape
        around = torch.full((queries, heads + 1, 520), POISON, dtype=BF16)
        out = around[:, :heads, :512]
        _, lse, max_logits = dg.sparse_mla(
            self.q, self.cache.tensor, self.indices, topk_length=self.lengths, attn_sink=self.sink,
            fp8_dtype=self.cache.dtype, num_splits=num_splits, out=out,
        )  # fmt: skip
        self.check(out, lse, max_logits)
        result = out.clone()
        out.fill_(POISON)
        assert (around == POISON).all()
        return result


CASES = [
    {"lengths": (40, 0, 33, 1)},
    {"lengths": (130, 131), "top_k": 131, "heads": 70, "page_size": 64, "dtype": OCP, "sink": True},
    {"lengths": (3, 40), "heads": 33, "page_size": 1, "sink": True},
]


@layouts
@pytest.mark.parametrize(
    "case", [*CASES[:2], *(pytest.param(case, marks=pytest.mark.slow) for case in CASES[2:])], ids=range(len(CASES))
)
@pytest.mark.parametrize("num_splits", [None, *(pytest.param(splits, marks=pytest.mark.slow) for splits in (1, 3))])
def test_accurate(layout, case, num_splits):
    Problem(layout, **case).run(num_splits)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    layout=st.sampled_from(LAYOUTS),
    lengths=st.lists(st.integers(0, 100), max_size=4),
    heads=st.integers(1, 40),
    page_size=st.sampled_from([1, 2, 16, 64]),
    dtype=st.sampled_from([FNUZ, OCP]),
    sink=st.booleans(),
    num_splits=st.none() | st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_any_shape(layout, lengths, heads, page_size, dtype, sink, num_splits, seed):
    Problem(layout, tuple(lengths), 100, heads, page_size, dtype, sink, seed).run(num_splits)


def test_flash_mla_sparse_fwd():
    problem = Problem("bf16", (40, 0, 7), page_size=16)
    kv = problem.cache.tensor.flatten(0, 1)
    out, max_logits, lse = dg.flash_mla_sparse_fwd(
        problem.q, kv, problem.indices[:, None], 576**-0.5, topk_length=problem.lengths
    )
    problem.check(out, lse, max_logits)


@layouts
def test_flash_mla_with_kvcache_and_indices(layout):
    problem = Problem(layout, (40, 40, 7, 7), heads=8, dtype=OCP)
    q, indices = problem.q.view(2, 2, 8, -1), problem.indices.view(2, 2, -1)
    metadata, none = dg.get_mla_metadata()
    out, lse = dg.flash_mla_with_kvcache(
        q, problem.cache.tensor, None, None, 512, metadata, none, is_fp8_kvcache=layout != "bf16", indices=indices,
        topk_length=problem.lengths[::2].contiguous(), fp8_dtype=OCP,
    )  # fmt: skip
    assert lse.shape == (2, 8, 2)
    problem.check(out.flatten(0, 1), lse.transpose(1, 2).flatten(0, 1))


@pytest.mark.parametrize("causal", [False, True])
def test_flash_mla_with_kvcache_of_whole_sequences(causal):
    q, cache = torch.randn(1, 3, 4, 576).to(BF16), torch.randn(4, 64, 1, 576).to(BF16)
    table, lens = torch.tensor([[2, 0]], dtype=torch.int32), torch.tensor([70], dtype=torch.int32)
    out, lse = dg.flash_mla_with_kvcache(q, cache, table, lens, 512, causal=causal)
    keys = torch.cat([cache[2], cache[0]])[None, :70]
    seen = torch.arange(70) <= torch.tensor([[67], [68], [69]]) if causal else torch.ones(3, 70, dtype=torch.bool)
    attention_reference(q, keys, keys[..., :512], seen=seen).assert_accurate(out, lse)


def test_an_empty_cache_has_no_tokens():
    q, indices = torch.randn(2, 4, 576).to(BF16), torch.zeros(2, 5, dtype=torch.int32)
    for pages in (0, 1):
        out, lse, _ = dg.sparse_mla(q, torch.empty(pages, 16, 1, 576, dtype=BF16), indices[:, : 5 - 5 * pages])
        assert (out == 0).all()
        assert (lse == torch.inf).all()


BAD = [
    ({"q": torch.zeros(4, 16, 576)}, TypeError, "q must be bfloat16"),
    ({"q": torch.zeros(4, 16, 512).to(BF16)}, ValueError, "512 in bfloat16 or 584 in uint8"),
    ({"kv_cache": torch.zeros(4, 3, 1, 656).byte()}, ValueError, "must have one of"),
    ({"indices": torch.zeros(4, 40)}, TypeError, "indices must be int32"),
    ({"topk_length": torch.zeros(3, dtype=torch.int32)}, ValueError, "that divides 4 queries"),
    ({"attn_sink": torch.zeros(3)}, ValueError, "attn_sink must have shape"),
    ({"num_splits": 0}, ValueError, "num_splits"),
]


@pytest.mark.parametrize(("bad", "error", "message"), BAD, ids=[case[2] for case in BAD])
def test_bad_input_is_one_clear_error_and_writes_nothing(bad, error, message):
    problem = Problem("e4m3_656", (40, 0, 33, 1))
    out = torch.full((4, 16, 512), POISON, dtype=BF16)
    given = {"q": problem.q, "kv_cache": problem.cache.tensor, "indices": problem.indices, "out": out}
    with pytest.raises(error, match=message):
        dg.sparse_mla(**{**given, **bad})
    assert (out == POISON).all()


def test_an_extra_cache_is_refused():
    problem = Problem("bf16", (40,))
    with pytest.raises(NotImplementedError, match="extra_k_cache"):
        dg.flash_mla_with_kvcache(
            problem.q[None], problem.cache.tensor, None, None, 512, indices=problem.indices[None],
            extra_k_cache=problem.cache.tensor,
        )  # fmt: skip
