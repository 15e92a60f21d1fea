"""Tokens in the latent cache, byte by byte."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg

FNUZ, OCP = torch.float8_e4m3fnuz, torch.float8_e4m3fn
POISON = 77
WIDTHS = {1152: 512, 1024: 448, 576: 512, 656: 512, 584: 448}
BF16 = (1152, 1024)
NAN = {FNUZ: 0x80, OCP: 0x7F}
layouts = pytest.mark.parametrize("token_bytes", list(WIDTHS))
formats = pytest.mark.parametrize("dtype", [FNUZ, OCP], ids=["fnuz", "ocp"])


def tokens(count: int, width: int, seed: int = 0) -> torch.Tensor:
    """Rows of very different size, some with zeros and tiny numbers."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.exp2(torch.randint(-20, 20, (count, 1), generator=generator).float())
    values = torch.randn(count, width, generator=generator) * sizes
    values[torch.rand(count, width, generator=generator) < 0.1] = 0
    values[:, 64:128] *= 2.0**-130
    return values.bfloat16()


def quantised(values: torch.Tensor, group: int, dtype: torch.dtype, powers: bool):
    """Bytes and scales by torch's own arithmetic. The sign of 0, which FNUZ doesn't have, is dropped."""
    most = torch.finfo(dtype).max
    groups = values.float().unflatten(-1, (-1, group))
    scales = (groups.abs().amax(-1) / most).clamp_min(2.0**-126)
    if powers:
        mantissa, exponent = torch.frexp(scales)
        scales = torch.ldexp(torch.ones_like(scales), exponent - (mantissa == 0.5).int())
    data = (groups / scales[..., None]).clamp(-most, most).to(dtype).view(torch.uint8).flatten(-2)
    return torch.where(data == 0x80, 0, data), scales


