"""Calls that differ from an earlier one in the number of rows, or in an int, are what they are without that one."""

from __future__ import annotations

from array import array

import pytest
import torch
from helpers.good_calls import GOOD, per_block, randn

import deep_gemm_rocm as dg
from deep_gemm_rocm import jit
from deep_gemm_rocm.checks import extent
from deep_gemm_rocm.heuristics import choose_dense
from deep_gemm_rocm.launch import fast_path, repeated
from deep_gemm_rocm.launch.families import Family
from deep_gemm_rocm.launch.remembered import Call
from deep_gemm_rocm.problems.gemm_kind import GemmKind
from deep_gemm_rocm.problems.layout import mn_major_strides
from deep_gemm_rocm.runtime import hip, session

FP8 = torch.float8_e4m3fnuz
FIRST = 5  # rows of the call that others are like
OTHERS = (2, 3, 8, 3000)  # of the last, sparse decoding splits no keys

pytestmark = pytest.mark.skipif(fast_path.in_c is None, reason="families need the C functions")


@pytest.fixture(autouse=True)
def nothing_remembered():
    jit.forget()


def rows_of(tensor, rows):
    """As many rows of a tensor or a pair, in new memory."""
    if isinstance(tensor, tuple):
        return tuple(rows_of(part, rows) for part in tensor)
    return tensor[torch.arange(rows) % len(tensor)]


def good(name, *of_rows, **changes):
    """The call of a number of rows with the arguments of its tests, apart from ``changes``."""
    arguments = GOOD[name]() | changes

    def call(rows):
        resized = {each: rows_of(arguments[each], rows) for each in of_rows if arguments.get(each) is not None}
        return getattr(dg, name)(**{**arguments, **resized})

    return call


def paged(name, **changes):
    return good(name, "q", "block_table", "context_lens", "out", **changes)


def experts(**changes):
    arguments = GOOD["fused_moe"]() | changes
    x = arguments.pop("x")
    pair = x if isinstance(x, tuple) else None

    def call(rows):
        of_rows = {name: rows_of(arguments[name], rows) for name in ("topk_weights", "topk_ids")}
        of_rows["out"] = None if arguments["out"] is None else rows_of(arguments["out"], rows)
        tokens = rows_of(x, rows) if pair is None else tuple(rows_of(part, rows) for part in pair)
        return dg.fused_moe(tokens, **{**arguments, **of_rows})

    return call


def weights_with_scales_of_rows(*shape):
    data, scales = dg.per_row_cast_to_fp8(randn(shape[0] * shape[1], shape[2]))
    return data.view(shape), scales.view(*shape[:2], 1)


BIASES = ("gate_up_bias", "down_bias")
OF_ROWS = {
    "gate_up": weights_with_scales_of_rows(2, 192, 128),
    "down": weights_with_scales_of_rows(2, 128, 96),
    "gate_up_bias": randn(2, 192),
}


def as_cast(rows, k):
    """Data and scales in the form that a cast returns."""
    columns = k // 128
    scales = torch.empty_strided((rows, columns), mn_major_strides(2, rows, columns))
    return torch.empty(rows, k, dtype=FP8), scales.fill_(1)


def gemm(function, b, *, in_place=False, **options):
    """The call of a GEMM in FP8 whose scales lie as those of a cast."""
    k = b[0].shape[1]

    def call(rows):
        d = torch.zeros(rows, len(b[0]))
        return function(as_cast(rows, k), b, d, *([d] if in_place else []), **options)

    return call


def grouped(rows):
    d, layout = torch.zeros(rows, 32), torch.zeros(rows, dtype=torch.int32)
    return dg.m_grouped_fp8_gemm_nt_contiguous(as_cast(rows, 256), EXPERTS, d, layout)


MOST_ROWS = 3000  # which take another kernel than few rows


def masked(expected_m, **options):
    a = torch.zeros(1, MOST_ROWS, 256, dtype=FP8), torch.zeros(1, MOST_ROWS, 2)
    d, rows = torch.zeros(1, MOST_ROWS, 512).bfloat16(), torch.zeros(1, dtype=torch.int32)
    return dg.m_grouped_fp8_gemm_nt_masked(a, per_block(1, 512, 256), d, rows, expected_m, **options)


