"""Results as tables, files and plots. Times of the timing model are always labelled as simulated."""

from __future__ import annotations

import csv
import dataclasses
import importlib.metadata
import json
import math
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from ..jit import toolchain
from ..runtime import hip
from .measure import Sampling, Timing
from .suite import OURS, Result

# Peaks of an MI300X from AMD's data sheet.
_PEAK_TFLOPS = {"fp8": 2614.9, "bf16": 1307.4}
_PEAK_TBPS = 5.3
REGIMES = ("memory-bound", "in between", "compute-bound")

_PACKAGES = ("deep_gemm_rocm", "torch", "triton", "aiter")


def header(sampling: Sampling) -> dict[str, str]:
    """The facts that times depend on: device, clock, versions, and how they were taken."""
    runtime = hip.runtime()
    device = next(device for device in runtime.devices() if device.arch == hip.ARCH)
    compiler = toolchain.choose()
    simulated = "simulated" if sampling.chip == "mi300x" else f"simulated for {sampling.chip.upper()}"
    return {
        "times": simulated if runtime.is_simulated else "measured",
        "device": runtime.describe(),
        "clock": f"{device.clock_khz / 1000:.0f} MHz at most",
        "HIP runtime": runtime.version,
        "compiler": f"{compiler.name} {compiler.version}",
        "Python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
        "calls": f"{sampling.iters} after {sampling.cold_iters}, on {sampling.rotating_mb} MB in turn"
        if not runtime.is_simulated
        else f"{sampling.iters}, with an empty Infinity Cache",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def table(results: Sequence[Result], title: str, width: int) -> Table:
    """A table for the terminal, without the least important columns where it has no room for them."""
    shown = Table(title=title)
    columns = {_in_lines(heading): cells for heading, cells in _columns(results).items()}
    headings = _fitting(columns, width)
    for heading in headings:
        justify: Literal["left", "right"] = "left" if heading in ("shape", "by", "how") else "right"
        shown.add_column(heading, justify=justify, no_wrap=heading != "how")
    for cells in zip(*(columns[heading] for heading in headings), strict=True):
        shown.add_row(*cells)
    return shown


def _in_lines(heading: str) -> str:
    return heading.replace(", ", ",\n").replace(" at a fixed ", "\nat a fixed\n")


def _fitting(columns: Mapping[str, Sequence[str]], width: int) -> list[str]:
    """The headings of the most important columns that fit, in the table's order."""
    room, chosen = width - 1, set()  # for the left border
    for heading in sorted(columns, key=_importance):
        room -= max(map(len, (*heading.split("\n"), *columns[heading]))) + 3  # spaces and a border
        if room < 0:
            break
        chosen.add(heading)
    return [heading for heading in columns if heading in chosen]


def _importance(heading: str) -> int:
    known = ("shape", "by", "µs", "interval", "TFLOPS", "MFMA", "GB/s", "of memory", "error", "busiest", "how")
    return next((place for place, name in enumerate(known) if heading.split(",")[0] == name), len(known))


def markdown_table(results: Sequence[Result], without: Sequence[str] = ()) -> list[str]:
    """The lines of a table, without some of its columns."""
    columns = {heading: cells for heading, cells in _columns(results).items() if heading not in without}
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    return lines + [f"| {' | '.join(cells)} |" for cells in zip(*columns.values(), strict=True)]


def _columns(results: Sequence[Result]) -> dict[str, list[str]]:
    """Cells by heading, the time that counts first; columns without anything in them are left out."""
    timed = [(result, result.timing) for result in results if result.timing]
    simulated = any(result.simulated for result, _ in timed)
    columns = {
        "shape": [str(result.shape) for result, _ in timed],
        "by": [result.by for result, _ in timed],
        "µs, simulated, sustained" if simulated else "µs": [f"{timing.microseconds:.2f}" for _, timing in timed],
        "interval": [_interval(timing) for _, timing in timed],
        "TFLOPS": [_three_digits(result.tflops) for result, _ in timed],
        "GB/s": [f"{result.gbps:.0f}" for result, _ in timed],
        "of memory": ["" if (of := result.share_of_bandwidth) is None else f"{of:.0%}" for result, _ in timed],
        "mJ": [_three_digits(1e3 * timing.joules) if timing.joules else "" for _, timing in timed],
        "TFLOPS/W": [_three_digits(result.tflops_per_watt) for result, _ in timed],
        "µs at a fixed 2100 MHz": [f"{timing.median_us:.2f}" if timing.sustained_us else "" for _, timing in timed],
        "p20": ["" if timing.sustained_us else f"{timing.p20_us:.2f}" for _, timing in timed],
        "p80": ["" if timing.sustained_us else f"{timing.p80_us:.2f}" for _, timing in timed],
        "MFMA": ["" if timing.mfma_utilization is None else f"{timing.mfma_utilization:.0%}" for _, timing in timed],
        "busiest": [timing.busiest for _, timing in timed],
        "error": ["" if result.error is None else f"{result.error:.2f}" for result, _ in timed],
        "how": [result.how for result, _ in timed],
    }
    return {heading: cells for heading, cells in columns.items() if any(cells)}


def _interval(timing: Timing) -> str:
    """Between which times a measurement would lie; empty for a measurement."""
    return "" if timing.interval_us is None else " to ".join(map(_three_digits, timing.interval_us))


def _three_digits(value: float | None) -> str:
    """Three digits, or all before the point."""
    return "" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def missing(results: Iterable[Result]) -> list[str]:
    """A line for each baseline that a table lacks, with the reason."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for result in results:
        if not result.timing:
            reasons.setdefault((result.op, result.by, result.missing), []).append(str(result.shape))
    return [f"missing: {by} of {op} {', '.join(of)}: {why}" for (op, by, why), of in reasons.items()]


def line(result: Result) -> str:
    """One result in a line, for progress."""
    if result.timing is None:
        return f"{result.op} {result.shape} {result.by}: missing, {result.missing}"
    time = f"{result.timing.microseconds:.2f} µs"
    time += f", {_interval(result.timing)} (sustained, simulated)" if result.timing.sustained_us else " (measured)"
    rate = f"{_three_digits(result.tflops)} TFLOPS" if result.flops else f"{result.gbps:.0f} GB/s"
    return f"{result.op} {result.shape} {result.by}: {time}, {rate}"


def speedups(results: Iterable[Result]) -> dict[str, dict[str, float]]:
    """For each baseline, how many times longer it takes than this package, by operation and shape."""
    times = {(f"{r.op} {r.shape}", r.by): r.timing.microseconds for r in results if r.timing}
    ratios: dict[str, dict[str, float]] = {}
    for (problem, by), microseconds in times.items():
        if by != OURS and (problem, OURS) in times:
            ratios.setdefault(by, {})[problem] = microseconds / times[problem, OURS]
    return ratios


def geomean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def regime(result: Result) -> str:
    """Whether FLOPs or bytes bound the problem, if one takes at least twice as long as the other at the peaks."""
    peak = _PEAK_TFLOPS["fp8" if "fp8" in result.op else "bf16"]
    ratio = (result.flops / peak) / (result.bytes / _PEAK_TBPS)
    memory_bound, in_between, compute_bound = REGIMES
    return memory_bound if ratio < 0.5 else compute_bound if ratio > 2 else in_between


def summary(results: Sequence[Result]) -> list[str]:
    """A line for each baseline and regime, then for the best baseline of each shape if there are several."""
    regimes = {f"{r.op} {r.shape}": regime(r) for r in results if r.by == OURS}
    ratios = speedups(results)
    if len(ratios) > 1:
        problems = dict.fromkeys(problem for of in ratios.values() for problem in of)
        ratios["the best baseline"] = {
            problem: min(of[problem] for of in ratios.values() if problem in of) for problem in problems
        }
    lines = []
    for by, of in ratios.items():
        for kind in REGIMES:
            some = {problem: ratio for problem, ratio in of.items() if regimes[problem] == kind}
            if some:
                worst = min(some, key=lambda problem: some[problem])
                lines.append(
                    f"{kind}: {by} takes {geomean(some.values()):.2f} times as long (geometric mean of {len(some)}, "
                    f"least {some[worst]:.2f}, {worst})"
                )
    return lines


def as_json(results: Sequence[Result], about: dict[str, str]) -> dict[str, Any]:
    rows = []
    for result in results:
        row = {**dataclasses.asdict(result), "shape": result.shape._asdict()}
        rows.append({**row, **_rates(result)})
    return {"header": about, "results": rows}


def write_json(path: Path, results: Sequence[Result], about: dict[str, str]) -> None:
    path.write_text(json.dumps(as_json(results, about), indent=1) + "\n", encoding="utf-8")


def write_csv(path: Path, results: Sequence[Result]) -> None:
    fields = ("op", "shape", "m", "n", "k", "groups", "by", "how", "simulated", "sustained_us", "median_us", "p20_us",
              "p80_us", "joules", "tflops", "tflops_per_watt", "gbps", "mfma_utilization", "busiest", "error",
              "missing")  # fmt: skip
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fields, restval="", extrasaction="ignore")
        writer.writeheader()
        for result in results:
            timing = dataclasses.asdict(result.timing) if result.timing else {}
            own = {name: getattr(result, name) for name in ("op", "by", "how", "simulated", "error", "missing")}
            own["shape"] = str(result.shape)
            writer.writerow({**result.shape._asdict(), **timing, **own, **_rates(result)})


def _rates(result: Result) -> dict[str, float | None]:
    return {name: getattr(result, name) for name in ("tflops", "tflops_per_watt", "gbps")}


def write_markdown(path: Path, results: Sequence[Result], about: dict[str, str], plots: Sequence[Path] = ()) -> None:
    lines = [
        "# Benchmarks",
        "",
        f"All times are **{about['times']}**.",
        "",
    ]
    lines += ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in about.items()), ""]
    lines += [line + "." for line in summary(results)]
    lines += [f"\n![{plot.stem}]({plot.name})" for plot in plots]
    for op in dict.fromkeys(result.op for result in results):
        lines += ["", f"## {op}", "", *markdown_table([result for result in results if result.op == op])]
    lines += ["", *(f"- {line}" for line in missing(results))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def plot(folder: Path, results: Sequence[Result], about: dict[str, str]) -> list[Path]:
    """Plots TFLOPS over M, the roofline, and baselines' times relative to ours, as PNG files.

    Raises:
        ImportError: matplotlib isn't installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    written = []

    def save(figure: Any, name: str) -> None:
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=120, bbox_inches="tight")
        pyplot.close(figure)
        written.append(path)

    measured = [result for result in results if result.timing and result.flops]
    for op in dict.fromkeys(result.op for result in measured):
        of_op = [result for result in measured if result.op == op]
        figure, (over_m, roofline) = pyplot.subplots(1, 2, figsize=(13, 5))
        figure.suptitle(f"{op}, {about['times']}")
        _plot_over_m(over_m, of_op)
        _plot_roofline(roofline, of_op, _PEAK_TFLOPS["fp8" if "fp8" in op else "bf16"])
        save(figure, op)
        if ratios := speedups(of_op):
            figure, axes = pyplot.subplots(figsize=(8, 1 + 0.25 * sum(map(len, ratios.values()))))
            _plot_ratios(axes, ratios, about["times"])
            save(figure, f"{op}_ratios")
    return written


