"""Sampled launches beside whole ones in simulated time: ``python benchmarks/sampling.py``.

The timing model simulates only a sample of the workgroups of a large launch. This shows what that costs in
accuracy: how far the time, the clocks of the matrix cores and the bytes from HBM are from those of the whole launch,
and the processor time of both. The chip has few CUs here, so that launches of many generations end soon.
"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from deep_gemm_rocm import simulator
from deep_gemm_rocm.benchmarks import operations
from deep_gemm_rocm.runtime import hip

LAUNCHES = (
    "flash_attention_causal:1x2048x2048x32x8x128,fp8_flash_attention_causal:1x2048x2048x32x8x128,"
    "mla_prefill:1x2048x2048x32x32x192,flash_attention:1x1024x1024x32x8x128,fp8_gemm_nt:4096x4096x512,"
    "m_grouped_fp8_gemm_nt_masked:192x4096x1024x16,fp8_gemm_nt:16x7168x16384"
)
"""A causal mask, none, a dense GEMM, groups of unequal sizes, and K split among workgroups."""


def run(
    problem: operations.AnyProblem, constants: dict[str, float], sampling: bool
) -> tuple[simulator.KernelProfile, float]:
    """The profile of the problem's longest kernel, and the processor time of its simulation."""
    begin = time.process_time()
    with simulator.profile(constants, compute="sampled", sampling=sampling) as prof:
        problem.run()
    return max(prof.kernels, key=lambda kernel: kernel.cycles), time.process_time() - begin


def matrix_clocks(kernel: simulator.KernelProfile) -> float:
    """Busy clocks of the matrix cores, of all types."""
    return sum(clocks for name, clocks in kernel.activity.items() if name.startswith("matrix_"))


def main(
    launches: Annotated[str, typer.Option(help="OPERATION:SHAPE, with commas between.")] = LAUNCHES,
    cus: Annotated[int, typer.Option(help="CUs of each of the eight XCDs.")] = 4,
    most_instructions: Annotated[float, typer.Option(help="Launches of more instructions are sampled.")] = 1e6,
) -> None:
    """Print a table of all launches."""
    constants = {"chip.cus_per_xcd": float(cus), "sampling.most_instructions": most_instructions}
    print("| launch | kernel | workgroups | µs | time | matrix clocks | HBM bytes | CPU seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for launch in launches.split(","):
        op, _, shape = launch.partition(":")
        operation = operations.OPERATIONS[op]
        problem = operations.make(op, operation.parse(shape), hip.runtime().tensor_device)
        whole, seconds = run(problem, constants, sampling=False)
        sampled, quick = run(problem, constants, sampling=True)
        differences = [
            f"{of(sampled) / max(1, of(whole)) - 1:+.1%}"
            for of in (lambda kernel: kernel.cycles, matrix_clocks, lambda kernel: kernel.hbm_bytes)
        ]
        print(
            f"| {launch} | `{whole.name}` | {sampled.sampled_workgroups} of {whole.sampled_workgroups}"
            f" | {whole.time_us:.1f} | {' | '.join(differences)} | {quick:.1f} of {seconds:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    typer.run(main)
