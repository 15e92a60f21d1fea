"""Einstein sums: every GEMM of the batch against the fp64 oracle."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from helpers.gemm_configs import BATCHED, each_tile
from helpers.host_memory import reserved
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.heuristics import forced
from deep_gemm_rocm.runtime import hip
from deep_gemm_rocm.testing import GuardedOutput, assert_accurate, gemm_reference

FP8 = torch.float8_e4m3fnuz

# Each form as a batch of GEMMs: the orders of letters in which a, b and d are batches of matrices.
FORMS = {
    "bhr,hdr->bhd": ("hbr", "hdr", "hbd"),
    "bhd,hdr->bhr": ("hbd", "hrd", "hbr"),
    "bhd,bhr->hdr": ("hdb", "hrb", "hdr"),
}
DEEP_GEMM_RECIPES = {"bhr,hdr->bhd": (1, 128, 128), "bhd,hdr->bhr": (1, 128, 128), "bhd,bhr->hdr": (1, 1, 128)}


@dataclasses.dataclass
class Problem:
    """Operands surrounded by NaN, with scales if there is a recipe, and c."""

    expr: str
    sizes: dict[str, int]
    recipe: tuple[int | None, int | None, int | None] | None = None
    accumulate: bool = False
    dtype: torch.dtype = torch.bfloat16
    seed: int = 0

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)
        self.of_a, self.of_b, self.of_d = self.expr.replace("->", ",").split(",")
        shared_a, shared_b, shared_k = self.recipe or (None, None, None)
        self.orders = FORMS[self.expr]
        _, m, k = self.orders[0]
        n = self.orders[1][1]
        self.a = self._operand(self.of_a, {m: shared_a, k: shared_k})
        self.b = self._operand(self.of_b, {n: shared_b, k: shared_k})
        c = torch.randn(self._shape(self.of_d), generator=self.generator).to(self.dtype)
        self.c = c if self.accumulate else None

    def _shape(self, letters: str) -> list[int]:
        return [self.sizes[letter] for letter in letters]

    def _operand(self, letters: str, shared: dict[str, int | None]):
        shape = self._shape(letters)
        values = torch.randn(shape, generator=self.generator)
        if self.recipe is None:
            return in_nan(values.bfloat16())
        blocks = [-(-s // (shared.get(x, 1) or max(s, 1))) for x, s in zip(letters, shape, strict=True)]
        scales = torch.rand(blocks, generator=self.generator) * 0.1 + 0.01
        return in_nan((values * 60).clamp(-240, 240).to(FP8)), scales

    def run(self, *, in_place: bool = False) -> torch.Tensor:
        """Returns the result after checking it, and the output's surroundings, against the oracle."""
        *outer, columns = shape = self._shape(self.of_d)
        output = GuardedOutput(outer[0] * outer[1], columns, dtype=self.dtype)
        d = output.tensor.unflatten(0, outer)
        c = d.copy_(self.c) if in_place and self.c is not None else self.c
        if self.recipe is None:
            assert dg.einsum(self.expr, self.a, self.b, d, c) is None
        else:
            assert dg.fp8_einsum(self.expr, self.a, self.b, d, c, self.recipe) is None
        output.assert_intact()
        letters = (self.of_a, self.of_b, self.of_d)
        a, b, results = map(permuted, (self.a, self.b, d), letters, self.orders)
        added = [None] * len(results) if self.c is None else permuted(self.c, self.of_d, self.orders[2])
        for group, result in enumerate(results):
            operands = ((x[0][group], x[1][group]) if self.recipe else x[group] for x in (a, b))
            reference = gemm_reference(*operands, recipe=self.recipe or (1, 1, None), c=added[group])
            assert_accurate(result, reference)
        assert list(d.shape) == shape
        return d


def permuted(x, letters: str, order: str):
    if isinstance(x, tuple):
        return tuple(permuted(part, letters, order) for part in x)
    return x.permute([letters.index(letter) for letter in order])


def in_nan(values: torch.Tensor) -> torch.Tensor:
    """The values with 16-byte aligned rows, and NaN after each row."""
    *outer, columns = values.shape
    pitch = -(-columns * values.element_size() // 16) * 16 + 32
    nan = 0xFF if values.element_size() == 2 else 0x80
    storage = torch.full((*outer, pitch), nan, dtype=torch.uint8).view(values.dtype)
    return storage[..., :columns].copy_(values)


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.slow)])
@pytest.mark.parametrize("expr", FORMS)
def test_bf16(expr, dtype):
    sizes = {"b": 40, "h": 3, "r": 208, "d": 72}
    Problem(expr, sizes, dtype=dtype).run()
    Problem(expr, sizes, accumulate=True, dtype=dtype).run()
    Problem(expr, sizes, accumulate=True, dtype=dtype).run(in_place=True)


