"""Triton's code objects on the simulator, as independent gfx942 programs."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from helpers import triton_kernels as kernels

from deep_gemm_rocm.workbench import run_triton as run

pytestmark = pytest.mark.usefixtures("checks")

F8, BF8 = torch.float8_e4m3fnuz, torch.float8_e5m2fnuz
ROUNDING = {torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, F8: 2.0**-3, BF8: 2.0**-2}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(seed)).to(dtype)


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor with 0x7F in every byte: NaN, or a number that no test expects."""
    return torch.full((*shape, dtype.itemsize), 0x7F, dtype=torch.uint8).view(dtype).squeeze(-1)


def assert_within(result: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor | float) -> None:
    """Checks each element; ``expected`` is fp64."""
    error = (result.double() - expected).abs()
    assert not error.isnan().any(), "NaN"
    assert torch.all(error <= bound), f"{(error > bound).sum()} wrong, by up to {error.max()}"


def assert_product(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, tolerance: float = 2.0**-20) -> None:
    """Checks c = a · b to ``tolerance`` times the sum of magnitudes, plus the rounding to c's type."""
    expected = a.double() @ b.double()
    assert_within(c, expected, tolerance * (a.double().abs() @ b.double().abs()) + expected.abs() * ROUNDING[c.dtype])


# ---- matrix products


TILES = [(64, 64, 64, 4), (32, 32, 64, 4), (128, 128, 32, 8)]
LAYOUTS = ["nt", "nn", "tn"]
DTYPES = [torch.float16, torch.bfloat16, F8, BF8, torch.float32, torch.int8]
# Compiling is slow, so the default run has one tile and layout for each dtype.
MATMULS = [
    pytest.param(dtype, tile, layout, id=f"{dtype}-{tile}-{layout}", marks=[] if i % 3 == j == k else pytest.mark.slow)
    for i, dtype in enumerate(DTYPES)
    for j, tile in enumerate(TILES)
    for k, layout in enumerate(LAYOUTS)
]


def slow(*values: object) -> list:
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


