"""Shuffled weights: layout, results with groups, and errors."""

from __future__ import annotations

import pytest
import torch

import deep_gemm_rocm as dg
from deep_gemm_rocm.testing import activations, gemm_problem, grouped_weights


@pytest.mark.parametrize(("dtype", "values"), [(torch.float8_e4m3fnuz, 16), (torch.bfloat16, 8), (torch.float16, 8)])
@pytest.mark.parametrize("groups", [(), (3,)])
def test_every_value_has_its_place(dtype, values, groups):
    n, k = 48, 256
    numbers = torch.arange(3 * n * k)[: n * k * (groups[0] if groups else 1)]
    b = (numbers % 64).reshape(*groups, n, k).to(dtype)
    shuffled = dg.shuffle_weight(b.mT.contiguous().mT)
    assert shuffled.shape == (*groups, n // 16, k // (8 * values), 8, 16, values)
    assert shuffled.is_contiguous()
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        group = tuple(torch.randint(size, (1,), generator=generator).item() for size in groups)
        row, column = (torch.randint(size, (1,), generator=generator).item() for size in (n, k))
        place = (row // 16, column // (8 * values), column // values % 8, row % 16, column % values)
        assert shuffled[(*group, *place)] == b[(*group, row, column)]


@pytest.mark.parametrize("grouping", ["ids", "psum", "masked"])
def test_groups_give_the_same_bits(grouping):
    a, b = dg.per_token_cast_to_fp8(activations(384, 512)), grouped_weights(3, 272, 512)
    results = []
    for data in (b[0], dg.shuffle_weight(b[0])):
        d = torch.zeros(384, 272, dtype=torch.bfloat16)
        if grouping == "masked":
            a_of_groups = tuple(t.unflatten(0, (3, 128)) for t in a)
            layout = torch.tensor([100, 0, 128]).int()
            dg.m_grouped_fp8_gemm_nt_masked(a_of_groups, (data, b[1]), d.unflatten(0, (3, 128)), layout, 64)
        else:
            ends, ids = torch.tensor([100, 256, 380]).int(), torch.arange(3).repeat_interleave(128).int()
            layout = ends if grouping == "psum" else ids
            dg.m_grouped_fp8_gemm_nt_contiguous(a, (data, b[1]), d, layout, use_psum_layout=grouping == "psum")
        results.append(d.view(torch.int16))
    assert torch.equal(*results)
    assert results[0].any()


def test_a_group_of_a_shuffled_weight_is_a_shuffled_weight():
    a, b = dg.per_token_cast_to_fp8(activations(5, 256)), grouped_weights(3, 160, 256)
    expected = dg.gemm_fp8(a, (b[0][1], b[1][1]))
    assert torch.equal(dg.gemm_fp8(a, (dg.shuffle_weight(b[0])[1], b[1][1])), expected)


@pytest.mark.parametrize(
    ("weight", "error", "message"),
    [
        (torch.zeros(40, 128).bfloat16(), ValueError, r"N must be a multiple of 16 .*\(40, 128\)"),
        (torch.zeros(32, 96).bfloat16(), ValueError, "K one of 64"),
        (torch.zeros(32, 192).to(torch.float8_e4m3fnuz), ValueError, "K one of 128"),
        (torch.zeros(32, 128), TypeError, "b must be FP8 of this hardware, bf16 or f16, got torch.float32"),
        (torch.zeros(32, 128).to(torch.float8_e4m3fn), TypeError, "b must be FP8 of this hardware"),
        (torch.zeros(128).bfloat16(), ValueError, "b must have two dimensions, or three"),
        (None, TypeError, "b must be a torch.Tensor, got NoneType"),
    ],
)  # fmt: skip
def test_what_cannot_be_shuffled(weight, error, message):
    with pytest.raises(error, match=message):
        dg.shuffle_weight(weight)


def test_bad_shuffled_weights():
    a, b = gemm_problem(16, 64, 256)
    d = torch.zeros(16, 64).bfloat16()
    shuffled = dg.shuffle_weight(b[0])
    for bad, message in (
        (shuffled.mT, r"b\[0\] must be a matrix, or contiguous as shuffle_weight returns it"),
        (shuffled[:, :, ::2], "or contiguous as shuffle_weight returns it"),
        (shuffled[:, :1], "or contiguous as shuffle_weight returns it"),
        (shuffled[:3], r"b\[1\] must have shape|d must have shape"),
        (shuffled[None], r"b\[0\] must be a matrix, got shape \(1, 64, 256\)"),
    ):
        with pytest.raises(ValueError, match=message):
            dg.fp8_gemm_nt(a, (bad, b[1]), d)
    with pytest.raises(ValueError, match="or contiguous as shuffle_weight returns it"):
        dg.fp8_gemm_nn(a, (shuffled, b[1].T), d)
    assert not d.any()
