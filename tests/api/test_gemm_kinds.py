"""Every kind of GEMM (types, scales, accumulation) with every tile, against the fp64 oracle."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools

import pytest
import torch
from helpers.default_run import these
from helpers.gemm_configs import KINDS, OF_EVERY_KIND, QUICK_OF_EVERY_KIND, each_tile
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.heuristics import forced
from deep_gemm_rocm.problems.gemm_kind import GemmKind
from deep_gemm_rocm.runtime import hip
from deep_gemm_rocm.testing import (
    GuardedOutput,
    activations,
    assert_accurate,
    assert_accurately_quantised,
    gemm_reference,
    weights,
)

DTYPES = {
    "e4m3": torch.float8_e4m3fnuz,
    "e5m2": torch.float8_e5m2fnuz,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
}
RECIPES = {"blocks": (1, 128, 128), "vectors": (1, 1, 128), "rows": (1, 1, None)}


@dataclasses.dataclass
class Problem:
    """Operands, scales and c for a kind of GEMM."""

    kind: GemmKind
    m: int
    n: int
    k: int
    seed: int = 0
    whole: bool = False  # with scales of rows: one scale for all rows

    def __post_init__(self) -> None:
        self.m = self._possible(self.m, self.kind.a_major)
        self.n = self._possible(self.n, self.kind.b_major)
        if self.kind.parts > 1 and self.kind.scaling == "blocks":
            self.n = rounded_up(self.n, 128)
        self.recipe = RECIPES.get(self.kind.scaling)
        if self.whole and self.recipe == RECIPES["rows"]:
            self.recipe = (None, None, None)
        rows_a, rows_b, k = self.recipe or (1, 1, None)
        rows_of_b = self.n * self.kind.parts
        self.a = self._operand(
            activations(self.m, self.k, self.seed) / 8, self.kind.a_type, self.kind.a_major, rows_a, k
        )
        self.b = self._operand(
            weights(rows_of_b, self.k, self.seed + 1), self.kind.b_type, self.kind.b_major, rows_b, k
        )
        generator = torch.Generator().manual_seed(self.seed)
        c = torch.randn(self.m, self.n, generator=generator).to(self.dtype)
        self.c = c if self.kind.accumulate else None
        self.bias = None
        if self.kind.bias != "none":
            self.bias = torch.randn(rows_of_b, generator=generator).to(DTYPES[self.kind.bias])

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.kind.d_type]

    def _possible(self, rows: int, major: str) -> int:
        """Rounds up to a number of rows that operands with this contiguous dimension may have."""
        unit = 4 // self.kind.element_bytes if major == "rows" else 1
        return rounded_up(rows, unit)

    def _operand(self, values, type_name, major, shared_rows, shared_k):
        """An operand and its scales, all of which differ, so that confusing two of them shows."""
        if self.recipe is None:
            return arranged(values.to(DTYPES[type_name]), major)
        rows, k = values.shape
        shape = [1 if shared is None else -(-size // shared) for size, shared in ((rows, shared_rows), (k, shared_k))]
        scales = torch.empty(shape).uniform_(0.01, 0.1, generator=torch.Generator().manual_seed(rows + k))
        spread = scales.repeat_interleave(shared_rows or rows, 0).repeat_interleave(shared_k or k, 1)[:rows, :k]
        limit = torch.finfo(DTYPES[type_name]).max
        return arranged((values / spread).clamp(-limit, limit).to(DTYPES[type_name]), major), scales

    def run(self, columns: int = 8, *, in_place: bool = False) -> torch.Tensor:
        """Returns the result after checking it, and the output's surroundings, against the oracle."""
        output = GuardedOutput(self.m, self.n, columns, dtype=self.dtype)
        scales = GuardedOutput(self.m, -(-self.n // 128), columns, dtype=torch.float32)
        d = (output.tensor, scales.tensor) if self.kind.is_quantised else output.tensor
        c = output.tensor.copy_(self.c) if in_place and self.c is not None else self.c
        hooks = {"bias": self.bias, "epilogue": self.kind.activation}
        if self.recipe:
            dg.fp8_gemm_nt(self.a, self.b, d, c, recipe=self.recipe, **hooks)
        else:
            function = dg.bf16_gemm_nt if self.kind.a_type == "bf16" else dg.f16_gemm_nt
            function(self.a, self.b, d, c, **hooks)
        output.assert_intact()
        scales.assert_intact()
        reference = gemm_reference(self.a, self.b, recipe=self.recipe or (1, 1, None), c=self.c, **hooks)
        if self.kind.is_quantised:
            assert_accurately_quantised(d, reference)
        else:
            assert_accurate(d, reference)
        return output.tensor


def rounded_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def arranged(data: torch.Tensor, major: str) -> torch.Tensor:
    """The operand with dimension ``major`` contiguous, and NaN after each line."""
    if major != "rows":
        return data
    rows, k = data.shape
    nan = 0xFF if data.element_size() == 2 else 0x80
    pitch = -(-rows // 16) * 16 + 16
    storage = torch.full((k + 1, pitch * data.element_size()), nan, dtype=torch.uint8).view(data.dtype)
    return storage[:k, :rows].copy_(data.T).T


def tail(kind: GemmKind, chunks: int) -> int:
    return 16 * chunks // kind.element_bytes if kind.k_tail else 0


@each_tile(OF_EVERY_KIND, only=QUICK_OF_EVERY_KIND)
def test_every_kind_and_tile_with_tails(use_config, config):
    use_config(config)
    k = 3 * 128 // config.kind.element_bytes + tail(config.kind, 3)
    Problem(config.kind, config.block_m + 5, 2 * config.output_n - 8, k).run()
    Problem(config.kind, config.block_m - 3, config.output_n + 13, k).run(columns=3, in_place=True)


@each_tile(OF_EVERY_KIND, only=QUICK_OF_EVERY_KIND)
def test_no_races_and_no_missing_waits(use_config, monkeypatch, config):
    if not hip.runtime().is_simulated:
        pytest.skip("needs the simulator")
    use_config(config)
    monkeypatch.setenv("DG_SIM_SANITIZE", "2")
    k = 5 * 128 // config.kind.element_bytes - tail(config.kind, 1)
    problem = Problem(config.kind, config.block_m + 3, config.output_n + 5, k)
    monkeypatch.setenv("DG_SIM_SEED", "1")
    problem.run()


shapes = {
    "m": st.integers(0, 150),
    "n": st.integers(0, 300),
    "chunks": st.integers(0, 40),
    "columns": st.integers(0, 9),
    "whole": st.booleans(),
    "in_place": st.booleans(),
}


@settings(max_examples=15, deadline=None)
@given(config=st.sampled_from(QUICK_OF_EVERY_KIND), **shapes)
def test_any_shape(config, m, n, chunks, columns, whole, in_place):
    """With kernels that other tests compile."""
    kind = config.kind
    k = 16 * (chunks if kind.k_tail else chunks // 8 * 8) // kind.element_bytes
    with forced(config) if m and n else contextlib.nullcontext():  # nothing is launched for an empty result
        Problem(kind, m, n, k, seed=m + n + k, whole=whole).run(columns, in_place=in_place)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(kind=st.sampled_from(KINDS), **shapes)
def test_any_shape_with_the_tile_that_is_chosen(kind, m, n, chunks, columns, whole, in_place):
    k = 16 * chunks // kind.element_bytes
    Problem(kind, m, n, k, seed=m + n + k, whole=whole).run(columns, in_place=in_place)


@pytest.mark.parametrize("scaling", ["vectors", "rows"])
@pytest.mark.parametrize("rows", [1, 128])
def test_scales_of_columns_have_any_strides(scaling, rows):
    problem = Problem(GemmKind(scaling=scaling), 33, rows + 3, 400)
    strided = [
        (
            data,
            torch.full((9 * scales.numel(),), torch.nan).as_strided(scales.shape, (3, 3 * len(scales))).copy_(scales),
        )
        for data, scales in (problem.a, problem.b)
    ]
    expected = problem.run()
    problem.a, problem.b = strided
    assert torch.equal(problem.run().view(torch.int16), expected.view(torch.int16))


def several_of_each_kind(name, configs, marks=()):
    for kind in KINDS:
        of_kind = [config for config in configs if config.kind == kind]
        if max(collections.Counter(config.waves_k for config in of_kind).values(), default=0) > 1:
            yield pytest.param(kind, of_kind, id=f"{kind.name}-{name}", marks=marks)


@pytest.mark.parametrize(
    ("kind", "configs"),
    [*several_of_each_kind("some", QUICK_OF_EVERY_KIND), *several_of_each_kind("all", OF_EVERY_KIND, pytest.mark.slow)],
)
def test_configurations_agree_bit_by_bit(kind, configs):
    """Configurations that split K alike give the same bits, see docs/numerics.md."""
    problem = Problem(kind, 130, 136, 4 * 128 // kind.element_bytes + tail(kind, 3))
    results = collections.defaultdict(list)
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[problem.dtype.itemsize]
    for config in configs:
        with forced(config):
            results[config.waves_k].append(problem.run().view(bits))
    assert max(map(len, results.values())) > 1
    assert all(torch.equal(of_waves[0], result) for of_waves in results.values() for result in of_waves)


@pytest.mark.parametrize(
    ("layout", "dtype"),
    these(itertools.product(("nn", "tn", "tt"), ("fp8", "bf16")), [("nn", "bf16"), ("tt", "fp8")]),
)
def test_other_layouts_give_the_same_bits(dtype, layout):
    kind = GemmKind() if dtype == "fp8" else GemmKind("bf16", "bf16", scaling="none")
    problem = Problem(kind, 36, 140, 400)
    expected = problem.run()

    def transposed(operand):
        return tuple(t.T.contiguous() for t in operand) if dtype == "fp8" else operand.T.contiguous()

    a = transposed(problem.a) if layout[0] == "t" else problem.a
    b = transposed(problem.b) if layout[1] == "n" else problem.b
    output = GuardedOutput(36, 140)
    if layout[0] == "t":  # rows of k are 16-byte aligned
        padded = torch.zeros(400, 48, dtype=torch.uint8 if dtype == "fp8" else torch.bfloat16)
        data = a[0].view(torch.uint8) if dtype == "fp8" else a
        padded[:, :36] = data
        a = (padded.view(DTYPES["e4m3"])[:, :36], a[1]) if dtype == "fp8" else padded[:, :36]
    if layout[1] == "n":
        padded = torch.zeros(400, 144, dtype=torch.uint8 if dtype == "fp8" else torch.bfloat16)
        data = b[0].view(torch.uint8) if dtype == "fp8" else b
        padded[:, :140] = data
        b = (padded.view(DTYPES["e4m3"])[:, :140], b[1]) if dtype == "fp8" else padded[:, :140]
    assert getattr(dg, f"{dtype}_gemm_{layout}")(a, b, output.tensor) is None
    output.assert_intact()
    assert torch.equal(output.tensor.view(torch.int16), expected.view(torch.int16))


def test_any_k_where_rows_are_contiguous():
    for k in (1, 7, 131):
        Problem(GemmKind(a_major="rows", b_major="rows"), 36, 140, k).run()


def test_equal_scales_give_the_same_bits_whatever_the_recipe():
    data_a, data_b = Problem(GemmKind(), 70, 140, 512).a[0], Problem(GemmKind(), 70, 140, 512).b[0]
    sfa = torch.rand(70, 4) + 0.5
    blocks = dg.gemm_fp8((data_a, sfa), (data_b, torch.full((2, 4), 0.37)))
    vectors = dg.gemm_fp8((data_a, sfa), (data_b, torch.full((140, 4), 0.37)), recipe=(1, 1, 128))
    assert torch.equal(blocks.view(torch.int16), vectors.view(torch.int16))
