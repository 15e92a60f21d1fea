"""The folder of the package's headers and templates."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def include_dir() -> Path:
    """The folder for a compiler's ``-I``, with ``deep_gemm_rocm/...``: headers and templates.

    It is inside the package in a wheel, and beside the package in a checkout or an editable install.
    """
    installed = _PACKAGE / "include"
    return installed if installed.is_dir() else _PACKAGE.parent / "include"
