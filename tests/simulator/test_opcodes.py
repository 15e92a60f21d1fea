"""The list of gfx942 opcodes with their status, against LLVM."""

from __future__ import annotations

import random
import re
import subprocess

import pytest
from test_decoder import find_llvm_tool
from typer.testing import CliRunner

from deep_gemm_rocm.__main__ import app
from deep_gemm_rocm.simulator import generate_opcode_page, generate_opcodes, opcodes
from deep_gemm_rocm.simulator.opcode_effects import Matrix, effects_of


@pytest.fixture(scope="module")
def enumerated() -> list[generate_opcodes.Opcode]:
    return generate_opcodes.enumerate_all(find_llvm_tool("llvm-mc"))


def test_every_opcode_that_llvm_lists_is_in_it(enumerated: list[generate_opcodes.Opcode]) -> None:
    listed = {(opcode.family, opcode.number, opcode.mnemonic) for opcode in enumerated}
    assert len(listed) > 1400
    assert {(opcode.family, opcode.number, opcode.mnemonic) for opcode in opcodes()} == listed


def test_table_is_up_to_date(enumerated: list[generate_opcodes.Opcode]) -> None:
    version = re.search("from (LLVM.*);", generate_opcodes.OUTPUT.read_text())
    assert version is not None
    expected = generate_opcodes.render(enumerated, version[1])
    assert generate_opcodes.OUTPUT.read_text() == expected, "run deep_gemm_rocm.simulator.generate_opcodes"


@pytest.mark.parametrize(
    ("family", "mnemonic"),
    [
        ("VOP3", "v_frobnicate_f32"),
        ("SOP1", "s_frobnicate_b64"),
        ("SOPP", "s_frobnicate"),
        ("DS", "ds_frobnicate_rtn_b32"),
        ("GLOBAL", "global_atomic_frobnicate"),
        ("SMEM", "s_dcache_frobnicate"),
    ],
)
def test_unclassified_opcode_fails_the_generator(family: str, mnemonic: str) -> None:
    with pytest.raises(ValueError, match=f"{mnemonic} .{family}.: 0 rules"):
        effects_of(family, mnemonic, {"dst": 1})


def test_matrix_passes_are_llvms(enumerated: list[generate_opcodes.Opcode]) -> None:
    """llvm-mca says for how many passes an instruction occupies the matrix core."""
    shapes = {opcode.text: shape for opcode in enumerated if (shape := Matrix.parse(opcode.mnemonic))}
    command = [find_llvm_tool("llvm-mca"), "-mtriple=amdgcn", "-mcpu=gfx942", "-all-views=0", "-instruction-info"]
    result = subprocess.run(command, input="\n".join(shapes), capture_output=True, text=True, check=True)
    found = re.findall(r"^ +\d+ +\d+ +([\d.]+) .*(v_s?mf.*)$", result.stdout, re.MULTILINE)
    assert len(found) == len(shapes) > 40
    assert {text: float(passes) for passes, text in found} == {text: s.passes for text, s in shapes.items()}


def test_every_random_word_that_llvm_decodes_is_in_it() -> None:
    """Random words would show an encoding that the list lacks."""
    llvm_mc = find_llvm_tool("llvm-mc")
    rng = random.Random(942)
    two_words = (0x30, 0x34, 0x36, 0x37, 0x38, 0x3A)
    decoded: set[str] = set()
    for _ in range(100):  # in small batches, since some invalid operands crash LLVM's printer
        families = [rng.choice(two_words) if rng.random() < 0.7 else rng.getrandbits(6) for _ in range(60)]
        words = [(family << 26 | rng.getrandbits(26), rng.getrandbits(32)) for family in families]
        texts = generate_opcodes.disassemble(llvm_mc, [generate_opcodes.Candidate(pair, {}) for pair in words])
        decoded |= {re.sub(r"_(e32|e64|dpp|sdwa)$", "", text.split()[0]) for text in texts if text}
    assert len(decoded) > 300
    assert decoded <= {opcode.mnemonic for opcode in opcodes()}


# Instructions for global wave sync, the debugger, privileged parts of trap handlers, and graphics.
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
