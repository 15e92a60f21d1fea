"""GEMM kernels of every configuration compile, and fit into the registers and the LDS that they were designed for."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path

import msgpack
import pytest
from elftools.elf.elffile import ELFFile
from helpers.gemm_configs import (
    ALL,
    BATCHED,
    CHOSEN,
    EXPERTS,
    FOUR_BIT_KINDS,
    FOUR_BITS,
    GROUPED,
    HEADS,
    INT4,
    KINDS,
    MXFP4,
    OF_EVERY_KIND,
    QUICK_ALL,
    QUICK_FOUR_BITS,
    QUICK_OF_EVERY_KIND,
    SHUFFLED,
    SIGNALS,
    SPLIT_K,
    SQUARES,
    SUMMED,
    TALLER,
    config_id,
    each_tile,
    has_row_scales_in_lds,
    quick,
)
from test_toolchain import hipcc, ziglang

from deep_gemm_rocm.heuristics import GemmConfig, gemm_candidates
from deep_gemm_rocm.jit import cache, source_of
from deep_gemm_rocm.jit.toolchain import Toolchain
from deep_gemm_rocm.problems.gemm_kind import GemmKind
from deep_gemm_rocm.simulator.code_objects import code_objects

MAX_REGISTERS = 256  # for each lane, with two waves on a SIMD; in larger kernels as many again are AccVGPRs
SPILLED_TO_ACC_VGPRS = 13  # by clang 19, in larger kernels: 13 of 80x96, one of 96x64, not to memory
FIRST_LLVM_WITH_GFX942 = 17
AMDGPU_METADATA = 32  # type of the note (LLVM's AMDGPU guide, "Note Records")


# The largest tiles need the most registers.
def largest(configs: Sequence[GemmConfig]) -> GemmConfig:
    return max(configs, key=lambda config: config.block_m * config.block_n)


LARGEST = tuple(largest(gemm_candidates(kind)) for kind in (*KINDS, *FOUR_BIT_KINDS))
OF_OTHER_TESTS = (
    [config for family in (GROUPED, BATCHED, HEADS, SUMMED, SIGNALS) for config in quick(family)]
    + QUICK_OF_EVERY_KIND
    + QUICK_FOUR_BITS
)
IN_DEFAULT_RUN = {
    ziglang: {*QUICK_ALL, *SQUARES, *OF_OTHER_TESTS, largest(SPLIT_K)},
    hipcc: {*CHOSEN, *GROUPED, *SQUARES, *LARGEST, largest(SPLIT_K)},
}
OF_GROUPS = {
    largest([config for config in GROUPED if config.kind.grouping == grouping])
    for grouping in ("contiguous", "psum", "masked")
}
INSPECTED_IN_DEFAULT_RUN = {
    ziglang: {
        *QUICK_ALL,
        *(config for config in (*quick(GROUPED), *quick(SIGNALS)) if not config.taller),
        *QUICK_OF_EVERY_KIND,
        *QUICK_FOUR_BITS,
    },
    hipcc: {*CHOSEN, *OF_GROUPS, *LARGEST},
}


def builds(quick_ones: Mapping[Callable, Container[GemmConfig]]) -> pytest.MarkDecorator:
    """Runs a test with each compiler and configuration; the default run takes ``quick_ones``."""
    every = ALL + BATCHED + HEADS + SQUARES + SUMMED + GROUPED + SIGNALS + SPLIT_K + TALLER + OF_EVERY_KIND + FOUR_BITS
    every += EXPERTS + INT4
    cases = [
        pytest.param(
            compiler,
            config,
            id=f"{compiler.__name__}-{config_id(config)}",
            marks=() if config in of_compiler else pytest.mark.slow,
        )
        for compiler, of_compiler in quick_ones.items()
        for config in every
    ]
    return pytest.mark.parametrize(("compiler", "config"), cases)


def listing_of(code: bytes, folder: Path) -> str:
    (folder / "code").write_bytes(code)
    command = [disassembler(), "-d", "--no-show-raw-insn", "--mcpu=gfx942", folder / "code"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def code_object(toolchain: Toolchain, config, template: str = "gemm.hip.j2") -> bytes:
    """The code object of a kernel, compiled into the cache, from which other tests load the kernel."""
    artefact = cache.obtain(source_of(template, config.template_values), toolchain)
    (code,) = code_objects(artefact.library.read_bytes())
    return code


def kernels(code: bytes) -> list[dict]:
    """The kernels in the code object's metadata."""
    notes = ELFFile(io.BytesIO(code)).get_section_by_name(".note").iter_notes()
    (metadata,) = (note["n_descdata"] for note in notes if note["n_type"] in (AMDGPU_METADATA, "NT_AMDGPU_METADATA"))
    return msgpack.unpackb(metadata)["amdhsa.kernels"]


