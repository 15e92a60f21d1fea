"""``bench``: compares this package's kernels with others, on hardware or in the timing model."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ..api import warmup
from ..benchmarks import aiter, page, report, shapes, suite
from ..benchmarks.baselines import BASELINES
from ..benchmarks.measure import Sampling
from ..benchmarks.operations import OPERATIONS
from ..benchmarks.problems import ImpossibleShapeError, WrongResultError
from ..benchmarks.shapes import AnyShape
from ..benchmarks.suite import Result
from ..runtime import hip
from ..simulator.constants import chips
from . import UsageError

_WIDTH = 180  # of a table in a file


def run(
    console: Console,
    ops: Sequence[str],
    wanted_shapes: Sequence[str],
    baselines: Sequence[str],
    sampling: Mapping[str, Any],
    *,
    csv: Path | None,
    json: Path | None,
    markdown: Path | None,
    plot: Path | None,
) -> bool:
    """Measures, prints tables and writes the files.

    Args:
        sampling: the fields of ``Sampling`` that differ from the defaults.

    Returns:
        Whether all results were right.

    Raises:
        UsageError: an operation, shape, baseline or chip is unknown, or a chip is given on hardware.
    """
    chip = [sampling["chip"]] if "chip" in sampling else []
    if chip and not hip.runtime().is_simulated:
        raise UsageError("--chip is for simulated times, and this machine has hardware: set DG_DEVICE=sim")
    for option, names, known in (
        ("--op", ops, OPERATIONS),
        ("--baseline", baselines, BASELINES),
        ("--chip", chip, chips()),
    ):
        if option == "--op" and not names:
            raise UsageError(f"--op: expected some of {', '.join(known)}, got none")
        for name in names:
            if name not in known:
                raise UsageError(f"{option}: expected one of {', '.join(known)}, got {name!r}")
    work = {op: chosen_shapes(op, wanted_shapes) for op in ops}
    if plot:
        _need_matplotlib("--plot")
    how_often = dataclasses.replace(Sampling.default(), **sampling)
    about = report.header(how_often)
    for name, value in about.items():
        console.print(f"{name:<15}{value}")
    results, good = _measured(console, work, baselines, how_often, about)
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


def write_docs(console: Console, path: Path) -> bool:
    """Writes docs/benchmarks.md to ``path``, and its picture beside it.

    Raises:
        UsageError: the device isn't the simulated one, or matplotlib isn't installed.
    """
    if not hip.runtime().is_simulated:
        raise UsageError("--write-docs tells simulated times: set DG_DEVICE=sim")
    _need_matplotlib("--write-docs")
    sampling = dataclasses.replace(Sampling.default(), check=False)
    about = report.header(sampling)
    results, good = _measured(console, page.problems(), [], sampling, about)
    beside_aiter: list[Result] = []
    if aiter.checkout():
        beside_aiter, _ = _measured(console, page.BESIDE_AITER, ["aiter"], sampling, about)
    else:
        console.print(f"without AITER's kernels; to have them, {aiter.GET}")
    layouts_of_scales, _ = _measured(console, page.LAYOUTS_OF_SCALES, ["row_scales"], sampling, about)
    of_four_bits, _ = _measured(console, page.FOUR_BITS, [], sampling, about)
    page.write(path, results, beside_aiter, layouts_of_scales, of_four_bits, about)
    page.draw(path.with_name(page.PICTURE), results)
    return good


def _need_matplotlib(option: str) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(f"{option} needs matplotlib, which isn't installed")


def _measured(
    console: Console,
    work: Mapping[str, Iterable[AnyShape]],
    baselines: Sequence[str],
    sampling: Sampling,
    about: Mapping[str, str],
) -> tuple[list[Result], bool]:
    """Measures and prints a table for each operation; also returns whether all results were right."""
    results: list[Result] = []
    good = True
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDTH
    with console.status("") as status:
        for op, some in work.items():
            of_op: list[Result] = []
            for shape in some:
                try:
                    for result in suite.run(op, shape, baselines, sampling, status.update):
                        of_op.append(result)
                        if not console.is_terminal:  # where nobody sees the status
                            console.print(report.line(result))
                except (ImpossibleShapeError, WrongResultError) as error:
                    console.print(f"[red]{escape(str(error))}[/]")
                    good = False
            console.print(report.table(of_op, f"{op}, {about['times']}", console.width))
            results += of_op
    return results, good


def chosen_shapes(op: str, wanted: Iterable[str]) -> tuple[AnyShape, ...]:
    """The shapes that the names stand for, each once.

    Raises:
        UsageError: a name is unknown.
    """
    try:
        return tuple(dict.fromkeys(itertools.chain.from_iterable(_named(op, name) for name in wanted)))
    except ValueError as error:
        raise UsageError(f"--shapes: {error}") from error


def _named(op: str, name: str) -> tuple[AnyShape, ...]:
    if name == "deepgemm":
        return OPERATIONS[op].shapes
    return shapes.of_model(name, op) if name in warmup.models() else (OPERATIONS[op].parse(name),)
