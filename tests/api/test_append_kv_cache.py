"""Keys and values in a paged cache, bit by bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg

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


def test_decoding_reads_what_was_written():
    generator = torch.Generator().manual_seed(0)
    k, v = (torch.randn(40, 2, 64, generator=generator).bfloat16() for _ in "kv")
    caches = [torch.full((4, 16, 2, 64), torch.nan).bfloat16() for _ in "kv"]
    table = torch.tensor([[2, 0, 3]], dtype=torch.int32)
    token = torch.arange(40)
    dg.append_kv_cache(k, v, *caches, table[0, token // 16] * 16 + token % 16)
    q = torch.randn(1, 1, 4, 64, generator=generator).bfloat16()
    lens = torch.tensor([40], dtype=torch.int32)
    out = dg.flash_attention_decode(q, *caches, block_table=table, context_lens=lens)
    assert (out.double() - dg.flash_attention(q, k[None], v[None]).double()).abs().max() < 0.01


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
]


@pytest.mark.parametrize(("bad", "error", "message"), BAD, ids=[f"{next(iter(c[0]))}-{c[2]}" for c in BAD])
def test_bad_input_is_one_clear_error_and_writes_nothing(bad, error, message):
    arguments = {**good(), **bad}
    arguments["k"], arguments["v"] = arguments["k"] + 1, arguments["v"] + 1
    with pytest.raises(error, match=message):
        dg.append_kv_cache(**arguments)
    for cache in ("k_cache", "v_cache"):
        assert (arguments[cache].float() == 0).all()


def test_factors_of_the_wrong_shape():
    with pytest.raises(ValueError, match="v_descale must have shape"):
        dg.append_kv_cache(**good(FP8), v_descale=torch.ones(3))
