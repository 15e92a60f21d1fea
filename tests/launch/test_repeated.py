"""Repeated calls compute the same as first calls, and refuse the same arguments."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest
import torch
from helpers.good_calls import GOOD

import deep_gemm_rocm as dg
from deep_gemm_rocm import jit, testing
from deep_gemm_rocm.api import gemm
from deep_gemm_rocm.launch import fast_path, repeated, scratch
from deep_gemm_rocm.launch.remembered import BYTES_OF_CALL, BYTES_OF_LAUNCH
from deep_gemm_rocm.problems import experts
from deep_gemm_rocm.runtime import hip, session

M, N, K = 24, 128, 256


class Own(str):
    __slots__ = ()


@pytest.fixture(autouse=True, params=["C", "Python"])
def how_calls_are_described(request, monkeypatch):
    """Runs each test with the C functions for repeated calls, and with the Python code that can take their place."""
    if request.param == "C":
        if fast_path.in_c is None:
            pytest.skip("there are no C functions for this torch or Python")
        return
    monkeypatch.setattr(fast_path, "in_c", None)
    monkeypatch.setattr(fast_path, "recall", fast_path.recalled_by_python)


@pytest.fixture(autouse=True)
def nothing_remembered():
    jit.forget()


@pytest.fixture
def long_ways(monkeypatch):
    """Counts the calls that run all checks, unlike repeated ones."""
    taken = []
    real = gemm.check_gemm
    monkeypatch.setattr(gemm, "check_gemm", lambda *args, **kwargs: taken.append(1) or real(*args, **kwargs))
    return taken


def problem(seed):
    device = hip.runtime().tensor_device
    (a, sfa), (b, sfb) = testing.gemm_problem(M, N, K, seed)
    return (a.to(device), sfa.to(device)), (b.to(device), sfb.to(device))


def kept():
    """The scratch memory of this thread."""
    return session.current().of(scratch.Scratch).kept()


def output(dtype=torch.bfloat16):
    return torch.full((M, N), torch.nan, dtype=dtype, device=hip.runtime().tensor_device)


def check(a, b, d, **more):
    testing.assert_accurate(d, testing.gemm_reference(a, b, **more))


def test_other_tensors_of_the_same_form_are_used(long_ways):
    for seed in range(3):
        (a, b), d = problem(seed), output()
        dg.fp8_gemm_nt(a, b, d)
        check(a, b, d)
    assert len(long_ways) == 1


def test_layers_take_turns(long_ways):
    layers = [problem(seed) for seed in range(3)]
    outputs = [output() for _ in layers]
    for _ in range(2):
        for (a, b), d in zip(layers, outputs, strict=True):
            dg.fp8_gemm_nt(a, b, d.fill_(torch.nan))
        for (a, b), d in zip(layers, outputs, strict=True):
            check(a, b, d)
    assert len(long_ways) == 1


def remembered():
    return session.current().of(repeated.Calls)


def small_call(n):
    dg.bf16_gemm_nt(torch.ones(1, 64).bfloat16(), torch.ones(n, 64).bfloat16(), torch.empty(1, n))


def test_memory_of_calls_is_bounded_and_repeated_ones_stay(long_ways, monkeypatch):
    monkeypatch.setattr(repeated, "_MOST_BYTES", 8 * (BYTES_OF_CALL + BYTES_OF_LAUNCH + 500))
    small_call(16)
    for n in range(17, 60):
        small_call(n)
        small_call(16)
        known = remembered().known
        assert remembered().bytes == sum(map(repeated.bytes_of, known, known.values())) <= repeated._MOST_BYTES
    assert len(long_ways) == 44
    assert 4 <= len(remembered().known) <= 12


def test_settings_that_come_back_find_their_calls(long_ways):
    for _ in range(3):
        before = dg.get_num_sms()
        dg.set_num_sms(100)
        small_call(16)
        dg.set_num_sms(before)
        small_call(16)
    dg.set_num_sms(0)
    small_call(16)
    assert len(long_ways) == len(remembered().known) == 2


def test_strides_of_single_elements_mean_nothing(long_ways):
    a, b = testing.activations(1, K), testing.weights(N, K)
    for row_stride in (K, 1, 3 * K):
        d = torch.full((1, N), torch.nan, dtype=torch.bfloat16)
        dg.bf16_gemm_nt(a.as_strided((1, K), (row_stride, 1)), b, d)
        check(a, b, d)
    assert len(long_ways) == 1


def test_whatever_differs_goes_the_long_way(long_ways):
    a, b = problem(0)
    dg.fp8_gemm_nt(a, b, output())
    d = output(torch.float32)
    dg.fp8_gemm_nt(a, b, d)
    check(a, b, d)
    turned = (a[0], a[1].contiguous())
    d = output()
    dg.fp8_gemm_nt(turned, b, d)
    check(turned, b, d)
    dg.fp8_gemm_nt(a, b, output(), recipe=(1, 128, 128))
    dg.fp8_gemm_nt(a, b, d=output())
    dg.set_num_sms(100)
    try:
        dg.fp8_gemm_nt(a, b, output())
    finally:
        dg.set_num_sms(0)
    jit.forget()
    dg.fp8_gemm_nt(a, b, output())
    assert len(long_ways) == 7
    assert len(jit.loaded()) == 1


def test_results_are_new_tensors_or_those_given(long_ways):
    kept = []
    for seed in range(3):
        a, b = problem(seed)
        kept.append((dg.gemm_fp8(a, b), a, b))
        d = output(torch.float32)
        assert dg.gemm_fp8(a, b, d) is d
        check(a, b, d)
    assert len(long_ways) == 2
    assert len({result.data_ptr() for result, *_ in kept}) == 3
    for result, a, b in kept:
        assert (result.dtype, result.shape, result.is_contiguous()) == (torch.bfloat16, (M, N), True)
        check(a, b, result)


def test_keywords_and_lists_work(long_ways):
    for seed in range(2):
        (a, b), d = problem(seed), output()
        dg.fp8_gemm_nt(b=b, d=d, a=a)
        check(a, b, d)
        dg.fp8_gemm_nt(list(a), list(b), d.fill_(0))
        check(a, b, d)
    assert len(long_ways) == 2


def test_one_tensor_for_two_arguments_is_no_rule(long_ways):
    one, other = (testing.activations(N, K, seed) for seed in range(2))
    d = torch.empty(N, N, dtype=torch.bfloat16)
    for a, b in ((one, one), (other, other), (one, other), (other, one)):
        dg.bf16_gemm_nt(a, b, d.fill_(torch.nan))
        check(a, b, d)


def test_unseen_logits_are_cleaned_again():
    arguments = GOOD["fp8_paged_mqa_logits"]()
    first = dg.fp8_paged_mqa_logits(**arguments)
    expected = first.clone()
    assert expected.isinf().any()
    first.fill_(torch.nan)  # the memory of the next result
    del first
    assert torch.equal(dg.fp8_paged_mqa_logits(**arguments), expected)
    assert any(call.was_repeated for call in remembered().known.values())


def test_a_call_in_place_does_not_allow_overlaps():
    a, b, held = testing.activations(M, K), testing.weights(N, K), torch.zeros(M + 1, N)
    dg.bf16_gemm_nt(a, b, held[:M], held[:M])
    with pytest.raises(ValueError, match="share memory"):
        dg.bf16_gemm_nt(a, b, held[:M], held[1:])


def test_accumulating_in_place_and_apart():
    a, b = problem(0)
    for seed in range(2):
        c = torch.randn(M, N, generator=torch.Generator().manual_seed(seed))
        for d in (c.clone(), output(torch.float32)):
            in_place = not d.isnan().any()
            dg.fp8_gemm_nt(a, b, d, d if in_place else c)
            check(a, b, d, c=c)


def test_overlap_and_alignment_are_refused_again():
    a, b = problem(0)
    dg.fp8_gemm_nt(a, b, output())
    memory = torch.zeros(M * N * 2 + M * K, dtype=torch.uint8)
    d = memory[: M * N * 2].view(torch.bfloat16).view(M, N)
    inside = memory[16 : 16 + M * K].view(a[0].dtype).view(M, K)
    with pytest.raises(ValueError, match="share memory"):
        dg.fp8_gemm_nt((inside, a[1]), b, d)
    behind = memory[M * N * 2 :].view(a[0].dtype).view(M, K)
    dg.fp8_gemm_nt((behind, a[1]), b, d)
    assert (d == 0).all()
    shifted = torch.zeros(M * K + 1, dtype=torch.uint8)[1:].view(a[0].dtype).view(M, K)
    with pytest.raises(ValueError, match="multiple of 16 bytes"):
        dg.fp8_gemm_nt((shifted, a[1]), b, output())


class OwnPair(NamedTuple):
    data: torch.Tensor
    scales: torch.Tensor


def test_pairs_and_keywords_of_other_classes(long_ways):
    for name in ("d", Own("d"), Own("d")):
        for seed in range(2):
            a, b = problem(seed)
            d = output()
            dg.fp8_gemm_nt(OwnPair(*a), OwnPair(*b), **{name: d})
            check(a, b, d)
    assert len(long_ways) <= 2  # C leaves the other keyword to Python


def test_overlap_of_written_scales_is_refused_again():
    a, b = problem(0)
    d = torch.empty(M, N, dtype=a[0].dtype), torch.empty(M, 1)
    dg.fp8_gemm_nt(a, b, d)
    with pytest.raises(ValueError, match="share memory"):
        dg.fp8_gemm_nt(a, b, (d[0], a[1][:, :1]))


def test_arguments_of_other_types_are_refused_again():
    a, (b, sfb) = problem(0)
    arguments = a, (b[None], sfb[None]), output(), torch.zeros(M, dtype=torch.int32)
    dg.m_grouped_fp8_gemm_nt_contiguous(*arguments, ensure_zero_padding=True)
    with pytest.raises(TypeError, match="ensure_zero_padding must be"):
        dg.m_grouped_fp8_gemm_nt_contiguous(*arguments, ensure_zero_padding=1)


def test_the_sign_of_zero_is_an_argument():
    logits = torch.randn(M, 64, device=hip.runtime().tensor_device)
    for _ in range(2):
        for scale in (0.0, -0.0):
            weights, _ = dg.route_top_k(logits, 4, scale=scale)
            assert (weights == 0).all()
            assert (weights.signbit() == (math.copysign(1, scale) < 0)).all()


def test_gradients_are_refused_again():
    a, b = testing.activations(M, K), testing.weights(N, K)
    dg.bf16_gemm_nt(a, b, output())
    with pytest.raises(ValueError, match="require grad"):
        dg.bf16_gemm_nt(a, b.requires_grad_(), output())
    parameter = torch.nn.Parameter(b.detach(), requires_grad=False)
    d = output()
    dg.bf16_gemm_nt(a, parameter, d)
    check(a, b.detach(), d)


def test_gradients_that_nobody_wants_are_no_obstacle(long_ways):
    a, weight = testing.activations(M, K), torch.nn.Parameter(testing.weights(N, K))
    for _ in range(2):
        d = output()
        with torch.no_grad():
            dg.bf16_gemm_nt(a, weight, d)
        check(a, weight.detach(), d)
    with pytest.raises(ValueError, match="require grad"):
        dg.bf16_gemm_nt(a, weight, output())
    assert len(long_ways) == 2


def test_parameters_of_servers_are_repeated(long_ways):
    """vLLM's parameters are of classes of their own."""
    own = type("Own", (torch.nn.Parameter,), {})
    for seed in range(2):
        (a, b), d = problem(seed), output()
        dg.fp8_gemm_nt(a, tuple(own(part, requires_grad=False) for part in b), d)
        check(a, b, d)
    assert len(long_ways) == 1


