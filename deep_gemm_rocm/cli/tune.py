"""``tune``: measures configurations and keeps the best ones in a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from ..benchmarks import operations
from ..benchmarks import tune as tuning
from ..benchmarks.attention_problems import AttentionOperation
from ..benchmarks.measure import Sampling, Timing
from ..benchmarks.operations import OPERATIONS
from ..benchmarks.problems import Operation
from ..heuristics.tables import TableError
from ..runtime import hip
from . import UsageError
from .bench import chosen_shapes


def run(
    console: Console,
    ops: Sequence[str],
    wanted_shapes: Sequence[str],
    out: Path | None,
    count: int,
    again: bool,
    by: tuning.Goal,
) -> bool:
    """Adds a row for each shape to the table, and writes it after each, so that an interrupted run can be resumed.

    Raises:
        UsageError: an operation or shape is unknown, ``out`` is no table for these operations, or energy is asked for
            on hardware.
    """
    # Other kernels have only one configuration, or are tuned as those of another operation.
    known = [
        op
        for op, operation in OPERATIONS.items()
        if isinstance(operation, Operation) or (isinstance(operation, AttentionOperation) and not operation.cache_dtype)
    ]
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
    if by == "energy" and not hip.runtime().is_simulated:
        raise UsageError("--by: energy is known in simulation only")
    kind = "simulated, sustained" if hip.runtime().is_simulated else "measured"
    good = True
    for index, (op, shape) in enumerate(work, 1):
        console.print(f"{index} of {len(work)}: {op} {shape}")

        def report(trial: tuning.Trial) -> None:
            console.print(f"  {trial.choice}: {trial.failure or _told(trial.timing, kind)}")

        try:
            problem = operations.make(op, shape, hip.runtime().tensor_device)
            if not again and table.has(tuning.asked_for(problem)):
                console.print("  is in the table")
                continue
            row = tuning.tune(problem, count, sampling, report, by)
        except (RuntimeError, TypeError, ValueError) as error:
            console.print(f"[red]{escape(str(error))}[/]")
            good = False
            continue
        table = table.with_row(row)
        table.write(out)
    variable = "DG_TUNED_ATTENTION_TABLE" if of_attention else "DG_TUNED_TABLE"
    if table.rows:
        console.print(f"{len(table.rows)} rows in {out}; {variable}={out} makes calls use them")
    return good


def _told(timing: Timing | None, kind: str) -> str:
    assert timing
    energy = f", {1e3 * timing.joules:.3g} mJ" if timing.joules else ""
    return f"{timing.microseconds:.2f} µs ({kind}){energy}"
