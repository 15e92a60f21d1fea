"""``python -m deep_gemm_rocm sim``: runs any gfx942 code object on the simulated MI300X."""

from __future__ import annotations

import contextlib
import enum
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from .. import simulator, workbench
from ..jit import JitError
from ..simulator.code_objects import code_objects
from ..simulator.kernel_names import listed_names, matching
from ..workbench import measurements, report
from . import writable
from .debug import Session, lanes_of

app = typer.Typer(no_args_is_help=True, help="Run gfx942 kernels on the simulated MI300X.")

_SOURCES = (".hip", ".cpp", ".cc", ".cu", ".cxx")

_BUFFER = re.compile(r"(?P<type>[a-z]+\d+)\[(?P<count>\d+)\](?:=(?P<fill>.+))?")


class _Status(enum.Enum):
    """The values of ``simulator.Opcode.status``."""

    EXACT = "exact"
    APPROXIMATE = "approximate"
    MISSING = "missing"


KernelOption = Annotated[
    str | None, typer.Option(help="The kernel's name or symbol; may be left out where there is only one.")
]
CodeArgument = Annotated[
    Path,
    typer.Argument(
        help="A code object (ELF), an offload bundle, a program or library with one in it, such as a cached kernel.so, "
        "or HIP source (.hip, .cpp), which is compiled with -g.",
        exists=True,
        dir_okay=False,
    ),
]
FlagOption = Annotated[
    list[str] | None, typer.Option("--flag", help="One more flag for the compiler, as in --flag=-DN=4.")
]
GridOption = Annotated[str, typer.Option(help="Workgroups: X or X,Y,Z.")]
BlockOption = Annotated[str, typer.Option(help="Work-items of a workgroup: X or X,Y,Z.")]
ArgOption = Annotated[
    list[str] | None,
    typer.Option(
        help="An argument, in order: a number; a buffer TYPE[COUNT] or TYPE[COUNT]=FILL with a numpy type, as in "
        "float32[1024]=0.5; or an array in a .npy file."
    ),
]
DynamicLdsOption = Annotated[int, typer.Option(help="Bytes of LDS on top of the kernel's own.")]
CooperativeOption = Annotated[
    bool, typer.Option("--cooperative", help="Launch so that workgroups may wait for each other (grid sync).")
]
WorkgroupOption = Annotated[str, typer.Option(help="The wave's workgroup: X or X,Y,Z.")]
WaveOption = Annotated[int, typer.Option(help="The wave of the workgroup.", min=0)]


@app.command("compile")
def compile_source(
    source: Annotated[Path, typer.Argument(help="HIP source.", exists=True, dir_okay=False)],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The code object; by default beside the source, as .co.")
    ] = None,
    debug: Annotated[bool, typer.Option("-g", help="Add debug information, for reports by source line.")] = False,
    flag: FlagOption = None,
) -> None:
    """Compile HIP source to a code object for gfx942. docs/workbench.md has the headers that need no ROCm."""
    with _errors_as_messages():
        target = output or source.with_suffix(".co")
        target.write_bytes(workbench.compile(source, debug=debug, flags=flag or ()))
    typer.echo(str(target))


@app.command()
def run(
    code_object: CodeArgument,
    kernel: KernelOption = None,
    grid: GridOption = "1",
    block: BlockOption = "64",
    arg: ArgOption = None,
    dynamic_lds: DynamicLdsOption = 0,
    cooperative: CooperativeOption = False,
    flag: FlagOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the arrays after the run, as arg0.npy and so on.", file_okay=False)
    ] = None,
    sanitize: Annotated[
        bool, typer.Option("--sanitize", help="Report races, missing waits and unwritten data (DG_SIM_SANITIZE=1).")
    ] = False,
) -> None:
    """Run one kernel and show its buffers afterwards."""
    with _errors_as_messages(), _sanitizer(sanitize):
        program = _Program.of(code_object, kernel, flag)
        start = time.perf_counter()
        arguments = _launch(program, grid, block, arg, dynamic_lds, cooperative)
        seconds = time.perf_counter() - start
    console = _console()
    console.print(f"{program.kernel}: ran in {seconds:.3f} s of simulation")
    for index, value in enumerate(arguments):
        if not isinstance(value, np.ndarray):
            continue
        head = np.array2string(value.ravel()[:8], separator=", ")
        console.print(
            f"arg{index} {value.dtype}{list(value.shape)}: {head}{' ...' if value.size > 8 else ''}", markup=False
        )
        if out is not None:
            with _errors_as_messages():
                out.mkdir(parents=True, exist_ok=True)
                np.save(out / f"arg{index}.npy", value)


