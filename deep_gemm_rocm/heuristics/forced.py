"""Runs a configuration by name, in place of the one that would be chosen: for tests and for the tuner."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from .. import forking
from ..runtime import session
from .gemm_config import GemmConfig
from .gemm_problem import Choice

if TYPE_CHECKING:
    from .attention_choice import AttentionChoice

_Choice = TypeVar("_Choice")


class ForcedChoiceError(RuntimeError):
    """A call can't run the forced choice, or none did."""


class Forced(session.Part):
    """The choice that every call has to take, if there is one."""

    def __init__(self, choice: Choice | AttentionChoice | None = None) -> None:
        self.choice = choice
        self.was_taken = False


_one_thread = forking.Lock()


@contextlib.contextmanager
def forced(choice: GemmConfig | Choice | AttentionChoice) -> Iterator[None]:
    """Has every call inside of it run ``choice``, whatever the tables and the heuristic say, in all threads.

    Calls inside work in a session of their own: no call from outside is repeated inside, and none from inside
    afterwards. Contexts nest in one thread; the innermost one counts.

    Args:
        choice: a configuration of GEMM, one with a number of parts of K, or one of attention. Its kind must be the
            kind of every problem inside; only ``k_tail`` may be set where K has no tail.

    Raises:
        ForcedChoiceError: another thread forces a choice; a call inside computes something that ``choice`` is not for;
            or no call inside chose a configuration, so that ``choice`` never ran.
    """
    if not _one_thread.acquire(blocking=False):
        raise ForcedChoiceError("another thread forces a choice; only one thread may at a time")
    try:
        own = Forced(Choice(choice) if isinstance(choice, GemmConfig) else choice)
        with session.using(session.current().derived(own)):
            yield
        if not own.was_taken:
            raise ForcedChoiceError(f"no call chose a configuration, so {own.choice} never ran")
    finally:
        _one_thread.release()


def forced_choice(of: type[_Choice], computes: Callable[[_Choice], bool], problem: object) -> _Choice | None:
    """The choice that a call has to take for ``problem``; None if it is free to choose.

    Args:
        of: type of the problem's choices.
        computes: whether a choice of this type is for the problem.

    Raises:
        ForcedChoiceError: the forced choice is not.
    """
    forced = session.current().of(Forced)
    choice = forced.choice
    if choice is None:
        return None
    if not isinstance(choice, of) or not computes(choice):
        raise ForcedChoiceError(f"{choice} is forced, which is not for {problem}")
    forced.was_taken = True
    return choice
