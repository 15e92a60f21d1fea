"""The calls of vLLM and SGLang to DeepGEMM, with exactly their arguments, on this package as ``deep_gemm``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import deep_gemm_rocm as dg
from deep_gemm_rocm import jit
from deep_gemm_rocm.testing import assert_accurate, gemm_problem, gemm_reference, grouped_weights

FNUZ, OCP = torch.float8_e4m3fnuz, torch.float8_e4m3fn
E, T, N, K = 3, 24, 256, 384


@pytest.fixture
def deep_gemm(monkeypatch):
    for name in ("", ".utils", ".utils.layout", ".utils.math", ".testing"):
        monkeypatch.delitem(sys.modules, f"deep_gemm{name}", raising=False)
    dg.install_as_deep_gemm()
    yield sys.modules["deep_gemm"]
    for name in ("", ".utils", ".utils.layout", ".utils.math", ".testing"):
        sys.modules.pop(f"deep_gemm{name}", None)


def weight_of_a_checkpoint(n: int, k: int):
    """e4m3fn data, with some -0, and 128 x 128 scales."""
    generator = torch.Generator().manual_seed(n)
    data = (torch.randn(n, k, generator=generator) * 40).to(OCP)
    data.view(torch.uint8)[0, :3] = 0x80
    return data, torch.rand(-(-n // 128), -(-k // 128), generator=generator) / 100


def normalised(data: torch.Tensor, scales: torch.Tensor):
    """The servers' helper for weights on MI300: replaces -0, reinterprets the bytes as FNUZ and doubles the scales."""
    bits = data.view(torch.int8)
    bits[bits == -128] = 0
    return bits.view(FNUZ), scales * 2.0


def test_vllms_names(deep_gemm):
    """vLLM looks functions up with getattr and a default, some under two names."""
    for name in (
        "fp8_gemm_nt", "m_grouped_fp8_gemm_nt_contiguous", "m_grouped_fp8_gemm_nt_masked", "fp8_mqa_logits",
        "fp8_paged_mqa_logits", "get_paged_mqa_logits_metadata", "get_mn_major_tma_aligned_tensor",
        "get_mk_alignment_for_contiguous_layout", "transform_sf_into_required_layout", "tf32_hc_prenorm_gemm",
        "fp8_einsum",
    ):  # fmt: skip
        assert callable(getattr(deep_gemm, name, None)), name
    align = deep_gemm.get_mk_alignment_for_contiguous_layout()
    assert [align, align] == [128, 128]  # vLLM asserts this block_shape
    assert getattr(deep_gemm.utils.layout, "get_mn_major_tma_aligned_tensor", None) is not None


def test_vllms_linear(deep_gemm):
    weight, weight_scale = normalised(*weight_of_a_checkpoint(N, K))
    x = torch.randn(37, K, generator=torch.Generator().manual_seed(0)).bfloat16()
    q, scales = dg.per_token_cast_to_fp8(x, fp8_max=224.0)
    column_major = torch.empty(scales.shape[::-1]).copy_(scales.T).T
    for sf in (column_major, deep_gemm.get_mn_major_tma_aligned_tensor(scales)):
        output = torch.empty(37, N, dtype=torch.bfloat16)
        assert deep_gemm.fp8_gemm_nt((q, sf), (weight, weight_scale), output, disable_ue8m0_cast=True) is None
        assert_accurate(output, gemm_reference((q, scales), (weight, weight_scale)))


def test_a_converted_weight_is_the_checkpoints(deep_gemm):
    data, scales = weight_of_a_checkpoint(N, K)
    expected = data.float() * scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
    for converted, converted_scales in (dg.convert_fp8_fn_to_fnuz(data, scales), normalised(data.clone(), scales)):
        spread = converted_scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
        assert torch.equal(converted.float() * spread, expected)