@app.command()
def counters(
    code_object: CodeArgument,
    kernel: KernelOption = None,
    grid: GridOption = "1",
    block: BlockOption = "64",
    arg: ArgOption = None,
    dynamic_lds: DynamicLdsOption = 0,
    cooperative: CooperativeOption = False,
    flag: FlagOption = None,
) -> None:
    """Run one kernel and count its instructions, FLOPs, bytes, bank conflicts and barriers; show its occupancy."""
    with _errors_as_messages(), simulator.counters() as counted:
        _launch(_Program.of(code_object, kernel, flag), grid, block, arg, dynamic_lds, cooperative)
    (found,) = counted.kernels
    _console().print(_counters_table(found))


@app.command()
def profile(
    code_object: CodeArgument,
    kernel: KernelOption = None,
    grid: GridOption = "1",
    block: BlockOption = "64",
    arg: ArgOption = None,
    dynamic_lds: DynamicLdsOption = 0,
    cooperative: CooperativeOption = False,
    flag: FlagOption = None,
    runs: Annotated[
        int, typer.Option(help="Launches; the last one is shown, with the Infinity Cache warm.", min=1)
    ] = 1,
    timeline: Annotated[
        Path | None,
        typer.Option(help="File for a timeline that Perfetto (ui.perfetto.dev) opens, as JSON.", callback=writable),
    ] = None,
    cu: Annotated[int, typer.Option(help="The CU whose waves the timeline shows.", min=0, max=303)] = 0,
    constant: Annotated[
        list[str] | None, typer.Option(help="SECTION.NAME=NUMBER: another value for a constant of the model.")
    ] = None,
    sampling: Annotated[bool, typer.Option(help="Whether large launches are sampled.")] = True,
    lines: Annotated[
        bool, typer.Option("--lines", help="Show source lines with their instructions; needs debug information (-g).")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            help="File for a report with source lines beside their instructions, and a timeline; needs -g.",
            callback=writable,
        ),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option(
            help="File for the measurement, beside those of other launches in it; for sim compare.", callback=writable
        ),
    ] = None,
) -> None:
    """Run one kernel in simulated time: its counters, the cycles of each instruction of its hot loop or of each source
    line, and a timeline.
    The model is described in docs/timing.md."""
    with _errors_as_messages():
        constants = dict(map(_constant, constant or []))
        by_line = lines or html is not None
        shown = cu if by_line or timeline is not None else None
        program = _Program.of(code_object, kernel, flag)
        with simulator.profile(constants, sampling=sampling, timeline=shown) as profiled:
            for _ in range(runs):
                arguments = _launch(program, grid, block, arg, dynamic_lds, cooperative)
        found = profiled.kernels[-1]
        if timeline is not None:
            found.write_timeline(timeline)
        costs: list[simulator.LineProfile] = []
        if by_line or json is not None:
            # Without the timing model, which doesn't count all workgroups of a large launch.
            with simulator.counters() as counted:
                _launch(program, grid, block, arg, dynamic_lds, cooperative)
            (counts,) = counted.kernels
            costs = simulator.profile_lines(program.image, found, counts) if by_line else []
        if html is not None:
            report.write_html(html, found, costs)
        if json is not None:
            arrays = [argument for argument in arguments if isinstance(argument, np.ndarray)]
            measurements.add(json, measurements.Measurement.of(found, counts, arrays))
    console = _console()
    console.print(_profile_table(found))
    if lines:
        _print_lines(costs)
    else:
        console.print(_hot_loop_table(found))


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(help="Measurements that sim profile --json wrote.", dir_okay=False)],
    after: Annotated[Path, typer.Argument(help="Those of the same launches after a change.", dir_okay=False)],
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Exit with status 1 if a launch takes so many percent longer, or is missing.", callback=_percent
        ),
    ] = None,
) -> None:
    """Show what changed for each kernel between two files of sim profile --json: times, stalls, registers, occupancy,
    and whether results have the same bits."""
    with _errors_as_messages():
        found = measurements.changes(measurements.read(before), measurements.read(after))
    for change in found:
        typer.echo(change.headline())
        for fact in change.facts():
            typer.echo(f"    {fact}")
    if tolerance is not None:
        worse = [change for change in found if change.after is None or 100 * change.slower > tolerance]
        if worse:
            typer.echo(
                f"{len(worse)} of {len(found)} launches take over {tolerance:g}% longer, or are missing", err=True
            )
            raise typer.Exit(1)