def fp8_problems():
    """All forms and recipes. The default run has each kind of scales, and DeepGEMM's for each form."""
    recipes = ((1, 128, 128), (1, 1, 128), (1, 1, None), (None, None, None))
    for turn, expr in enumerate(FORMS):
        for recipe in recipes:
            is_quick = recipe == DEEP_GEMM_RECIPES[expr] or (turn == 0 and recipe == recipes[2])
            yield pytest.param(expr, recipe, marks=() if is_quick else pytest.mark.slow)


@pytest.mark.parametrize(("expr", "recipe"), list(fp8_problems()))
def test_fp8(expr, recipe):
    sizes = {"b": 48, "h": 3, "r": 272, "d": 144}
    Problem(expr, sizes, recipe).run()
    Problem(expr, sizes, recipe, accumulate=True, dtype=torch.float32).run(in_place=True)


@settings(max_examples=6, deadline=None)
@given(
    expr=st.sampled_from(list(FORMS)),
    b=st.integers(0, 70),
    h=st.integers(0, 5),
    r=st.integers(0, 40),
    d=st.integers(0, 30),
    scaled=st.booleans(),
    accumulate=st.booleans(),
    seed=st.integers(0, 9),
)
def test_any_shape(expr, b, h, r, d, scaled, accumulate, seed):
    sizes = {"b": b, "h": h, "r": 16 * r if scaled else 8 * r, "d": 16 * d if scaled else 8 * d}
    recipe = DEEP_GEMM_RECIPES[expr] if scaled else None
    Problem(expr, sizes, recipe, accumulate, seed=seed).run(in_place=accumulate and seed % 2 == 0)


def test_other_letters_spaces_and_a_batch_that_comes_first():
    problem = Problem("bhr,hdr->bhd", {"b": 40, "h": 3, "r": 128, "d": 64})
    expected = problem.run()
    d = torch.empty(3, 40, 64, dtype=torch.bfloat16)
    dg.einsum("xmk, xnk -> xmn", problem.a.permute(1, 0, 2), problem.b, d)
    assert torch.equal(d.permute(1, 0, 2), expected)


def test_the_same_bits_as_one_gemm_after_the_other():
    problem = Problem("bhr,hdr->bhd", {"b": 33, "h": 4, "r": 512, "d": 136}, (1, 128, 128))
    batched = problem.run()
    for h in range(4):
        d = torch.empty(33, 136, dtype=torch.bfloat16)
        dg.fp8_gemm_nt(tuple(x[:, h] for x in problem.a), tuple(x[h] for x in problem.b), d)
        assert torch.equal(d, batched[:, h])


@pytest.mark.slow
def test_a_large_batch():
    Problem("bhr,hdr->bhd", {"b": 3, "h": 257, "r": 48, "d": 24}, (1, 128, 128)).run()
    Problem("bhd,hdr->bhr", {"b": 1, "h": 257, "r": 24, "d": 16}).run()


@pytest.mark.parametrize("which", ["a", "b", "c", "d"])
def test_heads_past_4_gib(which):
    problem = Problem("bhr,hdr->bhd", {"b": 20, "h": 3, "r": 200, "d": 72}, accumulate=True)
    far = 3 * 2**30
    tensors = {"a": problem.a, "b": problem.b, "c": problem.c, "d": torch.empty(20, 3, 72, dtype=torch.bfloat16)}
    original = tensors[which]
    strides = [128 * 2, 128 * 2, 1]
    strides[0 if which == "b" else 1] = far // 2
    tensors[which] = reserved(3 * far).view(torch.bfloat16).as_strided(original.shape, strides).copy_(original)
    dg.einsum(problem.expr, tensors["a"], tensors["b"], tensors["d"], tensors["c"])
    assert torch.equal(tensors["d"].contiguous(), problem.run().contiguous())


def test_one_launch(launched):
    a, b = torch.zeros(40, 5, 64).bfloat16(), torch.zeros(5, 72, 64).bfloat16()
    dg.einsum("bhr,hdr->bhd", a, b, torch.zeros(40, 5, 72).bfloat16())
    assert ["batched" in launch.kernel.values["kernel_name"] for launch in launched] == [True]


