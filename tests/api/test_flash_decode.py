"""flash_attention_decode against an fp64 oracle, element by element."""

from __future__ import annotations

import pytest
import torch
from helpers.decode_problem import FP8, POISON, Problem
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.api import decode
from deep_gemm_rocm.problems import decode as checks

CASES = [
    Problem((100, 0, 33, 5)),
    Problem((300, 129, 1), tokens_q=4, page_size=64),
    Problem((300, 2), tokens_q=3, heads=6, kv_heads=6, widths=(64, 64), page_size=128),
    Problem((500, 77), tokens_q=2, heads=40, kv_heads=1, page_size=32, window=(70, 0)),
    Problem((100, 33), tokens_q=2, dtype=FP8, page_size=64, widths=(64, 64)),
    Problem((100, 33), widths=(256, 256), page_size=64),
    Problem((300, 33), heads=16, kv_heads=2, widths=(64, 64), window=(127, 0), sink=True, page_size=64),
    Problem((300, 0), tokens_q=2, widths=(112, 112), softcap=2.5),
    Problem((100, 33), widths=(80, 80), sink=True),
    Problem((*(i % 5 * 17 for i in range(70)), 600), heads=3, kv_heads=1, widths=(64, 64)),
    Problem((300, 6), tokens_q=8, page_size=64),
    Problem((200, 0, 7), tokens_q=7, heads=10, widths=(64, 64), window=(70, 0)),
    Problem((200, 33), tokens_q=3, factors="tokens", widths=(80, 80), window=(70, 0)),
    Problem((200, 70), heads=6, kv_heads=3, factors="tensor", widths=(64, 64)),
    Problem((300, 0, 97), tokens_q=2, widths=(64, 64), page_size=48, window=(70, 0)),
]
SLOW = [
    Problem((100, 33), tokens_q=2, widths=(80, 80), dtype=FP8, softcap=2.5, sink=True),
    Problem((300, 33), tokens_q=2, dtype=FP8, page_size=16),
    Problem((300, 0, 33), factors="tokens", page_size=64),
    Problem((200, 33), tokens_q=6, factors="heads", softcap=2.5, sink=True),
    Problem((100, 33), factors="sequences", widths=(256, 256), page_size=32),
    *(Problem((100, 257), widths=widths, dtype=torch.float16) for widths in ((64, 64), (192, 128), (256, 256))),
    *(Problem((100, 257), widths=widths) for widths in ((96, 96), (192, 192), (192, 128))),
    *(
        Problem((100, 257), widths=widths, dtype=FP8)
        for widths in ((96, 96), (112, 112), (192, 192), (256, 256), (192, 128))
    ),
    *(
        Problem((100, 257), widths=widths, factors=factors)
        for widths in ((96, 96), (112, 112), (192, 192), (256, 256), (192, 128))
        for factors in ("heads", "tokens")
    ),
    *(
        Problem((600, 7), tokens_q=2, heads=4, page_size=528, dtype=dtype, factors=factors)
        for dtype, factors in ((torch.bfloat16, ""), (torch.bfloat16, "heads"), (torch.bfloat16, "tokens"), (FP8, ""))
    ),
    Problem((600, 7), widths=(64, 64), page_size=512),
    Problem((4096, 1000), heads=128, kv_heads=1),
    Problem((4096, 1000, 17, 64, 127, 128, 129), heads=32, kv_heads=8, page_size=64),
]


def case_id(problem: Problem) -> str:
    name = str(problem.dtype).removeprefix("torch.")
    heads = f"{problem.heads}/{problem.kv_heads}"
    name += f"-factors of {problem.factors}" if problem.factors else ""
    return f"{name}-{problem.widths[0]}x{problem.widths[1]}-{heads}-{problem.tokens_q}-page{problem.page_size}"


@pytest.mark.parametrize(
    "problem",
    [*CASES, *(pytest.param(problem, marks=pytest.mark.slow) for problem in SLOW)],
    ids=[case_id(problem) for problem in CASES + SLOW],
)
@pytest.mark.parametrize("num_splits", [None, 1, 7])
def test_accurate(problem, num_splits):
    problem.run(num_splits)


@pytest.mark.parametrize("num_splits", [None, 1, 3])
@pytest.mark.parametrize(("tokens_q", "window"), [(1, 40), (4, 40), (4, 0), (3, 1000)])
def test_windows_that_begin_around_a_block_of_keys(tokens_q, window, num_splits):
    """Sequences are so long that, in some of them, the first key that a token sees begins a block."""
    lens = (*range(104, 113), 41, 3)
    Problem(lens, tokens_q=tokens_q, heads=6, widths=(64, 64), window=(window, 0)).run(num_splits)


