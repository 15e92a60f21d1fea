"""The functions as torch operators: traced without graph breaks, with correct schemas and the same results."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch._subclasses import FakeTensorMode

import deep_gemm_rocm as dg
from deep_gemm_rocm import jit
from deep_gemm_rocm.api.torch_ops import OPERATORS, REFUSES_GRAD
from deep_gemm_rocm.testing import assert_accurate, gemm_reference, int4_weights

FP8 = torch.float8_e4m3fnuz
M, N, K, G = 32, 64, 256, 2


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def per_token(*shape: int, seed: int = 0):
    return dg.per_token_cast_to_fp8(randn(*shape, seed=seed))


def per_block(*shape: int, seed: int = 1):
    return dg.per_block_cast_to_fp8(randn(*shape, seed=seed))


def four_bits(rows=N, seed=0):
    return dg.per_token_cast_to_fp4(randn(rows, K, seed=seed), True, 32, True)


def int4(rows: int):
    return int4_weights(rows, K, group=128)


def stacked(pairs):
    return tuple(torch.stack(parts) for parts in zip(*pairs, strict=True))


def experts():
    return stacked([per_block(N, K, seed=group) for group in range(G)])


def wide_experts():
    return stacked([per_block(4 * N, K, seed=group) for group in range(G)])


def empty(*shape: int, dtype=torch.bfloat16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


LAYOUT = torch.tensor([0] * 128 + [1] * 128, dtype=torch.int32)
COUNTS = torch.tensor([5, 24], dtype=torch.int32)
KS = [128, 256]
SIZES = torch.tensor(KS, dtype=torch.int32)


def gradients(columns: int):
    return dg.per_channel_cast_to_fp8(randn(sum(KS), columns))


def packed(rows: int):
    pairs = [per_token(rows, k, seed=k) for k in KS]
    return torch.cat([data.view(-1) for data, _ in pairs]), torch.cat([scales for _, scales in pairs], dim=1)


def heads(*shape: int):
    """FP8 with a scale for each 128 elements of the last dimension."""
    first, second, columns = shape
    data, scales = per_token(first * second, columns)
    return data.view(shape), scales.view(first, second, -1)


def attended(*, dtype=torch.bfloat16, **options):
    q, k, v = (randn(2, tokens, heads, 64, seed=heads).to(dtype) for tokens, heads in ((5, 4), (9, 2), (9, 2)))
    if dtype == FP8:
        options |= {f"{name}_descale": torch.tensor([0.5]) for name in "qkv"}
    return partial(dg.flash_attention, **options), (q, k, v)


def packed_sequences():
    ends = torch.tensor([0, 3, 9], dtype=torch.int32)
    q, k, v = (randn(9, 2, 64, seed=seed) for seed in range(3))
    return partial(dg.flash_attention, cu_seqlens_q=ends, cu_seqlens_k=ends, window=(4, -1), return_lse=True), (q, k, v)


PAGES = {"block_table": torch.tensor([[2, 0], [1, 0]]).int(), "context_lens": torch.tensor([70, 33]).int()}


def attended_in_pages(dtype=torch.bfloat16, **options):
    caches = (randn(3, 64, 2, 64, seed=seed).to(dtype) for seed in range(2))
    return partial(dg.flash_attention, causal=True, **PAGES, **options), (randn(2, 20, 4, 64), *caches)


def decoded(dtype=torch.bfloat16, **options):
    caches = (randn(3, 64, 2, 64, seed=seed).to(dtype) for seed in range(2))
    return partial(dg.flash_attention_decode, **PAGES, **options), (randn(2, 2, 4, 64), *caches)


def appended_with_factors():
    k_descale, v_descale = (torch.zeros(2, 4, 2) for _ in "kv")

    def append(k, v, k_cache, v_cache, slots, k_descale, v_descale):
        dg.append_kv_cache(k, v, k_cache, v_cache, slots, k_descale=k_descale, v_descale=v_descale)

    tokens, caches = (randn(3, 2, 64, seed=seed) for seed in range(2)), empty(2, 2, 4, 2, 64, dtype=FP8).unbind(1)
    return append, (*tokens, *caches, torch.tensor([5, -1, 0]), k_descale, v_descale)


def decoded_latent(dtype=torch.bfloat16, **options):
    return partial(dg.mla_decode, **PAGES, **options), (randn(2, 1, 16, 576), randn(3, 64, 1, 576).to(dtype))


def logits():
    (q, _), (keys, scales) = per_token(3 * 32, 64), per_token(40, 64, seed=1)
    weights, ends = randn(3, 32).float(), torch.tensor([3, 17, 40], dtype=torch.int32)
    return q.view(3, 32, 64), (keys, scales[:, 0].clone()), weights, torch.zeros_like(ends), ends


def paged_logits():
    q = per_token(2 * 32, 64)[0].view(2, 1, 32, 64)
    values = per_token(3 * 64, 64)[0].view(torch.uint8).view(3, -1)
    cache = torch.cat([values, torch.ones(3, 64).view(torch.uint8).view(3, -1)], 1).view(3, 64, 1, 68)
    lengths, table = PAGES["context_lens"], PAGES["block_table"]
    return q, cache, randn(2, 32).float(), lengths, table, dg.get_paged_mqa_logits_metadata(lengths, 64, 4), 80, True


def selected(dtype=torch.float32, **options):
    return partial(dg.top_k_per_row, k=9, **options), (randn(4, 70).to(dtype),)


# For each operator, a public function that calls it, and its arguments.
CALLS = {
    "fp8_gemm_nt": lambda: (dg.fp8_gemm_nt, (per_token(M, K), per_block(N, K), empty(M, N))),
    "fp8_gemm_nn": lambda: (dg.fp8_gemm_nn, (per_token(M, K), tuple(x.T for x in per_block(N, K)), empty(M, N))),
    "fp8 accumulated": lambda: (
        dg.fp8_gemm_nt,
        (per_token(M, K), per_token(N, K), d := randn(M, N).float(), d.clone(), (1, 1, 128)),
    ),
    "fp8 quantised": lambda: (
        dg.fp8_gemm_nt,
        (per_token(M, K), per_block(N, K), (empty(M, N, dtype=FP8), torch.zeros(M, 1))),
    ),
    "bf16_gemm_nt": lambda: (dg.bf16_gemm_nt, (randn(M, K), randn(N, K), empty(M, N))),
    "bf16_gemm_tn": lambda: (dg.bf16_gemm_tn, (randn(K, M), randn(K, N), empty(M, N, dtype=torch.float32))),
    "fp8 with a scale for each row": lambda: (
        partial(dg.gemm_fp8, out=empty(M, N), recipe=(1, 1, None)),
        tuple((per_token(rows, K)[0], randn(rows, 1).float().abs()) for rows in (M, N)),
    ),
    "f16_gemm_nt": lambda: (dg.f16_gemm_nt, (randn(M, K).half(), randn(N, K).half(), empty(M, N))),
    "fp8_gemm_nt_skip_head_mid": lambda: (
        dg.fp8_gemm_nt_skip_head_mid,
        (per_token(M, K), per_block(N, K), empty(M, 80), (16, 8, 16)),
    ),
    "fp8_gemm_tt with an epilogue": lambda: (
        partial(dg.fp8_gemm_tt, bias=randn(4 * N, seed=4), epilogue="silu_and_mul"),
        (tuple(x.T for x in per_token(M, K)), per_block(4 * N, K), empty(M, 2 * N)),
    ),
    "bf16_gemm_nn with an epilogue": lambda: (
        partial(dg.bf16_gemm_nn, bias=randn(2 * N, seed=4), epilogue="silu_and_mul"),
        (randn(M, K), randn(K, 2 * N), empty(M, N)),
    ),
    "fp8_gemm_nt_skip_head_mid with an epilogue": lambda: (
        partial(dg.fp8_gemm_nt_skip_head_mid, bias=randn(4 * N, seed=4), epilogue="silu_and_mul"),
        (per_token(M, K), per_block(4 * N, K), empty(M, 160), (16, 8, 16)),
    ),
    "m_grouped_fp8_gemm_nn_contiguous with an epilogue": lambda: (
        partial(dg.m_grouped_fp8_gemm_nn_contiguous, bias=randn(G, 4 * N, seed=4), epilogue="silu_and_mul"),
        (per_token(256, K), tuple(x.mT for x in wide_experts()), empty(256, 2 * N), LAYOUT),
    ),
    "m_grouped_fp8_gemm_nt_contiguous": lambda: (
        dg.m_grouped_fp8_gemm_nt_contiguous,
        (per_token(256, K), experts(), empty(256, N), LAYOUT),
    ),
    "m_grouped_bf16_gemm_nt_contiguous": lambda: (
        dg.m_grouped_bf16_gemm_nt_contiguous,
        (randn(256, K), randn(G, N, K), empty(256, N), torch.tensor([100, 256], dtype=torch.int32), "nk", True),
    ),
    "m_grouped_fp8_gemm_nt_masked": lambda: (
        dg.m_grouped_fp8_gemm_nt_masked,
        (heads(G, M, K), experts(), empty(G, M, N), COUNTS, 10),
    ),
    "m_grouped_bf16_gemm_nt_masked": lambda: (
        dg.m_grouped_bf16_gemm_nt_masked,
        (randn(G, M, K), randn(G, N, K), empty(G, M, N), COUNTS, 10),
    ),
    "k_grouped_fp8_gemm_tn_contiguous": lambda: (
        dg.k_grouped_fp8_gemm_tn_contiguous,
        (gradients(M), gradients(N), empty(G, M, N, dtype=torch.float32), KS, SIZES),
    ),
    "k_grouped_fp8_gemm_nt_contiguous": lambda: (
        dg.k_grouped_fp8_gemm_nt_contiguous,
        (packed(M), packed(N), empty(G, M, N, dtype=torch.float32), KS, SIZES),
    ),
    "k_grouped_bf16_gemm_tn_contiguous": lambda: (
        dg.k_grouped_bf16_gemm_tn_contiguous,
        (randn(sum(KS), M), randn(sum(KS), N), empty(G, M, N), KS, SIZES),
    ),
    "einsum": lambda: (dg.einsum, ("bhr,hdr->bhd", randn(8, G, K), randn(G, N, K), empty(8, G, N))),
    "fp8_einsum": lambda: (dg.fp8_einsum, ("bhr,hdr->bhd", heads(8, G, K), experts(), empty(8, G, N))),
    "tf32_hc_prenorm_gemm": lambda: (
        dg.tf32_hc_prenorm_gemm,
        (randn(M, K), randn(24, K).float(), empty(M, 24, dtype=torch.float32), torch.zeros(M)),
    ),
    "flash_attention": lambda: attended(causal=True, return_lse=True),
    "flash_attention without lse": lambda: attended(softmax_scale=0.5),
    "flash_attention into out": lambda: attended(out=empty(2, 5, 4, 64)),
    "flash_attention FP8": lambda: attended(dtype=FP8),
    "flash_attention with sinks and a cap": lambda: attended(attn_sink=torch.ones(4), softcap=5.0),
    "flash_attention in pages": lambda: attended_in_pages(return_lse=True),
    "flash_attention over FP8": lambda: attended_in_pages(FP8, k_descale=torch.ones(2), v_descale=torch.ones(1)),
    "flash_attention over FP8 with factors of tokens": lambda: attended_in_pages(
        FP8, k_descale=torch.ones(3, 64, 2), v_descale=torch.ones(3, 64, 2)
    ),
    "flash_attention packed": packed_sequences,
    "flash_attention_decode": lambda: decoded(return_lse=True),
    "flash_attention_decode with sinks and a cap": lambda: decoded(attn_sink=torch.ones(4), softcap=5.0),
    "flash_attention_decode over FP8": lambda: decoded(FP8, k_descale=torch.ones(2), v_descale=torch.ones(1)),
    "flash_attention_decode into out": lambda: decoded(out=empty(2, 2, 4, 64), num_splits=2, window=(20, -1)),
    "mla_decode": lambda: decoded_latent(return_lse=True),
    "mla_decode split": lambda: decoded_latent(num_splits=2),
    "mla_decode FP8": lambda: decoded_latent(FP8, kv_descale=torch.tensor([0.5]), return_lse=True, lse_base_2=True),
    "fp8_mqa_logits": lambda: (dg.fp8_mqa_logits, logits()),
    "fp8_mqa_logits compressed": lambda: (partial(dg.fp8_mqa_logits, clean_logits=False, max_seqlen_k=3), logits()),
    "fp8_paged_mqa_logits": lambda: (dg.fp8_paged_mqa_logits, paged_logits()),
    "get_paged_mqa_logits_metadata": lambda: (dg.get_paged_mqa_logits_metadata, (torch.tensor([300, 5]).int(), 64, 3)),
    "fp8_paged_mqa_logits bf16": lambda: (
        partial(dg.fp8_paged_mqa_logits, logits_dtype=torch.bfloat16),
        paged_logits(),
    ),
    "sparse_mla": lambda: (
        partial(dg.sparse_mla, topk_length=torch.tensor([1, 3], dtype=torch.int32), attn_sink=torch.zeros(4)),
        (randn(2, 4, 576), randn(2, 16, 1, 576), torch.tensor([[0, 5, -1], [7, 8, 2]], dtype=torch.int32)),
    ),
    "sparse_mla of two caches": lambda: (
        lambda *arguments: dg.sparse_mla(*arguments[:3], extra_kv_cache=arguments[3], extra_indices=arguments[4]),
        (
            randn(2, 4, 576),
            randn(2, 16, 1, 576),
            torch.tensor([[0, 5, -1], [7, 8, 2]], dtype=torch.int32),
            randn(1, 8, 1, 576, seed=1),
            torch.tensor([[3], [0]], dtype=torch.int32),
        ),
    ),
    "merge_attention_states": lambda: (
        partial(dg.merge_attention_states, out=empty(1, 5, 2, 64)),
        (randn(1, 5, 2, 64), randn(1, 2, 5).float(), randn(1, 5, 2, 64), randn(1, 2, 5).float()),
    ),
    "append_kv_cache": lambda: (
        partial(dg.append_kv_cache, k_descale=torch.ones(2)),
        (
            *(randn(3, 2, 64, seed=seed) for seed in range(2)),
            *(empty(2, 4, 2, 64, dtype=FP8) for _ in "kv"),
            torch.tensor([5, -1, 0]),
        ),
    ),
    "append_kv_cache with factors of tokens": appended_with_factors,
    "append_mla_cache": lambda: (
        dg.append_mla_cache,
        (randn(3, 512), randn(3, 64), empty(2, 4, 1, 656, dtype=torch.uint8), torch.tensor([5, -1, 0])),
    ),
    "append_mla_cache FP8": lambda: (
        partial(dg.append_mla_cache, kv_descale=torch.tensor([0.5])),
        (randn(3, 512), randn(3, 64), empty(2, 4, 1, 576, dtype=FP8), torch.tensor([5, -1, 0])),
    ),
    "top_k_per_row": lambda: selected(torch.bfloat16),
    "top_k_per_row of pages": lambda: selected(
        starts=torch.tensor([0, 3, 5, 70]).int(),
        ends=torch.tensor([70, 60, 9, 70]).int(),
        block_table=torch.arange(10).int().view(2, 5),
        page_size=16,
        sequences=torch.tensor([1, 0, 0, 1]).int(),
        out=empty(4, 9, dtype=torch.int32),
    ),
    "per_token_cast_to_fp8": lambda: (dg.per_token_cast_to_fp8, (randn(M, K),)),
    "per_token_cast_to_fp4": lambda: (dg.per_token_cast_to_fp4, (randn(M, K), False)),
    "per_token_cast_to_fp4 packed": lambda: (
        partial(dg.per_token_cast_to_fp4, gran_k=32, use_packed_ue8m0=True),
        (randn(M, K), True),
    ),
    "per_block_cast_to_fp8": lambda: (dg.per_block_cast_to_fp8, (randn(M, K),)),
    "per_channel_cast_to_fp8": lambda: (dg.per_channel_cast_to_fp8, (randn(M, K), True)),
    "per_row_cast_to_fp8": lambda: (dg.per_row_cast_to_fp8, (randn(M, K),)),
    "per_tensor_cast_to_fp8": lambda: (partial(dg.per_tensor_cast_to_fp8, fp8_max=224.0), (randn(M, K),)),
    "rms_norm_cast_to_fp8": lambda: (dg.rms_norm_cast_to_fp8, (randn(M, K), randn(K), 1e-5, randn(M, K, seed=2))),
    "rms_norm_cast_to_fp8 by row": lambda: (partial(dg.rms_norm_cast_to_fp8, gran_k=None), (randn(M, K), randn(K))),
    "silu_and_mul_cast_to_fp8": lambda: (dg.silu_and_mul_cast_to_fp8, (randn(M, K),)),
    "silu_and_mul_cast_to_fp8 of groups": lambda: (
        partial(dg.silu_and_mul_cast_to_fp8, alpha=1.7, limit=7.0),
        (randn(G, M, K), torch.full((G,), M, dtype=torch.int32)),
    ),
    "fused_moe": lambda: (
        dg.fused_moe,
        (
            randn(M, K),
            stacked([per_block(2 * K, K, seed=group) for group in range(G)]),
            stacked([per_block(K, K, seed=group) for group in range(G)]),
            torch.full((M, 2), 0.3),
            torch.arange(2 * M).view(M, 2).int() % 3 - 1,
        ),
    ),
    "fused_moe of bf16": lambda: (
        partial(dg.fused_moe, expert_map=torch.tensor([1, -1, 0]).int(), out=empty(M, K)),
        (
            randn(M, K),
            randn(G, 2 * N, K),
            randn(G, K, N),
            torch.full((M, 1), 0.7),
            torch.arange(M).view(M, 1).int() % 3,
        ),
    ),
    "fused_moe of int4": lambda: (
        dg.fused_moe,
        (
            randn(M, K),
            stacked([int4(2 * K), int4(2 * K)]),
            stacked([int4(K), int4(K)]),
            torch.full((M, 2), 0.3),
            torch.arange(2 * M).view(M, 2).int() % 3 - 1,
        ),
    ),
    "fused_moe of four bits": lambda: (
        partial(dg.fused_moe, alpha=1.702, limit=7.0, gate_up_bias=randn(G, 2 * K), down_bias=randn(G, K)),
        (
            randn(M, K),
            stacked([four_bits(2 * K, seed=group) for group in range(G)]),
            stacked([four_bits(K, seed=group) for group in range(G)]),
            torch.full((M, 2), 0.3),
            torch.arange(2 * M).view(M, 2).int() % 3 - 1,
        ),
    ),
    "route_top_k": lambda: (dg.route_top_k, (randn(M, 64), 4)),
    "route_top_k limited": lambda: (
        partial(dg.route_top_k, scoring="sigmoid", bias=randn(64).float(), num_groups=8, top_groups=2, scale=2.5),
        (randn(M, 64), 4),
    ),
    "fp8_fp4_gemm_nt": lambda: (dg.fp8_fp4_gemm_nt, (per_token(M, K), four_bits(), empty(M, N))),
    "fp4_gemm_nt": lambda: (
        partial(dg.fp4_gemm_nt, recipe_a=(1, 32), recipe_b=(1, 32)),
        (four_bits(M), four_bits(), empty(M, N)),
    ),
    "bf16_fp4_gemm_nt": lambda: (dg.bf16_fp4_gemm_nt, (randn(M, K), four_bits(), empty(M, N))),
    "bf16_int4_gemm_nt": lambda: (dg.bf16_int4_gemm_nt, (randn(M, K), int4(N), empty(M, N))),
    "fp8_int4_gemm_nt": lambda: (dg.fp8_int4_gemm_nt, (per_token(M, K), int4(N), empty(M, N))),
    "m_grouped_fp8_int4_gemm_nt_contiguous": lambda: (
        dg.m_grouped_fp8_int4_gemm_nt_contiguous,
        (per_token(2 * 128, K), stacked([int4(N), int4(N)]), empty(2 * 128, N), LAYOUT),
    ),
    "m_grouped_fp8_int4_gemm_nt_masked": lambda: (
        partial(dg.m_grouped_fp8_int4_gemm_nt_masked, expected_m=8),
        (stacked([per_token(M, K), per_token(M, K)]), stacked([int4(N), int4(N)]), empty(G, M, N), COUNTS),
    ),
    "m_grouped_bf16_int4_gemm_nt_contiguous": lambda: (
        dg.m_grouped_bf16_int4_gemm_nt_contiguous,
        (randn(2 * 128, K), stacked([int4(N), int4(N)]), empty(2 * 128, N), LAYOUT),
    ),
    "m_grouped_bf16_int4_gemm_nt_masked": lambda: (
        partial(dg.m_grouped_bf16_int4_gemm_nt_masked, expected_m=8),
        (randn(G, M, K), stacked([int4(N), int4(N)]), empty(G, M, N), COUNTS),
    ),
    "m_grouped_fp8_fp4_gemm_nt_contiguous": lambda: (
        dg.m_grouped_fp8_fp4_gemm_nt_contiguous,
        (per_token(2 * 128, K), stacked([four_bits(), four_bits()]), empty(2 * 128, N), LAYOUT),
    ),
    "m_grouped_fp8_fp4_gemm_nt_masked": lambda: (
        partial(dg.m_grouped_fp8_fp4_gemm_nt_masked, expected_m=8),
        (stacked([per_token(M, K), per_token(M, K)]), stacked([four_bits(), four_bits()]), empty(G, M, N), COUNTS),
    ),
    "mla_decode of FP8 queries": lambda: (
        partial(dg.mla_decode, **PAGES, q_descale=torch.tensor([0.5])),
        (randn(2, 1, 16, 576).to(FP8), randn(3, 64, 1, 576).to(FP8)),
    ),
    "flash_mla_with_kvcache": lambda: (
        dg.flash_mla_with_kvcache,
        (randn(2, 1, 16, 576), randn(3, 64, 1, 576), PAGES["block_table"], torch.tensor([70, 0]).int(), 512),
    ),
    "flash_mla_with_kvcache of strided queries": lambda: (
        partial(dg.flash_mla_with_kvcache, indices=torch.arange(60).int().view(2, 3, 10)[:, :2]),
        (randn(2, 2, 20, 576)[:, :, :16], randn(3, 64, 1, 576), None, None, 512),
    ),
}


def tensors(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value for tensor in tensors(part)] if isinstance(value, tuple) else []


def same(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.dtype == second.dtype and torch.equal(first.float(), second.float())


class Recorder(torch.fx.Interpreter):
    """Runs a traced graph and records its calls of our operators."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        super().__init__(graph)
        self.calls = []

    def call_function(self, target, args, kwargs):
        if "deep_gemm_rocm" in str(target):
            self.calls.append((target, args))
        return super().call_function(target, args, kwargs)


