"""What ``set_batch_invariant(True)`` costs GEMMs and decoding: ``python benchmarks/batch_invariance.py``.

Times are simulated, under sustained load, with an empty Infinity Cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
import typer

import deep_gemm_rocm
from deep_gemm_rocm import simulator
from deep_gemm_rocm.benchmarks import operations
from deep_gemm_rocm.benchmarks.problems import Problem
from deep_gemm_rocm.benchmarks.shapes import AnyShape, AttentionShape, Shape
from deep_gemm_rocm.problems.layout import align

_QUANTISED = "fp8_gemm_nt to FP8"
_WEIGHTS = {
    "fp8_gemm_nt": ((576, 7168), (2112, 7168), (4096, 7168), (7168, 2048), (7168, 16384), (10240, 8192), (24576, 1536)),
    _QUANTISED: ((576, 7168), (1024, 4096), (1536, 7168), (2048, 7168), (4096, 7168), (7168, 2048)),
    "bf16_gemm_nt": ((256, 7168), (2112, 7168), (4096, 7168)),
}
# Sequences, tokens of each, keys of each, heads, heads of keys, width.
_DECODING = (
    ("flash_attention_decode", AttentionShape(1, 1, 8192, 32, 8, 128)),
    ("flash_attention_decode", AttentionShape(16, 1, 4096, 32, 8, 128)),
    ("flash_attention_decode", AttentionShape(64, 1, 1024, 32, 8, 128)),
    ("flash_attention_decode", AttentionShape(1, 1, 8192, 8, 1, 128)),
    ("mla_decode", AttentionShape(1, 1, 8192, 16, 1, 576)),
    ("mla_decode", AttentionShape(1, 1, 8192, 128, 1, 576)),
    ("mla_decode", AttentionShape(16, 1, 4096, 128, 1, 576)),
)


def quantised_gemm(shape: Shape) -> Callable[[], None]:
    problem = operations.make("fp8_gemm_nt", shape, "cpu")
    assert isinstance(problem, Problem)
    scales = torch.empty(shape.m, align(shape.n, 128) // 128)
    d = torch.empty(shape.m, shape.n, dtype=torch.float8_e4m3fnuz), scales
    return lambda: deep_gemm_rocm.fp8_gemm_nt(problem.a, problem.b, d)


def microseconds(op: str, shape: AnyShape, *, invariant: bool) -> float:
    is_quantised = op == _QUANTISED and isinstance(shape, Shape)
    run = quantised_gemm(shape) if is_quantised else operations.make(op, shape, "cpu").run
    deep_gemm_rocm.set_batch_invariant(invariant)
    try:
        with simulator.profile(compute="sampled") as prof:
            run()
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
    print(f"\nmost: {most:+.0%}\n\n| decoding | without | with | |\n|---|---|---|---|")
    for op, shape in _DECODING:
        without, with_it = (microseconds(op, shape, invariant=on) for on in (False, True))
        print(f"| {op} {shape} | {without:.1f} | {with_it:.1f} | {with_it / without - 1:+.0%} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
