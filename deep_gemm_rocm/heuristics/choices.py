"""The session's remembered choices, the tables that they come from, and replacements of tables."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

from .. import forking
from ..runtime import session
from .tables import Table

_P = ParamSpec("_P")
_R = TypeVar("_R")
_MOST_CHOICES = 4096  # that are remembered, mostly of less than 1 KB each; choices for all M may have 12

_begins: ContextVar[set[int] | None] = ContextVar("begins", default=None)


class Finds(Protocol):
    """A table, or something that takes its place."""

    def find(self, problem: Any) -> Any: ...


class Replacement(session.Part):
    """Something that is asked instead of any table, if there is such."""

    def __init__(self, table: Finds | None = None) -> None:
        self.table = table


class Choices(session.Part):
    """The tables that were read, and the choices that were made.

    Attributes:
        made: results of ``remembered`` functions, by function and arguments, oldest first.
    """

    rests_on_choices = True

    def __init__(self) -> None:
        self.made: dict[tuple[Any, ...], Any] = {}
        self._tables: dict[tuple[type, str], Finds] = {}
        self._changing = forking.Lock()

    def remember(self, key: tuple[Any, ...], choice: Any) -> None:
        with self._changing:
            self.made[key] = choice
            if len(self.made) > _MOST_CHOICES:
                del self.made[next(iter(self.made))]

    def table(self, kind: type[Table[Any]], variable: str, shipped: Path) -> Finds:
        """The table in the file that an environment variable names, or in ``shipped``, unless something else is asked.

        Raises:
            TableError, OSError: the file can't be used.
        """
        replacement = session.current().of(Replacement).table
        if replacement is not None:
            return replacement
        path = os.environ.get(variable) or str(shipped)
        if (kind, path) not in self._tables:
            try:
                found: Any = kind.read(Path(path))
            except OSError as error:
                raise OSError(error.errno, f"{variable} can't be read: {error.strerror}", path) from error
            self._tables[kind, path] = found
        return self._tables[kind, path]


def remembered(choose: Callable[_P, _R]) -> Callable[_P, _R]:
    """Calls ``choose`` once for the same arguments in a session."""

    @functools.wraps(choose)
    def chosen(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        choices = session.current().of(Choices)
        key = (choose, args, *kwargs.items())
        choice = choices.made.get(key)
        if choice is None:
            choice = choose(*args, **kwargs)
            choices.remember(key, choice)
        return choice

    return chosen


@contextlib.contextmanager
def replaced(by: Finds) -> Iterator[None]:
    """Lets functions that choose configurations ask something else, in all threads; for tuning."""
    with session.using(session.current().derived(Replacement(by))):
        yield


def is_replaced() -> bool:
    """Whether something else is asked instead of any table."""
    return session.current().of(Replacement).table is not None


def forget() -> None:
    """Makes functions that choose configurations ask the tables again, and read which tables the environment names."""
    session.current().forget_choices()


@contextlib.contextmanager
def collecting_begins() -> Iterator[set[int]]:
    """Collects each M from which on another choice may be made, as far as this thread makes choices inside.

    Choices for a collected M may add others.
    """
    collected: set[int] = set()
    token = _begins.set(collected)
    try:
        yield collected
    finally:
        _begins.reset(token)


def add_begins(begins: Iterable[int]) -> None:
    """Adds to what ``collecting_begins`` collects, if it does."""
    collected = _begins.get()
    if collected is not None:
        collected.update(begins)
