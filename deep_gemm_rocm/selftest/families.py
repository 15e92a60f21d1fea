"""Runs every family of kernels on a small problem with ragged edges, and compares each element with an fp64 oracle."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..api import (
    attention,
    decode,
    experts,
    fp4_gemm,
    fused_casts,
    gemm,
    grouped,
    hyperconnection,
    int4_gemm,
    k_grouped,
    kv_cache,
    latent_cache,
    merge_states,
    mqa_logits,
    routing,
    sparse_mla,
    top_k,
)
from ..api import einsum as einstein_sum
from ..api.casts import (
    per_block_cast_to_fp8,
    per_channel_cast_to_fp8,
    per_row_cast_to_fp8,
    per_tensor_cast_to_fp8,
    per_token_cast_to_fp4,
    per_token_cast_to_fp8,
)
from ..api.fp4 import cast_back_from_fp4
from ..api.host_casts import cast_blocks, cast_to_fp4
from ..api.shuffle import shuffle_weight
from ..problems.layout import FP8, Pair, ceil_div
from ..runtime import hip
from ..testing import (
    GemmReference,
    activations,
    assert_accurate,
    assert_accurately_quantised,
    attention_reference,
    fused_moe_reference,
    gemm_problem,
    gemm_reference,
    grouped_weights,
    int4_weights,
    logits_reference,
    rms_norm_reference,
    route_top_k_reference,
    silu_and_mul_reference,
    visible_keys,
    weights,
)

_M, _N, _K, _G = 77, 264, 400, 3
_BF16, _F32 = torch.bfloat16, torch.float32
_ROUNDING = 2.0**-24


def checks(device: str) -> dict[str, Callable[[], None]]:
    """For each family, a function that raises AssertionError if a result is wrong."""
    families = (
        _fp8, _transposed, _vectors, _wide_types, _four_bits, _int4, _quantised, _contiguous, _masked, _along_k, _sums,
        _hyperconnection, _flash_attention, _decode, _latent_decode, _chosen_tokens, _merging, _logits, _top_k,
        _casts, _norm, _activation, _routing, _experts, _graph,
    )  # fmt: skip
    return {family.__name__.strip("_").replace("_", " "): functools.partial(family, device) for family in families}


def _on(device: str, pair: Pair) -> Pair:
    return pair[0].to(device), pair[1].to(device)


def _empty(device: str, *shape: int, dtype: torch.dtype = _BF16) -> torch.Tensor:
    return torch.full(shape, torch.nan, device=device).to(dtype)


def _fp8(device: str) -> None:
    a, b = gemm_problem(_M, _N, _K)
    for m in (1, 16, _M):
        rows = a[0][:m].clone(), a[1][:m]
        assert_accurate(gemm.gemm_fp8(_on(device, rows), _on(device, b)), gemm_reference(rows, b))


def _transposed(device: str) -> None:
    a, b = gemm_problem(64, 272, _K)
    d = _empty(device, 64, 272)
    (a_data, sfa), (b_data, sfb) = _on(device, a), _on(device, b)
    gemm.fp8_gemm_tn((a_data.T.contiguous(), sfa.T), (b_data.T.contiguous(), sfb.T), d)
    assert_accurate(d, gemm_reference(a, b))


def _vectors(device: str) -> None:
    a, b = per_token_cast_to_fp8(activations(_M, _K)), per_token_cast_to_fp8(weights(_N, _K))
    before = torch.randn(_M, _N, generator=torch.Generator().manual_seed(0))
    d = before.clone().to(device)
    gemm.fp8_gemm_nt(_on(device, a), _on(device, b), d, c=d, recipe=(1, 1, 128))
    assert_accurate(d, gemm_reference(a, b, recipe=(1, 1, 128), c=before))


def _wide_types(device: str) -> None:
    for dtype, function in ((_BF16, gemm.bf16_gemm_nt), (torch.float16, gemm.f16_gemm_nt)):
        a, b = activations(_M, _K).to(dtype), weights(_N, _K).to(dtype)
        d = _empty(device, _M, _N, dtype=_F32)
        function(a.to(device), b.to(device), d)
        assert_accurate(d, gemm_reference(a, b))


def _four_bits(device: str) -> None:
    a, k = activations(_M, _K), _K // 32 * 32
    b = per_token_cast_to_fp4(weights(_N, k), use_ue8m0=True, gran_k=32, use_packed_ue8m0=True)
    narrow, wide = per_token_cast_to_fp8(a[:, :k]), a[:, :k].contiguous()
    for weight in (b, shuffle_weight(*b)):
        d = _empty(device, _M, _N)
        fp4_gemm.fp8_fp4_gemm_nt(_on(device, narrow), _on(device, weight), d)
        assert_accurate(d, gemm_reference(narrow, b))
        fp4_gemm.bf16_fp4_gemm_nt(wide.to(device), _on(device, weight), d)
        assert_accurate(d, gemm_reference(wide, b))
    four_bits = per_token_cast_to_fp4(wide, use_ue8m0=True, gran_k=32, use_packed_ue8m0=True)
    fp4_gemm.fp4_gemm_nt(_on(device, four_bits), _on(device, b), d)
    values = cast_back_from_fp4(*four_bits, gran_k=32, use_packed_ue8m0=True).bfloat16()
    assert_accurate(d, gemm_reference(values, b))


def _int4(device: str) -> None:
    k, d = _K // 128 * 128, _empty(device, _M, _N)
    wide = activations(_M, k)
    narrow = per_token_cast_to_fp8(wide)
    of_32, of_128 = (int4_weights(_N, k, group=group) for group in (32, 128))
    zeros = torch.arange(of_128[1].numel()).view_as(of_128[1]).int() % 17
    with_zeros = (of_128[0], of_128[1].view(torch.int32) & ~0x1F | zeros)
    for b in (of_32, with_zeros):
        int4_gemm.bf16_int4_gemm_nt(wide.to(device), _on(device, b), d)
        assert_accurate(d, gemm_reference(wide, b))
    for b in (of_128, shuffle_weight(*of_32), shuffle_weight(*of_128)):
        int4_gemm.fp8_int4_gemm_nt(_on(device, narrow), _on(device, b), d)
        assert_accurate(d, gemm_reference(narrow, b))


def _quantised(device: str) -> None:
    a, b = gemm_problem(_M, 512, 512)
    d = torch.empty(_M, 256, dtype=FP8, device=device), torch.empty(_M, 2, device=device)
    gemm.fp8_gemm_nt(_on(device, a), _on(device, b), d, epilogue="silu_and_mul")
    assert_accurately_quantised(_on("cpu", d), gemm_reference(a, b, epilogue="silu_and_mul"))


def _contiguous(device: str) -> None:
    sizes = (100, 128, 3)
    groups = torch.full((3 * 128,), -1, dtype=torch.int32)
    for group, size in enumerate(sizes):
        groups[group * 128 : group * 128 + size] = group
    ends = torch.tensor([group * 128 + size for group, size in enumerate(sizes)], dtype=torch.int32)
    a, b = per_token_cast_to_fp8(activations(len(groups), _K)), grouped_weights(_G, _N, _K)
    for layout, psum in ((groups, False), (ends, True)):
        d = _empty(device, len(groups), _N)
        grouped.m_grouped_fp8_gemm_nt_contiguous(
            _on(device, a), _on(device, b), d, layout.to(device), use_psum_layout=psum
        )
        for group, size in enumerate(sizes):
            rows = slice(group * 128, group * 128 + size)
            expert = b[0][group], b[1][group]
            assert_accurate(d[rows], gemm_reference((a[0][rows], a[1][rows]), expert))
        assert not d[groups < 0].any(), "padding rows are not zero"


def _masked(device: str) -> None:
    counts = (0, 5, _M)
    (a, sfa), b = per_token_cast_to_fp8(activations(_G * _M, _K)), grouped_weights(_G, _N, _K)
    a, sfa = a.view(_G, _M, _K), sfa.view(_G, _M, -1)
    d = _empty(device, _G, _M, _N)
    of_groups = torch.tensor(counts, dtype=torch.int32, device=device)
    signal = torch.zeros(_G * ceil_div(_M, 64), dtype=torch.int32, device=device)
    counted = grouped.m_grouped_fp8_gemm_nt_masked(
        _on(device, (a, sfa)), _on(device, b), d, of_groups, 16, enable_overlap=True, signal=signal
    )
    assert counted is not None
    block_m, threshold = counted
    blocks = ceil_div(_M, block_m)
    finished = [threshold if block * block_m < count else 0 for count in counts for block in range(blocks)]
    assert signal[: len(finished)].tolist() == finished, "finished tiles are counted wrongly"
    for group, count in enumerate(counts):
        rows = a[group, :count], sfa[group, :count]
        assert_accurate(d[group, :count], gemm_reference(rows, (b[0][group], b[1][group])))
        assert d[group, count:].isnan().all(), "rows behind a group's last one were written"


def _along_k(device: str) -> None:
    ks, m, n = [128, 0, 256], 64, 96
    a, b = (per_channel_cast_to_fp8(activations(sum(ks), rows, seed)) for seed, rows in enumerate((m, n)))
    d = _empty(device, len(ks), m, n, dtype=_F32)
    sizes = torch.tensor(ks, dtype=torch.int32, device=device)
    k_grouped.k_grouped_fp8_gemm_tn_contiguous(_on(device, a), _on(device, b), d, ks, sizes)
    begin = 0
    for group, k in enumerate(ks):
        part, blocks = slice(begin, begin + k), slice(begin // 128, (begin + k) // 128)
        of_a, of_b = ((data[part].T, scales[blocks].T) for data, scales in (a, b))
        assert_accurate(d[group], gemm_reference(of_a, of_b, recipe=(1, 1, 128)))
        begin += k


def _sums(device: str) -> None:
    heads, b_size, d_size, r = 3, 37, 64, 136
    a, b = (
        activations(b_size * heads, r).view(b_size, heads, r),
        weights(heads * d_size, r).view(heads, d_size, r),
    )
    d = _empty(device, b_size, heads, d_size)
    einstein_sum.einsum("bhr,hdr->bhd", a.to(device), b.to(device), d)
    for head in range(heads):
        assert_accurate(d[:, head], gemm_reference(a[:, head], b[head]))


def _hyperconnection(device: str) -> None:
    a, b = activations(_M, _K), torch.randn(24, _K, generator=torch.Generator().manual_seed(1))
    d, squares = _empty(device, _M, 24, dtype=_F32), _empty(device, _M, dtype=_F32)
    hyperconnection.tf32_hc_prenorm_gemm(a.to(device), b.to(device), d, squares)
    reference = gemm_reference(a.float(), b)
    lost = 2.0**-20 * (a.double().abs() @ b.double().abs().T)  # of splitting fp32 into two xf32
    assert_accurate(d, GemmReference(reference.exact, reference.error + lost))
    exact = a.double().square().sum(1)
    assert ((squares.cpu() - exact).abs() <= (_K / 8 + 4) * _ROUNDING * exact).all(), "sums of squares are wrong"


def _flash_attention(device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 70, 4, 128), (2, 90, 2, 128), (2, 90, 2, 128))
    q, k, v = (torch.randn(shape, generator=generator).bfloat16() for shape in shapes)
    sinks = torch.tensor([0.0, -2.0, 3.0, 1.0])
    for sink, softcap in ((None, 0.0), (sinks, 5.0)):
        out, lse = attention.flash_attention(
            *(tensor.to(device) for tensor in (q, k, v)), causal=True, return_lse=True, softcap=softcap,
            attn_sink=None if sink is None else sink.to(device),
        )  # fmt: skip
        seen = visible_keys(70, 90, True, None)
        reference = attention_reference(q, k, v, seen=seen, attn_sink=sink, softcap=softcap)
        reference.assert_accurate(out.cpu(), lse)


def _paged(tokens: int, heads: int, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One sequence's keys in order, and the paged cache and block table that hold them, in pages of 64."""
    keys = torch.randn(tokens, heads, width, generator=torch.Generator().manual_seed(2)).bfloat16()
    pages = -(-tokens // 64)
    table = torch.arange(pages, dtype=torch.int32).flip(0)[None]
    cache = torch.full((pages, 64, heads, width), torch.nan, dtype=_BF16)
    for token in range(tokens):
        cache[table[0, token // 64], token % 64] = keys[token]
    return keys[None], cache, table.contiguous()


def _slots(table: torch.Tensor) -> torch.Tensor:
    """The slots of the 150 tokens in pages of this block table."""
    tokens = torch.arange(150)
    return table[0][tokens // 64] * 64 + tokens % 64


def _decode(device: str) -> None:
    """Writes keys to pages, also in FP8, and attends to them as decoding and as a prompt."""
    keys, cache, table = _paged(150, 2, 128)
    slots = _slots(table)
    values = keys.flip(1)
    k_cache, v_cache = (torch.full_like(cache, torch.nan).to(device) for _ in range(2))
    kv_cache.append_kv_cache(keys[0].to(device), values[0].to(device), k_cache, v_cache, slots.to(device))
    table, lens = table.to(device), torch.tensor([150], dtype=torch.int32).to(device)
    generator = torch.Generator().manual_seed(3)
    last, prompt = (torch.randn(1, queries, 8, 128, generator=generator).bfloat16() for queries in (2, 70))
    of_last = decode.flash_attention_decode(last.to(device), k_cache, v_cache, block_table=table, context_lens=lens)
    of_prompt = attention.flash_attention(
        prompt.to(device), k_cache, v_cache, causal=True, block_table=table, context_lens=lens
    )
    for q, out in ((last, of_last), (prompt, of_prompt)):
        seen = visible_keys(q.shape[1], 150, True, None)
        attention_reference(q, keys, values, seen=seen, in_parts=q is last).assert_accurate(out.cpu())

    factors = [torch.full(cache.shape[:3], torch.nan) for _ in range(2)]
    caches = [torch.full_like(cache, torch.nan).to(FP8) for _ in range(2)]
    k_cache, v_cache, k_factors, v_factors = (tensor.to(device) for tensor in (*caches, *factors))
    kv_cache.append_kv_cache(
        keys[0].to(device), values[0].to(device), k_cache, v_cache, slots.to(device), k_descale=k_factors,
        v_descale=v_factors,
    )  # fmt: skip
    of_cache: dict[str, Any] = {
        "block_table": table,
        "context_lens": lens,
        "k_descale": k_factors,
        "v_descale": v_factors,
    }
    of_last = decode.flash_attention_decode(last.to(device), k_cache, v_cache, **of_cache)
    of_prompt = attention.flash_attention(prompt.to(device), k_cache, v_cache, causal=True, **of_cache)
    stored = [
        (data.cpu().double() * scales.cpu()[..., None]).flatten(0, 1)[slots][None]
        for data, scales in ((k_cache, k_factors), (v_cache, v_factors))
    ]
    rounded = [values.to(_BF16) for values in stored]  # for prompts
    for q, out, kept in ((last, of_last, stored), (prompt, of_prompt, rounded)):
        seen = visible_keys(q.shape[1], 150, True, None)
        attention_reference(q, *kept, seen=seen, in_parts=q is last).assert_accurate(out.cpu())


def _latent_decode(device: str) -> None:
    """Writes tokens to latent caches, and attends to them."""
    keys, cache, table = _paged(150, 1, 576)
    tokens, slots = keys[0, :, 0].to(device), _slots(table).to(device)
    random = torch.randn(1, 1, 16, 576, generator=torch.Generator().manual_seed(3)).bfloat16()
    lens = torch.tensor([150], dtype=torch.int32)
    seen = visible_keys(1, 150, True, None)
    for dtype, of_queries in ((_BF16, _BF16), (FP8, _BF16), (FP8, FP8)):
        stored, values = torch.full_like(cache, torch.nan).to(dtype).to(device), keys.to(dtype).to(_BF16)
        latent_cache.append_mla_cache(tokens[:, :512], tokens[:, 512:], stored, slots)
        q = random.to(of_queries)
        out = decode.mla_decode(q.to(device), stored, block_table=table.to(device), context_lens=lens.to(device))
        reference = attention_reference(q.to(_BF16), values, values[..., :512], seen=seen, in_parts=True)
        reference.assert_accurate(out.cpu())


def _chosen_tokens(device: str) -> None:
    keys, cache, table = _paged(150, 1, 576)
    q = torch.randn(2, 16, 576, generator=torch.Generator().manual_seed(3)).bfloat16()
    tokens = torch.tensor([[3, 149, 70], [0, 64, 1]])
    slots = torch.cat([table[0][tokens // 64] * 64 + tokens % 64, torch.full((2, 2), -1)], 1).int()
    others = torch.tensor([[2], [0]])  # of a second cache, with pages of 4 tokens
    extra = keys[0, 40:48].reshape(2, 4, 1, 576)
    out, _, _ = sparse_mla.sparse_mla(
        q.to(device), cache.to(device), slots.to(device), extra_kv_cache=extra.to(device),
        extra_indices=others.int().to(device),
    )  # fmt: skip
    for i in range(2):
        chosen = keys[:, torch.cat([tokens[i], 40 + others[i]])]
        seen = torch.ones(1, 4, dtype=torch.bool)
        reference = attention_reference(q[i : i + 1, None], chosen, chosen[..., :512], seen=seen, in_parts=True)
        reference.assert_accurate(out[i : i + 1, None].cpu())


def _logits(device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    q = (torch.randn(20, 32, 128, generator=generator) * 8).to(FP8)
    keys, scales = (torch.randn(200, 128, generator=generator) * 8).to(FP8), torch.rand(200, generator=generator)
    of_heads = torch.randn(20, 32, generator=generator)
    ends = torch.arange(20, dtype=torch.int32) * 10
    on_device = (tensor.to(device) for tensor in (q, keys, scales, of_heads, ends * 0, ends))
    q_, keys_, scales_, of_heads_, begin_, end_ = on_device
    logits = mqa_logits.fp8_mqa_logits(q_, (keys_, scales_), of_heads_, begin_, end_).cpu().double()
    reference = logits_reference(q, keys, scales, of_heads)
    seen = torch.arange(200)[None] < ends[:, None]
    assert (logits[~seen] == -torch.inf).all(), "logits of keys that a query doesn't see are not -inf"
    wrong = seen & ((logits - reference.exact).abs() > reference.error)
    assert not wrong.any(), f"{int(wrong.sum())} logits are wrong"


def _merging(device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(9, 3, 128, generator=generator).to(_BF16) for _ in range(2))
    lses = 5 * torch.randn(2, 3, 9, generator=generator)
    lses[0, 1, 4] = -torch.inf
    states = (tensor.to(device) for tensor in (first, lses[0], second, lses[1]))
    out, lse = (tensor.cpu().double() for tensor in merge_states.merge_attention_states(*states))
    shares = lses.double().softmax(0).transpose(1, 2)[..., None]
    expected = shares[0] * first.double() + shares[1] * second.double()
    assert ((out - expected).abs() <= expected.abs() * 2**-8 + 1e-4).all(), "merged values are wrong"
    assert (lse - lses.double().logsumexp(0)).abs().max() < 1e-5, "merged log-sum-exps are wrong"


def _top_k(device: str) -> None:
    logits = torch.randn(3, 40000, generator=torch.Generator().manual_seed(0)).bfloat16().float()  # with equal ones
    ends = torch.tensor([40000, 9000, 5], dtype=torch.int32)
    for columns in (5000, 40000):  # in one launch, and in slices
        found = top_k.top_k_per_row(logits[:, :columns].to(device), 600, ends=ends.to(device)).cpu()
        for row, end in enumerate(ends.clamp_max(columns).tolist()):
            best = logits[row, :end].sort(descending=True, stable=True).indices[:600].sort().values
            assert torch.equal(found[row, : len(best)], best.int()), f"positions of row {row} are wrong"
            assert (found[row, len(best) :] == -1).all(), f"row {row} has more than there are"


def _same_cast(actual: Pair, expected: Pair) -> None:
    data, scales = (part.cpu() for part in actual)
    assert torch.equal(scales, expected[1]), "scales are wrong"
    assert torch.equal(data.view(torch.uint8), expected[0].view(torch.uint8)), "quantised values are wrong"


def _casts(device: str) -> None:
    x = activations(_M, _K)
    x[3, 7], x[5] = -0.0, 0
    shared = {
        per_token_cast_to_fp8: (1, 128),
        per_block_cast_to_fp8: (128, 128),
        per_channel_cast_to_fp8: (128, 1),
        per_row_cast_to_fp8: (1, _K),
        per_tensor_cast_to_fp8: (_M, _K),
    }
    for dtype in (_BF16, torch.float16, _F32):
        for cast, sizes in shared.items():
            _same_cast(cast(x.to(dtype).to(device)), cast_blocks(x.to(dtype), *sizes))
        for of_fp4 in ((True, 32, True), (True, 32, False), (False, 128, False)):
            _same_cast(per_token_cast_to_fp4(x.to(dtype).to(device), *of_fp4), cast_to_fp4(x.to(dtype), *of_fp4))


def _norm(device: str) -> None:
    x, residual, weight = activations(_M, _K), activations(_M, _K, seed=1), weights(1, _K)[0]
    on_device = x.to(device), weight.to(device)
    data, scales, total = fused_casts.rms_norm_cast_to_fp8(*on_device, residual=residual.to(device))
    normed, sums = rms_norm_reference(x, weight, 1e-6, residual)
    _same_cast((data, scales), cast_blocks(normed, 1, 128))
    assert torch.equal(total.cpu(), sums), "sums with the residual are wrong"


def _activation(device: str) -> None:
    x = activations(_M, 2 * _K)
    for alpha, limit in ((None, None), (1.702, 7.0)):
        activated = fused_casts.silu_and_mul_cast_to_fp8(x.to(device), alpha=alpha, limit=limit)
        data, scales = (part.cpu() for part in activated)
        exact = silu_and_mul_reference(x, alpha, limit)
        expected = cast_blocks(exact.float(), 1, 128)[1]
        assert ((scales - expected).abs() <= expected * 2.0**-20).all(), "scales are wrong"
        spread = scales.double().repeat_interleave(128, 1)[:, :_K]
        allowed = torch.maximum(exact.abs() / 16, spread * 2.0**-11) * (1 + 2.0**-18)
        assert ((data.double() * spread - exact).abs() <= allowed).all(), "quantised values are wrong"


def _routing(device: str) -> None:
    logits = torch.randn(_M, 64, generator=torch.Generator().manual_seed(0)).bfloat16()  # with ties
    bias = torch.randn(64, generator=torch.Generator().manual_seed(1))
    limited: dict[str, Any] = {"scoring": "sigmoid", "num_groups": 8, "top_groups": 3, "scale": 2.5}
    chosen = (
        (routing.route_top_k(logits.to(device), 6), route_top_k_reference(logits, 6)),
        (
            routing.route_top_k(logits.to(device), 6, bias=bias.to(device), **limited),
            route_top_k_reference(logits, 6, bias=bias, **limited),
        ),
    )
    for actual, expected in chosen:
        for part, exact in zip(actual, expected, strict=True):
            assert torch.equal(part.cpu(), exact), "chosen experts or their weights are wrong"


def _experts(device: str) -> None:
    """Some choices have no expert, and one expert no choices."""
    tokens, hidden, intermediate, num_experts = 33, 256, 128, 4
    scaled = [gemm_problem(tokens, rows, k) for rows, k in ((2 * intermediate, hidden), (hidden, intermediate))]
    x, exact_x = scaled[0][0], _exact(scaled[0][0], 1)
    of_experts = [(b[0].expand(num_experts, -1, -1), b[1].expand(num_experts, -1, -1)) for _, b in scaled]
    exact = [_exact(b, 128).expand(num_experts, -1, -1) for _, b in scaled]
    ids = (torch.arange(tokens * 2).view(tokens, 2) % 4 - 1).int()
    factors = torch.linspace(0.25, 1, tokens * 2).view(tokens, 2)
    gate_up, down = (_on(device, weight) for weight in of_experts)
    out = experts.fused_moe(_on(device, x), gate_up, down, factors.to(device), ids.to(device))
    _assert_right(out, fused_moe_reference(exact_x, exact[0], exact[1], factors, ids), 2.0**-4)
    narrow = [per_token_cast_to_fp4(weights(*b[0].shape), use_ue8m0=True, gran_k=32) for _, b in scaled]
    exact = [cast_back_from_fp4(data, scales, 32).double().expand(num_experts, -1, -1) for data, scales in narrow]
    gate_up, down = (
        _on(device, (data.expand(num_experts, -1, -1), scales.expand(num_experts, -1, -1))) for data, scales in narrow
    )
    bias = torch.linspace(-1, 1, num_experts * hidden).view(num_experts, hidden)
    wide = exact_x.bfloat16()
    options: dict[str, Any] = {"alpha": 1.702, "limit": 7.0}
    chosen = factors.to(device), ids.to(device)
    out = experts.fused_moe(wide.to(device), gate_up, down, *chosen, down_bias=bias.to(device), **options)
    reference = fused_moe_reference(wide, exact[0], exact[1], factors, ids, down_bias=bias, **options)
    _assert_right(out, reference, 2.0**-8)


def _assert_right(out: torch.Tensor, reference: tuple[torch.Tensor, ...], rounding: float) -> None:
    """Checks a layer of experts, whose values between the GEMMs are rounded by so much of themselves."""
    expected, magnitudes, of_results = reference
    bound = rounding * magnitudes + (of_results + expected.abs()) / 256
    assert ((out.cpu().double() - expected).abs() <= bound).all(), "tokens' sums over their experts are wrong"


def _exact(pair: Pair, shared_rows: int) -> torch.Tensor:
    """The values of data whose scales are those of so many rows and 128 columns."""
    (rows, columns), scales = pair[0].shape, pair[1].double()
    return pair[0].double() * scales.repeat_interleave(shared_rows, 0)[:rows].repeat_interleave(128, 1)[:, :columns]


def _graph(device: str) -> None:
    """Captures a GEMM once, and replays it on other data."""
    a, b = gemm_problem(_M, _N, _K)
    on_device, weight, d = _on(device, a), _on(device, b), _empty(device, _M, _N)
    gemm.fp8_gemm_nt(on_device, weight, d)
    with hip.runtime().capture() as graph:
        gemm.fp8_gemm_nt(on_device, weight, d)
    other, _ = gemm_problem(_M, _N, _K, seed=5)
    for held, new in zip(on_device, other, strict=True):
        held.copy_(new)
    d.fill_(torch.nan)
    graph.replay()
    assert_accurate(d, gemm_reference(other, b))
