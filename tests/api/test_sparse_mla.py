"""Attention to chosen tokens of the latent cache, against an fp64 oracle."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers.host_memory import reserved
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
            reference = attention_reference(self.q[i : i + 1, None], keys, keys[..., :512], seen=seen, in_parts=True)
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


def test_pages_and_tokens_may_be_far_apart():
    problem = Problem("bf16", (40, 0, 33))
    near = problem.cache.tensor
    page, token = 2**31 - 8, 2**23 - 8
    memory = reserved(len(near) * page * near.element_size()).view(BF16)
    far = memory.as_strided(near.shape, (page, token, 576, 1)).copy_(near)
    problem.check(*dg.sparse_mla(problem.q, far, problem.indices, topk_length=problem.lengths))


BAD = [
    ({"q": torch.zeros(4, 16, 576)}, TypeError, "q must be bfloat16"),
    ({"q": torch.zeros(4, 16, 512).to(BF16)}, ValueError, "512 in bfloat16 or 584 in uint8"),
    ({"kv_cache": torch.zeros(4, 3, 1, 656).byte()}, ValueError, "must have one of"),
    (
        {"kv_cache": reserved(2**33).as_strided((2, 16, 1, 656), (2**32, 656, 656, 1))},
        ValueError, "pages of kv_cache must be less than 2.32 bytes apart, got 4294967296",
    ),
    (
        {"kv_cache": reserved(2**26).view(BF16).as_strided((2, 2, 1, 576), (2**24, 2**23, 576, 1))},
        ValueError, "tokens of a page of kv_cache must be less than 2.24 bytes apart, got 16777216",
    ),
    ({"indices": torch.zeros(4, 40)}, TypeError, "indices must be int32"),
    ({"topk_length": torch.zeros(3, dtype=torch.int32)}, ValueError, "that divides 4 queries"),
    ({"attn_sink": torch.zeros(3)}, ValueError, "attn_sink must have shape"),
    ({"num_splits": 0}, ValueError, "num_splits"),
]  # fmt: skip


@pytest.mark.parametrize(("bad", "error", "message"), BAD, ids=[case[2] for case in BAD])
def test_bad_input_is_one_clear_error_and_writes_nothing(bad, error, message):
    problem = Problem("e4m3_656", (40, 0, 33, 1))
    out = torch.full((4, 16, 512), POISON, dtype=BF16)
    given = {"q": problem.q, "kv_cache": problem.cache.tensor, "indices": problem.indices, "out": out}
    with pytest.raises(error, match=message):
        dg.sparse_mla(**{**given, **bad})
    assert (out == POISON).all()


class Both:
    """Queries of one problem that name tokens of two caches."""

    def __init__(self, first: Problem, second: Problem) -> None:
        self.first, self.second = first, second
        slots = len(first.values)
        # The second cache's slots behind those of the first one, so that the oracle has one cache.
        named = (second.indices >= 0) & (second.indices < len(second.values))
        behind = torch.where(named, second.indices + slots, -1)
        self.rows = [
            torch.cat([torch.where(one < slots, one, -1)[:own], other[:others]])
            for one, other, own, others in zip(
                first.indices, behind, first.lengths.tolist(), second.lengths.tolist(), strict=True
            )
        ]

    @property
    def arguments(self) -> dict:
        return {
            "topk_length": self.first.lengths, "attn_sink": self.first.sink, "fp8_dtype": self.first.cache.dtype,
            "extra_kv_cache": self.second.cache.tensor, "extra_indices": self.second.indices,
            "extra_topk_length": self.second.lengths,
        }  # fmt: skip

    def check(self, *results: torch.Tensor) -> None:
        for i, row in enumerate(self.rows):
            one = copy.copy(self.first)
            one.values = torch.cat([self.first.values, self.second.values])
            one.indices, one.lengths, one.q = row[None], torch.tensor([len(row)]), self.first.q[i : i + 1]
            one.check(*(result[i : i + 1] for result in results))

    def run(self, num_splits: int | None = None) -> None:
        first = self.first
        out, lse, max_logits = dg.sparse_mla(
            first.q, first.cache.tensor, first.indices, **self.arguments, num_splits=num_splits
        )
        self.check(out, lse, max_logits)


@layouts
@pytest.mark.parametrize("num_splits", [None, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", [FNUZ, pytest.param(OCP, marks=pytest.mark.slow)], ids=["fnuz", "ocp"])
def test_tokens_of_two_caches(layout, num_splits, dtype):
    first = Problem(layout, (40, 0, 33, 1, 0), dtype=dtype, sink=True)
    Both(first, Problem(layout, (90, 70, 0, 1, 0), 90, page_size=64, dtype=dtype, seed=1)).run(num_splits)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    layout=st.sampled_from(LAYOUTS),
    lengths=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 70)), max_size=4),
    page_sizes=st.tuples(*[st.sampled_from([1, 2, 16, 64])] * 2),
    heads=st.integers(1, 40),
    num_splits=st.none() | st.integers(1, 5),
)
def test_any_two_caches(layout, lengths, page_sizes, heads, num_splits):
    of_first, of_second = (tuple(length[i] for length in lengths) for i in range(2))
    first = Problem(layout, of_first, 100, heads, page_sizes[0])
    Both(first, Problem(layout, of_second, 70, heads, page_sizes[1], seed=1)).run(num_splits)


def test_either_cache_may_be_empty():
    problem = Problem("bf16", (40, 0, 33))
    nothing = torch.empty(0, 64, 1, 576, dtype=BF16)
    slots = torch.zeros(3, 5, dtype=torch.int32)
    given = (problem.cache.tensor, problem.indices)
    problem.check(*dg.sparse_mla(
        problem.q, *given, topk_length=problem.lengths, extra_kv_cache=nothing, extra_indices=slots
    ))  # fmt: skip
    problem.check(*dg.sparse_mla(
        problem.q, nothing, slots, extra_kv_cache=given[0], extra_indices=given[1], extra_topk_length=problem.lengths
    ))  # fmt: skip


@layouts
def test_flash_mla_with_kvcache_and_an_extra_cache(layout):
    lengths = (40, 40, 7, 7), (9, 9, 60, 60)
    first, second = (Problem(layout, of, max(of), heads=8, page_size=16 << i, seed=i) for i, of in enumerate(lengths))
    out, lse = dg.flash_mla_with_kvcache(
        first.q.view(2, 2, 8, -1), first.cache.tensor, None, None, 512, is_fp8_kvcache=layout != "bf16",
        indices=first.indices.view(2, 2, -1), topk_length=first.lengths[::2].contiguous(),
        extra_k_cache=second.cache.tensor, extra_indices_in_kvcache=second.indices.view(2, 2, -1),
        extra_topk_length=second.lengths[::2].contiguous(),
    )  # fmt: skip
    Both(first, second).check(out.flatten(0, 1), lse.transpose(1, 2).flatten(0, 1))


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        ({"extra_kv_cache": None}, ValueError, "extra_indices and extra_topk_length must be None without"),
        ({"extra_kv_cache": torch.zeros(4, 16, 1, 576).to(BF16)}, TypeError, "must have the dtype of kv_cache"),
        ({"extra_kv_cache": torch.zeros(4, 16, 1, 584).byte()}, ValueError, "extra_kv_cache must have width 576"),
        ({"extra_indices": None}, TypeError, "extra_indices must be a torch.Tensor"),
        ({"extra_indices": torch.zeros(3, 4).int()}, ValueError, "extra_indices must have shape"),
        ({"extra_topk_length": torch.zeros(3).int()}, ValueError, "extra_topk_length must have a number of entries"),
    ],
)
def test_bad_second_caches(bad, error, message):
    both = Both(Problem("e4m3_656", (40, 0)), Problem("e4m3_656", (3, 2), seed=1))
    out = torch.full((2, 16, 512), POISON, dtype=BF16)
    with pytest.raises(error, match=message):
        dg.sparse_mla(both.first.q, both.first.cache.tensor, both.first.indices, **{**both.arguments, **bad}, out=out)
    assert (out == POISON).all()


def apart(tensor):
    """The same numbers in the corner of a larger tensor, as FlashMLA's tests pass them, with NaNs around."""
    around = [size + (128 if dim == tensor.dim() - 1 else 1) for dim, size in enumerate(tensor.shape)]
    poison = torch.full(around, torch.nan if tensor.is_floating_point() else 7, dtype=tensor.dtype)
    corner = poison[tuple(slice(size) for size in tensor.shape)]
    return corner.copy_(tensor)


