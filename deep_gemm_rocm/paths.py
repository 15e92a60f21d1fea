"""Where the package keeps the files that are not Python."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def include_dir() -> Path:
    """The folder for a compiler's ``-I``: ``#include <deep_gemm_rocm/...>`` and the templates are found below it.

    A wheel carries it inside the package; a checkout (and so an editable install) keeps it beside the package.
    """
    installed = _PACKAGE / "include"
    return installed if installed.is_dir() else _PACKAGE.parent / "include"
