"""Warm-up compiles exactly the kernels that calls need."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest
import torch
from typer.testing import CliRunner

import deep_gemm_rocm as dg
from deep_gemm_rocm import jit
from deep_gemm_rocm.__main__ import app
from deep_gemm_rocm.api import warmup
from deep_gemm_rocm.api.warmup import Workload
from deep_gemm_rocm.jit import folders
from deep_gemm_rocm.launch import planning, repeated
from deep_gemm_rocm.problems.experts import MAX_TOKENS, MAX_TOP_K
from deep_gemm_rocm.testing import assert_accurate, gemm_problem, gemm_reference

FP8 = torch.float8_e4m3fnuz


@pytest.fixture
def cold(tmp_path, monkeypatch):
    """An empty cache, and a session without kernels."""
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(tmp_path / "cache"))
    jit.forget()
    yield tmp_path / "cache"
    jit.forget()


@pytest.fixture
def no_compiler(monkeypatch):
    def unexpected(*_):
        raise AssertionError("nothing may be compiled now")

    monkeypatch.setattr("deep_gemm_rocm.jit.toolchain.Ziglang.build", unexpected)
    monkeypatch.setattr("deep_gemm_rocm.jit.toolchain.Hipcc.build", unexpected)


def kernel_names(workloads: list[Workload]) -> list[str]:
    return [request.values["kernel_name"] for request in warmup.plan(workloads)]


def test_afterwards_calls_compile_nothing(cold, monkeypatch):
    n, k = 96, 256
    count = dg.warmup_kernels("fp8_gemm_nt", [1, 16, 100], n, k)
    assert count == len(jit.loaded()) == len(list(cold.glob("kernels/*"))) > 0
    monkeypatch.setattr(jit.kernels, "_make", lambda *_: pytest.fail("a kernel was missing"))
    for m in (1, 16, 100):
        a, b = gemm_problem(m, n, k)
        assert_accurate(dg.gemm_fp8(a, b), gemm_reference(a, b))
    assert dg.warmup_kernels("fp8_gemm_nt", [100, 16], n, k) <= count


def real_call(name: str, m: int, n: int, k: int, groups: int) -> None:
    """A real call with tensors of this device."""

    def fp8(*shape, scaled_rows=1):
        *group, rows, columns = shape
        scales = torch.ones(*group, -(-rows // scaled_rows), -(-columns // 128))
        return torch.zeros(shape, dtype=torch.uint8).view(FP8), scales

    d = torch.zeros(m, n, dtype=torch.bfloat16)
    layout, sizes = torch.zeros(m, dtype=torch.int32), torch.full((groups,), k, dtype=torch.int32)
    match name:
        case "fp8_gemm_nt":
            dg.fp8_gemm_nt(fp8(m, k), fp8(n, k, scaled_rows=128), d)
        case "bf16_gemm_nn":
            dg.bf16_gemm_nn(torch.zeros(m, k).bfloat16(), torch.zeros(k, n).bfloat16(), d)
        case "m_grouped_fp8_gemm_nt_contiguous":
            dg.m_grouped_fp8_gemm_nt_contiguous(fp8(m, k), fp8(groups, n, k, scaled_rows=128), d, m_indices=layout)
        case "m_grouped_fp8_gemm_nt_masked":
            b, counts = fp8(groups, n, k, scaled_rows=128), torch.zeros(groups, dtype=torch.int32)
            dg.m_grouped_fp8_gemm_nt_masked(fp8(groups, m, k), b, d.expand(groups, m, n).clone(), counts, m)
        case "k_grouped_bf16_gemm_tn_contiguous":
            a, b = torch.zeros(groups * k, m).bfloat16(), torch.zeros(groups * k, n).bfloat16()
            d = torch.zeros(groups, m, n, dtype=torch.bfloat16)
            dg.k_grouped_bf16_gemm_tn_contiguous(a, b, d, [k] * groups, sizes)


def heads(*shape: int) -> torch.Tensor:
    return torch.zeros(shape).bfloat16()


PAGES = {"block_table": torch.zeros(2, 3).int(), "context_lens": torch.tensor([40, 3]).int()}
INDEXED = (torch.zeros(64, 128, dtype=torch.uint8).view(FP8), torch.ones(64))
DESCALES = {f"{name}_descale": torch.ones(1) for name in "qkv"}


def over_fp8(function, q: torch.Tensor, factors: tuple[int, ...], **options):
    """A call over caches in FP8, whose factors have this shape."""
    k, v = (heads(4, 16, 2, q.shape[-1]).to(FP8) for _ in "kv")
    return function(q, k, v, **PAGES, k_descale=torch.ones(factors), v_descale=torch.ones(factors), **options)


ATTENTION_CALLS = {
    "flash_attention": (
        Workload("flash_attention", [200], 128, 128),
        lambda: dg.flash_attention(heads(1, 200, 8, 128), heads(1, 300, 2, 128), heads(1, 300, 2, 128), causal=True),
    ),
    "flash_attention in pages": (
        Workload("flash_attention", [200], 128, 128),
        lambda: dg.flash_attention(heads(2, 200, 8, 128), heads(4, 16, 2, 128), heads(4, 16, 2, 128), **PAGES),
    ),
    "flash_attention over FP8 with factors of heads": (
        Workload("flash_attention", [200], 64, 64, arguments={"k_descale": "heads"}),
        lambda: over_fp8(dg.flash_attention, heads(2, 200, 8, 64), factors=(2,)),
    ),
    "flash_attention over FP8 with factors of tokens": (
        Workload("flash_attention", [200], 64, 64, arguments={"k_descale": "tokens"}),
        lambda: over_fp8(dg.flash_attention, heads(2, 200, 8, 64), factors=(4, 16, 2)),
    ),
    "flash_attention over FP8 without pages": (
        Workload("flash_attention", [200], 64, 64, arguments={"k_descale": "tokens"}),
        lambda: dg.flash_attention(
            heads(2, 200, 8, 64), heads(2, 300, 2, 64).to(FP8), heads(2, 300, 2, 64).to(FP8),
            k_descale=torch.ones(2, 300, 2), v_descale=torch.ones(2, 300, 2),
        ),
    ),
    "flash_attention of few queries": (
        Workload("flash_attention", [5], 128, 192, d_dtype=torch.float16),
        lambda: dg.flash_attention(heads(2, 5, 4, 192).half(), heads(2, 9, 4, 192).half(), heads(2, 9, 4, 128).half()),
    ),
    "flash_attention in FP8": (
        Workload("flash_attention", [200], 64, 64, dtype=FP8),
        lambda: dg.flash_attention(*(heads(1, 200, 2, 64).to(FP8) for _ in "qkv"), **DESCALES),
    ),
    "flash_attention_decode": (
        Workload("flash_attention_decode", [2], 128, 128),
        lambda: dg.flash_attention_decode(heads(2, 1, 8, 128), heads(4, 16, 2, 128), heads(4, 16, 2, 128), **PAGES),
    ),
    "flash_attention_decode over FP8": (
        Workload("flash_attention_decode", [2], 128, 128, arguments={"k_descale": "tokens", "softcap": 5.0}),
        lambda: over_fp8(dg.flash_attention_decode, heads(2, 1, 8, 128), factors=(4, 16, 2), softcap=7.0),
    ),
    "flash_attention_decode over FP8 with factors of heads": (
        Workload("flash_attention_decode", [2], 64, 64, arguments={"k_descale": "heads"}),
        lambda: over_fp8(dg.flash_attention_decode, heads(2, 1, 8, 64), factors=(2,)),
    ),
    "flash_attention with a soft cap": (
        Workload("flash_attention", [200], 128, 128, arguments={"softcap": 1.0}),
        lambda: dg.flash_attention(*(heads(1, 200, 2, 128) for _ in "qkv"), softcap=30.0),
    ),
    "flash_attention in pages of 48 tokens": (
        Workload("flash_attention", [20], 64, 64, arguments={"page_size": 48}),
        lambda: dg.flash_attention(
            heads(1, 20, 1, 64), *(heads(2, 48, 1, 64) for _ in "kv"),
            block_table=torch.arange(2).int().view(1, 2), context_lens=torch.tensor([50]).int(),
        ),
    ),
    "flash_attention_decode in pages of 48 tokens": (
        Workload("flash_attention_decode", [1], 64, 64, arguments={"page_size": 48}),
        lambda: dg.flash_attention_decode(
            heads(1, 1, 1, 64), *(heads(2, 48, 1, 64) for _ in "kv"),
            block_table=torch.arange(2).int().view(1, 2), context_lens=torch.tensor([50]).int(),
        ),
    ),
    "mla_decode": (
        Workload("mla_decode", [2], 512, 576),
        lambda: dg.mla_decode(heads(2, 2, 16, 576), heads(4, 64, 1, 576), **PAGES),
    ),
    "mla_decode over OCP bytes": (
        Workload("mla_decode", [2], 512, 656, arguments={"fp8_dtype": "float8_e4m3fn"}),
        lambda: dg.mla_decode(
            heads(2, 2, 16, 576), torch.zeros(4, 64, 1, 656).byte(), **PAGES, fp8_dtype=torch.float8_e4m3fn
        ),
    ),
    "mla_decode in pages of a token": (
        Workload("mla_decode", [2], 512, 576, arguments={"page_size": 1}),
        lambda: dg.mla_decode(
            heads(2, 2, 16, 576), heads(9, 1, 1, 576),
            block_table=torch.arange(8).int().view(2, 4), context_lens=torch.tensor([4, 3]).int(),
        ),
    ),
    "mla_decode in pages of three tokens": (
        Workload("mla_decode", [2], 512, 576, arguments={"page_size": 3}),
        lambda: dg.mla_decode(
            heads(2, 2, 16, 576), heads(4, 3, 1, 576),
            block_table=torch.arange(4).int().view(2, 2), context_lens=torch.tensor([4, 3]).int(),
        ),
    ),
    "top_k_per_row in pages of 48 tokens": (
        Workload("top_k_per_row", [2], 3, 96, arguments={"page_size": 48}),
        lambda: dg.top_k_per_row(
            torch.zeros(2, 96), 3, block_table=torch.arange(4).int().view(2, 2), page_size=48
        ),
    ),
    "sparse_mla over OCP bytes": (
        Workload("sparse_mla", [2], 512, 656, arguments={"fp8_dtype": "float8_e4m3fn"}),
        lambda: dg.sparse_mla(
            heads(2, 16, 576), torch.zeros(4, 64, 1, 656).byte(), torch.zeros(2, 3).int(),
            fp8_dtype=torch.float8_e4m3fn,
        ),
    ),
    "mla_decode of FP8 queries": (
        Workload("mla_decode", [2], 512, 656, arguments={"q": True}),
        lambda: dg.mla_decode(heads(2, 2, 16, 576).to(FP8), torch.zeros(4, 64, 656, dtype=torch.uint8), **PAGES),
    ),
    "sparse_mla of two caches": (
        Workload("sparse_mla", [2], 512, 584, arguments={"extra_kv_cache": True}),
        lambda: dg.sparse_mla(
            heads(2, 16, 512), torch.zeros(4, 64, 1, 584).byte(), torch.zeros(2, 3).int(),
            extra_kv_cache=torch.zeros(4, 2, 1, 584).byte(), extra_indices=torch.zeros(2, 5).int(),
        ),
    ),
    "fp8_mqa_logits": (
        Workload("fp8_mqa_logits", [3], 64, 128),
        lambda: dg.fp8_mqa_logits(
            heads(3, 64, 128).to(FP8), INDEXED, torch.ones(3, 64), torch.zeros(3).int(), torch.ones(3).int()
        ),
    ),
    "fp8_paged_mqa_logits": (
        Workload("fp8_paged_mqa_logits", [2], 32, 128),
        lambda: dg.fp8_paged_mqa_logits(
            heads(2, 1, 32, 128).to(FP8), torch.zeros(4, 64, 1, 132, dtype=torch.uint8), torch.ones(2, 32),
            PAGES["context_lens"], PAGES["block_table"],
            dg.get_paged_mqa_logits_metadata(PAGES["context_lens"], 64, 304), 100,
        ),
    ),
    "fp8_paged_mqa_logits of shuffled keys": (
        Workload("fp8_paged_mqa_logits", [2], 32, 128, arguments={"shuffled_keys": True}),
        lambda: dg.fp8_paged_mqa_logits(
            heads(2, 1, 32, 128).to(FP8), torch.zeros(4, 64, 1, 132, dtype=torch.uint8), torch.ones(2, 32),
            PAGES["context_lens"], PAGES["block_table"],
            dg.get_paged_mqa_logits_metadata(PAGES["context_lens"], 64, 304), 100, shuffled_keys=True,
        ),
    ),
    "merge_attention_states": (
        Workload("merge_attention_states", [3], 64, 64),
        lambda: dg.merge_attention_states(heads(3, 2, 64), torch.zeros(2, 3), heads(3, 2, 64), torch.zeros(2, 3)),
    ),
    "append_kv_cache": (
        Workload("append_kv_cache", [2], 64, 64, dtype=FP8),
        lambda: dg.append_kv_cache(
            heads(2, 1, 64), heads(2, 1, 64), heads(4, 16, 1, 64).to(FP8), heads(4, 16, 1, 64).to(FP8),
            torch.zeros(2).int(),
        ),
    ),
    "append_kv_cache with factors of tokens": (
        Workload("append_kv_cache", [2], 64, 64, dtype=FP8, arguments={"k_descale": "tokens"}),
        lambda: dg.append_kv_cache(
            heads(2, 1, 64), heads(2, 1, 64), heads(4, 16, 1, 64).to(FP8), heads(4, 16, 1, 64).to(FP8),
            torch.zeros(2).int(), k_descale=torch.ones(4, 16, 1), v_descale=torch.ones(4, 16, 1),
        ),
    ),
    "append_mla_cache": (
        Workload("append_mla_cache", [2], 512, 656),
        lambda: dg.append_mla_cache(
            heads(2, 512), heads(2, 64), torch.zeros(4, 16, 1, 656, dtype=torch.uint8), torch.zeros(2).int()
        ),
    ),
    "append_mla_cache in FP8": (
        Workload("append_mla_cache", [2], 512, 576, dtype=FP8),
        lambda: dg.append_mla_cache(heads(2, 512), heads(2, 64), heads(4, 16, 576).to(FP8), torch.zeros(2).int()),
    ),
    "append_mla_cache of 512 elements": (
        Workload("append_mla_cache", [2], 448, 512),
        lambda: dg.append_mla_cache(heads(2, 448), heads(2, 64), heads(4, 16, 512), torch.zeros(2).int()),
    ),
    "top_k_per_row": (
        Workload("top_k_per_row", [4], 9, 70, dtype=torch.bfloat16),
        lambda: dg.top_k_per_row(torch.zeros(4, 70).bfloat16(), 9),
    ),
    "per_token_cast_to_fp8": (
        Workload("per_token_cast_to_fp8", [7], 1, 256), lambda: dg.per_token_cast_to_fp8(heads(100, 1024)),
    ),
    "per_token_cast_to_fp4": (
        Workload("per_token_cast_to_fp4", [7], 1, 256, arguments={"gran_k": 32, "use_packed_ue8m0": True}),
        lambda: dg.per_token_cast_to_fp4(heads(100, 1024), True, 32, use_packed_ue8m0=True),
    ),
    "per_row_cast_to_fp8": (
        Workload("per_row_cast_to_fp8", [7], 1, 2048, dtype=torch.float32),
        lambda: dg.per_row_cast_to_fp8(torch.zeros(100, 2048)),
    ),
    "silu_and_mul_cast_to_fp8": (
        Workload("silu_and_mul_cast_to_fp8", [7], 1, 256, 3),
        lambda: dg.silu_and_mul_cast_to_fp8(heads(2, 100, 512), torch.zeros(2).int()),
    ),
    "route_top_k": (Workload("route_top_k", [7], 4, 64), lambda: dg.route_top_k(heads(100, 64), 8)),
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch):
    """Returns a function that lists the kernels that a call requests."""

    def requests(call):
        found = []
        with monkeypatch.context() as patched:
            patched.setattr(repeated, "ready_kernels", lambda launches: found.extend(one.kernel for one in launches))
            call()
        return found

    return requests


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("fp8_gemm_nt", 1),
        ("bf16_gemm_nn", 1),
        ("m_grouped_fp8_gemm_nt_contiguous", 3),
        ("m_grouped_fp8_gemm_nt_masked", 3),
        ("k_grouped_bf16_gemm_tn_contiguous", 3),
    ],
)
@pytest.mark.parametrize(("m", "k"), [(64, 128), (136, 144)])
def test_the_plan_is_what_a_call_asks_for(asked, name, groups, m, k):
    wanted = asked(lambda: real_call(name, m, 192, k, groups))
    assert warmup.plan([Workload(name, [m], 192, k, groups)]) == wanted


def test_the_plan_of_shuffled_weights(asked):
    def weight(*rows_and_k):
        *rows, k = rows_and_k
        data, exponents = torch.zeros(*rows, k // 2, dtype=torch.int8), torch.full((*rows, k // 32), 127).byte()
        return dg.shuffle_weight(data, exponents)

    a, d = (torch.zeros(64, 256, dtype=torch.uint8).view(FP8), torch.ones(64, 2)), torch.zeros(64, 192).bfloat16()
    wanted = asked(lambda: dg.fp8_fp4_gemm_nt(a, weight(192, 256), d))
    assert wanted[0].values["b_type"] == "shuffled_e2m1"
    assert warmup.plan([Workload("fp8_fp4_gemm_nt", [64], 192, 256, arguments={"shuffled": True})]) == wanted
    x, choices = torch.zeros(4, 256).bfloat16(), torch.zeros(4, 2)
    wanted = asked(lambda: dg.fused_moe(x, weight(8, 128, 256), weight(8, 256, 64), choices, choices.int()))
    assert sum(request.values.get("b_type") == "shuffled_e2m1" for request in wanted) == 2
    plan = warmup.plan([Workload("fused_moe", [1], 64, 256, 8, dtype=torch.int64)])
    assert all(request in plan for request in wanted)


def test_the_plan_of_shuffled_int4_weights(asked):
    def weight(*rows_and_k):
        *rows, k = rows_and_k
        codes, scales = torch.zeros(*rows, k // 8).int(), torch.zeros(*rows, k // 32).bfloat16()
        return dg.shuffle_weight(codes, scales)

    def quantised(rows):
        return torch.zeros(rows, 256, dtype=torch.uint8).view(FP8), torch.ones(rows, 2)

    wanted = asked(lambda: dg.fp8_int4_gemm_nt(quantised(64), weight(192, 256), torch.zeros(64, 192).bfloat16()))
    assert wanted[0].values["b_type"] == "shuffled_int4"
    assert warmup.plan([Workload("fp8_int4_gemm_nt", [64], 192, 256, arguments={"shuffled": True})]) == wanted
    of_128 = dg.shuffle_weight(torch.zeros(192, 32).int(), torch.ones(192, 2))
    wanted = asked(lambda: dg.fp8_int4_gemm_nt(quantised(64), of_128, torch.zeros(64, 192).bfloat16()))
    arguments = {"shuffled": True, "group_k": 128}
    assert warmup.plan([Workload("fp8_int4_gemm_nt", [64], 192, 256, arguments=arguments)]) == wanted
    choices = torch.zeros(4, 2)
    layer = weight(8, 256, 256), weight(8, 256, 128)
    wanted = asked(lambda: dg.fused_moe(quantised(4), *layer, choices, choices.int()))
    assert sum(request.values.get("b_type") == "shuffled_int4" for request in wanted) == 2
    plan = warmup.plan([Workload("fused_moe", [1], 128, 256, 8, dtype=torch.int16, arguments={"x": True})])
    assert all(request in plan for request in wanted)
    with pytest.raises(ValueError, match=r"must have 'x' as true for torch\.int16 weights"):
        warmup.plan([Workload("fused_moe", [1], 128, 256, 8, dtype=torch.int16)])


@pytest.mark.parametrize("packed", [False, True])
def test_the_plan_of_activations_with_scales_of_32_values(asked, packed):
    """They have a kernel that widens them. Exponents come one by one, or four in a word."""

    def data_and_scales(data, *rows):
        exponents = torch.full((*rows, 8), 127, dtype=torch.uint8)
        return data, exponents.view(torch.int32) if packed else exponents

    def activations(*rows):
        return data_and_scales(torch.zeros(*rows, 256, dtype=torch.uint8).view(FP8), *rows)

    def weight(*rows):
        return data_and_scales(torch.zeros(*rows, 128, dtype=torch.int8), *rows)

    def of_a(name, groups, recipe=(1, 32)):
        return warmup.plan([Workload(name, [64], 192, 256, groups, arguments={"recipe_a": recipe})])

    wanted = asked(lambda: dg.fp8_fp4_gemm_nt(activations(64), weight(192), torch.zeros(64, 192).bfloat16()))
    assert of_a("fp8_fp4_gemm_nt", 1) == of_a("fp8_fp4_gemm_nt", 1, [1, 32]) == wanted
    assert len(wanted) == 2
    d, layout = torch.zeros(64, 192).bfloat16(), torch.zeros(64, dtype=torch.int32)
    wanted = asked(lambda: dg.m_grouped_fp8_fp4_gemm_nt_contiguous(activations(64), weight(3, 192), d, layout))
    assert of_a("m_grouped_fp8_fp4_gemm_nt_contiguous", 3) == wanted
    d, counts = torch.zeros(3, 64, 192).bfloat16(), torch.zeros(3, dtype=torch.int32)
    wanted = asked(lambda: dg.m_grouped_fp8_fp4_gemm_nt_masked(activations(3, 64), weight(3, 192), d, counts, 64))
    assert of_a("m_grouped_fp8_fp4_gemm_nt_masked", 3) == wanted
    usual = warmup.plan([Workload("fp8_fp4_gemm_nt", [64], 192, 256)])
    assert of_a("fp8_fp4_gemm_nt", 1, (1, 128)) == usual != of_a("fp8_fp4_gemm_nt", 1)


def test_more_rows_than_a_layer_of_experts_takes():
    """65536 tokens of 16 experts each are 4096 rows of each of 256 experts."""
    assert warmup.plan([Workload("fused_moe", [4096], 512, 1024, 256)])
    with pytest.raises(ValueError, match="m_list must have numbers up to 4096 for 256 experts, got 4097"):
        warmup.plan([Workload("fused_moe", [1, 4097], 512, 1024, 256)])
    assert warmup.plan([Workload("fused_moe", range(1, 32769), 512, 1024, 256)])


def test_the_plan_of_masked_groups_with_counters(asked):
    """SGLang's overlap has kernels of its own."""
    a = torch.zeros(3, 64, 256, dtype=torch.uint8).view(FP8), torch.ones(3, 64, 2)
    b = torch.zeros(3, 192, 256, dtype=torch.uint8).view(FP8), torch.ones(3, 2, 2)
    d, counts = torch.zeros(3, 64, 192).bfloat16(), torch.zeros(3, dtype=torch.int32)
    overlap = {"enable_overlap": True, "max_block_n": 64}
    wanted = asked(lambda: dg.fp8_m_grouped_gemm_nt_masked(a, b, d, counts, 64, **overlap, signal=counts.clone()))
    assert wanted[0].values["signals"]
    assert warmup.plan([Workload("fp8_m_grouped_gemm_nt_masked", [64], 192, 256, 3, arguments=overlap)]) == wanted


