"""Layouts of rows in groups, as the grouped functions take them."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def grouped_layout(grouping: str, starts: Sequence[int], sizes: Sequence[int], rows: int) -> torch.Tensor:
    """Each group's end for ``psum``; for ``contiguous`` the group of each of ``rows``, -1 for padding."""
    ends = [start + size for start, size in zip(starts, sizes, strict=True)]
    if grouping == "psum":
        return torch.tensor(ends, dtype=torch.int32)
    layout = torch.full((rows,), -1, dtype=torch.int32)
    for group, (start, end) in enumerate(zip(starts, ends, strict=True)):
        layout[start:end] = group
    return layout
