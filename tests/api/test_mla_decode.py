"""mla_decode against an fp64 oracle, element by element."""

from __future__ import annotations

import pytest
import torch
from helpers.decode_problem import POISON, Problem
from helpers.host_memory import reserved
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.testing import attention_reference, visible_keys


class Latent(Problem):
    """A cache with one head of keys, which contain the values."""

    def __init__(self, context_lens: tuple[int, ...], heads: int = 16, **options) -> None:
        super().__init__(context_lens, heads=heads, kv_heads=1, widths=(576, 512), **options)

    @property
    def arguments(self) -> dict:
        lens = torch.tensor(self.context_lens, dtype=torch.int32)
        return {"q": self.q, "kv_cache": self.k_cache, "block_table": self.block_table, "context_lens": lens}

    def run(self, num_splits: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        around = torch.full((*self.q.shape[:2], self.heads + 1, 520), POISON, dtype=self.dtype)
        out = around[..., : self.heads, :512]
        _, lse = dg.mla_decode(
            **self.arguments, out=out, return_lse=True, num_splits=num_splits, softmax_scale=192**-0.5
        )
        for i, tokens in enumerate(self.context_lens):
            seen = visible_keys(self.tokens_q, tokens, True, None)
            keys = self.k[i][None]
            reference = attention_reference(
                self.q[i : i + 1], keys, keys[..., :512], seen=seen, softmax_scale=192**-0.5, in_parts=True
            )
            reference.assert_accurate(out[i : i + 1], lse[i : i + 1])
        result = out.clone()
        out.fill_(POISON)
        assert (around == POISON).all()
        return result, lse


CASES = [
    Latent((100, 0, 33, 5)),
    Latent((130, 65), heads=70, page_size=64),
    Latent((70, 1), heads=20, tokens_q=4, page_size=128),
    Latent((200,), dtype=torch.float16, tokens_q=2, page_size=64),
    Latent((200, 0, 49), tokens_q=2, page_size=48),
    Latent((100, 1), tokens_q=2, page_size=3),
    Latent((300,), page_size=251),
]


@pytest.mark.parametrize("problem", CASES, ids=range(len(CASES)))
@pytest.mark.parametrize("num_splits", [pytest.param(None, marks=pytest.mark.slow), 1, 3])
def test_accurate(problem, num_splits):
    problem.run(num_splits)


@pytest.mark.slow
def test_long():
    Latent((4096, 1000), heads=128, page_size=64).run()


@settings(max_examples=6, deadline=None)
@given(
    lens=st.lists(st.integers(0, 100), max_size=2),
    tokens_q=st.integers(1, 4),
    heads=st.integers(1, 24),
    num_splits=st.none() | st.integers(1, 5),
    page_size=st.sampled_from([32, 32, 3, 48]),  # those of CASES, which have kernels of their own
    seed=st.integers(0, 99),
)
def test_any_shape(lens, tokens_q, heads, num_splits, page_size, seed):
    Latent(tuple(lens), heads=heads, tokens_q=tokens_q, page_size=page_size, seed=seed).run(num_splits)


@pytest.mark.parametrize(
    "page_size", [3, 48, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 7, 40, 200))]
)
def test_pages_of_any_size_give_the_same_bits(page_size):
    """Keys are the same, whatever their pages are."""
    problem = Latent((100,), tokens_q=2)
    expected, _ = problem.run(2)
    pages = -(-100 // page_size)
    padded = torch.nn.functional.pad(problem.k[0][:, 0], (0, 0, 0, pages * page_size - 100), value=torch.nan)
    problem.k_cache = padded.view(pages, page_size, 1, 576).flip(0)
    problem.block_table = torch.arange(pages).int().flip(0)[None]
    assert torch.equal(problem.run(2)[0], expected)


@pytest.mark.parametrize("num_splits", [None, 1, 3])
@pytest.mark.parametrize(("dtype", "size"), [(torch.bfloat16, 20), (torch.float16, 1)], ids=str)
def test_odd_values_show_where_they_are_seen_however_keys_are_split(dtype, size, num_splits):
    """Infinite keys have infinite logits: a positive one makes the result NaN, and -infinity excludes its key."""
    problem = Latent((70, 34), heads=20, tokens_q=4, page_size=32, dtype=dtype)
    problem.q.mul_(size)
    problem.q[..., 40:60] = 0  # infinity there makes the result NaN in every query that sees it
    problem.q[..., 100:300].abs_()
    for column, token in enumerate(range(0, 60, 3)):
        problem.put("k", 0, token, 100 + column, -torch.inf)
    problem.put("k", 0, 69, 7, torch.nan)
    problem.put("k", 1, 32, 7, torch.inf)
    problem.run(num_splits)


def test_same_bits_every_time():
    problem = Latent((150, 77))
    first, lse = problem.run(2)
    again, lse_again = problem.run(2)
    assert torch.equal(first, again)
    assert torch.equal(lse, lse_again)


def test_nan_of_a_token_shows_in_its_sequence_only():
    problem = Latent((70, 40))
    problem.q[1, 0, 3, 100] = torch.nan
    out, _ = problem.run(2)
    assert out[1, 0, 3].isnan().all()
    assert not out[0].isnan().any()


@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_logits_of_any_size(size):
    problem = Latent((70, 3))
    problem.q.mul_(size)
    problem.run(2)


BAD = [
    ({"q": torch.zeros(2, 1, 16, 512).bfloat16()}, ValueError, "kv_cache must be .blocks, block_size, 1, 512"),
    ({"q": torch.zeros(2, 1, 16, 576)}, TypeError, "q must be bfloat16, float16, float8_e4m3fnuz or float8_e4m3fn"),
    ({"d_v": 256}, ValueError, "d_v must be 576 and 512, got 576 and 256"),
    ({"return_lse": "no"}, TypeError, "return_lse must be a bool, got str"),
    ({"return_lse": True, "lse_base_2": 2}, TypeError, "lse_base_2 must be a bool, got int"),
    ({"kv_cache": torch.zeros(4, 257, 1, 576).bfloat16()}, ValueError, "block of kv_cache must have 1 to 256 tokens"),
    (
        {"kv_cache": reserved(2**33).view(torch.bfloat16).as_strided((2, 16, 1, 576), (2**31, 576, 576, 1))},
        ValueError, "pages of kv_cache must be less than 2.32 bytes apart, got 4294967296",
    ),
    (
        {"kv_cache": reserved(2**26).view(torch.bfloat16).as_strided((2, 2, 1, 576), (2**24, 2**23, 576, 1))},
        ValueError, "tokens of a page of kv_cache must be less than 2.24 bytes apart, got 16777216",
    ),
    ({"context_lens": torch.tensor([999, 1]).int()}, ValueError, "got 999 for sequence 0"),
    ({"block_table": torch.tensor([[50, 51, 52], [0, 1, 2]]).int()}, ValueError, "got 50 as block 0 of sequence 0"),
]  # fmt: skip


def test_parts_have_values_of_any_size():
    problem = Latent((200, 33))
    problem.q.zero_()
    sizes = torch.tensor([2.0**-125, 1.0, 2.0**120, 2.0**-30]).repeat_interleave(16).repeat(9)
    for cache in (problem.k_cache, *problem.k):
        cache.mul_(sizes)
    problem.run(3)


@pytest.mark.parametrize(("bad", "error", "message"), BAD, ids=[case[2] for case in BAD])
def test_bad_input_is_one_clear_error_and_writes_nothing(bad, error, message):
    given = Latent((30, 16)).arguments
    out = torch.full((2, 1, 16, 512), POISON, dtype=torch.bfloat16)
    with pytest.raises(error, match=message):
        dg.mla_decode(**{**given, "out": out, **bad})
    assert (out == POISON).all()
