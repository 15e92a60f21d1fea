"""GEMM with int4 weights, against the fp64 oracle on the values that codes, zeros and scales define."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from helpers.default_run import some, these
from helpers.gemm_configs import INT4, INT4_KINDS, each_tile, has_row_scales_in_lds, quick
from helpers.grouped_layouts import grouped_layout
from helpers.int4_packings import int4
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.heuristics import GemmConfig
from deep_gemm_rocm.problems.gemm_kind import GemmKind
from deep_gemm_rocm.runtime import hip
from deep_gemm_rocm.testing import (
    GemmReference,
    GuardedOutput,
    activations,
    assert_accurate,
    gemm_reference,
    quantised_activations,
)
from deep_gemm_rocm.testing.numerics import int4_values, unshuffled

NAMES = {"masked": "masked", "contiguous": "contiguous", "psum": "contiguous"}
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def weight(kind: GemmKind, n: int, k: int, seed: int = 0):
    """Random codes, scales and, if the kind has them, zeros."""
    with_zeros = kind.b_scale_type == "f32_and_zero"
    dtype = TYPES.get(kind.b_scale_type, torch.float32)
    packed = int4("compressed-tensors", n, k, kind.group_k, with_zeros, dtype, seed)
    b = dg.repack_int4(*packed.arguments, packing="compressed-tensors")
    assert torch.allclose(int4_values(*b), packed.values, rtol=2.0**-19, atol=0)
    return dg.shuffle_weight(*b) if kind.b_type == "shuffled_int4" else b


def inputs(kind: GemmKind, m: int, k: int, seed: int = 0):
    if kind.a_type == "bf16":
        return activations(m, k, seed) / 8
    data, scales = quantised_activations(m, k, seed)
    return (data if kind.a_type == "e4m3" else data.float().to(torch.float8_e5m2fnuz)), scales


def check(a, b, *, columns: int = 8, dtype=torch.float32, c=None, bias=None, epilogue="identity"):
    """Returns the result after checking it, and the output's surroundings, against the oracle."""
    m, function = (len(a), dg.bf16_int4_gemm_nt) if isinstance(a, torch.Tensor) else (len(a[0]), dg.fp8_int4_gemm_nt)
    output = GuardedOutput(m, len(b[0]) // (2 if epilogue == "silu_and_mul" else 1), columns, dtype=dtype)
    assert function(a, b, output.tensor, c, bias=bias, epilogue=epilogue) is None
    output.assert_intact()
    assert_accurate(output.tensor, gemm_reference(a, b, c=c, bias=bias, epilogue=epilogue))
    return output.tensor


def check_kind(kind: GemmKind, m: int, n: int, k: int, columns: int = 8) -> None:
    generator = torch.Generator().manual_seed(m + n)
    b = weight(kind, n * kind.parts, k, seed=m)
    c = torch.randn(m, n, generator=generator).to(TYPES[kind.d_type]) if kind.accumulate else None
    bias = torch.randn(n * kind.parts, generator=generator) if kind.bias != "none" else None
    options = {"c": c, "bias": bias, "epilogue": kind.activation}
    check(inputs(kind, m, k), b, columns=columns, dtype=TYPES[kind.d_type], **options)


def tail_of(kind: GemmKind) -> int:
    """Of groups of 128, the last one is half a K-block where kernels can leave out the other half."""
    return 3 * 128 + (32 if kind.k_tail and kind.group_k == 32 else 0)


@pytest.mark.slow
@each_tile(INT4)
def test_every_kind_and_tile_with_tails(use_config, monkeypatch, config):
    use_config(config)
    check_kind(config.kind, config.block_m + 5, 2 * config.output_n - 8, tail_of(config.kind))
    check_kind(config.kind, config.block_m - 3, config.output_n + 13, tail_of(config.kind), columns=3)
    if hip.runtime().is_simulated:
        monkeypatch.setenv("DG_SIM_SANITIZE", "2")
        monkeypatch.setenv("DG_SIM_SEED", "1")
        check_kind(config.kind, config.block_m + 3, config.output_n + 5, tail_of(config.kind) + 128)


OF_128 = [config for config in INT4 if config.kind.is_a_scaled and config.kind.group_k == 128]


# The default run has them as they are and shuffled.
IN_LDS = [config for config in OF_128 if has_row_scales_in_lds(config)]


@each_tile(IN_LDS, only=[config for config in quick(IN_LDS) if config.kind.a_type == "e4m3"])
def test_scales_of_rows_of_many_k_blocks(use_config, config):
    """More K-blocks than LDS has scales of rows at once."""
    use_config(config)
    check_kind(config.kind, config.block_m + 5, config.output_n + 8, 128 * 37 * config.waves_k)


@pytest.mark.parametrize(
    ("kind", "schedule"),
    [
        pytest.param(INT4_KINDS[0], (128, 128, 4, 2, 3, "pingpong"), marks=pytest.mark.slow),
        pytest.param(INT4_KINDS[1], (128, 128, 4, 2, 3, "pingpong"), marks=pytest.mark.slow),
        pytest.param(INT4_KINDS[2], (16, 64, 1, 2, 3, "alone"), marks=pytest.mark.slow),
        (INT4_KINDS[1], (16, 16, 1, 1, 3, "alone", 4)),
        pytest.param(INT4_KINDS[3], (128, 128, 4, 2, 3, "pingpong"), marks=pytest.mark.slow),
        pytest.param(INT4_KINDS[5], (128, 128, 4, 2, 3, "pingpong"), marks=pytest.mark.slow),
        pytest.param(INT4_KINDS[6], (16, 16, 1, 1, 3, "alone", 4), marks=pytest.mark.slow),
        (INT4_KINDS[7], (32, 32, 1, 1, 2, "alone")),
        (INT4_KINDS[8], (128, 128, 4, 2, 3, "pingpong")),
        pytest.param(INT4_KINDS[9], (16, 32, 1, 2, 3, "alone"), marks=pytest.mark.slow),
        pytest.param(INT4_KINDS[10], (64, 64, 1, 1, 2, "alone", 4), marks=pytest.mark.slow),
        (INT4_KINDS[11], (128, 128, 2, 4, 3, "pingpong")),
        pytest.param(INT4_KINDS[13], (16, 48, 1, 1, 3, "alone"), marks=pytest.mark.slow),
    ],
    ids=(
        *("32", "128", "64", "128 dealt to waves", "fp8", "zeros", "fp8 32", "fp8 64", "fp8 32 zeros", "e5m2 zeros"),
        *("shuffled 32", "shuffled 64", "shuffled 128"),
    ),
)
def test_waves_alone_and_together(use_config, monkeypatch, kind, schedule):
    """Few rows, widened by each wave, and many, widened once on their way to LDS."""
    config = GemmConfig(*schedule, kind=kind)
    use_config(config)
    if hip.runtime().is_simulated:
        monkeypatch.setenv("DG_SIM_SANITIZE", "1")
    k = 5 * 128 if config.waves_k > 1 else tail_of(kind)  # so that parts of K begin in the middle of groups
    check_kind(kind, config.block_m - 3, config.output_n + 13, k, columns=3)


@pytest.mark.parametrize(
    "kind",
    some([INT4_KINDS[13], INT4_KINDS[3], INT4_KINDS[0], *INT4_KINDS[4:9], *INT4_KINDS[10:12]], 6),
    ids=(
        *("shuffled of 128", "fp8", "32", "zeros of 32", "zeros of 128", "fp8 32", "fp8 zeros of 64"),
        *("fp8 zeros of 32", "shuffled of 32", "shuffled of 64"),
    ),
)
def test_each_code_and_zero_is_exact(kind):
    """One row of a has a single 1, so each result is one weight, here with scales that are powers of two."""
    kind = dataclasses.replace(kind, bias="none", activation="identity")
    zeros = torch.arange(17)[:, None] if kind.b_scale_type == "f32_and_zero" else torch.full((3, 1), 8)
    n, k = len(zeros), 128
    codes = (torch.arange(k) % 16).expand(n, k)
    scales = torch.exp2(torch.arange(n)[:, None] * 7.0 - 60).expand(n, k // kind.group_k).contiguous()
    halves = (codes ^ 8).unflatten(1, (-1, 2, 4))
    data = (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(1).to(torch.uint8).view(torch.int32)
    packed = scales.bfloat16() if kind.b_scale_type == "bf16" else scales
    packed = scales.view(torch.int32) | zeros.int() if kind.b_scale_type == "f32_and_zero" else packed
    rows = torch.eye(k)
    a = rows.bfloat16() if kind.a_type == "bf16" else (rows.to(torch.float8_e4m3fnuz), torch.ones(k, 1))
    b = dg.shuffle_weight(data, packed) if kind.b_type == "shuffled_int4" else (data, packed)
    d = check(a, b)
    expected = (codes - zeros).double() * scales.double().repeat_interleave(kind.group_k, 1)
    assert torch.equal(d.double(), expected.T)


def test_values_widen_beside_mfmas(use_config):
    """A wave converts values to bf16 while MFMAs work, but not in registers that these are still to write."""
    config = next(one for one in INT4 if one.kind == INT4_KINDS[0] and (one.block_m, one.block_n) == (64, 64))
    use_config(config)
    check_kind(config.kind, config.block_m + 5, 2 * config.output_n - 8, tail_of(config.kind))


@pytest.mark.parametrize("scale_type", TYPES)
def test_weights_are_rounded(scale_type):
    """Each result is one weight: to the nearest, and away from 0 between two numbers of bf16."""
    k = 128
    data, scales = weight(dataclasses.replace(INT4_KINDS[0], b_scale_type=scale_type), 40, k)
    assert scales.dtype == TYPES[scale_type]
    d = check(torch.eye(k).bfloat16(), (data, scales))
    exact = int4_values(data, scales).T
    spacing = torch.exp2(torch.frexp(exact).exponent.double() - 8)
    rounded = exact.sign() * (exact.abs() / spacing + 0.5).floor() * spacing
    assert not torch.equal(exact, rounded)
    assert torch.equal(d.double(), rounded)


@pytest.mark.parametrize(
    "kind",
    [INT4_KINDS[2], INT4_KINDS[5], *(dataclasses.replace(INT4_KINDS[6], b_scale_type=scale) for scale in TYPES)],
    ids=("64", "zeros", *(f"fp8 {scale}" for scale in TYPES)),
)
def test_integers_are_exact(kind):
    """Weights whose scales have many bits, one for each result."""
    kind, k = dataclasses.replace(kind, bias="none", activation="identity"), 256
    b = weight(kind, 40, k)
    rows = torch.eye(k)
    a = rows.bfloat16() if kind.a_type == "bf16" else (rows.to(torch.float8_e4m3fnuz), torch.ones(k, k // 128))
    assert torch.equal(check(a, b), int4_values(*b).T.float())


def test_bad_scales_stay_in_their_columns():
    kind = dataclasses.replace(INT4_KINDS[0], b_scale_type="f32")
    (data, scales), a = weight(kind, 40, 128), activations(5, 128)
    scales[3, 1], scales[20, 0], scales[33, 3] = torch.nan, torch.inf, -torch.inf
    scales.view(torch.int32)[21, 2] = 0x7FFFFFFF  # a NaN that rounding could make a number of
    d = torch.empty(5, 40)
    dg.bf16_int4_gemm_nt(a, (data, scales), d)
    assert d.isnan().all(0).nonzero().flatten().tolist() == [3, 20, 21, 33]
    assert d[:, :3].isfinite().all()


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(m=st.integers(0, 100), n=st.integers(0, 200), groups=st.integers(0, 20), seed=st.integers(0, 99))
def test_any_shape(m, n, groups, seed):
    k = 32 * groups
    check(activations(m, k, seed), weight(INT4_KINDS[0], n, k, seed) if n and k else empty(n, k))


def test_weights_of_other_functions_name_these():
    int4, fp4 = empty(16, 128), (torch.zeros(16, 64, dtype=torch.int8), torch.ones(16, 4))
    x, d = torch.zeros(3, 128, dtype=torch.bfloat16), torch.empty(3, 16)
    with pytest.raises(
        TypeError, match=r"b\[0\] must be int8, uint8 or int64, got .*; functions with int4 in their names"
    ):
        dg.bf16_fp4_gemm_nt(x, int4, d)
    with pytest.raises(
        TypeError, match=r"b\[0\] must be int32 or int16, got torch.int8; functions with fp4 in their names"
    ):
        dg.bf16_int4_gemm_nt(x, fp4, d)
    with pytest.raises(TypeError, match=r"b\[0\] must be float8_e4m3fnuz or .*; functions with int4 in their names"):
        dg.fp8_gemm_nt(dg.per_token_cast_to_fp8(x), int4, d)


def empty(n: int, k: int):
    return torch.zeros(n, k // 8).int(), torch.zeros(n, k // 32).bfloat16()


@pytest.mark.parametrize(
    ("grouping", "kind"),
    these(
        itertools.product(
            ("masked", "contiguous", "psum"), (INT4_KINDS[0], INT4_KINDS[3], INT4_KINDS[10], INT4_KINDS[13])
        ),
        [("masked", INT4_KINDS[0]), ("contiguous", INT4_KINDS[10]), ("psum", INT4_KINDS[3])],
    ),
    ids=lambda value: value if isinstance(value, str) else f"{value.a_type} {value.b_type}",
)
def test_groups(monkeypatch, grouping, kind):
    """Groups with many, few and no rows; other rows become zeros, or stay as they are if masked."""
    if hip.runtime().is_simulated:
        monkeypatch.setenv("DG_SIM_SANITIZE", "1")
    n, k, sizes, room = 70, 256, (130, 5, 0), 256
    starts, rows = ((0, 256, 512), 3 * room) if grouping == "masked" else ((0, 256, 384), 384)
    experts = [weight(kind, n, k, seed) for seed in range(3)]
    b = tuple(torch.stack(parts) for parts in zip(*experts, strict=True))
    a, output = inputs(kind, rows, k), GuardedOutput(rows, n, dtype=torch.float32)
    call = getattr(dg, f"m_grouped_{'bf16' if kind.a_type == 'bf16' else 'fp8'}_int4_gemm_nt_{NAMES[grouping]}")
    if grouping == "masked":
        stacked = each(a, lambda part: part.contiguous().unflatten(0, (3, room)))
        call(stacked, b, output.tensor.unflatten(0, (3, room)), torch.tensor(sizes).int(), 40)
    else:
        layout = grouped_layout(grouping, starts, sizes, rows)
        call(a, b, output.tensor, layout, use_psum_layout=grouping == "psum")
    output.assert_intact()
    left = torch.ones(rows, dtype=torch.bool)
    for group, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        left[start : start + size] = False
        own = each(a, lambda part, start=start, size=size: part[start : start + size])
        assert_accurate(output.tensor[start : start + size], gemm_reference(own, experts[group]))
    rest = output.tensor[left]
    assert rest.isnan().all() if grouping == "masked" else not rest.any()


def each(operand, function):
    return function(operand) if isinstance(operand, torch.Tensor) else tuple(map(function, operand))


def test_the_oracle_knows_a_wrong_zero():
    """The bound of errors is far below one step of a code."""
    a, b = activations(9, 256), weight(INT4_KINDS[0], 48, 256)
    reference = gemm_reference(a, b)
    wrong = reference.exact + (a[:, :32].double().sum(1, keepdim=True) * b[1][:, 0].double())
    with pytest.raises(AssertionError):
        assert_accurate(wrong.float(), GemmReference(reference.exact, reference.error))


B = (torch.zeros(16, 16).int(), torch.ones(16, 4))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"b": (B[0][:, :15], B[1])}, ValueError, r"b\[0\] must have an eighth as many columns as a, eight values"),
        ({"b": (B[0].char(), B[1])}, TypeError, r"b\[0\] must be .*int32"),
        (
            {"b": (B[0], torch.ones(16, 3))},
            ValueError,
            r"b\[1\] must have one of the shapes \(16, 4\), \(16, 2\), \(16, 1\)",
        ),
        (
            {"b": (B[0], B[1][:, :2].half())},
            TypeError,
            r"b\[1\] must be float32 or int32 for groups of 64",
        ),
        ({"b": (B[0], B[1].double())}, TypeError, r"b\[1\] must be"),
        ({"b": B[0]}, TypeError, r"b must be a pair \(int4 data, scales\) as repack_int4 returns it"),
        ({"a": torch.zeros(4, 128)}, TypeError, "a must be"),
        (
            {"d": (torch.zeros(4, 16).to(torch.float8_e4m3fnuz), torch.ones(4, 1))},
            NotImplementedError,
            "d must be a tensor",
        ),
    ],
)
def test_errors_name_the_argument(change, error, words):
    good = {"a": torch.zeros(4, 128).bfloat16(), "b": B, "d": torch.zeros(4, 16)}
    dg.bf16_int4_gemm_nt(**good)
    with pytest.raises(error, match=words):
        dg.bf16_int4_gemm_nt(**{**good, **change})


def test_fp8_takes_whole_k_blocks():
    d = torch.zeros(4, 16)
    a = quantised_activations(4, 128)
    with pytest.raises(ValueError, match="K must be a multiple of 128 for FP8 activations, got 96"):
        dg.fp8_int4_gemm_nt((a[0][:, :96].contiguous(), a[1]), (B[0][:, :12].contiguous(), B[1][:, :3].contiguous()), d)
    assert not d.any()


@pytest.mark.parametrize("group_k", [32, pytest.param(64, marks=pytest.mark.slow)])
def test_a_nan_of_one_group_is_in_its_rows_only(group_k):
    """Sums of groups take zeros in place of the others' activations, and not a factor of zero."""
    kind = dataclasses.replace(INT4_KINDS[6], b_scale_type="f32", group_k=group_k)
    (data, scales), a = weight(kind, 40, 256), quantised_activations(20, 256)
    a[0][3, 200], scales[7, 0] = torch.nan, torch.nan
    d = torch.empty(20, 40)
    dg.fp8_int4_gemm_nt(a, (data, scales), d)
    expected = torch.zeros(20, 40, dtype=torch.bool)
    expected[3], expected[:, 7] = True, True
    assert torch.equal(d.isnan(), expected)


@pytest.mark.parametrize(
    ("tile", "scale_type", "group_k"),
    some(
        [
            (tile, scale_type, group_k)
            for scale_type, group_k in (*((scale_type, 32) for scale_type in TYPES), ("f32", 64), ("f32", 128))
            for tile in ((16, 32, 1, 2, 4, "alone"), (64, 64, 1, 1, 2, "alone", 4), (128, 128, 2, 4, 3, "pingpong"))
        ],
        1,
    ),
)
def test_shuffled_weights_give_the_same_bits(use_config, tile, scale_type, group_k):
    kind = dataclasses.replace(INT4_KINDS[6], d_type="f32", b_scale_type=scale_type, group_k=group_k)
    b, a = weight(kind, 90, 640), inputs(kind, 70, 640)
    results = []
    for form in (b, dg.shuffle_weight(*b)):
        b_type = "int4" if form is b else "shuffled_int4"
        use_config(GemmConfig(*tile, kind=dataclasses.replace(kind, b_type=b_type)))
        results.append(check(a, form))
    assert torch.equal(*results)


@pytest.mark.parametrize("kind", [INT4_KINDS[6], INT4_KINDS[3]], ids=["32", "128"])
def test_shuffled_weights_of_experts(kind):
    data, scales = (torch.stack(parts) for parts in zip(*(weight(kind, 24, 256, i) for i in (1, 2)), strict=True))
    strided = data.mT.contiguous().mT, scales.mT.contiguous().mT
    shuffled = dg.shuffle_weight(*strided)
    assert [(part.dtype, part.shape) for part in shuffled] == [
        (torch.int16, (2, 24, 64)),
        (scales.dtype, (2, 24, 256 // kind.group_k)),
    ]
    assert shuffled[0].is_contiguous()
    assert shuffled[1].stride() == (24 * 256 // kind.group_k, 1, 24)
    assert torch.equal(unshuffled(*shuffled), data)
    assert torch.equal(shuffled[1], scales)


@pytest.mark.parametrize("kind", these(INT4_KINDS, INT4_KINDS[:9]), ids=lambda kind: kind.name)
def test_scales_lie_anywhere(kind):
    data, scales = weight(kind, 90 * kind.parts, 640)
    padded = torch.stack((scales, scales), -1).flatten(-2)[:, ::2]
    forms = (scales.contiguous(), scales.mT.contiguous().mT, padded, padded.mT.contiguous().mT)
    for m in (20, 200):
        results = [check(inputs(kind, m, 640), (data, form), epilogue=kind.activation) for form in forms]
        assert all(torch.equal(d, results[0]) for d in results[1:])


def test_words_of_shuffled_weights():
    """A word of 0 to 3 and -1 to -4: magnitudes and signs, and -1 has 0. Those of short groups change places."""
    words = torch.tensor([0xC3D2E1F0 - 2**32] + [0] * 15, dtype=torch.int32).expand(1, 16)
    shuffled = dg.shuffle_weight(words, torch.ones(1, 1))[0].view(torch.int32)
    assert shuffled.tolist() == [[0x3B2A1908, *[0] * 15]]
    for group_k in (32, 64):
        shuffled = dg.shuffle_weight(torch.arange(16).int()[None], torch.ones(1, 128 // group_k))[0].view(torch.int32)
        assert shuffled[0, :8].tolist() == [0, 4, 0x87, 0x83, 1, 5, 0x86, 0x82]


@pytest.mark.parametrize(
    ("data", "scales", "error", "words"),
    [
        (
            B[0],
            B[1][:, :3].contiguous(),
            ValueError,
            r"scales must have shape .* \(16, 1\) for 32 or 64 or 128 of K, got \(16, 3\)",
        ),
        (B[0], B[1][:, :2].bfloat16(), ValueError, r"scales must have shape \(16, 4\) for 32 of K, got \(16, 2\)"),
        (B[0], B[1].view(torch.int32), TypeError, "scales must be float32, bfloat16 or float16 for int4"),
        (B[0][:, :12], B[1][:, :3], ValueError, r"data must be \[N, K/8\], .* a multiple of 128"),
        (B[0][0], B[1][0], ValueError, "data must be"),
    ],
)
def test_weights_that_are_not_shuffled(data, scales, error, words):
    with pytest.raises(error, match=words):
        dg.shuffle_weight(data, scales)


def test_shuffled_weights_are_for_fp8():
    data, scales = dg.shuffle_weight(*B)
    d = torch.full((4, 16), 7.0)
    with pytest.raises(NotImplementedError, match=r"b\[0\] must be int32 for activations in bf16, got torch.int16"):
        dg.bf16_int4_gemm_nt(torch.zeros(4, 128).bfloat16(), (data, scales), d)
    a = quantised_activations(4, 128)
    with pytest.raises(ValueError, match=r"b\[1\] must have one of the shapes \(16, 4\), \(16, 2\), \(16, 1\)"):
        dg.fp8_int4_gemm_nt(a, (data, scales[:, :3].contiguous()), d)
    with pytest.raises(TypeError, match=r"b\[1\] must be float32, bfloat16 or float16"):
        dg.fp8_int4_gemm_nt(a, (data, scales.view(torch.int32)), d)
    with pytest.raises(TypeError, match=r"b\[1\] must be float32 for groups of 64, got torch.bfloat16"):
        dg.fp8_int4_gemm_nt(a, (data, scales[:, :2].bfloat16()), d)
    assert (d == 7).all()
