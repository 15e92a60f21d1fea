"""Checks of GEMMs are remembered for all M, and still find whatever is wrong at a new one."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deep_gemm_rocm.problems import gemm as checks
from deep_gemm_rocm.problems.recipe import Recipe

FP8, BF16, F32 = torch.float8_e4m3fnuz, torch.bfloat16, torch.float32
N, K, G = 256, 272, 3
K_OF_FOUR_BITS = 288  # a multiple of the 32 values that share a scale
ROWS = [0, 1, 2, 3, 128, 255, 256, 257, 1000, 2**31 - 1, 2**31]
RECIPES = [None, *(Recipe(*recipe) for recipe in ((1, 128, 128), (1, 1, 128), (1, 1, None), (None, None, None)))]
FOUR_BIT_RECIPES = [None, Recipe(1, 1, 128)]
SCALES_OF_FOUR_BITS = st.sampled_from([torch.uint8, F32, BF16])


@st.composite
def tensors_of_rows(draw, dtype, m, *columns):
    """[m, columns], or [m]; sometimes with other rows, strides or types."""
    size, mistake = (*columns, 1)[0], draw(st.integers(0, 11))
    rows = draw(st.sampled_from([m + 1, 1, 256])) if mistake == 0 else m
    strides = (size, 1)
    if mistake == 1:
        dtype = draw(st.sampled_from([FP8, BF16, F32, torch.int32, torch.float64]))
    if 2 <= mistake <= 5:
        strides = draw(st.sampled_from([
            (size + 16, 1), (size + 3, 1), (1, rows), (1, max(rows - 1, 0)), (1, 512), (0, 1), (1, 1), (16, 16),
            (size - 1, 1), (3, 2), (100, 300), (2**23 - 16, 1), (2**23, 1), (2**40, 1), (16, 0),
        ]))  # fmt: skip
    if not columns:
        strides = (strides[0] if strides != (size, 1) else 1,)
    return torch.empty_strided((rows, *columns), strides, dtype=dtype, device="meta")


@st.composite
def problems(draw):
    """Arguments of ``check_gemm``, most of them good."""
    m = draw(st.sampled_from(ROWS))
    recipe = draw(st.sampled_from(RECIPES))
    grouping = draw(st.sampled_from(["dense", "contiguous", "psum"]))
    groups = () if grouping == "dense" else (G,)

    def meta(*shape, dtype=F32):
        return torch.empty(shape, dtype=dtype, device="meta")

    def rows(dtype, *more):
        return draw(tensors_of_rows(dtype, m, *more))

    dtype = BF16 if recipe is None else FP8
    four_bits = recipe in FOUR_BIT_RECIPES and draw(st.integers(0, 2)) == 0
    k = K_OF_FOUR_BITS if four_bits and draw(st.integers(0, 9)) else K
    a, b = rows(dtype, k), meta(*groups, N, k, dtype=dtype)
    if four_bits:
        a = a if recipe is None else (a, rows(F32, 3))
        b = (meta(*groups, N, k // 2, dtype=torch.int8), meta(*groups, N, k // 32, dtype=draw(SCALES_OF_FOUR_BITS)))
    elif recipe is not None:
        blocks = 1 if recipe.k is None else 3
        scales = meta(1, 1) if recipe.m is None and draw(st.integers(0, 4)) else rows(F32, blocks)
        a, b = (a, scales), (b, meta(*groups, 1 if recipe.n is None else -(-N // recipe.n), blocks))
    form = draw(st.sampled_from(["plain", "c", "bias", "pair", "heads"])) if grouping == "dense" else "plain"
    d = rows(BF16, N if form != "heads" else N // 128 * 160)
    more = {"dtypes": (dtype,), "recipe": recipe, "four_bits": "e2m1" if four_bits else "", "grouping": grouping}
    more["c"] = rows(BF16, N) if form == "c" else None
    more["bias"] = meta(N) if form == "bias" else None
    more["head_splits"] = (64, 32, 64) if form == "heads" else None
    if form == "pair":
        d = (rows(FP8, N), rows(F32, N // 128))
    if grouping != "dense":
        layout = rows(torch.int32) if grouping == "contiguous" or draw(st.integers(0, 4)) == 0 else None
        more |= {"layout": meta(G, dtype=torch.int32) if layout is None else layout, "layout_name": "grouped_layout"}
    return (a, b, d), more


def outcome(problem):
    """The GEMM, or the error's type and text."""
    operands, more = problem
    try:
        return checks.check_gemm(*operands, **more)[0]
    except (TypeError, ValueError, NotImplementedError) as error:
        return type(error), str(error)


def check_both_ways(problem, monkeypatch):
    remembered = outcome(problem)
    with monkeypatch.context() as patched:
        patched.setattr(checks, "_checked_family", lambda signature, family: None)
        assert outcome(problem) == remembered
    return remembered


def test_what_is_remembered_holds_for_any_m(monkeypatch):
    seen = []
    before = checks._checked_family.cache_info().hits

    @settings(max_examples=600, deadline=None, derandomize=True, database=None)
    @given(problems())
    def check(problem):
        seen.append(check_both_ways(problem, monkeypatch))

    check()
    good = [gemm for gemm in seen if isinstance(gemm, checks.Gemm)]
    assert len(seen) - len(good) > 100
    assert {gemm.m for gemm in good} >= set(ROWS[:-1])
    assert {gemm.kind.a_type for gemm in good if gemm.kind.b_type == "e2m1"} == {"bf16", "e4m3"}
    assert max(gemm.m for gemm in good) < 2**31
    assert checks._checked_family.cache_info().hits > before + 50
