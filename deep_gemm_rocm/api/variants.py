"""Public functions that only change some arguments of another one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from ..checks import renaming

_P = ParamSpec("_P")
_R = TypeVar("_R")

_OF_V1 = {"a": "lhs", "b": "rhs", "d": "out", "grouped_layout": "m_indices"}


def takes_arguments_of(function: Callable[_P, Any], **defaults: Any) -> Callable[[Callable[..., _R]], Callable[_P, _R]]:
    """Gives the signature of ``function``, with these other defaults, to a function that passes its arguments on."""
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(default=defaults.get(name, parameter.default))
        for name, parameter in signature.parameters.items()
    ]

    def named(variant: Callable[..., _R]) -> Callable[_P, _R]:
        variant.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return variant

    return named


def with_names_of_v1(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function for callers with the names of DeepGEMM 1: its errors have those names."""
    renamed = renaming(function, _OF_V1)

    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if torch.compiler.is_dynamo_compiling():  # torch 2.4 can't trace what a function wraps
            return function(*args, **kwargs)
        return renamed(*args, **kwargs)

    return called
