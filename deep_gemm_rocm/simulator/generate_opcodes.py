"""Generates csrc/engine/isa/opcodes.inc, the table of every gfx942 opcode, by asking LLVM.

LLVM's disassembler is the one authority here: each encoding family is enumerated over its whole opcode field, and what
`llvm-mc --disassemble --mcpu=gfx942` accepts goes into the table with its mnemonic and the width of every operand. The
columns that follow, of which LLVM prints nothing, are in opcode_effects.py. Run it after a change of either:

    python -m deep_gemm_rocm.simulator.generate_opcodes --llvm-mc llvm-mc-19
"""

import argparse
import itertools
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .opcode_effects import Matrix, effects_of

MACROS = ("MNEMONIC", "OPCODE", "MATRIX")
OUTPUT = Path(__file__).parent / "csrc" / "engine" / "isa" / "opcodes.inc"

# Each operand field of an encoding gets a register number of its own, so that the disassembled text tells which field
# an operand came from and how many dwords it spans.
DST, SRC0, SRC1, SRC2, SDST = 64, 8, 16, 32, 48
SDST_SGPR, VGPR = 4, 256


@dataclass(frozen=True)
class Candidate:
    """One guess of an instruction: its words, and the register number that stands for each operand field."""

    words: tuple[int, ...]
    fields: dict[str, int]


@dataclass(frozen=True)
class Opcode:
    family: str
    number: int
    mnemonic: str
    widths: dict[str, int]
    text: str  # an instruction, as LLVM prints it


def scalar_candidates(family: str, op: int) -> Iterator[Candidate]:
    words = {
        "SOP2": 0x80000000 | op << 23 | DST << 16 | SRC1 << 8 | SRC0,
        "SOPK": 0xB0000000 | op << 23 | DST << 16 | 1,
        "SOP1": 0xBE800000 | DST << 16 | op << 8 | SRC0,
        "SOPC": 0xBF000000 | op << 16 | SRC1 << 8 | SRC0,
        "SOPP": 0xBF800000 | op << 16,
    }
    fields = {"dst": DST, "src0": SRC0, "src1": SRC1}
    yield Candidate((words[family],), fields)
    if family == "SOP1":  # s_getpc_b64 has no source, s_setpc_b64 no destination
        yield Candidate((words[family] & ~0xFF,), fields)
        yield Candidate((words[family] & ~0x7F0000,), fields)
    if family == "SOPK":
        yield Candidate((words[family], 0x12345678), fields)


def vector_candidates(family: str, op: int) -> Iterator[Candidate]:
    fields = {"dst": DST, "src0": SRC0, "src1": SRC1}
    for src0 in (VGPR + SRC0, SRC0):
        match family:
            case "VOP1":
                word = 0x7E000000 | DST << 17 | op << 9 | src0
            case "VOP2":
                word = op << 25 | DST << 17 | SRC1 << 9 | src0
            case "VOPC":
                word = 0x7C000000 | op << 17 | SRC1 << 9 | src0
        yield Candidate((word,), fields)
        yield Candidate((word, 0x12345678), fields)  # madmk and madak carry a literal
    if family == "VOP1":
        yield Candidate((0x7E000000 | op << 9,), fields)  # v_nop has no operands


def vop3_candidates(family: str, op: int) -> Iterator[Candidate]:
    fields = {"dst": DST, "src0": SRC0, "src1": SRC1, "src2": SRC2, "sdst": SDST}
    first = (0xD0000000 | op << 16) if family == "VOP3" else (0xD3800000 | op << 16)
    for src0, src1, src2 in (
        (VGPR + SRC0, VGPR + SRC1, VGPR + SRC2),
        (VGPR + SRC0, SRC1, VGPR + SRC2),
        (SRC0, SRC1, VGPR + SRC2),
        (VGPR + SRC0, VGPR + SRC1, SRC2),
        (VGPR + SRC0, VGPR + SRC1, 0),
        (VGPR + SRC0, 0, 0),
        (VGPR + SRC0, SRC1, 0),
        (SRC0, SRC1, 0),
    ):
        # Bits 8..14 hold sdst in the carry and div_scale forms, modifiers in the others.
        for dst, sdst in ((DST, SDST), (DST, 0), (SDST_SGPR, 0)):
            second = src0 | src1 << 9 | src2 << 18
            yield Candidate((first | sdst << 8 | dst, second), {**fields, "dst": dst})