def lengths(rows, each=1):
    """Where sequences of equal lengths end, with a 0 before them."""
    return torch.arange(rows + 1, dtype=torch.int32) * each


def attention(tokens_q, tokens_k, **changes):
    q, k, v = (randn(2, tokens, heads, 64) for tokens, heads in ((tokens_q, 4), (tokens_k, 2), (tokens_k, 2)))
    return dg.flash_attention(q, k, v, **changes)


def packed_attention(sequences, tokens_q, tokens_k, **changes):
    q, k, v = (randn(sequences * tokens, heads, 64) for tokens, heads in ((tokens_q, 4), (tokens_k, 2), (tokens_k, 2)))
    ends = {"cu_seqlens_q": lengths(sequences, tokens_q), "cu_seqlens_k": lengths(sequences, tokens_k)}
    return dg.flash_attention(q, k, v, **ends, **changes)


def paged_attention(sequences, tokens_q, dtype=torch.bfloat16, **factors):
    pages = randn(6, 64, 2, 64).to(dtype)
    table, contexts = torch.zeros(sequences, 3, dtype=torch.int32), torch.full((sequences,), 150, dtype=torch.int32)
    q, ends = randn(sequences * tokens_q, 4, 64), lengths(sequences, tokens_q)
    paged = {"block_table": table, "context_lens": contexts}
    return dg.flash_attention(q, pages, pages, cu_seqlens_q=ends, causal=True, **paged, **factors)


def indexer_logits(queries, keys, **changes):
    q, kv = torch.zeros(queries, 16, 64).to(FP8), (torch.zeros(keys, 64).to(FP8), torch.zeros(keys))
    ends = torch.zeros(queries, dtype=torch.int32)
    return dg.fp8_mqa_logits(q, kv, torch.zeros(queries, 16), ends, ends, **changes)


def merged(*shape, **changes):
    states = randn(*shape), torch.zeros(*shape[:-3], shape[-2], shape[-3])
    return dg.merge_attention_states(*states, *states, **changes)


