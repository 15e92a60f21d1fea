"""Large virtual memory for tests of addresses."""

from __future__ import annotations

import mmap

import torch


def reserved(num_bytes: int) -> torch.Tensor:
    """uint8 memory whose pages take space only when they are accessed."""
    no_reserve = 0x4000  # Linux's MAP_NORESERVE; Python's mmap has it since 3.13
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    return torch.frombuffer(mmap.mmap(-1, num_bytes, flags=flags), dtype=torch.uint8)
