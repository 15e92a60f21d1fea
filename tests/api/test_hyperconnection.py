"""GEMM with sums of squares, against fp64."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from helpers.gemm_configs import SQUARES, config_id
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.heuristics import forced
from deep_gemm_rocm.runtime import hip
from deep_gemm_rocm.testing import GuardedOutput, activations, assert_accurate, gemm_reference

HALF_UNIT = 2.0**-24
LOST_BITS = 2.0**-20  # relative error of splitting fp32 into two xf32


@dataclasses.dataclass
class Problem:
    m: int
    n: int
    k: int
    num_splits: int | None = None

    def __post_init__(self) -> None:
        # The columns after each row are NaN, which nothing may read.
        self.a = torch.full((self.m, self.k + 16), torch.nan, dtype=torch.bfloat16)[:, : self.k]
        self.a.copy_(activations(self.m, self.k))
        self.b = torch.full((self.n, self.k + 8), torch.nan)[:, : self.k]
        self.b.copy_(torch.randn(self.n, self.k, generator=torch.Generator().manual_seed(1)))

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns both outputs after checking their sums over the splits, and the outputs' surroundings."""
        splits = () if self.num_splits is None else (self.num_splits,)
        parts = self.num_splits or 1
        output = GuardedOutput(parts * self.m, self.n, dtype=torch.float32)
        squares = GuardedOutput(1, parts * self.m, dtype=torch.float32)
        d, sqr_sum = output.tensor.view(*splits, self.m, self.n), squares.tensor.view(*splits, self.m)
        assert dg.tf32_hc_prenorm_gemm(self.a, self.b, d, sqr_sum, self.num_splits) is None
        output.assert_intact()
        squares.assert_intact()
        self.check(d.view(parts, self.m, self.n).double().sum(0), sqr_sum.view(parts, self.m).double().sum(0))
        return d, sqr_sum

    def check(self, d: torch.Tensor, sqr_sum: torch.Tensor) -> None:
        reference = gemm_reference(self.a.float(), self.b)
        lost = LOST_BITS * (self.a.double().abs() @ self.b.double().abs().T)
        assert_accurate(d.float(), dataclasses.replace(reference, error=reference.error + lost))
        exact = self.a.double().square().sum(1)
        assert ((sqr_sum - exact).abs() <= (self.k / 8 + 4) * HALF_UNIT * exact).all()


@pytest.mark.parametrize("num_splits", [None, 1, 3, 16])
@pytest.mark.parametrize("m", [13, pytest.param(64, marks=pytest.mark.slow), 137])
def test_shapes(m, num_splits):
    Problem(m, 24, 712, num_splits).run()


def test_more_splits_than_k_has_blocks():
    d, sqr_sum = Problem(5, 24, 72, 7).run()
    assert (d[3:] == 0).all()
    assert (sqr_sum[3:] == 0).all()


def test_no_k_at_all():
    Problem(5, 24, 0, 2).run()


def test_many_columns_have_the_same_sums_of_squares():
    _, few = Problem(20, 1, 320).run()
    _, many = Problem(20, 300, 320).run()
    assert torch.equal(few, many)


def test_infinities_and_nan_of_b():
    problem = Problem(4, 24, 64)
    problem.b[3, 5] = torch.inf
    problem.b[7, 9] = torch.tensor(0x7F800001, dtype=torch.int32).view(torch.float32)  # a NaN only by its last bit
    problem.a[:, 5] = 1
    d, sqr_sum = torch.empty(4, 24), torch.empty(4)
    dg.tf32_hc_prenorm_gemm(problem.a, problem.b, d, sqr_sum)
    assert (d[:, 3] == torch.inf).all()
    assert d[:, 7].isnan().all()
    assert d[:, [c for c in range(24) if c not in (3, 7)]].isfinite().all()


@settings(max_examples=15, deadline=None)
@given(
    m=st.integers(0, 150),
    n=st.integers(1, 70),
    chunks=st.integers(0, 60),
    num_splits=st.one_of(st.none(), st.integers(1, 20)),
)
def test_any_shape(m, n, chunks, num_splits):
    Problem(m, n, 8 * chunks, num_splits).run()


@pytest.mark.parametrize("config", SQUARES, ids=config_id)
def test_every_tile_without_races(monkeypatch, config):
    if not hip.runtime().is_simulated:
        pytest.skip("needs the simulator")
    monkeypatch.setenv("DG_SIM_SANITIZE", "2")
    with forced(config):
        Problem(config.block_m + 3, 40, 512 + (40 if config.kind.k_tail else 0), 3).run()


@pytest.mark.slow
@pytest.mark.parametrize("k", [28672, 7680, 7168])
@pytest.mark.parametrize("m", [13, 137, 4096])
def test_shapes_of_models(m, k):
    Problem(m, 24, k).run()
    Problem(m, 24, k, 16).run()


A, B = torch.zeros(16, 64).bfloat16(), torch.zeros(24, 64)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"a": None}, TypeError, "a must be a torch.Tensor, got NoneType"),
        ({"a": A.float()}, TypeError, "a must be bfloat16, got torch.float32"),
        ({"b": B.bfloat16()}, TypeError, "b must be float32, got torch.bfloat16"),
        ({"b": B[:, :32]}, ValueError, r"a and b must agree in K, their last dimension, got \(16, 64\) and \(24, 32\)"),
        ({"b": B[:0]}, ValueError, r"b must have at least one row, got shape \(0, 64\)"),
        ({"a": A[:, :60], "b": B[:, :60]}, ValueError, "K must be a multiple of 8, got 60"),
        ({"a": torch.zeros(64, 16).bfloat16().T}, ValueError, r"rows of a must be contiguous, got strides \(1, 16\)"),
        ({"b": torch.zeros(24, 65)[:, :64]}, ValueError, "rows of b must be a multiple of 16 bytes apart"),
        ({"d": torch.full((16, 24), 7.0).double()}, TypeError, "d must be float32"),
        ({"d": torch.full((2, 16, 24), 7.0)}, ValueError, r"d must have shape \(16, 24\), got \(2, 16, 24\)"),
        ({"num_splits": 2}, ValueError, r"d must have shape \(2, 16, 24\), got \(16, 24\)"),
        ({"num_splits": 0}, ValueError, "num_splits must be at least 1, got 0"),
        ({"num_splits": 2.0}, TypeError, "num_splits must be an int, got float"),
        ({"sqr_sum": torch.zeros(15)}, ValueError, r"sqr_sum must have shape \(16,\), got \(15,\)"),
        ({"sqr_sum": torch.zeros(32)[::2]}, ValueError, "sqr_sum must .*contiguous"),
        ({"sqr_sum": torch.zeros(16).half()}, TypeError, "sqr_sum must be float32, got torch.float16"),
    ],
)
def test_bad_arguments(changes, error, message):
    arguments = {"a": A, "b": B, "d": torch.full((16, 24), 7.0), "sqr_sum": torch.zeros(16), **changes}
    with pytest.raises(error, match=message):
        dg.tf32_hc_prenorm_gemm(**arguments)
    assert (arguments["d"] == 7).all()


def test_outputs_must_not_share_memory():
    d = torch.full((16, 24), 7.0)
    with pytest.raises(ValueError, match="d must not share memory with sqr_sum"):
        dg.tf32_hc_prenorm_gemm(A, B, d, d.view(-1)[:16])
    assert (d == 7).all()
