"""Runs a test's function in forked children: their libraries, environment and death stay their own."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from typing import Any

_fork = multiprocessing.get_context("fork")


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """What ``function`` returns in a child; its traceback fails the test here."""
    (result,) = in_children(1, function, *arguments)
    return result


def in_children(count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What ``function`` returns in each of ``count`` children that run at the same time."""
    results = _fork.SimpleQueue()
    children = [_fork.Process(target=_report, args=(results, function, arguments)) for _ in range(count)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * count
    reports = [results.get() for _ in children]
    for succeeded, report in reports:
        assert succeeded, report
    return [report for _, report in reports]


def start_child(function: Callable[..., Any], *arguments: Any) -> multiprocessing.process.BaseProcess:
    child = _fork.Process(target=function, args=arguments)
    child.start()
    return child


def _report(results: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        report = (True, function(*arguments))
    except BaseException:
        report = (False, traceback.format_exc())
    results.put(report)
