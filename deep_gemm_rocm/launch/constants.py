"""Numbers in a device's memory that kernels only read, and that calls with the same numbers share.

Copying them in each call would take several times as long as the rest of a repeated call, and wait for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .. import forking
from ..runtime import arrays, session
from . import planning

_MOST_CONSTANTS = 256  # that are remembered


class Constants(session.Part):
    """Attributes:
    known: each int32 tensor by runtime, device, stream and numbers, oldest first.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[object, ...], torch.Tensor] = {}
        self._changing = forking.Lock()

    def add(self, key: tuple[object, ...], constant: torch.Tensor) -> None:
        with self._changing:
            self.known[key] = constant
            if len(self.known) > _MOST_CONSTANTS:
                del self.known[next(iter(self.known))]


def int32(numbers: Sequence[int], tensor: torch.Tensor, check: Callable[[], list[int]]) -> torch.Tensor:
    """The numbers on the device of ``tensor``, for launches on its current stream.

    What is forgotten may be overwritten, though only behind these launches; so each stream has its own. A captured
    launch would read what is forgotten in each replay. Its numbers are copied anew, which a capture doesn't allow.

    Args:
        check: returns the numbers, checked. It is called if they aren't remembered.
    """

    def copied() -> torch.Tensor:
        return arrays.beside(tensor, torch.tensor(check(), dtype=torch.int32))

    if torch.compiler.is_compiling() or planning.current() is not None or type(numbers) not in (list, tuple):
        return copied()
    runtime, device = arrays.runtime_of(tensor), tensor.get_device()
    if runtime.is_capturing(device):
        return copied()
    key = (runtime, device, runtime.current_stream(tensor), *numbers)
    constants = session.current().of(Constants)
    try:
        known = constants.known.get(key)
    except TypeError:  # a number has no hash
        return copied()
    if known is None:
        known = copied()
        constants.add(key, known)
    return known
