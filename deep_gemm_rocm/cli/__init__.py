"""The commands of ``python -m deep_gemm_rocm``, a module each."""

from __future__ import annotations

from pathlib import Path

import typer


class UsageError(Exception):
    """The command line asks for something impossible. The message says what is possible."""


def in_a_folder(file: Path | None) -> Path | None:
    """A callback for an option that names a file to write: its folder must be there before long measurements begin.

    Raises:
        BadParameter: there is no such folder, or the file is a folder itself.
    """
    if file is not None and not file.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {file.parent}")
    if file is not None and file.is_dir():
        raise typer.BadParameter(f"{file} is a folder")
    return file
