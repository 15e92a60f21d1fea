"""MXFP4 weights whose bits are shuffled: kernels that divide K alike give the bits that the weight has as it is."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from helpers.default_run import these
from test_fp4_gemm import BOTH, FORMS, as_form, check, check_groups, inputs, weight

import deep_gemm_rocm as dg
from deep_gemm_rocm.heuristics import GemmConfig
from deep_gemm_rocm.problems.gemm_kind import GemmKind
from deep_gemm_rocm.testing import assert_accurate, gemm_reference
from deep_gemm_rocm.testing.numerics import unshuffled

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)


@pytest.mark.parametrize("function", BOTH)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 264, 288), (300, 150, 160), (3, 24, 4096), (0, 8, 64), (5, 16, 0)])
def test_shapes(function, m, n, k):
    check(function, inputs(function, m, k), dg.shuffle_weight(*weight(n, k, (103, 130))))


@pytest.mark.parametrize("function", ["fp8", pytest.param("bf16", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "tile",
    [
        pytest.param(GemmConfig(32, 64, 1, 2, 3, "alone"), marks=pytest.mark.slow),
        GemmConfig(32, 32, 1, 1, 2, "alone", waves_k=4),
        GemmConfig(128, 128, 4, 2, 3, "pingpong"),
    ],
    ids=lambda tile: f"{tile.schedule}{tile.waves_k}",
)
def test_results_have_the_same_bits(use_config, function, tile):
    a, b = inputs(function, 40, 800), weight(70, 800, (103, 130))
    results = []
    for form in (b, dg.shuffle_weight(*b)):
        b_type = "e2m1" if form is b else "shuffled_e2m1"
        kind = GemmKind(
            "bf16" if function == "bf16" else "e4m3", b_type, "f32", "groups", k_tail=True, b_scale_type="e8m0"
        )
        use_config(dataclasses.replace(tile, kind=kind))
        results.append(check(function, a, form))
    assert torch.equal(*results)


@pytest.mark.parametrize("function", BOTH)
def test_each_code_and_scale_is_exact(function):
    """One row of a has a single 1, so each result is one value of b."""
    exponents = torch.arange(103, 131, dtype=torch.uint8)[:, None].repeat(1, 16)
    data = torch.arange(256, dtype=torch.uint8).repeat(28, 1)
    rows = torch.eye(512)
    a = rows.bfloat16() if function == "bf16" else (rows.to(torch.float8_e4m3fnuz), torch.ones(512, 4))
    d = check(function, a, dg.shuffle_weight(data, exponents))
    codes = torch.stack([data & 15, data >> 4], -1).flatten(1).long()
    values = torch.cat([E2M1, -E2M1])[codes] * torch.exp2(exponents.double() - 127).repeat_interleave(32, 1)
    assert torch.equal(d.double(), values.T)


@pytest.mark.parametrize("form", FORMS)
def test_any_form_of_scales(form):
    data, exponents = weight(50, 416)
    expected = dg.shuffle_weight(data, exponents)
    shuffled = dg.shuffle_weight(data.view(torch.uint8), as_form(exponents, form))
    assert all(map(torch.equal, shuffled, expected))
    assert [(part.dtype, part.shape) for part in shuffled] == [(torch.int64, (50, 26)), (torch.int32, (50, 4))]
    assert shuffled[1].stride() == (1, 50)  # so that lanes load neighbours
    strided = dg.shuffle_weight(data.T.contiguous().T, exponents.T.contiguous().T)
    assert all(map(torch.equal, strided, expected))


def test_groups_of_zeros_may_have_any_scale():
    data, exponents = weight(40, 256)
    data[3, :16], exponents[3, 0] = 0, 250
    data[4, :16], exponents[4, 0] = -128, 255  # 0 and -0
    exponents[5, 3] = 0
    a = inputs("fp8", 9, 256)
    d = check("fp8", a, dg.shuffle_weight(data, exponents))
    exponents[4, 0] = 0
    assert_accurate(d, gemm_reference(a, (data, exponents)))


def test_the_oracle_finds_the_codes():
    data, exponents = weight(9, 64)
    codes = torch.stack([data.view(torch.uint8) & 15, data.view(torch.uint8) >> 4], -1)
    codes[codes == 8] = 0
    back = unshuffled(*dg.shuffle_weight(data, exponents)).view(torch.uint8)
    assert torch.equal(torch.stack([back & 15, back >> 4], -1), codes)


@pytest.mark.parametrize("grouping", these(["contiguous", "psum", "masked"], ["masked"]))
def test_groups(grouping):
    check_groups(grouping, 70, 416, "shuffled")


@pytest.mark.parametrize("scale", [102, 131, 255])
@pytest.mark.parametrize("form", ["uint8", "float32"])
def test_other_scales_are_refused(scale, form):
    data, exponents = weight(16, 128)
    data[7, 30] = 1
    exponents[7, 1] = scale
    with pytest.raises(ValueError, match=r"scales must be powers of two from 2\^-24 to 2\^3, got others for 1 of 64"):
        dg.shuffle_weight(data, as_form(exponents, form))


DATA, SCALES = weight(16, 128)


@pytest.mark.parametrize(
    ("data", "scales", "error", "words"),
    [
        (DATA, SCALES.float() + 0.5, ValueError, "scales must be powers of two"),
        (DATA, SCALES.to("meta"), ValueError, "scales must be on the device of data, cpu, got meta"),
        (DATA, -SCALES.float(), ValueError, "scales must be powers of two"),
        (DATA.short(), SCALES, TypeError, "data must be"),
        (DATA, SCALES.half(), TypeError, "scales must be"),
        (DATA[:, :24], SCALES[:, :2], ValueError, "data must be .* multiple of 32"),
        (DATA[0], SCALES[0], ValueError, "data must be"),
        (DATA, SCALES[:, :3], ValueError, "scales must have shape"),
        (DATA.view(torch.int64), SCALES, TypeError, "data must be"),
    ],
)
def test_bad_arguments(data, scales, error, words):
    with pytest.raises(error, match=words):
        dg.shuffle_weight(data, scales)


def test_shuffled_data_take_their_own_scales():
    data, scales = dg.shuffle_weight(DATA, SCALES)
    a, d = inputs("fp8", 4, 128), torch.full((4, 16), 7.0)
    with pytest.raises(TypeError, match=r"b\[1\] must be"):
        dg.fp8_fp4_gemm_nt(a, (data, SCALES), d)
    with pytest.raises(ValueError, match=r"b\[0\] must have a sixteenth as many"):
        dg.fp8_fp4_gemm_nt(a, (data[:, :6], scales), d)
    assert (d == 7).all()


@pytest.mark.parametrize("x", [pytest.param("bf16", marks=pytest.mark.slow), "fp8"])
def test_experts(x):
    tokens, hidden, intermediate, experts = 9, 128, 96, 4
    weights = [
        tuple(map(torch.stack, zip(*(weight(rows, k, seed=seed) for seed in range(experts)), strict=True)))
        for rows, k in ((2 * intermediate, hidden), (hidden, intermediate))
    ]
    generator = torch.Generator().manual_seed(0)
    of_tokens = torch.rand(tokens, 2, generator=generator), torch.arange(2 * tokens).view(-1, 2).int() % experts
    results = [
        dg.fused_moe(inputs(x, tokens, hidden), *pair, *of_tokens)
        for pair in (weights, [dg.shuffle_weight(*one) for one in weights])
    ]
    assert results[0].any()
    assert torch.equal(*results)
