"""GEMM with groups along K: every group against the fp64 oracle."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from helpers.gemm_configs import each_tile
from helpers.host_memory import reserved
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.heuristics import forced, gemm_candidates
from deep_gemm_rocm.problems.gemm_kind import GemmKind
from deep_gemm_rocm.runtime import hip
from deep_gemm_rocm.testing import GuardedOutput, activations, assert_accurate, gemm_reference

FP8 = torch.float8_e4m3fnuz
NAN = 0x80
VECTORS = (1, 1, 128)


@dataclasses.dataclass
class Problem:
    """Groups of the given sizes along K. All blocks have different scales."""

    m: int
    n: int
    ks: list[int]
    scaled: bool = True
    accumulate: bool = True
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        self.layout = torch.tensor(self.ks, dtype=torch.int32)
        self.a, self.b = (
            [self._group(rows, k, 2 * group + seed) for group, k in enumerate(self.ks)]
            for rows, seed in ((self.m, 0), (self.n, 1))
        )
        c = torch.randn(len(self.ks), self.m, self.n, generator=torch.Generator().manual_seed(0))
        self.c = c.to(self.dtype) if self.accumulate else None

    def _group(self, rows: int, k: int, seed: int):
        """[rows, k] and its scales."""
        values = activations(rows, k, seed) / 8
        if not self.scaled:
            return values
        scales = torch.rand(rows, -(-k // 128), generator=torch.Generator().manual_seed(seed)) * 0.1 + 0.01
        return values.clamp(-240, 240).to(FP8), scales

    def run(self, *, packed: bool = False, in_place: bool = False) -> torch.Tensor:
        """Returns the result after checking it, and that nothing outside the output was written."""
        groups = len(self.ks)
        output = GuardedOutput(groups * self.m, self.n, dtype=self.dtype)
        d = output.tensor.unflatten(0, (groups, self.m))
        c = d.copy_(self.c) if in_place and self.c is not None else self.c
        if packed:
            a, b = (flattened(x) for x in (self.a, self.b))
            assert dg.k_grouped_fp8_gemm_nt_contiguous(a, b, d, self.ks, self.layout, c) is None
        elif self.scaled:
            a, b = (
                (in_nan(torch.cat([data.view(torch.uint8) for data, _ in x], 1).T), torch.cat([s for _, s in x], 1).T)
                for x in (self.a, self.b)
            )
            assert dg.k_grouped_fp8_gemm_tn_contiguous(a, b, d, self.ks, self.layout, c) is None
        else:
            a, b = (torch.cat(x, 1).T.contiguous() for x in (self.a, self.b))
            assert dg.k_grouped_bf16_gemm_tn_contiguous(a, b, d, self.ks, self.layout, c) is None
        output.assert_intact()
        recipe = VECTORS if self.scaled else (1, 1, None)
        for group, (a_group, b_group) in enumerate(zip(self.a, self.b, strict=True)):
            c_group = None if self.c is None else self.c[group]
            assert_accurate(d[group], gemm_reference(a_group, b_group, recipe=recipe, c=c_group))
        return d


def flattened(groups):
    """Data and scales of all groups, in the layout of k_grouped_fp8_gemm_nt_contiguous."""
    data = torch.cat([data.view(torch.uint8).flatten() for data, _ in groups]).view(FP8)
    return data, torch.cat([scales for _, scales in groups], 1)


def in_nan(data: torch.Tensor) -> torch.Tensor:
    """FP8 [k, rows] with NaN after each row and after the last one."""
    k, rows = data.shape
    storage = torch.full((k + 2, -(-rows // 16) * 16 + 16), NAN, dtype=torch.uint8)
    storage[:k, :rows] = data
    return storage[:k, :rows].view(FP8)


GROUPS = {
    "one group": [256],
    "empty groups": [0, 128, 0, 384, 0],
    "all empty": [0, 0],
    "tails": [144, 16, 272],
}


@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["tn", "nt"])
@pytest.mark.parametrize("ks", GROUPS.values(), ids=GROUPS)
def test_fp8(ks, packed):
    Problem(40, 144, ks).run(packed=packed)
    Problem(40, 144, ks).run(packed=packed, in_place=True)
    Problem(132, 72, ks, accumulate=False, dtype=torch.bfloat16).run(packed=packed)


@pytest.mark.parametrize(
    "ks",
    [pytest.param(ks, marks=() if ks == GROUPS["tails"] else pytest.mark.slow) for ks in GROUPS.values()]
    + [[1, 0, 77, 131]],
    ids=str,
)
def test_bf16(ks):
    Problem(40, 144, ks, scaled=False).run()
    Problem(136, 80, ks, scaled=False, accumulate=False, dtype=torch.bfloat16).run()


def test_groups_of_any_size():
    Problem(36, 68, [1, 0, 77, 131, 128]).run()


@pytest.mark.parametrize("m", [0, 1, 127, 129])
def test_packed_rows_of_any_number(m):
    Problem(m, 131, [128, 0, 144]).run(packed=True)


@pytest.mark.parametrize("which", ["a", "b", "c", "d"])
def test_past_4_gib(which):
    """Rows of operands, or groups of outputs, are so far apart that the last offsets exceed 32 bits."""
    m, n, ks = 36, 68, [300, 128, 172]
    problem = Problem(m, n, ks)
    operands = {
        name: [
            in_nan(torch.cat([data.view(torch.uint8) for data, _ in groups], 1).T),
            torch.cat([scales for _, scales in groups], 1).T,
        ]
        for name, groups in (("a", problem.a), ("b", problem.b))
    }
    outputs = {"c": problem.c, "d": torch.empty(3, m, n)}
    if which in operands:
        data = operands[which][0]
        row_bytes = 2**23
        far = reserved(sum(ks) * row_bytes).as_strided(data.shape, (row_bytes, 1))
        operands[which][0] = far.copy_(data.view(torch.uint8)).view(FP8)
    else:
        far = reserved(3 * 3 * 2**30).view(torch.float32).as_strided((3, m, n), (3 * 2**28, n, 1))
        outputs[which] = far.copy_(outputs[which])
    a, b, c, d = operands["a"], operands["b"], outputs["c"], outputs["d"]
    dg.k_grouped_fp8_gemm_tn_contiguous(a, b, d, ks, problem.layout, c)
    for group, (a_group, b_group) in enumerate(zip(problem.a, problem.b, strict=True)):
        assert_accurate(d[group], gemm_reference(a_group, b_group, recipe=VECTORS, c=problem.c[group]))


def test_many_groups():
    problem = Problem(16, 32, [group % 3 * 16 for group in range(257)])
    assert torch.equal(problem.run(), problem.run(packed=True))


@settings(max_examples=15, deadline=None)
@given(
    m=st.integers(0, 80),
    n=st.integers(0, 200),
    ks=st.lists(st.integers(0, 300), min_size=1, max_size=5),
    scaled=st.booleans(),
    accumulate=st.booleans(),
)
def test_any_shape(m, n, ks, scaled, accumulate):
    aligned = 4 if scaled else 8  # stricter than required: bf16 rows are 16-byte aligned
    Problem(m // aligned * aligned, n // aligned * aligned, ks, scaled, accumulate).run()


@pytest.mark.parametrize("stride", [1, 3, 8, 64])
@pytest.mark.parametrize("function", [dg.k_grouped_bf16_gemm_tn_contiguous, dg.k_grouped_fp8_gemm_tn_contiguous])
def test_the_distance_of_a_single_row_does_not_matter(function, stride):
    """Kernels load 16 rows. Those behind the last one are none, wherever they would be."""
    is_fp8 = function is dg.k_grouped_fp8_gemm_tn_contiguous
    data = torch.randn(128).to(FP8 if is_fp8 else torch.bfloat16)
    a, b = (data[64 * i :].as_strided((1, 16), (stride, 1)) for i in range(2))
    exact = a.double().T @ b.double()
    if is_fp8:
        a, b = (a, torch.ones(1, 16)), (b, torch.ones(1, 16))
    d = torch.full((1, 16, 16), torch.nan)
    function(a, b, d, [1], torch.ones(1).int())
    assert torch.equal(d[0].double(), exact)


KINDS = [
    GemmKind(grouping="k_grouped", scaling="vectors", d_type="f32", accumulate=True, k_tail=True, a_major=x, b_major=x)
    for x in ("k", "rows")
]


@each_tile([config for kind in KINDS for config in gemm_candidates(kind)])
def test_every_tile_without_races(monkeypatch, config):
    if not hip.runtime().is_simulated:
        pytest.skip("needs the simulator")
    monkeypatch.setenv("DG_SIM_SANITIZE", "2")
    with forced(config):
        Problem(config.block_m + 16, config.block_n + 16, [144, 0, 400]).run(packed=config.kind.a_major == "k")


def test_names_of_deep_gemm_1():
    problem = Problem(32, 48, [128, 144])
    expected = problem.run(packed=True)
    a, b = ((data, scales.T) for data, scales in map(flattened, (problem.a, problem.b)))
    out = problem.c.clone()
    with pytest.raises(ValueError, match=r"rhs\[1\] must have shape \(3, 48\), .*, got \(48, 3\)"):
        dg.k_grouped_wgrad_gemm_fp8_fp8_fp32_nt(a, (b[0], b[1].T), out, problem.ks)
    with pytest.raises(ValueError, match=r"lhs\[0\] must be contiguous and have shape \(8704,\), .*, got \(8736,\)"):
        dg.k_grouped_wgrad_gemm_fp8_fp8_fp32_nt((torch.zeros(8736).to(FP8), a[1]), b, out, problem.ks)
    dg.k_grouped_wgrad_gemm_fp8_fp8_fp32_nt(a, b, out, problem.ks)
    assert torch.equal(out, expected)
    for group in range(2):
        out = problem.c[group].clone()
        dg.wgrad_gemm_fp8_fp8_fp32_nt(problem.a[group], problem.b[group], out)
        operands = problem.a[group], problem.b[group]
        assert_accurate(out, gemm_reference(*operands, c=problem.c[group], recipe=VECTORS))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"ks_cpu": [128]}, ValueError, "d must be one matrix for each of 1 groups"),
        ({"ks_cpu": [128, 128]}, ValueError, r"a\[0\] must have shape \(256, 32\), the sum of ks_cpu"),
        ({"ks_cpu": [400, -128]}, ValueError, r"ks_cpu\[1\] must be at least 0, got -128"),
        ({"ks_cpu": torch.tensor([128, 144])}, TypeError, "ks_cpu must be a list of ints, got Tensor"),
        ({"grouped_layout": torch.tensor([128, 144])}, TypeError, "grouped_layout must be int32"),
        ({"grouped_layout": torch.tensor([128]).int()}, ValueError, r"grouped_layout must have shape \(2,\)"),
        ({"d": torch.zeros(2, 32, 48).double()}, TypeError, "d must be bfloat16, float16 or float32"),
        ({"c": torch.zeros(2, 32, 48).bfloat16()}, TypeError, "c must be float32, got torch.bfloat16"),
        ({"recipe": (1, 128, 128)}, NotImplementedError, r"recipe=\(1, 1, 128\) only"),
        ({"b": None}, TypeError, "b must be a pair"),
        (
            {"b": (torch.zeros(272, 1).to(FP8), torch.ones(3, 1)), "d": torch.zeros(2, 32, 1)},
            ValueError,
            r"b\[0\] must have a multiple of 4 rows",
        ),
    ],
)
def test_bad_arguments(changes, error, message):
    a, b = ((torch.zeros(272, rows).to(FP8), torch.ones(3, rows)) for rows in (32, 48))
    d = torch.full((2, 32, 48), 7.0)
    layout = torch.tensor([128, 144], dtype=torch.int32)
    arguments = {"a": a, "b": b, "d": d, "ks_cpu": [128, 144], "grouped_layout": layout, **changes}
    with pytest.raises(error, match=message):
        dg.k_grouped_fp8_gemm_tn_contiguous(**arguments)
    assert (d == 7).all()


def test_no_k_at_all_has_any_strides():
    """NumPy gives arrays without elements to torch with strides of 0."""
    a, b = (torch.empty_strided((0, columns), (0, 0), dtype=torch.bfloat16) for columns in (64, 24))
    d = torch.ones(1, 64, 24)
    dg.k_grouped_bf16_gemm_tn_contiguous(a, b, d, [0], torch.zeros(1, dtype=torch.int32))
    assert not d.any()