@pytest.mark.parametrize(("sequences", "num_splits"), [(140, None), (2, 130)])
def test_more_sequences_or_parts_than_a_wave_looks_at_twice(sequences, num_splits):
    lens = [i % 3 * 40 for i in range(sequences - 1)]
    Problem((*lens, 4300), heads=3, kv_heads=1, widths=(64, 64)).run(num_splits)


def test_parts_of_no_sequences_twice():
    for _ in range(2):
        Problem((), heads=3, kv_heads=1, widths=(64, 64)).run(2)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_shape(data):
    kv_heads = data.draw(st.integers(1, 3), "kv_heads")
    Problem(
        tuple(data.draw(st.lists(st.integers(0, 200), max_size=4), "context_lens")),
        tokens_q=data.draw(st.integers(1, 8), "tokens_q"),
        heads=kv_heads * data.draw(st.integers(1, 9), "group"),
        kv_heads=kv_heads,
        widths=(64, 64),
        page_size=data.draw(st.sampled_from([16, 32, 64, 128, 256]), "page_size"),
        window=data.draw(st.none() | st.tuples(st.integers(-1, 90), st.just(0)), "window"),
        factors=data.draw(st.sampled_from(["", "heads", "tokens"]), "factors"),
        seed=data.draw(st.integers(0, 99), "seed"),
    ).run(data.draw(st.none() | st.integers(1, 9), "num_splits"))


@pytest.mark.parametrize("num_splits", [None, 5])
def test_same_bits_every_time_on_any_number_of_cus(num_splits):
    problem = Problem((300, 777), widths=(64, 64))
    first, lse = problem.run(num_splits)
    dg.set_num_sms(8)
    try:
        again, lse_again = problem.run(num_splits)
    finally:
        dg.set_num_sms(0)
    assert torch.equal(first, again)
    assert torch.equal(lse, lse_again)


def test_splits_of_a_sequence_are_its_own():
    problem = Problem((300, 77), widths=(64, 64))
    both, _ = problem.run(3)
    arguments = {**problem.arguments, **{name: problem.arguments[name][:1] for name in ("q", "block_table")}}
    arguments["context_lens"] = arguments["context_lens"][:1]
    assert torch.equal(dg.flash_attention_decode(**arguments, num_splits=3), both[:1])


def test_more_keys_than_can_be_shared_out(monkeypatch):
    check = checks.check_decode
    many = {"batch": 2**12, "pages_of_sequence": 2**22}  # too many for real tensors
    monkeypatch.setattr(decode, "check_decode", lambda *arguments: check(*arguments)._replace(**many))
    with pytest.raises(ValueError, match="num_splits must be given where 4096 sequences of 2 heads can have up to"):
        dg.flash_attention_decode(**GOOD)


def test_agrees_with_flash_attention():
    problem = Problem((300,), tokens_q=4)
    out, lse = problem.run()
    expected, lse_expected = dg.flash_attention(
        problem.q, problem.k[0][None], problem.v[0][None], causal=True, return_lse=True
    )
    assert (out.double() - expected.double()).abs().max() < 0.01
    assert torch.allclose(lse, lse_expected, atol=1e-5)


def test_nan_of_a_token_shows_in_its_sequence_only():
    problem = Problem((100, 60), widths=(64, 64))
    problem.q[1, 0, 3] = torch.nan
    problem.run(3)


def test_nan_and_infinity_of_keys_and_values_show():
    problem = Problem((100, 60), widths=(64, 64))
    problem.put("k", 0, 50, 5, torch.nan, head=1)
    problem.put("v", 1, 33, 5, torch.inf, head=1)
    out, _ = problem.run(3)  # the oracle has these values, too
    assert out[0, 0, 4:].isnan().all()
    assert not out[0, 0, :4].isnan().any()
    assert (out[1, 0, 4:, 5] == torch.inf).all()


