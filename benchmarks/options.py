"""Options that several programs here have."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from deep_gemm_rocm.benchmarks.shapes import Shape, parse


def shapes_in(text: str, default: Sequence[Shape]) -> Sequence[Shape]:
    """The shapes of ``--shapes``, MxNxK with commas between, or those by default.

    Raises:
        typer.BadParameter: one is no shape.
    """
    try:
        return [parse(name, Shape) for name in text.split(",") if name] or default
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--shapes") from error


def check_only(only: str, names: Sequence[str]) -> None:
    """
    Raises:
        typer.BadParameter: none of the names has the text of ``--only`` in it.
    """
    if not any(only in name for name in names):
        raise typer.BadParameter(f"expected a part of one of {', '.join(names)}, got {only!r}", param_hint="--only")
