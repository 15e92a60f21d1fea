"""Where the simulated MI300X lies in the installed package."""

from __future__ import annotations

from pathlib import Path

_LIBRARY = Path(__file__).resolve().parent / "lib" / "libamdhip64.so"


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
