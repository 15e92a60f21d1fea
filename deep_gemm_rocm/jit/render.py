"""Renders a kernel template into HIP C++."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from ..forking import no_fork

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INT64 = range(-(2**63), 2**63)

Value = int | bool | str


def render(folder: Path, template: str, values: Mapping[str, Value]) -> str:
    """Renders the HIP C++ of one kernel.

    Args:
        folder: the folder of the templates, also for ``{% include %}`` and ``{% import %}``.
        template: the template's file name below ``folder``.
        values: the template's values: 64-bit integers, bools (written ``true`` and ``false``) or identifiers. Nothing
            else can enter the source.

    Raises:
        TypeError, ValueError: a value is none of these.
        jinja2.TemplateError: there is no such template, or it uses a name that is not in ``values``.
    """
    checked = {name: _checked(name, value) for name, value in values.items()}
    with no_fork:  # jinja2 has its own locks
        return _environment(folder).get_template(template).render(checked)


def _checked(name: str, value: Value) -> Value:
    if not _IDENTIFIER.fullmatch(name):
        raise ValueError(f"a template value's name must be an identifier, not {name!r}")
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        number = int(value)  # an IntEnum prints as its name
        if number not in _INT64:
            raise ValueError(f"template value {name} must fit 64 bits, not {number}")
        return number
    if isinstance(value, str):
        if not _IDENTIFIER.fullmatch(value):
            raise ValueError(f"template value {name} must be an identifier, not {value!r}")
        return str(value)
    raise TypeError(f"template value {name} must be an int, a bool or an identifier, not a {type(value).__name__}")


@functools.cache
def _environment(folder: Path) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        finalize=_as_cpp,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _as_cpp(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
