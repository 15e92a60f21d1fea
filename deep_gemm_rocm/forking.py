"""Lets a forked child go on, whatever other threads of its parent were doing.

A child has none of these threads: what they had locked stays locked there, and what they had half done stays so. So a
lock that may be held for long is made anew in the child, and a fork waits for what is soon over. The simulator's
library does the same for itself, with pthread_atfork.
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

# Held while a thread does what must not be seen half done: loading a library, say, or starting a program, whose pipe
# a child would keep open. It takes milliseconds at most.
no_fork = threading.RLock()


class Lock:
    """As ``threading.RLock``, but a forked child finds it free, unless the thread that forked holds it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _made_anew.add(self)

    def acquire(self, blocking: bool = True) -> bool:
        return self._lock.acquire(blocking)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def make_anew(self) -> None:
        if self.acquire(blocking=False):
            self.release()
        else:
            self._lock = threading.RLock()


class cached_property(functools.cached_property[_T]):  # noqa: N801
    """functools' one, which holds a lock while it computes, before Python 3.12."""

    def __init__(self, function: Callable[[Any], _T]) -> None:
        super().__init__(function)
        _made_anew.add(self)

    def make_anew(self) -> None:
        if hasattr(self, "lock"):
            self.lock = threading.RLock()


_made_anew: weakref.WeakSet[Lock | cached_property[Any]] = weakref.WeakSet()
_begun: list[tuple[int, Callable[[], object]]] = []  # by which thread


@contextlib.contextmanager
def undone_in_child(undo: Callable[[], object]) -> Iterator[None]:
    """A child that another thread forks meanwhile calls ``undo``, for this thread won't end there what it has begun."""
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