@pytest.mark.parametrize(("dtype", "tile", "layout"), MATMULS)
def test_matmul(dtype: torch.dtype, tile: tuple[int, int, int, int], layout: str) -> None:
    block_m, block_n, block_k, num_warps = tile
    m, n, k = 150, 136, 208
    integer = dtype == torch.int8
    if integer:
        a, b = (torch.randint(-128, 128, shape, generator=generator(), dtype=dtype) for shape in ((m, k), (k, n)))
    else:
        a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype, seed=1)
    a = a.t().contiguous().t() if layout[0] == "t" else a
    b = b.t().contiguous().t() if layout[1] == "t" else b
    c = poisoned(m, n, dtype=torch.int32 if integer else torch.float32)
    run(kernels.matmul, -(-m // block_m) * -(-n // block_n), a, b, c, m, n, k, *a.stride(), *b.stride(),
        num_warps=num_warps, BM=block_m, BN=block_n, BK=block_k, ACCUMULATOR=tl.int32 if integer else tl.float32,
        )  # fmt: skip
    if integer:
        torch.testing.assert_close(c.long(), a.long() @ b.long(), rtol=0, atol=0)
    else:
        # fp32 runs on the xf32 matrix cores, which drop 13 bits of each operand's significand.
        assert_product(c, a, b, tolerance=2.0**-10 if dtype == torch.float32 else 2.0**-20)


@pytest.mark.parametrize(
    "options",
    [{"matrix_instr_nonkdim": 16, "kpack": 2}, {"matrix_instr_nonkdim": 32}, {"num_stages": 1}, {"num_stages": 3},
     {"waves_per_eu": 2, "schedule_hint": "attention"}, {"num_warps": 1}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("dtype", [F8, *slow(torch.bfloat16)], ids=str)
def test_matmul_options(dtype: torch.dtype, options: dict[str, int]) -> None:
    m, n, k = 64, 64, 256
    a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype, seed=1)
    c = poisoned(m, n, dtype=torch.bfloat16)
    run(kernels.matmul, 1, a, b, c, m, n, k, k, 1, n, 1, BM=64, BN=64, BK=64, ACCUMULATOR=tl.float32, **options)
    assert_product(c, a, b)


def test_matmul_in_f64() -> None:
    a, b = normal(40, 48, dtype=torch.float64), normal(48, 32, dtype=torch.float64, seed=1)
    c = poisoned(40, 32, dtype=torch.float64)
    run(kernels.matmul, 2, a, b, c, 40, 32, 48, 48, 1, 32, 1, BM=32, BN=32, BK=16, ACCUMULATOR=tl.float64)
    assert_within(c, a @ b, 2.0**-49 * (a.abs() @ b.abs()))


@pytest.mark.parametrize("block", [128, *slow(64)])
def test_block_scaled_matmul(block: int) -> None:
    m, n, k = 70, 130, 256
    a, b = normal(m, k, dtype=F8), normal(n, k, dtype=F8, seed=1)
    a_scales = torch.rand(m, k // block, generator=generator()) + 0.5
    b_scales = torch.rand(-(-n // block), k // block, generator=generator()) + 0.5
    c = poisoned(m, n, dtype=torch.bfloat16)
    run(kernels.block_scaled_matmul, (-(-m // 64), -(-n // 64)), a, b, c, a_scales, b_scales, m, n, k,
        BM=64, BN=64, BLOCK=block)  # fmt: skip
    scaled_a = a.double() * a_scales.double().repeat_interleave(block, 1)
    scaled_b = b.double() * b_scales.double().repeat_interleave(block, 0)[:n].repeat_interleave(block, 1)
    assert_product(c, scaled_a, scaled_b.t())


@pytest.mark.parametrize("dtype", [torch.float16, *slow(F8)], ids=str)
def test_grouped_matmul(dtype: torch.dtype) -> None:
    sizes = [(40, 32, 64), (5, 70, 33), (64, 64, 128), (1, 1, 1)]
    a = [normal(m * k, dtype=dtype, seed=i) for i, (m, _, k) in enumerate(sizes)]
    b = [normal(k * n, dtype=dtype, seed=9 + i) for i, (_, n, k) in enumerate(sizes)]
    # Only memory of a launch's arguments may be accessed, so the matrices of an operand are in one tensor.
    all_a, all_b = torch.cat(a), torch.cat(b)
    c = poisoned(sum(m * n for m, n, _ in sizes), dtype=torch.bfloat16)

    def addresses(whole: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        starts = np.cumsum([0, *lengths[:-1]])
        return torch.tensor([whole.data_ptr() + int(start) * whole.itemsize for start in starts])

    pointers = [addresses(all_a, [len(x) for x in a]), addresses(all_b, [len(x) for x in b])]
    pointers.append(addresses(c, [m * n for m, n, _ in sizes]))
    run(kernels.grouped_matmul, 3, all_a, all_b, c, *pointers, torch.tensor(sizes, dtype=torch.int32), len(sizes), 3,
        BM=32, BN=32, BK=32)  # fmt: skip
    for (m, n, k), x, y, z in zip(sizes, a, b, c.split([m * n for m, n, _ in sizes]), strict=True):
        assert_product(z.view(m, n), x.view(m, k), y.view(k, n))


def test_experts_matmul() -> None:
    tokens, experts, n, k, block = 37, 5, 64, 96, 16
    x, weights = normal(tokens, k, dtype=torch.bfloat16), normal(experts, n, k, dtype=torch.bfloat16, seed=1)
    choices = torch.stack([torch.randperm(experts, generator=generator(i))[:2] for i in range(tokens)]).flatten()
    places, of_expert = [], []
    for expert in range(experts):
        mine = (choices == expert).nonzero().flatten().tolist()
        mine += [2 * tokens] * (-len(mine) % block)
        places += mine
        of_expert += [expert] * (len(mine) // block)
    y = poisoned(2 * tokens, n, dtype=torch.float16)
    run(kernels.experts_matmul, (len(of_expert), n // 32), x, weights, y, torch.tensor(places, dtype=torch.int32),
        torch.tensor(of_expert, dtype=torch.int32), 2 * tokens, n, k, BM=block, BN=32, BK=32)  # fmt: skip
    for pair in range(2 * tokens):
        assert_product(y[pair : pair + 1], x[pair // 2 : pair // 2 + 1], weights[choices[pair]].t())


@pytest.mark.parametrize("output", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_split_k(output: torch.dtype) -> None:
    m, n, k, splits = 48, 80, 320, 5
    a, b = normal(m, k, dtype=torch.bfloat16), normal(k, n, dtype=torch.bfloat16, seed=1)
    c = torch.zeros(m, n, dtype=output)
    run(kernels.split_k_matmul, (2 * 3, splits), a, b, c, m, n, k, SPLITS=splits, BM=32, BN=32, BK=32)
    # Each addition rounds a partial sum.
    magnitudes = a.double().abs() @ b.double().abs()
    assert_within(c, a.double() @ b.double(), (2.0**-20 + splits * ROUNDING[output] / 4) * magnitudes)


# ---- attention


@pytest.mark.parametrize("causal", [True, *slow(False)])
@pytest.mark.parametrize(
    ("dtype", "width", "tile", "num_warps"),
    [(torch.float16, 64, (64, 32), 4), (torch.bfloat16, 128, (64, 64), 4), (F8, 64, (32, 32), 2)],
    ids=str,
)
def test_attention(dtype: torch.dtype, width: int, tile: tuple[int, int], num_warps: int, causal: bool) -> None:
    batch, heads, kv_heads, length = 1, 4, 2, 101
    q = normal(batch, heads, length, width, dtype=dtype)
    k, v = (normal(batch, kv_heads, length, width, dtype=dtype, seed=i) for i in (1, 2))
    out, lse = poisoned(*q.shape, dtype=torch.bfloat16), poisoned(batch, heads, length)
    scale = 1 / math.sqrt(width)
    run(kernels.attention, (-(-length // tile[0]), batch * heads), q, k, v, out, lse, length, scale,
        Q_HEADS=heads, KV_HEADS=kv_heads, WIDTH=width, CAUSAL=causal, BM=tile[0], BN=tile[1],
        num_warps=num_warps)  # fmt: skip
    wide_k, wide_v = (x.double().repeat_interleave(heads // kv_heads, 1) for x in (k, v))
    scores = q.double() @ wide_k.transpose(2, 3) * scale
    if causal:
        scores.masked_fill_(torch.ones(length, length, dtype=torch.bool).triu(1), -math.inf)
    p = torch.softmax(scores, 3)
    # Probabilities are rounded to the type of v before the second product; the smallest FP8 number is 2^-10.
    magnitudes = p @ wide_v.abs()
    slack = (ROUNDING[dtype] + ROUNDING[out.dtype]) * magnitudes + (2.0**-9 * wide_v.abs().amax() if dtype == F8 else 0)
    assert_within(out, p @ wide_v, slack)
    assert_within(lse, torch.logsumexp(scores, 3), 1e-4)


# ---- rows


@pytest.mark.parametrize("columns", [1000, *slow(1, 63)])
@pytest.mark.parametrize("kernel", [kernels.softmax, kernels.online_softmax], ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_softmax(kernel: Callable, dtype: torch.dtype, columns: int) -> None:
    x = 4 * normal(5, columns, dtype=dtype)
    y = poisoned(5, columns, dtype=dtype)
    block = 256 if kernel is kernels.online_softmax else triton.next_power_of_2(columns)
    run(kernel, 5, x, y, columns, BLOCK=block)
    expected = torch.softmax(x.double(), 1)
    assert_within(y, expected, expected * (1e-5 + ROUNDING[dtype]))


@pytest.mark.parametrize("columns", [100, 1500])
def test_layer_norm(columns: int) -> None:
    x, weight, bias = normal(6, columns), normal(columns, seed=1), normal(columns, seed=2)
    y, mean, rstd = poisoned(6, columns), poisoned(6), poisoned(6)
    run(kernels.layer_norm, 6, x, weight, bias, y, mean, rstd, columns, 1e-5, BLOCK=512)
    exact = x.double()
    assert_within(mean, exact.mean(1), 1e-6)
    expected_rstd = (exact.var(1, unbiased=False) + 1e-5).rsqrt()
    assert_within(rstd, expected_rstd, 1e-5)
    expected = torch.nn.functional.layer_norm(exact, (columns,), weight.double(), bias.double(), 1e-5)
    assert_within(y, expected, 1e-4)


def test_layer_norm_backward() -> None:
    rows, columns, groups = 9, 200, 2
    x = normal(rows, columns).double().requires_grad_()
    weight, bias = (normal(columns, seed=i).double().requires_grad_() for i in (1, 2))
    grad_y = normal(rows, columns, seed=3)
    torch.nn.functional.layer_norm(x, (columns,), weight, bias).backward(grad_y.double())
    values = x.detach().float()
    mean, rstd = values.mean(1), (values.var(1, unbiased=False) + 1e-5).rsqrt()
    grad_x = poisoned(rows, columns)
    grad_weight, grad_bias = torch.zeros(groups, columns), torch.zeros(groups, columns)
    locks = torch.zeros(groups, dtype=torch.int32)
    run(kernels.layer_norm_backward, rows, values, weight.detach().float(), grad_y, mean, rstd, grad_x, grad_weight,
        grad_bias, locks, columns, GROUPS=groups, BLOCK=256)  # fmt: skip
    assert_within(grad_x, x.grad, 1e-4)
    assert_within(grad_weight.sum(0), weight.grad, 1e-4)
    assert_within(grad_bias.sum(0), bias.grad, 1e-4)
    assert not locks.any()


@pytest.mark.parametrize(("dtype", "largest"), [(F8, 240.0), (BF8, 57344.0)], ids=str)
def test_quantize(dtype: torch.dtype, largest: float) -> None:
    block, x = 128, normal(4, 512, dtype=torch.bfloat16) * 10
    x[0, :128] = 0
    y, scales = poisoned(4, 512, dtype=dtype), poisoned(4, 4)
    run(kernels.quantize, (4, 4), x, y, scales, 512, LARGEST=largest, BLOCK=block)
    peaks = x.double().view(4, 4, block).abs().amax(2).clamp(min=1e-10)
    expected = torch.exp2(torch.ceil(torch.log2(peaks / largest)))
    torch.testing.assert_close(scales.double(), expected, rtol=0, atol=0)
    quotients = (x.double().view(4, 4, block) / expected[..., None]).view(4, 512)
    assert torch.equal(y.view(torch.uint8), quotients.to(dtype).view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_cross_entropy(dtype: torch.dtype) -> None:
    rows, columns, ignored = 6, 1100, -100
    logits = 3 * normal(rows, columns, dtype=dtype)
    labels = torch.tensor([0, 1099, 512, ignored, 7, 1023])
    losses, gradients = poisoned(rows), logits.clone()
    run(kernels.cross_entropy, rows, gradients, labels, losses, columns, ignored, BLOCK=512)
    exact = logits.double().requires_grad_()
    expected = torch.nn.functional.cross_entropy(exact, labels, reduction="none", ignore_index=ignored)
    expected.sum().backward()
    assert_within(losses, expected.detach(), 1e-5 * (1 + expected.detach()))
    assert_within(gradients, exact.grad, 1e-5 + ROUNDING[dtype] * exact.grad.abs())


# ---- order


@pytest.mark.parametrize("dtype", [torch.int32, torch.float16, *slow(torch.int64, torch.float32, torch.uint8)], ids=str)
def test_sort(dtype: torch.dtype) -> None:
    x = (100 * normal(3, 256)).abs().to(dtype) if dtype == torch.uint8 else (1000 * normal(3, 256)).to(dtype)
    up, down = poisoned(3, 256, dtype=dtype), poisoned(3, 256, dtype=dtype)
    run(kernels.sort_rows, 3, x, up, down, BLOCK=256)
    assert torch.equal(up, x.sort(1).values)
    assert torch.equal(down, x.sort(1, descending=True).values)


@pytest.mark.parametrize("dtype", [torch.int32, *slow(torch.int64, torch.float64)], ids=str)
@pytest.mark.parametrize("shape", [(64, 16), (8, 256)], ids=str)
def test_scan(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = torch.randint(-99, 99, shape, generator=generator()).to(dtype)
    y, reverse = poisoned(*shape, dtype=dtype), poisoned(*shape, dtype=dtype)
    run(kernels.scan_columns, 1, x, y, reverse, ROWS=shape[0], COLUMNS=shape[1])
    assert torch.equal(y, x.cumsum(0))
    assert torch.equal(reverse, x.flip(1).cumsum(1).flip(1))


def test_recurrence() -> None:
    factors, offsets = torch.rand(2, 512, generator=generator()), normal(2, 512, seed=1)
    states = poisoned(2, 512)
    run(kernels.recurrence, 2, factors, offsets, states, BLOCK=512)
    state = torch.zeros(2, dtype=torch.float64)
    for i in range(512):
        state = factors[:, i].double() * state + offsets[:, i].double()
        assert_within(states[:, i], state, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, *slow(torch.int32)], ids=str)
def test_extremes(dtype: torch.dtype) -> None:
    x = (1000 * normal(4, 512)).to(dtype)
    x[1, 100:300] = x[1].max() + 1  # equal values, of which the first must be found
    largest, where = poisoned(4, dtype=dtype), [poisoned(4, dtype=torch.int32) for _ in range(2)]
    best = poisoned(4, 8, dtype=dtype)
    run(kernels.extremes, 4, x, largest, *where, best, COLUMNS=512, K=8)
    assert torch.equal(largest, x.amax(1))
    assert torch.equal(where[0].long(), torch.from_numpy(x.numpy().argmax(1)))
    assert torch.equal(where[1].long(), torch.from_numpy(x.numpy().argmin(1)))
    assert torch.equal(best, x.topk(8, 1).values)


def test_histogram() -> None:
    x = torch.randint(0, 64, (1500,), generator=generator(), dtype=torch.int32)
    bins = torch.zeros(64, dtype=torch.int32)
    run(kernels.histogram, 3, x, bins, len(x), BINS=64, BLOCK=512)
    assert torch.equal(bins.long(), torch.bincount(x, minlength=64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64, *slow(torch.float32, torch.int8)], ids=str)
def test_permute(dtype: torch.dtype) -> None:
    rows, columns = 32, 64
    x = torch.randint(-100, 100, (rows, columns), generator=generator()).to(dtype)
    order = torch.randint(0, columns, (rows, columns), generator=generator(1), dtype=torch.int32)
    flipped, gathered = poisoned(rows, columns, dtype=dtype), poisoned(rows, columns, dtype=dtype)
    transposed = poisoned(columns, rows, dtype=dtype)
    run(kernels.permute, 1, x, order, flipped, gathered, transposed, ROWS=rows, COLUMNS=columns)
    assert torch.equal(flipped, x.flip(1))
    assert torch.equal(gathered, x.gather(1, order.long()))
    assert torch.equal(transposed, x.t())


# ---- elementwise


FUNCTIONS: list[tuple[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = [
    ("exp", lambda a, b: np.exp(a)),
    ("log", lambda a, b: np.log(np.abs(a))),
    ("sin", lambda a, b: np.sin(a)),
    ("cos", lambda a, b: np.cos(a)),
    ("tanh", lambda a, b: np.tanh(a)),
    ("erf", lambda a, b: np.vectorize(math.erf)(a)),
    ("sqrt", lambda a, b: np.sqrt(np.abs(a))),
    ("rsqrt", lambda a, b: 1 / np.sqrt(np.abs(a))),
    ("expm1", lambda a, b: np.expm1(a)),
    ("atan2", lambda a, b: np.arctan2(a, b)),
    ("pow", lambda a, b: np.abs(a) ** b),
    ("fmod", lambda a, b: np.fmod(a, b)),
    ("quotient", lambda a, b: a / b),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_functions(dtype: torch.dtype) -> None:
    """AMD's device library, to 2 units in the last place. FMA contraction is off, since it would remove the low halves
    of the library's double-double arithmetic."""
    n = 500
    x = normal(n, dtype=dtype) * torch.logspace(-3, 1, n, dtype=dtype)
    y = normal(n, dtype=dtype, seed=1)
    x[::7] *= 1000
    x = x.clamp(-80, 80) if dtype == torch.float32 else x
    outputs = poisoned(len(FUNCTIONS), n, dtype=dtype)
    run(kernels.functions, 2, x, y, outputs, n, BLOCK=256, enable_fp_fusion=False)
    a, b = x.numpy().astype(np.longdouble), y.numpy().astype(np.longdouble)
    for row, (name, function) in enumerate(FUNCTIONS):
        with np.errstate(over="ignore"):
            expected = function(a, b)
        result = outputs[row].numpy()
        limits = np.finfo(result.dtype)
        bound = 2 * limits.eps * np.abs(expected) + limits.tiny
        finite = np.abs(expected) < limits.max
        assert np.all(np.abs(result - expected)[finite] <= bound[finite]), name
        np.testing.assert_array_equal(result[~finite], np.inf, err_msg=name)


def test_conversions() -> None:
    x = torch.cat([normal(400) * torch.logspace(-8, 2, 400), torch.tensor([0.0, -0.0, 240.0, -240.0, 448.0 / 2, 1e-9])])
    x = x.clamp(-240, 240)
    n = len(x)
    types = (torch.float16, torch.bfloat16, F8, BF8, torch.int32)
    outputs, back = [poisoned(n, dtype=dtype) for dtype in types], poisoned(n)
    run(kernels.convert, 2, x, *outputs, back, n, BLOCK=256)
    for output in outputs:
        assert torch.equal(output.view(torch.uint8), x.to(output.dtype).view(torch.uint8)), output.dtype
    assert torch.equal(back, x.to(F8).float() + x.to(BF8).float())


def test_random_numbers() -> None:
    """Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3")."""
    n, seed = 1000, 0x123456789ABCDEF
    bits, uniform = poisoned(n, dtype=torch.int32), poisoned(n)
    run(kernels.random_bits, 4, bits, uniform, seed, n, BLOCK=256)
    counter = [np.arange(n, dtype=np.uint64), *(np.zeros(n, np.uint64) for _ in range(3))]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        first, third = counter[0] * np.uint64(0xD2511F53), counter[2] * np.uint64(0xCD9E8D57)
        counter = [
            third >> np.uint64(32) ^ counter[1] ^ np.uint64(key[0]), third & low,
            first >> np.uint64(32) ^ counter[3] ^ np.uint64(key[1]), first & low,
        ]  # fmt: skip
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    np.testing.assert_array_equal(bits.numpy().view(np.uint32), counter[0])
    signed = counter[0].astype(np.uint32).view(np.int32).astype(np.int64)
    expected = np.where(signed < 0, -signed - 1, signed) * 4.6566127342e-10
    np.testing.assert_allclose(uniform.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, *slow(torch.int32, torch.int16)], ids=str)
def test_integer_math(dtype: torch.dtype) -> None:
    n, limits = 600, torch.iinfo(dtype)
    x = torch.randint(limits.min // 2, limits.max // 2, (n,), generator=generator(), dtype=dtype)
    y = torch.randint(1, limits.max, (n,), generator=generator(1), dtype=dtype)
    y[::3] = y[::3] % 100 + 1
    y[::2] *= -1
    outputs = poisoned(5, n, dtype=dtype)
    run(kernels.integer_math, 3, x, y, outputs, n, BLOCK=256)
    a, b = x.numpy(), y.numpy()
    quotient = np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))
    with np.errstate(over="ignore"):
        expected = [quotient, a - quotient * b, a * b, (a << (b & 7)) ^ (a >> (b & 7)), np.minimum(a, b)]
    for row, values in enumerate(expected):
        np.testing.assert_array_equal(outputs[row].numpy(), values.astype(a.dtype), err_msg=str(row))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_atomics(dtype: torch.dtype) -> None:
    n, limits = 700, torch.iinfo(dtype)
    x = torch.randint(limits.min, limits.max, (n,), generator=generator(), dtype=dtype)
    sums, swapped = torch.zeros(4, dtype=dtype), torch.zeros(n, dtype=dtype)
    least, largest = torch.full((2,), limits.max, dtype=dtype), torch.full((2,), limits.min, dtype=dtype)
    bits = torch.tensor([0, 0, 0, 0, 0, 0, -1, -1, -1], dtype=dtype)
    run(kernels.atomics, 3, sums, least, largest, bits, swapped, x, n, BLOCK=256)
    values = x.numpy()
    with np.errstate(over="ignore"):
        assert sums.tolist() == [np.add.reduce(values[i::4], dtype=values.dtype) for i in range(4)]
    assert least.tolist() == [values[i::2].min() for i in range(2)]
    assert largest.tolist() == [values[i::2].max() for i in range(2)]
    operations = (np.bitwise_xor, np.bitwise_or, np.bitwise_and)
    assert bits.tolist() == [operation.reduce(values[i::3]) for operation in operations for i in range(3)]
    assert torch.equal(swapped, x)