@each_tile(BATCHED)
def test_every_tile_without_races(monkeypatch, config):
    if not hip.runtime().is_simulated:
        pytest.skip("needs the simulator")
    kind = config.kind
    monkeypatch.setenv("DG_SIM_SANITIZE", "2")
    expr = {("k", "k"): "bhr,hdr->bhd", ("k", "rows"): "bhd,hdr->bhr", ("rows", "rows"): "bhd,bhr->hdr"}[
        kind.a_major, kind.b_major
    ]
    of_a, of_b, _ = FORMS[expr]
    k = 3 * 128 // kind.element_bytes + (16 if kind.k_tail else 0)
    sizes = {of_a[1]: config.block_m + 16, of_b[1]: config.block_n + 16, of_a[2]: k, "h": 2}
    recipe = {"blocks": (1, 128, 128), "vectors": (1, 1, 128), "none": None}[kind.scaling]
    with forced(config):
        Problem(expr, sizes, recipe, kind.accumulate, torch.float32 if kind.d_type == "f32" else torch.bfloat16).run()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"expr": None}, TypeError, "expr must be a string such as 'bhr,hdr->bhd', got NoneType"),
        ({"expr": "bhr"}, ValueError, "expr must be two operands and the output.*got 'bhr'"),
        ({"expr": "bhr,hdr->hd"}, NotImplementedError, "einsum has kernels for .*got bhr,hdr->hd"),
        ({"expr": "bhh,hdh->bhd"}, NotImplementedError, "einsum has kernels for .*got bhh,hdh->bhd"),
        ({"use_cublaslt": True}, NotImplementedError, "use_cublaslt must be False"),
        ({"a": None}, TypeError, "a must be a torch.Tensor, got NoneType"),
        ({"a": torch.zeros(40, 64).bfloat16()}, ValueError, r"a must have the dimensions bhr, .*got shape \(40, 64\)"),
        ({"b": torch.zeros(3, 72, 32).bfloat16()}, ValueError, r"b must have the dimensions hdr, here \(3, 72, 64\)"),
        ({"d": None}, TypeError, "d must be a torch.Tensor"),
        ({"d": torch.full((3, 40, 72), 7.0)}, ValueError, r"d must have the dimensions bhd, here \(40, 3, 72\), got"),
        ({"c": torch.zeros(40, 3, 71)}, ValueError, r"c must have the dimensions bhd, here \(40, 3, 72\)"),
        ({"c": torch.zeros(40, 3, 72).bfloat16()}, TypeError, "c must be float32, got torch.bfloat16"),
        ({"a": torch.zeros(40, 3, 64)}, TypeError, "a must be bfloat16, got torch.float32"),
        ({"b": torch.zeros(3, 72, 64).half()}, TypeError, "b must be bfloat16, got torch.float16"),
        (
            {"a": torch.zeros(40, 3, 128).bfloat16()[..., ::2]},
            ValueError,
            "a must be contiguous along K, its last dimension, or along its rows",
        ),
        ({"a": torch.zeros(40, 3, 65).bfloat16()[..., 1:]}, ValueError, "a must start at a multiple of 16 bytes|apart"),
        ({"d": torch.full((40, 72, 3), 7.0).permute(0, 2, 1)}, ValueError, "d must have contiguous rows"),
    ],
)
def test_bad_arguments(changes, error, message):
    arguments = {
        "expr": "bhr,hdr->bhd",
        "a": torch.zeros(40, 3, 64).bfloat16(),
        "b": torch.zeros(3, 72, 64).bfloat16(),
        "d": torch.full((40, 3, 72), 7.0),
        **changes,
    }
    with pytest.raises(error, match=message):
        dg.einsum(**arguments)
    assert arguments["d"] is None or (arguments["d"] == 7).all()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"a": torch.zeros(40, 3, 64).to(FP8)}, TypeError, r"a must be a pair \(FP8 data, scales\)"),
        ({"a": (torch.zeros(40, 3, 64).to(FP8), None)}, TypeError, r"a\[1\] must be a torch.Tensor"),
        (
            {"a": (torch.zeros(40, 3, 64).to(FP8), torch.ones(3, 40, 1))},
            ValueError,
            r"a\[1\] must have the dimensions bhr, here \(40, 3, 1\), got shape \(3, 40, 1\)",
        ),
        (
            {"b": (torch.zeros(3, 72, 64).to(FP8), torch.ones(3, 72, 1))},
            ValueError,
            r"b\[1\] must have the dimensions hdr, here \(3, 1, 1\), got shape \(3, 72, 1\)",
        ),
        ({"b": (torch.zeros(3, 72, 64).to(FP8), torch.ones(3, 1, 1).half())}, TypeError, r"b\[1\] must be float32"),
        ({"recipe": (1, 32, 32)}, NotImplementedError, "fp8_einsum has kernels for the recipes"),
        ({"a": (torch.zeros(40, 3, 64).to(torch.float8_e4m3fn), torch.ones(40, 3, 1))}, TypeError, "fn_to_fnuz"),
    ],
)
def test_bad_fp8_arguments(changes, error, message):
    d = torch.full((40, 3, 72), 7.0)
    arguments = {
        "a": (torch.zeros(40, 3, 64).to(FP8), torch.ones(40, 3, 1)),
        "b": (torch.zeros(3, 72, 64).to(FP8), torch.ones(3, 1, 1)),
        **changes,
    }
    with pytest.raises(error, match=message):
        dg.fp8_einsum("bhr,hdr->bhd", d=d, **arguments)
    assert (d == 7).all()