def disassembler() -> str:
    """An llvm-objdump that knows gfx942; distributions also install older ones."""
    for name in ("llvm-objdump", "llvm-objdump-19"):
        if program := shutil.which(name):
            version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
            if int(re.search(r"LLVM version (\d+)", version)[1]) >= FIRST_LLVM_WITH_GFX942:
                return program
    pytest.skip("no llvm-objdump that knows gfx942")


@builds(IN_DEFAULT_RUN)
def test_kernel_fits(compiler, config):
    found = {kernel[".name"]: kernel for kernel in kernels(code_object(compiler(), config))}
    sums = {f"{config.kernel_name}_sum"} if config.kind.sums_parts else set()
    assert found.keys() == {config.kernel_name, *sums}
    for kernel in found.values():
        assert kernel[".private_segment_fixed_size"] == 0
        assert kernel[".vgpr_spill_count"] <= (SPILLED_TO_ACC_VGPRS if config.registers > MAX_REGISTERS else 0)
        assert kernel[".sgpr_spill_count"] == 0
        assert not kernel[".uses_dynamic_stack"]
        assert kernel[".vgpr_count"] <= config.registers
        assert kernel[".agpr_count"] <= config.registers - MAX_REGISTERS
    kernel = found[config.kernel_name]
    assert kernel[".group_segment_fixed_size"] == config.lds_bytes
    assert kernel[".max_flat_workgroup_size"] >= config.num_threads


@builds(INSPECTED_IN_DEFAULT_RUN)
def test_data_moves_16_bytes_at_a_time(tmp_path, compiler, config):
    """Moreover, nothing is moved between VGPRs and AccVGPRs, unless a kernel needs both for its registers."""
    listing = listing_of(code_object(compiler(), config), tmp_path)
    instructions = {words[0] for line in listing.splitlines() if (words := line.split())}
    moves = {name for name in instructions if name.startswith(("buffer_load", "ds_"))}
    # Scales and layouts are loaded as single dwords. Prefix sums over groups use ds_bpermute.
    moves -= (
        {"buffer_load_dword"} if config.kind.has_known_number_of_tiles else {"buffer_load_dword", "ds_bpermute_b32"}
    )
    # Narrow loads of c are for unaligned c, and for lanes that hold only few of its values.
    moves -= {"buffer_load_ushort", "buffer_load_dwordx2"} if config.kind.accumulate else set()
    # bf16 that is widened to fp32.
    moves -= {"buffer_load_dwordx2"} if config.kind.sums_squares else set()
    if config.kind.widens_b:  # with exponents of groups, or their scales of 16 bits
        moves -= {"buffer_load_ubyte", *({"buffer_load_dwordx2"} if config.kind.a_type == "bf16" else ())}
        moves -= {"buffer_load_ushort"} if config.kind.b_scale_type in ("bf16", "f16") else set()
    moves -= {"buffer_load_ushort"} if config.kind.bias in ("bf16", "f16") else set()
    moves -= {"buffer_load_dwordx3"} if config.kind.bias == "f32" else set()
    if config.kind.is_quantised:  # waves exchange the largest magnitudes of rows
        exchanged = ("ds_bpermute_b32", "ds_read_b32", "ds_read2", "ds_write_b32")
        moves = {name for name in moves if not name.startswith(exchanged)}
    if config.schedule == "alone":  # scales of rows go through LDS one by one
        one_by_one = ("ds_read_b32", "ds_read2", "ds_write_b32", "ds_write2")
        moves = {name for name in moves if not name.startswith(one_by_one)}
    has_wide_moves = config.lds_bytes > 0 and (config.schedule != "alone" or config.waves_k > 1)
    expected = {"ds_read_b128", "ds_write_b128"} if has_wide_moves else set()
    if config.kind.promotions > 1 and config.schedule == "alone":
        # A lane loads what an MFMA takes of a group: 8 bytes of a and 4 of b, or all of a shuffled b.
        expected.add("buffer_load_dwordx2")
        moves |= {"buffer_load_dwordx2"} & instructions
        has_four_zeros = config.kind.b_scale_type == "f32_and_zero" and config.kind.promotions == 4
        is_shuffled = config.kind.b_type == "shuffled_int4"
        if has_four_zeros or is_shuffled or has_row_scales_in_lds(config):  # as neighbours
            expected.add("buffer_load_dwordx4")
        elif config.kind.accumulate:  # c
            moves.discard("buffer_load_dwordx4")
    elif "k" in (config.kind.a_major, config.kind.b_major):
        expected.add("buffer_load_dwordx4")
    else:  # operands are loaded 4 bytes at a time and transposed in registers
        moves.discard("buffer_load_dwordx4")
    if config.kind.promotions > 1 and config.schedule == "pingpong":  # halves of 16 bytes change places in LDS
        halves = {name for name in moves if name.startswith("ds_write") and name.endswith("_b64")}
        assert halves
        moves -= halves
        if config.kind.b_type != "shuffled_int4":  # which is stored as it is
            expected.discard("ds_write_b128")
    assert moves == expected
    vectors = {"buffer_store_dwordx4", "buffer_store_dwordx2"}
    assert (vectors | {"buffer_store_dword"} if config.kind.is_quantised else vectors) & instructions
    instructions -= {"global_atomic_add"} if config.kind.signals else set()
    unwanted = ("scratch_", "flat_", "global_", *(("v_accvgpr_",) if config.registers == MAX_REGISTERS else ()))
    assert not [name for name in instructions if name.startswith(unwanted)]
    # The exception: for summed batches clang 19 doesn't always find out that descriptors are uniform.
    if config.kind.grouping != "summed" or config.kind.is_k_major:
        # The end of a waterfall loop, which the compiler makes for a descriptor that it doesn't know to be uniform.
        assert not re.search(r"s_xor_b64 exec, exec.*\n\s*s_cbranch_execnz", listing)


