"""int4 weights of all packings in the form that kernels take, against the packers' definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.int4_packings import PACKINGS, int4
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg


def codes_of(data: torch.Tensor) -> torch.Tensor:
    """Codes 0 to 3 of eight, less 8, are in the low halves of four bytes, 4 to 7 in the high ones."""
    both = data.view(torch.uint8).unflatten(-1, (-1, 4)).long()
    return (torch.cat((both % 16, both // 16), -1).flatten(-2) + 8) % 16


def scales_and_zeros_of(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    bits = packed.numpy().view(np.uint32)
    return torch.from_numpy((bits // 32 * 32).view(np.float32).copy()), torch.from_numpy((bits % 32).astype(np.int64))


@pytest.mark.parametrize("packing", ["compressed-tensors", "awq", "gptq"])
@pytest.mark.parametrize("with_zeros", [False, True])
def test_without_k(packing, with_zeros):
    by_rows = packing == "compressed-tensors"
    weight = torch.zeros((16, 0) if by_rows else (0, 2) if packing == "awq" else (0, 16), dtype=torch.int32)
    scales = torch.zeros((16, 0) if by_rows else (0, 16))
    zeros = torch.zeros((2, 0) if by_rows else (0, 2), dtype=torch.int32) if with_zeros else None
    data, factors = dg.repack_int4(weight, scales, zeros, packing=packing)
    assert (data.dtype, data.shape, factors.shape) == (torch.int32, (16, 0), (16, 0))


def test_values_that_decide_are_needed():
    weight, scales = (torch.zeros(16, 16, dtype=torch.int32, device="meta"), torch.ones(16, 4, device="meta"))
    zeros, g_idx = torch.zeros(2, 4, dtype=torch.int32, device="meta"), torch.arange(128) // 32
    assert dg.repack_int4(weight, scales, packing="compressed-tensors")[0].is_meta
    for other in ({"zeros": zeros}, {"g_idx": g_idx}):
        with pytest.raises(ValueError, match="must be None for meta tensors"):
            dg.repack_int4(weight, scales, packing="compressed-tensors", **other)


@settings(max_examples=60, deadline=None)
@given(
    packing=st.sampled_from(PACKINGS),
    units=st.tuples(st.integers(1, 5), st.integers(1, 6)),
    group=st.sampled_from([32, 64, 96, 128, 256]),
    with_zeros=st.booleans(),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
    strided=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_codes_scales_and_zeros(packing, units, group, with_zeros, dtype, strided, seed):
    n, k = 8 * units[0], group * units[1]
    weight = int4(packing, n, k, group, with_zeros, dtype, seed)
    given = [None if part is None else part.clone() for part in weight.arguments]
    if strided:
        given = [None if part is None else torch.stack((part, part), -1).flatten(-2)[:, ::2] for part in given]
    g_idx = torch.arange(k) // group if packing.startswith("gptq") else None
    data, scales = dg.repack_int4(*given, packing=packing, g_idx=g_idx)
    assert (data.dtype, data.shape, data.is_contiguous()) == (torch.int32, (n, k // 8), True)
    assert torch.equal(codes_of(data), weight.codes)
    parts = {32: 1, 64: 1, 96: 3, 128: 1, 256: 2}[group]  # of a group, with scales of their own
    expected, zeros = (part.repeat_interleave(parts, 1) for part in (weight.scales, weight.zeros))
    assert scales.mT.is_contiguous()
    if (zeros != 8).any():
        assert scales.dtype == torch.int32
        factors, packed_zeros = scales_and_zeros_of(scales)
        assert torch.equal(packed_zeros, zeros)
        if dtype == torch.float32:
            assert ((factors - expected).abs() <= 2.0**-19 * expected).all()
        else:
            assert torch.equal(factors, expected.float())
    else:
        assert scales.dtype == (dtype if group in (32, 96) else torch.float32)
        assert torch.equal(scales, expected.to(scales.dtype))


@pytest.mark.parametrize("packing", ["compressed-tensors", "gptq", "gptq_v2"])
@pytest.mark.parametrize("n", [1, 5, 12])
def test_zeros_of_rows_that_fill_no_word(packing, n):
    weight = int4(packing, n, 64, 32, True)
    _, zeros = scales_and_zeros_of(dg.repack_int4(*weight.arguments, packing=packing)[1])
    assert torch.equal(zeros, weight.zeros)


def test_the_largest_zero_of_gptq_is_16():
    """AutoGPTQ stores 15 for it, and adds 1 without a mask."""
    zeros = torch.full((2, 1), -1, dtype=torch.int32)
    arguments = (torch.zeros(8, 8, dtype=torch.int32), torch.ones(2, 8), zeros)
    assert (scales_and_zeros_of(dg.repack_int4(*arguments, packing="gptq")[1])[1] == 16).all()
    assert (scales_and_zeros_of(dg.repack_int4(*arguments, packing="gptq_v2")[1])[1] == 15).all()


def test_zeros_of_8_need_no_room_and_bad_scales_stay_bad():
    zeros = torch.full((2, 1), 0x77777777, dtype=torch.int32)  # AutoGPTQ's for weights without zeros
    words, scales = torch.zeros(8, 8, dtype=torch.int32), torch.ones(2, 8).half()
    repacked = dg.repack_int4(words, scales, zeros, packing="gptq")[1]
    assert torch.equal(repacked, scales.T.float())
    bad = torch.tensor([torch.nan, torch.inf, -torch.inf, 3.4e38, -1.0, 0.0, 1e-40, 2.0]).repeat(2, 1)
    factors, _ = scales_and_zeros_of(dg.repack_int4(words, bad, zeros, packing="gptq_v2")[1])
    assert not factors[:3].isfinite().any()
    assert torch.allclose(factors[3:], bad.T[3:], rtol=2.0**-19, atol=2.0**-144)


def test_whole_rows_share_a_scale():
    weight = int4("compressed-tensors", 8, 192, 192, False)
    data, scales = dg.repack_int4(*weight.arguments, packing="compressed-tensors")
    assert torch.equal(codes_of(data), weight.codes)
    assert torch.equal(scales, weight.scales.expand(8, 3))


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("with_zeros", [False, True])
def test_experts(packing, with_zeros):
    weights = [int4(packing, 16, 128, 32, with_zeros, seed=seed) for seed in range(3)]
    parts = zip(*(weight.arguments for weight in weights), strict=True)
    arguments = [None if of_experts[0] is None else torch.stack(of_experts) for of_experts in parts]
    repacked = dg.repack_int4(*arguments, packing=packing)
    for expert, weight in enumerate(weights):
        alone = dg.repack_int4(*weight.arguments, packing=packing)
        assert all(torch.equal(part[expert], own) for part, own in zip(repacked, alone, strict=True))


@pytest.mark.parametrize("packing", ["compressed-tensors", "gptq"])
def test_rows_in_order_of_activations_are_refused(packing):
    weight = int4(packing, 8, 128, 32, True)
    in_order = torch.arange(128, dtype=torch.int32) // 32
    dg.repack_int4(*weight.arguments, packing=packing, g_idx=in_order)
    for g_idx in (in_order.flip(0), in_order[torch.randperm(128)], torch.zeros_like(in_order)):
        with pytest.raises(ValueError, match=r"g_idx must be k // 32 for row k: .* convert_int4_to_fp8 takes them"):
            dg.repack_int4(*weight.arguments, packing=packing, g_idx=g_idx)


GOOD = {"weight": torch.zeros(8, 8).int(), "scales": torch.ones(8, 2), "packing": "compressed-tensors"}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"weight": torch.zeros(8, 8)}, TypeError, "weight must be int32, eight values to an element"),
        ({"weight": torch.zeros(8).int()}, ValueError, "weight must be a matrix"),
        ({"scales": torch.ones(1, 8, 2)}, ValueError, "scales must be a matrix, or as all others one for each expert"),
        ({"scales": torch.ones(8, 2).int()}, TypeError, "scales must be bfloat16, float16 or float32"),
        ({"scales": torch.ones(7, 2)}, ValueError, r"scales must be \[N, K/g\] with N=8"),
        ({"scales": torch.ones(8, 4)}, ValueError, "scales must be for groups of a multiple of 32 values"),
        ({"scales": torch.ones(8, 3)}, ValueError, "equal groups of the 64 values of a row, got 3"),
        ({"packing": "awq"}, ValueError, r"scales must be \[K/g, N\] with N=64"),
        ({"packing": "marlin"}, ValueError, "packing must be one of compressed-tensors, awq"),
        (
            {"packing": "awq", "weight": torch.zeros(7, 8).int(), "scales": torch.ones(7, 64)},
            ValueError,
            "weight must have an even number of rows",
        ),
        ({"zeros": torch.zeros(2, 2).int()}, ValueError, r"zeros must be \[ceil\(N/8\), K/g\]"),
        ({"zeros": torch.zeros(1, 2)}, TypeError, "zeros must be int32"),
        ({"g_idx": torch.zeros(64)}, TypeError, "g_idx must be int32 or int64"),
        ({"g_idx": torch.zeros(8).int()}, ValueError, "g_idx must be the group of each of 64 rows"),
        ({"g_idx": torch.full((64,), 2)}, ValueError, "g_idx must be from 0 to 1, the groups that have scales"),
        ({"g_idx": torch.full((64,), -1)}, ValueError, "g_idx must be from 0 to 1"),
    ],
)
def test_errors_name_the_argument(change, error, message):
    dg.repack_int4(**GOOD)
    with pytest.raises(error, match=message):
        dg.repack_int4(**{**GOOD, **change})
