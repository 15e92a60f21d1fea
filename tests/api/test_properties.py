"""Random valid problems for all GEMM functions, drawn by hypothesis: shapes, strides, layouts and scales.

Memory around the operands, between their rows, in unused rows and in the output is NaN before the call. The output must
be within the fp64 oracle's bound and the same bits in two runs. Nothing else may be written.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.default_run import these
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.runtime import hip
from deep_gemm_rocm.testing import GuardedOutput, assert_accurate, gemm_reference

E4M3, E5M2 = torch.float8_e4m3fnuz, torch.float8_e5m2fnuz
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
BLOCKS, VECTORS = (1, 128, 128), (1, 1, 128)
RECIPES = (BLOCKS, VECTORS, (1, 1, None), (None, 1, None), (1, None, None), (None, None, None))
ALIGNMENTS = (16, 32, 64, 128)
LINE_BYTES = 16  # alignment of lines of data

Recipe = tuple[int | None, int | None, int | None]


@dataclasses.dataclass(frozen=True)
class Place:
    """The place of a tensor in a buffer of NaN.

    Attributes:
        turn: selects one of the possible orders of the dimensions in memory.
        step: the stride of the innermost dimension; for scales only.
        gaps: gaps between the items of the other dimensions, in units of a line's alignment.
        start: the offset from the buffer's start, in the same units.
    """

    turn: int
    step: int
    gaps: tuple[int, int]
    start: int

    @property
    def turned(self) -> bool:
        """For operands, whether rows instead of K are contiguous."""
        return self.turn % 2 == 1

    def of_data(self, values: torch.Tensor, inner: int | None = None) -> torch.Tensor:
        """Places data with dimension ``inner`` contiguous; if None, one of the last two, depending on ``turn``."""
        if inner is None:
            inner = -2 if self.turned else -1
        inner %= values.dim()
        outer = [dim for dim in range(values.dim()) if dim != inner]
        if self.turn >= 4:
            outer.reverse()
        return self._of(values, [*outer, inner], 1, LINE_BYTES // values.itemsize)

    def of_scales(self, values: torch.Tensor) -> torch.Tensor:
        orders = list(itertools.permutations(range(values.dim())))
        return self._of(values, orders[self.turn % len(orders)], self.step, 1)

    def _of(self, values: torch.Tensor, order, step: int, unit: int) -> torch.Tensor:
        """Places values with the dimensions in this order, the last one innermost."""
        strides = [0] * values.dim()
        distance = step
        for dim, gap in zip(reversed(order), (*self.gaps, 0), strict=False):
            strides[dim] = distance
            distance = -(-distance * max(values.shape[dim], 1) // unit) * unit + gap * unit
        extent = sum((size - 1) * stride for size, stride in zip(values.shape, strides, strict=True)) + 1
        buffer = torch.full((self.start * unit + max(extent, 1),), torch.nan).to(values.dtype)
        view = buffer.as_strided(values.shape, strides, self.start * unit)
        view.view(BITS[values.itemsize]).copy_(values.view(BITS[values.itemsize]))
        return view


def placed(turns: st.SearchStrategy[int]) -> st.SearchStrategy[Place]:
    gaps = st.tuples(st.integers(0, 2), st.integers(0, 2))
    return st.builds(Place, turn=turns, step=st.integers(1, 3), gaps=gaps, start=st.integers(0, 2))


places = placed(st.integers(0, 5))
contiguous_along_k = placed(st.sampled_from([0, 2, 4]))
sizes = st.one_of(
    st.integers(0, 40), st.sampled_from([edge + d for edge in (16, 32, 64, 128, 256) for d in (-1, 0, 1)])
)
chunks = st.integers(0, 40)  # of K, 16 bytes each
accumulations = st.sampled_from(["none", "in place", "beside"])
outputs = st.sampled_from([BF16, F16, F32])
fp8_types = st.sampled_from([E4M3, E4M3, E5M2])


def random_data(shape, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Random numbers: all FP8 numbers, or wider numbers of various magnitudes."""
    if dtype.itemsize == 1:
        codes = torch.randint(0, 255, shape, generator=generator)
        return (codes + (codes >= 0x80)).to(torch.uint8).view(dtype)  # without NaN, 0x80
    exponents = torch.randint(-6, 7, shape, generator=generator)
    return torch.ldexp(torch.randn(shape, generator=generator), exponents).to(dtype)


def random_scales(shape, generator: torch.Generator) -> torch.Tensor:
    exponents = torch.randint(-6, 3, shape, generator=generator)
    return torch.ldexp(torch.rand(shape, generator=generator) - 0.5, exponents)


