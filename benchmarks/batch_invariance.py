"""What ``set_batch_invariant(True)`` costs GEMMs and decoding: ``python benchmarks/batch_invariance.py``.

Times are simulated, under sustained load, with an empty Infinity Cache.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import options
import torch
import typer

import deep_gemm_rocm
from deep_gemm_rocm import simulator
from deep_gemm_rocm.benchmarks import operations, tune
from deep_gemm_rocm.benchmarks.shapes import AttentionShape, Shape
from deep_gemm_rocm.heuristics import choose_dense
from deep_gemm_rocm.heuristics.gemm_problem import Choice, GemmProblem
from deep_gemm_rocm.heuristics.notes import estimated_microseconds
from deep_gemm_rocm.problems.layout import align, ceil_div

_FEW_ROWS = range(1, 129)
_WEIGHTS: dict[str, tuple[tuple[int, int], ...]] = {
    "fp8_gemm_nt": ((576, 7168), (2112, 7168), (4096, 7168), (7168, 2048), (10240, 8192), (24576, 1536)),
    "fp8_gemm_nn": ((2112, 7168), (7168, 2048)),
    "fp8_gemm_nt with scales of 1x128": ((7168, 2048), (10240, 8192)),
    "fp8_gemm_nt with scales of rows": ((7168, 2048), (10240, 8192)),
    "fp8_gemm_nt with silu_and_mul": ((5120, 3072), (7168, 2048)),
    "fp8_gemm_nt to FP8": ((576, 7168), (1536, 7168), (4096, 7168), (7168, 2048)),
    "bf16_gemm_nt": ((256, 7168), (1280, 8192), (2112, 7168), (2560, 7168), (4096, 7168)),
    "bf16_gemm_nn": ((2112, 7168), (7168, 2048)),
    "bf16_gemm_tn": ((2112, 7168),),
    "bf16_gemm_nt with silu_and_mul": ((5120, 3072),),
    "fp8_fp4_gemm_nt": ((4096, 7168), (10240, 8192)),
    "bf16_fp4_gemm_nt": ((1280, 8192), (4096, 7168)),
    "fp8_int4_gemm_nt": ((4096, 7168),),
    "bf16_int4_gemm_nt": ((4096, 7168),),
}
# Sequences, tokens of each, keys of each, heads, heads of keys, width.
_DECODING = (
    ("flash_attention_decode", AttentionShape(1, 1, 8192, 32, 8, 128)),
    ("flash_attention_decode", AttentionShape(16, 1, 4096, 32, 8, 128)),
    ("flash_attention_decode", AttentionShape(64, 1, 1024, 32, 8, 128)),
    ("flash_attention_decode", AttentionShape(1, 1, 8192, 8, 1, 128)),
    ("fp8_flash_attention_decode", AttentionShape(16, 1, 4096, 32, 8, 128)),
    ("mla_decode", AttentionShape(1, 1, 8192, 16, 1, 576)),
    ("mla_decode", AttentionShape(32, 1, 2048, 16, 1, 576)),
    ("mla_decode", AttentionShape(64, 1, 4096, 16, 1, 576)),
    *(("mla_decode", AttentionShape(1, 1, keys, 128, 1, 576)) for keys in (4096, 8192)),
    *(("mla_decode", AttentionShape(batch, 1, 4096, 128, 1, 576)) for batch in (16, 64)),
    ("mla_decode", AttentionShape(128, 1, 1024, 128, 1, 576)),
)


def gemm(op: str, shape: Shape) -> Callable[[], object]:
    """A call with an output of ``shape``; ``op`` is a function's name, and perhaps a word about scales or results."""
    m, n, k, _ = shape
    name, _, more = op.partition(" ")
    a_layout, b_layout = name[-2], name[-1]
    parts = 2 if more == "with silu_and_mul" else 1
    type_ = torch.bfloat16 if name.startswith("bf16") else torch.float8_e4m3fnuz

    def operand(rows: int, rows_of_scale: int, *, is_transposed: bool) -> Any:
        data = torch.zeros((k, rows) if is_transposed else (rows, k), dtype=torch.uint8).to(type_)
        if type_ == torch.bfloat16:
            return data
        scales = torch.ones(ceil_div(rows, rows_of_scale), 1 if more == "with scales of rows" else k // 128)
        return data, scales.T.contiguous() if is_transposed else scales

    a = operand(m, 1, is_transposed=a_layout == "t")
    if "fp4" in name:
        b = torch.zeros(n, k // 2, dtype=torch.int8), torch.full((n, k // 32), 120, dtype=torch.uint8)
    elif "int4" in name:
        b = torch.zeros(n, k // 8, dtype=torch.int32), torch.ones(n, k // 128)
    else:
        b = operand(parts * n, 1 if "scales" in more else 128, is_transposed=b_layout == "n")
    d: Any = torch.empty(m, n, dtype=torch.bfloat16)
    if more == "to FP8":
        d = torch.empty(m, n, dtype=torch.float8_e4m3fnuz), torch.empty(m, align(n, 128) // 128)
    options: dict[str, Any] = {"epilogue": "silu_and_mul"} if parts == 2 else {}
    if "scales" in more:
        options["recipe"] = 1, 1, None if more == "with scales of rows" else 128
    return lambda: getattr(deep_gemm_rocm, name)(a, b, d, **options)


@contextlib.contextmanager
def batch_invariant(invariant: bool) -> Iterator[None]:
    deep_gemm_rocm.set_batch_invariant(invariant)
    try:
        yield
    finally:
        deep_gemm_rocm.set_batch_invariant(False)


def microseconds(call: Callable[[], object], *, invariant: bool) -> float:
    with batch_invariant(invariant), simulator.profile(compute="sampled") as prof:
        call()
    return sum(kernel.sustained_us for kernel in prof.kernels)


class Weight:
    """Calls with few rows and one weight, of ``n`` rows of ``k``, and the cost of the setting for them."""

    def __init__(self, op: str, n: int, k: int) -> None:
        self._op, self._n, self._k = op, n, k
        self._step = 16 if op.startswith("bf16_gemm_t") else 1  # rows of a transposed operand have to be aligned
        wanted = tune.asked_by(gemm(op, Shape(self._step, n, k)))
        assert isinstance(wanted, GemmProblem)
        self._problem = wanted
        self._choices = {on: self._choices_of_few_rows(on) for on in (False, True)}
        self._measured: dict[int, tuple[float, float]] = {}

    def _choices_of_few_rows(self, invariant: bool) -> dict[int, Choice]:
        with batch_invariant(invariant):
            return {m: choose_dense(self._problem.kind, m, self._problem.n, self._k) for m in _FEW_ROWS}

    def rows(self, m: int) -> int:
        """As many rows, or as few more as there can be."""
        return align(m, self._step)

    def worst(self, count: int) -> list[int]:
        """The M that should cost the most, of different pairs of choices."""

        def cost(m: int) -> float:
            with_it, without = (self._estimated(m, invariant=on) for on in (True, False))
            return with_it / without

        rows = sorted({self.rows(m) for m in _FEW_ROWS}, key=cost, reverse=True)
        of_choices: dict[tuple[Choice, ...], int] = {}
        for m in rows:
            pair = tuple(self._choices[on][m] for on in (False, True))
            if pair[0] != pair[1]:
                of_choices.setdefault(pair, m)
        return list(of_choices.values())[:count]

    def _estimated(self, m: int, *, invariant: bool) -> float:
        return estimated_microseconds(self._problem._replace(m=m), self._choices[invariant][m])

    def measured(self, m: int) -> tuple[float, float]:
        """The time without the setting, and by how much it is longer with it."""
        if m not in self._measured:
            call = gemm(self._op, Shape(m, self._n, self._k))
            without = microseconds(call, invariant=False)
            is_same = self._choices[False][m] == self._choices[True][m]
            with_it = without if is_same else microseconds(call, invariant=True)
            self._measured[m] = without, with_it / without - 1
        return self._measured[m]


def main(
    m: Annotated[str, typer.Option(help="Numbers of rows up to 128, with commas between.")] = "1,64,128",
    worst: Annotated[int, typer.Option(help="How many M to measure besides: those of the highest estimate.")] = 2,
    only: Annotated[str, typer.Option(help="Words that the operation must contain, like 'bf16_gemm_n'.")] = "",
) -> None:
    """Print the time without the setting, and by how much it is longer with it."""
    options.check_only(only, [*_WEIGHTS, *dict(_DECODING)])
    rows = [int(number) for number in re.findall(r"\d+", m)]
    if not re.fullmatch(r"\d+(,\d+)*", m) or not all(number in _FEW_ROWS for number in rows):
        raise typer.BadParameter(f"expected numbers from 1 to 128 with commas between, got {m!r}", param_hint="--m")
    print(f"| NxK | {' | '.join(f'M = {number}' for number in rows)} | the worst |")
    print("|---" * (2 + len(rows)) + "|")
    for op, weights in _WEIGHTS.items():
        for n, k in weights if only in op else ():
            weight = Weight(op, n, k)
            measured = {number: weight.measured(number) for number in (*weight.worst(worst), *map(weight.rows, rows))}
            cells = ["{:.2f} {:+.0%}".format(*measured[weight.rows(number)]) for number in rows]
            highest = max(measured, key=lambda number: measured[number][1])
            cells.append(f"{measured[highest][1]:+.0%} (M = {highest})")
            print(f"| {op} {n}x{k} | {' | '.join(cells)} |", flush=True)
    print("\n| decoding | without | with | |\n|---|---|---|---|")
    for op, shape in _DECODING:
        if only in op:
            call = operations.make(op, shape, "cpu").run
            without, with_it = (microseconds(call, invariant=on) for on in (False, True))
            print(f"| {op} {shape} | {without:.1f} | {with_it:.1f} | {with_it / without - 1:+.0%} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
