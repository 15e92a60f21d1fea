"""A compiled kernel, loaded into this process."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from .. import forking
from ..runtime import hip
from . import folders
from .cache import Artefact
from .errors import LoadError

_ENTRY_POINT = "dg_launch"


def _advice(library: Path) -> str:
    if library.exists() and folders.is_noexec(library):
        return ". Its file system is mounted noexec: set DG_JIT_CACHE_DIR to a folder of another one"
    return ""


class Kernel:
    """A loaded kernel. Calling it calls ``extern "C" int dg_launch(...)`` in its library.

    Attributes:
        entry_point: ``dg_launch``, which returns a status for ``hip.Runtime.check``.
        artefact: the library, and whether it was compiled now.
        ready_seconds: the time from the request to the loaded kernel.
    """

    __slots__ = ("_check", "artefact", "entry_point", "ready_seconds")

    ready_seconds: float

    def __init__(self, artefact: Artefact, argtypes: tuple[type, ...]) -> None:
        """Loads the library. Its HIP calls bind to ``hip.runtime()``, which is opened first.

        Raises:
            LoadError: the system refuses to load it.
        """
        self._check = hip.runtime().check
        self.artefact = artefact
        try:
            with forking.no_fork:
                self.entry_point = getattr(ctypes.CDLL(str(artefact.library)), _ENTRY_POINT)
        except (OSError, AttributeError) as error:
            raise LoadError(
                f"the compiled kernel {artefact.library} can't be loaded: {error}{_advice(artefact.library)}"
            ) from error
        self.entry_point.argtypes = argtypes
        self.entry_point.restype = ctypes.c_int

    def __call__(self, *arguments: Any) -> None:
        """Launches the kernel with the arguments of its ``dg_launch``, the stream's handle last.

        Raises:
            hip.HipError: the launch failed.
            ctypes.ArgumentError, TypeError: the arguments are not those of ``dg_launch``.
        """
        status = self.entry_point(*arguments)
        if status:
            self._check(status)
