"""Keys and values in a paged cache, bit by bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.checks import share_memory

FP8 = torch.float8_e4m3fnuz
POISON = 77
BF16, F16 = torch.bfloat16, torch.float16


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8 if tensor.element_size() == 1 else torch.int16)


def stored(values: torch.Tensor, dtype: torch.dtype, descale: torch.Tensor | None) -> torch.Tensor:
    """The cache's contents, by torch's own arithmetic. FNUZ has no sign of 0."""
    if dtype != FP8:
        return bits(values)
    quotients = values.float() / (torch.ones(1) if descale is None else descale)[:, None]
    data = bits(quotients.clamp(-240, 240).to(FP8))
    return torch.where((data == 0x80) & ~quotients.isnan(), 0, data)


def assert_appended(dtype, cache_dtype, slots, heads=2, widths=(64, 64), pages=3, page_size=16, descales=None, odd=()):
    generator = torch.Generator().manual_seed(len(slots))
    tokens, caches, wanted = [], [], []
    descales = descales or (None, None)
    for width, descale in zip(widths, descales, strict=True):
        # A head behind the last one belongs to other tensors.
        values = (torch.randn(len(slots), heads + 1, width + 16, generator=generator) * 90).to(dtype)[:, :heads, :width]
        for i, value in enumerate(odd):
            values[0, 0, i] = value
        around = torch.full((pages + 1, page_size, heads + 1, width), POISON, dtype=torch.uint8)
        if cache_dtype != FP8:
            around = torch.full((pages + 1, page_size, heads + 1, width * 2), POISON, dtype=torch.uint8)
        cache = around.view(cache_dtype)
        after = bits(cache).clone()
        for token, slot in enumerate(slots.tolist()):
            if 0 <= slot < pages * page_size:
                after[slot // page_size, slot % page_size, :heads] = stored(values[token], cache_dtype, descale)
        tokens.append(values)
        caches.append(cache)
        wanted.append(after)
    views = (cache[:pages, :, :heads] for cache in caches)
    dg.append_kv_cache(*tokens, *views, slots, k_descale=descales[0], v_descale=descales[1])
    for cache, after in zip(caches, wanted, strict=True):
        assert torch.equal(bits(cache), after)


@pytest.mark.parametrize("slots", [torch.tensor([5, -1, 40, 48, 0]), torch.tensor([47, 2**31 - 1, 3]).int()])
@pytest.mark.parametrize(("dtype", "cache_dtype"), [(BF16, BF16), (F16, F16), (BF16, FP8), (F16, FP8)], ids=str)
def test_every_type(dtype, cache_dtype, slots):
    assert_appended(dtype, cache_dtype, slots, heads=3, widths=(192, 128))


def test_factors_of_heads():
    descales = torch.tensor([0.5, 3.0, 0.01]), torch.tensor([2.0])
    assert_appended(BF16, FP8, torch.tensor([3, 20, 9]), heads=3, widths=(80, 112), descales=descales)


def with_own_factors(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The cache's values of tokens [tokens, heads, width], and their factors, by torch's own arithmetic."""
    factors = (values.float().abs().amax(dim=-1) / 240).clamp(min=2.0**-126)
    return stored(values / factors[..., None], FP8, None), factors


