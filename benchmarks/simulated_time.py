"""GEMMs in the timing model beside figures published for real MI300Xs: ``python benchmarks/simulated_time.py``.

Prints the table of docs/timing.md. Our kernels and those that were measured are different programs: the comparison says
whether the model is believable, not which kernel is better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import typer

import deep_gemm_rocm
from deep_gemm_rocm import simulator


@dataclass(frozen=True)
class Published:
    """A GEMM that somebody has timed on hardware."""

    m: int
    n: int
    k: int
    microseconds: float


# AITER's block-scaled FP8 GEMM (Composable Kernel), recipe 1x128x128.
AITER = (
    Published(16384, 7168, 2304, 522),
    Published(4096, 7168, 2048, 144),
    Published(1024, 1536, 7168, 59.1),
    Published(1024, 3072, 1536, 21.8),
    Published(1024, 576, 7168, 29.3),
    Published(1024, 7168, 256, 12.7),
    Published(1024, 7168, 2048, 48.8),
    Published(1024, 4608, 7168, 101),
)


def profile_fp8(gemm: Published) -> simulator.KernelProfile:
    """The second of two launches: the Infinity Cache holds what fits, as in loops that measure."""
    a = torch.zeros(gemm.m, gemm.k, dtype=torch.float8_e4m3fnuz), torch.ones(-(-gemm.k // 128), gemm.m).t()
    b = torch.zeros(gemm.n, gemm.k, dtype=torch.float8_e4m3fnuz), torch.ones(-(-gemm.n // 128), -(-gemm.k // 128))
    d = torch.empty(gemm.m, gemm.n, dtype=torch.bfloat16)
    with simulator.profile(compute="sampled") as prof:
        for _ in range(2):
            deep_gemm_rocm.fp8_gemm_nt(a, b, d, recipe=(1, 128, 128))
    return prof.kernels[-1]


def row(gemm: Published) -> str:
    kernel = profile_fp8(gemm)
    cells = (
        f"{gemm.m} x {gemm.n} x {gemm.k}",
        f"{gemm.microseconds:g}",
        f"{kernel.time_us:.1f}",
        f"{kernel.sustained_us:.1f} ({kernel.sustained_mhz:.0f} MHz)",
        f"{2e-6 * gemm.m * gemm.n * gemm.k / kernel.time_us:.0f}",
        f"{kernel.mfma_utilization:.0%}",
        f"{kernel.time_us / gemm.microseconds:.2f}",
    )
    return f"| {' | '.join(cells)} |"


def main(largest: Annotated[float, typer.Option(help="GFLOP of the largest GEMM to run.")] = 1e9) -> None:
    print("| M x N x K | AITER, µs | ours, simulated, µs | under load | TFLOPS | MFMA utilisation | of AITER's time |")
    print("|---|---|---|---|---|---|---|")
    for gemm in AITER:
        if 2e-9 * gemm.m * gemm.n * gemm.k <= largest:
            print(row(gemm), flush=True)


if __name__ == "__main__":
    typer.run(main)
