"""Launches of Triton's kernels, on hardware or simulated."""

from __future__ import annotations

from typing import Any

import torch

from ..runtime import hip
from ..workbench import run_triton


def launch(kernel: Any, grid: tuple[int, ...], *arguments: torch.Tensor | float, **constants: Any) -> None:
    """``kernel[grid](*arguments, **constants)``: with Triton's own launcher on hardware, otherwise on the simulated
    MI300X."""
    if hip.runtime().is_simulated:
        run_triton(kernel, grid, *arguments, **constants)
    else:
        kernel[grid](*arguments, **constants)
