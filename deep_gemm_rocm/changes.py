"""Counts what changes which kernel a call runs: whoever remembers calls must forget them then."""

from __future__ import annotations

count = 0


def note() -> None:
    """Something has changed."""
    global count
    count += 1