def traced(function, *arguments):
    """The operators that the function calls when it is traced as a whole and run."""
    calls = []

    def backend(graph, _):
        def run(*inputs):
            recorder = Recorder(graph)
            result = recorder.run(*inputs)
            calls.extend(recorder.calls)
            return result

        return run

    return torch.compile(function, fullgraph=True, backend=backend)(*arguments), calls


@pytest.fixture
def comparable_fp8(monkeypatch):
    """Lets opcheck compare FP8 tensors, to see which were written. Torch doesn't implement that on the CPU."""
    allclose = torch.allclose
    monkeypatch.setattr(torch, "allclose", lambda a, b, **how: allclose(a.float(), b.float(), **how))


QUICK = {*list(CALLS)[3::18], "fp8 with a scale for each row"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CALLS]
)
def test_a_traced_call_is_one_operator_that_keeps_what_it_declares(name, comparable_fp8):
    function, arguments = CALLS[name]()
    _, again = CALLS[name]()
    expected = function(*arguments)
    result, ((operator, own_arguments),) = traced(function, *again)
    assert all(same(*pair) for pair in zip(tensors(arguments), tensors(again), strict=True))
    assert all(same(*pair) for pair in zip(tensors(expected), tensors(result), strict=True))
    torch.library.opcheck(getattr(operator, "default", operator), own_arguments)