def test_other_subclasses_of_tensors_go_the_long_way(long_ways):
    own = type("Own", (torch.Tensor,), {})
    for seed in range(2):
        (a, b), d = problem(seed), output()
        dg.fp8_gemm_nt(a, tuple(part.as_subclass(own) for part in b), d)
        check(a, b, d)
    assert len(long_ways) == 2


def test_nothing_is_repeated_while_kernels_are_only_compiled():
    a, b = problem(0)
    for _ in range(2):
        d = output()
        dg.set_compile_mode(1)
        for _ in range(2):
            dg.fp8_gemm_nt(a, b, d)
        dg.set_compile_mode(0)
        assert d.isnan().all()
        dg.fp8_gemm_nt(a, b, d)
        check(a, b, d)


def test_a_failed_launch_is_not_repeated(monkeypatch):
    a, b = problem(0)
    first = output()
    dg.fp8_gemm_nt(a, b, first)
    (kernel,) = jit.loaded()
    remembered().known.clear()  # it knows the entry point
    statuses = [719, 0]
    monkeypatch.setattr(kernel, "entry_point", lambda *_: statuses.pop())
    dg.fp8_gemm_nt(a, b, first)
    with pytest.raises(hip.HipError):
        dg.fp8_gemm_nt(a, b, output())  # at another address than ``first``, which is still alive
    assert not statuses