def memory_candidates(family: str, op: int) -> Iterator[Candidate]:
    match family:
        case "SMEM":
            fields = {"dst": DST, "src0": SRC0}
            for dst, base, offset in ((DST, SRC0 >> 1, 0x10), (DST, 0, 0), (0, 0, 0)):
                yield Candidate((0xC0020000 * (offset > 0) | 0xC0000000 | op << 18 | dst << 6 | base, offset), fields)
        case "DS":
            fields = {"dst": DST, "src0": SRC0, "src1": SRC1, "src2": SRC2}
            for gds, (dst, src0, src1, src2) in itertools.product(
                (0, 1), itertools.product((DST, 0), (SRC0, 0), (SRC1, 0), (SRC2, 0))
            ):
                first = 0xD8000000 | op << 17 | gds << 16
                yield Candidate((first, src0 | src1 << 8 | src2 << 16 | dst << 24), fields)
        case "FLAT" | "GLOBAL" | "SCRATCH":
            fields = {"dst": DST, "src0": SRC0, "src1": SRC1}
            segment, saddr = {"FLAT": (0, 0), "SCRATCH": (1, 0x7F), "GLOBAL": (2, 0x7F)}[family]
            for sc0, dst, src0, src1 in itertools.product((0, 1), (DST, 0), (SRC0, 0), (SRC1, 0)):
                first = 0xDC000000 | op << 18 | segment << 14 | sc0 << 16
                yield Candidate((first, src0 | src1 << 8 | saddr << 16 | dst << 24), fields)
        case "MUBUF" | "MTBUF":
            fields = {"dst": DST, "src0": SRC0}
            first = (0xE0000000 | op << 18) if family == "MUBUF" else (0xE8000000 | op << 15 | 1 << 19)
            yield Candidate((first | 0x1000, SRC0 | DST << 8 | 4 << 16 | 0x80 << 24), fields)
            yield Candidate((first, 0), fields)  # cache control has no operands


FAMILIES = {
    "SOP2": (scalar_candidates, 1 << 6),
    "SOPK": (scalar_candidates, 29),
    "SOP1": (scalar_candidates, 1 << 8),
    "SOPC": (scalar_candidates, 1 << 7),
    "SOPP": (scalar_candidates, 1 << 7),
    "SMEM": (memory_candidates, 1 << 8),
    "VOP1": (vector_candidates, 1 << 8),
    "VOP2": (vector_candidates, 62),
    "VOPC": (vector_candidates, 1 << 8),
    "VOP3": (vop3_candidates, 0x380),  # what follows is VOP3P
    "VOP3P": (vop3_candidates, 1 << 7),
    "DS": (memory_candidates, 1 << 8),
    "FLAT": (memory_candidates, 1 << 7),
    "GLOBAL": (memory_candidates, 1 << 7),
    "SCRATCH": (memory_candidates, 1 << 7),
    "MUBUF": (memory_candidates, 1 << 7),
    "MTBUF": (memory_candidates, 1 << 4),
}