def test_every_operator_is_tried():
    assert OPERATORS.keys() <= CALLS.keys()


class Projection(torch.nn.Module):
    """Quantises, multiplies and continues with torch's own operators."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scales = per_block(N, K)
        self.down = torch.nn.Parameter(randn(32, N), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = dg.gemm_fp8(dg.per_token_cast_to_fp8(x), (self.weight, self.scales))
        y = torch.empty(x.shape[0], 32, dtype=torch.bfloat16)
        dg.bf16_gemm_nt(torch.nn.functional.silu(hidden), self.down, y)
        return y * 2


class Attention(torch.nn.Module):
    """Attention of a prompt, and of its last token to a paged cache."""

    def __init__(self) -> None:
        super().__init__()
        _, (_, self.keys, self.values) = decoded()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = x.view(2, -1, 3, 4, 64).unbind(2)
        out, lse = dg.flash_attention(q, k[:, :, :2], v[:, :, :2], causal=True, return_lse=True)
        last = dg.flash_attention_decode(q[:, -1:].contiguous(), self.keys, self.values, **PAGES)
        return out[:, -1:] * lse[:, :, -1, None].bfloat16().exp().clamp_max(2)[:, None] + last


class Indexer(torch.nn.Module):
    """The best logits of keys in a cache, and of the input's own keys."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.cache, self.weights, self.lengths, self.table, *_ = paged_logits()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        schedule = dg.get_paged_mqa_logits_metadata(self.lengths, 64, 4)
        cached = dg.fp8_paged_mqa_logits(
            self.q, self.cache, self.weights, self.lengths, self.table, schedule, 80, clean_logits=True
        )
        keys, scales = dg.per_token_cast_to_fp8(x[:, :64])
        starts, ends = torch.zeros(2, dtype=torch.int32), torch.full((2,), len(x), dtype=torch.int32)
        own = dg.fp8_mqa_logits(self.q[:, 0], (keys, scales[:, 0].contiguous()), self.weights, starts, ends)
        return torch.cat([cached, own], 1).topk(5).values


