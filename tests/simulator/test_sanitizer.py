"""The sanitizer's reports: for each class of bugs a kernel with the bug, and a corrected kernel without reports.

Most kernels are assembly, because compilers would repair the bug. s[4:5] has a buffer's address, s2 the workgroup's
number, v0 the work-item's number and v1 four times that.
"""

from __future__ import annotations

import mmap
import re
from ctypes import byref, c_int, c_void_p, create_string_buffer
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from helpers.assembly import program
from helpers.simulated_hip import DEVICE_TO_DEVICE, HOST_TO_DEVICE, Compiler, Hip, HipCallError

from deep_gemm_rocm import simulator
from deep_gemm_rocm.simulator.program import disassemble_kernel

PROLOGUE = """
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  s_waitcnt lgkmcnt(0)
  v_lshlrev_b32_e32 v1, 2, v0
"""
LDS_BYTES = 2048
BUFFER_BYTES = 4096


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
DEFINE_LDS = "  v_mov_b32_e32 v9, 0\n  ds_write_b32 v1, v9\n  s_waitcnt lgkmcnt(0)\n"
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

BARRIER = "s_waitcnt lgkmcnt(0)\ns_barrier"
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

CASES = WAITS + [hazard.case() for hazard in HAZARDS] + DEFINEDNESS + LDS_RACES + MISALIGNED


