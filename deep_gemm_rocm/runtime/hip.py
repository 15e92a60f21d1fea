"""The HIP runtime of this process, its events and errors.

The runtime is AMD's, with a gfx942 device, or the simulated MI300X, which implements the same functions. Other packages
needn't know which of the two it is.
"""

from __future__ import annotations

from . import session
from .events import Event
from .rocm import ARCH, Device, EntryPoint, Graph, HipError, Launch, Memory, NoDeviceError, Runtime
from .simulated import SimulatedRuntime

__all__ = [
    "ARCH", "Device", "EntryPoint", "Event", "Graph", "HipError", "Launch", "Memory", "NoDeviceError", "Runtime",
    "SimulatedRuntime", "runtime",
]  # fmt: skip


def runtime() -> Runtime:
    """The runtime of the current session, chosen on the first call: ROCm's if it shows a gfx942, else the simulated.

    ``DG_DEVICE=hip`` and ``DG_DEVICE=sim`` force the choice.

    Raises:
        NoDeviceError: there is no runtime, or none as ``DG_DEVICE`` requires.
    """
    return session.current().runtime
