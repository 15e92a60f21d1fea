"""Tools for kernels of one's own on the simulated MI300X: compile HIP source, run Triton kernels."""

from .compile import SourceError, compile
from .triton import run_triton

__all__ = ["SourceError", "compile", "run_triton"]