def test_splits_of_k_are_repeated(long_ways):
    for seed in range(2):
        a = testing.activations(3, 4096, seed)
        b = testing.weights(64, 4096, seed)
        c = torch.randn(3, 64, generator=torch.Generator().manual_seed(seed))
        for _ in range(2):
            d = torch.full((3, 64), torch.nan)
            dg.bf16_gemm_nt(a, b, d, c)
            check(a, b, d, c=c)
    assert len(jit.loaded()) == 1  # which has two kernels, for the parts and for their sum
    assert len(long_ways) == 1


def test_parts_of_k_are_kept_for_each_thread_and_stream(tight_scratch, monkeypatch):
    """Therefore another thread's launch on the same stream can't overwrite parts before they are summed."""
    monkeypatch.setattr(scratch, "_room_for", tight_scratch)
    runtime = hip.runtime()
    tensor = torch.empty(0)

    def address(size, stream=0):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(runtime, "current_stream", lambda _: stream)
            return session.current().of(scratch.Scratch).address_of(runtime, size)(tensor)

    first = address(1)
    assert address(2**20) == first
    assert address(1, stream=1) != first
    with ThreadPoolExecutor(1) as other:
        assert other.submit(address, 1).result() != first
    larger = address(2**20 + 1)
    assert address(2**21) == larger


