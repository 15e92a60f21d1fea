"""The command line: ``python -m deep_gemm_rocm COMMAND``."""

from __future__ import annotations

from collections.abc import Callable

import typer
from rich.console import Console
from rich.text import Text

from .cli import sim
from .hip import HipError, NoDeviceError
from .jit import JitError

app = typer.Typer(no_args_is_help=True, add_completion=False, help="FP8 kernels for AMD's MI300X, real or simulated.")


app.add_typer(sim.app, name="sim")


@app.command()
def info() -> None:
    """Tell which runtime, device, compiler and cache folder are in use, and what is missing."""
    from .cli.info import show

    _finish(show)


@app.command()
def demo() -> None:
    """Run a projection of DeepSeek-V3 in FP8 and check every element of the result."""
    from .cli.demo import run

    _finish(run)


def _finish(command: Callable[[Console], bool]) -> None:
    """Runs a command and exits, with 1 if it found something wrong."""
    console = Console(highlight=False, soft_wrap=True)
    try:
        good = command(console)
    except (JitError, HipError, NoDeviceError) as error:
        console.print(Text.assemble((type(error).__name__, "red"), f": {error}"))
        good = False
    raise typer.Exit(0 if good else 1)


if __name__ == "__main__":
    app()
