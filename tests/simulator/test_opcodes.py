"""The list of gfx942 opcodes with their status, against LLVM."""

from __future__ import annotations

import random
import re

from test_decoder import find_llvm_tool
from typer.testing import CliRunner

from deep_gemm_rocm.__main__ import app
from deep_gemm_rocm.simulator import generate_opcode_page, generate_opcodes, opcodes


def test_every_opcode_that_llvm_lists_is_in_it() -> None:
    llvm_mc = find_llvm_tool("llvm-mc")
    listed = {
        (opcode.family, opcode.number, opcode.mnemonic)
        for family in generate_opcodes.FAMILIES
        for opcode in generate_opcodes.enumerate_family(llvm_mc, family)
    }
    assert len(listed) > 1400
    assert {(opcode.family, opcode.number, opcode.mnemonic) for opcode in opcodes()} == listed


def test_whatever_llvm_decodes_is_in_it() -> None:
    """Random words: an encoding that the enumeration overlooked would show."""
    llvm_mc = find_llvm_tool("llvm-mc")
    rng = random.Random(942)
    two_words = (0x30, 0x34, 0x36, 0x37, 0x38, 0x3A)
    decoded: set[str] = set()
    for _ in range(200):  # small batches: some invalid operands make LLVM's printer crash
        families = [rng.choice(two_words) if rng.random() < 0.7 else rng.getrandbits(6) for _ in range(60)]
        words = [(family << 26 | rng.getrandbits(26), rng.getrandbits(32)) for family in families]
        texts = generate_opcodes.disassemble(llvm_mc, [generate_opcodes.Candidate(pair, {}) for pair in words])
        decoded |= {re.sub(r"_(e32|e64|dpp|sdwa)$", "", text.split()[0]) for text in texts if text}
    assert len(decoded) > 300
    assert decoded <= {opcode.mnemonic for opcode in opcodes()}


# Global wave sync, the debugger and the privileged part of trap handlers, and what only graphics has a use for.
NOT_FOR_COMPUTE = re.compile(r"ds_gws_.*|s_cbranch_cdbg.*|s_rfe_.*|s_endpgm_ordered_ps_done|v_screen_partition_4se_b32")


def test_everything_for_compute_is_there() -> None:
    missing = {opcode.mnemonic for opcode in opcodes() if opcode.status == "missing"}
    assert sorted(name for name in missing if not NOT_FOR_COMPUTE.fullmatch(name)) == []


def test_page_is_up_to_date() -> None:
    expected = generate_opcode_page.page()
    assert generate_opcode_page.OUTPUT.read_text() == expected, "run deep_gemm_rocm.simulator.generate_opcode_page"


def test_command() -> None:
    result = CliRunner().invoke(app, ["sim", "opcodes", "--status", "approximate"])
    assert result.exit_code == 0
    assert "VOP1 0x22 v_rcp_f32 approximate " in result.output
    assert "v_add_f32" not in result.output
    assert len(CliRunner().invoke(app, ["sim", "opcodes"]).output.splitlines()) == len(opcodes())