def test_parts_of_k_that_outgrow_their_memory_are_repeated():
    small, large = (testing.activations(m, 8192) for m in (3, 40))
    b = testing.weights(64, 8192)
    for a in (small, large, small, large):
        d = torch.full((len(a), 64), torch.nan)
        dg.bf16_gemm_nt(a, b, d)
        check(a, b, d)
    assert len(kept()) == 1


def test_addresses_that_cannot_be_repeated_leave_nothing_behind():
    """Tensors without elements have no address: such calls are made anew, with new results."""
    b = torch.empty(32, 0).to(torch.float8_e4m3fnuz), torch.empty(1, 0)
    for _ in range(3):
        a = torch.empty(4, 0).to(torch.float8_e4m3fnuz), torch.empty(4, 0)
        assert not dg.gemm_fp8(a, b).any()


def test_other_families_are_repeated(monkeypatch):
    taken = []
    check_tensors = hip.runtime().check_tensors
    monkeypatch.setattr(hip.runtime(), "check_tensors", lambda tensors: taken.append(1) or check_tensors(tensors))
    sizes, layout = [96, 32], torch.tensor([96, 32], dtype=torch.int32)
    starts, ends = torch.zeros(4, dtype=torch.int32), torch.full((4,), 9, dtype=torch.int32)
    for seed in range(2):
        a, b = testing.activations(128, 24, seed), testing.weights(128, 40, seed)
        d = torch.full((2, 24, 40), torch.nan)
        dg.k_grouped_bf16_gemm_tn_contiguous(a, b, d, sizes, layout)
        check(a[:96].T, b[:96].T, d[0])
        check(a[96:].T, b[96:].T, d[1])
        batch, weights = testing.activations(6 * 64, 32, seed).view(6, 2, 32, 32), testing.weights(48, 32, seed)
        d = torch.full((6, 2, 48), torch.nan)
        dg.einsum("bhr,hdr->bhd", batch[:, :, 0], weights.expand(2, 48, 32).contiguous(), d)
        check(batch[:, 1, 0], weights, d[:, 1])
        d, squares = torch.full((6, 48), torch.nan), torch.full((6,), torch.nan)
        dg.tf32_hc_prenorm_gemm(batch[:, 0, 0], weights.float(), d, squares)
        check(batch[:, 0, 0], weights, d)
        generator = torch.Generator().manual_seed(seed)
        q, keys = (torch.randn(*s, generator=generator).to(torch.float8_e4m3fnuz) for s in ((4, 32, 32), (9, 32)))
        weights_of_heads = torch.rand(4, 32, generator=generator)
        logits = dg.fp8_mqa_logits(q, (keys, torch.ones(9)), weights_of_heads, starts, ends)
        products = torch.einsum("shd,kd->shk", q.double(), keys.double()).clamp_min(0)
        expected = torch.einsum("sh,shk->sk", weights_of_heads.double(), products)
        torch.testing.assert_close(logits.double(), expected, rtol=1e-4, atol=1e-4)
    assert len(taken) == 4


