"""The library's state in a process: settings, kernels and remembered calls, in one object."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

from .. import forking
from . import find
from .rocm import Runtime

_Part = TypeVar("_Part", bound="Part")


class Part:
    """The state of one layer: settings, kernels, remembered calls and so on. A session makes its parts on demand.

    Attributes:
        rests_on_choices: whether the part becomes invalid when kernels are chosen in another way.
    """

    rests_on_choices: ClassVar[bool] = False


class Session:
    """The HIP runtime, and one of each kind of ``Part``.

    A process has one session. Tests, and code that replaces the choice of kernels, make another one current for a
    while. Two sessions see nothing of each other's state, except for parts that they share.
    """

    def __init__(self, runtime: Runtime | None = None) -> None:
        """
        Args:
            runtime: if None, ``find.runtime`` chooses it when it is first needed.
        """
        self._runtime = runtime
        self._parent: Session | None = None
        self._parts: dict[type[Part], Part] = {}
        self._making = forking.Lock()

    def derived(self, *parts: Part) -> Session:
        """A session with its own ``parts`` and new parts that rest on choices; all others are shared with this one."""
        made = Session()
        made._parent = self
        made._parts = {type(part): part for part in parts}
        return made

    @property
    def runtime(self) -> Runtime:
        """
        Raises:
            NoDeviceError: there is no runtime, or none as ``DG_DEVICE`` requires.
        """
        if self._runtime is None:
            with self._making:
                if self._runtime is None:
                    self._runtime = find.runtime() if self._parent is None else self._parent.runtime
        return self._runtime

    def of(self, kind: type[_Part]) -> _Part:
        """The session's part of this class."""
        part: Any = self._parts.get(kind)
        if part is None:
            with self._making:
                part = self._parts.get(kind) or self._made(kind)
                self._parts[kind] = part
        return part

    def _made(self, kind: type[_Part]) -> _Part:
        return kind() if self._parent is None or kind.rests_on_choices else self._parent.of(kind)

    def forget_choices(self) -> None:
        """Replaces all parts that rest on choices by new ones."""
        for kind in list(self._parts):
            if kind.rests_on_choices:
                del self._parts[kind]


_current = Session()


def current() -> Session:
    """The current session of all threads."""
    return _current


@contextlib.contextmanager
def using(session: Session) -> Iterator[Session]:
    """Inside, a session is the current one of all threads; contexts nest."""
    global _current
    before = _current

    def restore() -> None:
        global _current
        _current = before

    with forking.undone_in_child(restore):
        _current = session
        try:
            yield session
        finally:
            restore()
