"""set_batch_invariant: the bits of a row, whatever the number of rows, its neighbours and its group."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from helpers.decode_problem import FP8
from helpers.decode_problem import Problem as DecodeProblem
from helpers.default_run import some
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.heuristics import GemmConfig, choose_dense, forced
from deep_gemm_rocm.heuristics.gemm_problem import Choice
from deep_gemm_rocm.launch import planning
from deep_gemm_rocm.problems.gemm_kind import PARTS_OF_B, GemmKind
from deep_gemm_rocm.testing import (
    activations,
    assert_accurate,
    gemm_problem,
    gemm_reference,
    grouped_weights,
    quantised_activations,
    weights,
)

ROWS = (*range(1, 130), *range(130, 8193, 61), 8192)
N, K = 40, 1152  # nine K-blocks, which four parts don't share evenly


@pytest.fixture(autouse=True)
def _invariant() -> Iterator[None]:
    dg.set_batch_invariant(True)
    return


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether all bits are equal, those of NaNs and zeros, too."""
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def rows_of(pair: tuple[torch.Tensor, torch.Tensor], rows: slice | list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    return pair[0][rows].contiguous(), pair[1][rows].contiguous()


def fp8(m: int, recipe: tuple[int | None, int | None, int | None], **options: object) -> torch.Tensor:
    a, b = gemm_problem(300, N, K)
    if recipe[1] == 1:
        b = dg.per_token_cast_to_fp8(weights(N, K))
    if recipe[2] is None:
        a, b = (a[0], a[1][:, :1].contiguous()), (b[0], b[1][:, :1].contiguous())
    d = torch.empty(m, N)
    dg.fp8_gemm_nt(rows_of(a, slice(m)), b, d, recipe=recipe, **options)
    return d


def quantised(m: int, epilogue: str | None) -> torch.Tensor:
    """Each row's FP8 values, and behind them the bytes of their scales."""
    a, b = gemm_problem(300, 256, K)
    n = 256 // PARTS_OF_B[epilogue or "identity"]
    d = torch.empty(m, n, dtype=FP8), torch.empty(m, n // 128)
    dg.fp8_gemm_nt(rows_of(a, slice(m)), b, d, epilogue=epilogue)
    return torch.cat([part.view(torch.uint8) for part in d], dim=1)


def bf16(m: int, call: Callable[..., None], transposed: str) -> torch.Tensor:
    a, b, d = activations(300, K)[:m], weights(N, K), torch.empty(m, N)
    call(a.T.contiguous() if "a" in transposed else a, b.T.contiguous() if "b" in transposed else b, d)
    return d


def four_bits(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """With the scales of usual weights, which one round takes."""
    *rows, k = shape
    generator = torch.Generator().manual_seed(0)
    data = torch.randint(-128, 128, (*rows, k // 2), dtype=torch.int8, generator=generator)
    return data, torch.randint(114, 124, (*rows, k // 32), dtype=torch.uint8, generator=generator)


def int4(group: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    data = torch.randint(-(2**31), 2**31, (N, K // 8), generator=generator).int()
    return data, torch.rand(N, K // group, generator=generator) + 0.5


WEIGHTS = {
    "e2m1": lambda: four_bits(N, K),
    "shuffled_e2m1": lambda: dg.shuffle_weight(*four_bits(N, K)),
    "int4 of 32": lambda: int4(32),
    "int4 of 128": lambda: int4(128),
    "shuffled_int4 of 32": lambda: dg.shuffle_weight(*int4(32)),
    "shuffled_int4 of 128": lambda: dg.shuffle_weight(*int4(128)),
}


def by_four_bits(m: int, a_type: str, weight: str = "e2m1") -> torch.Tensor:
    a = activations(300, K)[:m] if a_type == "bf16" else rows_of(quantised_activations(300, K), slice(m))
    name = "bf16" if a_type == "bf16" else "fp8"
    call = getattr(dg, f"{name}_int4_gemm_nt" if "int4" in weight else f"{name}_fp4_gemm_nt")
    d = torch.empty(m, N)
    call(a, WEIGHTS[weight](), d)
    return d


def kind_of_four_bits(a_type: str, weight: str = "e2m1") -> GemmKind:
    if "int4" in weight:
        b_type, group_k = weight.split(" of ")
        return GemmKind(a_type, b_type, "f32", "groups", b_scale_type="f32", group_k=int(group_k))
    return GemmKind(a_type, weight, "f32", "groups", b_scale_type="e8m0")


DENSE: dict[str, tuple[GemmKind, Callable[[int], torch.Tensor]]] = {
    "blocks": (GemmKind(d_type="f32"), lambda m: fp8(m, (1, 128, 128))),
    "vectors": (GemmKind(d_type="f32", scaling="vectors"), lambda m: fp8(m, (1, 1, 128))),
    "quantised": (GemmKind(d_type="e4m3"), lambda m: quantised(m, None)),
    "activated": (GemmKind(d_type="e4m3", activation="silu_and_mul"), lambda m: quantised(m, "silu_and_mul")),
    "rows": (GemmKind(d_type="f32", scaling="rows"), lambda m: fp8(m, (1, 1, None))),
    "nt": (GemmKind("bf16", "bf16", "f32", "none"), lambda m: bf16(m, dg.bf16_gemm_nt, "")),
    "nn": (GemmKind("bf16", "bf16", "f32", "none", b_major="rows"), lambda m: bf16(m, dg.bf16_gemm_nn, "b")),
    "tt": (GemmKind("bf16", "bf16", "f32", "none", a_major="rows"), lambda m: bf16(m, dg.bf16_gemm_tt, "a")),
    "fp8_fp4": (kind_of_four_bits("e4m3"), lambda m: by_four_bits(m, "e4m3")),
    "bf16_fp4": (kind_of_four_bits("bf16"), lambda m: by_four_bits(m, "bf16")),
}
OF_OTHER_WEIGHTS = [
    (a_type, weight)
    for a_type, weight in itertools.product(("e4m3", "bf16"), ("shuffled_e2m1", "int4 of 32", "int4 of 128"))
] + [("e4m3", "shuffled_int4 of 32"), ("e4m3", "shuffled_int4 of 128")]
DENSE |= {
    f"{a_type} by {weight}": (kind_of_four_bits(*of), lambda m, of=of: by_four_bits(m, *of))
    for of in OF_OTHER_WEIGHTS
    for a_type, weight in [of]
}


PARTS, NO_PARTS, PARTS_OF_PARTS = (7168, 2048), (24576, 1536), (256, 32768)


def choices_of_all_m(kind: GemmKind, n: int, k: int) -> list[Choice]:
    """Each choice that some M gets, for the dense kind."""
    return list(dict.fromkeys(choose_dense(kind, m, n, k) for m in ROWS))


def of_each_schedule(choices: list[Choice]) -> list[Choice]:
    """Those with the largest tile of each way to compute parts of K."""

    def way(choice: Choice) -> tuple[object, ...]:
        return choice.splits, choice.config.schedule, choice.config.waves_k, choice.config.parts_k

    choices = sorted(choices, key=lambda choice: choice.config.block_m * choice.config.block_n)
    return list({way(choice): choice for choice in choices}.values())


@pytest.mark.parametrize(
    ("name", "shape", "all_choices"),
    [
        ("blocks", PARTS, False),
        *(
            pytest.param(name, PARTS, False, marks=pytest.mark.slow)
            for name in ("fp8_fp4", "nt", "quantised", "activated", "tt", "bf16_fp4")
        ),
        pytest.param("blocks", PARTS_OF_PARTS, False, marks=pytest.mark.slow),
        *(
            pytest.param(name, NO_PARTS, False, marks=pytest.mark.slow)
            for name in ("e4m3 by shuffled_e2m1", "e4m3 by int4 of 128")
        ),
        *(
            pytest.param(name, shape, True, marks=pytest.mark.slow)
            for name in DENSE
            for shape in (PARTS, NO_PARTS, PARTS_OF_PARTS)
        ),
    ],
)
def test_configurations_of_all_m_give_the_same_bits(name, shape, all_choices):
    """Large M would take long to run. So their kernels compute few rows, of which there are tiles' edges."""
    kind, run = DENSE[name]
    choices = choices_of_all_m(kind, *shape)
    assert len(choices) > 2
    results = []
    for choice in choices if all_choices else of_each_schedule(choices):
        with forced(choice):
            results.append(run(136))
    assert len(results) > 1
    assert all(same(results[0], result) for result in results)


@pytest.mark.parametrize("name", some(("blocks", "nt", "fp8_fp4"), 1))
def test_a_wave_alone_sums_parts_as_several_do(name):
    """Loops of different lengths, and parts that end in their last K-blocks."""
    kind, run = DENSE[name]
    deals = GemmConfig(16, 32, 1, 1, 3, "alone", waves_k=4, kind=kind)
    results = []
    for config in (deals, *(GemmConfig(32, 32, 1, 1, stages, "alone", parts_k=4, kind=kind) for stages in (2, 3))):
        with forced(Choice(config)):
            results.append(run(40))
    assert all(same(results[0], result) for result in results)


def test_the_order_is_seen():
    """Other orders give other bits, so that the tests here can fail."""
    kind, run = DENSE["blocks"]
    (first, *_), (other, *_) = choices_of_all_m(kind, *PARTS), choices_of_all_m(kind, *NO_PARTS)
    assert first.k_order != other.k_order
    with forced(first):
        one = run(16)
    with forced(other):
        assert not same(one, run(16))


@pytest.mark.parametrize("name", some(DENSE, 3))
def test_rows_alone_and_among_others(name):
    _, run = DENSE[name]
    among_others = run(200)
    for m in (8, 72) if name == "tt" else (1, 17, 66):
        assert same(run(m), among_others[:m])


def test_room_in_the_block_table_does_not_matter():
    """240 keys have two splits, also where the table has no room for a 256th."""
    cache, q = torch.randn(16, 16, 1, 576).bfloat16(), torch.randn(1, 1, 16, 576).bfloat16()
    pages, tokens = torch.randperm(16).int()[None], torch.tensor([240], dtype=torch.int32)
    narrow, wide = (
        dg.mla_decode(q, cache, block_table=pages[:, :n].contiguous(), context_lens=tokens) for n in (15, 16)
    )
    assert narrow.equal(wide)


def test_without_the_setting_m_matters():
    """Or the test above would pass without it. Switching back finds the same bits."""
    dg.set_batch_invariant(False)
    a, b = gemm_problem(66, 2048, 640)
    d = {m: torch.empty(m, 2048) for m in (1, 66)}
    for m in d:
        dg.fp8_gemm_nt(rows_of(a, slice(m)), b, d[m])
    assert not same(d[1], d[66][:1])
    dg.set_batch_invariant(True)
    for m in d:
        dg.fp8_gemm_nt(rows_of(a, slice(m)), b, d[m])
    assert same(d[1], d[66][:1])


@hypothesis_settings(max_examples=12, deadline=None)
@given(m=st.integers(1, 200), row=st.integers(0, 199), poison=st.sampled_from([float("nan"), 1e30]))
def test_neighbours_don_t_matter(m, row, poison):
    row %= m
    a, b = gemm_problem(200, N, K)
    data, scales = (part[:m].clone() for part in a)
    others = torch.arange(m) != row
    scales[others] = poison
    data.view(torch.uint8)[others] = 0x80 if poison != poison else 0x7F
    d, alone = torch.empty(m, N), torch.empty(1, N)
    dg.fp8_gemm_nt((data, scales), b, d)
    dg.fp8_gemm_nt(rows_of(a, [row]), b, alone)
    assert same(d[row : row + 1], alone)


def test_zeros_have_the_same_sign():
    """Negative scales make products of -0, which sums that begin with +0 lose and those that begin with them keep."""
    a, b = (torch.zeros(160, K).to(FP8), -torch.ones(160, 9)), dg.per_block_cast_to_fp8(weights(128, K))
    results = {m: torch.empty(m, 128) for m in (1, 40, 160)}
    for choice in of_each_schedule(choices_of_all_m(GemmKind(d_type="f32"), *PARTS)):
        with forced(choice):
            for m, d in results.items():
                dg.fp8_gemm_nt(rows_of(a, slice(m)), b, d)
                assert same(d, torch.zeros(m, 128))


def test_parts_are_accurate():
    """Fewer K-blocks than parts, as many, and more; with a tail."""
    choice = next(c for c in choices_of_all_m(GemmKind(d_type="f32"), *PARTS) if c.config.parts_k > 1)
    for k in (64, 128, 272, 512, 1168, 2432):
        kind = dataclasses.replace(choice.config.kind, k_tail=True)
        a, b = gemm_problem(300, 264, k)
        d = torch.empty(300, 264)
        with forced(choice._replace(config=dataclasses.replace(choice.config, kind=kind))):
            dg.fp8_gemm_nt(a, b, d)
        assert_accurate(d, gemm_reference(a, b))


def test_tiles_of_a_workgroup_start_their_parts_anew():
    choices = choices_of_all_m(GemmKind(d_type="f32"), *PARTS)
    choice = next(c for c in choices if c.config.parts_k > 1 and c.config.schedule == "pingpong")
    a, b = gemm_problem(260, 400, 1280)
    alone, persistent = torch.empty(260, 400), torch.empty(260, 400)
    with forced(choice):
        dg.fp8_gemm_nt(a, b, alone)
        dg.set_num_sms(2)  # each workgroup computes several tiles, which overlap
        dg.fp8_gemm_nt(a, b, persistent)
    assert same(alone, persistent)
    assert_accurate(alone, gemm_reference(a, b))


def test_row_of_a_group():
    """Contiguous, psum and masked groups, of any sizes and expectations; and dense, where K has no parts."""
    data, weight = dg.per_token_cast_to_fp8(activations(3, 256)), grouped_weights(2, 512, 256)
    results = []
    for size, alignment in ((3, 16), (40, 128), (200, 64)):
        dg.set_mk_alignment_for_contiguous_layout(alignment)
        m = -(-size // alignment) * alignment
        filler = dg.per_token_cast_to_fp8(activations(m, 256, seed=size))
        a = tuple(torch.cat([other, own, other[3:]]) for other, own in zip(filler, data, strict=True))
        layout = torch.full((2 * m,), -1, dtype=torch.int32)
        layout[:m], layout[m : m + size] = 0, 1
        for psum in (False, True):
            d = torch.empty(2 * m, 512)
            given_layout = torch.tensor([m, m + size], dtype=torch.int32) if psum else layout
            dg.m_grouped_fp8_gemm_nt_contiguous(a, weight, d, given_layout, use_psum_layout=psum)
            results.append(d[m : m + 3])
    for expected_m in (1, 30, 256):
        a = tuple(torch.zeros(2, 256, *part.shape[1:], dtype=part.dtype) for part in data)
        for whole, part in zip(a, data, strict=True):
            whole[1, :3] = part
        d = torch.empty(2, 256, 512)
        dg.m_grouped_fp8_gemm_nt_masked(a, weight, d, torch.tensor([200, 3], dtype=torch.int32), expected_m)
        results.append(d[1, :3])
    d = torch.empty(3, 512)
    dg.fp8_gemm_nt(data, (weight[0][1], weight[1][1]), d)
    results.append(d)
    assert choose_dense(GemmKind(d_type="f32"), 3, 512, 256).k_order == (1, 1)
    assert all(same(results[0], result) for result in results)


def test_expected_rows_of_groups_of_four_bits():
    """Without the setting, waves deal K among themselves where few rows are expected."""
    groups, n, k = 8, 256, 2048
    a, b = quantised_activations(128 * groups, k), four_bits(groups, n, k)
    ends = torch.arange(1, 128 * groups, 128, dtype=torch.int32)

    def rows(expected_m: int) -> torch.Tensor:
        d = torch.empty(128 * groups, n)
        dg.m_grouped_fp8_fp4_gemm_nt_contiguous(
            a, b, d, ends, use_psum_layout=True, expected_m_for_psum_layout=expected_m
        )
        return d[::128]

    assert same(rows(1), rows(300))
    dg.set_batch_invariant(False)
    assert not same(rows(1), rows(300))


def test_einsum():
    h, r, d = 2, 512, 64
    x, y = torch.randn(100, h, r).bfloat16(), torch.randn(h, d, r).bfloat16()
    batches = {b: torch.empty(b, h, d) for b in (1, 100)}
    for b, out in batches.items():
        dg.einsum("bhr,hdr->bhd", x[:b], y, out)
    assert same(batches[1], batches[100][:1])

    x, y = torch.randn(16, 200, 128).bfloat16(), torch.randn(16, 32, 128).bfloat16()
    summed = {m: torch.empty(m, 32) for m in (1, 200)}
    for m, out in summed.items():
        dg.einsum("bmk,bnk->mn", x[:, :m], y, out)
    assert same(summed[1], summed[200][:1])


@pytest.mark.parametrize("num_splits", [None, 3])
def test_hyperconnection(num_splits):
    a, b = activations(300, 1040), torch.randn(24, 1040)
    parts = () if num_splits is None else (num_splits,)
    results = {m: (torch.empty(*parts, m, 24), torch.empty(*parts, m)) for m in (1, 40, 300)}
    for m, (d, squares) in results.items():
        dg.tf32_hc_prenorm_gemm(a[:m], b, d, squares, num_splits)
    for m, (d, squares) in results.items():
        assert same(d, results[300][0][..., :m, :])
        assert same(squares, results[300][1][..., :m])


def test_groups_along_k():
    """The bits of a group depend on its own K, not on other groups."""
    a, b = activations(384, 40), activations(384, 64, seed=1)
    alone, among = torch.empty(1, 40, 64), torch.empty(3, 40, 64)
    own = slice(128, 230)
    dg.k_grouped_bf16_gemm_tn_contiguous(a[own], b[own], alone, [102], torch.tensor([102], dtype=torch.int32))
    sizes = [128, 102, 154]
    dg.k_grouped_bf16_gemm_tn_contiguous(a, b, among, sizes, torch.tensor(sizes, dtype=torch.int32))
    assert same(alone[0], among[1])


def attention(
    q: torch.Tensor, k: torch.Tensor, lens: list[tuple[int, int]], **options: object
) -> tuple[torch.Tensor, torch.Tensor]:
    ends = [torch.tensor([0, *own]).cumsum(0).int() for own in zip(*lens, strict=True)]
    return dg.flash_attention(q, k, k, causal=True, cu_seqlens_q=ends[0], cu_seqlens_k=ends[1], return_lse=True,
                              **options)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8])
@pytest.mark.parametrize("window", [None, (50, 0)])
def test_attention_of_prompts(dtype, window):
    """A prompt alone, beside others, and in chunks, which leave its queries other neighbours in a wave."""
    tokens, width = 300, 64
    q, k = ((torch.randn(tokens, heads, width) * 3).to(dtype) for heads in (2, 1))
    factors = dict.fromkeys(("q_descale", "k_descale", "v_descale"), torch.full((1,), 0.3)) if dtype == FP8 else {}
    options = {"window": window, **factors}
    whole, lse = attention(q, k, [(tokens, tokens)], **options)
    others = (torch.randn(90, 2, width) * 3).to(dtype), (torch.randn(90, 1, width) * 3).to(dtype)
    beside = attention(torch.cat([others[0], q]), torch.cat([others[1], k]), [(90, 90), (tokens, tokens)], **options)
    assert same(beside[0][90:], whole)
    assert same(beside[1][:, 90:], lse)
    for begin, end in ((0, 7), (7, 130), (130, 299), (299, 300)):
        chunk = attention(q[begin:end], k[:end], [(end - begin, end)], **options)
        assert same(chunk[0], whole[begin:end])
        assert same(chunk[1], lse[:, begin:end])


def test_attention_of_chunks_with_factors_of_blocks():
    """Sums are multiplied where the factor of values changes. A neighbour's keys must not do that to a query.

    That is a rounding of fp32, which few results in f16 show. So there are many.
    """
    tokens, heads, width = 257, 16, 128
    q, k = ((torch.randn(1, tokens, count, width) * 3).to(FP8) for count in (heads, 1))
    of_queries, of_keys, of_values = torch.full((1, heads), 0.1), torch.rand(1, 1, 3) + 0.1, torch.rand(1, 1, 3) + 1

    def queries(begin: int, end: int) -> torch.Tensor:
        blocks = -(-end // 128)
        factors = {"q_descale": of_queries, "k_descale": of_keys[..., :blocks], "v_descale": of_values[..., :blocks]}
        out = torch.empty(1, end - begin, heads, width, dtype=torch.float16)
        return dg.flash_attention(q[:, begin:end], k[:, :end], k[:, :end], causal=True, out=out, **factors)

    whole = queries(0, tokens)
    for begin, end in ((113, 129), (241, 257)):
        assert same(queries(begin, end), whole[:, begin:end])


def test_attention_configurations():
    from deep_gemm_rocm.heuristics import AttentionChoice, attention_tiles

    torch.manual_seed(0)
    q, k = torch.randn(1, 300, 2, 128).half(), torch.randn(1, 300, 1, 128).half()
    results = {}
    for config in attention_tiles("f16", "f16", 128, 128):
        with forced(AttentionChoice(config)):
            results.setdefault(config.mfma_rows, []).append(dg.flash_attention(q, k, k, causal=True))
    assert len(results[16]) == 2
    assert all(same(results[16][0], other) for other in results[16])
    assert not same(results[16][0], results[32][0])


@pytest.mark.parametrize(
    ("dtype", "factors"), [(torch.bfloat16, ""), (FP8, ""), (torch.bfloat16, "tokens")], ids=["bf16", "FP8", "tokens"]
)
@pytest.mark.parametrize("tokens_q", [1, 3])
def test_decode(dtype, factors, tokens_q):
    lens = (700, 33, 0, 1300, 128)
    together = DecodeProblem(lens, tokens_q=tokens_q, widths=(64, 64), dtype=dtype, factors=factors)
    out, lse = together.run()
    for i in range(len(lens)):
        arguments = together.arguments
        for name in ("q", "block_table", "context_lens", *(together.descales if dtype == FP8 else ())):
            arguments[name] = arguments[name][i : i + 1]
        alone = dg.flash_attention_decode(**arguments, return_lse=True)
        assert same(alone[0], out[i : i + 1])
        assert same(alone[1], lse[i : i + 1])
    dg.set_batch_invariant(False)
    assert not same(together.run()[0], out)


@pytest.mark.parametrize(("heads", "rows"), [(8, (16,)), (32, (64, 32, 16))])
def test_latent_decode(heads, rows):
    """Few sequences have tiles of fewer queries, which must add up alike."""
    lens = [700, 33, 0, 1300, 511]
    batch, pages = len(lens), 256  # room for as many splits as there can be
    q, cache = torch.randn(batch, 2, heads, 576).bfloat16(), torch.randn(40, 64, 1, 576).bfloat16()
    table, lens = torch.arange(batch * pages, dtype=torch.int32).reshape(batch, pages) % 40, torch.tensor(lens).int()
    used = []

    def run(own: slice, room: int = pages) -> tuple[torch.Tensor, torch.Tensor]:
        options = {"block_table": table[own, :room], "context_lens": lens[own], "return_lse": True}
        call = functools.partial(dg.mla_decode, q[own], cache, **options)
        with planning.planning() as plan:
            call()
        used.extend(request.values["rows"] for request in plan.values())
        return call()

    out, lse = run(slice(None))
    some = run(slice(3))
    assert same(some[0], out[:3])
    assert same(some[1], lse[:3])
    for i in range(batch):
        own = slice(i, i + 1)
        alone = run(own, -(-int(lens[i]) // 64) or 1)
        assert same(alone[0], out[own])
        assert same(alone[1], lse[own])
    assert tuple(dict.fromkeys(used)) == rows


@pytest.mark.parametrize("function", ["mla_decode", "flash_attention_decode"])
def test_other_tokens_of_a_sequence_do_not_matter(function):
    """As where a server verifies some drafted tokens."""
    cache, q = torch.randn(20, 64, 1, 576).bfloat16(), torch.randn(1, 4, 16, 576).bfloat16()
    caches = (cache,)
    if function == "flash_attention_decode":
        q, caches = q[..., :64].contiguous(), (cache[..., :64].contiguous(),) * 2
    pages = {"block_table": torch.arange(20).int()[None], "context_lens": torch.tensor([1100]).int()}
    several = getattr(dg, function)(q, *caches, **pages)
    alone = getattr(dg, function)(q[:, 3:].contiguous(), *caches, **pages)
    assert same(alone[:, 0], several[:, 3])


def test_logits():
    q, weights_ = torch.randn(70, 32, 64).to(FP8), torch.randn(70, 32)
    keys = torch.randn(300, 64).to(FP8), torch.rand(300)
    begin, end = torch.zeros(70, dtype=torch.int32), torch.full((70,), 300, dtype=torch.int32)
    whole = dg.fp8_mqa_logits(q, keys, weights_, begin, end)
    assert same(dg.fp8_mqa_logits(q[33:34], keys, weights_[33:34], begin[:1], end[:1]), whole[33:34])
    few = keys[0][37:101].contiguous(), keys[1][37:101].contiguous()
    assert same(dg.fp8_mqa_logits(q, few, weights_, begin, end), whole[:, 37:101])


def test_setting():
    assert dg.get_batch_invariant()
    assert dg.get_deterministic_algorithms()
    dg.use_deterministic_algorithms(False)
    assert not dg.get_batch_invariant()
    for setter in (dg.set_batch_invariant, dg.use_deterministic_algorithms):
        with pytest.raises(TypeError, match="must be a bool"):
            setter(1)
    assert not dg.get_deterministic_algorithms()


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False)])
def test_environment(monkeypatch, value, expected):
    from deep_gemm_rocm.runtime.settings import Settings

    monkeypatch.setenv("DG_BATCH_INVARIANT", value)
    assert Settings().values.batch_invariant is expected
    monkeypatch.setenv("DG_BATCH_INVARIANT", "yes")
    with pytest.raises(ValueError, match="DG_BATCH_INVARIANT must be 0 or 1, got 'yes'"):
        Settings()


def test_going_back_finds_what_was_remembered(own_session):
    from deep_gemm_rocm.launch.remembered import Call
    from deep_gemm_rocm.launch.repeated import Calls

    a, b = gemm_problem(20, N, K)
    d = torch.empty(20, N)
    calls = own_session.of(Calls)
    for _ in range(3):
        for value in (False, True):
            dg.set_batch_invariant(value)
            dg.fp8_gemm_nt(a, b, d)
    known = [call for call in calls.known.values() if isinstance(call, Call)]
    assert len(known) == 2
    assert all(call.was_repeated for call in known)