@layouts
def test_flash_mla_takes_chosen_tokens_of_any_strides(layout):
    lengths = (40, 40, 7, 7), (9, 9, 60, 60)
    first, second = (Problem(layout, of, max(of), heads=8, page_size=16 << i, seed=i) for i, of in enumerate(lengths))
    rows = first.q.view(2, 2, 8, -1), first.indices.view(2, 2, -1), second.indices.view(2, 2, -1)
    around = torch.full((2, 3, 8, 512), POISON, dtype=BF16)

    def run(q, indices, extra, out):
        return dg.flash_mla_with_kvcache(
            q, first.cache.tensor, None, None, 512, indices=indices, topk_length=first.lengths[::2].contiguous(),
            extra_k_cache=second.cache.tensor, extra_indices_in_kvcache=extra, out=out,
            extra_topk_length=second.lengths[::2].contiguous(),
        )  # fmt: skip

    for which in range(5):  # one tensor, all, and then all once more
        out = torch.full((2, 2, 8, 512), POISON, dtype=BF16)
        given = [apart(tensor) if which in (i, 3, 4) else tensor for i, tensor in enumerate(rows)]
        result, lse = run(*given, out)
        assert result is out
        Both(first, second).check(out.flatten(0, 1), lse.transpose(1, 2).flatten(0, 1))
    with pytest.raises(ValueError, match="out must be a view of shape"):
        run(*rows, around[:, :2])
    assert (around == POISON).all()


