"""``tune``: measures configurations and keeps the best ones in a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ..benchmarks import operations
from ..benchmarks import tune as tuning
from ..benchmarks.attention_problems import AttentionOperation
from ..benchmarks.logits_problems import LogitsOperation
from ..benchmarks.measure import Sampling
from ..benchmarks.operations import OPERATIONS
from ..heuristics.tables import TableError
from ..runtime import hip
from . import UsageError
from .bench import chosen_shapes


def run(
    console: Console, ops: Sequence[str], wanted_shapes: Sequence[str], out: Path | None, count: int, again: bool
) -> bool:
    """Adds a row for each shape to the table, and writes it after each, so that an interrupted run can be resumed.

    Raises:
        UsageError: an operation or shape is unknown, or ``out`` is no table for these operations.
    """
    # Kernels for logits have only one configuration.
    known = [op for op, operation in OPERATIONS.items() if not isinstance(operation, LogitsOperation)]
    for op in ops:
        if op not in known:
            raise UsageError(f"--op: expected one of {', '.join(known)}, got {op!r}")
    work = [(op, shape) for op in ops for shape in chosen_shapes(op, wanted_shapes)]
    attention = {isinstance(OPERATIONS[op], AttentionOperation) for op in ops}
    if len(attention) > 1:
        raise UsageError("--op: GEMM and attention have tables of their own; tune one after the other")
    of_attention = True in attention
    out = out or Path("tuned_attention.csv" if of_attention else "tuned_gemm.csv")
    try:
        table = tuning.load(out, of_attention)
    except TableError as error:
        raise UsageError(str(error)) from error
    sampling = Sampling.default()
    kind = "simulated, sustained" if hip.runtime().is_simulated else "measured"
    good = True
    for index, (op, shape) in enumerate(work, 1):
        console.print(f"{index} of {len(work)}: {op} {shape}")
        problem = operations.make(op, shape, hip.runtime().tensor_device)
        if not again and table.has(tuning.asked_for(problem)):
            console.print("  is in the table")
            continue

        def report(trial: tuning.Trial) -> None:
            result = trial.failure or f"{trial.time_us:.2f} µs ({kind})"
            console.print(f"  {trial.choice}: {result}")

        try:
            row = tuning.tune(problem, count, sampling, report)
        except RuntimeError as error:
            console.print(f"[red]{error}[/]")
            good = False
            continue
        table = table.with_row(row)
        table.write(out)
    variable = "DG_TUNED_ATTENTION_TABLE" if of_attention else "DG_TUNED_TABLE"
    console.print(f"{len(table.rows)} rows in {out}; {variable}={out} makes calls use them")
    return good
