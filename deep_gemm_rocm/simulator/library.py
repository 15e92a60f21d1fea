"""The simulator's shared library: its path in the installed package, and calls of its text functions."""

from __future__ import annotations

import ctypes
import functools
from ctypes import c_bool, c_char_p, c_size_t
from pathlib import Path
from typing import Any

_LIBRARY = Path(__file__).resolve().parent / "lib" / "libamdhip64.so"
_GIVING_TEXT = (
    "dgSimDisassemble",
    "dgSimKernelArguments",
    "dgSimOpcodes",
    "dgSimTakeCounters",
    "dgSimTakeProfiles",
    "dgSimTakeTrace",
)


def library_path() -> Path:
    """The simulator's ``libamdhip64.so``; its engine libraries lie beside it.

    Raises:
        FileNotFoundError: the simulator was not built; the message says how to build it.
    """
    if not _LIBRARY.is_file():
        raise FileNotFoundError(
            f"the simulated MI300X is not built: {_LIBRARY} is missing. Run `pip install -e .` in the checkout "
            "(or `python setup.py build_ext --inplace` where setuptools and ninja are installed)."
        )
    return _LIBRARY


@functools.cache
def library() -> ctypes.CDLL:
    opened = ctypes.CDLL(str(library_path()))
    opened.dgSimLastMessage.restype = c_char_p
    opened.dgSimLastFailure.restype = c_bool
    for name in _GIVING_TEXT:
        getattr(opened, name).restype = c_size_t
    return opened


def introspect(name: str, *arguments: Any) -> str:
    """The text that one of the library's text functions returns."""
    function = getattr(library(), name)
    size = function(*arguments, None, c_size_t(0))
    buffer = ctypes.create_string_buffer(size + 1)
    function(*arguments, buffer, c_size_t(size + 1))
    return buffer.value.decode()
