"""``bench``: this package's kernels beside others, on hardware or in the timing model."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from .. import warmup
from ..benchmarks import report, shapes, suite
from ..benchmarks.baselines import BASELINES
from ..benchmarks.measure import Sampling
from ..benchmarks.operations import OPERATIONS
from ..benchmarks.problems import WrongResultError
from ..benchmarks.shapes import AnyShape
from ..benchmarks.suite import Result
from . import UsageError

_WIDTH = 180  # of a table


def run(
    console: Console,
    ops: Sequence[str],
    wanted_shapes: Sequence[str],
    baselines: Sequence[str],
    sampling: Mapping[str, int],
    *,
    csv: Path | None,
    json: Path | None,
    markdown: Path | None,
    plot: Path | None,
) -> bool:
    """Measures, prints tables and writes the files; whether all results were right.

    Args:
        sampling: fields of ``Sampling`` that are not to have their defaults.

    Raises:
        UsageError: there is no such operation, shape or baseline.
    """
    for option, names, known in (("--op", ops, OPERATIONS), ("--baseline", baselines, BASELINES)):
        for name in names:
            if name not in known:
                raise UsageError(f"{option}: expected one of {', '.join(known)}, got {name!r}")
    work = {op: chosen_shapes(op, wanted_shapes) for op in ops}
    if plot and importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib, which isn't installed")
    how_often = dataclasses.replace(Sampling.default(), **sampling)
    about = report.header(how_often)
    for name, value in about.items():
        console.print(f"{name:<15}{value}")
    results: list[Result] = []
    good = True
    with console.status("") as status:
        for op, some in work.items():
            of_op: list[Result] = []
            try:
                for result in suite.run(op, some, baselines, how_often, status.update):
                    of_op.append(result)
                    if not console.is_terminal:  # where nobody sees the status
                        console.print(report.line(result))
            except WrongResultError as error:
                console.print(f"[red]{error}[/]")
                good = False
            table = report.table(of_op, f"{op}, {about['times']}")
            console.print(table, width=max(console.width, _WIDTH), crop=False)
            results += of_op
    for line in (*report.missing(results), *report.summary(results)):
        console.print(line)
    plots = report.plot(plot, results, about) if plot else []
    if csv:
        report.write_csv(csv, results)
    if json:
        report.write_json(json, results, about)
    if markdown:
        report.write_markdown(markdown, results, about, plots)
    return good


def chosen_shapes(op: str, wanted: Iterable[str]) -> tuple[AnyShape, ...]:
    """Those of all names, each once.

    Raises:
        UsageError: there is no such name.
    """
    try:
        return tuple(dict.fromkeys(itertools.chain.from_iterable(_named(op, name) for name in wanted)))
    except ValueError as error:
        raise UsageError(f"--shapes: {error}") from error


def _named(op: str, name: str) -> tuple[AnyShape, ...]:
    if name == "deepgemm":
        return OPERATIONS[op].shapes
    return shapes.of_model(name, op) if name in warmup.models() else (OPERATIONS[op].parse(name),)
