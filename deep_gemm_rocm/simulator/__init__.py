"""The simulated MI300X: a shared library that implements the HIP runtime API and executes gfx942 machine code."""

from .counters import Counted, KernelCounters, Occupancy, Traffic, counters
from .kernel_names import kernel_names
from .library import library_path
from .opcodes import Opcode, opcodes
from .profile import InstructionProfile, KernelProfile, Profile, Timeline, profile
from .program import SimulatorError, disassemble, disassemble_kernel, launch
from .trace import Traced, TracedInstruction, WaveTrace, trace

__all__ = [
    "Counted",
    "InstructionProfile",
    "KernelCounters",
    "KernelProfile",
    "Occupancy",
    "Opcode",
    "Profile",
    "SimulatorError",
    "Timeline",
    "Traced",
    "TracedInstruction",
    "Traffic",
    "WaveTrace",
    "counters",
    "disassemble",
    "disassemble_kernel",
    "kernel_names",
    "launch",
    "library_path",
    "opcodes",
    "profile",
    "trace",
]