def num_scales(size: int, shared: int | None) -> int:
    return 1 if shared is None else -(-size // shared)


def rounded_down(size: int, unit: int) -> int:
    return size // unit * unit


@dataclasses.dataclass(frozen=True)
class Operand:
    """An operand [rows, K], or several in groups, with scales if there is a recipe."""

    dtype: torch.dtype
    data: Place
    scales: Place

    @property
    def row_unit(self) -> int:
        return 4 // self.dtype.itemsize if self.data.turned else 1

    @property
    def k_unit(self) -> int:
        return 1 if self.data.turned else LINE_BYTES // self.dtype.itemsize

    def make(self, groups: tuple[int, ...], rows: int, k: int, shared, generator, used_rows=None):
        """Makes the operand. All rows except ``used_rows``, a mask, are NaN."""
        shared_rows, shared_k = shared
        data = random_data((*groups, rows, k), self.dtype, generator)
        if used_rows is not None:
            data.view(BITS[data.itemsize])[~used_rows] = {1: 0x80, 2: 0x7FFF}[data.itemsize]
        placed = self.data.of_data(data)
        if self.dtype.itemsize > 1:
            return placed
        scales = random_scales((*groups, num_scales(rows, shared_rows), num_scales(k, shared_k)), generator)
        if used_rows is not None and shared_rows == 1:
            scales[~used_rows] = torch.nan
        return placed, self.scales.of_scales(scales)


def operands(dtypes, data: st.SearchStrategy[Place] = places) -> st.SearchStrategy[Operand]:
    return st.builds(Operand, dtype=dtypes, data=data, scales=places)


def each(function: Callable[[torch.Tensor], torch.Tensor], operand):
    """Applies a function to data and scales, or to data alone."""
    return tuple(map(function, operand)) if isinstance(operand, tuple) else function(operand)


def written(
    launch: Callable[[torch.Tensor, torch.Tensor | None], None],
    rows: int,
    n: int,
    columns: int,
    dtype: torch.dtype,
    *,
    c: torch.Tensor | None = None,
    in_place: bool = False,
    rows_to_write: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns the output of ``launch(d, c)`` after checking that two runs agree and that nothing else is written."""
    results = []
    for _ in range(2):
        output = GuardedOutput(rows, n, columns, dtype=dtype)
        if c is not None and in_place:
            output.tensor.copy_(c)
        launch(output.tensor, output.tensor if c is not None and in_place else c)
        output.assert_intact(rows_to_write)
        results.append(output.tensor)
    first, second = (result.view(BITS[dtype.itemsize]) for result in results)
    assert torch.equal(first, second)
    return results[0]


def random_c(accumulation: str, rows: int, n: int, dtype: torch.dtype, generator) -> torch.Tensor | None:
    """A random c with gaps between its rows; None if nothing is accumulated."""
    if accumulation == "none":
        return None
    return torch.full((rows, n + 3), torch.nan, dtype=dtype)[:, :n].copy_(torch.randn(rows, n, generator=generator))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """Two operands that have K in common, and an output."""

    k_chunks: int
    rest: int
    a: Operand
    b: Operand
    recipe: Recipe
    d_type: torch.dtype
    columns: int
    seed: int

    @property
    def scaled(self) -> bool:
        return self.a.dtype.itemsize == 1

    @property
    def shared(self) -> Recipe:
        return self.recipe if self.scaled else (1, 1, None)

    @property
    def keywords(self) -> dict[str, Recipe]:
        return {"recipe": self.recipe} if self.scaled else {}

    @property
    def k(self) -> int:
        """A K that both operands may have."""
        unit = max(self.a.k_unit, self.b.k_unit)
        return self.k_chunks * LINE_BYTES // self.a.dtype.itemsize + (self.rest if unit == 1 else 0)


def problems(a: st.SearchStrategy[Operand], b: st.SearchStrategy[Operand]) -> dict[str, st.SearchStrategy[Any]]:
    """Strategies for the fields of a ``Problem``."""
    return {
        "k_chunks": chunks,
        "rest": st.integers(0, 15),
        "a": a,
        "b": b,
        "recipe": st.sampled_from(RECIPES),
        "d_type": outputs,
        "columns": st.integers(0, 9),
        "seed": st.integers(0, 99),
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dense(Problem):
    layout: str
    m: int
    n: int
    accumulation: str

    def check(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        shared_a, shared_b, shared_k = self.shared
        m, n = rounded_down(self.m, self.a.row_unit), rounded_down(self.n, self.b.row_unit)
        a = self.a.make((), m, self.k, (shared_a, shared_k), generator)
        b = self.b.make((), n, self.k, (shared_b, shared_k), generator)
        given_a = each(lambda x: x.T, a) if self.layout[0] == "t" else a
        given_b = each(lambda x: x.T, b) if self.layout[1] == "n" else b
        c = random_c(self.accumulation, m, n, self.d_type, generator)
        family = {1: "fp8", 2: "bf16" if self.a.dtype == BF16 else "f16"}[self.a.dtype.itemsize]
        function = getattr(dg, f"{family}_gemm_{self.layout}")

        def launch(d, c):
            assert function(given_a, given_b, d, c, **self.keywords) is None

        d = written(launch, m, n, self.columns, self.d_type, c=c, in_place=self.accumulation == "in place")
        assert_accurate(d, gemm_reference(a, b, recipe=self.shared, c=c))


def dense(dtypes, layouts=("nt", "nn", "tn", "tt")) -> st.SearchStrategy[Dense]:
    """Dense problems. ``dtypes`` is a strategy for both operands' types, or one type."""
    kinds = dtypes if isinstance(dtypes, st.SearchStrategy) else st.just(dtypes)
    return st.builds(
        Dense,
        layout=st.sampled_from(layouts),
        m=sizes,
        n=sizes,
        accumulation=accumulations,
        **problems(operands(kinds), operands(kinds)),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grouped(Problem):
    """Groups of rows, contiguous with IDs or ends, or masked."""

    grouping: str
    layout: str
    rows: list[int]
    alignment: int
    spare: int
    n: int
    zero_padding: bool
    expected_m: int

    def check(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        shared_a, shared_b, shared_k = self.shared
        groups = len(self.rows)
        n = rounded_down(self.n, self.b.row_unit)
        b = self.b.make((groups,), n, self.k, (shared_b, shared_k), generator)
        given_b = each(lambda x: x.mT, b) if self.layout == "nn" else b
        of_group = [each(lambda x, group=group: x[group], b) for group in range(groups)]
        family = "fp8" if self.scaled else "bf16"
        if self.grouping == "masked":
            room = max(self.rows) + self.spare
            used = torch.arange(room) < torch.tensor(self.rows)[:, None]
            a = self.a.make((groups,), room, self.k, (shared_a, shared_k), generator, used)
            function = getattr(dg, f"m_grouped_{family}_gemm_nt_masked")

            def launch(d, _):
                d = d.unflatten(0, (groups, room))
                assert function(a, b, d, torch.tensor(self.rows).int(), self.expected_m, **self.keywords) is None

            d = written(launch, groups * room, n, self.columns, self.d_type, rows_to_write=used.flatten())
            results = d.unflatten(0, (groups, room))
            parts = [(each(lambda x, g=g: x[g], a), results[g], 0, rows) for g, rows in enumerate(self.rows)]
        else:
            starts = [0, *itertools.accumulate(-(-rows // self.alignment) * self.alignment for rows in self.rows)]
            m = starts[-1] + self.spare
            ends = torch.tensor([start + rows for start, rows in zip(starts, self.rows, strict=False)]).int()
            ids = torch.full((m,), -1, dtype=torch.int32)
            for group, rows in enumerate(self.rows):
                ids[starts[group] : starts[group] + rows] = group
            a = self.a.make((), m, self.k, (shared_a, shared_k), generator, ids >= 0)
            padding = ids < 0
            if self.grouping == "psum":
                padding[starts[-1] :] = False
                padding &= self.zero_padding
            psum = self.grouping == "psum"
            function = getattr(dg, f"m_grouped_{family}_gemm_{self.layout}_contiguous")
            keywords = {"use_psum_layout": psum, "ensure_zero_padding": self.zero_padding, **self.keywords}
            if psum and self.expected_m:
                keywords["expected_m_for_psum_layout"] = self.expected_m
            dg.set_mk_alignment_for_contiguous_layout(self.alignment)

            def launch(d, _):
                assert function(a, given_b, d, ends if psum else ids, **keywords) is None

            d = written(launch, m, n, self.columns, self.d_type, rows_to_write=(ids >= 0) | padding)
            assert (d[padding] == 0).all()
            parts = [(a, d, start, rows) for start, rows in zip(starts, self.rows, strict=False)]
        for group, (rows_of_a, result, start, rows) in enumerate(parts):
            if rows:
                some = slice(start, start + rows)
                a_group = (
                    (rows_of_a[0][some], rows_of_a[1][some if shared_a == 1 else slice(None)])
                    if self.scaled
                    else rows_of_a[some]
                )
                reference = gemm_reference(a_group, of_group[group], recipe=self.shared)
                assert_accurate(result[some], reference)


def grouped(dtypes) -> st.SearchStrategy[Grouped]:
    return st.builds(
        Grouped,
        grouping=st.sampled_from(["ids", "psum", "masked"]),
        layout=st.sampled_from(["nt", "nn"]),
        rows=st.lists(st.one_of(st.integers(0, 40), st.sampled_from([127, 128, 129])), min_size=1, max_size=5),
        alignment=st.sampled_from(ALIGNMENTS),
        spare=st.integers(0, 40),
        n=sizes,
        zero_padding=st.booleans(),
        expected_m=st.integers(0, 300),
        **problems(operands(dtypes, contiguous_along_k), operands(dtypes)),
    )


@dataclasses.dataclass(frozen=True)
class KGrouped:
    """Groups along K, with contiguous rows or packed."""

    layout: str
    m: int
    n: int
    ks: list[int]
    dtypes: tuple[torch.dtype, torch.dtype]
    a: Place
    b: Place
    scales: Place
    d_type: torch.dtype
    accumulation: str
    columns: int
    seed: int

    def check(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        scaled = self.dtypes[0].itemsize == 1
        packed = scaled and self.layout == "nt"
        ks = [rounded_down(k, 16) for k in self.ks] if packed else self.ks
        unit = 1 if packed else 4 // self.dtypes[0].itemsize
        m, n = rounded_down(self.m, unit), rounded_down(self.n, unit)
        given, by_group = [], []
        for rows, dtype, place in ((m, self.dtypes[0], self.a), (n, self.dtypes[1], self.b)):
            data = [random_data((rows, k), dtype, generator) for k in ks]
            scales = [random_scales((rows, num_scales(k, 128)), generator) for k in ks]
            bits = [x.view(BITS[dtype.itemsize]) for x in data]
            if packed:
                whole = torch.cat([x.flatten() for x in bits]).view(dtype)
            else:
                whole = place.of_data(torch.cat(bits, 1).T.contiguous().view(dtype), inner=-1)
            sf = self.scales.of_scales(torch.cat(scales, 1) if packed else torch.cat(scales, 1).T.contiguous())
            given.append((whole, sf) if scaled else whole)
            by_group.append(list(zip(data, scales, strict=True)) if scaled else data)
        groups = len(ks)
        c = random_c(self.accumulation, groups * m, n, self.d_type, generator)
        family = "fp8" if scaled else "bf16"
        function = getattr(dg, f"k_grouped_{family}_gemm_{'nt' if packed else 'tn'}_contiguous")

        def launch(d, c):
            d, c = (x if x is None else x.unflatten(0, (groups, m)) for x in (d, c))
            assert function(*given, d, ks, torch.tensor(ks).int(), c) is None

        in_place = self.accumulation == "in place"
        d = written(launch, groups * m, n, self.columns, self.d_type, c=c, in_place=in_place)
        for group, (a, b) in enumerate(zip(*by_group, strict=True)):
            rows = slice(group * m, (group + 1) * m)
            recipe = VECTORS if scaled else (1, 1, None)
            assert_accurate(d[rows], gemm_reference(a, b, recipe=recipe, c=None if c is None else c[rows]))


k_grouped = st.builds(
    KGrouped,
    layout=st.sampled_from(["nt", "tn"]),
    m=sizes,
    n=sizes,
    ks=st.lists(st.one_of(st.integers(0, 300), st.sampled_from([0, 128, 256])), min_size=1, max_size=5),
    dtypes=st.one_of(st.tuples(fp8_types, fp8_types), st.just((BF16, BF16))),
    a=places,
    b=places,
    scales=places,
    d_type=outputs,
    accumulation=accumulations,
    columns=st.integers(0, 9),
    seed=st.integers(0, 99),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Einsum(Problem):
    """A batch b of m x k times n x k, with any order of dimensions in the expression and in memory."""

    letters: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
    batch: int
    m: int
    n: int
    d_turned: bool
    accumulation: str

    def check(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        shared_a, shared_b, shared_k = self.shared
        m, n = rounded_down(self.m, self.a.row_unit), rounded_down(self.n, self.b.row_unit)
        a = self.a.make((self.batch,), m, self.k, (shared_a, shared_k), generator)
        b = self.b.make((self.batch,), n, self.k, (shared_b, shared_k), generator)
        of_a, of_b, of_d = ("".join(letters) for letters in self.letters)
        function = dg.fp8_einsum if self.scaled else dg.einsum
        outer = (m, self.batch) if self.d_turned else (self.batch, m)

        def by_batch(matrix: torch.Tensor) -> torch.Tensor:
            """Reshapes stacked rows, in the order of ``d``, to [batch, m, n]."""
            matrices = matrix.unflatten(0, outer)
            return matrices.transpose(0, 1) if self.d_turned else matrices

        def expressed(tensor: torch.Tensor, order: str, letters: str) -> torch.Tensor:
            return tensor.permute([order.index(letter) for letter in letters])

        given_a = each(lambda x: expressed(x, "bmk", of_a), a)
        given_b = each(lambda x: expressed(x, "bnk", of_b), b)

        def launch(d, c):
            d, c = (x if x is None else expressed(by_batch(x), "bmn", of_d) for x in (d, c))
            assert function(f"{of_a},{of_b}->{of_d}", given_a, given_b, d, c, **self.keywords) is None

        c = random_c(self.accumulation, self.batch * m, n, self.d_type, generator)
        in_place = self.accumulation == "in place"
        d = written(launch, self.batch * m, n, self.columns, self.d_type, c=c, in_place=in_place)
        for group in range(self.batch):
            operands = (each(lambda x: x[group], x) for x in (a, b))  # noqa: B023
            added = None if c is None else by_batch(c)[group]
            reference = gemm_reference(*operands, recipe=self.shared, c=added)
            assert_accurate(by_batch(d)[group], reference)


def einsums(dtypes) -> st.SearchStrategy[Einsum]:
    return st.builds(
        Einsum,
        letters=st.tuples(*(st.permutations(letters).map(tuple) for letters in ("bmk", "bnk", "bmn"))),
        batch=st.integers(0, 5),
        m=sizes,
        n=sizes,
        d_turned=st.booleans(),
        accumulation=accumulations,
        **problems(operands(dtypes), operands(dtypes)),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkipHeadMid(Problem):
    m: int
    heads: int
    splits: tuple[int, int, int]

    def check(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        left, mid, right = self.splits
        shared_a, shared_b, shared_k = self.shared
        heads = self.heads * 4  # N is a multiple of 4 for any columns of a head
        m, n = rounded_down(self.m, self.a.row_unit), heads * (left + right)
        a = self.a.make((), m, self.k, (shared_a, shared_k), generator)
        b = self.b.make((), n, self.k, (shared_b, shared_k), generator)

        def launch(d, _):
            poison = d.view(BITS[d.itemsize]).clone().unflatten(1, (heads, -1))
            assert dg.fp8_gemm_nt_skip_head_mid(a, b, d, self.splits, self.recipe) is None
            bits = d.view(BITS[d.itemsize]).unflatten(1, (heads, -1))
            gap = (slice(None), slice(None), slice(left, left + mid))
            assert torch.equal(bits[gap], poison[gap])

        d = written(launch, m, heads * sum(self.splits), self.columns, self.d_type)
        by_head = d.unflatten(1, (heads, -1))
        whole = torch.cat([by_head[..., :left], by_head[..., left + mid :]], 2).flatten(1)
        assert_accurate(whole, gemm_reference(a, b, recipe=self.shared))


skip_head_mid = st.builds(
    SkipHeadMid,
    m=sizes,
    heads=st.integers(1, 3),
    splits=st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(1, 40)),
    **problems(operands(fp8_types), operands(fp8_types)),
)

CASES: dict[str, st.SearchStrategy[Any]] = {
    "fp8": dense(fp8_types),
    "bf16": dense(BF16),
    "f16": dense(F16, ("nt",)),
    "grouped fp8": grouped(fp8_types),
    "grouped bf16": grouped(st.just(BF16)),
    "k-grouped": k_grouped,
    "fp8 einsum": einsums(fp8_types),
    "einsum": einsums(st.just(BF16)),
    "skip head mid": skip_head_mid,
}
FEW, MANY, MANY_SANITISED = 2, 100, 25


def check_examples(name: str, count: int) -> None:
    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=CASES[name])
    def check(case):
        case.check()

    check()


# Each problem has kernels of its own, and test_many_problems has all functions.
@pytest.mark.parametrize("name", these(CASES, ["fp8", "grouped fp8", "k-grouped", "einsum"]))
def test_any_problem(name):
    check_examples(name, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_many_problems(name):
    check_examples(name, MANY)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_no_races_and_no_missing_waits(monkeypatch, name):
    if not hip.runtime().is_simulated:
        pytest.skip("needs the simulator")
    monkeypatch.setenv("DG_SIM_SANITIZE", "2")
    check_examples(name, MANY_SANITISED)
