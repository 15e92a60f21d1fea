"""Register contents as numbers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch

_FLOATS = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fnuz,
    "bf8": torch.float8_e5m2fnuz,
    "ocp_fp8": torch.float8_e4m3fn,
    "ocp_bf8": torch.float8_e5m2,
}
_NUMBERS: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    **{f"{sign}{bits}": np.dtype(f"{sign}{bits // 8}") for sign in "iu" for bits in (8, 16, 32, 64)},
}
TYPES = (*_NUMBERS, *_FLOATS)


def _parsed(type: str) -> tuple[str, int]:
    """The element and how many of them a register has, as in ``f16x2``."""
    match = re.fullmatch(r"(\w+?)(?:x([24]))?", type)
    if match is None or match[1] not in TYPES:
        raise ValueError(f"expected a type, such as f32, i32, u32, f16x2, bf16x2 or fp8x4, got {type}")
    return match[1], int(match[2] or 1)


def bytes_of(type: str) -> int:
    """Bytes of an element."""
    name, _ = _parsed(type)
    return _FLOATS[name].itemsize if name in _FLOATS else _NUMBERS[name].itemsize


def dwords_of(type: str) -> int:
    """How many registers of 32 bits hold a value; elements smaller than that come packed."""
    return max(1, bytes_of(type) // 4)


def as_type(values: np.ndarray, type: str) -> np.ndarray:
    """The bytes of each row as numbers: all of them where they are packed (``f16x2``), else the first one, or as many
    as a row of bytes holds. Small floats become f32."""
    name, _ = _parsed(type)
    raw = np.ascontiguousarray(values)
    if name in _FLOATS:
        result = torch.from_numpy(raw.view(np.uint8)).view(_FLOATS[name]).float().numpy()
    else:
        result = raw.view(_NUMBERS[name])
    return result if raw.dtype == np.uint8 or "x" in type else result[:, 0]
