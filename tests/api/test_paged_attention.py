"""flash_attention with keys and values in pages, against an fp64 oracle and against the same keys without pages."""

from __future__ import annotations

import pytest
import torch
from helpers.decode_problem import FP8, POISON, Problem
from hypothesis import given, settings
from hypothesis import strategies as st
from test_flash_attention import Tiles

import deep_gemm_rocm as dg
from deep_gemm_rocm import jit
from deep_gemm_rocm.heuristics.choices import replaced
from deep_gemm_rocm.problems import attention as checks
from deep_gemm_rocm.testing import attention_reference, visible_keys


def arguments_of(problem: Problem) -> dict:
    arguments = problem.arguments
    return {"k": arguments.pop("k_cache"), "v": arguments.pop("v_cache"), **arguments, "causal": True}


def check(problem: Problem) -> None:
    """Compares with the oracle. All slots of the cache that no token uses are NaN, so that reading one shows."""
    out = torch.full((*problem.q.shape[:-1], problem.widths[1]), POISON, dtype=torch.bfloat16)
    _, lse = dg.flash_attention(**arguments_of(problem), out=out, return_lse=True)
    for i, tokens in enumerate(problem.context_lens):
        of_q = {"q_descale": problem.descales["q_descale"][i : i + 1]} if problem.dtype == FP8 else {}
        k, v = (problem.dequantised(which, i, round_tokens=True) for which in "kv")
        seen = visible_keys(problem.tokens_q, tokens, True, problem.window)
        reference = attention_reference(problem.q[i : i + 1], k, v, seen=seen, **problem.options, **of_q)
        reference.assert_accurate(out[i : i + 1], lse[i : i + 1])


CASES = {
    "small pages": Problem((300, 40, 0, 1), tokens_q=100),
    "gpt-oss": Problem((300, 70), 90, heads=16, kv_heads=2, widths=(64, 64), page_size=64, window=(127, 0), sink=True),
    "narrow": Problem((300,), tokens_q=100, widths=(80, 80), page_size=32, softcap=3.0),
    "latent heads": Problem((300, 70), tokens_q=130, heads=4, kv_heads=4, widths=(192, 128), page_size=16),
    "wide": Problem((200,), tokens_q=70, widths=(256, 256), page_size=256),
    "fp8": Problem((300, 70), tokens_q=100, dtype=FP8, page_size=16),
    "narrow fp8": Problem((300, 70), tokens_q=100, dtype=FP8, widths=(112, 112), page_size=128),
    "fp8 cache": Problem((300, 0, 33), tokens_q=100, factors="heads", page_size=16),
    "fp8 cache of gpt-oss": Problem(
        (300, 70), 90, heads=16, kv_heads=2, widths=(64, 64), page_size=64, window=(127, 0), sink=True, factors="tensor"
    ),
    "fp8 cache of latent heads": Problem((150, 70), tokens_q=130, widths=(192, 128), factors="sequences"),
    "narrow fp8 cache": Problem((150,), tokens_q=70, widths=(112, 112), page_size=256, softcap=3.0, factors="tensor"),
    "tokens with factors": Problem((300, 0, 33), tokens_q=100, factors="tokens", page_size=16),
    "narrow tokens with factors": Problem((150, 70), tokens_q=70, widths=(80, 80), page_size=32, factors="tokens"),
    "wide tokens with factors": Problem((150,), tokens_q=70, widths=(256, 256), page_size=64, factors="tokens"),
    "pages of 48": Problem((300, 40, 0, 97), 100, widths=(64, 64), page_size=48, window=(70, 0)),
    "pages of 512": Problem((600, 40), tokens_q=100, widths=(64, 64), page_size=512),
    "wide pages of 1056": Problem((1100, 7), tokens_q=70, heads=4, widths=(256, 256), page_size=1056),
    "fp8 in pages of 48": Problem((300, 40, 0, 97), 100, dtype=FP8, widths=(64, 64), page_size=48, window=(70, 0)),
    "fp8 in pages of 272": Problem((600, 273), 70, heads=4, dtype=FP8, page_size=272),
    "fp8 cache in pages of 272": Problem((600, 273), 70, heads=4, widths=(64, 64), page_size=272, factors="heads"),
    "tokens with factors in pages of 272": Problem(
        (600, 0, 273), 70, heads=4, widths=(64, 64), page_size=272, window=(300, 0), factors="tokens"
    ),
}
QUICK = (
    ("small pages", 64), ("fp8", 256), ("tokens with factors", 64), ("pages of 48", 64),
    ("tokens with factors in pages of 272", 256),
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "queries"),
    [
        pytest.param(name, queries, marks=() if (name, queries) in QUICK else pytest.mark.slow)
        for name in CASES
        for queries in (64, 256)
    ],
)
def test_accurate(name, queries):
    with replaced(Tiles(queries)):
        check(CASES[name])