EXPERTS = per_block(2, 32, 256)
LONG = torch.zeros(128, 32768).to(FP8), torch.zeros(1, 256)
OF_CHANNELS = dg.per_row_cast_to_fp8(randn(32, 128))
OF_PARTS_OF_BLOCKS = OF_ROWS | {"gate_up": per_block(2, 192, 128), "down": per_block(2, 128, 96)}
WIDE = randn(FIRST, 320)
PAGES = torch.arange(12, dtype=torch.int32).view(2, 6)
UNITS = torch.zeros(9, 2, dtype=torch.int32)
LONG_LOGITS = randn(1, 32769).float()
DENSE = {
    "block_table": torch.zeros(2, 3, dtype=torch.int32),
    "cache_seqlens": torch.tensor([100, 90], dtype=torch.int32),
    "q": randn(2, 2, 3, 576), "k_cache": randn(9, 64, 1, 576),
    **dict.fromkeys(("indices", "attn_sink", "topk_length", "extra_k_cache", "extra_indices_in_kvcache")),
    "extra_topk_length": None,
}  # fmt: skip
CALLS = {
    "cast": good("per_token_cast_to_fp8", "x"),
    "cast of columns of a matrix": lambda rows: dg.per_token_cast_to_fp8(rows_of(WIDE, rows)[:, 16:200], True),
    "cast of rows": good("per_row_cast_to_fp8", "x"),
    "cast to FP4": good("per_token_cast_to_fp4", "x"),
    "cast to FP4, packed": good("per_token_cast_to_fp4", "x", use_packed_ue8m0=True),
    "norm": good("rms_norm_cast_to_fp8", "x", "residual"),
    "norm without a residual, scales of rows": good("rms_norm_cast_to_fp8", "x", residual=None, gran_k=None),
    "activation": lambda rows: dg.silu_and_mul_cast_to_fp8(rows_of(WIDE, rows)),
    "decode": paged("flash_attention_decode"),
    "decode, new results": paged("flash_attention_decode", out=None, return_lse=True),
    "decode in parts": paged("flash_attention_decode", num_splits=3),
    "latent": paged("mla_decode"),
    "latent, FP8 queries": paged(
        "mla_decode", q=torch.zeros(16, 1, 16, 576).to(FP8), q_descale=torch.ones(1), out=None
    ),
    "latent, new results": paged("mla_decode", out=None, return_lse=True, num_splits=2),
    "routing": good("route_top_k", "logits"),
    "heads for a cache": good("append_kv_cache", "k", "v", "slots"),
    "tokens for a latent cache": good("append_mla_cache", "kv_c", "k_pe", "slots"),
    "tokens for a latent cache in FP8": good(
        "append_mla_cache", "kv_c", "k_pe", "slots", cache=torch.zeros(2, 4, 576).to(FP8), kv_descale=torch.ones(1)
    ),
    "selection": good(
        "top_k_per_row", "logits", "starts", "ends", "block_table", "out", block_table=PAGES, sequences=None
    ),
    "selection from long rows": lambda rows: dg.top_k_per_row(rows_of(LONG_LOGITS, rows), 9),
    "paged logits": good("fp8_paged_mqa_logits", "q", "weights", "context_lens", "block_table", schedule_meta=UNITS),
    "paged logits of several tokens": lambda rows: dg.fp8_paged_mqa_logits(
        torch.zeros(rows, 3, 16, 64).to(FP8),
        torch.zeros(4, 64, 1, 68, dtype=torch.uint8),
        torch.zeros(rows * 3, 16),
        torch.full((rows,), 70, dtype=torch.int32),
        torch.zeros(rows, 2, dtype=torch.int32),
        UNITS,
        128,
    ),
    "logits": lambda queries: indexer_logits(queries, 40),
    "logits of other keys": lambda keys: indexer_logits(6, keys),
    "logits of other queries and keys": lambda rows: indexer_logits(rows, 2 * rows),
    "compressed logits": lambda rows: indexer_logits(rows, 2 * rows, clean_logits=False, max_seqlen_k=24),
    "attention": lambda tokens: attention(tokens, tokens, causal=True),
    "attention to other keys": lambda tokens: attention(16, tokens, return_lse=True, window=(1000, 0)),
    "attention of other queries": lambda tokens: attention(tokens, 16, return_lse=True),
    "attention of packed sequences": lambda rows: packed_attention(rows, 3, 7, causal=True, return_lse=True),
    "attention of packed tokens": lambda tokens: packed_attention(2, tokens, 3 * tokens, softcap=20.0),
    "attention to pages": lambda rows: paged_attention(rows, 9),
    "attention of other queries to pages": lambda tokens: paged_attention(2, tokens),
    "attention to FP8 pages": lambda rows: paged_attention(
        rows, 9, FP8, k_descale=torch.ones(6, 64, 2), v_descale=torch.ones(6, 64, 2)
    ),
    "merged states": lambda tokens: merged(tokens, 2, 64),
    "merged states of sequences": lambda tokens: merged(3, tokens, 2, 64, out=randn(3, tokens, 2, 64)),
    "schedule of paged logits": good("get_paged_mqa_logits_metadata", "context_lens"),
    "sparse": good("sparse_mla", "q", "indices", "topk_length", "extra_indices", "extra_topk_length", "out"),
    "sparse, new results": good(
        "sparse_mla", "q", "indices", "extra_indices", "extra_topk_length", out=None, topk_length=None
    ),
    "FlashMLA's sparse prefill": good("flash_mla_sparse_fwd", "q", "indices", "topk_length", "out"),
    "FlashMLA's sparse decoding": good(
        "flash_mla_with_kvcache", "q", "indices", "topk_length", "extra_indices_in_kvcache", "extra_topk_length", "out"
    ),
    "GEMM in place": gemm(dg.fp8_gemm_nt, dg.per_block_cast_to_fp8(randn(32, 256)), in_place=True),
    "GEMM of a long K": gemm(dg.fp8_gemm_nt, LONG),
    "GEMM with a new result": lambda rows: dg.gemm_fp8(
        (torch.empty(rows, 128, dtype=FP8), torch.ones(rows, 1)), OF_CHANNELS, recipe=(1, 1, None)
    ),
    "GEMM in bf16": good("bf16_gemm_nt", "a", "d"),
    "GEMM of a transposed weight": good("fp8_gemm_nn", "a", "d", "c"),
    "GEMM in bf16 of a transposed weight": good("bf16_gemm_nn", "a", "d", "c"),
    "GEMM with gaps in heads": good("fp8_gemm_nt_skip_head_mid", "a", "d"),
    "grouped GEMM": grouped,
    "grouped GEMM of transposed weights": good("m_grouped_fp8_gemm_nn_contiguous", "a", "d", "grouped_layout"),
    "grouped GEMM in bf16 of transposed weights": good("m_grouped_bf16_gemm_nn_contiguous", "a", "d", "grouped_layout"),
    "GEMM in int4": good("bf16_int4_gemm_nt", "a", "d", "c"),
    "GEMM in int4 and FP8": good("fp8_int4_gemm_nt", "a", "d", "c"),
    "grouped GEMM in int4": good("m_grouped_bf16_int4_gemm_nt_contiguous", "a", "d", "grouped_layout"),
    "grouped GEMM in int4 and FP8": good("m_grouped_fp8_int4_gemm_nt_contiguous", "a", "d", "grouped_layout"),
    "GEMM in FP4": good("bf16_fp4_gemm_nt", "a", "d", "c"),
    "GEMM in FP4 and FP8": good("fp8_fp4_gemm_nt", "a", "d", "c"),
    "grouped GEMM in FP4": good("m_grouped_fp8_fp4_gemm_nt_contiguous", "a", "d", "grouped_layout", "m_indices"),
    "masked GEMM in FP4": lambda expected_m: dg.m_grouped_fp8_fp4_gemm_nt_masked(
        **GOOD["m_grouped_fp8_fp4_gemm_nt_masked"]() | {"expected_m": expected_m}
    ),
    "masked GEMM": masked,
    "masked GEMM in bf16": lambda expected_m: dg.m_grouped_bf16_gemm_nt_masked(
        **GOOD["m_grouped_bf16_gemm_nt_masked"]() | {"expected_m": expected_m}
    ),
    "masked GEMM in int4": lambda expected_m: dg.m_grouped_bf16_int4_gemm_nt_masked(
        **GOOD["m_grouped_bf16_int4_gemm_nt_masked"]() | {"expected_m": expected_m}
    ),
    "experts": experts(x=randn(16, 128)),
    "experts with scales of rows": experts(x=randn(16, 128), **OF_ROWS, out=None),
    "experts of whole blocks": experts(x=randn(16, 128), out=None, **dict.fromkeys(BIASES), limit=7.0),
    "experts of parts of blocks": experts(x=randn(16, 128), **OF_PARTS_OF_BLOCKS, alpha=1.7, limit=7.0),
    "experts, quantised tokens": experts(**dict.fromkeys(BIASES)),
    "experts in bf16": experts(
        x=randn(16, 128), gate_up=randn(2, 256, 128), down=randn(2, 128, 128), **dict.fromkeys(BIASES), out=None
    ),
    "FlashMLA's decoding": good("flash_mla_with_kvcache", "q", "block_table", "cache_seqlens", **DENSE, out=None),
    "FlashMLA's causal decoding": good(
        "flash_mla_with_kvcache", "q", "block_table", "cache_seqlens", **DENSE, out=None, causal=True
    ),
}