@pytest.mark.parametrize("module", [Projection, Attention, Indexer])
@pytest.mark.parametrize(
    "backend", ["aot_eager", *(pytest.param(name, marks=pytest.mark.slow) for name in ("eager", "inductor"))]
)
def test_a_module_compiles_whole(module, backend):
    module = module()
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    for m in (M, M + 6, 2):
        x = randn(m, 3 * 256 if isinstance(module, Attention) else K, seed=m)
        expected = module(x)
        torch.testing.assert_close(compiled(x), expected, rtol=2**-7, atol=1e-2)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_what_is_added_may_be_the_output_itself(backend):
    def gradient(a, b, d):
        dg.wgrad_gemm_fp8_fp8_fp32_nt(a, b, d)
        return d + 1

    a, b, before = per_token(M, K), per_token(N, K, seed=1), randn(M, N).float()
    d = before.clone()
    result = torch.compile(gradient, fullgraph=True, backend=backend)(a, b, d)
    assert_accurate(d, gemm_reference(a, b, c=before, recipe=(1, 1, 128)))
    assert torch.equal(result, d + 1)


@pytest.mark.parametrize("function", [dg.per_token_cast_to_fp8, lambda x: dg.bf16_gemm_nt(x, x, x.new_empty(40, 40))])
def test_tensors_without_values_are_refused(function):
    """Or a kernel would get their addresses, which are 0."""
    with FakeTensorMode(), pytest.raises(TypeError, match="must have values, got a FakeTensor"):
        function(torch.zeros(40, 256, dtype=torch.bfloat16))


