"""Finds the HIP runtime of this process."""

from __future__ import annotations

import os
from pathlib import Path

from .. import simulator
from .rocm import ARCH, HipError, NoDeviceError, Runtime
from .simulated import OWN_FUNCTION, SimulatedRuntime

_LIBRARY = "libamdhip64.so"


def runtime() -> Runtime:
    """Chooses the HIP runtime for this process's kernels.

    A real runtime is chosen only if it shows a gfx942 device. If one is already loaded into this process, it is that
    one, since two copies would crash; otherwise the one in ``LD_LIBRARY_PATH``, ``ROCM_PATH`` or ``/opt/rocm``. Without
    a real one, it is the simulated MI300X. ``DG_DEVICE=hip`` and ``DG_DEVICE=sim`` force the choice.

    Raises:
        NoDeviceError: there is no runtime, or none as ``DG_DEVICE`` requires.
    """
    found = _find(os.environ.get("DG_DEVICE") or None)
    found.make_global()
    return found


def _find(wanted: str | None) -> Runtime:
    if wanted not in (None, "hip", "sim"):
        raise NoDeviceError(f"DG_DEVICE must be hip or sim, not {wanted!r}")
    looked_at = []
    if wanted != "sim":
        for path in _mapped() or _installed():
            try:
                return _real(path)
            except _PassedOverError as reason:
                looked_at.append(f"{path}: {reason}")
    found = "; ".join(looked_at) or f"no {_LIBRARY} in this process, LD_LIBRARY_PATH, ROCM_PATH or /opt/rocm"
    if wanted == "hip":
        raise NoDeviceError(f"DG_DEVICE=hip, but there is no HIP runtime with a {ARCH} device ({found})")
    try:
        return SimulatedRuntime(simulator.library_path())
    except FileNotFoundError as error:
        raise NoDeviceError(f"there is no HIP runtime with a {ARCH} device ({found}), and {error}") from error


class _PassedOverError(Exception):
    """The reason why a real runtime isn't chosen."""


def _real(path: Path) -> Runtime:
    try:
        found = Runtime(path)
        archs = [device.arch for device in found.devices()]
    except OSError as error:
        raise _PassedOverError(f"can't be opened ({error})") from error
    except AttributeError as error:
        raise _PassedOverError(f"is too old for {ARCH}, HIP 6 is needed ({error})") from error
    except HipError as error:
        raise _PassedOverError(str(error)) from error
    if hasattr(found.lib, OWN_FUNCTION):
        raise _PassedOverError("is the simulated MI300X")
    if ARCH not in archs:
        raise _PassedOverError(f"shows {', '.join(archs) or 'no device'}, and no {ARCH}")
    return found


def _mapped() -> list[Path]:
    """Copies of the runtime that are already loaded into this process, such as the one in torch's ROCm wheels."""
    fields = (line.split(maxsplit=5) for line in os.fsdecode(Path("/proc/self/maps").read_bytes()).splitlines())
    paths = (Path(field[5]) for field in fields if len(field) == 6)
    return list(dict.fromkeys(path for path in paths if path.name.startswith(_LIBRARY)))


def _installed() -> list[Path]:
    rocm = [Path(root, "lib") for root in (os.environ.get("ROCM_PATH"), "/opt/rocm") if root]
    folders = [*map(Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))), *rocm]
    found = (min(folder.glob(f"{_LIBRARY}*"), default=None) for folder in folders)  # prefers the name without a version
    return list(dict.fromkeys(path.resolve() for path in found if path))