# With kernels that other tests compile, and with all.
@pytest.mark.parametrize(
    ("factors", "queries"),
    [(("", "tokens"), (64,)), pytest.param(("", "heads", "tokens"), (64, 128, 256), marks=pytest.mark.slow)],
    ids=["few kernels", "all kernels"],
)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_any_shape(factors, queries, data):
    kv_heads = data.draw(st.integers(1, 2), "kv_heads")
    problem = Problem(
        tuple(data.draw(st.lists(st.integers(0, 200), min_size=1, max_size=3), "context_lens")),
        tokens_q=data.draw(st.integers(1, 150), "tokens_q"),
        heads=kv_heads * data.draw(st.integers(1, 3), "group"),
        kv_heads=kv_heads,
        widths=(64, 64),
        page_size=data.draw(st.sampled_from([16, 32, 64, 128, 256]), "page_size"),
        window=data.draw(st.none() | st.tuples(st.integers(-1, 90), st.just(0)), "window"),
        factors=data.draw(st.sampled_from(factors), "factors"),
        seed=data.draw(st.integers(0, 99), "seed"),
    )
    with replaced(Tiles(data.draw(st.sampled_from(queries), "queries"))):
        check(problem)


@pytest.mark.parametrize("which", ["k_descale", "v_descale"])
def test_a_factor_that_is_any_nan_gives_nan(which):
    """The bits of this NaN would overflow in rounding."""
    problem = Problem((40,), tokens_q=40, heads=2, kv_heads=1, widths=(64, 64), factors="tokens")
    block, offset = problem.block_table[0, 1], 20 % problem.page_size
    problem.descales[which][block, offset, 0] = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)
    out = dg.flash_attention(**arguments_of(problem))
    assert out[0, 20:].isnan().all()


@pytest.mark.parametrize("page_size", [32, 48])
def test_packed_queries_get_the_bits_of_keys_without_pages(page_size):
    lens, queries = (150, 0, 77, 33), (40, 0, 77, 1)
    problem = Problem(lens, widths=(64, 64), page_size=page_size)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(sum(queries), 8, 64, generator=generator).bfloat16()
    ends_q, ends_k = (torch.tensor([0, *lengths]).cumsum(0).int() for lengths in (queries, lens))
    expected = dg.flash_attention(
        q, torch.cat(problem.k), torch.cat(problem.v), causal=True, cu_seqlens_q=ends_q, cu_seqlens_k=ends_k
    )
    out = dg.flash_attention(**{**arguments_of(problem), "q": q}, cu_seqlens_q=ends_q)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("widths", [(128, 128), pytest.param((192, 128), marks=pytest.mark.slow)], ids=str)
def test_chunks_of_a_prompt_merge_into_the_whole(widths):
    """Chunked prefill, also of DeepSeek's heads: the cached context without a mask, the new tokens with one."""
    problem = Problem((200,), tokens_q=70, heads=4, kv_heads=4, widths=widths)
    whole, lse = dg.flash_attention(**arguments_of(problem), return_lse=True)
    context = arguments_of(problem) | {"context_lens": torch.tensor([130], dtype=torch.int32), "causal": False}
    before, lse_before = dg.flash_attention(**context, return_lse=True)
    new_k, new_v = problem.k[0][None, 130:], problem.v[0][None, 130:]
    new, lse_new = dg.flash_attention(problem.q, new_k, new_v, causal=True, return_lse=True)
    merged, lse_merged = dg.merge_attention_states(before, lse_before, new, lse_new)
    assert (merged.double() - whole.double()).abs().max() < 0.02
    assert torch.allclose(lse_merged, lse, atol=1e-5)