@pytest.fixture
def remembered(monkeypatch):
    """Returns what the last of some calls leaves remembered; nothing is launched."""
    monkeypatch.setattr(hip.runtime(), "relaunch", lambda *_: None)
    fillers = []
    real = fast_path.filler_of

    def filler_of(key):
        return lambda *args: fillers.append(args) or real(key)(*args)

    monkeypatch.setattr(fast_path, "filler_of", filler_of)

    def remembered(call, *rows):
        jit.forget()
        for each in rows:
            call(each)
            call(each)
        known = [call for call in session.current().of(repeated.Calls).known.values() if isinstance(call, Call)]
        last = known[-1]
        if last.fill is None:
            call(rows[-1])
        steps, _, aligned, apart, together, made, parts, _ = fillers[-1]
        kernels = [entry_point.__self__ for entry_point, _, _ in steps]
        arguments = [(arguments, places) for _, arguments, places in steps]
        numbers = [numbers for _, numbers in last.plan.contents]
        return {
            "kernels": kernels, "arguments": arguments, "aligned": tuple(aligned), "apart": apart, "together": together,
            "made": made, "parts": parts, "scratch": last.scratch_bytes, "used": last.plan.used, "contents": numbers,
            "bytes": last.bytes,
        }  # fmt: skip

    return remembered