def _plot_over_m(axes: Any, results: Sequence[Result]) -> None:
    """A line for each library and shape without M, named at its beginning; the lines of a library have one colour."""
    lines: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for result in results:
        lines.setdefault((result.by, result.shape.line), []).append((result.shape.rows, result.tflops or 0))
    colours = {by: f"C{number}" for number, by in enumerate(dict.fromkeys(by for by, _ in lines))}
    labelled: set[str] = set()
    for (by, name), points in lines.items():
        points.sort()
        label = None if by in labelled else by
        labelled.add(by)
        axes.plot(*zip(*points, strict=True), "o-" if by == OURS else "x--", color=colours[by], label=label)
        if by == OURS:
            axes.annotate(name, points[0], (0, 5), textcoords="offset points", fontsize="xx-small")
    _set_log_axes(axes, "M, or tokens of a sequence")
    axes.legend(fontsize="x-small")


def _set_log_axes(axes: Any, xlabel: str) -> None:
    """Logarithmic axes with plain numbers at 1, 2, 5, 10 and so on."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set(xscale="log", yscale="log", xlabel=xlabel, ylabel="TFLOPS")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
        axis.set_minor_locator(NullLocator())


def _plot_roofline(axes: Any, results: Sequence[Result], peak: float) -> None:
    intensities = [result.flops / result.bytes for result in results]
    edge = peak / _PEAK_TBPS
    roof = sorted({min(intensities), edge, max(*intensities, edge)})
    axes.plot(roof, [min(peak, _PEAK_TBPS * x) for x in roof], "k-", label=f"{peak:g} TFLOPS, {_PEAK_TBPS} TB/s")
    for by in dict.fromkeys(result.by for result in results):
        points = [(r.flops / r.bytes, r.tflops) for r in results if r.by == by]
        axes.plot(*zip(*points, strict=True), "o" if by == OURS else "x", label=by)
    _set_log_axes(axes, "FLOP for each byte")
    axes.legend(fontsize="x-small")


def _plot_ratios(axes: Any, ratios: dict[str, dict[str, float]], kind: str) -> None:
    bars = [(f"{by}, {problem}", ratio) for by, of in ratios.items() for problem, ratio in of.items()]
    axes.barh(*zip(*reversed(bars), strict=True))
    axes.axvline(1, color="black")
    axes.set_xlabel(f"time over that of {OURS}, {kind}")
    axes.tick_params(axis="y", labelsize="x-small")
