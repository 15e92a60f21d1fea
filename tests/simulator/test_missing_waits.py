"""If a compiler's wait is removed from machine code, the sanitizer reports that it is missing."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from helpers.simulated_hip import Compiler

from deep_gemm_rocm import simulator

PROGRAM = Path(__file__).with_name("programs") / "waits.hip"
KERNELS = re.findall(r"^KERNEL (\w+)", PROGRAM.read_text(), re.MULTILINE)

# SOPP instructions: the number in the upper half, the operand in the lower one.
S_NOP, S_BARRIER, S_WAITCNT = 0xBF80, 0xBF8A, 0xBF8C


def kernel_code(code_object: bytes, kernel: str) -> range:
    """The offsets of the kernel's dwords in the code object."""
    elf = ELFFile(io.BytesIO(code_object))
    symbol = elf.get_section_by_name(".dynsym").get_symbol_by_name(kernel)[0]
    text = elf.get_section(symbol["st_shndx"])
    begin = symbol["st_value"] - text["sh_addr"] + text["sh_offset"]
    return range(begin, begin + symbol["st_size"], 4)


def weakened(code_object: bytes, kernel: str) -> Iterator[tuple[str, bytes]]:
    """Versions of the code in which one wait is removed, or one of several wait states, with a description."""
    for at in kernel_code(code_object, kernel):
        (word,) = struct.unpack_from("<I", code_object, at)
        opcode, operand = word >> 16, word & 0xFFFF
        if opcode in (S_WAITCNT, S_BARRIER):
            replaced = S_NOP << 16
        elif opcode == S_NOP and operand > 0:
            replaced = word - 1
        else:
            continue
        yield f"{word:#x} at {at:#x}", code_object[:at] + struct.pack("<I", replaced) + code_object[at + 4 :]


@pytest.fixture(scope="module", params=["-O1", "-O3"])
def code_object(compiler: Compiler, request: pytest.FixtureRequest) -> bytes:
    return compiler.device_code_object(PROGRAM, request.param)


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_wait_is_needed(code_object: bytes, monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    monkeypatch.setenv("DG_SIM_SANITIZE", "2")  # includes hazards that only LLVM waits for

    def reports(code: bytes) -> Iterator[str]:
        for seed in range(4):
            monkeypatch.setenv("DG_SIM_SEED", str(seed))
            try:
                simulator.launch(code, kernel, 1, 256 if kernel == "other_waves" else 64, [np.ones(4096, np.int32), 3])
            except simulator.SimulatorError as error:
                yield str(error)

    assert list(reports(code_object)) == []
    weak = dict(weakened(code_object, kernel))
    assert weak
    missed = [what for what, code in weak.items() if not any(reports(code))]
    assert missed == []