# Problems whose sequences have several blocks of keys, the first and last of which not all tokens see; and a factor of
# the queries, so that probabilities within a part, and a part's weight, may underflow.
SPREAD = {
    "bf16": ({"context_lens": (170, 34, 2), "tokens_q": 4, "heads": 10}, 1),
    "large": ({"context_lens": (170, 34, 2), "tokens_q": 4, "heads": 10}, 40),
    "narrow": ({"context_lens": (170, 34, 2), "tokens_q": 4, "heads": 10, "widths": (80, 80)}, 40),
    "capped": ({"context_lens": (170, 34), "heads": 10, "widths": (112, 112), "softcap": 9.0, "sink": True}, 40),
    "window": ({"context_lens": (170, 40), "tokens_q": 4, "window": (83, 0)}, 40),
    "f16": ({"context_lens": (170, 34), "tokens_q": 3, "dtype": torch.float16}, 40),
    "wide": ({"context_lens": (170,), "tokens_q": 2, "widths": (256, 256)}, 40),
    "e4m3": ({"context_lens": (330, 70), "tokens_q": 4, "dtype": FP8}, 1),
    "e4m3 cache": ({"context_lens": (170, 34), "tokens_q": 3, "factors": "heads"}, 40),
    "factors of tokens": ({"context_lens": (170, 34), "tokens_q": 3, "factors": "tokens"}, 40),
}