def with_other_values(argument):
    """Arguments of the same form, whose floating-point values are in another order."""
    if isinstance(argument, (tuple, list)):
        return type(argument)(map(with_other_values, argument))
    if isinstance(argument, torch.Tensor) and argument.is_floating_point():
        order = torch.arange(argument.numel()).flip(0)
        values = argument.flatten().view(torch.uint8).view(argument.numel(), -1)[order]
        return torch.empty_like(argument).copy_(values.view(-1).view(argument.dtype).view(argument.shape))
    return argument


def tensors_among(*values):
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors_among(*value)


@pytest.mark.parametrize("name", GOOD)
def test_a_repeated_call_writes_and_returns_what_a_first_one_does(monkeypatch, name):
    if fast_path.recall is fast_path.recalled_by_python:
        pytest.skip("takes long, and the tests above tell whether both describe alike")
    taken = []
    check_tensors = hip.runtime().check_tensors
    monkeypatch.setattr(hip.runtime(), "check_tensors", lambda tensors: taken.append(1) or check_tensors(tensors))

    def results_of(arguments):
        returned = getattr(dg, name)(**arguments)
        return [tensor.clone() for tensor in tensors_among(*arguments.values(), returned)]

    results_of(GOOD[name]())
    if not taken:
        pytest.skip("launches no kernel")
    taken.clear()
    repeated_results = results_of({key: with_other_values(value) for key, value in GOOD[name]().items()})
    assert not taken
    jit.forget()
    first_results = results_of({key: with_other_values(value) for key, value in GOOD[name]().items()})
    for one, other in zip(repeated_results, first_results, strict=True):
        assert torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("how", ["whole sequences", "causal", "chosen tokens"])
