"""Numbers in a device's memory that kernels only read, and that calls with the same numbers share.

Copying them in each call would take several times as long as the rest of a repeated call, and wait for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .. import forking
from ..checks import is_traced
from ..runtime import arrays, session
from . import fast_path, planning

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

    The allocator may reuse forgotten memory in the order of its stream, so each stream has constants of its own. A
    replayed graph would read forgotten memory, so captured launches share none.

    Args:
        check: returns the numbers, checked. It is called if they aren't remembered.
    """

    def copied() -> torch.Tensor:
        return arrays.beside(tensor, torch.tensor(check(), dtype=torch.int32, device="cpu"))

    if is_traced() or planning.current() is not None or type(numbers) not in (list, tuple):
        return copied()
    runtime, device = arrays.runtime_of(tensor), tensor.get_device()
    if runtime.is_capturing(device):
        return copied()
    key = (runtime, device, runtime.current_stream(tensor), *map(type, numbers), *numbers)
    constants = session.current().of(Constants)
    try:
        known = constants.known.get(key)
    except TypeError:  # a number has no hash
        return copied()
    if known is None:
        known = copied()
        described = fast_path.described_by_python(None, None, (known,), {})
        if described is not None and 0 not in described[2]:  # unlike tensors inside torch's transforms and fake modes
            constants.add(key, known)
    return known
