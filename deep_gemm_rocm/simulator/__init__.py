"""The simulated MI300X: a shared library that implements the HIP runtime API and executes gfx942 machine code."""

from .library import library_path
from .opcodes import Opcode, opcodes
from .profile import InstructionProfile, KernelProfile, Profile, profile
from .program import SimulatorError, disassemble, disassemble_kernel, launch

__all__ = [
    "InstructionProfile",
    "KernelProfile",
    "Opcode",
    "Profile",
    "SimulatorError",
    "disassemble",
    "disassemble_kernel",
    "launch",
    "library_path",
    "opcodes",
    "profile",
]