@pytest.mark.parametrize("causal", [False, True])
def test_flash_mla_takes_queries_of_any_strides(causal):
    q, cache = torch.randn(2, 3, 4, 576).to(BF16), torch.randn(4, 64, 1, 576).to(BF16)
    options = {"block_table": torch.tensor([[2, 0], [1, 3]]).int(), "cache_seqlens": torch.tensor([70, 9]).int()}
    wanted = dg.flash_mla_with_kvcache(q, cache, **options, head_dim_v=512, causal=causal)
    for strided in (apart(q), apart(q), torch.cat([q, q], 2)[:, :, :4]):
        for result, expected in zip(
            dg.flash_mla_with_kvcache(strided, cache, **options, head_dim_v=512, causal=causal), wanted, strict=True
        ):
            assert torch.equal(result, expected)


def test_strides_that_kernels_take_need_no_copy(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "contiguous", lambda _: pytest.fail("copied"))
    problem = Problem("bf16", (40, 40, 7, 7), heads=8)
    q, slots = torch.cat([problem.q] * 2, 1), torch.cat([problem.indices] * 2, 1)
    for tokens in (1, 2):
        of_sequences = q.view(-1, tokens, 16, 576)[:, :, :8]
        chosen = slots.view(-1, tokens, slots.shape[1])[..., : problem.indices.shape[1]]
        dg.flash_mla_with_kvcache(of_sequences, problem.cache.tensor, None, None, 512, indices=chosen)
    dg.flash_mla_with_kvcache(q.view(4, 1, 16, 576)[:, :, :8], problem.cache.tensor, **WHOLE, head_dim_v=512)


WHOLE = {"block_table": torch.zeros(4, 1).int(), "cache_seqlens": torch.tensor([3, 2, 1, 0]).int()}


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_queries_of_flash_mla_without_keys(causal, batch_invariant):
    q, cache = torch.randn(3, 2, 4, 576).to(BF16), torch.full((4, 64, 1, 576), torch.nan, dtype=BF16)
    cache[1, 0] = 1
    table, lens = torch.tensor([[3], [1], [0]]).int(), torch.tensor([0, 1, 0]).int()
    for tokens in (3, 2):  # the second is a call of the same family
        out = torch.full((tokens, 2, 4, 512), POISON, dtype=BF16)
        _, lse = dg.flash_mla_with_kvcache(
            q[:tokens], cache, table[:tokens], lens[:tokens], 512, causal=causal, out=out,
            enable_batch_invariant=batch_invariant,
        )  # fmt: skip
        sees = torch.zeros(tokens, 2, dtype=torch.bool)
        sees[1, 1 if causal else slice(None)] = True
        assert (out[~sees] == 0).all()
        assert (out[sees] == 1).all()
        assert torch.equal(lse.isposinf(), ~sees[:, None].expand(-1, 4, -1))
        assert lse.transpose(1, 2)[sees].isfinite().all()
    _, own = dg.mla_decode(q, cache, block_table=table, context_lens=lens, return_lse=True)
    assert own[0].isneginf().all()