@app.command()
def trace(
    code_object: CodeArgument,
    kernel: KernelOption = None,
    grid: GridOption = "1",
    block: BlockOption = "64",
    arg: ArgOption = None,
    dynamic_lds: DynamicLdsOption = 0,
    cooperative: CooperativeOption = False,
    flag: FlagOption = None,
    workgroup: WorkgroupOption = "0",
    wave: WaveOption = 0,
    first: Annotated[int, typer.Option(help="Instructions to leave out at the beginning.", min=0)] = 0,
    count: Annotated[int, typer.Option(help="Instructions to show.", min=1)] = 1000,
    lanes: Annotated[str, typer.Option(help="The lanes whose values are shown, as in 0-3,63.")] = "0-3",
) -> None:
    """Run one kernel and show what one wave executes: offset, instruction, and the registers (hexadecimal) that it
    reads (<) and writes (>). Where the kernel fails, the trace ends there."""
    shown, of_workgroup = _lanes(lanes), _extent(workgroup)
    traced = simulator.Traced()
    try:
        with _errors_as_messages(), simulator.trace(of_workgroup, wave, first, count) as traced:
            _launch(_Program.of(code_object, kernel, flag), grid, block, arg, dynamic_lds, cooperative)
    finally:
        for found in traced.waves:
            for instruction in found.instructions:
                _print_instruction(instruction, shown)
    if not any(found.instructions for found in traced.waves):
        typer.echo(f"no instructions: workgroup {workgroup} has no wave {wave} that executes so many", err=True)
        raise typer.Exit(1)


@app.command()
def debug(
    code_object: CodeArgument,
    kernel: KernelOption = None,
    grid: GridOption = "1",
    block: BlockOption = "64",
    arg: ArgOption = None,
    dynamic_lds: DynamicLdsOption = 0,
    cooperative: CooperativeOption = False,
    flag: FlagOption = None,
    workgroup: WorkgroupOption = "0",
    wave: WaveOption = 0,
    sanitize: Annotated[
        bool, typer.Option("--sanitize", help="Stop at races, missing waits and unwritten data, too.")
    ] = False,
    execute: Annotated[
        list[str] | None, typer.Option("--execute", "-x", help="A command; by default they come from standard input.")
    ] = None,
) -> None:
    """Stop one wave at source lines or instructions, step, and look at its registers, LDS and variables.

    The command `help` lists the commands."""
    with _errors_as_messages(), _sanitizer(sanitize):
        program = _Program.of(code_object, kernel, flag)
        debugged = simulator.Debugger(
            program.image,
            program.kernel,
            _extent(grid),
            _extent(block),
            [_argument(text) for text in arg or []],
            workgroup=_extent(workgroup),
            wave=wave,
            dynamic_lds=dynamic_lds,
            cooperative=cooperative,
        )
        with debugged as debugger:
            session = Session(debugger)
            session.start(execute or ())
    if session.failed:
        raise typer.Exit(1)


@app.command()
def disasm(code_object: CodeArgument, kernel: KernelOption = None, flag: FlagOption = None) -> None:
    """Print the instructions of a kernel, as the simulator decodes them."""
    with _errors_as_messages():
        program = _Program.of(code_object, kernel, flag)
        typer.echo(simulator.disassemble_kernel(program.image, program.kernel), nl=False)


@app.command()
def opcodes(
    status: Annotated[_Status | None, typer.Option(help="Only opcodes with this status.")] = None,
) -> None:
    """List every gfx942 opcode: encoding, number, mnemonic, status, and how it differs from the chip."""
    for opcode in simulator.opcodes():
        if status is None or opcode.status == status.value:
            fields = (opcode.family, f"{opcode.number:#x}", opcode.mnemonic, opcode.status, opcode.difference)
            typer.echo(" ".join(fields).rstrip())


def _percent(number: float | None) -> float | None:
    if number is not None and not number >= 0:
        raise typer.BadParameter(f"expected a percentage from 0 on, got {number:g}")
    return number


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True)


