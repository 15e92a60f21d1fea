"""The sanitizer's reports: for each class of bugs a kernel with the bug, and a corrected kernel without reports.

Most kernels are assembly, because compilers would repair the bug. s[4:5] has a buffer's address, s2 the workgroup's
number, v0 the work-item's number and v1 four times that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest
from helpers.assembly import program
from helpers.sanitizer import BARRIER, DEFINE_LDS, LDS_BYTES, PLACE, PROLOGUE, launch_with_buffer
from helpers.simulated_hip import Compiler, Hip, HipCallError

from deep_gemm_rocm import simulator
from deep_gemm_rocm.simulator.program import disassemble_kernel

pytestmark = pytest.mark.usefixtures("sanitizer_at_level_1")


@dataclass
class Case:
    """A kernel: `bug` or `fix` replaces @ in `body`. `reported` are parts of the message for the bug."""

    name: str
    body: str
    bug: str
    fix: str
    reported: list[str]
    grid: int = 1
    block: int = 64
    lucky: bool = True  # the launch succeeds without the sanitizer
    level: int = 1  # lowest DG_SIM_SANITIZE that reports the bug


@dataclass
class Hazard:
    """A hazard: `after` needs `states` wait states after `before`."""

    name: str
    before: str
    after: str
    states: int
    reported: str = "hazard: "
    level: int = 1

    def case(self) -> Case:
        prologue = (
            "".join(f"  v_mov_b32_e32 v{i}, 0\n" for i in range(2, 40))
            + "  s_mov_b64 s[8:9], s[4:5]\n  v_mov_b32_e32 v40, s4\n"
        )
        prologue += "  s_mov_b32 s10, 0\n  s_nop 15\n"
        reported = [self.reported, f"needs {self.states} wait states between, and has {self.states - 1}"]
        body = f"{prologue}{self.before}\n@\n{self.after}\n  s_nop 15\n"
        return Case(f"hazard_{self.name}", body, nops(self.states - 1), nops(self.states), reported, level=self.level)


def nops(states: int) -> str:
    return "\n".join(f"  s_nop {min(states - i, 8) - 1}" for i in range(0, states, 8))


STORE_V2 = "\n  s_waitcnt vmcnt(0) lgkmcnt(0)\n  global_store_dword v1, v2, s[4:5]"
USE_V2 = "\n  v_add_u32_e32 v2, 1, v2\n" + STORE_V2
SHARED_POINTER = """
  s_mov_b64 s[8:9], src_shared_base
  v_mov_b32_e32 v4, v1
  v_mov_b32_e32 v5, s9
