"""The shapes of DeepGEMM's tests; by default, large M, N, K or groups are scaled down."""

from __future__ import annotations

import pytest
import torch
from helpers.default_run import some

import deep_gemm_rocm as dg
from deep_gemm_rocm.testing import assert_accurate_in_sums

FP8 = torch.float8_e4m3fnuz
BLOCKS = (1, 128, 128)
VECTORS = (1, 1, 128)
NO_SCALES = (1, 1, None)

DENSE_M = (1, 64, 128, 4096)
DENSE_NK = (
    (2112, 7168),
    (576, 7168),
    (24576, 1536),
    (32768, 512),
    (7168, 16384),
    (4096, 7168),
    (7168, 2048),
)
BF16_TO_F32_NK = ((256, 7168), (129280, 7168))
CONTIGUOUS = ((4, 8192), (8, 4096))
CONTIGUOUS_NK = ((6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048), (4096, 7168), (7168, 2048))
MASKED = ((1, 1024), (2, 512), (4, 256), (32, 192), (6, 1024), (32, 20), (6, 20))
MASKED_NK = CONTIGUOUS_NK[:4]
MASKED_MAX_M = 4096
K_GROUPED = (
    (4, 4096, 7168, 8192),
    (4, 7168, 2048, 8192),
    (8, 4096, 7168, 4096),
    (8, 7168, 2048, 4096),
    (16, 4096, 7168, 2048),
    (16, 7168, 2048, 2048),
    (8, 768, 2048, 128),
)
EINSUM_HRD = ((128, 512, 128), (8, 4096, 1024))
EINSUM_B = (4, 32, 128, 4096)

slow = pytest.mark.slow


def every_other(values):
    """The default run takes every other one."""
    return [pytest.param(*value, marks=slow if turn % 2 else ()) for turn, value in enumerate(values)]


def fp8(*shape: int, seed: int = 0) -> torch.Tensor:
    """Random FP8 numbers; in large tensors only of the 8 largest binades, which the simulator multiplies faster."""
    codes = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    if codes.numel() > 2**24:
        codes |= 0x40
    return codes.masked_fill_(codes == 0x80, 0).view(FP8)  # 0x80 is NaN


def bf16(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.bfloat16)


def scales(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) + 0.5


