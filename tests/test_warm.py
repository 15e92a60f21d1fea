"""Repeated calls compute what first ones do, and refuse what those refuse."""

from __future__ import annotations

import pytest
import torch

import deep_gemm_rocm as dg
from deep_gemm_rocm import hip, jit, testing, warm

M, N, K = 24, 128, 256


@pytest.fixture(autouse=True)
def nothing_remembered():
    warm._calls.clear()
    jit.forget()


@pytest.fixture
def long_ways(monkeypatch):
    """How often a function was gone through from its beginning."""
    taken = []
    real = dg.gemm.check_gemm
    monkeypatch.setattr(dg.gemm, "check_gemm", lambda *args, **kwargs: taken.append(1) or real(*args, **kwargs))
    return taken


def problem(seed):
    device = hip.runtime().tensor_device
    (a, sfa), (b, sfb) = testing.gemm_problem(M, N, K, seed)
    return (a.to(device), sfa.to(device)), (b.to(device), sfb.to(device))


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


def test_layers_take_turns(long_ways, monkeypatch):
    monkeypatch.setattr(warm, "_MOST_ADDRESSES", 2)
    layers = [problem(seed) for seed in range(3)]
    outputs = [output() for _ in layers]
    for _ in range(2):
        for (a, b), d in zip(layers, outputs, strict=True):
            dg.fp8_gemm_nt(a, b, d.fill_(torch.nan))
        for (a, b), d in zip(layers, outputs, strict=True):
            check(a, b, d)
    assert len(long_ways) == 1


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
    turned = (a[0], a[1].T.contiguous().T)
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


def test_keywords_and_lists_work(long_ways):
    for seed in range(2):
        (a, b), d = problem(seed), output()
        dg.fp8_gemm_nt(b=b, d=d, a=a)
        check(a, b, d)
        dg.fp8_gemm_nt(list(a), list(b), d.fill_(0))
        check(a, b, d)
    assert len(long_ways) == 3


def test_one_tensor_for_two_arguments_is_no_rule(long_ways):
    one, other = (testing.activations(N, K, seed) for seed in range(2))
    d = torch.empty(N, N, dtype=torch.bfloat16)
    for a, b in ((one, one), (other, other), (one, other), (other, one)):
        dg.bf16_gemm_nt(a, b, d.fill_(torch.nan))
        check(a, b, d)


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
    dg.fp8_gemm_nt(a, b, output())
    (kernel,) = jit.loaded()
    launches = []
    monkeypatch.setattr(kernel, "entry_point", lambda *arguments: launches.append(arguments) or 719)
    with pytest.raises(hip.HipError):
        dg.fp8_gemm_nt(a, b, output())
    assert len(launches) == 1


def test_splits_of_k_are_repeated(long_ways):
    for seed in range(2):
        a = testing.activations(3, 4096, seed)
        b = testing.weights(64, 4096, seed)
        c = torch.randn(3, 64, generator=torch.Generator().manual_seed(seed))
        for _ in range(2):
            d = torch.full((3, 64), torch.nan)
            dg.bf16_gemm_nt(a, b, d, c)
            check(a, b, d, c=c)
    assert len(jit.loaded()) == 2  # the parts, and their sum
    assert len(long_ways) == 1


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