RARE = {
    "cast of columns of a matrix", "cast to FP4", "norm without a residual, scales of rows", "decode in parts",
    "latent, new results", "sparse, new results", "FlashMLA's sparse prefill", "FlashMLA's causal decoding",
    "experts with scales of rows", "experts in bf16", "experts of whole blocks",
    "experts, quantised tokens", "masked GEMM in int4", "GEMM in int4", "grouped GEMM in int4",
    "GEMM in bf16 of a transposed weight", "GEMM with gaps in heads", "grouped GEMM of transposed weights",
    "grouped GEMM in bf16 of transposed weights", "grouped GEMM in int4 and FP8", "GEMM in FP4",
    "grouped GEMM in FP4", "masked GEMM in FP4", "selection from long rows", "heads for a cache", "logits",
    "logits of other keys", "compressed logits", "attention to other keys", "attention of other queries",
    "attention of packed tokens", "attention of other queries to pages", "merged states",
    "GEMM in int4 and FP8", "GEMM in FP4 and FP8", "GEMM with a new result", "GEMM in place",
    "masked GEMM in bf16", "GEMM of a transposed weight", "logits of other queries and keys",
    "experts of parts of blocks", "GEMM in bf16",
}  # fmt: skip


def test_a_long_k_is_split_by_the_number_of_rows():
    """Or the test below would show nothing about where the parts lie."""
    n, k = LONG[0].shape
    few, *others = (choose_dense(GemmKind(d_type="f32"), rows, n, k).splits for rows in (FIRST, *OTHERS))
    assert min(few, *others) > 1
    assert {few} < {few, *others}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in RARE else name for name in CALLS]
)
def test_calls_are_those_without_a_family(name, remembered, monkeypatch):
    alone = {rows: remembered(CALLS[name], rows) for rows in OTHERS}
    checked = []
    real = Family.call
    monkeypatch.setattr(Family, "call", lambda *args: checked.append(1) or real(*args))
    for rows in OTHERS:
        assert remembered(CALLS[name], FIRST, rows) == alone[rows]
    assert len(checked) == len(OTHERS)


def launched(call, rows, monkeypatch):
    """The last launches of a call, whose addresses are given as tensors and offsets."""
    asked = []
    with monkeypatch.context() as context:
        context.setattr(hip.runtime(), "relaunch", lambda *args: asked.append(args))
        call(rows)
    launches, tensors, used = asked[-1]
    begins = [(number, tensor.data_ptr(), extent(tensor)) for number, tensor in enumerate(tensors)]

    def word(value):
        return next(((number, value - begin) for number, begin, size in begins if begin <= value < begin + size), value)

    forms = [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors]
    return [(entry_point, [*map(word, array("Q", words))]) for entry_point, words in launches], forms, used


OFTEN = {"experts", "norm", "decode, new results", "GEMM of a long K", "masked GEMM"}


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in CALLS]
)
def test_first_calls_of_a_size_launch_what_later_ones_do(name, monkeypatch):
    by_family = []
    real = Family.call
    monkeypatch.setattr(Family, "call", lambda *args: by_family.append(1) or real(*args))
    launched(CALLS[name], FIRST, monkeypatch)
    for rows in OTHERS:
        first, second, third = [launched(CALLS[name], rows, monkeypatch) for _ in range(3)]
        assert first == second == third
    assert len(by_family) == len(OTHERS)