def of_rows(rows: int, k: int, seed: int = 0, *, shared_rows: int = 1, groups: tuple[int, ...] = ()):
    """FP8 [rows, K] and its scales."""
    return fp8(*groups, rows, k, seed=seed), scales(*groups, -(-rows // shared_rows), -(-k // 128), seed=seed)


def at(operand, *index):
    """Indexes data and its scales, or data alone."""
    return tuple(part[index] for part in operand) if isinstance(operand, tuple) else operand[index]


def poisoned(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.full(shape, torch.nan, dtype=dtype)


def around(size: int, groups: int, unit: int = 1) -> list[int]:
    """Random sizes of groups, as in DeepGEMM's tests: 0.7 to 1.3 times the expected size."""
    factors = torch.rand(groups, generator=torch.Generator().manual_seed(size)) * 0.6 + 0.7
    return [-(-int(size * factor) // unit) * unit for factor in factors.tolist()]


def run_dense(m: int, n: int, k: int) -> None:
    a, b = of_rows(m, k), of_rows(n, k, 1, shared_rows=128)
    d = poisoned(m, n)
    dg.fp8_gemm_nt(a, b, d)
    assert_accurate_in_sums(d, a, b)


@pytest.mark.parametrize(("n", "k"), some(DENSE_NK, 2))
def test_dense_scaled(n, k):
    run_dense(1, n if n * k < 1.6e7 else n // 8, k)


@slow
@pytest.mark.parametrize(("n", "k"), DENSE_NK)
@pytest.mark.parametrize("m", DENSE_M)
def test_dense(m, n, k):
    run_dense(m, n, k)


@slow
@pytest.mark.parametrize(("n", "k"), DENSE_NK)
@pytest.mark.parametrize("m", DENSE_M)
def test_dense_accumulating(m, n, k):
    a, b = of_rows(m, k), of_rows(n, k, 1)
    c = torch.randn(m, n, generator=torch.Generator().manual_seed(2))
    d = c.clone()
    dg.fp8_gemm_nt(a, b, d, c=d, recipe=VECTORS)
    assert_accurate_in_sums(d, a, b, recipe=VECTORS, c=c)


@pytest.mark.parametrize(
    ("n", "k", "dtype"),
    [
        *(pytest.param(n, k, torch.bfloat16, marks=slow) for n, k in DENSE_NK),
        (256, 7168, torch.float32),
        pytest.param(129280, 7168, torch.float32, marks=slow),
    ],
)
@pytest.mark.parametrize("m", [1, *(pytest.param(m, marks=slow) for m in DENSE_M[1:])])
def test_dense_bf16(m, n, k, dtype):
    a, b = bf16(m, k), bf16(n, k, seed=1)
    d = poisoned(m, n, dtype=dtype)
    dg.bf16_gemm_nt(a, b, d)
    assert_accurate_in_sums(d, a, b, recipe=NO_SCALES)


def run_contiguous(groups: int, expected_m: int, n: int, k: int, *, psum: bool, scaled: bool) -> None:
    """Checks zeros in padding, and every group's result with its own weights."""
    alignment = dg.get_mk_alignment_for_contiguous_layout()
    sizes = around(expected_m, groups)
    padded = [-(-size // alignment) * alignment for size in sizes]
    starts = [sum(padded[:group]) for group in range(groups)]
    ids = torch.full((sum(padded),), -1, dtype=torch.int32)
    for group, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        ids[start : start + size] = group
    ends = torch.tensor([start + size for start, size in zip(starts, sizes, strict=True)], dtype=torch.int32)
    layout = {"grouped_layout": ends if psum else ids, "use_psum_layout": psum}
    d = poisoned(len(ids), n)
    if scaled:
        a, b = of_rows(len(ids), k), of_rows(n, k, 1, shared_rows=128, groups=(groups,))
        dg.m_grouped_fp8_gemm_nt_contiguous(a, b, d, **layout)
    else:
        a, b = bf16(len(ids), k), bf16(groups, n, k, seed=1)
        dg.m_grouped_bf16_gemm_nt_contiguous(a, b, d, **layout)
    assert (d[ids < 0] == 0).all()
    for group, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        rows = slice(start, start + size)
        assert_accurate_in_sums(d[rows], at(a, rows), at(b, group), recipe=BLOCKS if scaled else NO_SCALES)


@pytest.mark.parametrize(("n", "k"), every_other(CONTIGUOUS_NK))
@pytest.mark.parametrize(("groups", "expected_m"), CONTIGUOUS)
def test_contiguous_scaled(groups, expected_m, n, k):
    dg.set_mk_alignment_for_contiguous_layout(16)
    run_contiguous(groups, expected_m // 512, n // 16, k // 4, psum=groups == 8, scaled=True)


@slow
@pytest.mark.parametrize("scaled", [True, False], ids=["fp8", "bf16"])
@pytest.mark.parametrize(("n", "k"), CONTIGUOUS_NK)
@pytest.mark.parametrize(("groups", "expected_m"), CONTIGUOUS)
def test_contiguous(groups, expected_m, n, k, scaled):
    run_contiguous(groups, expected_m, n, k, psum=groups == 8, scaled=scaled)


def run_masked(groups: int, expected_m: int, max_m: int, n: int, k: int, *, scaled: bool) -> None:
    """Checks that unused rows aren't written, and every group's result with its own weights."""
    sizes = around(expected_m, groups)
    masked_m = torch.tensor(sizes, dtype=torch.int32)
    d = poisoned(groups, max_m, n)
    if scaled:
        a, b = of_rows(max_m, k, groups=(groups,)), of_rows(n, k, 1, shared_rows=128, groups=(groups,))
        dg.m_grouped_fp8_gemm_nt_masked(a, b, d, masked_m, expected_m)
    else:
        a, b = bf16(groups, max_m, k), bf16(groups, n, k, seed=1)
        dg.m_grouped_bf16_gemm_nt_masked(a, b, d, masked_m, expected_m)
    for group, size in enumerate(sizes):
        assert d[group, size:].isnan().all()
        of_a, of_b = at(a, group, slice(size)), at(b, group)
        assert_accurate_in_sums(d[group, :size], of_a, of_b, recipe=BLOCKS if scaled else NO_SCALES)


@pytest.mark.parametrize(("groups", "expected_m"), every_other(MASKED))
def test_masked_scaled(groups, expected_m):
    n, k = MASKED_NK[MASKED.index((groups, expected_m)) % len(MASKED_NK)]
    run_masked(groups, max(expected_m // 16, 2), MASKED_MAX_M // 16, n // 16, k // 8, scaled=True)


@slow
@pytest.mark.parametrize("scaled", [True, False], ids=["fp8", "bf16"])
@pytest.mark.parametrize(("n", "k"), MASKED_NK)
@pytest.mark.parametrize(("groups", "expected_m"), MASKED)
def test_masked(groups, expected_m, n, k, scaled):
    run_masked(groups, expected_m, MASKED_MAX_M, n, k, scaled=scaled)


def run_k_grouped(m: int, n: int, ks: list[int]) -> None:
    groups, total = len(ks), sum(ks)
    a, b = ((fp8(total, rows, seed=rows), scales(total // 128, rows, seed=rows)) for rows in (m, n))
    c = torch.randn(groups, m, n, generator=torch.Generator().manual_seed(2))
    d = c.clone()
    dg.k_grouped_fp8_gemm_tn_contiguous(a, b, d, ks, torch.tensor(ks, dtype=torch.int32), c=d)
    for group, k in enumerate(ks):
        first = sum(ks[:group])
        of_a, of_b = (
            (data[first : first + k].T, sf[first // 128 : (first + k) // 128].T.contiguous()) for data, sf in (a, b)
        )
        assert_accurate_in_sums(d[group], of_a, of_b, recipe=VECTORS, c=c[group])


def with_an_empty_group(ks: list[int]) -> list[int]:
    return [0 if group == len(ks) // 2 else k for group, k in enumerate(ks)]


@pytest.mark.parametrize(("groups", "m", "n", "k"), some(K_GROUPED, 2))
def test_k_grouped_scaled(groups, m, n, k):
    run_k_grouped(m // 16, n // 16, with_an_empty_group(around(max(k // 16, 128), groups, 128)))


@slow
@pytest.mark.parametrize(("groups", "m", "n", "k"), K_GROUPED)
def test_k_grouped(groups, m, n, k):
    run_k_grouped(m, n, around(k, groups, 128))
    run_k_grouped(m, n, with_an_empty_group(around(k, groups, 128)))


def run_einsum(expr: str, b: int, h: int, r: int, d: int, *, scaled: bool) -> None:
    """Runs the projections that latent attention absorbs: for each head from r to d, or from d to r."""
    to_d = expr == "bhr,hdr->bhd"
    n, k = (d, r) if to_d else (r, d)
    result = poisoned(b, h, n)
    if scaled:
        a, weight = of_rows(h, k, groups=(b,)), of_rows(d, r, 1, shared_rows=128, groups=(h,))
        dg.fp8_einsum(expr, a, weight, result)
    else:
        a, weight = bf16(b, h, k), bf16(h, d, r, seed=1)
        dg.einsum(expr, a, weight, result)
    for head in range(h):
        of_b = at(weight, head)
        if not to_d:
            of_b = tuple(part.T for part in of_b) if scaled else of_b.T
        of_a = at(a, slice(None), head)
        assert_accurate_in_sums(result[:, head], of_a, of_b, recipe=BLOCKS if scaled else NO_SCALES)


every_einsum = pytest.mark.parametrize(
    ("expr", "scaled"),
    [("bhr,hdr->bhd", False), ("bhd,hdr->bhr", False), ("bhr,hdr->bhd", True)],
    ids=["bhd", "bhr", "fp8"],
)


@every_einsum
@pytest.mark.parametrize(("h", "r", "d"), EINSUM_HRD)
def test_einsum_scaled(h, r, d, expr, scaled):
    run_einsum(expr, 4, h // 4, r // 4, max(d // 4, 128), scaled=scaled)


@slow
@every_einsum
@pytest.mark.parametrize(("h", "r", "d"), EINSUM_HRD)
@pytest.mark.parametrize("b", EINSUM_B)
def test_einsum(b, h, r, d, expr, scaled):
    run_einsum(expr, b, h, r, d, scaled=scaled)
