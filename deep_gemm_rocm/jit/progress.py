"""A line on the terminal while a long compile runs."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from .. import forking

_PATIENCE_SECONDS = 2.0
_one_line = forking.Lock()


@contextlib.contextmanager
def shown(text: str) -> Iterator[None]:
    """Shows ``text`` on a terminal's stderr if the work inside takes long, and removes it afterwards.

    Of several threads, only one shows a line. A program that draws on the terminal itself replaces ``sys.stderr``, as
    rich's progress bars do; then there is no line.
    """
    stderr = sys.__stderr__
    if stderr is None or sys.stderr is not stderr or not stderr.isatty() or not _one_line.acquire(blocking=False):
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    # Without redirecting, which would leave a forked child with a stderr that this thread has locked.
    line = Progress(
        *columns, console=Console(file=stderr), transient=True, redirect_stdout=False, redirect_stderr=False
    )
    line.add_task(text)
    timer = threading.Timer(_PATIENCE_SECONDS, line.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        line.stop()
        _one_line.release()
