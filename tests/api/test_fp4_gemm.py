"""GEMM with weights of four bits, against the fp64 oracle on the values that the format defines."""

from __future__ import annotations

import itertools
from operator import attrgetter

import pytest
import torch
from helpers.default_run import these
from helpers.gemm_configs import FOUR_BITS, GROUPED_FOUR_BITS, QUICK_FOUR_BITS, each_tile, has_row_scales_in_lds
from helpers.grouped_layouts import grouped_layout
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.heuristics import GemmConfig
from deep_gemm_rocm.problems.gemm_kind import GemmKind
from deep_gemm_rocm.runtime import hip
from deep_gemm_rocm.testing import GuardedOutput, activations, assert_accurate, gemm_reference, quantised_activations

BOTH = ("fp8", "bf16")
FORMS = ("int32", "uint8", "float32", "e8m0")
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def weight(rows: int, k: int, exponents=(112, 122), form: str = "uint8", seed: int = 0):
    """Random codes, all of them, and random scales, in one of the forms that functions take."""
    generator = torch.Generator().manual_seed(seed)
    data = torch.randint(-128, 128, (rows, k // 2), dtype=torch.int8, generator=generator)
    low, high = exponents
    scales = torch.randint(low, high + 1, (rows, k // 32), dtype=torch.uint8, generator=generator)
    return dg.shuffle_weight(data, scales) if form == "shuffled" else (data, as_form(scales, form))


def as_form(exponents: torch.Tensor, form: str) -> torch.Tensor:
    if form == "float32":
        return (
            torch.exp2(exponents.float() - 127).masked_fill(exponents == 0, 0).masked_fill(exponents == 255, torch.nan)
        )
    if form == "int32":  # columns are contiguous, as DeepGEMM has them, and rows of the last word are filled up
        padded = torch.nn.functional.pad(exponents, (0, -exponents.shape[1] % 4), value=255)
        return padded.contiguous().view(torch.int32).T.contiguous().T
    return exponents.view(torch.float8_e8m0fnu) if form == "e8m0" else exponents


def inputs(function: str, m: int, k: int, seed: int = 0):
    return activations(m, k, seed) / 8 if function == "bf16" else quantised_activations(m, k, seed)


def check(function: str, a, b, *, columns: int = 8, dtype=torch.float32, c=None, bias=None, epilogue="identity"):
    """Returns the result after checking it, and the output's surroundings, against the oracle."""
    m = len(a if function == "bf16" else a[0])
    n = len(b[0]) // (2 if epilogue == "silu_and_mul" else 1)
    output = GuardedOutput(m, n, columns, dtype=dtype)
    call = dg.bf16_fp4_gemm_nt if function == "bf16" else dg.fp8_fp4_gemm_nt
    assert call(a, b, output.tensor, c, bias=bias, epilogue=epilogue) is None
    output.assert_intact()
    assert_accurate(output.tensor, gemm_reference(a, b, c=c, bias=bias, epilogue=epilogue))
    return output.tensor


def problem(kind: GemmKind, m: int, n: int, k: int, seed: int = 0, *, by_rows: bool = False):
    function = "bf16" if kind.a_type == "bf16" else "fp8"
    form = "float32" if kind.b_scale_type == "f32" else "shuffled" if kind.b_type == "shuffled_e2m1" else "uint8"
    a, b = inputs(function, m, k, seed), weight(n * kind.parts, k, form=form, seed=seed)
    if kind.a_type == "e5m2":
        a = a[0].float().to(torch.float8_e5m2fnuz), a[1]
    if by_rows:
        a = a[0], a[1].contiguous()
    generator = torch.Generator().manual_seed(seed)
    c = torch.randn(m, n, generator=generator).to(TYPES[kind.d_type]) if kind.accumulate else None
    bias = torch.randn(n * kind.parts, generator=generator) if kind.bias != "none" else None
    options = {"dtype": TYPES[kind.d_type], "c": c, "bias": bias, "epilogue": kind.activation}
    return lambda columns=8: check(function, a, b, columns=columns, **options)


@each_tile(FOUR_BITS, only=QUICK_FOUR_BITS)
def test_every_kind_and_tile_with_tails(use_config, config):
    use_config(config)
    k = 3 * 128 // config.kind.element_bytes + (32 if config.kind.k_tail else 0)
    problem(config.kind, config.block_m + 5, 2 * config.output_n - 8, k)()
    problem(config.kind, config.block_m - 3, config.output_n + 13, k)(columns=3)


@each_tile(FOUR_BITS, only=QUICK_FOUR_BITS)
def test_no_races_and_no_missing_waits(use_config, monkeypatch, config):
    if not hip.runtime().is_simulated:
        pytest.skip("needs the simulator")
    use_config(config)
    monkeypatch.setenv("DG_SIM_SANITIZE", "2")
    monkeypatch.setenv("DG_SIM_SEED", "1")
    k = 5 * 128 // config.kind.element_bytes - (32 if config.kind.k_tail else 0)
    problem(config.kind, config.block_m + 3, config.output_n + 5, k)()


SCALES_IN_LDS = [
    config for config in FOUR_BITS
    if config.kind.is_a_scaled and config.kind.k_tail and has_row_scales_in_lds(config)
]  # fmt: skip
WIDENS_AHEAD = max((config for config in SCALES_IN_LDS if config.widens_ahead), key=attrgetter("block_m", "block_n"))


@pytest.mark.parametrize("by_rows", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["rows", "columns"])
@each_tile(SCALES_IN_LDS, only=[WIDENS_AHEAD, *(config for config in SCALES_IN_LDS if config in QUICK_FOUR_BITS)])
def test_scales_of_many_k_blocks(use_config, monkeypatch, config, by_rows):
    """More K-blocks than LDS has scales of rows at once, under the sanitizer."""
    if hip.runtime().is_simulated:
        monkeypatch.setenv("DG_SIM_SANITIZE", "1")
    use_config(config)
    k = 128 * 37 * config.waves_k + 32
    problem(config.kind, config.block_m + 9, 2 * config.output_n - 8, k, by_rows=by_rows)()


def experts(groups: int, n: int, k: int, form: str):
    return tuple(map(torch.stack, zip(*(weight(n, k, form=form, seed=seed) for seed in range(groups)), strict=True)))


def check_groups(grouping: str, n: int, k: int, form: str = "uint8", **options):
    """Groups with many, few and no rows, against the oracle; other rows become zeros, or stay as they are if masked."""
    sizes, starts, rows = (130, 5, 0), (0, 256, 384), 384
    a, b = quantised_activations(3 * rows, k), experts(3, n, k, form)
    output = GuardedOutput(3 * rows if grouping == "masked" else rows, n, dtype=torch.float32)
    if grouping == "masked":
        starts = (0, rows, 2 * rows)
        stacked = tuple(part.contiguous().unflatten(0, (3, rows)) for part in a)
        d, counts = output.tensor.unflatten(0, (3, rows)), torch.tensor(sizes, dtype=torch.int32)
        dg.m_grouped_fp8_fp4_gemm_nt_masked(stacked, b, d, counts, 40, **options)
    else:
        layout = grouped_layout(grouping, starts, sizes, rows)
        options |= {"use_psum_layout": grouping == "psum"}
        of_rows = tuple(part[:rows] for part in a)
        dg.m_grouped_fp8_fp4_gemm_nt_contiguous(of_rows, b, output.tensor, layout, **options)
    output.assert_intact()
    left = torch.ones(len(output.tensor), dtype=torch.bool)
    for group, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        used = slice(start, start + size)
        left[used] = False
        expert = tuple(part[group] for part in b)
        assert_accurate(output.tensor[used], gemm_reference(tuple(part[used] for part in a), expert))
    rest = output.tensor[left]
    assert rest.isnan().all() if grouping == "masked" else not rest.any()


# Other groupings have small tiles in the default run, with all forms of scales below.
TOGETHER = next(
    config for config in GROUPED_FOUR_BITS if config.kind.grouping == "psum" and config.schedule == "pingpong"
)


@each_tile(GROUPED_FOUR_BITS, only=[TOGETHER])
def test_groups_with_every_tile(use_config, monkeypatch, config):
    use_config(config)
    check_groups(config.kind.grouping, config.block_n + 13, 160)
    if hip.runtime().is_simulated:
        monkeypatch.setenv("DG_SIM_SANITIZE", "2")
        check_groups(config.kind.grouping, config.block_n, 288)


@pytest.mark.parametrize(
    ("grouping", "form"), [("contiguous", "int32"), ("psum", "float32"), ("masked", "e8m0"), ("masked", "int32")]
)
def test_groups_with_all_forms_of_scales(grouping, form):
    check_groups(grouping, 70, 416, form, recipe_a=(1, 128), recipe_b=(1, 32))


def test_grouped_functions_take_fp8_too():
    a = quantised_activations(128, 256)
    b = tuple(part[None] for part in dg.per_block_cast_to_fp8(torch.randn(48, 256)))
    d, same = torch.zeros(128, 48), torch.zeros(128, 48)
    dg.m_grouped_fp8_fp4_gemm_nt_contiguous(a, b, d, torch.zeros(128).int())
    dg.m_grouped_fp8_gemm_nt_contiguous(a, b, same, torch.zeros(128).int())
    assert d.any()
    assert torch.equal(d, same)
    dg.m_grouped_fp8_fp4_gemm_nt_masked(
        tuple(part[None] for part in a), b, d.zero_()[None], torch.tensor([128]).int(), 9
    )
    assert torch.equal(d, same)
    with pytest.raises(NotImplementedError, match="transpose_packed_fp4"):
        dg.m_grouped_fp8_fp4_gemm_nn_contiguous(a, experts(1, 48, 256, "uint8"), d, torch.zeros(128).int())


@settings(max_examples=6, deadline=None)
@given(
    function=st.sampled_from(BOTH),
    form=st.sampled_from(FORMS),
    m=st.integers(0, 100),
    n=st.integers(0, 200),
    groups=st.integers(1, 20),
    lowest=st.integers(40, 200),
    spread=st.integers(0, 60),
)
def test_any_shape_and_scales(function, form, m, n, groups, lowest, spread):
    k = 32 * groups
    b = weight(n, k, (lowest, min(lowest + spread, 200)), form, seed=m + n + k)
    check(function, inputs(function, m, k), b)


@pytest.mark.parametrize("function", BOTH)
def test_each_code_is_exact(function):
    """One row of a has a single 1, so each result is one value of b."""
    data = torch.arange(256, dtype=torch.uint8).view(torch.int8).repeat(1, 2).view(16, 32)
    exponents = torch.arange(103, 119, dtype=torch.uint8)[:, None].repeat(1, 2)
    rows = torch.eye(64)
    a = rows.bfloat16() if function == "bf16" else (rows.to(torch.float8_e4m3fnuz), torch.ones(64, 1))
    d = check(function, a, (data, exponents))
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    values = torch.cat([values, -values])
    codes = torch.stack([data.view(torch.uint8) & 15, data.view(torch.uint8) >> 4], -1).flatten(1)
    expected = values[codes.long()] * torch.exp2(exponents.double() - 127).repeat_interleave(32, 1)
    assert torch.equal(d.double(), expected.T)


def together(kind: GemmKind, block_m: int = 128) -> GemmConfig:
    """A configuration whose waves share what they widen, which takes scales near a reference only."""
    return GemmConfig(block_m, 128, 4, 2, 3, "pingpong", kind=kind)


def of_form(form: str, **others) -> GemmKind:
    scales = "f32" if form == "float32" else "e8m0"
    return GemmKind(b_type="e2m1", scaling="groups", b_scale_type=scales, **{"d_type": "f32", **others})


@pytest.mark.parametrize("alone", [True, False])
def test_each_scale_is_exact(use_config, alone):
    """0.5 with every scale, one beside a large one, in fp32."""
    if not alone:
        use_config(together(of_form("uint8")))
    exponents = torch.arange(1, 253, dtype=torch.uint8)[:, None].repeat(1, 4)
    exponents[:, 1] = 130
    data = torch.zeros(252, 64, dtype=torch.int8)
    data[:, 32] = 1
    a = torch.full((1, 128), 1.0).to(torch.float8_e4m3fnuz), torch.ones(1, 1)
    d = check("fp8", a, (data, exponents))
    assert torch.equal(d[0], torch.exp2(exponents[:, 2].double() - 128).float())


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("form", ["uint8", "float32"])
@pytest.mark.parametrize("counted", range(4))
def test_scales_of_any_spread_in_a_block(use_config, form, counted, alone):
    """Groups of very different scales, of which only one has values of a that aren't zero."""
    if not alone:
        use_config(together(of_form(form)))
    data, exponents = weight(40, 512)
    random = torch.Generator().manual_seed(0)
    exponents[:] = torch.tensor([200, 36, 120, 90]).repeat(4) + torch.randint(-5, 5, exponents.shape, generator=random)
    counts = torch.arange(512) // 32 % 4 == counted
    values = torch.where(counts, torch.randn(9, 512, generator=random), 0)
    d = check("fp8", (values.to(torch.float8_e4m3fnuz), torch.ones(9, 4)), (data, as_form(exponents, form)))
    assert d.all()


@pytest.mark.parametrize("form", ["uint8", pytest.param("float32", marks=pytest.mark.slow)])
def test_scales_of_any_spread_beside_scales_of_rows(use_config, form):
    """A K-block that takes several rounds has scales of rows unlike the next one's in all of them."""
    use_config(GemmConfig(64, 32, 1, 1, 2, "alone", waves_k=4, kind=of_form(form)))
    k_blocks = 12
    random = torch.Generator().manual_seed(0)
    data, exponents = weight(32, 128 * k_blocks)
    exponents[:] = torch.tensor([200, 36, 120, 90]).repeat(k_blocks)
    counts = torch.arange(128 * k_blocks) // 32 % 4 == 1
    values = torch.where(counts, torch.randn(64, 128 * k_blocks, generator=random), 0)
    scales = torch.exp2(torch.randint(-4, 5, (64, k_blocks), generator=random).float())
    check("fp8", (values.to(torch.float8_e4m3fnuz), scales), (data, as_form(exponents, form)))


@pytest.mark.parametrize("function", BOTH)
def test_without_k(function):
    check(function, inputs(function, 3, 0), (torch.zeros(20, 0, dtype=torch.int8), torch.zeros(20, 0)))


@pytest.mark.parametrize("form", ["uint8", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "others",
    [
        {},
        pytest.param({"d_type": "bf16"}, marks=pytest.mark.slow),
        pytest.param({"accumulate": True}, marks=pytest.mark.slow),
        pytest.param({"activation": "silu_and_mul"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_tiles_that_follow_one_with_a_far_scale(use_config, form, others):
    """Two workgroups with six tiles each, some of which have scales too small or too large for FP8 beside others. All
    have the bits that waves alone compute."""
    m, n, k = 300, 300, 512
    kind = of_form(form, **others)
    a, (data, exponents) = inputs("fp8", m, k), weight(n * kind.parts, k)
    exponents[140, 5], exponents[150, 2], exponents[290, 15] = 90, 133, 60
    exponents[20, 3], data[20, 48:64] = 10, 0  # of zeros, so it doesn't count
    b, c = (data, as_form(exponents, form)), torch.randn(m, n, generator=torch.Generator().manual_seed(0))
    results = []
    for config in (together(kind), GemmConfig(16, 32 * kind.parts, 1, 2, 4, "alone", kind=kind)):
        use_config(config)
        dg.set_num_sms(2)
        d = c.clone() if kind.accumulate else torch.empty(m, n, dtype=TYPES[kind.d_type])
        dg.fp8_fp4_gemm_nt(a, b, d, d if kind.accumulate else None, epilogue=kind.activation)
        results.append(d)
    assert_accurate(results[0], gemm_reference(a, b, c=c if kind.accumulate else None, epilogue=kind.activation))
    assert torch.equal(*results)


FORMS_AND_TILES = list(itertools.product(BOTH, ("uint8", "float32"), (0, 128)))


@pytest.mark.parametrize(
    ("function", "form", "block_m"),
    these(FORMS_AND_TILES, [case for case in FORMS_AND_TILES if case != ("bf16", "float32", 128)]),
)
def test_zero_and_nan_scales_stay_in_their_columns(use_config, function, form, block_m):
    if block_m:
        types = {"a_type": "bf16", "d_type": "bf16"} if function == "bf16" else {}
        use_config(together(of_form(form, **types), block_m))
    dtype = torch.bfloat16 if block_m and function == "bf16" else torch.float32
    data, exponents = weight(70, 256)
    exponents[3, 1] = exponents[64, 7] = 255
    exponents[5], exponents[6, :4] = 0, 0
    d = check(function, inputs(function, 20, 256), (data, as_form(exponents, form)), dtype=dtype)
    assert d.isnan().any(0).nonzero().flatten().tolist() == [3, 64]
    assert not d[:, 5].any()


@pytest.mark.parametrize("function", BOTH)
def test_forms_of_scales_give_the_same_bits(function):
    a = inputs(function, 5, 416)
    results = [check(function, a, weight(50, 416, form=form)) for form in FORMS]
    assert all(torch.equal(results[0], result) for result in results)


def test_scales_beside_a_powers_of_two():
    data, exponents = weight(40, 256, form="float32")
    scales = exponents * torch.rand(exponents.shape, generator=torch.Generator().manual_seed(0)).add(1)
    check("bf16", inputs("bf16", 20, 256), (data, scales))
    d = torch.zeros(20, 40)
    dg.fp8_fp4_gemm_nt(inputs("fp8", 20, 256), (data, scales), d)
    assert d.isnan().all()  # documented


@pytest.mark.parametrize("function", BOTH)
def test_split_k_and_many_columns(function):
    a = inputs(function, 3, 4096)
    check(function, a, weight(24, 4096))
    check(function, inputs(function, 3, 128), weight(9000, 128))


def test_strided_rows_and_uint8_data():
    data, scales = weight(33, 256)
    padded = torch.full((33, 144), -1, dtype=torch.int8)
    padded[:, :128] = data
    of_scales = torch.full((33, 11), 255, dtype=torch.uint8)
    of_scales[:, 2:10] = scales
    a = inputs("fp8", 5, 256)
    expected = check("fp8", a, (data, scales))
    assert torch.equal(check("fp8", a, (padded[:, :128].view(torch.uint8), of_scales[:, 2:10])), expected)


def test_deepgemms_casts_and_recipes():
    w = torch.randn(48, 320, generator=torch.Generator().manual_seed(0))
    a = quantised_activations(7, 320)
    packed = dg.per_token_cast_to_fp4(w, use_ue8m0=True, gran_k=32, use_packed_ue8m0=True)
    d, same = torch.empty(7, 48), torch.empty(7, 48)
    dg.fp8_fp4_gemm_nt(a, packed, d, recipe_a=(1, 128), recipe_b=(1, 32))
    assert_accurate(d, gemm_reference(a, packed))
    dg.fp8_fp4_gemm_nt(a, dg.per_token_cast_to_fp4(w, use_ue8m0=True, gran_k=32), same)
    assert torch.equal(d, same)
    fp8 = dg.per_block_cast_to_fp8(w)
    dg.fp8_fp4_gemm_nt(a, fp8, d)
    assert_accurate(d, gemm_reference(a, fp8))


D = torch.zeros(4, 16)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (
            {"b": (torch.zeros(16, 63, dtype=torch.int8), torch.ones(16, 4))},
            ValueError,
            r"b\[0\] must have half as many",
        ),
        ({"b": (torch.zeros(16, 64, dtype=torch.int8), torch.ones(16, 3))}, ValueError, r"b\[1\] must have shape"),
        ({"b": (torch.zeros(16, 64, dtype=torch.int8), torch.ones(16, 4).half())}, TypeError, r"b\[1\] must be"),
        ({"b": (torch.zeros(16, 64, dtype=torch.int8), torch.ones(4, 16).T)}, ValueError, r"b\[1\] must have contig"),
        ({"b": (torch.zeros(64, 16, dtype=torch.int8).T, torch.ones(16, 4))}, ValueError, r"b\[0\] must be contiguous"),
        ({"recipe": (1, 1, 32)}, NotImplementedError, "recipe of fp8_fp4_gemm_nt must be None"),
        ({"recipe_a": (1, 64)}, NotImplementedError, "recipe_a of fp8_fp4_gemm_nt must be"),
        ({"recipe_a": (1.0, 128)}, TypeError, r"recipe_a must be a tuple of 2 ints, got \(1.0, 128\)"),
        ({"recipe_b": (1, 128)}, NotImplementedError, "recipe_b of fp8_fp4_gemm_nt must be"),
        ({"d": (D, D)}, NotImplementedError, "d must be a tensor"),
    ],
)
def test_errors_name_the_argument_and_nothing_is_written(change, error, words):
    good = {"a": quantised_activations(4, 128), "b": weight(16, 128), "d": D.fill_(7)}
    with pytest.raises(error, match=words):
        dg.fp8_fp4_gemm_nt(**{**good, **change})
    assert (D == 7).all()


def test_k_must_be_a_multiple_of_32_and_other_layouts_take_fp8():
    with pytest.raises(ValueError, match="K must be a multiple of 32"):
        dg.bf16_fp4_gemm_nt(
            torch.zeros(4, 48).bfloat16(), (torch.zeros(16, 24, dtype=torch.int8), torch.ones(16, 1)), D
        )
    for function in (dg.fp8_fp4_gemm_nn, dg.fp8_fp4_gemm_tn, dg.fp8_fp4_gemm_tt):
        with pytest.raises(NotImplementedError, match="transpose_packed_fp4"):
            function(quantised_activations(4, 128), weight(16, 128), D)