def test_a_distance_between_columns_is_not_none():
    """Rows of one value, expanded, and rows that are columns differ in nothing but this distance."""
    for x in (randn(20, 1).expand(20, 40), randn(40, 24).T):
        for made, wanted in zip(dg.per_token_cast_to_fp8(x), dg.per_token_cast_to_fp8(x.contiguous()), strict=True):
            assert made.float().equal(wanted.float())


@pytest.mark.parametrize("name", ["cast", "norm", "decode, new results", "FlashMLA's sparse decoding"])
def test_results(name):
    call, rows = CALLS[name], 3
    alone = call(rows)
    jit.forget()
    call(FIRST)
    for result, expected in zip(call(rows), alone, strict=True):
        assert (result.shape, result.stride(), result.dtype) == (expected.shape, expected.stride(), expected.dtype)
        assert torch.equal(result.float(), expected.float())
    for result, whole in zip(call(1), alone, strict=True):
        assert torch.equal(result.float(), whole[:1].float())


def families():
    known = session.current().of(repeated.Calls).known.values()
    return [family for family in known if isinstance(family, Family)]


@pytest.fixture
def decode():
    """A call of ``flash_attention_decode``, one of which was made already."""
    q, out = randn(FIRST, 1, 4, 64), torch.zeros(FIRST, 1, 4, 64).bfloat16()
    table, lengths = torch.zeros(FIRST, 1, dtype=torch.int32), torch.full((FIRST,), 3, dtype=torch.int32)
    cache = randn(2, 64, 2, 64)

    def call(rows=FIRST - 1, *, backwards=False, **changes):
        given = {"q": q, "block_table": table, "context_lens": lengths, "out": out}
        given = {name: tensor[:rows] for name, tensor in given.items()} | changes
        in_order = {name: given[name] for name in sorted(given, reverse=backwards)}
        return dg.flash_attention_decode(k_cache=cache, v_cache=cache, **in_order)

    call(FIRST)
    assert families()
    return call


@pytest.mark.parametrize("backwards", [False, True])
def test_rows_have_to_agree(decode, backwards):
    decode(FIRST, backwards=backwards)
    assert len(families()) == 1 + backwards
    for name, tensor in (
        ("out", torch.zeros(3, 1, 4, 64).bfloat16()),
        ("context_lens", torch.zeros(FIRST, dtype=torch.int32)),
        ("block_table", torch.zeros(FIRST, 1, dtype=torch.int32)),
    ):
        with pytest.raises(ValueError, match=name):
            decode(backwards=backwards, **{name: tensor})


def test_sizes_have_to_agree():
    arguments = {
        "q": randn(10, 4, 64), "k": randn(20, 2, 64), "v": randn(20, 2, 64), "cu_seqlens_q": lengths(5, 2),
        "cu_seqlens_k": lengths(5, 4), "out": randn(10, 4, 64),
    }  # fmt: skip
    dg.flash_attention(**arguments)
    assert len(families()) == 1
    for name, tensor in (
        ("v", randn(16, 2, 64)),
        ("out", randn(8, 4, 64)),
        ("cu_seqlens_k", lengths(4, 5)),
        ("cu_seqlens_q", lengths(5, 3)),
    ):
        with pytest.raises(ValueError, match=name):
            dg.flash_attention(**arguments | {name: tensor})


@pytest.mark.parametrize("expanded", [False, True])
def test_factors_of_tokens_are_no_family(expanded):
    """Sequences of up to 128 tokens have one factor, longer ones several."""
    heads = {"q_descale": 4, "k_descale": 2, "v_descale": 2}
    factors = {name: torch.ones(1, count, 1).expand(2, count, 1) for name, count in heads.items()}
    if not expanded:
        factors = {name: factor.contiguous() for name, factor in factors.items()}

    def call(tokens):
        q, k, v = (randn(2, tokens, heads, 64).to(FP8) for heads in (4, 2, 2))
        return dg.flash_attention(q, k, v, **factors)

    call(100)
    assert not families()
    with pytest.raises(ValueError, match="q_descale"):
        call(200)


