"""``python -m deep_gemm_rocm sim``: the simulated MI300X for anybody's gfx942 code objects."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from .. import simulator

app = typer.Typer(no_args_is_help=True, help="Run gfx942 code objects on the simulated MI300X.")

_BUFFER = re.compile(r"(?P<type>[a-z]+\d+)\[(?P<count>\d+)\](?:=(?P<fill>.+))?")

KernelOption = Annotated[str, typer.Option(help="The kernel's symbol.")]
CodeArgument = Annotated[
    Path, typer.Argument(help="A code object (ELF) or an offload bundle.", exists=True, dir_okay=False)
]


@app.command()
def run(
    code_object: CodeArgument,
    kernel: KernelOption,
    grid: Annotated[str, typer.Option(help="Workgroups: X or X,Y,Z.")] = "1",
    block: Annotated[str, typer.Option(help="Work-items of a workgroup: X or X,Y,Z.")] = "64",
    arg: Annotated[
        list[str] | None,
        typer.Option(
            help="An argument, in order: a number; a buffer TYPE[COUNT] or TYPE[COUNT]=FILL with a numpy type, as in "
            "float32[1024]=0.5; or an array in a .npy file."
        ),
    ] = None,
    dynamic_lds: Annotated[int, typer.Option(help="Bytes of LDS on top of the kernel's own.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the arrays after the run, as arg0.npy and so on.")
    ] = None,
) -> None:
    """Run one kernel and show what became of its buffers."""
    console = Console(highlight=False, soft_wrap=True)
    try:
        arguments = [_argument(text) for text in arg or []]
        start = time.perf_counter()
        simulator.launch(code_object, kernel, _extent(grid), _extent(block), arguments, dynamic_lds)
    except (simulator.SimulatorError, ValueError, TypeError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    console.print(f"{kernel}: ran in {time.perf_counter() - start:.3f} s of simulation")
    for index, value in enumerate(arguments):
        if not isinstance(value, np.ndarray):
            continue
        head = np.array2string(value.ravel()[:8], separator=", ")
        console.print(
            f"arg{index} {value.dtype}{list(value.shape)}: {head}{' ...' if value.size > 8 else ''}", markup=False
        )
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            np.save(out / f"arg{index}.npy", value)


@app.command()
def disasm(code_object: CodeArgument, kernel: KernelOption) -> None:
    """Print the instructions of a kernel, as the simulator decodes them."""
    try:
        typer.echo(simulator.disassemble_kernel(code_object, kernel), nl=False)
    except simulator.SimulatorError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error


@app.command()
def opcodes(
    status: Annotated[str, typer.Option(help="exact, approximate or missing; all of them without it.")] = "",
) -> None:
    """List every gfx942 opcode: encoding, number, mnemonic, status, and what is approximate in it."""
    for opcode in simulator.opcodes():
        if status in ("", opcode.status):
            fields = (opcode.family, f"{opcode.number:#x}", opcode.mnemonic, opcode.status, opcode.difference)
            typer.echo(" ".join(fields).rstrip())


def _extent(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(","))


def _argument(text: str) -> int | float | np.ndarray:
    if text.endswith(".npy"):
        return np.load(text)
    if buffer := _BUFFER.fullmatch(text):
        return np.full(int(buffer["count"]), float(buffer["fill"] or 0), np.dtype(buffer["type"]))
    try:
        return int(text, 0)
    except ValueError:
        return float(text)
