"""Large memory that costs nothing, for tests of addresses."""

from __future__ import annotations

import mmap

import torch


def reserved(num_bytes: int) -> torch.Tensor:
    """uint8 memory of which only what is touched takes space."""
    no_reserve = 0x4000  # Linux's MAP_NORESERVE, which mmap names from Python 3.13 on
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    return torch.frombuffer(mmap.mmap(-1, num_bytes, flags=flags), dtype=torch.uint8)