# FP8 and bf16, with values of four bits as they are and shuffled, or without.
FIRST_VALUES = (GemmKind(), GemmKind(**MXFP4, k_tail=True), GemmKind(a_type="bf16", **SHUFFLED))

SMALL_TILES = [
    GemmConfig(16, 32, 1, 2, 4, "alone", kind=kind) for kind in (GemmKind(), *FOUR_BIT_KINDS) if kind.parts == 1
]


@each_tile(SMALL_TILES, only=[config for config in SMALL_TILES if config.kind in FIRST_VALUES])
def test_no_argument_keeps_the_first_values_waiting(tmp_path, config):
    """Those of scales are under way while operands are loaded."""
    listing = listing_of(code_object(ziglang(), config), tmp_path)
    watched = ("s_load_", "s_waitcnt lgkmcnt", "buffer_load_dwordx")
    found = [name for line in listing.splitlines() for name in watched if line.strip().startswith(name)]
    before = found[: found.index("buffer_load_dwordx")]
    assert before[-1] == "s_load_"


def k_loop(listing: str) -> list[str]:
    """The names of the instructions in the shortest loop that multiplies."""
    found = re.findall(r"^\t(\S.*?)\s*// ([0-9A-F]+):", listing, re.MULTILINE)
    words = [text.split() for text, _ in found]
    places = {int(address, 16): place for place, (_, address) in enumerate(found)}
    loops = []
    for address, end in places.items():
        name, *operands = words[end]
        if name.startswith(("s_branch", "s_cbranch")):
            jump = (int(operands[0]) + 2**15) % 2**16 - 2**15  # signed, in words from the next instruction on
            if jump < 0:
                loops.append([first for first, *_ in words[places[address + 4 + 4 * jump] : end + 1]])
    return min((loop for loop in loops if any(name.startswith("v_mfma") for name in loop)), key=len)


@pytest.mark.parametrize(
    "config",
    [
        GemmConfig(size, size, 1, 1, 2, "alone", waves_k=4, kind=kind)
        for size, kind in (
            (96, GemmKind()), (64, GemmKind(scaling="vectors")), (96, GemmKind("bf16", "bf16", scaling="none")),
        )
    ],
    ids=config_id,
)  # fmt: skip
def test_operands_stay_in_the_registers_that_they_were_loaded_into(tmp_path, config):
    """With 512 registers many are AccVGPRs, from which MFMAs read operands as well."""
    assert config.registers == 2 * MAX_REGISTERS
    loop = k_loop(listing_of(code_object(ziglang(), config), tmp_path))
    mfmas_of_k_block = (config.block_m // 16) * (config.block_n // 16) * 4
    assert sum(name.startswith("v_mfma") for name in loop) == config.num_stages * mfmas_of_k_block
    assert not [name for name in loop if name.startswith("v_accvgpr")]


@pytest.mark.parametrize("config", quick(SIGNALS), ids=config_id)
def test_a_tile_is_counted_when_its_results_are_visible(tmp_path, config):
    """All waves wait for their stores, then one writes L2 back and waits again before it counts."""
    listing = listing_of(code_object(ziglang(), config), tmp_path)
    wait = "s_waitcnt vmcnt(0)"
    order = (wait, "s_barrier", "buffer_wbl2 sc1", wait, "global_atomic_add")
    watched = {*order, "buffer_store"}
    found = [name for line in listing.splitlines() for name in watched if line.strip().startswith(name)]
    (count,) = (index for index, name in enumerate(found) if name == "global_atomic_add")
    assert tuple(found[count - len(order) + 1 : count + 1]) == order
