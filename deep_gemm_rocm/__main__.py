"""The command line: ``python -m deep_gemm_rocm COMMAND``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from .cli import cache, sim
from .hip import HipError, NoDeviceError
from .jit import JitError
from .warmup import models

app = typer.Typer(no_args_is_help=True, add_completion=False, help="FP8 kernels for AMD's MI300X, real or simulated.")


app.add_typer(sim.app, name="sim")
app.add_typer(cache.app, name="cache")


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


@app.command()
def warmup(
    model: Annotated[str | None, typer.Option(help=f"One of {', '.join(models())}.")] = None,
    shapes: Annotated[Path | None, typer.Option(help="A file of workloads, see docs/serving.md.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Compiles at once; as many as CPUs by default.")] = None,
) -> None:
    """Compile all kernels that a model needs into the kernel cache."""
    from .cli.warmup import run

    if model is not None and model not in models():
        raise typer.BadParameter(f"must be one of {', '.join(models())}, got {model}", param_hint="--model")
    file = shapes if model is None else models()[model]
    if file is None or (model is not None and shapes is not None):
        raise typer.BadParameter("give one of them", param_hint="--model, --shapes")
    _finish(lambda console: run(console, file, jobs))


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