def assert_appended_with_factors(slots, heads, widths, page_size=16, pages=3, dtype=BF16, odd=()):
    generator = torch.Generator().manual_seed(len(slots))
    arguments, wanted = {}, []
    for name, width in zip("kv", widths, strict=True):
        values = (torch.randn(len(slots), heads, width, generator=generator) * 90).to(dtype)
        values[1::3] /= 2**10
        for i, value in enumerate(odd):
            values[i, 0, -1] = value
        cache = torch.full((pages, page_size, heads, width), POISON, dtype=torch.uint8)
        factors = torch.full((pages, heads, page_size), float(POISON)).mT  # any strides
        after, factors_after = cache.clone(), factors.clone()
        data, own = with_own_factors(values)
        for token, slot in enumerate(slots.tolist()):
            if 0 <= slot < pages * page_size:
                after[slot // page_size, slot % page_size] = data[token]
                factors_after[slot // page_size, slot % page_size] = own[token]
        arguments |= {name: values, f"{name}_cache": cache.view(FP8), f"{name}_descale": factors}
        wanted.append((after, factors_after))
    dg.append_kv_cache(**arguments, slots=slots)
    for name, (after, factors_after) in zip("kv", wanted, strict=True):
        factors = arguments[f"{name}_descale"]
        assert torch.equal(bits(arguments[f"{name}_cache"]), after)
        assert torch.equal(factors.isnan(), factors_after.isnan())
        assert torch.equal(factors.nan_to_num(), factors_after.nan_to_num())


@pytest.mark.parametrize(
    ("heads", "widths"), [(3, (192, 128)), (8, (80, 112)), (5, (64, 512)), (33, (16, 32))], ids=str
)
def test_factors_of_tokens(heads, widths):
    assert_appended_with_factors(torch.tensor([5, -1, 40, 48, 0]), heads, widths)


def test_factors_of_odd_tokens():
    odd = (torch.nan, torch.inf, -torch.inf, 1e30, -0.0, 1e-38)
    assert_appended_with_factors(torch.arange(7), 2, (64, 80), odd=odd)


def test_odd_values():
    for cache_dtype in (BF16, FP8):
        odd = (torch.nan, torch.inf, -torch.inf, 1e30, -300.0, -0.0, 1e-30)
        assert_appended(BF16, cache_dtype, torch.tensor([3, 20]), odd=odd)


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_any_shape(data):
    page_size = data.draw(st.integers(1, 20), "page_size")
    slots = data.draw(st.lists(st.integers(-3, 3 * page_size + 3), max_size=12, unique=True), "slots")
    widths = tuple(16 * data.draw(st.integers(1, 9), f"width of {name}") for name in "kv")
    heads = data.draw(st.integers(1, 9), "heads")
    cache_dtype = data.draw(st.sampled_from([BF16, FP8]), "cache_dtype")
    assert_appended(BF16, cache_dtype, torch.tensor(slots, dtype=torch.int64), heads, widths, page_size=page_size)


# Caches of keys and values in one tensor, as servers have them, for 4 blocks of 16 tokens and 2 heads of 64 elements.
INTERLEAVED = {
    "apart": ((2, 4, 16, 2, 64), lambda cache: cache.unbind(0)),
    "blocks": ((4, 2, 16, 2, 64), lambda cache: cache.unbind(1)),
    "heads before tokens": ((4, 2, 2, 16, 64), lambda cache: cache.transpose(2, 3).unbind(1)),
    "tokens": ((4, 16, 2, 2, 64), lambda cache: cache.unbind(2)),
    "heads": ((4, 16, 2, 2, 64), lambda cache: cache.unbind(3)),
    "elements": ((4, 16, 2, 128), lambda cache: cache.split(64, dim=-1)),
}


@pytest.mark.parametrize("factors", [None, "tokens"])
@pytest.mark.parametrize(("shape", "split"), INTERLEAVED.values(), ids=INTERLEAVED)
def test_decoding_reads_what_was_written(shape, split, factors):
    generator = torch.Generator().manual_seed(0)
    k, v = (torch.randn(40, 2, 64, generator=generator).bfloat16() for _ in "kv")
    caches = split(torch.full(shape, torch.nan).to(BF16 if factors is None else FP8))
    descales = {}
    if factors is not None:
        k_descale, v_descale = torch.full((4, 2, 16, 2), torch.nan).unbind(1)
        descales = {"k_descale": k_descale, "v_descale": v_descale}
    table = torch.tensor([[2, 0, 3]], dtype=torch.int32)
    token = torch.arange(40)
    slots = table[0, token // 16] * 16 + token % 16
    for some in (slice(0, 20), slice(20, 40)):  # the second call repeats the first
        dg.append_kv_cache(k[some], v[some], *caches, slots[some], **descales)
    q = torch.randn(1, 1, 4, 64, generator=generator).bfloat16()
    lens = torch.tensor([40], dtype=torch.int32)
    out = dg.flash_attention_decode(q, *caches, block_table=table, context_lens=lens, **descales)
    error = (out.double() - dg.flash_attention(q, k[None], v[None]).double()).abs().max()
    assert error < (0.01 if factors is None else 0.1)


# A cache of keys, and one of values that has some of its memory.
OVERLAPPING = {
    "itself": lambda cache: (cache[:, 0], cache[:, 0]),
    "the next page": lambda cache: (cache[:3, 0], cache[1:, 0]),
    "the next head": lambda cache: (cache[:, 0, :, :1], cache[:, 0, :, 0:1]),
    "neighbouring halves": lambda cache: (cache.view(8, 16, 2, 64)[::2], cache.view(8, 16, 2, 64)[2:6:1]),
    "parts of elements": lambda cache: (cache[:, 0, ..., :32], cache[:, 0, ..., 16:48]),
    "a page and the head of another": lambda cache: (
        cache.view(-1).as_strided((3, 16, 2, 64), (4096, 128, 64, 1)),
        cache.view(-1).as_strided((3, 16, 2, 64), (4096, 128, 64, 1), 4096 + 1920),
    ),
}


@pytest.mark.parametrize("split", OVERLAPPING.values(), ids=OVERLAPPING)
def test_caches_that_share_memory(split):
    k_cache, v_cache = split(torch.zeros(4, 2, 16, 2, 64).bfloat16())
    pages = min(len(k_cache), len(v_cache))
    heads, width = k_cache.shape[2:]
    tokens = torch.ones(3, heads, width).bfloat16()
    with pytest.raises(ValueError, match="k_cache must not share memory with v_cache"):
        dg.append_kv_cache(tokens, tokens, k_cache[:pages], v_cache[:pages], torch.arange(3))
    assert not k_cache.any()


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_what_shares_memory(data):
    """Tensors of equal strides, against the bytes that they have."""
    counts = data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=3), "counts")
    strides, reach = [], 1
    for count in reversed(counts):  # elements of a tensor don't overlap
        strides.insert(0, reach + data.draw(st.integers(0, 4), "gap"))
        reach += strides[0] * (count - 1)
    memory = torch.arange(4 * reach + 8, dtype=torch.int16)
    start = data.draw(st.integers(0, reach + 3), "start")
    one = memory.as_strided(counts, strides)
    other = memory.as_strided(counts, strides, start)
    assert share_memory(one, other) == bool(set(one.flatten().tolist()) & set(other.flatten().tolist()))


def good(dtype=BF16) -> dict:
    k, v = (torch.zeros(3, 2, 64).bfloat16() for _ in "kv")
    k_cache, v_cache = (torch.zeros(2, 16, 2, 64).to(dtype) for _ in "kv")
    return {"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache, "slots": torch.tensor([1, 2, 3])}


BAD = [
    ({"k": torch.zeros(3, 2, 64)}, TypeError, "k must be bfloat16 or float16"),
    ({"k": torch.zeros(3, 2, 60).bfloat16()}, ValueError, "a positive multiple of 16"),
    ({"k": torch.zeros(3, 2, 0).bfloat16()}, ValueError, r"a positive multiple of 16\), got"),
    ({"v": torch.zeros(4, 2, 64).bfloat16()}, ValueError, r"v must have shape \(3, 2"),
    ({"v": torch.zeros(3, 2, 64).half()}, TypeError, "v must be bfloat16"),
    ({"k_cache": torch.zeros(2, 16, 2, 64).half()}, TypeError, "k_cache must be bfloat16 or float8_e4m3fnuz"),
    ({"v_cache": torch.zeros(2, 16, 2, 64).to(FP8)}, TypeError, "v_cache must be bfloat16"),
    ({"v_cache": torch.zeros(3, 16, 2, 64).bfloat16()}, ValueError, "v_cache must have the blocks of k_cache"),
    ({"k_cache": torch.zeros(2, 16, 3, 64).bfloat16()}, ValueError, "k_cache must have shape"),
    ({"slots": torch.tensor([1.0, 2.0, 3.0])}, TypeError, "slots must be int32 or int64"),
    ({"slots": torch.tensor([1, 2])}, ValueError, "slots must have shape"),
    ({"k_descale": torch.ones(1)}, ValueError, "k_descale must be None"),
    ({"k_descale": 1.0}, TypeError, "k_descale must be a torch.Tensor, got float"),
]


@pytest.mark.parametrize(("bad", "error", "message"), BAD, ids=[f"{next(iter(c[0]))}-{c[2]}" for c in BAD])
def test_bad_input_is_one_clear_error_and_writes_nothing(bad, error, message):
    arguments = {**good(), **bad}
    arguments["k"], arguments["v"] = arguments["k"] + 1, arguments["v"] + 1
    with pytest.raises(error, match=message):
        dg.append_kv_cache(**arguments)
    for cache in ("k_cache", "v_cache"):
        assert (arguments[cache].float() == 0).all()


OF_TOKENS = torch.ones(2, 16, 2)
BAD_FACTORS = [
    ({"k_descale": 1.0}, TypeError, "k_descale must be a torch.Tensor, got float"),
    ({"k_descale": OF_TOKENS}, TypeError, "v_descale must be a torch.Tensor"),
    ({"k_descale": OF_TOKENS, "v_descale": torch.ones(1)}, ValueError, r"v_descale must have shape \(2, 16, 2\)"),
    ({"k_descale": OF_TOKENS, "v_descale": OF_TOKENS}, ValueError, "k_descale must not share memory with v_descale"),
    ({"k_descale": OF_TOKENS, "v_descale": torch.ones(2, 16, 1).expand(2, 16, 2)}, ValueError, "must not overlap"),
    ({"k_descale": OF_TOKENS, "v_descale": OF_TOKENS.half()}, TypeError, "v_descale must be float32"),
]


@pytest.mark.parametrize(("bad", "error", "message"), BAD_FACTORS)
def test_bad_factors_of_tokens(bad, error, message):
    with pytest.raises(error, match=message):
        dg.append_kv_cache(**good(FP8), **bad)
    assert (OF_TOKENS == 1).all()


def test_heads_too_wide_for_factors_of_tokens():
    tokens, cache = torch.zeros(3, 2, 528).bfloat16(), torch.zeros(2, 16, 2, 528).to(FP8)
    with pytest.raises(ValueError, match="up to 512 elements with factors of tokens, got 528"):
        dg.append_kv_cache(
            tokens, tokens, cache, cache.clone(), torch.arange(3), k_descale=OF_TOKENS, v_descale=OF_TOKENS.clone()
        )


def test_factors_of_the_wrong_shape():
    with pytest.raises(ValueError, match="v_descale must have shape"):
        dg.append_kv_cache(**good(FP8), v_descale=torch.ones(3))
