"""FP4 weights times activations in FP4, or in FP8 with a scale for 32 values, which are widened to bf16 before."""

from __future__ import annotations

import pytest
import torch
from helpers.default_run import these
from helpers.grouped_layouts import grouped_layout

import deep_gemm_rocm as dg
from deep_gemm_rocm.api.fp4 import FP4_VALUES, unpack_codes
from deep_gemm_rocm.runtime import hip
from deep_gemm_rocm.testing import GuardedOutput, assert_accurate, gemm_reference

DTYPES = {"e2m1": torch.int8, "e4m3": torch.float8_e4m3fnuz, "e5m2": torch.float8_e5m2fnuz}
FORMS = ("int32", "uint8", "e8m0", "f32")


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def weight(n: int, k: int, seed: int = 1):
    return dg.per_token_cast_to_fp4(torch.randn(n, k, generator=generator(seed)), True, 32, True)


def narrow(type_: str, form: str, m: int, k: int, exponents: tuple[int, int] = (-9, 9), seed: int = 0):
    """Random bits with random scales, as an argument, and the values in bf16."""
    random = generator(seed)
    columns = k // 2 if type_ == "e2m1" else k
    data = torch.randint(-128, 128, (m, columns), generator=random).to(torch.int8)
    powers = torch.randint(*exponents, (m, k // 32), generator=random)
    factors = torch.exp2(powers.float())
    if type_ == "e2m1":
        numbers = torch.tensor(FP4_VALUES)[unpack_codes(data).long()]
    else:
        data[data == -128] = 0  # NaN
        data = data.view(DTYPES[type_])
        numbers = data.float()
    if form == "f32":
        factors = scales = torch.rand(m, k // 32, generator=random) * factors
    else:
        scales = (powers + 127).to(torch.uint8)
        if form == "e8m0":
            scales = scales.view(torch.float8_e8m0fnu)
        if form == "int32":
            padded = torch.nn.functional.pad(scales, (0, -(k // 32) % 4))
            scales = padded.view(torch.int32).T.contiguous().T  # as DeepGEMM has them, rows beside each other
    return (data, scales), (numbers * factors.repeat_interleave(32, 1)).bfloat16()


def same_bits(b, values, **options):
    d = torch.empty(len(values), len(b[0]) // (2 if options.get("epilogue") == "silu_and_mul" else 1))
    dg.bf16_fp4_gemm_nt(values, b, d, **options)
    return d


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("type_", DTYPES)
def test_all_types_and_scales_become_the_nearest_bf16(type_, form, monkeypatch):
    """So results have the bits of bf16 activations, which the other tests compare with fp64."""
    if hip.runtime().is_simulated:
        monkeypatch.setenv("DG_SIM_SANITIZE", "1")
    m, n, k = 37, 40, 416
    (a, values), b = narrow(type_, form, m, k), weight(n, k)
    output = GuardedOutput(m, n, dtype=torch.float32)
    assert dg.fp8_fp4_gemm_nt(a, b, output.tensor, recipe_a=(1, 32), recipe_b=(1, 32)) is None
    output.assert_intact()
    assert torch.equal(output.tensor, same_bits(b, values))
    assert_accurate(output.tensor, gemm_reference(values, b))
    again = torch.empty(m, n)
    dg.fp4_gemm_nt(a, b, again)  # finds out by itself
    assert torch.equal(again, output.tensor)


@pytest.mark.parametrize("form", ["uint8", "int32"])
def test_each_code_and_scale(form):
    """A row for each exponent, with all codes; those of 0 and NaN mean 0 and NaN."""
    k = 128
    data = (torch.arange(k // 2) * 0x11 % 256).to(torch.uint8).view(torch.int8).expand(256, k // 2).contiguous()
    exponents = torch.arange(256).to(torch.uint8)[:, None].expand(256, 4).contiguous()
    b = torch.zeros(16, k // 2, dtype=torch.uint8)
    b[torch.arange(16), torch.arange(16)] = 0x02  # row j picks a's value 2j
    d = torch.empty(256, 16)
    a = data, exponents.view(torch.int32) if form == "int32" else exponents
    dg.fp4_gemm_nt(a, (b, torch.full((16, 4), 127, dtype=torch.uint8)), d)
    expected = torch.tensor(FP4_VALUES)[unpack_codes(data[:1]).long()][:, :32:2] * torch.exp2(
        torch.arange(256).double()[:, None] - 127
    )
    assert not d[0].any()
    assert d[255].isnan().all()
    usual = slice(2, 253)  # where all values are normal numbers of bf16
    assert torch.equal(d[usual].double(), expected[usual])


@pytest.mark.parametrize("options", [{"epilogue": "silu_and_mul"}, {"bias": torch.randn(96, generator=generator(5))}])
def test_epilogues_and_other_strides(options):
    m, n, k = 21, 96, 192
    (a, values), b = narrow("e2m1", "uint8", m, k), weight(n, k)
    wide = tuple(torch.cat((part, part), 1)[:, : part.shape[1]] for part in a)
    columns = n // 2 if "epilogue" in options else n
    d = torch.empty(m, columns)
    dg.fp4_gemm_nt(wide, b, d, **options)
    assert torch.equal(d, same_bits(b, values, **options))
    c = torch.randn(m, n, generator=generator(6))
    if "bias" in options:
        accumulated = c.clone()
        dg.fp4_gemm_nt(a, b, accumulated, accumulated, **options)
        assert torch.equal(accumulated, same_bits(b, values, c=c, **options))


@pytest.mark.parametrize(("m", "n", "k"), [(0, 16, 64), (3, 0, 64), (3, 16, 0)])
def test_nothing_to_multiply(m, n, k):
    a = torch.zeros(m, k // 2, dtype=torch.int8), torch.ones(m, k // 32)
    b = torch.zeros(n, k // 2, dtype=torch.int8), torch.ones(n, k // 32)
    d = torch.full((m, n), 7.0)
    for _ in range(2):
        dg.fp4_gemm_nt(a, b, d)
    assert not d.any()


@pytest.mark.parametrize("grouping", these(["contiguous", "psum", "masked"], ["masked"]))
def test_groups(grouping, monkeypatch):
    """Rows of no group aren't widened where their numbers are on the device, whatever they are."""
    if hip.runtime().is_simulated:
        monkeypatch.setenv("DG_SIM_SANITIZE", "1")
    n, k, sizes, room = 40, 160, (130, 5, 0), 256
    experts = [weight(n, k, seed) for seed in range(3)]
    b = tuple(torch.stack(parts) for parts in zip(*experts, strict=True))
    starts, rows = ((0, 256, 512), 3 * room) if grouping == "masked" else ((0, 256, 384), 384)
    type_ = "e4m3" if grouping == "psum" else "e2m1"
    (data, scales), values = narrow(type_, "uint8", rows, k)
    output = GuardedOutput(rows, n, dtype=torch.float32)
    if grouping == "masked":
        a = data.unflatten(0, (3, room)), scales.unflatten(0, (3, room))
        counts = torch.tensor(sizes).int()
        dg.m_grouped_fp4_gemm_nt_masked(a, b, output.tensor.unflatten(0, (3, room)), counts, 40)
    else:
        layout = grouped_layout(grouping, starts, sizes, rows)
        is_psum = grouping == "psum"
        dg.m_grouped_fp4_gemm_nt_contiguous((data, scales), b, output.tensor, layout, use_psum_layout=is_psum)
    output.assert_intact()
    left = torch.ones(rows, dtype=torch.bool)
    for group, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        used = slice(start, start + size)
        left[used] = False
        assert_accurate(output.tensor[used], gemm_reference(values[used], experts[group]))
    rest = output.tensor[left]
    assert rest.isnan().all() if grouping == "masked" else not rest.any()


def test_scales_of_128_values_keep_their_way():
    """FP8 with recipe_a (1, 128), or with scales of that shape, isn't widened to bf16."""
    from deep_gemm_rocm.testing import quantised_activations

    a, b = quantised_activations(9, 256), weight(16, 256)
    first, second = torch.empty(9, 16), torch.empty(9, 16)
    dg.fp8_fp4_gemm_nt(a, b, first, recipe_a=(1, 128), recipe_b=(1, 32))
    dg.fp8_fp4_gemm_nt(a, b, second)
    assert torch.equal(first, second)
    assert_accurate(first, gemm_reference(a, b))


A = (torch.zeros(4, 64, dtype=torch.int8), torch.ones(4, 4))
B = (torch.zeros(16, 64, dtype=torch.int8), torch.ones(16, 4))
OF_FP8 = torch.zeros(4, 128).to(torch.float8_e4m3fnuz)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"a": (A[0], torch.ones(4, 3))}, ValueError, r"a\[1\] must have shape \(4, 4\)"),
        ({"a": (A[0], torch.ones(4, 4).half())}, TypeError, r"a\[1\] must be"),
        ({"a": (A[0], torch.ones(4, 4).T.contiguous().T)}, ValueError, r"a\[1\] must have contiguous rows"),
        ({"a": (A[0][:, :56], A[1])}, ValueError, "K must be a multiple of 32, got 112"),
        ({"a": (A[0][:, :48], A[1][:, :3])}, ValueError, r"b\[0\] must have half as many columns as a"),
        ({"a": (A[0].T.contiguous().T, A[1])}, ValueError, r"a\[0\] must be contiguous along K"),
        ({"a": (torch.zeros(4, 72, dtype=torch.int8)[:, :64], A[1])}, ValueError, "16 bytes apart"),
        ({"a": (A[0][None], A[1])}, ValueError, r"a\[0\] must be a matrix"),
        ({"a": A[0]}, TypeError, "a must be a pair"),
        ({"a": (OF_FP8, torch.ones(4, 1)), "recipe_a": (1, 32)}, ValueError, r"a\[1\] must have shape \(4, 4\)"),
        ({"a": (OF_FP8, torch.ones(4, 4)), "recipe_a": (1, 128)}, ValueError, r"a\[1\] must have shape \(4, 1\)"),
        ({"recipe_a": (1, 128)}, NotImplementedError, r"recipe_a must be \(1, 32\) where a has four bits"),
        ({"recipe_a": (1, 16)}, NotImplementedError, "recipe_a of fp8_fp4_gemm_nt must be"),
        (
            {"b": dg.per_block_cast_to_fp8(torch.zeros(128, 128))},
            NotImplementedError,
            "b of fp8_fp4_gemm_nt must have four bits",
        ),
    ],
)
def test_errors_name_the_argument_and_nothing_is_written(change, error, words):
    good = {"a": A, "b": B, "d": torch.full((4, 16), 7.0)}
    dg.fp4_gemm_nt(**good)
    good["d"].fill_(7)
    with pytest.raises(error, match=words):
        dg.fp4_gemm_nt(**{**good, **change})
    assert (good["d"] == 7).all()