def disassemble(llvm_mc: str, candidates: list[Candidate]) -> list[str | None]:
    """The text of each candidate, None where LLVM refuses it or stops short of its last word."""
    padding = "0x55 0x00 0x80 0xbf"  # s_nop 0x55: what a candidate that is too short swallows
    sentinel = "0x5a 0x00 0x92 0xbf"  # s_trap 0x5a: marks the end of a candidate
    lines = []
    for candidate in candidates:
        octets = b"".join(word.to_bytes(4, "little") for word in candidate.words)
        lines.append(" ".join(f"0x{octet:02x}" for octet in octets))
        lines.extend((padding, padding, sentinel))
    command = [llvm_mc, "--disassemble", "--triple=amdgcn", "--mcpu=gfx942", "--show-encoding"]
    result = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)
    if result.returncode < 0:  # some invalid operands make its printer crash
        return [None] * len(candidates)
    refused = {(int(number) - 1) // 4 for number in re.findall(r"<stdin>:(\d+):\d+: warning", result.stderr)}
    chunks: list[list[str]] = [[]]
    for line in result.stdout.splitlines():
        if "encoding: [0x5a,0x00,0x92,0xbf]" in line:
            chunks.append([])
        elif "encoding" in line:
            chunks[-1].append(line)
    texts: list[str | None] = []
    for index, chunk in enumerate(chunks[:-1]):
        whole = index not in refused and len(chunk) == 3  # the candidate and both paddings
        texts.append(chunk[0].split("//")[0].split(";")[0].strip() if whole else None)
    return texts


def operand_widths(text: str, fields: dict[str, int]) -> dict[str, int]:
    widths = {}
    for first, last in re.findall(r"\b[vsa](?:\[(\d+):(\d+)\]|\d+)", text):
        if first:
            widths[int(first)] = int(last) - int(first) + 1
    for number in re.findall(r"\b[vsa](\d+)\b", text):
        widths[int(number)] = 1
    return {name: widths.get(register, 0) for name, register in fields.items()}


def enumerate_family(llvm_mc: str, family: str) -> list[Opcode]:
    make_candidates, count = FAMILIES[family]
    numbered = [(op, candidate) for op in range(count) for candidate in make_candidates(family, op)]
    texts = disassemble(llvm_mc, [candidate for _, candidate in numbered])
    found: dict[int, Opcode] = {}
    for (op, candidate), text in zip(numbered, texts, strict=True):
        if text is None:
            continue
        # A literal (or a following word) is 0x12345678 here: one that isn't printed belongs to no operand.
        if len(candidate.words) == 2 and candidate.words[1] == 0x12345678 and "0x12345678" not in text:
            continue
        mnemonic = re.sub(r"_(e32|e64)$", "", text.split()[0])
        opcode = Opcode(family, op, mnemonic, operand_widths(text, candidate.fields), text)
        # SDST_SGPR shadows no field, but a later candidate may show more operands than an earlier one.
        if op not in found or sum(map(bool, opcode.widths.values())) > sum(map(bool, found[op].widths.values())):
            found[op] = opcode
    return list(found.values())


def enumerate_all(llvm_mc: str) -> list[Opcode]:
    return [opcode for family in FAMILIES for opcode in enumerate_family(llvm_mc, family)]


def llvm_version(llvm_mc: str) -> str:
    output = subprocess.run([llvm_mc, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"LLVM version [\d.]+", output)
    return found.group(0) if found else "LLVM"


def render(opcodes: list[Opcode], version: str) -> str:
    mnemonics = sorted({opcode.mnemonic for opcode in opcodes})
    lines = [
        f"// Generated by generate_opcodes.py from {version}; do not edit. isa/opcodes.h explains the columns.",
        "// MNEMONIC(name)",
        "// OPCODE(family, number, mnemonic, dwords of: dst, src0, src1, src2, sdst, unit, derivation, bytes, traits)",
        "// MATRIX(mnemonic, m, n, k, blocks, passes, type of A and B, sparse)",
    ]
    lines += [f"#ifndef {macro}\n#define {macro}(...)\n#endif" for macro in MACROS]
    lines += [f"MNEMONIC({name})" for name in mnemonics]
    lines += [row(opcode) for opcode in opcodes]
    for shape in filter(None, map(Matrix.parse, mnemonics)):
        columns = (shape.mnemonic, shape.m, shape.n, shape.k, shape.blocks, shape.passes, shape.type, shape.sparse)
        lines.append(f"MATRIX({', '.join(map(str, columns)).lower()})")
    lines += [f"#undef {macro}" for macro in MACROS]
    return "\n".join(lines) + "\n"


def row(opcode: Opcode) -> str:
    widths = ", ".join(str(opcode.widths.get(name, 0)) for name in ("dst", "src0", "src1", "src2", "sdst"))
    effects = effects_of(opcode.family, opcode.mnemonic, opcode.widths)
    traits = " | ".join(effects.traits) or "none"
    return (
        f"OPCODE({opcode.family}, {opcode.number:#x}, {opcode.mnemonic}, {widths}, "
        f"{effects.unit}, {effects.derivation}, {effects.bytes}, {traits})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llvm-mc", default="llvm-mc")
    arguments = parser.parse_args()
    opcodes = enumerate_all(arguments.llvm_mc)
    OUTPUT.write_text(render(opcodes, llvm_version(arguments.llvm_mc)), encoding="utf-8")
    print(f"{len(opcodes)} opcodes, {len({opcode.mnemonic for opcode in opcodes})} mnemonics -> {OUTPUT}")


if __name__ == "__main__":
    main()
