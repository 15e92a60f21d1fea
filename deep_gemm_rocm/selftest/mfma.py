"""Compares the matrix cores' results, bit by bit, with stored ones of mmasim, a model validated on an MI300X."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import torch

from .. import jit
from ..runtime import hip

_FILE = Path(__file__).with_name("mfma.npz")
_POISON = 12345.678


def multiply_add(
    rows: int, a_type: str, b_type: str, a: torch.Tensor, b_transposed: torch.Tensor, c: torch.Tensor
) -> torch.Tensor:
    """``a · b + c``, fp32 [rows, rows], with one instruction of ``mfma.h``.

    Args:
        rows: 16 or 32.
        a_type, b_type: the operands' types in C++.
        a, b_transposed: [rows, K], contiguous, of any dtype with elements of that size.
    """
    values: dict[str, int | bool | str] = {"rows": rows, "a": a_type, "b": b_type}
    kernel = jit.get_kernel("mfma_probe.hip.j2", values, (ctypes.c_void_p,) * 5)
    d = torch.full((rows, rows), _POISON, device=c.device)
    with hip.runtime().launching(a=a, b=b_transposed, c=c, d=d) as stream:
        kernel(a.data_ptr(), b_transposed.data_ptr(), c.data_ptr(), d.data_ptr(), stream)
    return d


def vectors() -> dict[str, torch.Tensor]:
    """The bytes of each instruction's operands and result, by names such as ``"16 E4M3 E4M3 a"`` (or b, c, d)."""
    with np.load(_FILE) as stored:
        return {name: torch.from_numpy(stored[name]) for name in stored.files}


def store(made: dict[str, torch.Tensor]) -> None:
    """Replaces the stored vectors."""
    np.savez_compressed(_FILE, allow_pickle=False, **{name: tensor.numpy() for name, tensor in made.items()})


def check(device: str) -> str:
    """Runs every instruction on ``device``.

    Raises:
        AssertionError: a bit differs.
    """
    stored = vectors()
    instructions = sorted({name.rpartition(" ")[0] for name in stored})
    for instruction in instructions:
        rows, a_type, b_type = instruction.split()
        a, b, c, expected = (stored[f"{instruction} {part}"] for part in "abcd")
        c = c.view(torch.float32).view(int(rows), int(rows))
        actual = multiply_add(int(rows), a_type, b_type, a.to(device), b.to(device), c.to(device)).cpu()
        wanted = expected.view(torch.float32).view_as(actual)
        # The manuals don't specify the bits of a NaN result.
        same = (actual.view(torch.int32) == wanted.view(torch.int32)) | (actual.isnan() & wanted.isnan())
        assert same.all(), f"{instruction}: {int((~same).sum())} of {same.numel()} results have other bits"
    return f"{len(instructions)} instructions, bit by bit"
