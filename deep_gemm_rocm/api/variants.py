"""Public functions that only change some arguments of another one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


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
