"""Files that a failed write leaves as they were."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a file to write, which then takes the place of ``path``. On an error, it is removed and ``path`` is kept.

    Links are followed. Devices and pipes can't be replaced: they are yielded themselves.

    Raises:
        OSError: the file can't be put there.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    path = path.resolve()
    new = path.with_name(path.name + ".new")
    try:
        yield new
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