def sparse_of_flash_mla(**bad):
    problem, lengths = Problem("bf16", (40, 7)), torch.tensor([3, 4], dtype=torch.int32)
    q, cache, indices = problem.q[:, None], problem.cache.tensor, problem.indices[:, None]
    good = {"k_cache": cache, "extra_k_cache": cache, "extra_indices_in_kvcache": indices, "extra_topk_length": lengths}
    return dg.flash_mla_with_kvcache(q, **{**good, **bad}, indices=indices, head_dim_v=512, **NOT_DENSE)


def dense_of_flash_mla(**bad):
    q, cache, table = torch.zeros(1, 1, 4, 576).to(BF16), torch.zeros(2, 64, 1, 576).to(BF16), torch.tensor([[1, 0]])
    good = {"k_cache": cache, "block_table": table.int(), "cache_seqlens": torch.tensor([70]).int()}
    return dg.flash_mla_with_kvcache(q, **{**good, **bad}, head_dim_v=512)


def prompt_of_flash_mla(**bad):
    problem = Problem("bf16", (40, 7))
    good = {"kv": problem.cache.tensor.flatten(0, 1), "indices": problem.indices[:, None], "sm_scale": 0.1}
    return dg.flash_mla_sparse_fwd(problem.q, **{**good, **bad})


NOT_DENSE = {"block_table": None, "cache_seqlens": None}
CACHE = torch.zeros(2, 64, 1, 576)
BAD_OF_FLASH_MLA = [
    (dense_of_flash_mla, {"cache_seqlens": torch.tensor([70])}, TypeError, "^cache_seqlens must be int32"),
    (
        dense_of_flash_mla,
        {"cache_seqlens": torch.tensor([129]).int()},
        ValueError,
        "^cache_seqlens must fit block_table",
    ),
    (dense_of_flash_mla, {"k_cache": CACHE}, TypeError, "^k_cache must be bfloat16"),
    (sparse_of_flash_mla, {"k_cache": CACHE}, TypeError, "^k_cache must be bfloat16"),
    (sparse_of_flash_mla, {"extra_k_cache": CACHE}, TypeError, "^extra_k_cache must be bfloat16"),
    (sparse_of_flash_mla, {"extra_k_cache": CACHE.byte()}, ValueError, "^extra_k_cache must have width"),
    (sparse_of_flash_mla, {"extra_indices_in_kvcache": None}, TypeError, "^extra_indices_in_kvcache must be a torch"),
    (
        sparse_of_flash_mla,
        {"extra_k_cache": None},
        ValueError,
        "^extra_indices_in_kvcache and .* None without",
    ),
    (prompt_of_flash_mla, {"topk_length": torch.tensor([3]).int()}, ValueError, "^topk_length must have shape .2"),
    (prompt_of_flash_mla, {"sm_scale": 0.0}, ValueError, "^sm_scale must be positive"),
    (prompt_of_flash_mla, {"kv": torch.zeros(9, 1, 512).to(BF16)}, ValueError, "^kv must have width 576"),
]


@pytest.mark.parametrize(("call", "bad", "error", "message"), BAD_OF_FLASH_MLA, ids=range(len(BAD_OF_FLASH_MLA)))
def test_errors_name_the_arguments_of_flash_mla(call, bad, error, message):
    with pytest.raises(error, match=message):
        call(**bad)


def test_a_repeated_call_of_flash_mla_names_its_lengths():
    lengths = torch.tensor([70]).int()
    for _ in range(3):
        dense_of_flash_mla(cache_seqlens=lengths)
    with pytest.raises(ValueError, match=r"^cache_seqlens must fit block_table"):
        dense_of_flash_mla(cache_seqlens=lengths + 80)


def test_an_extra_cache_is_for_chosen_tokens():
    problem = Problem("bf16", (40,))
    with pytest.raises(ValueError, match="arguments of an extra cache must be None without indices"):
        dg.flash_mla_with_kvcache(
            problem.q[None], problem.cache.tensor, None, None, 512, extra_k_cache=problem.cache.tensor
        )
