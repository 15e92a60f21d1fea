"""The oracle accepts right results with rounding errors, and rejects typical mistakes of kernels."""

from __future__ import annotations

import math

import pytest
import torch

from deep_gemm_rocm import f16_gemm_nt, fp8_gemm_nt
from deep_gemm_rocm.testing import (
    GuardedOutput,
    activations,
    assert_accurate,
    assert_accurate_in_sums,
    calc_diff,
    gemm_problem,
    gemm_reference,
    measure,
)

M, N, K = 96, 256, 1024


@pytest.fixture(scope="module")
def problem():
    return gemm_problem(M, N, K)


@pytest.fixture(scope="module")
def reference(problem):
    return gemm_reference(*problem)


def multiply(a, b) -> torch.Tensor:
    """The product computed in another way: fp32 partial sums, scaled and added block by block."""
    (a_data, sfa), (b_data, sfb) = a, b
    total = torch.zeros(len(a_data), len(b_data))
    for block in range(sfa.shape[1]):
        columns = slice(128 * block, 128 * (block + 1))
        scale = sfa[:, block, None] * sfb[:, block].repeat_interleave(128)[: len(b_data)]
        total += scale * (a_data[:, columns].float() @ b_data[:, columns].float().T)
    return total.bfloat16()


def with_row(pair, index: int, row: int, value):
    changed = [tensor.clone() for tensor in pair]
    changed[index][row] = value
    return tuple(changed)


def test_accepts_another_order_of_summation(problem, reference):
    accuracy = assert_accurate(multiply(*problem), reference)
    assert 0.5 < accuracy.max_error_over_bound <= 1
    assert accuracy.max_tile_diff < 1e-5


def test_the_bound_is_little_more_than_bf16_rounding(reference):
    half_ulp = torch.exp2(torch.floor(torch.log2(reference.exact.abs())) - 8)
    assert (reference.error / half_ulp).median() < 0.1


def test_reference_has_the_tails_and_strides_right():
    a, b = gemm_problem(5, 130, 272)
    transposed = [(data, scales.T.contiguous().T) for data, scales in (a, b)]
    assert_accurate(multiply(a, b), gemm_reference(*transposed))


@pytest.mark.parametrize("block", [0, 7])
def test_catches_a_dropped_k_block(problem, reference, block):
    (a_data, sfa), b = problem
    dropped = sfa.clone()
    dropped[:, block] = 0
    # For rows whose outliers are in other blocks, the block adds little to the sum; still, most elements show it.
    assert measure(multiply((a_data, dropped), b), reference).failures > M * N / 4


@pytest.mark.parametrize("which", [0, 1])
def test_catches_swapped_scales(problem, reference, which):
    pairs = list(problem)
    data, scales = pairs[which]
    swapped = scales.clone()
    swapped[[0, 1]] = scales[[1, 0]]
    pairs[which] = (data, swapped)
    assert measure(multiply(*pairs), reference).failures > 0


@pytest.mark.parametrize(("row", "column"), [(0, 0), (80, 240)])
def test_catches_one_wrong_tile(problem, reference, row, column):
    right = multiply(*problem)
    tile = (slice(row, row + 16), slice(column, column + 16))
    for wrong in (right[tile].T, right[tile].flip(1), torch.zeros(16, 16), right[tile] * 1.02):
        result = right.clone()
        result[tile] = wrong
        accuracy = measure(result, reference)
        assert accuracy.failures > 0
        assert accuracy.max_error_over_bound > 1
        first_row, first_column = accuracy.first_failure
        assert row <= first_row < row + 16
        assert column <= first_column < column + 16
        # A measure of the whole matrix hardly shows it.
        assert calc_diff(result, reference.exact) < 0.05


def test_catches_one_wrong_element(problem, reference):
    result = multiply(*problem)
    bits = result.view(torch.int16)
    bits[17, 33] += 2
    with pytest.raises(AssertionError, match=r"1 of \d+ elements .* the first at \(17, 33\)"):
        assert_accurate(result, reference)


def test_nan_must_be_where_it_belongs(problem):
    a, b = problem
    a_with_nan = with_row(a, 1, 3, math.nan)
    reference = gemm_reference(a_with_nan, b)
    right = multiply(a_with_nan, b)
    assert right[3].isnan().all()
    assert_accurate(right, reference)
    for row, value in ((3, 0.0), (4, math.nan)):
        wrong = right.clone()
        wrong[row, 5] = value
        assert measure(wrong, reference).first_failure == (row, 5)


def test_infinite_results_are_compared_too():
    ones = (torch.ones(16, 256).to(torch.float8_e4m3fnuz), torch.ones(16, 2))
    b = (ones[0], ones[1][:1])
    a = with_row(ones, 1, 3, 2e36)
    right = multiply(a, b)
    assert right[3].isinf().all()
    assert_accurate(right, gemm_reference(a, b))
    assert measure(-right, gemm_reference(a, b)).failures == 256
    assert measure(right.nan_to_num(), gemm_reference(a, b)).failures == 16


