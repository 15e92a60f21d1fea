"""The commands of ``python -m deep_gemm_rocm``, a module each."""

from __future__ import annotations

from pathlib import Path

import typer


class UsageError(Exception):
    """The command line asks for something impossible. The message says what is possible."""


def writable(file: Path | None) -> Path | None:
    """A callback for an option that names a file to write, which must be possible before long measurements begin.

    Raises:
        BadParameter: there is no such folder, the file is a folder itself, or can't be written.
    """
    if file is None:
        return None
    if not file.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {file.parent}")
    if file.is_dir():
        raise typer.BadParameter(f"{file} is a folder")
    is_new = not file.exists()
    try:
        file.open("a").close()
        if is_new:
            file.unlink()
    except OSError as error:
        raise typer.BadParameter(f"{file} can't be written: {error.strerror}") from error
    return file
