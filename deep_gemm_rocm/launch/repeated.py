"""Runs the launches that a public function describes, and repeats them cheaply for similar calls.

A call's checks, its choice of kernels and nearly all of the kernels' arguments depend only on its tensors' dtypes,
shapes and strides and on its other arguments. These are the key by which launches are remembered. A call that differs
from an earlier one only in addresses repeats its launches with other addresses. A call of another size also replaces
what depends on the size, if the function says what that is. All other calls run the function itself, which also raises
all errors.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import torch

from .. import forking
from ..checks import is_int, renaming
from ..runtime import session, settings
from . import families, fast_path, planning
from .families import Differing, Family, Found, Size
from .launch import Launch, ready_kernels
from .remembered import Call, Plan

_P = ParamSpec("_P")
_R = TypeVar("_R")

# A function's result and its launches, in their order; None if nothing is to be computed.
Described = tuple[_R, Launch | list[Launch] | None]

# Finds the family of a call under settings, with positional arguments and keywords, from its key and addresses.
_FamilyOf = Callable[[object, tuple[Any, ...], dict[str, Any], tuple[Any, ...], tuple[int, ...]], "Found | None"]

_is_traced = torch.compiler.is_dynamo_compiling

_MOST_BYTES = 16 * 2**20  # of memory for the remembered calls of a session
_MOST_ROWS = 2**16  # of a family
# Estimates.
_BYTES_OF_PART = 24  # of a key, which long lists of numbers have many of


class Calls(session.Part):
    """The remembered calls.

    Their memory is bounded by the CLOCK algorithm: the oldest call is forgotten, unless it was repeated since its last
    turn.

    Attributes:
        known: each ``Call``, by everything that its launches or checks depend on, and each ``Family``, by all of this
            but its size.
        settings: the session's settings, part of every key.
        bytes: an estimate of the memory of ``known``.
    """

    rests_on_choices = True

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], Any] = {}
        self.settings = session.current().of(settings.Settings)
        self.bytes = 0
        self._changing = forking.Lock()

    def add(self, key: tuple[Any, ...], call: Call | Family) -> None:
        """Remembers a call or a family."""
        with self._changing:
            replaced = self.known.pop(key, None)
            if replaced is not None:
                self.bytes -= bytes_of(key, replaced)
            self.bytes += bytes_of(key, call)
            self.known[key] = call
            self._shrink()

    def add_family(self, found: Found, family: Family) -> None:
        """Remembers a family, if it knows all that depends on the size."""
        if family.is_known(found.columns) and family.is_in_place:
            self.add(found.key, family)

    def _shrink(self) -> None:
        while self.bytes > _MOST_BYTES and len(self.known) > 1:
            key = next(iter(self.known))
            call = self.known.pop(key)
            if call.was_repeated:
                call.was_repeated = False
                self.known[key] = call
            else:
                self.bytes -= bytes_of(key, call)


def bytes_of(key: tuple[Any, ...], call: Call | Family) -> int:
    """An estimate of the memory of what is remembered."""
    return _BYTES_OF_PART * len(key) + call.bytes


def launches(function: Callable[_P, Described[_R]]) -> Callable[_P, _R]:
    """Turns a function that describes its launches into a public function, which runs them and returns the result.

    The function must have no other effects, since a repeated call doesn't call it.
    """
    return _launching(function, None)


def launches_of_rows(*rows: str) -> Callable[[Callable[_P, Described[_R]]], Callable[_P, _R]]:
    """``launches`` for a function that takes any number of rows from 2 on if it takes one such number.

    ``Launch.sizes`` raises an error for numbers that the function doesn't take.

    Args:
        rows: the names of all tensors whose shapes depend on the number of rows, which is their first dimension.
    """
    of_rows = {name: {0: Size(0)} for name in rows}
    return lambda function: _launching(
        function, families.FamilyOfSizes(_parameters(function), lambda _: of_rows, [_MOST_ROWS], is_complete=False)
    )


def launches_of_sizes(
    differing: Callable[[Collection[str]], Differing], most: Sequence[int]
) -> Callable[[Callable[_P, Described[_R]]], Callable[_P, _R]]:
    """``launches`` for a function with other sizes, on which only what ``Launch.sizes`` returns depends.

    Args:
        differing: returns the dimensions that are sizes, for calls with tensors of these names: all that have to agree
            with a size, unless ``Launch.sizes`` is None.
        most: the largest value of each size in a family; no check of the function depends on sizes up to it, unless
            ``Launch.sizes`` is None.
    """
    return lambda function: _launching(
        function, families.FamilyOfSizes(_parameters(function), differing, most, is_complete=True)
    )


def launches_of_number(name: str) -> Callable[[Callable[_P, Described[_R]]], Callable[_P, _R]]:
    """``launches`` for a function with an int argument of this name, which only ``Launch.sizes`` depends on."""
    return lambda function: _launching(
        function,
        functools.partial(families.family_of_number, function, _parameters(function).index(name), name),
    )


def _parameters(function: Callable[..., object]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _launching(function: Callable[_P, Described[_R]], family_of: _FamilyOf | None) -> Callable[_P, _R]:
    """The public function. It launches a call in one of four ways, by what is known of it:

    - Nothing: the function runs, and the call is remembered.
    - Its family: that makes it a ``Call``, which is remembered.
    - A ``Call`` without ``fill``: it gets one and is repeated.
    - A ``Call`` with ``fill``: ``recall`` finds and repeats it. If its tensors break a rule (alignment, shared memory),
      the function runs, and raises an error if they must not.
    """
    parameters = _parameters(function)

    @functools.wraps(function)
    def launching(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if _is_traced():
            return function(*args, **kwargs)[0]
        if planning.current() is not None:
            return first_time(args, kwargs)
        calls = session.current().of(Calls)
        asked = function, calls.settings.values, calls.known, args, kwargs
        found, ready = fast_path.recall(*asked)
        if ready is not None:
            call, tensors, launches = ready
            call.was_repeated = True
            return call.plan.run(launches, tensors)
        if found is None:
            return first_time(args, kwargs)
        key, tensors, addresses = found
        known, family = calls.known.get(key), None
        if known is None:
            family = None if family_of is None else family_of(calls.settings.values, args, kwargs, key, addresses)
            like = None if family is None else calls.known.get(family.key)
            if like is None:
                return first_time(args, kwargs, found, family)
            known = like.call(family)
            prepared = known.prepared(key, tensors, addresses)
            if prepared is None:
                return first_time(args, kwargs, found, family)
            calls.add(key, known)
            return known.plan.run(*prepared)
        prepared = None
        if known.fill is None:
            known.was_repeated = True
            prepared = known.prepared(key, tensors, addresses)
        return first_time(args, kwargs) if prepared is None else known.plan.run(*prepared)

    # Remembers the call, too, if it was found, and makes it one of its family.
    def first_time(args: Any, kwargs: Any, found: fast_path.Described = None, family: Found | None = None) -> _R:
        result, to_launch = function(*map(_of_python, args), **{name: _of_python(kwargs[name]) for name in kwargs})
        if to_launch is None:
            return result
        in_order = [to_launch] if isinstance(to_launch, Launch) else to_launch
        ready = ready_kernels(in_order)
        if ready is None:
            return result
        if found is None:
            names, tensors = _named(in_order)
            # The result is left out: it needn't be a launch's tensor, which may be a view of it.
            Plan(in_order, ready[0], names, tensors, None).launch(in_order, ready[1], tensors)
            return result
        key, tensors, addresses = found
        names = fast_path.names_of_tensors(zip(parameters, args, strict=False), kwargs)
        plan = Plan(in_order, ready[0], names, tensors, result)
        launched = plan.launch(in_order, ready[1], tensors)
        calls = session.current().of(Calls)
        fast_path.keep_names(kwargs)
        calls.add(key, plan.call(launched, *plan.made(), first_addresses=addresses))
        if family is not None and family.is_clear:
            calls.add_family(family, Family(plan, in_order, tensors, addresses))
        return result

    launching.__signature__ = _public_signature(function)  # type: ignore[attr-defined]
    return launching


_MOST_DEPTH = 4  # of lists in an argument, more than any function takes


def _of_python(value: Any, depth: int = 0) -> Any:
    """The value with ints of Python in place of NumPy's, which are equal to those in every table of what is remembered,
    but of another type."""
    if type(value) in (tuple, list) and depth < _MOST_DEPTH:
        return type(value)(_of_python(part, depth + 1) for part in value)
    return int(value) if is_int(value) else value


def _named(launches: list[Launch]) -> tuple[list[str], list[torch.Tensor]]:
    """Names and tensors that launches take and don't make."""
    made = {name for launch in launches for name in launch.made}
    named = {name: tensor for launch in launches for name, tensor in launch.tensors.items() if name not in made}
    return list(named), list(named.values())


def describing(function: Callable[_P, _R], names: Mapping[str, str] | None = None) -> Callable[_P, Described[_R]]:
    """What ``launches`` made this public function of, for another one with the same launches.

    Args:
        names: what the other one calls arguments that have another name there; errors have these names.
    """
    if _is_traced():  # torch 2.4 can't trace what a function wraps
        return lambda *args, **kwargs: (function(*args, **kwargs), None)
    described: Callable[_P, Described[_R]] = function.__wrapped__  # type: ignore[attr-defined]
    return renaming(described, names) if names else described


def _public_signature(function: Callable[..., Any]) -> inspect.Signature:
    """The signature for callers: ``Described[X]`` is returned as ``X``."""
    signature = inspect.signature(function)
    described = str(signature.return_annotation)
    return signature.replace(return_annotation=described.removeprefix("Described[").removesuffix("]"))
