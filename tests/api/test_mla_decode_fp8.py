"""mla_decode over FP8 caches, against an fp64 oracle of the numbers in the cache."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from helpers.default_run import these
from helpers.latent_bytes import BF16, FNUZ, OCP, LatentCache, random_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.testing import attention_reference, visible_keys

POISON = -1234.0
LAYOUTS = ("e4m3", "e4m3_656")
layouts = pytest.mark.parametrize("layout", LAYOUTS)


def of_two_page_sizes(small: int, large: int) -> pytest.MarkDecorator:
    """Small pages have kernels of their own, of which the default run takes those for one layout."""
    cases = list(itertools.product(LAYOUTS, (small, large)))
    return pytest.mark.parametrize(
        ("layout", "page_size"), these(cases, [case for case in cases if case != (LAYOUTS[1], small)])
    )


class Problem:
    """Sequences scattered over an FP8 cache, which has NaNs in all unused places."""

    def __init__(
        self, layout: str, lens: tuple[int, ...], heads: int = 16, tokens_q: int = 1, page_size: int = 16,
        dtype: torch.dtype = FNUZ, descale: float | None = None, seed: int = 0, q_descale: float | None = None,
    ) -> None:  # fmt: skip
        generator = torch.Generator().manual_seed(seed)
        pages = [-(-tokens // page_size) for tokens in lens]
        self.cache = LatentCache(layout, sum(pages) + 3, page_size, dtype)
        order = torch.randperm(sum(pages) + 3, generator=generator).int()
        self.block_table = torch.full((len(lens), max(pages, default=0) + 1), -7, dtype=torch.int32)
        self.lens, self.keys, self.descale = lens, [], descale
        for sequence, tokens in enumerate(lens):
            own, order = order[: pages[sequence]], order[pages[sequence] :]
            self.block_table[sequence, : len(own)] = own
            data, scales, values = random_tokens(layout, tokens, dtype, generator)
            slots = (own[:, None] * page_size + torch.arange(page_size)).flatten()[:tokens]
            self.cache.put(slots, data, scales)
            self.keys.append(values[None, :, None])
        self.q = torch.randn(len(lens), tokens_q, heads, 576, generator=generator).to(BF16) / 16
        self.q_descale = q_descale  # of queries in FP8; else they are in bf16
        if q_descale is not None:
            self.q = (self.q / q_descale).to(dtype)

    def run(self, num_splits: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        batch, tokens_q, heads, _ = self.q.shape
        around = torch.full((batch, tokens_q, heads + 1, 520), POISON, dtype=BF16)
        out = around[..., :heads, :512]
        factor, q_factor = (
            None if number is None else torch.tensor([number]) for number in (self.descale, self.q_descale)
        )
        _, lse = dg.mla_decode(
            self.q, self.cache.tensor, block_table=self.block_table,
            context_lens=torch.tensor(self.lens, dtype=torch.int32), kv_descale=factor, fp8_dtype=self.cache.dtype,
            out=out, return_lse=True, num_splits=num_splits, q_descale=q_factor,
        )  # fmt: skip
        q, scale = self.q.to(BF16), (self.q_descale or 1) / 24
        for i, tokens in enumerate(self.lens):
            keys = self.keys[i].double() * (self.descale or 1)
            seen = visible_keys(tokens_q, tokens, True, None)
            reference = attention_reference(
                q[i : i + 1], keys, keys[..., :512], seen=seen, softmax_scale=scale, in_parts=True
            )
            reference.assert_accurate(out[i : i + 1], lse[i : i + 1])
        result = out.clone()
        out.fill_(POISON)
        assert (around == POISON).all()
        return result, lse


CASES = [
    {"lens": (100, 0, 33, 5)},
    {"lens": (130, 65), "heads": 70, "page_size": 64, "dtype": OCP},
    {"lens": (70, 3), "heads": 5, "tokens_q": 8, "page_size": 1},
    {"lens": (40, 7), "heads": 65, "tokens_q": 1, "page_size": 8},
    {"lens": (100, 7), "heads": 20, "tokens_q": 2, "page_size": 3, "dtype": OCP},
    {"lens": (100, 7), "heads": 20, "tokens_q": 2, "page_size": 24},
]


@pytest.mark.parametrize(
    ("layout", "case"),
    these(
        itertools.product(LAYOUTS, CASES),
        [(layout, CASES[number]) for layout, number in (("e4m3", 0), ("e4m3_656", 0), ("e4m3", 2), ("e4m3_656", 4))],
    ),
    ids=[f"{layout}-{case}" for layout in LAYOUTS for case in range(len(CASES))],
)
@pytest.mark.parametrize("num_splits", [None, pytest.param(3, marks=pytest.mark.slow)])
def test_accurate(layout, case, num_splits):
    Problem(layout, **case).run(num_splits)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    layout=st.sampled_from(["e4m3", "e4m3_656"]),
    lens=st.lists(st.integers(0, 100), max_size=3),
    tokens_q=st.integers(1, 8),
    heads=st.integers(1, 24),
    page_size=st.sampled_from([1, 2, 4, 8, 16, 64, 128]),
    dtype=st.sampled_from([FNUZ, OCP]),
    num_splits=st.none() | st.integers(1, 5),
    q_descale=st.sampled_from([None, 0.003]),
    seed=st.integers(0, 99),
)
def test_any_shape(layout, lens, tokens_q, heads, page_size, dtype, num_splits, q_descale, seed):
    problem = Problem(layout, tuple(lens), heads, tokens_q, page_size, dtype, seed=seed, q_descale=q_descale)
    problem.run(num_splits)


@of_two_page_sizes(2, 16)
def test_tokens_may_be_apart(layout, page_size):
    problem = Problem(layout, (40,), page_size=page_size)
    near = problem.cache.tensor
    apart = torch.empty(*near.shape[:3], near.shape[3] + 32, dtype=torch.uint8).view(near.dtype)[..., : near.shape[3]]
    lens = torch.tensor(problem.lens, dtype=torch.int32)
    arguments = {"block_table": problem.block_table, "context_lens": lens}
    assert torch.equal(
        dg.mla_decode(problem.q, apart.copy_(near), **arguments), dg.mla_decode(problem.q, near, **arguments)
    )


@of_two_page_sizes(1, 16)
def test_a_cache_may_have_three_dimensions(layout, page_size):
    problem = Problem(layout, (40, 3), page_size=page_size)
    arguments = {
        "q": problem.q, "block_table": problem.block_table,
        "context_lens": torch.tensor(problem.lens, dtype=torch.int32),
    }  # fmt: skip
    with_heads = dg.mla_decode(kv_cache=problem.cache.tensor, **arguments)
    for _ in range(2):  # the second call is a repeated one
        assert torch.equal(dg.mla_decode(kv_cache=problem.cache.tensor[:, :, 0], **arguments), with_heads)


@pytest.mark.parametrize("dtype", [FNUZ, OCP], ids=["fnuz", "ocp"])
@pytest.mark.parametrize("num_splits", [1, 2])
def test_the_factor_scales_keys_and_values(dtype, num_splits):
    Problem("e4m3", (70,), descale=0.03, dtype=dtype).run(num_splits)


QUERIES = [
    {"lens": (100, 0, 33, 5)},
    {"lens": (130, 65), "heads": 70, "page_size": 64},
    {"lens": (70, 3), "heads": 5, "tokens_q": 8, "page_size": 1},
]
QUERIES_IN_DEFAULT_RUN = (("e4m3_656", FNUZ, 0), ("e4m3_656", FNUZ, 2), ("e4m3", OCP, 1))


@pytest.mark.parametrize(
    ("layout", "dtype", "case"),
    these(
        itertools.product(LAYOUTS, (FNUZ, OCP), QUERIES),
        [(layout, dtype, QUERIES[number]) for layout, dtype, number in QUERIES_IN_DEFAULT_RUN],
    ),
    ids=[f"{layout}-{name}-{case}" for layout in LAYOUTS for name in ("fnuz", "ocp") for case in range(3)],
)
def test_fp8_queries(layout, case, dtype):
    Problem(layout, **case, dtype=dtype, q_descale=0.007).run()


def test_factors_of_queries_and_of_the_cache():
    Problem("e4m3", (70, 33), heads=20, dtype=OCP, q_descale=0.02, descale=0.3).run(2)


@pytest.mark.parametrize(
    ("layout", "dtype"),
    these(itertools.product(LAYOUTS, (FNUZ, OCP)), [("e4m3_656", FNUZ), ("e4m3", OCP)]),
    ids=[f"{layout}-{name}" for layout in LAYOUTS for name in ("fnuz", "ocp")],
)
@pytest.mark.parametrize("heads", [16, 17, 64])  # one number of rows of a workgroup each
def test_every_code_of_a_query_is_its_number(layout, dtype, heads):
    """The same bits as for queries in bf16, and for a factor that they could be multiplied with exactly."""
    problem = Problem(layout, (40, 7), dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 256, (2, 1, heads, 576), generator=generator, dtype=torch.uint8)
    codes[0, 0, :8] = torch.arange(8 * 576).view(8, 576) % 256  # NaNs, too
    codes[0, 0, 8:] = torch.where(codes[0, 0, 8:].view(dtype).float().isnan(), 0, codes[0, 0, 8:])
    q = codes.view(dtype)
    arguments = {
        "kv_cache": problem.cache.tensor, "block_table": problem.block_table, "fp8_dtype": dtype, "return_lse": True,
        "context_lens": torch.tensor(problem.lens, dtype=torch.int32), "softmax_scale": 2.0**-9,
    }  # fmt: skip
    for factor in (None, 0.25):
        descale = None if factor is None else torch.tensor([factor])
        results = dg.mla_decode(q, **arguments, q_descale=descale)
        expected = dg.mla_decode(q.to(BF16) * (factor or 1), **arguments)
        for result, of_bf16 in zip(results, expected, strict=True):
            assert result.dtype == of_bf16.dtype
            assert torch.equal(result.nan_to_num(-7), of_bf16.nan_to_num(-7))
        assert results[0][0, 0, :8].isnan().all()
        assert not results[0][0, 0, 8:].isnan().any()


@pytest.mark.parametrize(
    ("layout", "dtype"),
    these(itertools.product(LAYOUTS, (FNUZ, OCP)), [("e4m3", FNUZ), ("e4m3", OCP), ("e4m3_656", FNUZ)]),
    ids=[f"{layout}-{name}" for layout in LAYOUTS for name in ("fnuz", "ocp")],
)
def test_every_code_is_read_as_its_number(layout, dtype):
    """One token for each 512 codes: the output is its value."""
    codes = torch.arange(256, dtype=torch.uint8)
    cache = LatentCache(layout, 1, 16, dtype)
    scales, rotary = torch.tensor([1.0, 0.5, 1.0, 2.0]), torch.zeros(64, dtype=BF16)
    data = codes.repeat(2)
    if layout == "e4m3":
        token = torch.cat([data, torch.zeros(64, dtype=torch.uint8)])
        factors = torch.ones(512)
    else:
        token, factors = (
            torch.cat([data, scales.view(torch.uint8), rotary.view(torch.uint8)]),
            scales.repeat_interleave(128),
        )
    cache.put(torch.tensor([3]), token[None], torch.empty(1, 0, dtype=torch.uint8))
    cache.bytes[0, : 3 * cache.token_bytes] = 0
    q = torch.zeros(1, 1, 1, 576, dtype=BF16)
    q_nan = data.view(dtype).float().isnan()
    out = dg.mla_decode(
        q, cache.tensor, block_table=torch.zeros(1, 1, dtype=torch.int32),
        context_lens=torch.tensor([4], dtype=torch.int32), fp8_dtype=dtype,
    )  # fmt: skip
    if q_nan.any():  # a logit is NaN then
        assert out.isnan().all()
        token[:512][q_nan] = 0
        cache.put(torch.tensor([3]), token[None], torch.empty(1, 0, dtype=torch.uint8))
        out = dg.mla_decode(
            q, cache.tensor, block_table=torch.zeros(1, 1, dtype=torch.int32),
            context_lens=torch.tensor([4], dtype=torch.int32), fp8_dtype=dtype,
        )  # fmt: skip
    assert torch.equal(out[0, 0, 0].float(), torch.where(q_nan, 0, data.view(dtype).float() * factors) / 4)


def test_lse_to_base_2():
    problem = Problem("e4m3_656", (70, 0))
    arguments = {
        "q": problem.q, "kv_cache": problem.cache.tensor, "block_table": problem.block_table,
        "context_lens": torch.tensor(problem.lens, dtype=torch.int32),
    }  # fmt: skip
    for num_splits in (1, 2):
        _, natural = dg.mla_decode(**arguments, return_lse=True, num_splits=num_splits)
        _, binary = dg.mla_decode(**arguments, return_lse=True, lse_base_2=True, num_splits=num_splits)
        assert torch.allclose(natural[:1], binary[:1] * math.log(2), rtol=1e-6)
        assert (binary[1] == -torch.inf).all()


BAD = [
    ({"q": torch.zeros(2, 1, 16, 576).half()}, TypeError, "in FP8 only with q in bfloat16"),
    ({"q": torch.zeros(2, 1, 16, 576).to(OCP)}, TypeError, "in bfloat16 or float8_e4m3fnuz, got torch.float8_e4m3fn$"),
    ({"q": torch.zeros(2, 1, 16, 576).to(FNUZ), "fp8_dtype": OCP}, TypeError, "in bfloat16 or float8_e4m3fn, got"),
    (
        {"q": torch.zeros(2, 1, 16, 576).to(FNUZ), "kv_cache": torch.zeros(4, 16, 1, 576).to(BF16)},
        TypeError, "kv_cache must have the dtype of q",
    ),
    ({"q": torch.zeros(2, 1, 16, 576).to(torch.float8_e5m2)}, TypeError, "q must be bfloat16, float16, float8"),
    ({"q_descale": torch.ones(1)}, ValueError, "q_descale must be None, for q is torch.bfloat16 and has no scales"),
    (
        {"q": torch.zeros(2, 1, 16, 576).to(FNUZ), "q_descale": torch.ones(16)},
        ValueError, "q_descale must have shape .1.,",
    ),
    ({"q": torch.zeros(2, 1, 16, 576).to(FNUZ), "q_descale": 1.0}, TypeError, "q_descale must be a torch.Tensor"),
    (
        {"q": torch.zeros(2, 1, 16, 576).to(FNUZ), "out": torch.zeros(2, 1, 16, 512).half()},
        TypeError, "out must be bfloat16",
    ),
    ({"kv_cache": torch.zeros(4, 16, 1, 584).byte()}, ValueError, "block_size, 1, 656"),
    ({"kv_cache": torch.zeros(4, 16, 584).byte()}, ValueError, r"or .blocks, block_size, 656., got shape \(4, 16, 584"),
    ({"kv_cache": torch.zeros(4, 656).byte()}, ValueError, "block_size, 1, 656"),
    ({"kv_cache": torch.zeros(4, 16, 2, 656).byte()}, ValueError, r"got shape \(4, 16, 2, 656"),
    ({"kv_cache": torch.zeros(4, 16, 1, 576).to(torch.float8_e5m2)}, TypeError, "kv_cache must be"),
    ({"kv_descale": torch.ones(1)}, ValueError, "kv_descale must be None"),
    ({"fp8_dtype": torch.float8_e5m2}, TypeError, "fp8_dtype must be"),
    ({"kv_cache": torch.zeros(4, 0, 1, 656).byte()}, ValueError, "a block of kv_cache must have 1 to 256 tokens"),
]  # fmt: skip


@pytest.mark.parametrize(("bad", "error", "message"), BAD, ids=[case[2] for case in BAD])
def test_bad_input_is_one_clear_error_and_writes_nothing(bad, error, message):
    problem = Problem("e4m3_656", (30, 16))
    out = torch.full((2, 1, 16, 512), POISON, dtype=BF16)
    given = {
        "q": problem.q, "kv_cache": problem.cache.tensor, "block_table": problem.block_table,
        "context_lens": torch.tensor(problem.lens, dtype=torch.int32), "out": out,
    }  # fmt: skip
    with pytest.raises(error, match=message):
        dg.mla_decode(**{**given, **bad})
    assert (out == POISON).all()


@pytest.mark.parametrize("high", [0x7F, 0xFF])
def test_a_scale_that_is_any_nan_gives_nan(high):
    """Low bits of a NaN must not overflow where products with it are rounded."""
    cache = LatentCache("e4m3_656", 1, 16, FNUZ)
    scales = torch.ones(4).view(torch.uint8)
    scales[4:8] = torch.tensor([0xFF, 0xFF, 0xFF, high])
    token = torch.cat([torch.full((512,), 0x38, dtype=torch.uint8), scales, torch.zeros(128, dtype=torch.uint8)])
    cache.put(torch.tensor([0]), token[None], torch.empty(1, 0, dtype=torch.uint8))
    out = dg.mla_decode(
        torch.ones(1, 1, 1, 576, dtype=BF16), cache.tensor, block_table=torch.zeros(1, 1, dtype=torch.int32),
        context_lens=torch.tensor([1], dtype=torch.int32),
    )  # fmt: skip
    assert out.isnan().all()