@pytest.mark.parametrize(("tokens", "page_size"), [(33, 16), (-5, 16), (2**31 - 1, 16), (-5, 48), (2**31 - 1, 48)])
def test_nonsense_on_the_device_reaches_nothing_else(monkeypatch, tokens, page_size):
    """Block tables and lengths on a GPU aren't checked. If they are wrong, kernels read other existing pages."""
    problem = Problem((100, 33), tokens_q=20, widths=(64, 64), page_size=page_size)
    expected = dg.flash_attention(**arguments_of(problem))
    monkeypatch.setattr(checks, "check_pages", lambda *arguments: ())
    jit.forget()  # or calls would be repeated with the checks of earlier ones
    problem.context_lens = (100, tokens)
    problem.block_table[1] = torch.tensor([2**31 - 1, -(2**31), 10**6]).int().repeat(9)[: problem.block_table.shape[1]]
    assert torch.equal(dg.flash_attention(**arguments_of(problem))[0], expected[0])


GOOD = arguments_of(Problem((30, 16), tokens_q=3, widths=(64, 64)))
OF_TOKENS = {
    "k": GOOD["k"].to(FP8), "v": GOOD["v"].to(FP8), "k_descale": torch.ones(*GOOD["k"].shape[:3]),
    "v_descale": torch.ones(*GOOD["k"].shape[:3]),
}  # fmt: skip
BAD = [
    ({"context_lens": None}, TypeError, "context_lens must be a torch.Tensor"),
    ({"block_table": None}, TypeError, "block_table must be a torch.Tensor"),
    ({"cu_seqlens_k": torch.tensor([0, 30, 46]).int()}, ValueError, "cu_seqlens_k must be None with block_table"),
    ({"block_table": torch.tensor([[0, 99], [1, 2]]).int()}, ValueError, "got 99 as block 1 of sequence 0"),
    ({"k": torch.zeros(6, 8, 2, 64).bfloat16(), "v": torch.zeros(6, 8, 2, 64).bfloat16()}, ValueError,
     "a block of k must have a multiple of 16 tokens, got 8"),
    ({"k": torch.zeros(6, 56, 2, 64).bfloat16(), "v": torch.zeros(6, 56, 2, 64).bfloat16()}, ValueError,
     "a block of k must have a multiple of 16 tokens, got 56"),
    ({"context_lens": torch.tensor([30, 16])}, TypeError, "context_lens must be int32"),
    ({"k": GOOD["k"].half()}, TypeError, "k must be bfloat16 or float8_e4m3fnuz for q in bfloat16"),
    ({"k": GOOD["k"].to(FP8)}, TypeError, "v must have the dtype of k, float8_e4m3fnuz"),
    ({"k": GOOD["k"].to(FP8), "v": GOOD["v"].to(FP8)}, ValueError, "k_descale must be given for k"),
    (OF_TOKENS | {"k_descale": torch.ones(3), "v_descale": torch.ones(1)}, ValueError,
     r"k_descale must have shape \(1,\), .*; or \(6, 16, 2\), one for each token and head; got \(3,\)"),
    (OF_TOKENS | {"v_descale": torch.ones(1)}, ValueError, "v_descale must have shape"),
    (OF_TOKENS | {"k_descale": torch.ones(7, 15, 2)}, ValueError, "k_descale must have shape"),
    (OF_TOKENS | {"k_descale": OF_TOKENS["k_descale"].half()}, TypeError, "k_descale must be float32"),
    (OF_TOKENS | {"q": GOOD["q"].half()}, TypeError, "k must be float16 for q in float16"),
]  # fmt: skip


@pytest.mark.parametrize(("bad", "error", "message"), BAD, ids=[f"{next(iter(c[0]))}-{c[2]}" for c in BAD])
def test_bad_input_is_one_clear_error_and_writes_nothing(bad, error, message):
    out = torch.full((2, 3, 8, 64), POISON, dtype=torch.bfloat16)
    with pytest.raises(error, match=message):
        dg.flash_attention(**{**GOOD, "out": out, **bad})
    assert (out == POISON).all()


def test_a_page_that_offsets_do_not_reach():
    around = torch.empty(1, 272, 2**22 - 8, dtype=torch.bfloat16)  # nothing touches this memory
    k = around[..., :128].unflatten(-1, (2, 64))
    with pytest.raises(ValueError, match=r"a block of k must be within 2 GiB, got 272 tokens with strides"):
        dg.flash_attention(**{**GOOD, "k": k, "v": torch.zeros(1, 272, 2, 64).bfloat16()})