@contextlib.contextmanager
def _errors_as_messages() -> Iterator[None]:
    """Ends the command with a message instead of a traceback on errors of the program or the user."""
    try:
        yield
    except (simulator.SimulatorError, JitError, OSError, ValueError, TypeError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error


@contextlib.contextmanager
def _sanitizer(on: bool) -> Iterator[None]:
    """Turns the sanitizer on inside the block, at the environment's level where it is on already."""
    before = os.environ.get("DG_SIM_SANITIZE")
    if on and before in (None, "", "0"):
        os.environ["DG_SIM_SANITIZE"] = "1"
    try:
        yield
    finally:
        os.environ.pop("DG_SIM_SANITIZE", None)
        if before is not None:
            os.environ["DG_SIM_SANITIZE"] = before


@dataclass(frozen=True)
class _Program:
    """A code object and the kernel to run."""

    image: bytes
    kernel: str

    @classmethod
    def of(cls, path: Path, kernel: str | None, flags: list[str] | None) -> _Program:
        if _is_source(path):
            images = [workbench.compile(path, debug=True, flags=flags or ())]
        else:
            file = path.read_bytes()
            images = code_objects(file) or [file]  # which the simulator refuses, and says why
        if kernel is not None:
            having = [image for image in images if matching(simulator.kernel_names(image), kernel)]
            return cls((having or images)[0], kernel)
        kernels = [(image, names) for image in images if (names := simulator.kernel_names(image))]
        names = {symbol: name for _, of_image in kernels for symbol, name in of_image.items()}
        if not names:
            raise ValueError(
                f"{path} has no kernels: it is no code object for gfx942, holds none, and its name isn't that of HIP "
                "source"
            )
        if len(names) != 1:
            raise ValueError(f"name the kernel with --kernel: the file has {listed_names(names)}")
        return cls(kernels[0][0], next(iter(names.values())))


def _is_source(path: Path) -> bool:
    return path.suffix in _SOURCES


def _launch(
    program: _Program, grid: str, block: str, arg: list[str] | None, dynamic_lds: int, cooperative: bool
) -> list[int | float | np.ndarray]:
    """Runs the kernel; returns its arguments afterwards."""
    arguments = [_argument(text) for text in arg or []]
    extents = _extent(grid), _extent(block)
    simulator.launch(program.image, program.kernel, *extents, arguments, dynamic_lds, cooperative)
    return arguments


def _extent(text: str) -> tuple[int, ...]:
    sizes = text.split(",")
    if len(sizes) > 3 or not all(map(str.isdecimal, sizes)):
        raise typer.BadParameter(f"expected one to three sizes as in 8 or 8,4,1, got {text}")
    return tuple(map(int, sizes))


def _argument(text: str) -> int | float | np.ndarray:
    try:
        if text.endswith(".npy"):
            return np.load(text)
        if buffer := _BUFFER.fullmatch(text):
            dtype = np.dtype(buffer["type"])
            if dtype.kind not in "biufc":
                raise ValueError(f"{dtype} is no type of numbers")
            return _filled(int(buffer["count"]), _number(buffer["fill"] or "0"), dtype)
        return _number(text)
    except (ArithmeticError, MemoryError, OSError, ValueError, TypeError) as error:
        raise typer.BadParameter(
            f"expected a number, TYPE[COUNT], TYPE[COUNT]=FILL with a numpy type, or a .npy file, got {text} ({error})",
            param_hint="--arg",
        ) from error


def _number(text: str) -> int | float:
    with contextlib.suppress(ValueError):
        return int(text, 0)
    return float(text)


def _filled(count: int, fill: float, dtype: np.dtype) -> np.ndarray:
    """An array of equal numbers, which mustn't become others by their type, but for rounding."""
    if dtype.kind in "iu" and not (fill == int(fill) and np.iinfo(dtype).min <= fill <= np.iinfo(dtype).max):
        raise ValueError(f"{dtype} can't be {fill}")
    with np.errstate(over="raise"):
        return np.full(count, int(fill) if dtype.kind in "iu" else fill, dtype)


def _constant(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError as error:
        raise typer.BadParameter(f"expected a constant as in l1.hit_clocks=120, got {text}") from error


def _lanes(text: str) -> list[int]:
    try:
        return lanes_of(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _print_instruction(instruction: simulator.TracedInstruction, lanes: list[int]) -> None:
    typer.echo(f"{instruction.offset:#x} {instruction.text}  exec={instruction.exec:016x} scc={instruction.scc}")
    for arrow, registers in (("<", instruction.reads), (">", instruction.writes)):
        for name, values in registers.items():
            if arrow == "<" and name.startswith("exec"):
                continue  # the line of the instruction shows it
            shown = values[lanes] if values.ndim else [values]
            typer.echo(f"    {arrow} {name:<8} " + " ".join(f"{value:08x}" for value in shown))


def _counters_table(found: simulator.KernelCounters) -> Table:
    table = Table(
        title=f"{simulator.source_name(found.name)}, grid {found.grid}, block {found.block}", show_header=False
    )
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)

    def section(name: str, rows: dict[str, Any]) -> None:
        for index, (key, value) in enumerate({name: "", **rows}.items()):
            table.add_row(key if index == 0 else f"  {key}", f"{value:,}" if isinstance(value, int) else str(value))

    shown = {name: count for name, count in found.by_class.items() if count}
    utilization = f"{100 * found.lane_utilization:.1f} %"
    section("wave instructions", {"all": found.instructions, **shown, "active lanes": utilization})
    section("matrix cores", {**found.matrix_instructions, "FLOPs": found.matrix_operations})
    for name in ("global", "scalar", "lds", "scratch"):
        traffic: simulator.Traffic = getattr(found, f"{name}_bytes")
        section(f"{name} memory, bytes", {"read": traffic.read, "written": traffic.written, "atomic": traffic.atomic})
    section("LDS banks, clocks", {"all": found.lds_clocks, "conflicts": found.lds_conflict_clocks})
    occupancy = found.occupancy
    section(
        "occupancy of a compute unit",
        {
            "registers of a lane": occupancy.registers,
            "LDS bytes of a workgroup": occupancy.lds_bytes,
            "scratch bytes of a work-item": occupancy.scratch_bytes,
            "workgroups by registers": occupancy.workgroups_by_registers,
            "workgroups by LDS": occupancy.workgroups_by_lds,
            "workgroups by wave slots": occupancy.workgroups_by_wave_slots,
            "waves": f"{occupancy.waves_per_cu} of 32, limited by {occupancy.limited_by}",
        },
    )
    return table


def _profile_table(found: simulator.KernelProfile) -> Table:
    table = Table(
        title=f"{simulator.source_name(found.name)}, grid {found.grid}, block {found.block}, simulated time",
        show_header=False,
    )
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    ratios = ("mfma_utilization", "valu_busy", "lds_busy", "vmem_busy", "occupancy")
    rates = ("l1_hit_rate", "l2_hit_rate", "mall_hit_rate")
    least, most = found.interval_us
    table.add_row("time under sustained load", f"{found.sustained_us:,.2f} µs, {least:,.2f} to {most:,.2f}")
    table.add_row("clock under sustained load", f"{found.sustained_mhz:,.0f} MHz")
    table.add_row("energy", f"{found.sustained_joules * 1e3:,.3f} mJ")
    table.add_row("time if the busiest resource never idled", f"{found.without_idling_us:,.2f} µs")
    table.add_row(f"time at a fixed {found.clock_mhz:,.0f} MHz", f"{found.time_us:,.2f} µs")
    for name in ("cycles", "instructions", "sampled_workgroups", "lds_conflict_cycles", "hbm_bytes", "tlb_misses"):
        table.add_row(name.replace("_", " "), f"{getattr(found, name):,}")
    for name in ratios + rates:
        table.add_row(name.replace("_", " "), f"{getattr(found, name):.1%}")
    for name, share in sorted(found.busy.items(), key=lambda resource: -resource[1]):
        table.add_row(f"busy, where there was work: {name}", f"{share:.1%}")
    total = sum(found.stalls.values())
    for name, cycles in sorted(found.stalls.items(), key=lambda stall: -stall[1]):
        if cycles:
            table.add_row(f"waves waited: {name}", f"{cycles / total:.1%} ({cycles:,} clocks)")
    return table


def _hot_loop_table(found: simulator.KernelProfile) -> Table:
    total = sum(line.cycles for line in found.listing)
    table = Table("offset", "of all cycles", "each", "executed", "instruction", title="Hot loop")
    for column in table.columns[:4]:
        column.justify = "right"
    for line in found.hot_loop:
        each = line.cycles / line.executed
        numbers = f"{line.offset:#x}", f"{line.cycles / total:.2%}", f"{each:.1f}", f"{line.executed:,}"
        table.add_row(*numbers, line.text)
    return table


def _print_lines(lines: list[simulator.LineProfile]) -> None:
    total = sum(line.cycles for line in lines)
    typer.echo("cycles  executed  of all waves; below each line what it waited for, its bytes and its instructions")
    for line in lines:
        place = f"{line.place.name}:{line.place.line}  {line.place.text}" if line.place else "(no line)"
        typer.echo(f"\n{line.cycles / total:6.1%} {line.executed:>9,}  {place}")
        if facts := ", ".join(line.facts()):
            typer.echo(f"{'':18}{facts}")
        for instruction in line.instructions:
            share = f"{instruction.cycles / total:6.1%} {instruction.executed:>9,}"
            typer.echo(f"{share}    {instruction.offset:#06x} {instruction.text}")
