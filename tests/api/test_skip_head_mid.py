"""GEMM with a gap in each head's columns gives the same bits as without, and doesn't write the gaps."""

from __future__ import annotations

import itertools

import pytest
import torch
from helpers.default_run import these
from helpers.gemm_configs import HEADS, each_tile
from helpers.host_memory import reserved
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.heuristics import forced
from deep_gemm_rocm.problems.gemm_kind import PARTS_OF_B
from deep_gemm_rocm.runtime import hip
from deep_gemm_rocm.testing import GuardedOutput, assert_accurate, gemm_problem, gemm_reference

FP8 = torch.float8_e4m3fnuz
BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}


def run(m, heads, splits, k, dtype=torch.bfloat16, columns=8, recipe=None, **hooks):
    left, mid, right = splits
    a, b = gemm_problem(m, heads * (left + right) * PARTS_OF_B[hooks.get("epilogue", "identity")], k)
    if recipe == (1, 1, 128):
        b = b[0], torch.rand(heads * (left + right), -(-k // 128))
    output = GuardedOutput(m, heads * sum(splits), columns, dtype=dtype)
    poison = output.tensor.clone().view(BITS[dtype])
    assert dg.fp8_gemm_nt_skip_head_mid(a, b, output.tensor, splits, recipe, **hooks) is None
    output.assert_intact()
    by_head = output.tensor.unflatten(1, (heads, -1))
    gaps = (slice(None), slice(None), slice(left, left + mid))
    bits = by_head.view(BITS[dtype])
    assert torch.equal(bits[gaps], poison.unflatten(1, (heads, -1))[gaps])
    whole = torch.cat([by_head[..., :left], by_head[..., left + mid :]], 2).flatten(1)
    assert_accurate(whole, gemm_reference(a, b, recipe=recipe or (1, 128, 128), **hooks))
    return whole


@pytest.mark.parametrize("dtype", these(BITS, [torch.bfloat16, torch.float32]))
@pytest.mark.parametrize(
    "splits", [(128, 64, 128), (8, 16, 24), (0, 8, 40), (40, 8, 0), (24, 0, 16), (3, 5, 7)], ids=str
)
def test_splits(splits, dtype):
    run(33, 3, splits, 272, dtype)


def test_outputs_that_are_not_aligned_and_other_recipes():
    run(5, 4, (16, 8, 24), 128, columns=3)
    run(5, 4, (16, 8, 24), 272, torch.float32, recipe=(1, 1, 128))


@pytest.mark.parametrize(
    ("with_bias", "epilogue"),
    these(
        itertools.product((False, True), ("identity", "silu_and_mul")), [(False, "identity"), (True, "silu_and_mul")]
    ),
)
@pytest.mark.parametrize("splits", [(64, 16, 64), (40, 3, 88)], ids=str)
def test_bias_and_activation(splits, with_bias, epilogue):
    rows_of_b = 3 * 128 * PARTS_OF_B[epilogue]
    bias = torch.randn(rows_of_b, generator=torch.Generator().manual_seed(5)) if with_bias else None
    run(33, 3, splits, 272, bias=bias, epilogue=epilogue)


def test_the_same_bits_as_without_gaps():
    a, b = gemm_problem(40, 640, 256)
    assert torch.equal(dg.gemm_fp8(a, b), run(40, 5, (64, 32, 64), 256))


def test_rows_past_4_gib():
    m, splits = 600, (16, 8, 24)
    a, b = gemm_problem(m, 120, 128)
    d = reserved(m * 2**23).view(torch.bfloat16).as_strided((m, 144), (2**22, 1))
    dg.fp8_gemm_nt_skip_head_mid(a, b, d, splits)
    by_head = d.unflatten(1, (3, 48))
    assert (by_head[..., 16:24] == 0).all()
    whole = torch.cat([by_head[..., :16], by_head[..., 24:]], 2).flatten(1)
    assert torch.equal(whole, dg.gemm_fp8(a, b))


@settings(max_examples=12, deadline=None)
@given(
    m=st.integers(0, 70),
    heads=st.integers(1, 9),
    left=st.integers(0, 70),
    mid=st.integers(0, 40),
    right=st.integers(1, 70),
    unit=st.sampled_from([1, 4, 8]),
)
def test_any_heads(m, heads, left, mid, right, unit):
    run(m, heads, tuple(-(-x // unit) * unit for x in (left, mid, right)), 144)


@each_tile(HEADS)
def test_every_tile_without_races(monkeypatch, config):
    if not hip.runtime().is_simulated:
        pytest.skip("needs the simulator")
    monkeypatch.setenv("DG_SIM_SANITIZE", "2")
    kind = config.kind
    dtype, recipe = (torch.float32, (1, 1, 128)) if kind.scaling == "vectors" else (torch.bfloat16, None)
    with forced(config):
        run(config.block_m + 3, 5, (48, 8, 40), 256 + (16 if kind.k_tail else 0), dtype, recipe=recipe)


@pytest.mark.slow
@pytest.mark.parametrize("m", [128, 4096])
def test_shapes_of_models(m):
    run(m, 128, (128, 64, 128), 512)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"head_splits": None}, TypeError, "head_splits must be a tuple of 3 ints, got None"),
        ({"head_splits": (8, 8)}, TypeError, r"head_splits must be a tuple of 3 ints, got \(8, 8\)"),
        ({"head_splits": (8, 8.0, 8)}, TypeError, r"head_splits\[1\] must be an int, got float"),
        ({"head_splits": (8, -8, 8)}, ValueError, r"head_splits\[1\] must be at least 0, got -8"),
        ({"head_splits": (0, 8, 0)}, ValueError, "columns on the left or right"),
        ({"head_splits": (24, 8, 16)}, ValueError, r"b\[0\] must have a multiple of 40 rows.*got 96"),
        ({"head_splits": (16, 16, 16)}, ValueError, r"d must have shape \(16, 144\), got \(16, 120\)"),
        ({"recipe": (1, 32, 32)}, NotImplementedError, "fp8_gemm_nt_skip_head_mid has kernels for the recipes"),
        ({"d": None}, TypeError, "d must be a torch.Tensor"),
        ({"d": (torch.zeros(16, 120), torch.zeros(16, 1))}, TypeError, "d must be a torch.Tensor, got tuple"),
        ({"bias": torch.zeros(120)}, ValueError, r"bias must have shape \(96,\)"),
        ({"epilogue": "gelu"}, ValueError, "epilogue must be one of"),
        (
            {"b": (torch.zeros(96, 128).to(FP8), torch.ones(96, 1)), "recipe": (1, 1, 128), "epilogue": "silu_and_mul"},
            ValueError,
            r"b\[0\] must have a multiple of 64 rows.*got 96",
        ),
        ({"a": None}, TypeError, "a must be a pair"),
    ],
)
def test_bad_arguments(changes, error, message):
    a, b = gemm_problem(16, 96, 128)
    d = torch.full((16, 120), 7.0)
    with pytest.raises(error, match=message):
        dg.fp8_gemm_nt_skip_head_mid(**{"a": a, "b": b, "d": d, "head_splits": (16, 8, 16), **changes})
    assert (d == 7).all()