def test_an_exported_program_calls_the_operator():
    program = torch.export.export(Projection(), (randn(M, K),))
    assert "deep_gemm_rocm.fp8_gemm_nt" in program.graph_module.code
    x = randn(M, K, seed=3)
    assert torch.equal(program.module()(x), Projection()(x))


def test_errors_come_when_the_program_runs():
    compiled = torch.compile(dg.fp8_gemm_nt, fullgraph=True, backend="eager")
    d = torch.full((M, N + 1), 7.0, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="d must have shape"):
        compiled(per_token(M, K), per_block(N, K), d)
    assert (d == 7).all()
    a, b, d = per_token(M, K), per_block(N, K), empty(M, N)
    compiled(a, b, d)
    assert_accurate(d, gemm_reference(a, b))


@pytest.mark.skipif(not REFUSES_GRAD, reason="this torch doesn't tell which arguments require grad")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_gradients_are_refused_while_the_program_is_traced(backend):
    """torch would leave out the operator's part of them."""
    q, b = randn(1, 8, 4, 64), randn(N, K)

    def attention(x):
        return x.sum() + dg.flash_attention(x.view(q.shape), q, x.view(q.shape)).sum()

    def gemm(x):
        dg.bf16_gemm_nt(x, b, d := empty(8, N))
        return x.sum() + d.sum()

    calls = {"a must not require grad": gemm, "q and v must not require grad": attention}
    for message, call in calls.items():
        compiled = torch.compile(call, fullgraph=True, backend=backend)
        with pytest.raises(Exception, match=message):
            compiled(randn(8, 256).requires_grad_())
        with torch.no_grad():
            compiled(randn(8, 256).requires_grad_())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("cast", [dg.per_token_cast_to_fp8, dg.per_block_cast_to_fp8])