def saturated(values: torch.Tensor, descale: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """Bytes by torch's own arithmetic. A zero and a NaN have no sign."""
    most = torch.finfo(dtype).max
    quotients = values.float() / (1 if descale is None else descale)
    data = torch.where(quotients == 0, 0, quotients).clamp(-most, most).to(dtype)
    is_zero, is_nan = data.float() == 0, data.float().isnan()
    data = data.view(torch.uint8)
    return torch.where(is_zero, 0, torch.where(is_nan, NAN[dtype], data))


def expected(kv_c, k_pe, cache, slots, dtype, descale=None) -> torch.Tensor:
    """The bytes of the cache afterwards, [pages, bytes of a page]."""
    pages, page_size, token_bytes = cache.shape[0], cache.shape[1], cache.shape[-1] * cache.element_size()
    after = cache.contiguous().view(torch.uint8).view(pages, -1).clone()
    rotary = k_pe.contiguous().view(torch.uint8)
    for token, slot in enumerate(slots.tolist()):
        if not 0 <= slot < pages * page_size:
            continue
        page, place = after[slot // page_size], slot % page_size
        if token_bytes in BF16:
            values = torch.cat([kv_c[token].contiguous().view(torch.uint8), rotary[token]])
            page[place * token_bytes :][:token_bytes] = values
        elif token_bytes == 576:
            page[place * 576 :][:576] = saturated(torch.cat([kv_c[token], k_pe[token]]), descale, dtype)
        elif token_bytes == 656:
            data, scales = quantised(kv_c[token], 128, dtype, powers=False)
            page[place * 656 :][:656] = torch.cat([data, scales.view(torch.uint8), rotary[token]])
        else:
            data, scales = quantised(kv_c[token], 64, dtype, powers=True)
            page[place * 576 :][:576] = torch.cat([data, rotary[token]])
            exponents = (scales.view(torch.int32) >> 23).to(torch.uint8)
            page[page_size * 576 + place * 8 :][:8] = torch.cat([exponents, torch.zeros(1, dtype=torch.uint8)])
    return after


def empty_cache(pages: int, page_size: int, token_bytes: int, dtype: torch.dtype = FNUZ) -> torch.Tensor:
    cache = torch.full((pages, page_size, 1, token_bytes), POISON, dtype=torch.uint8)
    return cache.view(torch.bfloat16 if token_bytes in BF16 else dtype if token_bytes == 576 else torch.uint8)


def assert_appended(kv_c, k_pe, cache, slots, dtype=FNUZ, descale=None) -> None:
    after = expected(kv_c, k_pe, cache, slots, dtype, descale)
    of_bytes = {"fp8_dtype": dtype} if cache.dtype == torch.uint8 else {}
    dg.append_mla_cache(kv_c, k_pe, cache, slots, kv_descale=descale, **of_bytes)
    actual = cache.contiguous().view(torch.uint8).view(len(cache), -1)
    assert torch.equal(actual, after), f"{int((actual != after).sum())} bytes are wrong"


@settings(max_examples=20, deadline=None)
@given(
    token_bytes=st.sampled_from(list(WIDTHS)),
    dtype=st.sampled_from([FNUZ, OCP]),
    slot_dtype=st.sampled_from([torch.int32, torch.int64]),
    count=st.integers(0, 9),
    pages=st.integers(1, 4),
    page_size=st.sampled_from([1, 2, 3, 16, 48, 64]),
    seed=st.integers(0, 99),
)
@example(token_bytes=656, dtype=OCP, slot_dtype=torch.int32, count=9, pages=1, page_size=16, seed=0)
@example(token_bytes=584, dtype=FNUZ, slot_dtype=torch.int64, count=9, pages=1, page_size=16, seed=0)
def test_any_tokens(token_bytes, dtype, slot_dtype, count, pages, page_size, seed):
    """Slots are different, in any order, and some aren't in the cache."""
    if token_bytes == 584:
        page_size += page_size % 2  # so that pages start at multiples of 16 bytes
    generator = torch.Generator().manual_seed(seed)
    slots = (torch.randperm(pages * page_size + 12, generator=generator)[:count] - 6).to(slot_dtype)
    kv_c, k_pe = tokens(count, WIDTHS[token_bytes], seed), tokens(count, 128, seed + 1)[:, :64]
    descale = torch.tensor([0.7 + seed]) if token_bytes == 576 and seed % 3 else None
    assert_appended(kv_c, k_pe, empty_cache(pages, page_size, token_bytes, dtype), slots, dtype, descale)


@layouts
def test_slots_far_outside_write_nothing(token_bytes):
    cache = empty_cache(2, 16, token_bytes)
    slots = torch.tensor([-1, 32, 2**32, 2**32 + 1, -(2**40), 2**63 - 1, 5])
    assert_appended(tokens(7, WIDTHS[token_bytes]), tokens(7, 64), cache, slots)


@layouts
def test_strided_tokens_and_pages(token_bytes):
    wide = tokens(5, WIDTHS[token_bytes] + 72)
    kv_c, k_pe = wide[:, : WIDTHS[token_bytes]], wide[:, -64:]
    room = empty_cache(6, 4, token_bytes)
    assert_appended(kv_c, k_pe, room[::2], torch.tensor([3, 0, 11, 5, 7]))
    assert (room[1::2].contiguous().view(torch.uint8) == POISON).all()


@formats
@pytest.mark.parametrize("descale", [None, 1.0, 0.3, 2.0**-120, 2.0**100])
def test_every_number_under_one_factor(dtype, descale):
    """All 2^16 of bf16: also NaNs, infinities, both zeros, subnormal numbers, and what is rounded or saturated."""
    values = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16).view(128, 512)
    k_pe = values.view(1024, 64)[::8].flip(0)
    cache = empty_cache(2, 128, 576, dtype)[:, :, 0]
    slots = torch.randperm(256, generator=torch.Generator().manual_seed(0))[:128]
    assert_appended(values, k_pe, cache, slots, dtype, None if descale is None else torch.tensor([descale]))


@formats
def test_the_dtype_of_a_cache_without_bytes_tells_the_format(dtype):
    kv_c, k_pe, slots = tokens(3, 512), tokens(3, 64), torch.tensor([4, -1, 2])
    cache = empty_cache(1, 8, 576, dtype)
    after = expected(kv_c, k_pe, cache, slots, dtype)
    dg.append_mla_cache(kv_c, k_pe, cache, slots, fp8_dtype=OCP if dtype == FNUZ else FNUZ)
    assert torch.equal(cache.view(torch.uint8).view(1, -1), after)


@formats
def test_decoding_reads_fp8_that_was_written(dtype):
    generator = torch.Generator().manual_seed(0)
    kv_c, k_pe = (torch.randn(40, width, generator=generator).bfloat16() for width in (512, 64))
    q = torch.randn(1, 1, 16, 576, generator=generator).bfloat16()
    cache, descale = empty_cache(3, 16, 576, dtype), torch.tensor([0.02])
    slots, table = torch.cat([torch.arange(32, 48), torch.arange(0, 24)]), torch.tensor([[2, 0, 1]]).int()
    dg.append_mla_cache(kv_c, k_pe, cache, slots, kv_descale=descale)
    out = dg.mla_decode(q, cache, block_table=table, context_lens=torch.tensor([40]).int(), kv_descale=descale)
    keys = cache.view(48, 576)[slots].double() * descale.double()
    assert dg.calc_diff(keys, torch.cat([kv_c, k_pe], dim=1).double()) < 1e-3
    exact = (q[0, 0].double() @ keys.T / 576**0.5).softmax(-1) @ keys[:, :512]
    assert dg.calc_diff(out[0, 0], exact) < 1e-4


def test_sparse_attention_reads_512_elements_that_were_written():
    generator = torch.Generator().manual_seed(0)
    kv_c, k_pe = (torch.randn(20, width, generator=generator).bfloat16() for width in (448, 64))
    q = torch.randn(1, 16, 512, generator=generator).bfloat16()
    cache, slots = empty_cache(2, 16, 1024).fill_(torch.nan), torch.arange(20) + 5
    dg.append_mla_cache(kv_c, k_pe, cache, slots)
    out, _, _ = dg.sparse_mla(q, cache, slots[None].int())
    keys = torch.cat([kv_c, k_pe], dim=1).double()
    exact = (q[0].double() @ keys.T / 512**0.5).softmax(-1) @ keys
    assert dg.calc_diff(out[0], exact) < 1e-4


@formats
@pytest.mark.parametrize("token_bytes", [656, 584])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_nan_spoils_only_what_shares_its_scale(token_bytes, dtype, bad):
    group = 128 if token_bytes == 656 else 64
    kv_c, k_pe = tokens(1, WIDTHS[token_bytes]), tokens(1, 64)
    good = empty_cache(1, 1, token_bytes)
    dg.append_mla_cache(kv_c, k_pe, good, torch.zeros(1).int(), fp8_dtype=dtype)
    kv_c[0, group + 3] = bad
    cache = empty_cache(1, 1, token_bytes)
    dg.append_mla_cache(kv_c, k_pe, cache, torch.zeros(1).int(), fp8_dtype=dtype)
    data, before = cache.flatten(), good.flatten()
    if token_bytes == 656:
        scales = data[512:528].view(torch.float32)
    else:
        assert data[577] == 255
        scales = torch.where(data[576:583] == 255, torch.nan, torch.exp2(data[576:583].float() - 127))
    values = data[: WIDTHS[token_bytes]].view(dtype).float().view(-1, group) * scales[:, None]
    assert values[1].isnan().all()
    assert not values[0].isnan().any()
    assert not values[2:].isnan().any()
    assert torch.equal(data[2 * group : WIDTHS[token_bytes]], before[2 * group : WIDTHS[token_bytes]])


def test_attention_reads_what_was_written():
    """A bf16 cache is the one of mla_decode."""
    kv_c, k_pe, q = (
        torch.randn(40, 512).bfloat16(),
        torch.randn(40, 64).bfloat16(),
        torch.randn(1, 1, 16, 576).bfloat16(),
    )
    cache, table = torch.zeros(3, 16, 1, 576, dtype=torch.bfloat16), torch.tensor([[2, 0, 1]]).int()
    slots = torch.cat([torch.arange(32, 48), torch.arange(0, 24)])
    dg.append_mla_cache(kv_c, k_pe, cache, slots)
    out = dg.mla_decode(q, cache, block_table=table, context_lens=torch.tensor([40]).int())
    keys = torch.cat([kv_c, k_pe], dim=1).double()
    exact = (q[0, 0].double() @ keys.T / 576**0.5).softmax(-1) @ kv_c.double()
    assert dg.calc_diff(out[0, 0], exact) < 1e-4


BAD = [
    ({"kv_c": torch.zeros(2, 448).bfloat16()}, ValueError, "kv_c must have shape"),
    ({"kv_c": torch.zeros(2, 512)}, TypeError, "kv_c must be bfloat16"),
    ({"k_pe": torch.zeros(3, 64).bfloat16()}, ValueError, "k_pe must have shape"),
    ({"cache": torch.zeros(2, 4, 1, 600).byte()}, ValueError, "cache must have tokens of 576 or 512 elements in bf16"),
    ({"cache": torch.zeros(2, 4, 512).to(FNUZ)}, ValueError, "got 512 elements of torch.float8_e4m3fnuz"),
    ({"cache": torch.zeros(2, 4, 512).bfloat16()}, ValueError, "kv_c must have shape .any, 448."),
    ({"kv_descale": torch.ones(1)}, ValueError, "kv_descale must be None, for only a cache of 576 FP8 values has it"),
    ({"kv_descale": 1.0, "cache": torch.zeros(2, 4, 576).to(OCP)}, TypeError, "kv_descale must be a torch.Tensor"),
    ({"kv_descale": torch.ones(2), "cache": torch.zeros(2, 4, 576).to(OCP)}, ValueError, "kv_descale must have shape"),
    ({"cache": torch.zeros(2, 4, 2, 656).byte()}, ValueError, "cache must be .pages, page, 1, width."),
    ({"cache": torch.zeros(2, 4, 1, 656)}, TypeError, "cache must be bfloat16, float8_e4m3fnuz, .* or uint8"),
    ({"cache": torch.zeros(4, 2, 656).byte().transpose(0, 1)}, ValueError, "each page of cache must be contiguous"),
    ({"slots": torch.zeros(2)}, TypeError, "slots must be int32 or int64"),
    ({"slots": torch.zeros(3).int()}, ValueError, "slots must have shape"),
    ({"fp8_dtype": torch.float8_e5m2}, TypeError, "fp8_dtype must be float8_e4m3fnuz or float8_e4m3fn"),
]


@pytest.mark.parametrize(("bad", "error", "message"), BAD, ids=[case[2] for case in BAD])
def test_bad_input_is_one_clear_error(bad, error, message):
    good = {"kv_c": torch.zeros(2, 512).bfloat16(), "k_pe": torch.zeros(2, 64).bfloat16()}
    good |= {"cache": torch.zeros(2, 4, 1, 656).byte(), "slots": torch.zeros(2).int()}
    with pytest.raises(error, match=message):
        dg.append_mla_cache(**{**good, **bad})
