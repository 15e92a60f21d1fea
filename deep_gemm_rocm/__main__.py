"""The command line: ``python -m deep_gemm_rocm COMMAND``."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

app = typer.Typer(no_args_is_help=True, add_completion=False, help="FP8 kernels for AMD's MI300X, real or simulated.")


@app.command()
def info() -> None:
    """Tell which runtime, device, compiler and cache folder are in use, and what is missing."""
    from .cli.info import show

    if not show(_console()):
        raise typer.Exit(1)


@app.command()
def demo() -> None:
    """Run a projection of DeepSeek-V3 in FP8 and check every element of it."""
    from .cli.demo import run

    if not run(_console()):
        raise typer.Exit(1)


def _console() -> Console:
    # Lines in a file or a pipe are as long as what they say; rich would wrap them at 80 columns.
    return Console() if sys.stdout.isatty() else Console(width=240)


if __name__ == "__main__":
    app()
