"""What ``set_batch_invariant(True)`` costs GEMMs: ``python benchmarks/batch_invariance.py``.

Times are simulated, under sustained load, with an empty Infinity Cache.
"""

from __future__ import annotations

from typing import Annotated

import typer

import deep_gemm_rocm
from deep_gemm_rocm import simulator
from deep_gemm_rocm.benchmarks import operations
from deep_gemm_rocm.benchmarks.shapes import Shape

_WEIGHTS = {
    "fp8_gemm_nt": ((576, 7168), (2112, 7168), (4096, 7168), (7168, 2048), (7168, 16384), (10240, 8192), (24576, 1536)),
    "bf16_gemm_nt": ((256, 7168), (2112, 7168), (4096, 7168)),
}


def microseconds(op: str, shape: Shape, *, invariant: bool) -> float:
    problem = operations.make(op, shape, "cpu")
    deep_gemm_rocm.set_batch_invariant(invariant)
    try:
        with simulator.profile(compute="sampled") as prof:
            problem.run()
    finally:
        deep_gemm_rocm.set_batch_invariant(False)
    return sum(kernel.sustained_us for kernel in prof.kernels)


def main(m: Annotated[str, typer.Option(help="Numbers of rows, with commas between.")] = "1,16,64,96,128") -> None:
    """Print the time without the setting, and by how much it is longer with it."""
    rows = [int(number) for number in m.split(",")]
    print(f"| NxK | {' | '.join(f'M = {number}' for number in rows)} |")
    print("|---" * (1 + len(rows)) + "|")
    most = 0.0
    for op, weights in _WEIGHTS.items():
        for n, k in weights:
            cells = []
            for number in rows:
                without, with_it = (microseconds(op, Shape(number, n, k), invariant=on) for on in (False, True))
                cells.append(f"{without:.2f} {with_it / without - 1:+.0%}")
                most = max(most, with_it / without - 1)
            print(f"| {op} {n}x{k} | {' | '.join(cells)} |", flush=True)
    print(f"\nmost: {most:+.0%}")


if __name__ == "__main__":
    typer.run(main)