@pytest.mark.parametrize("name", ATTENTION_CALLS)
def test_the_plan_of_attention_has_what_a_call_asks_for(asked, name):
    workload, call = ATTENTION_CALLS[name]
    plan = warmup.plan([workload])
    assert all(request in plan for request in asked(call))
    assert name.startswith(("flash_attention", "mla_decode", "sparse_mla", "fp8_paged")) or len(plan) == 1


@pytest.mark.parametrize("by_columns", [False, True])
def test_the_plan_of_a_gemm_has_kernels_for_both_layouts_of_scales(asked, by_columns):
    m, n, k = 4096, 4096, 7168  # tiles differ
    a, scales = torch.zeros(m, k).to(FP8), torch.ones(m, k // 128)
    scales = scales.T.contiguous().T if by_columns else scales
    b, d = (torch.zeros(n, k).to(FP8), torch.ones(n // 128, k // 128)), torch.zeros(m, n).bfloat16()
    wanted = asked(lambda: dg.fp8_gemm_nt((a, scales), b, d))
    plan = warmup.plan([Workload("fp8_gemm_nt", [m], n, k)])
    assert len(plan) == 2
    assert all(request in plan for request in wanted)


def test_the_plan_of_a_norm_has_kernels_with_and_without_a_residual(asked):
    x, weight = heads(9, 256), heads(256)
    calls = (lambda: dg.rms_norm_cast_to_fp8(x, weight), lambda: dg.rms_norm_cast_to_fp8(x, weight, residual=x))
    wanted = [request for call in calls for request in asked(call)]
    assert warmup.plan([Workload("rms_norm_cast_to_fp8", [1, 64], 1, 256)]) == wanted


@pytest.mark.parametrize("tokens", [1, 100, 200, 1000, 5000, 10**5])
def test_the_plan_of_attention_has_all_tiles(asked, tokens):
    plan = warmup.plan([Workload("flash_attention", [tokens], 128, 128)])
    for count in (1, 2, 5, 20, 40, 60, 100, 150, 200, 300, 400, 999):
        q = torch.empty(1, device="meta", dtype=torch.bfloat16).expand(1, tokens, count, 128)
        with planning.planning() as wanted:
            dg.flash_attention(q.contiguous(), q.contiguous(), q.contiguous())
        assert all(request in plan for request in wanted.values())


@pytest.mark.parametrize("name", warmup.functions())
def test_every_function_can_be_warmed_up(name):
    groups = 4 if "grouped" in name else 1
    sizes = {
        "mla_decode": (512, 576),
        "append_mla_cache": (448, 584),
        "sparse_mla": (512, 584),
        "fp8_mqa_logits": (64, 128),
        "fp8_paged_mqa_logits": (64, 128),
        "route_top_k": (8, 256),
    }
    counts = {"rms_norm_cast_to_fp8": 2, "flash_attention": 2, "mla_decode": 3, "sparse_mla": 3, "fused_moe": 8}
    counts["fp8_paged_mqa_logits"] = 2  # a kernel deals the keys to workgroups
    # A kernel widens activations in FP4.
    counts |= dict.fromkeys(("fp4_gemm_nt", "m_grouped_fp4_gemm_nt_contiguous", "m_grouped_fp4_gemm_nt_masked"), 2)
    n, k = sizes.get(name, (128, 128) if "attention" in name else (256, 512))
    few = kernel_names([Workload(name, [64], n, k, groups)])
    assert len(few) == counts.get(name, 1)
    assert set(few) <= set(kernel_names([Workload(name, [128, 16, 64], n, k, groups)]))


def test_every_function_is_known():
    without_kernels = {name for name in dg.__all__ if "cublaslt" in name}
    others = {"fp8_gemm_nt_skip_head_mid", "tf32_hc_prenorm_gemm", "wgrad_gemm_fp8_fp8_fp32_nt"}
    others |= {"k_grouped_wgrad_gemm_fp8_fp8_fp32_nt"}
    gemms = {name for name in dg.__all__ if "gemm" in name} - without_kernels - others - {"install_as_deep_gemm"}
    attention = {name for name in dg.__all__ if "attention" in name or name.endswith("decode")}
    logits = {
        name for name in dg.__all__ if name.startswith("fp8_") and name.endswith("mqa_logits") and "fp4" not in name
    }
    assert gemms | attention | logits <= set(warmup.functions())
    assert all(callable(getattr(dg, name)) for name in warmup.functions())


@pytest.mark.parametrize(
    "model", [pytest.param(name, marks=() if name == "llama-3-70b" else pytest.mark.slow) for name in warmup.models()]
)
def test_a_model_needs_few_kernels_whatever_the_batch(model):
    workloads = warmup.load(warmup.models()[model])
    wanted = kernel_names(workloads)
    limit = 117 if model == "deepseek-v3.2" else 102  # it has sparse attention, too
    assert len(wanted) == len(set(wanted)) <= limit
    generator = random.Random(0)
    for workload in workloads:
        most = MAX_TOKENS * MAX_TOP_K // workload.num_groups if workload.function == "fused_moe" else 2**15
        anything = [min(generator.randrange(1, 2 ** generator.randrange(1, 16)), most) for _ in range(20)]
        drawn = dataclasses.replace(workload, m_list=anything)
        assert set(kernel_names([drawn])) <= set(wanted)


@pytest.mark.parametrize("model", warmup.models())
def test_a_model_has_the_casts_of_its_layers_and_weights_as_servers_have_them(model):
    workloads = warmup.load(warmup.models()[model])
    functions = {workload.function for workload in workloads}
    if "fp8_gemm_nt" in functions or any(workload.arguments.get("x") for workload in workloads):
        assert "per_token_cast_to_fp8" in functions
    assert not any(workload.dtype == torch.int8 for workload in workloads)  # plug-ins shuffle weights in MXFP4


def test_ranks_share_weights_as_servers_divide_them():
    def sizes(model, ranks):
        of_ranks = warmup.load(warmup.models()[model], ranks)
        return {(workload.function, workload.n, workload.k, workload.num_groups) for workload in of_ranks}

    deepseek = sizes("deepseek-v3", 8)
    assert ("fp8_gemm_nt", 2112, 7168, 1) in deepseek  # each rank has all of it
    assert ("fp8_gemm_nt", 24576 // 8, 1536, 1) in deepseek
    assert ("fp8_gemm_nt", 7168, 16384 // 8, 1) in deepseek
    assert ("fused_moe", 2048 // 8, 7168, 256) in deepseek
    assert ("fused_moe", 2048, 7168, 32) in deepseek  # where ranks have experts of their own
    assert ("silu_and_mul_cast_to_fp8", 2048 // 8, 4096 // 8, 1) in deepseek
    # 64 heads of q and four of k and v, of which eight ranks have copies.
    assert ("fp8_gemm_nt", (8 + 1 + 1) * 128, 4096, 1) in sizes("qwen-3-235b", 8)
    assert ("fp8_gemm_nt", (32 + 2 + 2) * 128, 4096, 1) in sizes("qwen-3-235b", 2)
    assert ("fused_moe", 384, 2880, 128) in sizes("gpt-oss-120b", 8)  # 360, of whole groups
    with pytest.raises(ValueError, match="entry 1: n=24576 can't be divided among 7 ranks"):
        sizes("deepseek-v3", 7)
    with pytest.raises(ValueError, match="entry 0: 8 heads of keys can't be divided among 3 ranks"):
        sizes("glm-4.5", 3)


@pytest.mark.parametrize(
    ("function", "arguments", "error"),
    [
        ("route_top_k", {"bias": True, "scale": 2.5}, "may have .*'bias'.*, got .*'scale'"),
        ("fp8_gemm_nt", {"epilogue": "silu_and_mul"}, r"may have \[\], got .*'epilogue'"),
        ("route_top_k", ["bias"], "must map names to values"),
        ("route_top_k", {"scoring": "softmix"}, "scoring"),
        ("fp8_fp4_gemm_nt", {"recipe_a": (1, 64)}, r"recipe_a must be one of \(\(1, 128\), \(1, 32\)\), got \(1, 64\)"),
        ("mla_decode", {"fp8_dtype": "bfloat16"}, "fp8_dtype must be one of float8_e4m3fnuz, float8_e4m3fn, got"),
        ("mla_decode", {"page_size": 1.0}, "page_size must be an int, got float"),
        ("bf16_fp4_gemm_nt", {"recipe_a": (1, 32)}, r"may have \['shuffled'\], got .*'recipe_a'"),
    ],
)
def test_other_arguments_are_checked(function, arguments, error):
    with pytest.raises((TypeError, ValueError), match=error):
        warmup.plan([Workload(function, [1], 8, 256, arguments=arguments)])


def test_other_arguments_choose_the_kernel():
    routed = Workload(
        "route_top_k", [1], 8, 256, arguments={"scoring": "sigmoid", "bias": True, "num_groups": 8, "top_groups": 4}
    )
    with planning.planning() as wanted:
        dg.route_top_k(
            torch.empty(1, 256, dtype=torch.bfloat16, device="meta"),
            8,
            scoring="sigmoid",
            bias=torch.empty(256, device="meta"),
            num_groups=8,
            top_groups=4,
        )
    assert kernel_names([routed]) == [request.values["kernel_name"] for request in wanted.values()]


def all_kernels(workload: Workload) -> list[str]:
    """The kernels for every M, each of which is called."""
    workload = dataclasses.replace(workload, m_list=list(workload.m_list))  # which is not taken for a range
    return kernel_names([workload])


@pytest.mark.parametrize(
    ("name", "n", "k", "groups"),
    [
        ("m_grouped_fp8_gemm_nt_masked", 7168, 2048, 256),
        ("m_grouped_fp8_gemm_nt_masked", 3072, 4096, 128),
        ("fp8_gemm_nt", 8192, 8192, 1),
    ],
)
def test_no_m_needs_a_kernel_that_warming_up_missed(name, n, k, groups):
    for rows in (range(1, 3000), range(20000, 21000)):
        workload = Workload(name, rows, n, k, groups)
        assert set(kernel_names([workload])) == set(all_kernels(workload))


@pytest.mark.slow
@pytest.mark.parametrize(
    "workload",
    [workload for model in warmup.models().values() for workload in warmup.load(model) if "gemm" in workload.function],
    ids=str,
)
def test_no_m_of_a_model_needs_a_kernel_that_warming_up_missed(workload):
    assert set(kernel_names([workload])) == set(all_kernels(workload))


def test_lists_of_rows_are_called_one_by_one():
    assert len(kernel_names([Workload("fp8_gemm_nt", [1, 4096], 8192, 8192)])) == 3  # two for both layouts of scales
    assert len(kernel_names([Workload("fp8_gemm_nt", range(1, 8192, 4095), 8192, 8192)])) <= 4
    assert len(kernel_names([Workload("bf16_gemm_nt", [1, 4096], 8192, 8192)])) == 2
    assert len(kernel_names([Workload("bf16_gemm_nt", range(1, 8192, 4095), 8192, 8192)])) <= 3


def test_planning_needs_neither_memory_nor_compiler(no_compiler, cold):
    before = jit.loaded()
    huge = Workload("m_grouped_fp8_gemm_nt_masked", [2**20], 2**20, 2**16, 2**10)
    assert kernel_names([huge])
    assert jit.loaded() == before
    assert planning.current() is None
    assert not cold.exists()


def test_a_failed_plan_ends():
    with pytest.raises(ValueError, match="K must be a multiple of 16, got 100"):
        dg.warmup_kernels("fp8_gemm_nt", [16], 128, 100)
    assert planning.current() is None
    a, b = gemm_problem(3, 16, 128)
    assert_accurate(dg.gemm_fp8(a, b), gemm_reference(a, b))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("fp8_gemm", [1], 128, 128), ValueError, "the function's name must be one of .*fp8_gemm_nt.*got 'fp8_gemm'"),
        (("fp8_gemm_nt", [], 128, 128), TypeError, "m_list must be a list of at least one int"),
        (("fp8_gemm_nt", 5, 128, 128), TypeError, "m_list must be a list of at least one int, got 5"),
        (("fp8_gemm_nt", [0], 128, 128), ValueError, "m_list's numbers must be at least 1, got 0"),
        (("fp8_gemm_nt", [1.5], 128, 128), TypeError, "m_list's numbers must be an int, got float"),
        (("fp8_gemm_nt", [1], -1, 128), ValueError, "n must be at least 1, got -1"),
        (("fp8_gemm_nt", [1], 128, None), TypeError, "k must be an int, got NoneType"),
        (("fp8_gemm_nt", [1], 128, 128, 2), ValueError, "num_groups must be 1 for a function without groups, got 2"),
        (("mla_decode", [1], 512, 576, 2), ValueError, "num_groups must be 1 for a function without groups, got 2"),
        (("mla_decode", [1], 128, 192), ValueError, "d_v must be 576 and 512, got 192 and 128"),
        (("fp8_mqa_logits", [1], 12, 128), ValueError, "q must have a multiple of 8 heads"),
        (("fp8_gemm_nt", [1], 2**31, 128), ValueError, "n must be at most 2147483647, got 2147483648"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        dg.warmup_kernels(*arguments)


def test_a_compile_that_fails_is_told(cold, monkeypatch):
    def failing(*_):
        raise jit.ToolchainError("no compiler today")

    monkeypatch.setattr(jit.kernels, "_make", failing)
    with pytest.raises(jit.ToolchainError, match="no compiler today"):
        dg.warmup_kernels("fp8_gemm_nt", [1, 200], 96, 256)


# ---- the command


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["warmup", *arguments])


def test_the_command_compiles_what_a_file_lists(cold, tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps([{"function": "fp8_gemm_nt", "m": [3, 16], "n": 768, "k": 256, "divided": "n"}]))
    first = invoke("--shapes", str(file), "--ranks", "8", "--jobs", "2")
    assert first.exit_code == 0, first.output
    assert "mine: compiling 1 kernels" in first.output
    assert "mine: 1 kernels in" in first.output
    assert "1 compiled and 0 found in the cache" in first.output
    assert len(list(cold.glob("kernels/*"))) == 1
    jit.forget()
    again = [{"function": "fp8_gemm_nt", "m": [3, 16], "n": 96, "k": 256}]  # a rank's share
    file.write_text(json.dumps(again))
    assert "0 compiled and 1 found in the cache" in invoke("--shapes", str(file)).output


@pytest.mark.filterwarnings("ignore:the kernel cache can't keep:RuntimeWarning")
def test_the_command_fails_where_kernels_cannot_be_kept(cold, tmp_path, monkeypatch):
    (tmp_path / "a file").touch()
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(tmp_path / "a file" / "cache"))
    (tmp_path / "mine.json").write_text(json.dumps([{"function": "fp8_gemm_nt", "m": 3, "n": 96, "k": 256}]))
    result = invoke("--shapes", str(tmp_path / "mine.json"))
    assert result.exit_code == 1
    assert f"1 of them could not be kept there, but in {folders.private_folder()}" in result.output
    monkeypatch.setattr(folders, "private_folder", lambda: tmp_path / "a file" / "private")
    jit.forget()
    result = invoke("--shapes", str(tmp_path / "mine.json"))
    assert result.exit_code == 1
    assert "1 of them could not be kept there, and will be compiled again" in result.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be JSON"),
        ("{}", "must be a JSON list of at least one object"),
        ("[3]", "entry 0 must be an object, got 3"),
        ('[{"function": "fp8_gemm_nt", "n": 128}]', "entry 0 lacks ['k']"),
        ('[{"function": "fp8_gemm_nt", "n": 128, "k": 128, "M": 1}]', "entry 0 has unknown keys ['M']"),
        ('[{"function": "gemm", "n": 128, "k": 128}]', "entry 0: the function's name must be one of"),
        ('[{"function": "fp8_gemm_nt", "n": 128, "k": "many"}]', "entry 0: k must be an int, got str"),
        ('[{"function": "fp8_gemm_nt", "n": 128, "k": 128, "d_dtype": "Tensor"}]', "must be the name of a dtype"),
        ('[{"function": "fp8_gemm_nt", "n": 128, "k": 128, "divided": "m"}]', 'divided must be "n", "k" or a list of'),
        (
            '[{"function": "fp8_gemm_nt", "n": 999, "k": 128, "divided": "n", "kv_heads": 8}]',
            "entry 0: kv_heads must be [number, width], got 8",
        ),
        (
            '[{"function": "fp8_gemm_nt", "n": 128, "k": 100, "m": 1}]',
            "fp8_gemm_nt with n=128, k=100: K must be a multiple of 16, got 100",
        ),
    ],
)
def test_the_command_says_what_is_wrong_with_a_file(tmp_path, text, message):
    (tmp_path / "shapes.json").write_text(text)
    result = invoke("--shapes", str(tmp_path / "shapes.json"))
    assert result.exit_code == 1
    assert message in result.output


@pytest.mark.parametrize("arguments", [(), ("--model", "gpt-2"), ("--model", "llama-3-70b", "--shapes", __file__)])
def test_the_command_wants_one_model_or_file(arguments):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "--model" in result.output


@pytest.mark.slow
@pytest.mark.parametrize("model", warmup.models())
def test_the_command_compiles_a_model(cold, model):
    result = invoke("--model", model)
    assert result.exit_code == 0, result.output
    assert f"{len(list(cold.glob('kernels/*')))} compiled and 0 found" in result.output


def test_a_missing_file_is_named(tmp_path):
    for wrong, message in ((tmp_path / "absent.json", "does not exist"), (tmp_path, "is a directory")):
        done = CliRunner().invoke(app, ["warmup", "--shapes", str(wrong)])
        assert done.exit_code == 2
        assert message in " ".join(done.output.replace("│", " ").split())