"""

WAITS = [
    Case(
        "wait_vector_load",
        "global_load_dword v2, v1, s[4:5]\n@" + USE_V2,
        "",
        "s_waitcnt vmcnt(0)",
        ["v2 is used before an s_waitcnt for vmcnt has waited for its load", "at v_add_u32"],
    ),
    Case(
        "wait_for_too_few_loads",
        "global_load_dword v3, v1, s[4:5]\nglobal_load_dword v2, v1, s[4:5] offset:4\n@" + USE_V2,
        "s_waitcnt vmcnt(1)",
        "s_waitcnt vmcnt(1)\nv_add_u32_e32 v3, 1, v3\ns_waitcnt vmcnt(0)",
        ["v2 is used", "vmcnt"],
    ),
    Case(
        "wait_before_overwriting",
        "global_load_dword v2, v1, s[4:5]\n@\nv_mov_b32_e32 v2, 0" + STORE_V2,
        "",
        "s_waitcnt vmcnt(0)",
        ["v2 is used", "vmcnt", "at v_mov_b32"],
    ),
    Case("wait_lds_read", DEFINE_LDS + "ds_read_b32 v2, v1\n@" + USE_V2, "", "s_waitcnt lgkmcnt(0)", ["v2", "lgkmcnt"]),
    Case(
        "wait_scalar_load",
        "s_load_dword s8, s[4:5], 0x0\n@\ns_add_u32 s9, s8, 1",
        "s_waitcnt vmcnt(0)",
        "s_waitcnt lgkmcnt(0)",
        ["s8 is used before an s_waitcnt for lgkmcnt"],
    ),
    Case(
        "wait_scalar_loads_in_any_order",
        "s_load_dword s8, s[4:5], 0x0\ns_load_dword s9, s[4:5], 0x4\n@\ns_add_u32 s8, s8, 1\ns_waitcnt lgkmcnt(0)",
        "s_waitcnt lgkmcnt(1)",
        "s_waitcnt lgkmcnt(0)",
        ["s8", "lgkmcnt"],
    ),
    Case(
        "wait_scalar_load_of_condition",
        "s_load_dwordx2 vcc, s[4:5], 0x0\n@\ns_cbranch_vccz 1\ns_nop 0",
        "",
        "s_waitcnt lgkmcnt(0)",
        ["vcc is used before an s_waitcnt for lgkmcnt", "at s_cbranch_vccz"],
    ),
    Case(
        "wait_flat_load_counts_twice",
        SHARED_POINTER + DEFINE_LDS + "s_nop 1\nflat_load_dword v2, v[4:5]\n@" + USE_V2,
        "s_waitcnt vmcnt(0)",
        "s_waitcnt vmcnt(0) lgkmcnt(0)",
        ["v2", "lgkmcnt"],
    ),
    Case(
        "wait_load_to_lds",
        "s_mov_b32 m0, 0\ns_nop 0\nglobal_load_lds_dword v1, s[4:5]\n@\nds_read_b32 v2, v1" + STORE_V2,
        "",
        "s_waitcnt vmcnt(0)",
        ["lane 0 reads byte 0 of LDS before an s_waitcnt for vmcnt has waited for the load to LDS of wave 0"],
    ),
    Case(
        "wait_load_to_lds_before_barrier",
        "s_nop 0\nv_readfirstlane_b32 s8, v1\ns_mov_b32 m0, s8\ns_nop 0\n"
        "global_load_lds_dword v1, s[4:5]\n@\ns_barrier\nv_xor_b32_e32 v3, 0x100, v1\nds_read_b32 v2, v3" + STORE_V2,
        "",
        "s_waitcnt vmcnt(0)",
        ["of LDS before an s_waitcnt for vmcnt has waited for the load to LDS of wave"],
        block=128,
    ),
]

HAZARDS = [
    Hazard("xdl_4_passes", "v_mfma_f32_16x16x32_fp8_fp8 v[4:7], v[8:9], v[10:11], 0", "v_mov_b32_e32 v2, v5", 7),
    Hazard("xdl_8_passes", "v_mfma_f32_32x32x16_fp8_fp8 v[4:19], v[20:21], v[22:23], 0", "v_mov_b32_e32 v2, v5", 11),
    Hazard(
        "xdl_16_passes", "v_mfma_f32_32x32x4_2b_f16 a[0:31], v[20:21], v[22:23], 0", "v_accvgpr_read_b32 v2, a31", 19
    ),
    Hazard("xdl_2_passes", "v_mfma_f32_4x4x4_16b_f16 v[4:7], v[8:9], v[10:11], 0", "v_mov_b32_e32 v2, v5", 5),
    Hazard("f32_8_passes", "v_mfma_f32_16x16x4_f32 v[4:7], v8, v9, 0", "v_mov_b32_e32 v2, v5", 10),
    Hazard("f64_result", "v_mfma_f64_16x16x4_f64 v[4:11], v[12:13], v[14:15], 0", "v_mov_b32_e32 v2, v5", 11),
    Hazard(
        "f64_result_stored",
        "v_mfma_f64_16x16x4_f64 v[4:11], v[12:13], v[14:15], 0",
        "global_store_dword v1, v4, s[4:5]",
        18,
    ),
    Hazard(
        "result_stored",
        "v_mfma_f32_16x16x32_fp8_fp8 v[4:7], v[8:9], v[10:11], 0",
        "global_store_dwordx2 v1, v[4:5], s[4:5]",
        7,
    ),
    Hazard("result_to_lds", "v_mfma_f32_16x16x16_f16 v[4:7], v[8:9], v[10:11], 0", "ds_write_b32 v1, v7", 7),
    Hazard("result_overwritten", "v_mfma_f32_16x16x16_f16 v[4:7], v[8:9], v[10:11], 0", "v_mov_b32_e32 v7, 0", 7),
    Hazard(
        "result_as_a",
        "v_mfma_f32_16x16x16_f16 v[4:7], v[8:9], v[10:11], 0",
        "v_mfma_f32_16x16x16_f16 v[20:23], v[4:5], v[10:11], 0",
        7,
    ),
    Hazard(
        "result_as_other_c",
        "v_mfma_f32_16x16x16_f16 v[4:7], v[8:9], v[10:11], 0",
        "v_mfma_f32_16x16x16_f16 v[20:23], v[8:9], v[10:11], v[6:9]",
        5,
    ),
    Hazard(
        "c_overwritten",
        "v_mfma_f32_32x32x8_f16 v[4:19], v[20:21], v[22:23], v[24:39]",
        "v_mov_b32_e32 v30, 0",
        7,
    ),
    Hazard("valu_to_matrix", "v_mov_b32_e32 v8, 0", "v_mfma_f32_16x16x16_f16 v[4:7], v[8:9], v[10:11], 0", 2),
    Hazard(
        "exec_to_matrix",
        "v_cmpx_eq_u32_e32 v2, v2",
        "v_mfma_f32_16x16x16_f16 v[4:7], v[8:9], v[10:11], 0",
        4,
    ),
    Hazard(
        "f64_matrix_to_fma",
        "v_mfma_f64_4x4x4_4b_f64 v[4:5], v[6:7], v[8:9], 0",
        "v_fma_f64 v[12:13], v[14:15], 0, 0",
        2,
    ),
    Hazard("sgpr_to_memory", "v_readlane_b32 s8, v40, 0", "global_load_dword v2, v1, s[8:9]", 5),
    Hazard("sgpr_to_valu", "v_readfirstlane_b32 s10, v2", "v_mov_b32_e32 v3, s10", 2, level=2),
    Hazard("vcc_to_select", "v_cmp_eq_u32_e32 vcc, v2, v2", "v_cndmask_b32_e32 v4, v2, v3, vcc", 2, level=2),
    Hazard("vcc_to_carry", "v_cmp_eq_u32_e32 vcc, v2, v2", "v_addc_co_u32_e32 v4, vcc, v2, v3, vcc", 2, level=2),
    Hazard("lane_select", "v_readfirstlane_b32 s10, v2", "v_readlane_b32 s11, v3, s10", 4),
    Hazard("lane_read", "v_mov_b32_e32 v2, 1", "v_readlane_b32 s11, v2, 3", 1),
    Hazard("exec_to_lane_read", "v_cmpx_eq_u32_e32 v2, v2", "v_readlane_b32 s11, v2, 3", 4),
    Hazard("vcc_to_div_fmas", "v_cmp_eq_u32_e32 vcc, v2, v2", "v_div_fmas_f32 v4, v5, v6, v7", 4),
    Hazard("dpp", "v_mov_b32_e32 v2, 1", "v_mov_b32_dpp v4, v2 row_shl:1 row_mask:0xf bank_mask:0xf", 2),
    Hazard("exec_to_dpp", "v_cmpx_eq_u32_e32 v2, v2", "v_mov_b32_dpp v4, v3 row_shl:1 row_mask:0xf bank_mask:0xf", 5),
    Hazard(
        "dpp_other_source", "v_mov_b32_e32 v3, 1", "v_add_u32_dpp v4, v2, v3 row_shl:1 row_mask:0xf bank_mask:0xf", 2
    ),
    Hazard("dpp_keeps", "v_mov_b32_e32 v4, 1", "v_mov_b32_dpp v4, v2 row_shl:1 row_mask:0xf bank_mask:0xf", 2),
    Hazard("exec_to_memory", "v_cmpx_eq_u32_e32 v2, v2", "global_load_dword v2, v1, s[4:5]", 5),
    Hazard("transcendental", "v_exp_f32_e32 v2, v3", "v_add_f32_e32 v4, v2, v2", 1),
    Hazard(
        "sdwa",
        "v_mov_b32_sdwa v2, v3 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:DWORD",
        "v_mov_b32_e32 v4, v2",
        1,
    ),
    Hazard("wide_store", "global_store_dwordx4 v1, v[4:7], s[4:5]", "v_mov_b32_e32 v6, 0", 2),
    Hazard(
        "wide_store_and_matrix",
        "global_store_dwordx4 v1, v[4:7], s[4:5]",
        "v_mfma_f32_16x16x16_f16 v[4:7], v[8:9], v[10:11], 0",
        2,
    ),
    Hazard("dot", "v_dot4_i32_i8 v2, v3, v4, v5", "v_mov_b32_e32 v6, v2", 3),
    Hazard("dot_of_itself", "v_dot4c_i32_i8_e32 v2, v3, v4", "v_dot4c_i32_i8_e32 v2, v3, v2", 3),
    Hazard("dot_of_dot", "v_dot4_i32_i8 v2, v3, v4, v5", "v_dot4_i32_i8 v6, v2, v4, v5", 3),
    Hazard("setreg", "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 2), 0", "s_getreg_b32 s10, hwreg(HW_REG_MODE)", 2),
    Hazard("m0", "s_mov_b32 m0, 0", "global_load_lds_dword v1, s[4:5]", 1),
]

# Each lane has 16 bytes at v2. The second and third dword, and most bytes of the last, are never written.
WIDE_LDS = """
  v_lshlrev_b32_e32 v2, 4, v0
  v_mov_b32_e32 v9, 0
  ds_write_b32 v2, v9
  ds_write_b8 v2, v9 offset:13