def test_vllms_warm_up(deep_gemm, monkeypatch):
    """vLLM sweeps M for each weight, on uninitialised memory with row-major scales; serving then compiles nothing."""
    w, ws = grouped_weights(E, N, K)
    max_tokens = 300
    jit.forget()
    for weight, scale in zip(w, ws, strict=True):
        a1q = torch.empty(max_tokens, K, dtype=torch.uint8).view(FNUZ)
        a1q_scales = torch.empty(max_tokens, K // 128)
        out = torch.empty(max_tokens, N, dtype=torch.bfloat16)
        for m in (1, 8, 64, 128, 256, max_tokens):
            deep_gemm.fp8_gemm_nt((a1q[:m], a1q_scales[:m]), (weight, scale), out[:m])
    rows = 512
    a1q, a1q_scales = torch.empty(rows, K, dtype=torch.uint8).view(FNUZ), torch.empty(rows, K // 128)
    out = torch.empty(rows, N, dtype=torch.bfloat16)
    expert_ids = torch.randint(0, E, (rows // 128,), dtype=torch.int32).repeat_interleave(128)
    for m in range(128, rows + 1, 128):
        deep_gemm.m_grouped_fp8_gemm_nt_contiguous((a1q[:m], a1q_scales[:m]), (w, ws), out[:m], expert_ids[:m])
    monkeypatch.setattr(jit.kernels, "_make", lambda *_: pytest.fail("serving compiled a kernel"))
    for m in (3, 77, 290):
        a, _ = gemm_problem(m, N, K)
        output = torch.empty(m, N, dtype=torch.bfloat16)
        deep_gemm.fp8_gemm_nt(a, (w[0], ws[0]), output)
        assert_accurate(output, gemm_reference(a, (w[0], ws[0])))


def masked_problem():
    (a, sfa), b = gemm_problem(E * T, N, K)[0], grouped_weights(E, N, K)
    return (a.view(E, T, K), sfa.view(E, T, -1)), b


def assert_masked(output, a, b, counts) -> None:
    for expert, count in enumerate(counts):
        rows = a[0][expert, :count], a[1][expert, :count]
        assert_accurate(output[expert, :count], gemm_reference(rows, (b[0][expert], b[1][expert])))
        assert output[expert, count:].isnan().all()


def assert_counted(signal, counts, block_m, threshold) -> None:
    """What DeepGEMM's check_signal asserts of each expert's blocks of rows."""
    blocks = -(-T // block_m)
    for expert, count in enumerate(counts):
        of_expert = signal[expert * blocks : (expert + 1) * blocks].tolist()
        assert of_expert == [threshold if block * block_m < count else 0 for block in range(blocks)]


def test_vllms_batched_experts(deep_gemm):
    """Scales are (E, T, G) with strides (T·G, 1, T)."""
    (a, sfa), b = masked_problem()
    strided = torch.empty_strided((E, T, K // 128), (T * (K // 128), 1, T)).copy_(sfa)
    tokens, output = torch.tensor([5, 0, T], dtype=torch.int32), torch.full((E, T, N), torch.nan).bfloat16()
    deep_gemm.m_grouped_fp8_gemm_nt_masked((a, strided), b, output, tokens, T, disable_ue8m0_cast=True)
    assert_masked(output, (a, sfa), b, tokens.tolist())


def test_vllms_indexer(deep_gemm):
    """Logits of a prompt, and of one token of each of two sequences with a paged cache."""
    heads, dim, page, lengths = 64, 128, 64, [100, 37]
    generator = torch.Generator().manual_seed(0)
    q, _ = dg.per_token_cast_to_fp8(torch.randn(2 * heads, dim, generator=generator).bfloat16())
    q, weights = q.view(2, heads, dim), torch.rand(2, heads, generator=generator)
    k, k_scale = dg.per_token_cast_to_fp8(torch.randn(128, dim, generator=generator).bfloat16())
    k_scale = k_scale.flatten()
    begin, end = torch.zeros(2, dtype=torch.int32), torch.tensor(lengths, dtype=torch.int32)
    expected = torch.einsum("shd,kd->shk", q.double(), k.double()).relu().mul(weights[:, :, None]).sum(1) * k_scale
    prompt = deep_gemm.fp8_mqa_logits(q, (k, k_scale), weights, begin, end, clean_logits=False)

    cache = torch.zeros(4, page * (dim + 4), dtype=torch.uint8)
    for block, first in ((3, 0), (1, page)):
        tokens = slice(first, first + page)
        cache[block] = torch.cat([k[tokens].view(torch.uint8).flatten(), k_scale[tokens].view(torch.uint8)])
    cache = cache.view(4, page, 1, dim + 4)
    block_table = torch.tensor([[3, 1, 0], [3, 0, 0]], dtype=torch.int32)
    schedule = deep_gemm.get_paged_mqa_logits_metadata(end, page, deep_gemm.get_num_sms())
    max_model_len = 192
    decoded = deep_gemm.fp8_paged_mqa_logits(
        q.unsqueeze(1), cache, weights, end, block_table, schedule, max_model_len, clean_logits=False
    )
    assert decoded.shape == (2, max_model_len)
    for sequence, length in enumerate(lengths):
        for logits in (prompt, decoded):
            torch.testing.assert_close(
                logits[sequence, :length].double(), expected[sequence, :length], rtol=1e-5, atol=1e-5
            )


def test_sglangs_experts(deep_gemm):
    (a, sfa), b = masked_problem()
    counts, output = torch.tensor([1, T, 7], dtype=torch.int32), torch.full((E, T, N), torch.nan).bfloat16()
    deep_gemm.fp8_m_grouped_gemm_nt_masked((a, sfa), b, output, counts, 9)
    assert_masked(output, (a, sfa), b, counts.tolist())
    overlap = {"enable_overlap": False, "max_block_n": 256, "signal": None}
    again = torch.full_like(output, torch.nan)
    deep_gemm.fp8_m_grouped_gemm_nt_masked((a, sfa), b, again, counts, 9, **overlap)
    assert torch.equal(again.nan_to_num(), output.nan_to_num())
    signal = torch.zeros(E * -(-T // 64), dtype=torch.int32)  # as SGLang's single_batch_overlap.py makes it
    overlap |= {"enable_overlap": True, "signal": signal}
    again.fill_(torch.nan)
    block_m, threshold = deep_gemm.fp8_m_grouped_gemm_nt_masked((a, sfa), b, again, counts, 9, **overlap)
    assert torch.equal(again.nan_to_num(), output.nan_to_num())
    assert_counted(signal, counts.tolist(), block_m, threshold)

    (rows, scales), _ = gemm_problem(256, N, K)
    m_indices = torch.tensor([2] * 128 + [0] * 100 + [-1] * 28, dtype=torch.int32)
    out = torch.empty(256, N, dtype=torch.bfloat16)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous((rows, scales), b, out, m_indices)
    named = torch.empty_like(out)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous((rows, scales), b, named, m_indices=m_indices)
    assert torch.equal(out, named)
    assert_accurate(out[:128], gemm_reference((rows[:128], scales[:128]), (b[0][2], b[1][2])))


def test_sglangs_head(deep_gemm):
    """bf16 with fp32 output."""
    x, w = torch.randn(9, K).bfloat16(), torch.randn(N, K).bfloat16()
    logits = torch.empty(9, N, dtype=torch.float32)
    deep_gemm.bf16_gemm_nt(x, w, logits)
    assert_accurate(logits, gemm_reference(x, w))


def test_sglangs_warm_up(deep_gemm, monkeypatch):
    """SGLang compiles without launching, and restores the previous compile mode."""
    a, b = gemm_problem(200, N, K)
    jit.forget()
    before = deep_gemm.get_compile_mode()
    deep_gemm.set_compile_mode(1)
    output = torch.full((200, N), 7.0, dtype=torch.bfloat16)
    for m in (1, 64, 200):
        deep_gemm.fp8_gemm_nt((a[0][:m], a[1][:m]), b, output[:m])
    deep_gemm.set_compile_mode(before)
    assert (output == 7).all()
    assert len(jit.loaded()) >= 1
    assert deep_gemm.warmup_kernels("m_grouped_fp8_gemm_nt_masked", [1, T], N, K, E) >= 1
    monkeypatch.setattr(jit.kernels, "_make", lambda *_: pytest.fail("serving compiled a kernel"))
    deep_gemm.fp8_gemm_nt((a[0][:64], a[1][:64]), b, output[:64])
    assert_accurate(output[:64], gemm_reference((a[0][:64], a[1][:64]), b))


def test_the_cache_folder_that_a_server_sets_before_import(tmp_path):
    program = """
import os, sys
os.environ["DG_JIT_CACHE_DIR"] = sys.argv[1]
import deep_gemm_rocm
deep_gemm_rocm.install_as_deep_gemm()
import deep_gemm
print(deep_gemm.warmup_kernels("fp8_gemm_nt", [16], 128, 128), len(os.listdir(os.path.join(sys.argv[1], "kernels"))))
"""
    environment = os.environ | {"PYTHONPATH": str(Path(dg.__file__).parents[1])}
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "1 1\n", done.stderr
