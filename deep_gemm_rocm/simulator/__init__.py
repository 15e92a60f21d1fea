"""The simulated MI300X: a shared library that implements the HIP runtime API and executes gfx942 machine code."""

from .counters import Counted, InstructionCounters, KernelCounters, Occupancy, Traffic, counters
from .debugger import Breakpoint, Debugger, Stop
from .kernel_names import kernel_names, source_name
from .library import library_path
from .line_profile import LineProfile, profile_lines
from .opcodes import Opcode, opcodes
from .profile import InstructionProfile, KernelProfile, Profile, Timeline, profile
from .program import SimulatorError, disassemble, disassemble_kernel, launch
from .source_lines import Place
from .trace import Traced, TracedInstruction, WaveTrace, trace
from .variables import Variable

__all__ = [
    "Breakpoint",
    "Counted",
    "Debugger",
    "InstructionCounters",
    "InstructionProfile",
    "KernelCounters",
    "KernelProfile",
    "LineProfile",
    "Occupancy",
    "Opcode",
    "Place",
    "Profile",
    "SimulatorError",
    "Stop",
    "Timeline",
    "Traced",
    "TracedInstruction",
    "Traffic",
    "Variable",
    "WaveTrace",
    "counters",
    "disassemble",
    "disassemble_kernel",
    "kernel_names",
    "launch",
    "library_path",
    "opcodes",
    "profile",
    "profile_lines",
    "source_name",
    "trace",
]
