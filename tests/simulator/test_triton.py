"""Triton's code objects on the simulator: gfx942 programs whose register layouts nobody here chose."""

from __future__ import annotations

from ctypes import c_int

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from simulated_hip import Hip
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGET = GPUTarget("hip", "gfx942", 64)


@triton.jit
def matmul_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # noqa: N803
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    accumulator = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        row_mask = (rows[:, None] < M) & (k + depth[None, :] < K)
        column_mask = (k + depth[:, None] < K) & (columns[None, :] < N)
        x = tl.load(a + rows[:, None] * K + (k + depth)[None, :], mask=row_mask, other=0.0)
        y = tl.load(b + (k + depth)[:, None] * N + columns[None, :], mask=column_mask, other=0.0)
        accumulator = tl.dot(x, y, accumulator)
    tl.store(c + rows[:, None] * N + columns[None, :], accumulator, mask=(rows[:, None] < M) & (columns[None, :] < N))


@triton.jit
def softmax_kernel(x, y, columns, BLOCK: tl.constexpr):  # noqa: N803
    offsets = tl.arange(0, BLOCK)
    row = tl.program_id(0) * columns
    values = tl.load(x + row + offsets, mask=offsets < columns, other=float("-inf"))
    exponentials = tl.exp(values - tl.max(values, 0))
    tl.store(y + row + offsets, exponentials / tl.sum(exponentials, 0), mask=offsets < columns)


@triton.jit
def scan_and_sort_kernel(x, sums, ordered, BLOCK: tl.constexpr):  # noqa: N803
    offsets = tl.arange(0, BLOCK)
    values = tl.load(x + offsets)
    tl.store(sums + offsets, tl.cumsum(values, 0))
    tl.store(ordered + offsets, tl.sort(values))


class TritonKernel:
    """A Triton kernel compiled for gfx942 with no GPU at hand, launched through the HIP API."""

    def __init__(
        self, hip: Hip, function, signature: dict[str, str], constants: dict[str, int], num_warps: int
    ) -> None:
        source = ASTSource(function, {**signature, **dict.fromkeys(constants, "constexpr")}, constants)
        compiled = triton.compile(source, target=TARGET, options={"num_warps": num_warps, "num_stages": 2})
        self.hip, self.threads, self.lds = hip, 64 * num_warps, compiled.metadata.shared
        self.function = hip.function(hip.load(compiled.asm["hsaco"]), compiled.metadata.name)

    def __call__(self, grid, *arguments) -> None:
        scratch = (0, 0)  # pointers that Triton appends; null where a kernel needs no scratch of its own
        self.hip.launch(self.function, grid, self.threads, *arguments, *scratch, dynamic_lds=self.lds)


DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4b8": torch.float8_e4m3fnuz,
    "fp8e5b16": torch.float8_e5m2fnuz,
    "fp32": torch.float32,
}


@pytest.mark.parametrize("tile", [(32, 32, 64, 4), (64, 64, 64, 4), (128, 128, 32, 8)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_matmul(hip: Hip, dtype: str, tile: tuple[int, int, int, int]) -> None:
    block_m, block_n, block_k, num_warps = tile
    m, n, k = 150, 136, 208
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(m, k, generator=generator).to(DTYPES[dtype])
    b = torch.randn(k, n, generator=generator).to(DTYPES[dtype])
    signature = {"a": f"*{dtype}", "b": f"*{dtype}", "c": "*fp32", "M": "i32", "N": "i32", "K": "i32"}
    kernel = TritonKernel(hip, matmul_kernel, signature, {"BM": block_m, "BN": block_n, "BK": block_k}, num_warps)
    c = np.full((m, n), np.nan, np.float32)
    pointers = [hip.upload(a.view(torch.uint8).numpy()), hip.upload(b.view(torch.uint8).numpy()), hip.upload(c)]
    kernel((-(-m // block_m), -(-n // block_n)), *pointers, c_int(m), c_int(n), c_int(k))
    result = torch.from_numpy(hip.download(pointers[2], c)).double()
    # fp32 runs on the xf32 matrix cores, which drop 13 bits of each operand's significand.
    tolerance = 2**-10 if dtype == "fp32" else 2**-20
    bound = tolerance * (a.double().abs() @ b.double().abs())
    assert torch.all((result - a.double() @ b.double()).abs() <= bound)


def test_softmax(hip: Hip) -> None:
    x = torch.randn(5, 1000, generator=torch.Generator().manual_seed(0))
    kernel = TritonKernel(hip, softmax_kernel, {"x": "*fp32", "y": "*fp32", "columns": "i32"}, {"BLOCK": 1024}, 4)
    y = hip.upload(np.full(x.shape, np.nan, np.float32))
    kernel(5, hip.upload(x.numpy()), y, c_int(1000))
    result = torch.from_numpy(hip.download(y, x.numpy()))
    torch.testing.assert_close(result, torch.softmax(x, 1), rtol=1e-5, atol=1e-8)


def test_scan_and_sort(hip: Hip) -> None:
    x = np.random.default_rng(0).integers(-1000, 1000, 256).astype(np.int32)
    signature = dict.fromkeys(("x", "sums", "ordered"), "*i32")
    kernel = TritonKernel(hip, scan_and_sort_kernel, signature, {"BLOCK": 256}, 4)
    sums, ordered = hip.upload(np.zeros_like(x)), hip.upload(np.zeros_like(x))
    kernel(1, hip.upload(x), sums, ordered)
    np.testing.assert_array_equal(hip.download(sums, x), np.cumsum(x))
    np.testing.assert_array_equal(hip.download(ordered, x), np.sort(x))