@pytest.mark.parametrize("num_splits", [None, 1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("options", "size"), SPREAD.values(), ids=SPREAD)
def test_odd_values_show_where_they_are_seen_however_keys_are_split(options, size, num_splits):
    problem = Problem(**{"widths": (64, 64), "page_size": 16, "kv_heads": 2, **options})
    if size != 1:
        problem.q.mul_(size)
    infinities = () if problem.cache_dtype == FP8 else (torch.inf, -torch.inf)
    for sequence, tokens in enumerate(problem.context_lens):
        odd = range(0, tokens, 3)
        for column, token in enumerate(odd):
            for i, value in enumerate((torch.nan, *infinities)):
                if (column + i) % 4 != 0:  # columns with any of them, also with both infinities
                    problem.put("v", sequence, token, (column + 20 * i) % 64, value)
        for token in range(max(tokens - 5, 0), tokens):  # around the last key that each query sees
            problem.put("v", sequence, token, 63 - tokens + token, torch.nan, head=1)
    problem.run(num_splits)


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("which", ["q", "k"])
@pytest.mark.parametrize(("width", "column"), [(64, 7), (80, 20)])
def test_odd_logits_show_in_their_queries_however_keys_are_split(width, column, which, value, num_splits):
    """A logit of NaN or infinity makes a query's whole result NaN. A key with -infinity has no effect at all."""
    problem = Problem((170, 34), tokens_q=3, widths=(width, width))
    problem.q.abs_()
    if which == "q":
        problem.q[0, 1, 3, column] = value
        for cache in (problem.k_cache, *problem.k):
            cache.abs_()
    else:
        for token in (3, 70, 168, 169):
            problem.put("k", 0, token, column, value)
            problem.put("v", 0, token, 9, torch.nan)
    problem.put("v", 0, 100, 11, torch.inf)
    problem.run(num_splits)


@pytest.mark.parametrize("num_splits", [1, 3])
def test_the_largest_values_stay_finite(num_splits):
    problem = Problem((100,), widths=(64, 64))
    problem.q.zero_()
    for cache in (problem.v_cache, *problem.v):
        cache[~cache.isnan()] = 3e38
    out, _ = problem.run(num_splits)
    assert out.isfinite().all()


@pytest.mark.parametrize("size", [1e-3, 1e4])
def test_logits_of_any_size(size):
    problem = Problem((100, 33), widths=(64, 64))
    problem.q.mul_(size)
    problem.run(3)


@pytest.mark.parametrize("widths", [(128, 128), (80, 80)], ids=str)
def test_parts_have_values_of_any_size(widths):
    problem = Problem((200, 33), widths=widths)
    sizes = torch.tensor([2.0**-125, 1.0, 2.0**120, 2.0**-30]).repeat_interleave(32)[: widths[1]]
    for cache in (problem.v_cache, *problem.v):
        cache.mul_(sizes)
    problem.run(3)


GOOD = Problem((30, 16), widths=(64, 64)).arguments
FP8_CACHES = {f"{name}_cache": torch.zeros(6, 16, 2, 64).to(FP8) for name in "kv"}
FP8_CACHES |= {f"{name}_descale": torch.ones(2) for name in "kv"}
BAD = [
    ({"q": None}, TypeError, "q must be a torch.Tensor"),
    ({"q": torch.zeros(2, 9, 8, 64).bfloat16()}, ValueError, "q must have 1 to 8 tokens"),
    ({"q": torch.zeros(2, 1, 7, 64).bfloat16()}, ValueError, "heads of q must be a multiple"),
    ({"q": torch.zeros(2, 1, 8, 128).bfloat16()}, ValueError, "k_cache must have the head dim of q"),
    ({"k_cache": torch.zeros(6, 16, 2, 64).half()}, TypeError, "k_cache must be bfloat16 or float8_e4m3fnuz for q in"),
    (
        {"k_cache": torch.zeros(6, 16, 2, 64).to(FP8)},
        TypeError,
        "v_cache must have the dtype of k_cache, float8_e4m3fnuz, got torch.bfloat16",
    ),
    ({"k_cache": torch.zeros(6, 16, 2, 64).to(torch.float8_e4m3fn)}, TypeError, "convert_fp8_fn_to_fnuz"),
    ({**FP8_CACHES, "v_descale": None}, ValueError, "v_descale must be given"),
    ({**FP8_CACHES, "k_descale": torch.ones(3)}, ValueError, r"k_descale must have shape \(1,\), one factor for all"),
    ({**FP8_CACHES, "k_descale": torch.ones(4)}, ValueError, r"or \(6, 16, 2\), one for each token and head; got"),
    ({**FP8_CACHES, "k_descale": torch.ones(6, 16, 2)}, ValueError, r"v_descale must have shape \(6, 16, 2\)"),
    ({**FP8_CACHES, "v_descale": torch.ones(6, 16, 1)}, ValueError, r"k_descale must have shape \(6, 16, 2\)"),
    ({**FP8_CACHES, "k_descale": torch.ones(6, 16, 2).half()}, TypeError, "k_descale must be float32"),
    ({**FP8_CACHES, "q_descale": torch.ones(1)}, ValueError, "q_descale must be None"),
    ({"v_cache": torch.zeros(6, 32, 2, 64).bfloat16()}, ValueError, "as many blocks, tokens and heads"),
    ({"k_cache": torch.zeros(6, 8, 2, 64).bfloat16(), "v_cache": torch.zeros(6, 8, 2, 64).bfloat16()}, ValueError,
     "a block of k_cache must have a multiple of 16 tokens, got 8"),
    ({"block_table": torch.zeros(3, 2).int()}, ValueError, "block_table must have shape"),
    ({"block_table": torch.zeros(2, 2)}, TypeError, "block_table must be int32"),
    ({"block_table": torch.tensor([[0, 99], [1, 2]]).int()}, ValueError, "got 99 as block 1 of sequence 0"),
    ({"block_table": torch.tensor([[0], [1]]).int()}, ValueError, "got 30 for sequence 0"),
    ({"context_lens": torch.tensor([30, -1]).int()}, ValueError, "must not be negative, got -1 for sequence 1"),
    ({"context_lens": torch.tensor([30, 16])}, TypeError, "context_lens must be int32"),
    ({"num_splits": 0}, ValueError, "num_splits must be at least 1"),
    ({"k_descale": torch.ones(1)}, ValueError, "k_descale must be None"),
]  # fmt: skip


@pytest.mark.parametrize(("bad", "error", "message"), BAD, ids=[f"{next(iter(c[0]))}-{c[2]}" for c in BAD])
def test_bad_input_is_one_clear_error_and_writes_nothing(bad, error, message):
    out = torch.full((2, 1, 8, 64), POISON, dtype=torch.bfloat16)
    with pytest.raises(error, match=message):
        dg.flash_attention_decode(**{**GOOD, "out": out, **bad})
    assert (out == POISON).all()


@pytest.mark.parametrize("tokens", [33, -5, 2**31 - 1])
@pytest.mark.parametrize("num_splits", [None, 1, 3])
def test_nonsense_on_the_device_reaches_nothing_else(monkeypatch, num_splits, tokens):
    """Block tables and lengths on a GPU aren't checked. If they are wrong, kernels read other existing pages."""
    problem = Problem((100, 33))
    expected, _ = problem.run(num_splits)
    monkeypatch.setattr(checks, "check_pages", lambda *arguments: ())
    problem.context_lens = (100, tokens)
    problem.block_table[1] = torch.tensor([2**31 - 1, -(2**31), 10**6]).int().repeat(9)[: problem.block_table.shape[1]]
    out = dg.flash_attention_decode(**problem.arguments, num_splits=num_splits)
    assert torch.equal(out[0], expected[0])
