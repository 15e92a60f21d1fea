"""Einstein sums over a batch, computed with split K, against the fp64 oracles of the parts."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from helpers.gemm_configs import SUMMED, each_tile
from helpers.host_memory import reserved
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.heuristics import choose_k_splits, forced
from deep_gemm_rocm.runtime import hip
from deep_gemm_rocm.testing import GemmReference, GuardedOutput, assert_accurate, gemm_reference

BLOCK_K = 64
HALF_UNIT = 2.0**-24


@dataclasses.dataclass
class Problem:
    groups: int
    m: int
    n: int
    k: int
    accumulate: bool = False
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.groups + self.k)
        self.a = torch.randn(self.groups, self.m, self.k, generator=generator).bfloat16()
        self.b = torch.randn(self.groups, self.n, self.k, generator=generator).bfloat16()
        self.c = torch.randn(self.m, self.n, generator=generator).to(self.dtype) if self.accumulate else None

    def run(self, expr: str = "bmk,bnk->mn", *, in_place: bool = False) -> torch.Tensor:
        """Returns the result after checking it, and the output's surroundings, against the oracle."""
        operands = {"bmk": self.a, "bkm": rows_contiguous(self.a)}, {"bnk": self.b, "bkn": rows_contiguous(self.b)}
        output = GuardedOutput(self.m, self.n, dtype=self.dtype)
        c = output.tensor.copy_(self.c) if in_place and self.c is not None else self.c
        a, b = (named[letters] for named, letters in zip(operands, expr.split("->")[0].split(","), strict=True))
        assert dg.einsum(expr, a, b, output.tensor, c) is None
        output.assert_intact()
        assert_accurate(output.tensor, self.reference())
        return output.tensor

    def reference(self) -> GemmReference:
        """The sum, in order, of the references of the parts."""
        a, b = (
            torch.nn.functional.pad(x, (0, -self.k % BLOCK_K)).permute(1, 0, 2).flatten(1) for x in (self.a, self.b)
        )
        blocks = a.shape[1] // BLOCK_K
        splits = choose_k_splits(self.m, self.n, blocks)
        sizes = [blocks // splits + (part < blocks % splits) for part in range(splits)]
        exact = torch.zeros(self.m, self.n, dtype=torch.float64)
        error = torch.zeros_like(exact)
        parts = zip(*(x.split([size * BLOCK_K for size in sizes], 1) for x in (a, b)), strict=True)
        for part in parts:
            reference = gemm_reference(*part, recipe=(1, 1, None))
            exact += reference.exact
            error += reference.error + HALF_UNIT * (splits > 1) * (exact.abs() + error)
        if self.c is not None:
            exact = exact + self.c.double()
            error += HALF_UNIT * exact.abs()
        return GemmReference(exact, error)


def rows_contiguous(x: torch.Tensor) -> torch.Tensor:
    """[groups, k, rows] with 16-byte aligned rows."""
    groups, rows, k = x.shape
    storage = torch.full((groups, k, -(-rows // 8) * 8 + 8), torch.nan, dtype=x.dtype)
    return storage[..., :rows].copy_(x.mT)


@pytest.mark.parametrize(
    ("groups", "m", "n", "k"),
    [pytest.param(33, 64, 136, 128, marks=pytest.mark.slow), (7, 34, 70, 104), (130, 16, 24, 8)],
)
def test_shapes(groups, m, n, k):
    Problem(groups, m, n, k).run()
    Problem(groups, m, n, k, True).run(in_place=True)
    Problem(groups, m, n, k, True, torch.bfloat16).run()


@pytest.mark.parametrize("expr", ["bmk,bkn->mn", pytest.param("bkm,bkn->mn", marks=pytest.mark.slow), "bkm,bnk->mn"])
def test_contiguous_rows_give_the_same_bits(expr):
    problem = Problem(21, 36, 72, 200)
    assert torch.equal(problem.run(), problem.run(expr))


def test_the_summed_letter_that_is_contiguous_is_k():
    a, b = torch.randn(128, 2, 16).bfloat16(), torch.randn(2, 40, 128).bfloat16()
    results = torch.full((3, 16, 40), torch.nan)
    dg.einsum("kbm,bnk->mn", a, b, results[0])
    dg.einsum("bkm,bnk->mn", a.permute(1, 0, 2), b, results[1])
    dg.einsum("bkm,knb->mn", a.permute(1, 0, 2), b.permute(2, 1, 0), results[2])
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    assert not results.isnan().any()


@pytest.mark.parametrize("which", ["a", "b"])
def test_groups_past_4_gib(which):
    problem = Problem(3, 40, 72, 104)
    far = 3 * 2**30
    values = getattr(problem, which)
    strides = (far // 2, values.shape[2], 1)
    setattr(problem, which, reserved(3 * far).view(torch.bfloat16).as_strided(values.shape, strides).copy_(values))
    problem.run()


def test_nothing_to_sum():
    for groups, k in ((0, 64), (3, 0)):
        assert (Problem(groups, 20, 24, k).run() == 0).all()
        Problem(groups, 20, 24, k, accumulate=True).run()
    Problem(3, 0, 24, 64).run()


def test_the_same_bits_on_fewer_compute_units():
    problem = Problem(70, 130, 140, 192, dtype=torch.bfloat16)
    expected = problem.run()
    dg.set_num_sms(5)
    assert torch.equal(problem.run(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
@settings(max_examples=8, deadline=None)
@given(
    groups=st.integers(0, 60),
    m=st.integers(0, 70),
    n=st.integers(0, 140),
    chunks=st.integers(0, 20),
    accumulate=st.booleans(),
)
def test_any_shape(dtype, groups, m, n, chunks, accumulate):
    Problem(groups, m, n, 8 * chunks, accumulate, dtype).run()


@each_tile(SUMMED)
def test_every_tile_without_races(monkeypatch, config):
    if not hip.runtime().is_simulated:
        pytest.skip("needs the simulator")
    monkeypatch.setenv("DG_SIM_SANITIZE", "2")
    expr = "bmk,bnk->mn" if config.kind.a_major == "k" else "bkm,bkn->mn"
    with forced(config):
        Problem(5, config.block_m + 16, config.block_n + 16, 128 + (24 if config.kind.k_tail else 0)).run(expr)


@pytest.mark.slow
@pytest.mark.parametrize(("m", "n", "k"), [(128, 384, 128), (256, 256, 256), (384, 128, 384)])
def test_shapes_of_models(m, n, k):
    Problem(4096, m, n, k, True).run(in_place=True)


def test_fp8_is_not_summed():
    operand = torch.zeros(2, 32, 128).to(torch.float8_e4m3fnuz), torch.ones(2, 32, 1)
    d = torch.full((32, 32), 7.0)
    with pytest.raises(NotImplementedError, match="fp8_einsum has no kernels for sums over two dimensions"):
        dg.fp8_einsum("bmk,bnk->mn", operand, operand, d)
    assert (d == 7).all()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"a": torch.zeros(4, 32, 64).bfloat16()}, ValueError, r"b must have the dimensions bnk, here \(4, n, 64\)"),
        ({"d": torch.full((3, 32, 40), 7.0)}, ValueError, r"d must have the dimensions mn, here \(32, 40\)"),
        ({"c": torch.zeros(32, 41)}, ValueError, r"c must have the dimensions mn, here \(32, 40\)"),
        ({"a": torch.zeros(3, 32, 64)}, TypeError, "a must be bfloat16"),
        ({"a": torch.zeros(3 * 32 * 64 + 12).bfloat16().as_strided((3, 32, 64), (2052, 64, 1))}, ValueError, "apart"),
    ],
)
def test_bad_arguments(changes, error, message):
    arguments = {
        "a": torch.zeros(3, 32, 64).bfloat16(),
        "b": torch.zeros(3, 40, 64).bfloat16(),
        "d": torch.full((32, 40), 7.0),
        **changes,
    }
    with pytest.raises(error, match=message):
        dg.einsum("bmk,bnk->mn", **arguments)
    assert (arguments["d"] == 7).all()