@pytest.fixture(autouse=True)
def sanitize(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets DG_SIM_SANITIZE to 1 for all tests here, instead of the environment's or the default level."""
    monkeypatch.setenv("DG_SIM_SANITIZE", "1")


@pytest.fixture(scope="module")
def module(hip: Hip, compiler: Compiler):
    kernels = {}
    for case in CASES:
        kernels[f"{case.name}_bug"] = PROLOGUE + case.body.replace("@", case.bug)
        kernels[f"{case.name}_fixed"] = PROLOGUE + case.body.replace("@", case.fix)
    return hip.load(compiler.assemble(program(kernels, LDS_BYTES)))


def launch_with_buffer(hip: Hip, module, kernel: str, grid: int = 1, block: int = 64) -> None:
    buffer = hip.upload(np.zeros(BUFFER_BYTES, np.uint8))
    try:
        hip.launch(hip.function(module, kernel), grid, block, buffer)
    finally:
        hip.hipFree(buffer)


PLACE = r"; at [a-z_0-9]+ .*\), offset 0x[0-9a-f]+ from the start of the code \(0x[0-9a-f]+ from the kernel's entry\), "
PLACE += r"workgroup \(\d+, \d+, \d+\), wave \d+$"


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


# ---- Races between workgroups ----

WORKGROUPS = """
#define KERNEL extern "C" __global__ void
__device__ int group() { return __builtin_amdgcn_workgroup_id_x(); }
__device__ int item() { return __builtin_amdgcn_workitem_id_x(); }
__device__ int add(int* counter) {
  return __hip_atomic_fetch_add(counter, 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

KERNEL write_bug(int* x) { x[item()] = group(); }
KERNEL write_fixed(int* x) { x[64 * group() + item()] = group(); }

KERNEL bytes_bug(char* x) { x[63 * group() + item()] = group(); }
KERNEL bytes_fixed(char* x) { x[65 * group() + item()] = 1; }

KERNEL values_bug(int* x) { x[item()] = 7 * group(); }
KERNEL values_fixed(int* x) {
  volatile char* bytes = (char*)x;
  bytes[item()] = 5;
  *(volatile short*)(bytes + 256 + 2 * item()) = 500;
  if (item() == 0) x[256] = 50000;
  typedef int int4 __attribute__((ext_vector_type(4)));
  *(int4*)(x + 512 + 4 * item()) = int4{1, 2, 3, item()};
}

KERNEL read_bug(int* x) { x[64 * group() + item()] = x[64 * (group() ^ 1) + item()]; }
KERNEL read_fixed(int* x) { x[64 * group() + item()] = x[64 * (group() + 4) + item()]; }

KERNEL overwrite_bug(int* x) { x[64 * group() + item()] = x[64 * group() + 64 + item()]; }
KERNEL overwrite_fixed(int* x) { x[64 * group() + 512 + item()] = x[64 * group() + item()]; }

KERNEL count_bug(int* x) { if (item() == 0) x[0] += 1; }
KERNEL count_fixed(int* x) { if (item() == 0) add(x); }

KERNEL atomic_and_plain_bug(int* x) { if (item() == 0) { add(x); x[1 + group()] = x[0]; } }
KERNEL atomic_and_plain_fixed(int* x) {
  if (item() == 0) {
    add(x);
    x[1 + group()] = __hip_atomic_load(x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  }
}

// How LLVM expands atomics that the chip lacks: a plain read, then compare-and-swap until it finds what was read.
template <bool swaps>
__device__ void double_plus_one(int* x) {
  if (item() != 0) return;
  int seen = x[0];
  if (!swaps) x[0] = 2 * seen + 1;
  while (!__hip_atomic_compare_exchange_strong(x, &seen, 2 * seen + 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                               __HIP_MEMORY_SCOPE_AGENT)) {}
}
KERNEL swap_bug(int* x) { double_plus_one<false>(x); }
KERNEL swap_fixed(int* x) { double_plus_one<true>(x); }

// The last workgroup adds up what all have written.
template <bool releases, bool acquires>
__device__ void last_adds_up(int* x) {
  int* sums = x + 16;
  if (item() != 0) return;
  sums[group()] = group();
  if (releases) __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
  bool last = add(x) == 3;
  if (acquires) __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
  if (last) x[1] = sums[0] + sums[1] + sums[2] + sums[3];
}
KERNEL fence_bug(int* x) { last_adds_up<false, false>(x); }
KERNEL fence_fixed(int* x) { last_adds_up<true, true>(x); }
KERNEL release_bug(int* x) { last_adds_up<false, true>(x); }
KERNEL release_fixed(int* x) { last_adds_up<true, true>(x); }
KERNEL acquire_bug(int* x) { last_adds_up<true, false>(x); }
KERNEL acquire_fixed(int* x) { last_adds_up<true, true>(x); }

template <int release>
__device__ void add_under_lock(int* x) {
  if (item() != 0) return;
  int expected = 0;
  while (!__hip_atomic_compare_exchange_strong(x, &expected, 1, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED,
                                               __HIP_MEMORY_SCOPE_AGENT)) expected = 0;
  x[1] += group();
  __hip_atomic_store(x, 0, release, __HIP_MEMORY_SCOPE_AGENT);
}
KERNEL lock_bug(int* x) { add_under_lock<__ATOMIC_RELAXED>(x); }
KERNEL lock_fixed(int* x) { add_under_lock<__ATOMIC_RELEASE>(x); }
"""


@pytest.fixture(scope="module")
def workgroups(hip: Hip, compiler: Compiler):
    return hip.load(compiler.code_object(WORKGROUPS))


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize(
    "kernel",
    [
        "write",
        "bytes",
        "values",
        "read",
        "overwrite",
        "count",
        "atomic_and_plain",
        "swap",
        "fence",
        "release",
        "acquire",
        "lock",
    ],
)
def test_race_between_workgroups(hip: Hip, workgroups, monkeypatch, kernel: str, threads: str) -> None:
    monkeypatch.setenv("DG_SIM_THREADS", threads)
    launch_with_buffer(hip, workgroups, f"{kernel}_fixed", grid=4)
    with pytest.raises(
        HipCallError, match=r"race between workgroups: .* memory at 0x[0-9a-f]+, which workgroup"
    ) as caught:
        launch_with_buffer(hip, workgroups, f"{kernel}_bug", grid=4)
    assert re.search(PLACE, caught.value.message)
    monkeypatch.setenv("DG_SIM_SANITIZE", "0")
    launch_with_buffer(hip, workgroups, f"{kernel}_bug", grid=4)


# ---- Memory that isn't the kernel's ----


@pytest.fixture(scope="module")
def outside(hip: Hip, compiler: Compiler):
    source = """
    extern "C" __global__ void read(const int* x, int* y, int at) {
      y[__builtin_amdgcn_workitem_id_x()] = x[at + __builtin_amdgcn_workitem_id_x()];
    }
    extern "C" __global__ void write(const int* x, int* y, int at) { y[at + __builtin_amdgcn_workitem_id_x()] = 1; }
    // The resource claims more than there is; what it doesn't claim reads as zeros, and that is no error.
    __device__ __amdgpu_buffer_rsrc_t resource(const int* x) {
      return __builtin_amdgcn_make_buffer_rsrc((void*)x, 0, 0x7FFFFFFF, 0x20000);
    }
    extern "C" __global__ void buffer_read(const int* x, int* y, int at) {
      const int item = __builtin_amdgcn_workitem_id_x();
      y[item] = __builtin_amdgcn_raw_buffer_load_b32(resource(x + at), 4 * item, 0, 0);
    }
    extern "C" __global__ void buffer_write(const int* x, int* y, int at) {
      __builtin_amdgcn_raw_buffer_store_b32(1, resource(y + at), 4 * __builtin_amdgcn_workitem_id_x(), 0, 0);
    }
    extern "C" __global__ void scalar_read(const int* x, int* y, int at) {
      y[__builtin_amdgcn_workitem_id_x()] = at < 0 ? x[at] : x[at + 63];
    }
    __shared__ volatile int shared[64];
    template <class Pointer>
    __device__ void use(Pointer s, int* y, int at) {
      s[at + __builtin_amdgcn_workitem_id_x()] = 1;
      y[__builtin_amdgcn_workitem_id_x()] = s[__builtin_amdgcn_workitem_id_x()];
    }
    extern "C" __global__ void local(const int* x, int* y, int at) {
      use((volatile __attribute__((address_space(3))) int*)shared, y, at);
    }
    extern "C" __global__ void flat(const int* x, int* y, int at) { use((volatile int*)shared, y, at); }
    """
    return hip.load(compiler.code_object(source))


def is_known(hip: Hip, address: int) -> bool:
    try:
        hip.hipPointerGetAttributes(create_string_buffer(256), address)
    except HipCallError:
        return False
    return True


@pytest.mark.parametrize("at", [-64, -1, 1, 64, 1000])
@pytest.mark.parametrize("kernel", ["read", "write", "buffer_read", "buffer_write", "scalar_read"])
def test_access_beside_a_buffer(hip: Hip, outside, kernel: str, at: int) -> None:
    for _ in range(10):  # a tensor of another test may end where a buffer begins
        buffers = [hip.upload(np.zeros(64, np.int32)) for _ in range(4)]  # neighbouring buffers must not hide the bug
        if not any(is_known(hip, buffer + (4 * (63 + at) if at > 0 else -4)) for buffer in buffers[1:3]):
            break
    function = hip.function(outside, kernel)
    hip.launch(function, 1, 64, buffers[1], buffers[2], c_int(0))
    access = r"(lane \d+ accesses|scalar load of) 4 bytes at 0x[0-9a-f]+, outside the memory"
    with pytest.raises(HipCallError, match=access) as caught:
        hip.launch(function, 1, 64, buffers[1], buffers[2], c_int(at))
    assert caught.value.name == "hipErrorIllegalAddress"
    assert re.search(PLACE, caught.value.message)
    hip.launch(function, 1, 64, buffers[1], buffers[2], c_int(0))


@pytest.mark.parametrize("at", [-11, -10, 26, 27])
def test_tensors_are_known_by_their_storage(compiler: Compiler, at: int) -> None:
    source = """
    extern "C" __global__ void write(int* x, int at) { x[at + (int)__builtin_amdgcn_workitem_id_x()] = 1; }
    """
    storage = torch.zeros(100, dtype=torch.int32)
    view = storage[10:20]
    if at in (-10, 26):
        simulator.launch(compiler.code_object(source), "write", 1, 64, [view, at])
        assert torch.equal(storage, torch.nn.functional.pad(torch.ones(64), (10 + at, 26 - at)).int())
    else:
        with pytest.raises(simulator.SimulatorError, match=r"accesses 4 bytes at .* outside the memory"):
            simulator.launch(compiler.code_object(source), "write", 1, 64, [view, at])


@pytest.mark.parametrize("kernel", ["read", "write"])
def test_access_to_freed_memory_and_to_null(hip: Hip, outside, kernel: str) -> None:
    x, freed = (hip.upload(np.zeros(64, np.int32)) for _ in range(2))
    hip.hipFree(freed)
    past = "; the memory was freed: byte 0 of 256 that hipMalloc allocated and hipFree freed"
    for bad, reported in ((freed, past), (0, "wave 0$")):
        with pytest.raises(HipCallError, match=f"lane 0 accesses 4 bytes at 0x.* outside the memory.*{reported}"):
            hip.launch(hip.function(outside, kernel), 1, 64, *((bad, x) if kernel == "read" else (x, bad)), c_int(0))


@pytest.mark.parametrize("at", [-1, 1, 64])
@pytest.mark.parametrize("kernel", ["local", "flat"])
def test_access_beyond_lds(hip: Hip, outside, kernel: str, at: int) -> None:
    x = hip.upload(np.zeros(64, np.int32))
    function = hip.function(outside, kernel)
    hip.launch(function, 1, 64, x, x, c_int(0))
    lane, position = (0, "0xfffffffc") if at < 0 else (64 - at, "0x100")
    with pytest.raises(
        HipCallError, match=f"kernel {kernel}: lane {lane} accesses 4 bytes .*{position}.* LDS|LDS .*{position}"
    ):
        hip.launch(function, 1, 64, x, x, c_int(at))


def test_access_beyond_scratch(hip: Hip, compiler: Compiler) -> None:
    """The access is right after a lane's scratch, where the next lane's begins."""
    bodies = {f"at_{offset}": f"v_mov_b32_e32 v1, {offset}\nscratch_store_dword v1, v0, off" for offset in (12, 14, 16)}
    text = program(bodies).replace(".private_segment_fixed_size: 0", ".private_segment_fixed_size: 16")
    text = text.replace(".amdhsa_kernel_code", "").replace(
        "  .amdhsa_kernarg_size", "  .amdhsa_private_segment_fixed_size 16\n  .amdhsa_kernarg_size"
    )
    module = hip.load(compiler.assemble(text))
    hip.launch(hip.function(module, "at_12"), 1, 64, 0)
    for offset in (14, 16):
        with pytest.raises(HipCallError, match=f"lane 0 accesses 4 bytes at {offset:#x}, outside the scratch"):
            hip.launch(hip.function(module, f"at_{offset}"), 1, 64, 0)


def test_lds_addresses_wrap_around(hip: Hip, compiler: Compiler) -> None:
    """Compilers index backwards with negative addresses and an offset."""
    body = """
      v_sub_u32_e32 v2, 0, v1
      ds_write_b32 v2, v0 offset:252
      ds_add_u32 v2, v0 offset:252
      v_mov_b32_e32 v6, 0
      ds_write_b8 v2, v6 offset:253
      ds_read_u16 v3, v2 offset:252
      ds_read2_b32 v[4:5], v2 offset0:63 offset1:63
      s_waitcnt lgkmcnt(0)
      v_add3_u32 v3, v3, v4, v5
      global_store_dword v1, v3, s[4:5]
    """
    x = hip.upload(np.zeros(64, np.int32))
    module = hip.load(compiler.assemble(program({"backwards": PROLOGUE + body}, LDS_BYTES)))
    hip.launch(hip.function(module, "backwards"), 1, 64, x)
    assert np.array_equal(hip.download(x, np.zeros(64, np.int32)), 6 * np.arange(64))


def test_freed_addresses_are_not_given_out_again_at_once(hip: Hip, outside) -> None:
    x, freed = hip.upload(np.zeros(64, np.int32)), hip.upload(np.zeros(64, np.int32))
    hip.hipFree(freed)
    others = [hip.upload(np.zeros(64, np.int32)) for _ in range(50)]
    assert freed not in others
    with pytest.raises(HipCallError, match=r"lane 0 accesses 4 bytes at 0x.* outside the memory"):
        hip.launch(hip.function(outside, "read"), 1, 64, freed, x, c_int(0))


# ---- Global memory that nothing has written ----

UNWRITTEN = """
#define KERNEL extern "C" __global__ void
__device__ int item() { return __builtin_amdgcn_workitem_id_x(); }
KERNEL address(const int* x, int* y) { y[x[item()] & 63] = 1; }
KERNEL branch(const int* x, int* y) {
  if (x[item()] > 5) y[item()] = 1;
  else __builtin_amdgcn_s_sleep(1);
}
KERNEL store(const int* x, int* y) { y[item()] = x[item()]; }
KERNEL scalar_address(const int* x, int* y) { y[x[40] & 63] = 1; }
KERNEL scalar_branch(const int* x, int* y) { if (x[40] == 7) y[item()] = 1; }
KERNEL bytes(const char* x, int* y) { y[item()] = x[128 + item()]; }
KERNEL wide(const int* x, int* y) {
  typedef int int4 __attribute__((ext_vector_type(4)));
  if (item() < 16) ((int4*)y)[item()] = ((const int4*)x)[item()];
}
KERNEL count(int* x, int* y) {
  __hip_atomic_fetch_add(x + item(), 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  y[0] = x[40];
}
KERNEL unused(const int* x, int* y) {
  volatile const int* p = x;
  int loaded = p[item()];
  asm volatile("s_waitcnt vmcnt(0)" : : "v"(loaded));
  y[item()] = 1;
}
KERNEL fill(int* x, int* y) { x[item()] = item(); }
"""


@pytest.fixture(scope="module")
def unwritten(hip: Hip, compiler: Compiler):
    return hip.load(compiler.code_object(UNWRITTEN))


@pytest.mark.parametrize(
    ("kernel", "reported"),
    [
        ("address", "the address in"),
        ("branch", "a branch on"),
        ("store", "what is stored"),
        ("scalar_address", "the address in"),
        ("scalar_branch", "a branch on"),
        ("bytes", "what is stored"),
        ("wide", "what is stored"),
    ],
)
def test_unwritten_memory(hip: Hip, unwritten, kernel: str, reported: str) -> None:
    """First only the first half of x is written, by the host, a copy or a kernel; then all of x."""
    x, y, source = hip.malloc(256), hip.malloc(256), hip.malloc(256)
    hip.hipMemset(source, 0, 128)
    function = hip.function(unwritten, kernel)
    for write_half in (
        lambda: None,
        lambda: hip.hipMemset(x, 1, 128),
        lambda: hip.hipMemcpy(x, source, 256, DEVICE_TO_DEVICE),  # only half of the source is written
        lambda: hip.launch(hip.function(unwritten, "fill"), 1, 32, x, y),
    ):
        write_half()
        with pytest.raises(
            HipCallError, match=rf"kernel {kernel}: {reported}.* memory that (never was|was never)"
        ) as caught:
            hip.launch(function, 1, 64, x, y)
        assert re.search(PLACE, caught.value.message)
    for write_all in (
        lambda: hip.launch(hip.function(unwritten, "fill"), 1, 64, x, y),
        lambda: hip.hipMemcpy(x, np.zeros(64, np.int32), 256, HOST_TO_DEVICE),
    ):
        write_all()
        hip.launch(function, 1, 64, x, y)
    for pointer in (x, y, source):
        hip.hipFree(pointer)


def test_memory_that_may_have_been_written(hip: Hip, unwritten, monkeypatch) -> None:
    """No reports after writes by atomics, unsanitized launches or the host, or if a loaded value isn't used."""
    x, y, host = hip.malloc(256), hip.malloc(256), c_void_p()
    hip.launch(hip.function(unwritten, "unused"), 1, 64, x, y)
    hip.launch(hip.function(unwritten, "count"), 1, 64, x, y)
    hip.hipHostMalloc(byref(host), 256, 0)
    hip.launch(hip.function(unwritten, "store"), 1, 64, host, y)
    hip.hipFree(x)
    x = hip.malloc(256)
    with monkeypatch.context() as context:
        context.setenv("DG_SIM_SANITIZE", "0")
        hip.launch(hip.function(unwritten, "fill"), 1, 64, x, y)
    hip.launch(hip.function(unwritten, "store"), 1, 64, x, y)
    for pointer in (x, y, host):
        hip.hipFree(pointer)


def test_neighbours_do_not_hide_what_was_never_written(hip: Hip, unwritten) -> None:
    """Host memory right after an allocation, as pages of modules and tensors may be."""
    page = mmap.PAGESIZE
    x, y = hip.malloc(page), hip.malloc(256)
    hip.hipHostRegister(x + page, page, 0)
    for kernel in ("store", "branch"):
        with pytest.raises(HipCallError, match=f"kernel {kernel}: .* memory that (never was|was never)"):
            hip.launch(hip.function(unwritten, kernel), 1, 64, x, y)
    hip.hipHostUnregister(x + page)
    for pointer in (x, y):
        hip.hipFree(pointer)


# ---- Scratch that nothing has written ----

SCRATCH = """
#define KERNEL extern "C" __global__ void
__device__ int item() { return __builtin_amdgcn_workitem_id_x(); }
__device__ void fill(volatile int* a, int n) { for (int i = 0; i < n; ++i) a[i] = 1; }
KERNEL variable(int* x, int n) {
  volatile int a;
  if (item() < 16 * n) a = 1;
  x[item()] = a;
}
KERNEL array(int* x, int n) {
  volatile int a[4];
  for (int i = 0; i < n; ++i) a[i] = i;
  x[item()] = a[item() & 3];
}
KERNEL address(int* x, int n) {
  volatile int a[4];
  for (int i = 0; i < n; ++i) a[i] = i;
  x[a[item() & 3] & 63] = 1;
}
KERNEL branch(int* x, int n) {
  volatile int a[4];
  for (int i = 0; i < n; ++i) a[i] = i;
  if (a[3] > 5) x[item()] = 1;
}
KERNEL called(int* x, int n) {
  volatile int a[4];
  fill(a, n);
  x[item()] = a[item() & 3];
}
"""


@pytest.fixture(scope="module", params=["-O0", "-O3"])
def unwritten_scratch(hip: Hip, compiler: Compiler, request: pytest.FixtureRequest):
    return hip.load(compiler.code_object(SCRATCH, request.param))


@pytest.mark.parametrize("kernel", ["variable", "array", "address", "branch", "called"])
def test_unwritten_scratch(hip: Hip, unwritten_scratch, kernel: str) -> None:
    x = hip.upload(np.zeros(64, np.int32))
    function = hip.function(unwritten_scratch, kernel)
    hip.launch(function, 1, 64, x, c_int(4))
    with pytest.raises(HipCallError, match="was never written") as caught:
        hip.launch(function, 1, 64, x, c_int(3))
    assert re.search(PLACE, caught.value.message)
    hip.hipFree(x)


STRUCTURES = """
#define KERNEL extern "C" __global__ void
struct Narrow { char tag; int value; };
struct Wide { int tag; double value; };
__device__ int item() { return __builtin_amdgcn_workitem_id_x(); }
__device__ void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
template <class T>
__device__ void fill(T& x) { x.tag = item(); x.value = item(); }

// y is a copy of what is in x; of neither has anything written the padding.
template <class T>
__device__ void copy(T* x, T* y) {
  T copy = x[item()], other = x[item() ^ 1];
  y[item()] = item() & 4 ? copy : other;
  y[128] = x[7];
}
template <class T>
__device__ void copy_from_lds(T* y) {
  __shared__ T shared[128];
  fill(shared[item()]);
  barrier();
  y[item()] = shared[item() ^ 64];
}
template <class T>
__device__ void copy_to_lds(T* x, T* y) {
  __shared__ T shared[128];
  shared[item()] = x[item()];
  barrier();
  y[item()] = shared[item() ^ 64];
}
KERNEL fill_narrow(Narrow* x, Narrow* y) { fill(x[item()]); }
KERNEL fill_wide(Wide* x, Wide* y) { fill(x[item()]); }
KERNEL copy_narrow(Narrow* x, Narrow* y) { copy(x, y); }
KERNEL copy_wide(Wide* x, Wide* y) { copy(x, y); }
KERNEL from_lds_narrow(Narrow* x, Narrow* y) { copy_from_lds(y); }
KERNEL from_lds_wide(Wide* x, Wide* y) { copy_from_lds(y); }
KERNEL to_lds_narrow(Narrow* x, Narrow* y) { copy_to_lds(x, y); }
KERNEL to_lds_wide(Wide* x, Wide* y) { copy_to_lds(x, y); }

// What is padding of a Wide is the second number here.
typedef int Numbers __attribute__((ext_vector_type(4)));
KERNEL use_number(const Numbers* x, int* y) { Numbers n = x[item()]; y[item()] = n.x + n.z + n.w; }
KERNEL use_padding(const Numbers* x, int* y) { Numbers n = x[item()]; y[item()] = n.x + n.y; }
KERNEL use_padding_of_all(const Numbers* x, int* y) { Numbers n = x[1]; y[item()] = n.x + n.y; }
KERNEL store_padding(const Numbers* x, int* y) { y[item()] = x[item()].y; }
"""


@pytest.fixture(scope="module", params=["-O0", "-O3"])
def structures(hip: Hip, compiler: Compiler, request: pytest.FixtureRequest):
    return hip.load(compiler.code_object(STRUCTURES, request.param))


@pytest.mark.parametrize("way", ["copy", "from_lds", "to_lds"])
@pytest.mark.parametrize("kind", ["narrow", "wide"])
def test_structures_are_copied_with_their_padding(hip: Hip, structures, kind: str, way: str) -> None:
    x, y, numbers = (hip.malloc(129 * 16) for _ in range(3))
    hip.launch(hip.function(structures, f"fill_{kind}"), 1, 128, x, y)
    hip.launch(hip.function(structures, f"{way}_{kind}"), 1, 128, x, y)
    if kind == "wide":  # the copy's padding is as uninitialised as the original's
        for memory in (x, y):
            hip.launch(hip.function(structures, "use_number"), 1, 128, memory, numbers)
            for kernel in ("use_padding", "use_padding_of_all", "store_padding"):
                with pytest.raises(HipCallError, match=f"kernel {kernel}: what is stored.* memory that never was"):
                    hip.launch(hip.function(structures, kernel), 1, 128, memory, numbers)
    for pointer in (x, y, numbers):
        hip.hipFree(pointer)


# ---- Barriers that not all waves reach, and waves that never end ----

BARRIERS = """
extern "C" __global__ void some(int* x, int waves) {
  int item = __builtin_amdgcn_workitem_id_x();
  if (item < 64 * waves) __builtin_amdgcn_s_barrier();
  x[item] = 1;
}
extern "C" __global__ void second(int* x, int waves) {
  int item = __builtin_amdgcn_workitem_id_x();
  __builtin_amdgcn_s_barrier();
  if (item >= 64 * waves) return;
  __builtin_amdgcn_s_barrier();
  x[item] = 1;
}
"""


@pytest.mark.parametrize("timing", ["0", "1"])
@pytest.mark.parametrize("kernel", ["some", "second"])
def test_barrier_that_not_all_waves_reach(hip: Hip, compiler: Compiler, monkeypatch, kernel: str, timing: str) -> None:
    monkeypatch.setenv("DG_SIM_TIMING", timing)
    x = hip.upload(np.zeros(256, np.int32))
    function = hip.function(hip.load(compiler.code_object(BARRIERS)), kernel)
    hip.launch(function, 1, 256, x, c_int(4))
    with pytest.raises(HipCallError, match=r"not all waves reach; .*ended: wave 2, 3; at s_barrier") as caught:
        hip.launch(function, 1, 256, x, c_int(2))
    assert re.search(PLACE, caught.value.message)
    hip.launch(function, 1, 256, x, c_int(4))
    monkeypatch.setenv("DG_SIM_SANITIZE", "0")
    hip.launch(function, 1, 256, x, c_int(2))  # the chip doesn't wait for waves that have ended
    hip.hipFree(x)


SPINNING = {
    # Wave 1 polls LDS for a value that wave 0 writes only after a barrier.
    "spin_bug": DEFINE_LDS
    + BARRIER
    + "\nv_readfirstlane_b32 s8, v0\ns_cmp_eq_u32 s8, 0\ns_cbranch_scc0 spin_bug_poll\n"
    "s_barrier\ns_endpgm\nspin_bug_poll:\nv_mov_b32_e32 v3, 0\nds_read_b32 v2, v3\ns_waitcnt lgkmcnt(0)\n"
    "v_readfirstlane_b32 s9, v2\ns_cmp_eq_u32 s9, 0\ns_cbranch_scc1 spin_bug_poll\ns_barrier",
    "endless_bug": "s_nop 4\nv_readfirstlane_b32 s8, v0\ns_cmp_eq_u32 s8, 0\ns_cbranch_scc1 1\n"
    "endless_bug_again: s_branch endless_bug_again",
    "spin_fixed": DEFINE_LDS + BARRIER,
}


@pytest.fixture(scope="module")
def spinning(hip: Hip, compiler: Compiler):
    kernels = {name: PROLOGUE + body for name, body in SPINNING.items()}
    return hip.load(compiler.assemble(program(kernels, LDS_BYTES)))


def test_deadlock_tells_who_waits_where(hip: Hip, spinning, monkeypatch) -> None:
    monkeypatch.setenv("DG_SIM_MAX_INSTRUCTIONS", "20000")
    launch_with_buffer(hip, spinning, "spin_fixed", block=192)
    with pytest.raises(HipCallError, match=r"; at the s_barrier at offset 0x[0-9a-f]+: wave 0; ") as caught:
        launch_with_buffer(hip, spinning, "spin_bug", block=192)
    assert caught.value.name == "hipErrorLaunchTimeOut"
    assert re.search(r"instructions without an end \(limit: DG_SIM_MAX_INSTRUCTIONS\)", caught.value.message)
    assert re.search(PLACE, caught.value.message)
    with pytest.raises(HipCallError, match=r"; ended: wave 0; at s_branch"):
        launch_with_buffer(hip, spinning, "endless_bug", block=128)


# ---- Order of waves ----


def test_seed_chooses_the_order_of_waves(hip: Hip, compiler: Compiler, monkeypatch) -> None:
    source = """
    __shared__ int tickets;
    extern "C" __global__ void order(int* x) {
      int item = __builtin_amdgcn_workitem_id_x();
      if (item == 0) tickets = 0;
      __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
      __builtin_amdgcn_s_barrier();
      if (item % 64) return;
      x[item / 64] = __hip_atomic_fetch_add(&tickets, 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
    }
    """
    function = hip.function(hip.load(compiler.code_object(source)), "order")
    x = hip.upload(np.zeros(8, np.int32))

    def order(seed: int) -> tuple[int, ...]:
        monkeypatch.setenv("DG_SIM_SEED", str(seed))
        hip.launch(function, 1, 512, x)
        return tuple(hip.download(x, np.zeros(8, np.int32)))

    orders = [order(seed) for seed in range(8)]
    assert len(set(orders)) > 4
    assert all(sorted(tickets) == list(range(8)) for tickets in orders)
    assert [order(seed) for seed in range(8)] == orders