"""

# Only every sixteenth lane of v9 is written.
SOME_LANES = """
  s_mov_b32 exec_lo, 0x10001
  s_mov_b32 exec_hi, 0x10001
  v_mov_b32_e32 v9, 0
  s_mov_b64 exec, -1
"""

DEFINEDNESS = [
    # With 64 registers before the accumulators, v100 is one of these, and a register that starts unwritten.
    Case(
        "unwritten_register_among_accumulators",
        "@\ns_nop 1\nv_mov_b32_e32 v2, v100" + STORE_V2,
        "",
        "v_mov_b32_e32 v100, 0",
        ["what is stored, v2", "was never written"],
    ),
    Case(
        "unwritten_address",
        "@\nglobal_load_dword v2, v9, s[4:5]",
        "",
        "v_mov_b32_e32 v9, 0",
        ["the address in v9 (lane 0) was never written"],
        lucky=False,
    ),
    Case(
        "unwritten_lanes_of_address",
        "s_mov_b64 exec, 0xffff\nv_mov_b32_e32 v9, 0\ns_mov_b64 exec, -1\n@\nglobal_load_dword v2, v9, s[4:5]",
        "",
        "v_mov_b32_e32 v9, 0",
        ["the address in v9 (lane 16) was never written"],
        lucky=False,
    ),
    Case(
        "unwritten_stored",
        "@\nglobal_store_dword v1, v9, s[4:5]",
        "",
        "v_mov_b32_e32 v9, 0",
        ["what is stored, v9 (lane 0), was never written"],
    ),
    Case(
        "unwritten_stored_high_dword",
        "v_mov_b32_e32 v8, 0\n@\nglobal_store_dwordx2 v1, v[8:9], s[4:5]",
        "",
        "v_mov_b32_e32 v9, 0",
        ["what is stored, v9 (lane 0), was never written"],
    ),
    Case(
        "unwritten_computed_with",
        "@\nv_add_u32_e32 v2, v9, v1" + STORE_V2,
        "",
        "v_mov_b32_e32 v9, 0",
        ["what is stored, v2 (lane 0)"],
    ),
    *(
        Case(
            f"unwritten_{half}_scalar_of_{operation}",
            f"s_mov_b32 s{number}, 0\nv_mov_b32_e32 v6, 0\nv_mov_b32_e32 v7, 0\n"
            f"v_pk_{operation}_f32 v[2:3], s[10:11], v[6:7]{others} op_sel:[@{low}] op_sel_hi:[@{high}]\n"
            "s_waitcnt vmcnt(0) lgkmcnt(0)\nglobal_store_dwordx2 v1, v[2:3], s[4:5]",
            str(int(number == 10)),
            str(int(number == 11)),
            ["what is stored, v2 (lane 0), was never written"],
        )
        for operation, others, low, high in [
            ("fma", ", v[6:7]", ",0,0", ",1,1"),
            ("mul", "", ",0", ",1"),
            ("add", "", ",0", ",1"),
        ]
        for half, number in [("high", 10), ("low", 11)]
    ),
    *(
        Case(
            f"unwritten_{half}_scalar_of_packed_move",
            f"s_mov_b32 s{number}, 0\nv_pk_mov_b32 v[2:3], s[10:11], s[10:11] op_sel:[@,@]\n"
            "s_waitcnt vmcnt(0) lgkmcnt(0)\nglobal_store_dwordx2 v1, v[2:3], s[4:5]",
            str(int(number == 10)),
            str(int(number == 11)),
            ["what is stored, v2 (lane 0), was never written"],
        )
        for half, number in [("high", 10), ("low", 11)]
    ),
    Case("unwritten_to_lds", "@\nds_write_b32 v1, v9", "", "v_mov_b32_e32 v9, 0", ["what is stored, v9 (lane 0)"]),
    Case(
        "unwritten_accumulator",
        "@\ns_nop 15\nv_accvgpr_read_b32 v2, a3" + STORE_V2,
        "",
        "v_accvgpr_write_b32 a3, 0",
        ["what is stored, v2"],
    ),
    Case(
        "unwritten_matrix_operand",
        "v_mov_b32_e32 v8, 0\nv_mov_b32_e32 v10, 0\nv_mov_b32_e32 v11, 0\n@\ns_nop 1\n"
        "v_mfma_f32_16x16x16_f16 v[2:5], v[8:9], v[10:11], 0\ns_nop 15" + STORE_V2,
        "",
        "v_mov_b32_e32 v9, 0",
        ["what is stored, v2 (lane 0)"],
    ),
    Case(
        "unwritten_scalar_address",
        "s_mov_b32 s10, s4\n@\ns_load_dword s8, s[10:11], 0x0",
        "",
        "s_mov_b32 s11, s5",
        ["the address in s10 was never written"],
        lucky=False,
    ),
    Case(
        "unwritten_scalar_branch",
        "@\ns_cmp_eq_u32 s10, 0\ns_cbranch_scc1 1\ns_nop 0",
        "",
        "s_mov_b32 s10, 0",
        ["a branch on scc", "at s_cbranch_scc1"],
    ),
    Case(
        "unwritten_vector_branch",
        "@\nv_cmp_eq_u32_e32 vcc, v9, v1\ns_nop 4\ns_cbranch_vccz 1\ns_nop 0",
        "",
        "v_mov_b32_e32 v9, 0",
        ["a branch on vcc, which depends on a register or memory that was never written"],
    ),
    Case(
        "unwritten_condition_of_store",
        "@\nv_cmp_gt_u32_e32 vcc, 7, v9\ns_and_saveexec_b64 s[8:9], vcc\nglobal_store_dword v1, v0, s[4:5]",
        "",
        "v_mov_b32_e32 v9, v0",
        ["the lanes that store are those of exec, which depends on a register or memory that was never written"],
    ),
    Case(
        "unwritten_lanes_shuffled",
        SOME_LANES + "v_and_b32_e32 v3, @, v1\nds_bpermute_b32 v2, v3, v9" + STORE_V2,
        "0x7c",
        "0x40",
        ["what is stored, v2 (lane 1), was never written"],
    ),
    Case(
        "unwritten_lanes_swizzled",
        SOME_LANES + "ds_swizzle_b32 v2, v9 offset:swizzle(BROADCAST,16,@)" + STORE_V2,
        "1",
        "0",
        ["what is stored, v2 (lane 0), was never written"],
    ),
    Case(
        "unwritten_lanes_moved",
        SOME_LANES + "s_nop 1\nv_add_u32_dpp v2, v9, v1 row_newbcast:@ row_mask:0xf bank_mask:0xf" + STORE_V2,
        "3",
        "0",
        ["what is stored, v2 (lane 0), was never written"],
    ),
    Case(
        "unwritten_lanes_not_moved",
        "s_nop 1\nv_mov_b32_dpp v2, v1 quad_perm:[1,0,3,2] row_mask:@ bank_mask:0xf" + STORE_V2,
        "0x7",
        "0xf",
        ["what is stored, v2 (lane 48), was never written"],
    ),
    Case(
        "unwritten_lds",
        "@\nds_read_b32 v2, v1" + STORE_V2,
        "",
        DEFINE_LDS,
        ["what is stored, v2 (lane 0), was never written"],
    ),
    Case(
        "unwritten_lds_of_some_lanes",
        "s_mov_b64 exec, 0xff\n" + DEFINE_LDS + "s_mov_b64 exec, -1\n@\nds_read_b32 v2, v1" + STORE_V2,
        "",
        DEFINE_LDS,
        ["what is stored, v2 (lane 8), was never written"],
    ),
    Case(
        "unwritten_dword_of_wide_lds_read",
        WIDE_LDS + "ds_read_b128 v[12:15], v2\ns_waitcnt lgkmcnt(0)\nv_add_u32_e32 v2, 1, @" + STORE_V2,
        "v14",
        "v15",
        ["what is stored, v2 (lane 0), was never written"],
    ),
    Case(
        "unwritten_part_of_two_lds_reads",
        WIDE_LDS
        + "ds_read2_b32 v[12:13], v2 offset0:0 offset1:@\ns_waitcnt lgkmcnt(0)\nv_add_u32_e32 v2, 1, v13"
        + STORE_V2,
        "1",
        "3",
        ["what is stored, v2 (lane 0), was never written"],
    ),
    Case(
        "unwritten_dword_used_as_address",
        WIDE_LDS + "ds_read_b64 v[12:13], v2\ns_waitcnt lgkmcnt(0)\nglobal_load_dword v2, @, s[4:5]",
        "v13",
        "v12",
        ["the address in v13 (lane 0) was never written"],
        lucky=False,
    ),
    Case(
        "unwritten_dword_of_wide_store_to_lds",
        "v_lshlrev_b32_e32 v2, 3, v0\nv_mov_b32_e32 v10, 0\n@\nds_write_b64 v2, v[10:11]",
        "",
        "v_mov_b32_e32 v11, 0",
        ["what is stored, v11 (lane 0), was never written"],
    ),
    Case(
        "unwritten_histogram",
        "v_mov_b32_e32 v3, 1\n@\nds_add_u32 v1, v3\nds_read_b32 v2, v1" + STORE_V2,
        "",
        DEFINE_LDS,
        ["what is stored, v2 (lane 0), was never written"],
    ),
]

OTHER_WAVE = "v_xor_b32_e32 v3, 0x100, v1\n"  # the LDS offset of the same lane of the other wave
LDS_RACES = [
    Case(
        "lds_read_of_other_wave",
        OTHER_WAVE + DEFINE_LDS + BARRIER + "\nds_write_b32 v1, v9\n@\nds_read_b32 v2, v3" + STORE_V2,
        "",
        BARRIER,
        ["race: lane 0 ", " of LDS, which wave", "a barrier is missing in between"],
        block=128,
    ),
    Case(
        "lds_write_before_barrier_not_waited_for",
        OTHER_WAVE + "v_mov_b32_e32 v9, 0\nds_write_b32 v1, v9\n@\ns_barrier\nds_read_b32 v2, v3" + STORE_V2,
        "",
        "s_waitcnt lgkmcnt(0)",
        ["race: lane 0 reads byte", "a wait for lgkmcnt before it"],
        block=128,
    ),
    Case(
        "lds_read_before_barrier_not_waited_for",
        OTHER_WAVE + DEFINE_LDS + BARRIER + "\nds_read_b32 v2, v3\n@\ns_barrier\nds_write_b32 v1, v9" + STORE_V2,
        "",
        "s_waitcnt lgkmcnt(0)",
        ["race: lane 0 writes byte", "a wait for lgkmcnt before it"],
        block=128,
    ),
    Case(
        "lds_overwritten_while_read",
        OTHER_WAVE
        + DEFINE_LDS
        + BARRIER
        + "\nds_read_b32 v2, v3\ns_waitcnt lgkmcnt(0)\n@\nds_write_b32 v1, v9"
        + STORE_V2,
        "",
        BARRIER,
        ["race: lane 0 "],
        block=128,
    ),
    Case(
        "lds_two_writers",
        "v_and_b32_e32 v3, 0xff, v1\n@ v3, v0",
        "ds_write_b32",
        "ds_add_u32",
        ["race: lane 0 writes byte 0 of LDS"],
        block=128,
    ),
    Case(
        "lds_two_writers_of_one_value",
        "v_and_b32_e32 v3, 0xff, v1\nv_mov_b32_e32 v9, @\nds_write_b32 v3, v9",
        "v1",
        "v3",
        ["race: lane 0 writes byte 1 of LDS"],
        block=128,
    ),
    Case(
        "lds_read_after_two_writers_of_one_value",
        OTHER_WAVE
        + "v_and_b32_e32 v3, 0xff, v1\nds_write_b32 v3, v3\nds_read_b32 v2, v3\n"
        + "s_waitcnt lgkmcnt(0)\nds_write_b32 v3, @"
        + STORE_V2,
        "v1",
        "v2",
        ["race: lane 0 writes byte 1 of LDS"],
        block=128,
    ),
    *(
        Case(
            f"lds_wave_{wave}_reads_before_two_writers_of_one_value",
            DEFINE_LDS
            + BARRIER
            + f"\nv_and_b32_e32 v3, 0xff, v1\nv_mov_b32_e32 v2, 0\nv_mov_b32_e32 v9, 1\n{compare} vcc, 63, v0\n"
            + "s_and_saveexec_b64 s[8:9], vcc\nds_read_b32 v2, v3\ns_mov_b64 exec, s[8:9]\ns_waitcnt lgkmcnt(0)\n@\n"
            + "ds_write_b32 v3, v9"
            + STORE_V2,
            "",
            BARRIER,
            ["race: lane 0 "],
            block=128,
        )
        for wave, compare in enumerate(["v_cmp_ge_u32_e32", "v_cmp_lt_u32_e32"])
    ),
    Case(
        "lds_neighbouring_bytes",
        "v_mov_b32_e32 v9, v0\nv_and_b32_e32 v4, 63, v0\nv_lshlrev_b32_e32 v4, 2, v4\nv_lshrrev_b32_e32 v3, 6, v0\n"
        "v_lshl_add_u32 v3, v3, 1, v4\n@",  # halves of the same dwords
        "v_and_b32_e32 v3, -4, v3\nds_write_b32 v3, v9",
        "ds_write_b16 v3, v9",
        ["race: lane"],
        block=128,
    ),
    Case(
        "lds_atomic_and_plain",
        DEFINE_LDS + BARRIER + "\nv_and_b32_e32 v3, 0xff, v1\nds_add_u32 v3, v9\n@\nds_read_b32 v2, v3" + STORE_V2,
        "",
        BARRIER,
        ["race: lane 0 "],
        block=128,
    ),
    Case(
        "lds_read_and_swap",
        DEFINE_LDS + BARRIER + "\nv_and_b32_e32 v3, 0xff, v1\nds_read_b32 v2, v3\ns_waitcnt lgkmcnt(0)\n@" + STORE_V2,
        "ds_add_u32 v3, v9",
        "ds_cmpst_b32 v3, v2, v9",
        ["race: lane 0 "],
        block=128,
    ),
    Case(
        "lds_by_flat_addresses",
        SHARED_POINTER
        + DEFINE_LDS
        + BARRIER
        + "\nds_write_b32 v1, v9\n@\nv_xor_b32_e32 v4, 0x100, v4\nflat_load_dword v2, v[4:5]"
        + STORE_V2,
        "",
        BARRIER,
        ["race: lane 0 "],
        block=128,
    ),
    Case(
        "lds_two_addresses",
        OTHER_WAVE
        + DEFINE_LDS
        + BARRIER
        + "\nds_write_b32 v1, v9\n@\nds_read2_b32 v[2:3], v3 offset0:0 offset1:0"
        + STORE_V2,
        "",
        BARRIER,
        ["race: lane 0 "],
        block=128,
    ),
]


def misaligned_lds(name: str, instruction: str, bug: int, fix: int, reported: str) -> Case:
    """All lanes access the same address, and store the same value."""
    filled = "".join(f"v_mov_b32_e32 v{8 + i}, 0\n" for i in range(4)) + "v_lshlrev_b32_e32 v7, 4, v0\n"
    filled += "ds_write_b128 v7, v[8:11]\n" + BARRIER + "\n"
    offset = 4 * instruction.count("offset0:1")
    return Case(f"misaligned_lds_{name}", f"{filled}v_mov_b32_e32 v3, @\n{instruction}", str(bug - offset),
                str(fix - offset), [f"lane 0 makes a misaligned {reported}"])  # fmt: skip


MISALIGNED = [
    Case(
        "misaligned_atomic",
        "v_mov_b32_e32 v3, @\nv_mov_b32_e32 v2, 1\nglobal_atomic_add v3, v2, s[4:5]",
        "2",
        "4",
        ["lane 0 makes a misaligned atomic access of 4 bytes to memory at 0x"],
        lucky=False,
    ),
    Case(
        "misaligned_lds_atomic",
        "v_mov_b32_e32 v3, @\nv_mov_b32_e32 v8, 1\nv_mov_b32_e32 v9, 1\nds_add_u64 v3, v[8:9]",
        "12",
        "16",
        ["lane 0 makes a misaligned atomic access of 8 bytes to LDS at 0xc"],
    ),
    Case(
        "misaligned_scalar_load",
        "s_add_u32 s4, s4, @\ns_load_dword s8, s[4:5], 0x0",
        "2",
        "4",
        ["a scalar access to 0x", "ignores the last two bits"],
    ),
    *(
        misaligned_lds(f"{kind}_{name}", instruction, bug, fix, f"{kind} of {size} bytes to LDS at {bug:#x}")
        for kind, name, instruction, size, bug, fix in [
            ("store", "short", "ds_write_b16 v3, v8", 2, 3, 4),
            ("store", "short_high", "ds_write_b16_d16_hi v3, v8", 2, 1, 2),
            ("store", "dword", "ds_write_b32 v3, v8", 4, 5, 8),
            ("store", "dword_at_short", "ds_write_b32 v3, v8", 4, 6, 8),
            ("store", "pair", "ds_write2_b32 v3, v8, v9 offset0:1 offset1:2", 4, 5, 4),
            ("load", "short", "ds_read_u16 v4, v3", 2, 5, 6),
            ("load", "half", "ds_read_u16_d16_hi v4, v3", 2, 5, 6),
            ("load", "dword", "ds_read_b32 v4, v3", 4, 3, 4),
            ("load", "pair", "ds_read2_b64 v[4:7], v3 offset0:0 offset1:1", 8, 1, 4),
        ]
    ),
    Case(
        "misaligned_load_to_lds",
        "s_mov_b32 m0, @\ns_nop 0\nglobal_load_lds_dword v1, s[4:5] offset:8",
        "6",
        "8",
        ["a load to LDS at 0xe, which is no multiple of 4"],
    ),
]

# The kernels have v0 to v127, of which the last 64 are accumulators, too, and SGPRs in units of 16: 32, and 6 for VCC
# and its like.
REGISTERS = [
    Case(
        "registers_of_a_vector_operand",
        "v_mov_b32_e32 @, 0",
        "v128",
        "v127",
        ["v128 is used, but the kernel's descriptor asks for 128 vector registers", "at v_mov_b32"],
    ),
    Case(
        "registers_of_an_accumulator",
        "v_accvgpr_write_b32 @, 0",
        "a64",
        "a63",
        ["a64 is used, but the kernel's descriptor asks for 64 accumulators"],
    ),
    Case(
        "registers_of_a_tuple",
        "global_load_dwordx4 @, v1, s[4:5]\ns_waitcnt vmcnt(0)",
        "v[126:129]",
        "v[124:127]",
        ["v129 is used", "at global_load_dwordx4"],
    ),
    Case(
        "registers_of_a_scalar_operand",
        "s_mov_b32 @, 0",
        "s48",
        "s47",
        ["s48 is used, but the kernel's descriptor asks for 48 scalar registers"],
    ),
]

CASES = WAITS + [hazard.case() for hazard in HAZARDS] + DEFINEDNESS + LDS_RACES + MISALIGNED + REGISTERS


@pytest.fixture(scope="module")
def module(hip: Hip, compiler: Compiler):
    kernels = {}
    for case in CASES:
        kernels[f"{case.name}_bug"] = PROLOGUE + case.body.replace("@", case.bug)
        kernels[f"{case.name}_fixed"] = PROLOGUE + case.body.replace("@", case.fix)
    return hip.load(compiler.assemble(program(kernels, LDS_BYTES)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bug_is_reported_and_its_correction_is_clean(hip: Hip, module, monkeypatch, case: Case) -> None:
    if case.level > 1:
        launch_with_buffer(hip, module, f"{case.name}_bug", case.grid, case.block)
        monkeypatch.setenv("DG_SIM_SANITIZE", str(case.level))
    with pytest.raises(HipCallError) as caught:
        launch_with_buffer(hip, module, f"{case.name}_bug", case.grid, case.block)
    message = caught.value.message
    for part in [f"kernel {case.name}_bug: ", *case.reported]:
        assert part in message
    assert re.search(PLACE, message)
    for seed in "0123":
        monkeypatch.setenv("DG_SIM_SEED", seed)
        launch_with_buffer(hip, module, f"{case.name}_fixed", case.grid, case.block)
    if case.lucky:
        monkeypatch.setenv("DG_SIM_SANITIZE", "0")
        launch_with_buffer(hip, module, f"{case.name}_bug", case.grid, case.block)  # succeeds


WIDE = """
#define KERNEL extern "C" __global__ void
// Rows of bytes and of 16 bits that begin anywhere: LLVM reads and writes them with wide instructions.
template <class T>
__device__ void add_rows(int* out) {
  __shared__ T rows[64][17];
  const int item = __builtin_amdgcn_workitem_id_x();
  for (int i = 0; i < 16; ++i) rows[item][i] = T(item + i);
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
  int sum = 0;
  for (int i = 0; i < 16; ++i) sum += rows[item ^ 1][i];
  out[item] = sum;
}
KERNEL bytes(int* out) { add_rows<char>(out); }
KERNEL shorts(int* out) { add_rows<short>(out); }
"""


@pytest.mark.parametrize("kernel", ["bytes", "shorts"])
def test_wide_accesses_of_compilers_may_be_misaligned(hip: Hip, compiler: Compiler, kernel: str) -> None:
    code = compiler.code_object(WIDE)
    assert "ds_read_b128" in disassemble_kernel(code, kernel)
    out = np.zeros(64, np.int32)
    simulator.launch(code, kernel, 1, 64, [out])
    np.testing.assert_array_equal(out, 16 * (np.arange(64) ^ 1) + 120)
