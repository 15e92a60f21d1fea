"""Makes ``fork`` safe while other threads use this package.

A forked child has only the forking thread. Locks that other threads held stay locked there, and their unfinished work
stays unfinished. So locks that may be held for long are replaced in the child, and a fork waits for short critical
sections. The simulator's library does the same for itself, with pthread_atfork.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

_T = TypeVar("_T")

# Held during work that a fork must not interrupt, such as loading a library or starting a program (the child would keep
# its pipe open). Such work takes milliseconds at most.
no_fork = threading.RLock()


class Lock:
    """A ``threading.RLock`` that is free in a forked child, unless the forking thread holds it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _made_anew.add(self)

    def acquire(self, blocking: bool = True) -> bool:
        return self._lock.acquire(blocking)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def make_anew(self) -> None:
        if self.acquire(blocking=False):
            self.release()
        else:
            self._lock = threading.RLock()


class cached_property(functools.cached_property[_T]):  # noqa: N801
    """``functools.cached_property``, which before Python 3.12 holds a lock while it computes, for forked children."""

    def __init__(self, function: Callable[[Any], _T]) -> None:
        super().__init__(function)
        _made_anew.add(self)

    def make_anew(self) -> None:
        if hasattr(self, "lock"):
            self.lock = threading.RLock()


_made_anew: weakref.WeakSet[Lock | cached_property[Any]] = weakref.WeakSet()
_begun: list[tuple[int, Callable[[], object]]] = []  # thread, undo


@contextlib.contextmanager
def undone_in_child(undo: Callable[[], object]) -> Iterator[None]:
    """If another thread forks meanwhile, the child calls ``undo``: this thread can't finish its work there."""
    begun = threading.get_ident(), undo
    _begun.append(begun)
    try:
        yield
    finally:
        _begun.remove(begun)


def _in_child() -> None:
    no_fork.release()
    for lock in _made_anew:
        lock.make_anew()
    lost = [(thread, undo) for thread, undo in _begun if thread != threading.get_ident()]
    for begun in reversed(lost):
        _begun.remove(begun)
        begun[1]()


os.register_at_fork(before=no_fork.acquire, after_in_parent=no_fork.release, after_in_child=_in_child)