def test_products_of_subnormal_fp8_are_as_accurate_as_on_the_matrix_cores():
    # The first product, 2^5, counts as 2^8, so the other ones, 1.75 * 2^-17 each, are below its 24 bits.
    a = torch.tensor([[1.75 * 2.0**-7, 0] * 16])
    b = torch.tensor([[2.0**-10, 0] * 16])
    a[0, 0], b[0, 0] = 2.0**-10, 2.0**15
    a[0, 8:16] = a[0, 24:] = (
        0  # kernels give the first eight of 16 values to an instruction, and the others to the next
    )
    one = a.to(torch.float8_e4m3fnuz), torch.ones(1, 1)
    other = b.to(torch.float8_e5m2fnuz), torch.ones(1, 1)
    d = torch.empty(1, 1)
    fp8_gemm_nt(one, other, d, recipe=(1, 1, 128))
    assert d.item() == 32
    assert_accurate(d, gemm_reference(one, other, recipe=(1, 1, 128)))


def test_products_of_subnormal_halves_are_as_accurate_as_on_the_matrix_cores():
    a = torch.full((1, 8), 2.0**-24, dtype=torch.float16)
    b = torch.tensor([[1.0] + [1.75 * 2.0**-15] * 7], dtype=torch.float16)
    d = torch.empty(1, 1)
    f16_gemm_nt(a, b, d)
    reference = gemm_reference(a, b)
    assert d.item() < reference.exact.item() * (1 - 2.0**-14)
    assert_accurate(d, reference)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz])
def test_subnormal_numbers_of_one_fp8_type_do_not_widen_the_bound(dtype):
    least_normal = torch.finfo(dtype).smallest_normal
    errors = []
    for value in (least_normal / 2, least_normal):
        pair = torch.full((1, 128), value).to(dtype), torch.ones(1, 1)
        errors.append(gemm_reference(pair, pair).error.item())
    assert errors[1] == pytest.approx(4 * errors[0], rel=1e-3)


def test_zeros_are_exact():
    a, b = gemm_problem(16, 16, 128)
    zero = (a[0], torch.zeros_like(a[1]))
    assert_accurate(torch.zeros(16, 16, dtype=torch.bfloat16), gemm_reference(zero, b))
    assert measure(torch.full((16, 16), 1e-30, dtype=torch.bfloat16), gemm_reference(zero, b)).failures == 256


def test_empty_results():
    a, b = gemm_problem(0, 16, 128)
    assert measure(torch.empty(0, 16, dtype=torch.bfloat16), gemm_reference(a, b)).failures == 0


def test_calc_diff():
    x = torch.randn(10, 10, generator=torch.Generator().manual_seed(0))
    assert calc_diff(x, x) == 0
    assert calc_diff(x, -x) == 2
    assert calc_diff(torch.zeros(3), torch.zeros(3)) == 0
    assert calc_diff(torch.ones(2), torch.tensor([1.0, 0.0])) == pytest.approx(1 / 3)


def test_activations_have_outlier_channels():
    sizes = activations(64, 4096).float().abs().amax(dim=0)
    assert 10 < (sizes > 10 * sizes.median()).sum() < 60


@pytest.mark.parametrize("place", [(255, 8), (256, 7), (256 + 5, 8), (258, 8 + 9), (0, 0)])
def test_guards_show_writes_outside(place):
    output = GuardedOutput(5, 9)
    output.assert_untouched()
    output.tensor.fill_(1)
    output.assert_intact()
    output.tensor._base[place] = 0
    with pytest.raises(AssertionError, match="1 elements outside the output"):
        output.assert_intact()


def test_unwritten_output_is_nan():
    output = GuardedOutput(4, 8)
    assert output.tensor.isnan().all()
    assert output.tensor.data_ptr() % 16 == 0
    assert output.tensor.stride() == (24, 1)


@pytest.mark.parametrize("recipe", [(1, 128, 128), (1, 1, None)])
def test_sums_of_columns_accept_what_elements_may_be(recipe, problem):
    (a_data, sfa), (b_data, sfb) = problem
    if recipe[2] is None:
        sfa, sfb = sfa[:, :1], torch.rand(N, 1, generator=torch.Generator().manual_seed(0))
    a, b = (a_data, sfa), (b_data, sfb)
    reference = gemm_reference(a, b, recipe=recipe)
    for sign in (-1, 1):
        for dtype in (torch.bfloat16, torch.float32):
            worst = (reference.exact + sign * reference.error).to(dtype)
            assert_accurate_in_sums(worst, a, b, recipe=recipe)
    c = torch.randn(M, N, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert_accurate_in_sums((reference.exact + c.double()).bfloat16(), a, b, recipe=recipe, c=c)


def test_sums_of_columns_catch_mistakes(problem):
    right = multiply(*problem)
    largest = divmod(int(right.abs().argmax()), N)
    for index, value in ((largest, 0.9 * right[largest]), ((3, 200), torch.nan), ((95, 255), torch.inf)):
        wrong = right.clone()
        wrong[index] = value
        with pytest.raises(AssertionError, match=f"1 sums .* row {index[0]}, columns {index[1] // 16 * 16} to"):
            assert_accurate_in_sums(wrong, *problem)
    a, b = problem
    with pytest.raises(AssertionError, match="outside the bound"):
        assert_accurate_in_sums(multiply(a, with_row(b, 1, 1, b[1][0])), a, b)
    with pytest.raises(AssertionError, match="outside the bound"):
        assert_accurate_in_sums(right, with_row(a, 1, 17, a[1][16]), b)
    with pytest.raises(AssertionError, match="outside the bound"):
        assert_accurate_in_sums(right, *problem, c=torch.ones(M, N))