def test_flash_mla_is_repeated(monkeypatch, how):
    taken = []
    check_tensors = hip.runtime().check_tensors
    monkeypatch.setattr(hip.runtime(), "check_tensors", lambda tensors: taken.append(1) or check_tensors(tensors))
    cache = torch.randn(4, 16, 1, 576, generator=torch.Generator().manual_seed(0)).bfloat16()
    pages = {
        "block_table": torch.arange(4, dtype=torch.int32).view(2, 2),
        "cache_seqlens": torch.tensor([20, 32]).int(),
    }
    chosen = {"block_table": None, "cache_seqlens": None, "indices": torch.arange(24, dtype=torch.int32).view(2, 2, 6)}
    options = chosen if how == "chosen tokens" else {**pages, "causal": how == "causal"}

    def results(seed):
        q = torch.randn(2, 2, 16, 576, generator=torch.Generator().manual_seed(seed)).bfloat16()
        metadata, _ = dg.get_mla_metadata()
        return dg.flash_mla_with_kvcache(q, cache, head_dim_v=512, tile_scheduler_metadata=metadata, **options)

    results(0)
    again = results(1)
    assert len(taken) == 1
    jit.forget()
    for one, other in zip(again, results(1), strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()


@pytest.mark.parametrize("empty", ["indices", "cache", "block table"])
def test_flash_mla_with_nothing_to_attend_to_is_called_again(empty):
    """Empty tensors have no address, so such calls aren't repeated."""
    q, cache = torch.zeros(2, 2, 16, 576).bfloat16(), torch.zeros(4, 16, 1, 576).bfloat16()
    options = {"block_table": None, "cache_seqlens": None, "indices": torch.zeros(2, 2, 3).int()}
    if empty == "indices":
        options["indices"] = options["indices"][..., :0]
    elif empty == "cache":
        cache = cache[:0]
    else:
        options = {"block_table": torch.zeros(2, 0).int(), "cache_seqlens": torch.zeros(2).int()}
    for _ in range(3):
        out = torch.full((2, 2, 16, 512), torch.nan).bfloat16()
        returned, lse = dg.flash_mla_with_kvcache(q, cache, head_dim_v=512, out=out, **options)
        assert returned is out
        assert not out.any()
        assert (lse == torch.inf).all()


def test_contents_are_checked_again():
    good = GOOD["flash_attention_decode"]()
    dg.flash_attention_decode(**good)
    for name, bad in (("block_table", 3), ("context_lens", 65)):
        wrong = {**good, name: good[name].clone(), "out": torch.full_like(good["out"], 7)}
        wrong[name].view(-1)[1] = bad
        with pytest.raises(ValueError, match=name):
            dg.flash_attention_decode(**wrong)
        assert (wrong["out"] == 7).all()
    ends = torch.tensor([0, 3, 5], dtype=torch.int32)
    packed = {name: torch.randn(5, 4, 64).bfloat16() for name in "qkv"}
    dg.flash_attention(**packed, cu_seqlens_q=ends, cu_seqlens_k=ends)
    with pytest.raises(ValueError, match="cu_seqlens_k must not decrease"):
        dg.flash_attention(**packed, cu_seqlens_q=ends, cu_seqlens_k=torch.tensor([0, 6, 5], dtype=torch.int32))


def test_a_layer_of_experts_is_checked_once(monkeypatch):
    good = GOOD["fused_moe"]()
    first = dg.fused_moe(**good).clone()
    monkeypatch.setattr(experts.check_one_device, "__code__", (lambda tensors: 1 / 0).__code__)
    assert torch.equal(dg.fused_moe(**good), first)
    moved = {**good, "topk_weights": good["topk_weights"].clone(), "out": torch.zeros_like(good["out"])}
    assert torch.equal(dg.fused_moe(**moved), first)
    with pytest.raises(ZeroDivisionError):
        dg.fused_moe(**{**good, "expert_map": None})


def test_a_layer_of_experts_is_checked_again_where_its_tensors_lie_otherwise():
    good = GOOD["fused_moe"]()
    dg.fused_moe(**good)
    x = good["x"][0]
    memory = torch.zeros(x.numel() + 8, dtype=torch.uint8)
    shifted = memory[8:].view(x.dtype).view(x.shape)
    with pytest.raises(ValueError, match=r"x\[0\] must start at a multiple of 16 bytes"):
        dg.fused_moe(**{**good, "x": (shifted, good["x"][1])})
    out = torch.zeros_like(good["out"])
    inside = out.view(torch.uint8).view(-1)[: x.numel()].view(x.dtype).view(x.shape)
    with pytest.raises(ValueError, match="out must not share memory with"):
        dg.fused_moe(**{**good, "x": (inside, good["x"][1]), "out": out})


def test_other_sizes_of_groups_along_k_go_the_long_way():
    a, b = testing.activations(128, 24), testing.weights(128, 40)
    for sizes in ([96, 32], [32, 96]):
        d = torch.full((2, 24, 40), torch.nan)
        for _ in range(2):
            dg.k_grouped_bf16_gemm_tn_contiguous(a, b, d, sizes, torch.tensor(sizes, dtype=torch.int32))
            check(a[: sizes[0]].T, b[: sizes[0]].T, d[0])
    with pytest.raises(ValueError, match="ks_cpu"):
        dg.k_grouped_bf16_gemm_tn_contiguous(a, b, d, [96, 33], torch.tensor([96, 33], dtype=torch.int32))


def test_groups_are_repeated():
    device = hip.runtime().tensor_device
    for seed in range(2):
        a, b = problem(seed)
        weights = tuple(tensor.expand(2, *tensor.shape).contiguous() for tensor in b)
        experts = tuple(tensor.expand(2, *tensor.shape).contiguous() for tensor in a)
        for sizes in ([M, 5], [0, M]):
            d = torch.full((2, M, N), torch.nan, dtype=torch.bfloat16, device=device)
            masked_m = torch.tensor(sizes, dtype=torch.int32, device=device)
            dg.m_grouped_fp8_gemm_nt_masked(experts, weights, d, masked_m, 16)
            for group, size in enumerate(sizes):
                check((a[0][:size], a[1][:size]), b, d[group, :size])
                assert d[group, size:].isnan().all()


def test_ints_of_numpy_are_pythons():
    """Otherwise what is remembered of one call holds for equal ones, whose ints can be written into a kernel."""
    taken = []

    @repeated.launches
    def function(*args, **kwargs):
        taken.extend((args, kwargs))
        return None, None

    function(np.int64(3), [np.int32(1), 2], (None, np.uint8(5)), flag=True, number=np.int64(4))
    assert taken == [(3, [1, 2], (None, 5)), {"flag": True, "number": 4}]
    (number, listed, paired), keywords = taken
    assert {type(value) for value in (number, *listed, paired[1], keywords["number"])} == {int}
    assert keywords["flag"] is True


def test_sizes_of_groups_may_be_ints_of_numpy():
    a, b, layout = torch.randn(300, 16).bfloat16(), torch.randn(300, 24).bfloat16(), torch.tensor([100, 200]).int()
    results = []
    for sizes in ([np.int64(100), np.int64(200)], [100, 200]):
        results.append(torch.full((2, 16, 24), math.nan))
        dg.k_grouped_bf16_gemm_tn_contiguous(a, b, results[-1], sizes, layout)
    assert torch.equal(*results)
    assert not results[0].isnan().any()
