"""A compiled kernel, loaded into this process."""

from __future__ import annotations

import ctypes
from typing import Any

from .. import forking, hip
from .cache import Artefact
from .errors import LoadError

_ENTRY_POINT = "dg_launch"


class Kernel:
    """Calls ``extern "C" int dg_launch(...)`` of a kernel's library with the arguments given.

    Attributes:
        entry_point: this function, which returns a status for ``hip.Runtime.check``.
        artefact: the library and how it came about.
        ready_seconds: from asking for the kernel to having it loaded.
    """

    __slots__ = ("_check", "artefact", "entry_point", "ready_seconds")

    ready_seconds: float

    def __init__(self, artefact: Artefact, argtypes: tuple[type, ...]) -> None:
        """Loads the library. Its HIP calls bind to ``hip.runtime()``, which is opened before it.

        Raises:
            LoadError: the system refuses to load it.
        """
        self._check = hip.runtime().check
        self.artefact = artefact
        try:
            with forking.no_fork:
                self.entry_point = getattr(ctypes.CDLL(str(artefact.library)), _ENTRY_POINT)
        except (OSError, AttributeError) as error:
            raise LoadError(f"the compiled kernel {artefact.library} can't be loaded: {error}") from error
        self.entry_point.argtypes = argtypes
        self.entry_point.restype = ctypes.c_int

    def __call__(self, *arguments: Any) -> None:
        """Launches the kernel. The arguments are those of its ``dg_launch``, the stream's handle last.

        Raises:
            hip.HipError: the launch failed.
            ctypes.ArgumentError, TypeError: the arguments are not those of ``dg_launch``.
        """
        status = self.entry_point(*arguments)
        if status:
            self._check(status)


class PlannedKernel(Kernel):
    """Does nothing: stands in for a kernel while calls are planned."""

    __slots__ = ()

    def __init__(self) -> None:
        pass

    def __call__(self, *arguments: Any) -> None:
        pass
