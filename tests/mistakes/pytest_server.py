"""Runs pytest in forks of a process that has already imported the slowest modules.

Reads a line of JSON for each run: the checkout's ``folder``, the ``environment``, pytest's ``arguments``, the file for
the ``log``, and the limit in ``seconds``. Answers with the exit code, which is negative for a signal.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
from typing import Any

_TAKE_LONG = ("hypothesis", "jinja2", "numpy", "platformdirs", "pytest", "torch", "typer.testing", "xdist")


def serve() -> None:
    for name in _TAKE_LONG:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _run(request)
        print(_exit_code(child, request["seconds"]), flush=True)


def _run(request: dict[str, Any]) -> None:
    code = 3
    try:
        os.setsid()  # so that processes of the tests can be ended as well
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, replaced in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(descriptor, replaced)
        os.chdir(request["folder"])
        os.environ.update(request["environment"])
        sys.path[0] = request["folder"]
        import pytest

        code = int(pytest.main(request["arguments"]))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _exit_code(child: int, seconds: float) -> int:
    end = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended or time.monotonic() > end:
            break
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not ended:
        _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    serve()
