"""Merged results of attention, against attention to all keys and against fp64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg

INF = math.inf


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def merged(first, first_lse, second, second_lse):
    """In fp64; what has no keys counts for nothing."""
    lses = [lse.double().masked_fill(lse.isinf(), -INF) for lse in (first_lse, second_lse)]
    shares = torch.stack(lses).softmax(0)
    out = torch.zeros(first.shape, dtype=torch.float64)
    for values, own, share in zip((first, second), lses, shares, strict=True):
        weight = torch.where(own == -INF, 0.0, share).transpose(-1, -2)[..., None]
        out += torch.where(weight == 0, 0.0, weight * values.double())
    return out, torch.logaddexp(*lses)


def assert_merged(states, out=None):
    expected, expected_lse = merged(*states)
    found, lse = dg.merge_attention_states(*states, out=out)
    assert out is None or found is out
    assert found.dtype == states[0].dtype
    magnitude = torch.maximum(states[0].double().abs().nan_to_num(0), states[2].double().abs().nan_to_num(0))
    bound = expected.abs() * torch.finfo(found.dtype).eps / 2 + magnitude * 1e-5
    nans = expected.isnan()
    assert torch.equal(found.isnan(), nans)
    assert ((found.double() - expected).abs() <= bound)[~nans].all()
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-6, atol=1e-6, equal_nan=True)


@settings(max_examples=30, deadline=None)
@given(
    dtype=st.sampled_from([torch.bfloat16, torch.float16]),
    batch=st.one_of(st.none(), st.integers(1, 3)),
    tokens=st.integers(1, 20),
    heads=st.integers(1, 9),
    width=st.sampled_from([8, 64, 96, 128, 192, 512]),
    seed=st.integers(0, 99),
)
def test_any_form(dtype, batch, tokens, heads, width, seed):
    of_batch = () if batch is None else (batch,)
    values = [randn(*of_batch, tokens, heads, width, seed=seed + i, dtype=dtype) for i in range(2)]
    lses = [20 * randn(*of_batch, heads, tokens, seed=seed + i, dtype=torch.float32) for i in range(2, 4)]
    assert_merged((values[0], lses[0], values[1], lses[1]))


@pytest.mark.parametrize("width", [64, 128])
def test_two_chunks_of_keys_give_attention_to_all(width):
    q, k, v = (randn(2, tokens, heads, width, seed=heads) for tokens, heads in ((33, 8), (100, 2), (100, 2)))
    whole, lse = dg.flash_attention(q, k, v, return_lse=True)
    parts = [dg.flash_attention(q, k[:, chunk], v[:, chunk], return_lse=True) for chunk in (slice(37), slice(37, None))]
    found, found_lse = dg.merge_attention_states(*parts[0], *parts[1])
    assert (found.double() - whole.double()).abs().max() < 0.01
    torch.testing.assert_close(found_lse, lse, rtol=1e-4, atol=1e-4)


def test_queries_without_keys():
    first, second = randn(4, 2, 64), randn(4, 2, 64, seed=1)
    first[0] = second[1] = first[2] = second[2] = torch.nan  # never written, say
    first_lse = torch.tensor([[-INF, 1.0, -INF, 2.0], [INF, 1.0, INF, -3.0]])
    second_lse = torch.tensor([[0.5, -INF, INF, 2.0], [0.5, INF, -INF, 80.0]])
    found, lse = dg.merge_attention_states(first, first_lse, second, second_lse)
    assert torch.equal(found[0], second[0])
    assert torch.equal(found[1], first[1])
    assert (found[2] == 0).all()
    assert (lse[:, 2] == -INF).all()
    assert lse[0, :2].tolist() == [0.5, 1.0]
    assert_merged((first, first_lse, second, second_lse))


def test_far_apart_sums_and_what_is_no_number():
    values = randn(6, 1, 64), randn(6, 1, 64, seed=1)
    values[0][4, 0, 3] = torch.nan
    lses = torch.tensor([[-300.0, 88.0, 1e30, torch.nan, 0, 0]]), torch.tensor([[300.0, -88.0, 1e30, 0, 0, torch.nan]])
    assert_merged((values[0], lses[0], values[1], lses[1]))


@pytest.mark.parametrize("into", ["first", "second", "other"])
def test_strided_and_in_place(into):
    wide = [torch.full((2, 6, 5, 160), 7.0).bfloat16() for _ in range(3)]
    views = [tensor[:, 1:4, ::2, 16:144] for tensor in wide]
    for seed, view in enumerate(views):
        view.copy_(randn(*view.shape, seed=seed))
    lses = [randn(3, 2, 3, seed=seed, dtype=torch.float32).permute(1, 0, 2) for seed in (5, 6)]
    out = {"first": views[0], "second": views[1], "other": views[2]}[into]
    states = (views[0], lses[0], views[1], lses[1])
    expected, _ = merged(*states)
    kept = [tensor.clone() for tensor in wide]
    dg.merge_attention_states(*states, out=out)
    assert (out.double() - expected).abs().max() < 0.02
    out.fill_(0)
    for tensor, before, view in zip(wide, kept, views, strict=True):
        if view is out:
            before[:, 1:4, ::2, 16:144] = 0
        assert torch.equal(tensor, before)


def test_many_vectors():
    states = (randn(1, 700, 5, 96), randn(1, 5, 700, dtype=torch.float32), randn(1, 700, 5, 96, seed=1))
    assert_merged((*states, randn(1, 5, 700, seed=2, dtype=torch.float32)))


def test_repeated_calls_with_other_memory():
    for seed in range(4):
        states = [randn(1, 3, 2, 64, seed=seed), randn(1, 2, 3, seed=seed, dtype=torch.float32)]
        assert_merged((*states, *(tensor.flip(0) * 2 for tensor in states)))


@pytest.mark.parametrize("shape", [(0, 2, 64), (2, 0, 3, 64), (0, 5, 3, 8)])
def test_nothing_to_merge(shape):
    *batch, tokens, heads, _ = shape
    out, lse = dg.merge_attention_states(*[randn(*shape), torch.zeros(*batch, heads, tokens)] * 2)
    assert out.shape == shape
    assert lse.shape == (*batch, heads, tokens)


def test_nothing_shares_no_memory():
    """NumPy gives arrays without elements to torch with strides of 0."""
    first, second = (torch.empty_strided((0, 2, 64), (0, 0, 0), dtype=torch.bfloat16) for _ in range(2))
    sums = torch.empty_strided((2, 0), (0, 0))
    assert dg.merge_attention_states(first, sums, second, sums, out=first)[0] is first
    within = randn(3, 2, 64)
    dg.merge_attention_states(within[1:1], sums, second, sums, out=within[2:2])


GOOD = {
    "first": randn(3, 2, 64),
    "first_lse": torch.zeros(2, 3),
    "second": randn(3, 2, 64),
    "second_lse": torch.ones(2, 3),
}


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        ({"first": randn(3, 2, 64).float()}, TypeError, "first must be bfloat16 or float16"),
        ({"second": randn(3, 2, 64).half()}, TypeError, "second must have the dtype of first"),
        ({"second": randn(3, 2, 32)}, ValueError, r"second must have the shape of first, \(3, 2, 64\)"),
        ({"first": randn(3, 64)}, ValueError, r"first must be \[B, S, H, D\]"),
        ({"first": randn(3, 2, 60), "second": randn(3, 2, 60)}, ValueError, "a multiple of 8 contiguous values"),
        ({"first": randn(3, 64, 2).mT}, ValueError, "a multiple of 8 contiguous values"),
        ({"first": randn(3, 2, 65)[..., 1:]}, ValueError, "must start at multiples of 16 bytes"),
        ({"first_lse": torch.zeros(3, 2)}, ValueError, r"first_lse must have shape \(2, 3\)"),
        ({"second_lse": torch.zeros(2, 3).half()}, TypeError, "second_lse must be float32"),
        ({"out": randn(3, 2, 128)[..., 32:96].float()}, TypeError, "out must be bfloat16"),
        ({"out": torch.zeros(1, 1, 64).bfloat16().expand(3, 2, 64)}, ValueError, "must not overlap"),
        ({"first": [1]}, TypeError, "first must be"),
    ],
)
def test_errors_name_the_argument(bad, error, message):
    with pytest.raises(error, match=message):
        dg.merge_attention_states(**{**GOOD, **bad})


def test_output_within_an_input():
    storage = randn(5, 2, 64)
    with pytest.raises(ValueError, match="out must not share memory with first"):
        dg.merge_attention_states(**{**GOOD, "first": storage[:3]}, out=storage[1:4])