def test_tokens_that_are_far_apart_are_no_family():
    """Kernels address 256 tokens with 32-bit offsets, which 2 tokens need not fill."""
    far = torch.empty(0, dtype=torch.bfloat16).set_(torch.UntypedStorage(2**14), 0, (1, 2, 2, 64), (1, 2**12, 64, 1))
    k = randn(1, 2, 2, 64)
    dg.flash_attention(far, k, k)
    assert len(families()) == 1
    buffer = torch.empty(2**22 + 128, dtype=torch.bfloat16)
    dg.flash_attention(buffer.as_strided((1, 2, 2, 64), (1, 2**22, 64, 1)), k, k)
    assert len(families()) == 1


def test_a_window_that_is_changed_later():
    window = [2, 0]
    q, k, v = (randn(1, 20, 2, 64) for _ in range(3))
    dg.flash_attention(q, k, v, window=window)
    assert len(families()) == 1
    window[0] = 8
    q, k, v = (randn(1, 24, 2, 64) for _ in range(3))
    results = [dg.flash_attention(q, k, v, window=[2, 0]) for _ in range(3)]
    jit.forget()
    assert all(torch.equal(result, dg.flash_attention(q, k, v, window=(2, 0))) for result in results)


@pytest.mark.parametrize("before", range(3))
def test_addresses_and_contents_are_checked(decode, before):
    for rows in (3, 4):
        for _ in range(before):
            decode(rows)
    both = torch.zeros(2 * FIRST, 1, 4, 64).bfloat16()
    with pytest.raises(ValueError, match="share memory"):
        decode(4, q=both[:4], out=both[2:6])
    with pytest.raises(ValueError, match="share memory"):
        decode(3, q=both[:3], out=both[:3])
    with pytest.raises(ValueError, match="multiples of 16 bytes"):
        decode(4, q=both.view(-1)[1:1025].view(4, 1, 4, 64))
    with pytest.raises(ValueError, match="context_lens must fit"):
        decode(4, context_lens=torch.full((4,), 65, dtype=torch.int32))


def test_rows_that_are_elsewhere_in_the_call_teach_nothing():
    descales = {"k_descale": torch.ones(1), "v_descale": torch.ones(1)}
    call = paged("flash_attention_decode", q=randn(2, 1, 4, 64).to(FP8), q_descale=torch.ones(FIRST, 4), **descales)
    call(FIRST)
    assert not families()
    with pytest.raises(ValueError, match="q_descale"):
        call(FIRST + 1)


def test_rows_that_lie_between_others_are_no_family():
    dg.per_token_cast_to_fp8(randn(16, FIRST).T)
    dg.per_token_cast_to_fp8(randn(16, 2 * FIRST)[:, ::2].T)
    assert not families()


def test_numbers_are_checked(monkeypatch):
    monkeypatch.setattr(hip.runtime(), "relaunch", lambda *_: None)
    masked(FIRST)
    assert len(families()) == 1
    for expected_m in (-1, 2**31):
        with pytest.raises(ValueError, match="expected_m must be at"):
            masked(expected_m)
    with pytest.raises(TypeError, match="expected_m must be an int"):
        masked(True)
    with pytest.raises(TypeError, match="expected_m must be an int"):
        masked(None)


@pytest.mark.parametrize("expected_m", [0, 1])
def test_smallest_numbers(remembered, expected_m):
    assert remembered(masked, FIRST, expected_m) == remembered(masked, expected_m)


def test_what_a_number_decides_beside_launches_teaches_nothing(monkeypatch):
    monkeypatch.setattr(hip.runtime(), "relaunch", lambda *_: None)
    signal = torch.zeros(-(-MOST_ROWS // 64), dtype=torch.int32)
    masked(FIRST, enable_overlap=True, signal=signal)
    assert not families()