def test_results_of_casts_require_no_grad(cast, backend):
    def values(x):
        data, scales = cast(x)
        return x.sum() + data.float().sum() + scales.sum()

    x = randn(8, 256).requires_grad_()
    torch.compile(values, fullgraph=True, backend=backend)(x).backward()
    assert (x.grad == 1).all()


@pytest.mark.parametrize("is_again", [False, True])
def test_other_threads_call_while_one_compiles(is_again):
    """torch says in all threads that it is compiling, while one does."""
    x = randn(M, K)
    expected = dg.per_token_cast_to_fp8(x)
    if not is_again:
        jit.forget()

    def backend(graph, _):
        with ThreadPoolExecutor(1) as other:
            own = other.submit(dg.per_token_cast_to_fp8, x).result()
            by_operator = other.submit(torch.ops.deep_gemm_rocm.per_token_cast_to_fp8, x, False, 240.0).result()
            assert all(same(*pair) for pair in zip(own + tuple(by_operator), expected * 2, strict=True))
            with pytest.raises(ValueError, match="it was resized or freed"):
                other.submit(dg.per_row_cast_to_fp8, freed).result()
        return graph

    freed = randn(M, K)
    freed.untyped_storage().resize_(0)
    assert torch.compile(lambda y: y + 1, backend=backend)(torch.ones(3)).sum() == 6


SCHEMAS = {
    "fp8_gemm_nt": "(Tensor a, Tensor sfa, Tensor b, Tensor sfb, Tensor(d!) d, Tensor(sfd!)? sfd, Tensor? c, "
    "SymInt[] recipe, Tensor? bias, str? epilogue) -> ()",
    "tf32_hc_prenorm_gemm": "(Tensor a, Tensor b, Tensor(d!) d, Tensor(sqr_sum!) sqr_sum, SymInt? num_splits) -> ()",
    "mla_decode": "(Tensor q, Tensor kv_cache, SymInt d_v, Tensor block_table, Tensor context_lens, "
    "float? softmax_scale, Tensor? q_descale, Tensor? kv_descale, ScalarType fp8_dtype, Tensor(out!) out, "
    "bool return_lse, bool lse_base_2, SymInt? num_splits) -> Tensor",
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_those_of_the_public_functions(name):
    assert str(OPERATORS[name]._opoverload._schema) == f"deep_gemm_rocm::{name}{SCHEMAS[name]}"
