"""The simulated MI300X: a shared library that implements the HIP runtime API and executes gfx942 machine code."""

from .library import library_path
from .opcodes import Opcode, opcodes
from .program import SimulatorError, disassemble, disassemble_kernel, launch

__all__ = ["Opcode", "SimulatorError", "disassemble", "disassemble_kernel", "launch", "library_path", "opcodes"]
