"""GEMMs of few rows beside a kernel that only reads as many bytes: ``python benchmarks/small_m.py``.

GEMMs of few rows read all of B once and compute little. The other kernel shows how much bandwidth they could reach,
since launch and memory latency cost it the same. Times are simulated, under sustained load, with an empty
Infinity Cache.
"""

from __future__ import annotations

from typing import Annotated

import options
import streaming
import torch
import typer

import deep_gemm_rocm
from deep_gemm_rocm import simulator
from deep_gemm_rocm.benchmarks.shapes import DENSE, Shape
from deep_gemm_rocm.problems.layout import ceil_div
from deep_gemm_rocm.runtime import hip

READ = streaming.NAMES.index("read")
CHUNK_BYTES = 16


def fp8_gemm(shape: Shape) -> list[simulator.KernelProfile]:
    """The kernels of one call with scales of 1x128 and 128x128."""
    m, n, k, _ = shape
    a = torch.zeros(m, k, dtype=torch.float8_e4m3fnuz), torch.ones(ceil_div(k, 128), m).t()
    b = torch.zeros(n, k, dtype=torch.float8_e4m3fnuz), torch.ones(ceil_div(n, 128), ceil_div(k, 128))
    d = torch.empty(m, n, dtype=torch.bfloat16)
    with simulator.profile(compute="sampled") as prof:
        deep_gemm_rocm.fp8_gemm_nt(a, b, d, recipe=(1, 128, 128))
    return prof.kernels


def bytes_moved(shape: Shape) -> int:
    """The bytes of a, b and d, each once."""
    return shape.m * shape.k + shape.n * shape.k + 2 * shape.m * shape.n


def reading(num_bytes: int) -> float:
    """Microseconds that it takes to read so many bytes."""
    x, out = torch.zeros(num_bytes // CHUNK_BYTES, 4), torch.zeros(4)
    with simulator.profile() as prof, hip.runtime().launching(x=x, out=out) as stream:
        streaming.kernels()(READ, x.data_ptr(), x.data_ptr(), out.data_ptr(), x.numel(), 1, stream)
    return prof.kernels[0].sustained_us


def main(
    shapes: Annotated[str, typer.Option(help="MxNxK, with commas between; DeepGEMM's by default.")] = "",
) -> None:
    """Print a table of all shapes."""
    chosen = options.shapes_in(shapes, [shape for shape in DENSE if shape.m <= 128])
    print("| M x N x K | µs | TB/s | only reading, µs | of that speed | busiest | kernels |")
    print("|---|---|---|---|---|---|---|")
    for shape in chosen:
        gemm, num_bytes = fp8_gemm(shape), bytes_moved(shape)
        time, least = sum(kernel.sustained_us for kernel in gemm), reading(num_bytes)
        rate, names = num_bytes / time / 1e6, ", ".join(kernel.name for kernel in gemm)
        shares = f"{least / time:.0%} | {gemm[0].busiest}"
        print(f"| {shape} | {time:.2f} | {rate:.2f} | {least:.2f} | {shares} | {names} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
