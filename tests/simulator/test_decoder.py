"""The simulator's instruction decoder against LLVM's."""

from __future__ import annotations

import ctypes
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers.default_run import some
from helpers.simulated_hip import Compiler, Hip

from deep_gemm_rocm.simulator import generate_opcodes

TABLE = generate_opcodes.OUTPUT.read_text()
NOP = 0xBF800000

# For each encoding family, the first word for an opcode, and the bits of operands and modifiers.
ENCODINGS = {
    "SOP2": (lambda op: 0x80000000 | op << 23, 0x7FFFFF),
    "SOPK": (lambda op: 0xB0000000 | op << 23, 0x7FFFFF),
    "SOP1": (lambda op: 0xBE800000 | op << 8, 0x7F00FF),
    "SOPC": (lambda op: 0xBF000000 | op << 16, 0xFFFF),
    "SMEM": (lambda op: 0xC0000000 | op << 18, 0x3FFFF),
    "VOP1": (lambda op: 0x7E000000 | op << 9, 0x1FE01FF),
    "VOP2": (lambda op: op << 25, 0x1FFFFFF),
    "VOPC": (lambda op: 0x7C000000 | op << 17, 0x1FFFF),
    "VOP3": (lambda op: 0xD0000000 | op << 16, 0xFFFF),
    "VOP3P": (lambda op: 0xD3800000 | op << 16, 0xFFFF),
    "DS": (lambda op: 0xD8000000 | op << 17, 0x200FFFF),
    "FLAT": (lambda op: 0xDC000000 | op << 18, 0x2032FFF),
    "GLOBAL": (lambda op: 0xDC008000 | op << 18, 0x2033FFF),
    "SCRATCH": (lambda op: 0xDC004000 | op << 18, 0x2033FFF),
    "MUBUF": (lambda op: 0xE0000000 | op << 18, 0x3FFFF),
    "MTBUF": (lambda op: 0xE8000000 | op << 15, 0x3F87FFF),
}
ONE_WORD = {"SOP2", "SOPK", "SOP1", "SOPC", "VOP1", "VOP2", "VOPC"}


def find_llvm_tool(name: str) -> str:
    path = next(filter(None, map(shutil.which, (f"{name}-19", name))), None)
    if path is None:
        pytest.skip(f"{name} is not installed")
    if "LLVM version 19" not in subprocess.run([path, "--version"], capture_output=True, text=True).stdout:
        pytest.skip(f"{path} is not from LLVM 19, which the opcode table was made with")
    return path


def disassemble(hip: Hip, code: bytes) -> list[str]:
    """Disassembles code to a line `mnemonic operands` for each instruction."""
    size = hip.lib.dgSimDisassemble(code, ctypes.c_size_t(len(code)), None, ctypes.c_size_t(0))
    text = ctypes.create_string_buffer(size + 1)
    hip.lib.dgSimDisassemble(code, ctypes.c_size_t(len(code)), text, ctypes.c_size_t(size + 1))
    return [line.split(" ", 1)[1] for line in text.value.decode().splitlines()]


# Instructions whose text must be exactly LLVM's: memory with offsets and cache policy, and program control.
WHOLE = re.compile(
    r"(global|flat|scratch|t?buffer|ds)_|s_(scratch_|buffer_)?(load|store|atomic)_"
    r"|s_(waitcnt|nop|branch|cbranch_(scc|vcc|exec)|endpgm)"
)
NUMBERS = re.compile(r"swizzle\(")  # LLVM names the pattern, the simulator prints a number


def signature(text: str) -> tuple[str, list[str]]:
    """The text that both disassemblers must agree on: mnemonic without encoding, and registers in order; or all."""
    if WHOLE.match(text) and not NUMBERS.search(text):
        return text.strip(), []
    registers = re.findall(r"\b[vsa](?:\d+|\[\d+:\d+\])(?!\w)", text)
    return re.sub(r"_(e32|e64|dpp|sdwa)$", "", text.split()[0]), registers


def random_words(rng: random.Random, family: str, op: int) -> tuple[int, ...]:
    first, free = ENCODINGS[family]
    words = [first(op) | rng.getrandbits(32) & free]
    if family in ONE_WORD:
        if family.startswith("VOP") and rng.random() < 0.5:
            words[0] |= 0x100  # src0 is a VGPR
        return tuple(words)
    second = rng.getrandbits(32)
    if family.startswith("VOP3") and rng.random() < 0.7:
        second |= 0x100 | 0x100 << 9 | 0x100 << 18
        if rng.random() < 0.7:  # no modifiers
            words[0] &= ~0xFF00
            second &= 0x07FFFFFF
        if rng.random() < 0.5:  # no third source
            second &= 0x3FFFF
    if family == "FLAT":
        second &= ~(0x7F << 16)
    elif family in ("GLOBAL", "SCRATCH") and rng.random() < 0.5:
        second |= 0x7F << 16  # no SGPR address
    return (*words, second)


@pytest.mark.parametrize("family", some(ENCODINGS, 8))
def test_random_operands(hip: Hip, family: str) -> None:
    llvm_mc = find_llvm_tool("llvm-mc")
    rng = random.Random(family)
    opcodes = [int(number, 16) for number in re.findall(rf"OPCODE\({family}, (0x[0-9a-f]+),", TABLE)]
    compared = 0
    for op in rng.sample(opcodes, min(len(opcodes), 40)):
        candidates = [generate_opcodes.Candidate(random_words(rng, family, op), {}) for _ in range(8)]
        for candidate, expected in zip(candidates, generate_opcodes.disassemble(llvm_mc, candidates), strict=True):
            if expected is None or "Invalid register" in expected or "null" in expected:
                continue
            code = b"".join(word.to_bytes(4, "little") for word in (*candidate.words, NOP, NOP))
            assert signature(disassemble(hip, code)[0]) == signature(expected), [hex(word) for word in candidate.words]
            compared += 1
        if compared >= 120:  # LLVM refuses most of other families' random operands
            break
    assert compared >= 10


PROGRAM = """
__device__ __attribute__((noinline)) int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
extern "C" __global__ void program(float* x, int* y, double* z, int n) {
  int i = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
  if (i >= n) return;
  x[i] = __builtin_sqrtf(x[i]) / (1.0f + x[i]);
  y[i] = fibonacci(y[i] % 10) + y[i] / 7;
  z[i] = z[i] / 3.0 + __builtin_floor(z[i]);
  __atomic_fetch_add(y, 1, __ATOMIC_RELAXED);
}
"""


@pytest.mark.parametrize("optimization", ["-O0", "-O3"])
def test_compiled_code(hip: Hip, compiler: Compiler, tmp_path: Path, optimization: str) -> None:
    objdump, objcopy = find_llvm_tool("llvm-objdump"), find_llvm_tool("llvm-objcopy")
    path, raw = tmp_path / "program.co", tmp_path / "program.bin"
    path.write_bytes(compiler.code_object(PROGRAM, optimization))
    subprocess.run([objcopy, "-O", "binary", "--only-section=.text", path, raw], check=True)
    command = [objdump, "-d", "--mcpu=gfx942", "--no-show-raw-insn", path]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    expected = [line.split("//")[0].strip() for line in listing.splitlines() if line.startswith("\t")]
    assert len(expected) > 100
    assert list(map(signature, disassemble(hip, raw.read_bytes()))) == list(map(signature, expected))
