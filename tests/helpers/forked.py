"""Runs a test's function in child processes, which isolate libraries, environment and crashes."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

_SECONDS = 60

_fork = multiprocessing.get_context("fork")
_clean = multiprocessing.get_context("forkserver")
_clean.set_forkserver_preload(["deep_gemm_rocm", "pytest"])  # the server forks before any test opens a library


def in_clean_child(function: Callable[..., Any], *arguments: Any, seconds: float = _SECONDS) -> Any:
    """Like ``in_child``, but the child has none of the libraries that tests loaded. Takes no closures."""
    return _result(*_start(_clean, function, arguments), seconds)


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the result of ``function`` in a child. Fails with the child's traceback if it raises."""
    (result,) = in_children(1, function, *arguments)
    return result


def in_children(count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Returns the results of ``function`` in ``count`` children that run at the same time."""
    children = [_start(_fork, function, arguments) for _ in range(count)]
    return [_result(*child) for child in children]


def start_child(function: Callable[..., Any], *arguments: Any) -> multiprocessing.process.BaseProcess:
    child = _fork.Process(target=function, args=arguments)
    child.start()
    return child


def _start(context: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Connection]:
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_report, args=(sender, function, arguments))
    child.start()
    sender.close()  # so that the pipe ends if the child dies
    return child, receiver


def _report(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        report = (True, function(*arguments))
    except BaseException:
        report = (False, traceback.format_exc())
    sender.send(report)


def _result(child: Any, receiver: Connection, seconds: float = _SECONDS) -> Any:
    try:
        assert receiver.poll(seconds), f"a child said nothing for {seconds} s"
        succeeded, report = receiver.recv()
    except EOFError:
        child.join()
        raise AssertionError(f"a child died with exit code {child.exitcode}") from None
    finally:
        child.kill()
        child.join()
    assert succeeded, report
    return report
