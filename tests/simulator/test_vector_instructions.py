"""Single vector instructions on edge cases, against numpy, exact fractions and the tables of the ISA manual."""

from __future__ import annotations

import math
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from helpers.machine import POISON, Machine, doubles
from helpers.simulated_hip import Compiler

from deep_gemm_rocm import simulator

F32 = np.float32
LANE = np.arange(64)


def pairs(values: np.ndarray, seed: int, count: int = 3) -> list[np.ndarray]:
    """For each operand, all values in random order, repeated so that many pairs meet."""
    rng = np.random.default_rng(seed)
    return [np.concatenate([rng.permutation(values)] * (64 // len(values) + 1))[:64] for _ in range(count)]


SPECIAL_F32 = np.array(
    [
        *(0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 1.1754944e-38, 3.4028235e38),
        *(
            -3e-39,
            0.49999997,
            8388607.5,
            16777217,
            2**31,
            -(2.0**31),
            2**32,
            65504,
            65520,
            1e-8,
            3.14159,
            -255.5,
            1e-20,
        ),
    ],
    F32,
)
INTEGERS = np.array(
    [0, 1, 2, 7, 31, 32, 33, 255, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF], np.uint32
)
INTEGERS = np.concatenate([INTEGERS, np.random.default_rng(0).integers(0, 2**32, 40).astype(np.uint32)])


def signed(x: int, bits: int = 32) -> int:
    x &= 2**bits - 1
    return x - 2**bits if x >> (bits - 1) else x


def perm(a: int, b: int, c: int) -> int:
    source, result = a << 32 | b, 0
    for i in range(4):
        selector = c >> 8 * i & 255
        if selector < 8:
            byte = source >> 8 * selector & 255
        elif selector < 12:
            byte = 255 * (source >> (16 * (selector - 8) + 15) & 1)
        else:
            byte = 0 if selector == 12 else 255
        result |= byte << 8 * i
    return result


def dot(a: int, b: int, c: int, bits: int, is_signed: bool) -> int:
    def element(x: int, i: int) -> int:
        return signed(x >> bits * i, bits) if is_signed else x >> bits * i & (2**bits - 1)

    return sum(element(a, i) * element(b, i) for i in range(32 // bits)) + (signed(c) if is_signed else c)


def clamp(x: int, low: int, high: int) -> int:
    return max(low, min(x, high))


def half(x: int, high: int) -> int:
    return x >> 16 if high else x & 0xFFFF


def packed(f: Callable[[int, int], int], a: int, b: int) -> int:
    """Applies f to both signed halves."""
    return sum((f(signed(a >> s, 16), signed(b >> s, 16)) & 0xFFFF) << s for s in (0, 16))


def byte_differences(a: int, b: int, masked: bool = False) -> int:
    pairs_of_bytes = [(a >> s & 255, b >> s & 255) for s in (0, 8, 16, 24)]
    return sum(abs(x - y) for x, y in pairs_of_bytes if y or not masked)


def averages(a: int, b: int, c: int) -> int:
    return sum((((a >> s & 255) + (b >> s & 255) + (c >> s & 1)) >> 1) << s for s in (0, 8, 16, 24))


def bit_field(a: int, offset: int, width: int) -> int:
    offset, width = offset & 31, width & 31
    return signed(signed(a) >> offset, width) if width else 0


def leading_sign_bits(a: int) -> int:
    return -1 if signed(a) in (0, -1) else 32 - (a if signed(a) > 0 else ~a & 0xFFFFFFFF).bit_length()


def mad_halves(a: int, b: int, c: int) -> int:
    low, high = half(a, 1) * half(b, 0) + half(c, 0), half(a, 0) * half(b, 1) + half(c, 1)
    return low & 0xFFFF | (high & 0xFFFF) << 16


def clamp16(x: int) -> int:
    return clamp(x, -32768, 32767)


def sdwa(text: str, selection: str, unused: str, first: str, second: str) -> str:
    return f"{text} dst_sel:{selection} dst_unused:UNUSED_{unused} src0_sel:{first} src1_sel:{second}"


# Integer instructions with up to three 32-bit operands, and functions that compute their results.
INTEGER: dict[str, Callable[[int, int, int], int]] = {
    "v_add_u32_e64 v20, v10, v11 clamp": lambda a, b, c: clamp(a + b, 0, 2**32 - 1),
    "v_sub_u32_e64 v20, v10, v11 clamp": lambda a, b, c: clamp(a - b, 0, 2**32 - 1),
    "v_add_i32 v20, v10, v11 clamp": lambda a, b, c: clamp(signed(a) + signed(b), -(2**31), 2**31 - 1),
    "v_sub_i32 v20, v10, v11": lambda a, b, c: a - b,
    "v_mul_hi_i32 v20, v10, v11": lambda a, b, c: signed(a) * signed(b) >> 32,
    "v_mul_hi_u32 v20, v10, v11": lambda a, b, c: a * b >> 32,
    "v_mul_hi_i32_i24_e32 v20, v10, v11": lambda a, b, c: signed(a, 24) * signed(b, 24) >> 32,
    "v_mad_i32_i24 v20, v10, v11, v12": lambda a, b, c: signed(a, 24) * signed(b, 24) + c,
    "v_mad_u32_u16 v20, v10, v11, v12 op_sel:[1,0,0,0]": lambda a, b, c: half(a, 1) * half(b, 0) + c,
    "v_bfe_i32 v20, v10, v11, v12": bit_field,
    "v_bfe_u32 v20, v10, v11, v12": lambda a, b, c: (a >> (b & 31)) & (2 ** (c & 31) - 1),
    "v_bfi_b32 v20, v10, v11, v12": lambda a, b, c: a & b | ~a & c,
    "v_bfm_b32 v20, v10, v11": lambda a, b, c: (2 ** (a & 31) - 1) << (b & 31),
    "v_perm_b32 v20, v10, v11, v12": perm,
    "v_alignbit_b32 v20, v10, v11, v12": lambda a, b, c: (a << 32 | b) >> (c & 31),
    "v_alignbyte_b32 v20, v10, v11, v12": lambda a, b, c: (a << 32 | b) >> 8 * (c & 3),
    "v_med3_i32 v20, v10, v11, v12": lambda a, b, c: sorted(map(signed, (a, b, c)))[1],
    "v_med3_u32 v20, v10, v11, v12": lambda a, b, c: sorted((a, b, c))[1],
    "v_min3_u32 v20, v10, v11, v12": lambda a, b, c: min(a, b, c),
    "v_max3_i32 v20, v10, v11, v12": lambda a, b, c: max(map(signed, (a, b, c))),
    "v_xad_u32 v20, v10, v11, v12": lambda a, b, c: (a ^ b) + c,
    "v_lshl_add_u32 v20, v10, v11, v12": lambda a, b, c: (a << (b & 31)) + c,
    "v_add_lshl_u32 v20, v10, v11, v12": lambda a, b, c: a + b << (c & 31),
    "v_ashrrev_i32_e32 v20, v10, v11": lambda a, b, c: signed(b) >> (a & 31),
    "v_ffbh_i32_e32 v20, v10": lambda a, b, c: leading_sign_bits(a),
    "v_ffbh_u32_e32 v20, v10": lambda a, b, c: 32 - a.bit_length() if a else -1,
    "v_ffbl_b32_e32 v20, v10": lambda a, b, c: (a & -a).bit_length() - 1,
    "v_bfrev_b32_e32 v20, v10": lambda a, b, c: int(f"{a:032b}"[::-1], 2),
    "v_bcnt_u32_b32 v20, v10, v11": lambda a, b, c: a.bit_count() + b,
    "v_sad_u8 v20, v10, v11, v12": lambda a, b, c: byte_differences(a, b) + c,
    "v_msad_u8 v20, v10, v11, v12": lambda a, b, c: byte_differences(a, b, masked=True) + c,
    "v_sad_u16 v20, v10, v11, v12": lambda a, b, c: sum(abs((a >> s & 65535) - (b >> s & 65535)) for s in (0, 16)) + c,
    "v_lerp_u8 v20, v10, v11, v12": averages,
    "v_dot4_i32_i8 v20, v10, v11, v12": lambda a, b, c: dot(a, b, c, 8, True),
    "v_dot4_u32_u8 v20, v10, v11, v12 clamp": lambda a, b, c: clamp(dot(a, b, c, 8, False), 0, 2**32 - 1),
    "v_dot2_i32_i16 v20, v10, v11, v12 clamp": lambda a, b, c: clamp(dot(a, b, c, 16, True), -(2**31), 2**31 - 1),
    "v_dot8_i32_i4 v20, v10, v11, v12": lambda a, b, c: dot(a, b, c, 4, True),
    "v_dot8_u32_u4 v20, v10, v11, v12": lambda a, b, c: dot(a, b, c, 4, False),
    "v_cvt_pk_i16_i32 v20, v10, v11": lambda a, b, c: clamp16(signed(a)) & 0xFFFF | (clamp16(signed(b)) & 0xFFFF) << 16,
    "v_sat_pk_u8_i16_e32 v20, v10": lambda a, b, c: (
        clamp(signed(a, 16), 0, 255) | clamp(signed(a >> 16, 16), 0, 255) << 8
    ),
    "v_pk_add_i16 v20, v10, v11 clamp": lambda a, b, c: packed(lambda x, y: clamp16(x + y), a, b),
    "v_pk_mad_u16 v20, v10, v11, v12 op_sel:[1,0,0] op_sel_hi:[0,1,1]": mad_halves,
    "v_pk_ashrrev_i16 v20, v10, v11": lambda a, b, c: packed(lambda x, y: y >> (x & 15), a, b),
    "v_mad_u16 v20, v10, v11, v12 op_sel:[0,1,0,1]": lambda a, b, c: (
        POISON & 0xFFFF | (half(a, 0) * half(b, 1) + half(c, 0) & 0xFFFF) << 16
    ),
    "v_mad_legacy_u16 v20, v10, v11, v12": lambda a, b, c: half(a, 0) * half(b, 0) + half(c, 0) & 0xFFFF,
    # SDWA: operates on a byte or word of each source, sign-extended or not, and writes a part of the destination.
    sdwa("v_add_u32_sdwa v20, sext(v10), v11", "DWORD", "PAD", "BYTE_2", "WORD_1"): lambda a, b, c: (
        signed(a >> 16, 8) + (b >> 16)
    ),
    sdwa("v_mul_u32_u24_sdwa v20, v10, v11", "BYTE_1", "PRESERVE", "BYTE_0", "BYTE_3"): lambda a, b, c: (
        POISON & 0xFFFF00FF | ((a & 255) * (b >> 24) & 255) << 8
    ),
    sdwa("v_add_u32_sdwa v20, v10, v11", "WORD_0", "SEXT", "DWORD", "DWORD"): lambda a, b, c: signed(a + b, 16),
    sdwa("v_or_b32_sdwa v20, v10, v11", "WORD_1", "PAD", "WORD_0", "WORD_1"): lambda a, b, c: (
        (a & 0xFFFF | b >> 16) << 16
    ),
}

# The source lane of each lane; None if it has none.
DPP: dict[str, Callable[[int], int | None]] = {
    "quad_perm:[3,0,2,1]": lambda i: i & ~3 | (3, 0, 2, 1)[i & 3],
    "row_shl:3": lambda i: i + 3 if i % 16 + 3 < 16 else None,
    "row_shr:5": lambda i: i - 5 if i % 16 >= 5 else None,
    "row_ror:2": lambda i: i & ~15 | (i - 2) & 15,
    "wave_shl:1": lambda i: i + 1 if i < 63 else None,
    "wave_shr:1": lambda i: i - 1 if i else None,
    "wave_rol:1": lambda i: (i + 1) % 64,
    "wave_ror:1": lambda i: (i - 1) % 64,
    "row_mirror": lambda i: i & ~15 | 15 - i % 16,
    "row_half_mirror": lambda i: i & ~7 | 7 - i % 8,
    "row_bcast:15": lambda i: (i & ~15) - 1 if i >= 16 else None,
    "row_bcast:31": lambda i: 31 if i >= 32 else None,
    "row_newbcast:6": lambda i: i & ~15 | 6,
}
SOME_LANES = 0xF0F3FFFF7FFFFF0F
DPP_FORMS = {"": (15, 15, False), " row_mask:0xa bank_mask:0x5": (10, 5, False), " bound_ctrl:1": (15, 15, True)}


def dpp_body(control: str, form: str) -> str:
    rest = form if "row_mask" in form else f" row_mask:0xf bank_mask:0xf{form}"
    mask = f"  s_mov_b32 exec_lo, {SOME_LANES & 0xFFFFFFFF:#x}\n  s_mov_b32 exec_hi, {SOME_LANES >> 32:#x}\n  s_nop 4\n"
    return f"\n{mask}  v_mov_b32_dpp v20, v10 {control}{rest}\n"


SWIZZLES = {
    # Three masks: AND, OR and XOR.
    28 | 2 << 5 | 8 << 10: ",".join(f"{(((lane & 28) | 2) ^ 8) + 1:x}" for lane in range(32)),
    # The manual's examples: the source lane of each lane, counted from 1.
    0xE000: "1,11,9,19,5,15,d,1d,3,13,b,1b,7,17,f,1f,2,12,a,1a,6,16,e,1e,4,14,c,1c,8,18,10,20",
    0xE010: "1,9,5,d,3,b,7,f,2,a,6,e,4,c,8,10,11,19,15,1d,13,1b,17,1f,12,1a,16,1e,14,1c,18,20",
    # A mask without the upper bits, by the manual's pseudocode.
    0xE005: ",".join(f"{(int(f'{lane:05b}'[::-1], 2) >> 2 | lane & 5) + 1:x}" for lane in range(32)),
    0xC020: "2,3,4,5,6,7,8,9,a,b,c,d,e,f,10,11,12,13,14,15,16,17,18,19,1a,1b,1c,1d,1e,1f,20,1",
    0xC420: "20,1,2,3,4,5,6,7,8,9,a,b,c,d,e,f,10,11,12,13,14,15,16,17,18,19,1a,1b,1c,1d,1e,1f",
    0xC021: "1,4,3,6,5,8,7,a,9,c,b,e,d,10,f,12,11,14,13,16,15,18,17,1a,19,1c,1b,1e,1d,20,1f,2",
}


def swizzle_body(offset: int) -> str:
    return f"\n  ds_swizzle_b32 v20, v10 offset:{offset}\n  s_waitcnt lgkmcnt(0)\n"


def mode(flags: int) -> str:
    return f"\n  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 8), {flags:#x}\n"


NO_IEEE = "\n  s_nop 1\n  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 9, 1), 0\n"
MINIMA = "\n  v_min_f32_e32 v20, v10, v11\n  v_max_f32_e32 v21, v10, v11\n  v_med3_f32 v22, v10, v11, v12\n"
OMOD = "\n  v_mul_f32_e64 v20, v10, v11 mul:4\n  v_add_f32_e64 v21, v10, v11 clamp\n"
ROUNDED = (
    "\n  v_rndne_f32_e32 v20, v10\n  v_floor_f32_e32 v21, v10\n  v_ceil_f32_e32 v22, v10\n  v_trunc_f32_e32 v23, v10\n"
)
ROUNDED_F16 = ROUNDED.replace("f32", "f16")
ROUNDED_F64 = "\n  v_cvt_f64_f32_e32 v[30:31], v10\n" + "".join(
    f"  v_{name}_f64_e32 v[32:33], v[30:31]\n  v_cvt_f32_f64_e32 v{result}, v[32:33]\n"
    for result, name in enumerate(("rndne", "floor", "ceil", "trunc"), 20)
)
FLOAT_MATH = "\n  v_add_f32_e32 v20, v10, v11\n  v_mul_f32_e32 v21, v10, v11\n  v_fma_f32 v22, v10, v11, v12\n"
# For each destination, the registers of its operands in order. An instruction for doubles takes the next ones, too.
NANS_F32 = {
    "v_add_f32_e32 v20, v10, v11": (10, 11),
    "v_sub_f32_e32 v21, v10, v11": (10, 11),
    "v_subrev_f32_e32 v22, v10, v11": (11, 10),
    "v_mul_f32_e32 v23, v10, v11": (10, 11),
    "v_fma_f32 v24, v11, v10, v12": (11, 10, 12),
    "v_pk_add_f32 v[26:27], v[10:11], v[12:13]": (10, 12),
}
NANS_PACKED = {
    "v_pk_mul_f32 v[20:21], v[10:11], v[12:13]": (10, 12),
    "v_pk_fma_f32 v[22:23], v[12:13], v[10:11], v[14:15]": (12, 10, 14),
    "v_fma_mix_f32 v24, v10, v11, v12": (10, 11, 12),
}
NANS_F64 = {
    "v_add_f64 v[20:21], v[10:11], v[12:13]": (10, 12),
    "v_mul_f64 v[22:23], v[10:11], v[12:13]": (10, 12),
    "v_fma_f64 v[24:25], v[12:13], v[10:11], v[14:15]": (12, 10, 14),
}
NAN_BODIES = ["\n  " + "\n  ".join(texts) + "\n" for texts in (NANS_F32, NANS_PACKED, NANS_F64)]
FRACTIONS = "\n  v_fract_f32_e32 v20, v10\n  v_fract_f16_e32 v21, v10\n"
FUSED_F64 = "\n  v_fma_f64 v[20:21], v[10:11], v[12:13], v[14:15]\n"
# LLVM takes none of them for an instruction.
ILLEGAL = {
    "v_swap_b32 with an SGPR": (0x7E26A240,),
    "v_swap_b32 with a constant": (0x7E26A280,),
    "v_swap_b32 by SDWA": (0x7E26A2F9, 0x06060640),
    "v_rsq_f64 by SDWA": (0x7E104CF9, 0x06060607),
    "v[255:256]": (0xDC548000, 0xFF7F000A),
    "buffer_store_dword to LDS": (0xE0711000, 0x80020A0A),
    "buffer_load_dwordx2 to LDS": (0xE0551000, 0x80020A0A),
}
ILLEGAL_BODIES = {name: "".join(f"\n  .long {word:#x}" for word in words) + "\n" for name, words in ILLEGAL.items()}
# flat_load_dword v20, v[10:11] with an offset whose sign bit, the 13th, is set.
FLAT_OFFSET = "\n  v_mov_b32_e32 v10, s6\n  v_mov_b32_e32 v11, s7\n  .long 0xdc501008, 0x1400000a\n"
PREOP = "\n  v_trig_preop_f64 v[20:21], v[10:11], v12\n"
CONVERSIONS = "\n  v_cvt_i32_f32_e32 v20, v10\n  v_cvt_u32_f32_e32 v21, v10\n  v_cvt_f16_f32_e32 v23, v10\n"
FREXP = "\n  v_frexp_exp_i32_f32_e32 v20, v10\n  v_frexp_mant_f32_e32 v21, v10\n  v_ldexp_f32 v22, v10, v12\n"
LDEXP_F16 = "\n  v_ldexp_f16_e32 v20, v10, v11\n"
WIDE = """
  v_mad_i64_i32 v[20:21], s[24:25], v10, v11, v[12:13]
  s_nop 1
  v_mov_b32_e32 v22, s24
  v_mov_b32_e32 v23, s25
  v_mad_u64_u32 v[24:25], s[24:25], v10, v11, v[12:13]
  v_lshl_add_u64 v[26:27], v[12:13], v14, v[10:11]
"""
SET_EXEC = (
    f"\n  s_mov_b32 exec_lo, {SOME_LANES & 0xFFFFFFFF:#x}\n  s_mov_b32 exec_hi, {SOME_LANES >> 32:#x}\n  s_nop 4\n"
)
MASKS = (
    SET_EXEC
    + """
  v_add_co_u32_e64 v30, s[24:25], v10, v11
  v_cmp_gt_u32_e64 s[26:27], v10, v11
  s_mov_b64 exec, -1
  s_nop 4
  v_mov_b32_e32 v20, s24
  v_mov_b32_e32 v21, s25
  v_mov_b32_e32 v22, s26
  v_mov_b32_e32 v23, s27
"""
)
CARRIES = """
  v_add_co_u32_e32 v20, vcc, v10, v12
  s_nop 4
  v_addc_co_u32_e32 v21, vcc, v11, v13, vcc
  s_nop 4
  v_mov_b32_e32 v26, vcc_lo
  v_mov_b32_e32 v27, vcc_hi
  v_sub_co_u32_e32 v22, vcc, v10, v12
  s_nop 4
  v_subb_co_u32_e32 v23, vcc, v11, v13, vcc
  s_nop 4
  v_mov_b32_e32 v24, vcc_lo
  v_mov_b32_e32 v25, vcc_hi
"""
NARROW = """
  ds_write_b32 v1, v10
  s_waitcnt lgkmcnt(0)
  ds_read_i8 v20, v1 offset:1
  ds_read_u8 v21, v1 offset:1
  ds_read_i16 v22, v1 offset:2
  ds_read_u16 v23, v1 offset:2
  s_waitcnt lgkmcnt(0)
"""
DIVISION = """
  v_div_scale_f32 v40, s[24:25], v11, v11, v10
  v_div_scale_f32 v41, vcc, v10, v11, v10
  v_rcp_f32_e32 v42, v40
  s_nop 4
  v_fma_f32 v43, -v40, v42, 1.0
  v_fma_f32 v42, v43, v42, v42
  v_mul_f32_e32 v43, v41, v42
  v_fma_f32 v44, -v40, v43, v41
  v_fma_f32 v43, v44, v42, v43
  v_fma_f32 v44, -v40, v43, v41
  v_div_fmas_f32 v44, v44, v42, v43
  v_div_fixup_f32 v20, v44, v11, v10
"""
MODES = [0xF0, 0xF1, 0xF2, 0xF3, 0xC0]  # rounding of f32 in bits 0 and 1, its subnormals in 4 and 5
F16_MODES = [0xF0, 0xC4, 0xC8, 0xCC, 0x30]  # rounding of f16 in bits 2 and 3, its subnormals in 6 and 7
FLUSHING_F64 = [0x30, 0x70, 0xB0]  # operands and results, results, operands
BODIES = [
    *(f"\n  {text}\n" for text in INTEGER),
    *(dpp_body(control, form) for control in DPP for form in DPP_FORMS),
    *map(swizzle_body, SWIZZLES),
    *(mode(flags) + body for flags in MODES for body in (FLOAT_MATH, ROUNDED, MINIMA, CONVERSIONS, FREXP)),
    *(mode(flags) + ieee + OMOD for flags in (0xF0, 0xC0) for ieee in ("", NO_IEEE)),
    *(mode(flags) + body for flags in F16_MODES for body in (LDEXP_F16, ROUNDED_F16, ROUNDED_F64)),
    *NAN_BODIES,
    mode(0xFA) + FRACTIONS,
    *(mode(flags) + FUSED_F64 for flags in FLUSHING_F64),
    *ILLEGAL_BODIES.values(),
    FLAT_OFFSET,
    PREOP,
    WIDE,
    MASKS,
    CARRIES,
    NARROW,
    mode(0xF0) + DIVISION,
]


@pytest.fixture(scope="module")
def machine(compiler: Compiler) -> Machine:
    return Machine(compiler, BODIES)


@pytest.mark.parametrize("text", INTEGER)
def test_integers(machine: Machine, text: str) -> None:
    for seed in range(4):
        a, b, c = pairs(INTEGERS, seed)
        expected = [INTEGER[text](int(x), int(y), int(z)) & 0xFFFFFFFF for x, y, z in zip(a, b, c, strict=True)]
        np.testing.assert_array_equal(machine.run(f"\n  {text}\n", a, b, c)[0], expected)


@pytest.mark.parametrize("control", DPP)
@pytest.mark.parametrize("form", DPP_FORMS)
def test_dpp(machine: Machine, control: str, form: str) -> None:
    data = np.arange(100, 164, dtype=np.uint32)
    rows, banks, zeros = DPP_FORMS[form]
    expected = np.full(64, POISON)
    for lane in range(64):
        source = DPP[control](lane)
        valid = source is not None and SOME_LANES >> source & 1
        enabled = SOME_LANES >> lane & 1 and rows >> lane // 16 & 1 and banks >> lane // 4 % 4 & 1
        if enabled and (valid or zeros):
            expected[lane] = data[source] if valid else 0
    np.testing.assert_array_equal(machine.run(dpp_body(control, form), data)[0], expected)


@pytest.mark.parametrize("offset", SWIZZLES)
def test_swizzle(machine: Machine, offset: int) -> None:
    lanes = np.array([int(x, 16) - 1 for x in SWIZZLES[offset].split(",")])
    expected = np.concatenate([lanes, lanes + 32])
    np.testing.assert_array_equal(machine.run(swizzle_body(offset), LANE.astype(np.uint32))[0], expected)


def rounded(value: Fraction, direction: int, dtype: type = F32) -> float:
    """Rounds an exact value to f32 or f16 in a direction of the MODE register."""
    if value == 0:
        return 0.0
    least, greatest, bits = (int(getattr(np.finfo(dtype), name)) for name in ("minexp", "maxexp", "nmant"))
    magnitude = abs(value)
    exponent = max(math.floor(math.log2(magnitude)) if magnitude > Fraction(2) ** -1000 else -1000, least)
    power = Fraction(2) ** exponent
    exponent += (magnitude >= 2 * power) - (exponent > least and magnitude < power)
    unit = Fraction(2) ** (exponent - bits)
    steps, rest = divmod(magnitude, unit)
    up = {0: rest * 2 > unit or (rest * 2 == unit and steps % 2), 1: value > 0, 2: value < 0, 3: False}[direction]
    steps += bool(up and rest)
    result = steps * unit
    if result >= Fraction(2) ** greatest:
        away = {0: True, 1: value > 0, 2: value < 0, 3: False}[direction]
        result = math.inf if away else (2 - Fraction(2) ** -bits) * Fraction(2) ** (greatest - 1)
    return math.copysign(float(result), value)


def flush(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < np.finfo(F32).tiny, np.copysign(F32(0), x), x)


def same_floats(actual: np.ndarray, expected: np.ndarray) -> None:
    actual = actual.view(F32)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(actual), nan)
    np.testing.assert_array_equal(actual[~nan].view(np.uint32), expected[~nan].astype(F32).view(np.uint32))


@pytest.mark.parametrize("flags", MODES)
def test_float_arithmetic_in_every_mode(machine: Machine, flags: int) -> None:
    """Operands are finite and not 0. Sums and products of 0 are left out, as the rounding mode decides their sign."""
    rng = np.random.default_rng(flags)
    for scale in (1, 30, 60, 140):
        a, b, c = ((rng.standard_normal(64) * 2.0 ** rng.uniform(-scale, scale / 2, 64)).astype(F32) for _ in range(3))
        a, b, c = (np.where(x == 0, F32(1), x) for x in (a, b, c))
        outputs = machine.run(mode(flags) + FLOAT_MATH, a, b, c)
        operands = [[Fraction(float(x)) for x in (flush(v) if flags == 0xC0 else v)] for v in (a, b, c)]
        results = [
            [x + y for x, y, _ in zip(*operands, strict=True)],
            [x * y for x, y, _ in zip(*operands, strict=True)],
            [x * y + z for x, y, z in zip(*operands, strict=True)],
        ]
        for row, exact in enumerate(results):
            expected = np.array([rounded(value, flags & 3) for value in exact], F32)
            sign = np.array([value != 0 for value in exact])
            same_floats(outputs[row][sign], (flush(expected) if flags == 0xC0 else expected)[sign])


@pytest.mark.parametrize("flags", MODES)
def test_rounding_to_integers_ignores_the_mode(machine: Machine, flags: int) -> None:
    a = pairs(SPECIAL_F32, 1, 1)[0]
    outputs = machine.run(mode(flags) + ROUNDED, a)
    normal = np.isnan(a) | (np.abs(a) >= np.finfo(F32).tiny) | (a == 0)
    for row, function in enumerate((np.rint, np.floor, np.ceil, np.trunc)):
        same_floats(outputs[row][normal], function(a)[normal])


@pytest.mark.parametrize("flags", F16_MODES)
def test_rounding_halves_and_doubles_to_integers_ignores_the_mode(machine: Machine, flags: int) -> None:
    a = pairs(SPECIAL_F32, 1, 1)[0]
    normal = np.isnan(a) | (np.abs(a) >= np.finfo(F32).tiny) | (a == 0)
    halves = np.concatenate([np.arange(-40, 41) / 16, [2047.5, -1023.5, 65504, np.inf, -np.inf, np.nan]]).astype(
        np.float16
    )
    for row, function in enumerate((np.rint, np.floor, np.ceil, np.trunc)):
        same_floats(machine.run(mode(flags) + ROUNDED_F64, a)[row][normal], function(a)[normal])
    for part in np.split(np.resize(halves, 128), 2):
        outputs = machine.run(mode(flags) + ROUNDED_F16, part.view(np.uint16).astype(np.uint32))
        for row, function in enumerate((np.rint, np.floor, np.ceil, np.trunc)):
            actual = outputs[row].astype(np.uint16).view(np.float16)
            same_floats(actual.astype(F32), function(part).astype(F32))


def first_nan(operands: list[np.ndarray], quiet: int) -> np.ndarray:
    """For each lane, the bits of the first operand that is a NaN, made quiet; 0 where none is."""
    bits = np.zeros(64, np.uint64)
    for operand in reversed(operands):
        bits = np.where(
            np.isnan(operand), operand.view(f"u{operand.itemsize}").astype(np.uint64) | np.uint64(quiet), bits
        )
    return bits


@pytest.mark.parametrize("kind", range(3))
def test_first_of_several_nans_is_the_result(machine: Machine, kind: int) -> None:
    texts, doubled = (NANS_F32, NANS_PACKED, NANS_F64)[kind], kind == 2
    rng = np.random.default_rng(kind)
    quiet = 1 << 51 if doubled else 1 << 22
    size, exponent = ("u8", 0x7FF << 52) if doubled else ("u4", 0xFF << 23)
    step = 2 if doubled else 1
    operands = []
    for _ in range(10, 16, step):
        nans = (rng.integers(1, 2 * quiet, 64) | exponent).astype(size) | (
            rng.integers(0, 2, 64).astype(size) << (63 if doubled else 31)
        )
        numbers = rng.choice([0.0, 1.0, -2.0, np.inf], 64).astype("f8" if doubled else F32)
        operands.append(np.where(rng.random(64) < 0.6, nans.view(numbers.dtype), numbers))
    outputs = machine.run(NAN_BODIES[kind], *operands)
    for text, registers in texts.items():
        for offset in range(2 if "pk" in text else 1):
            expected = first_nan([operands[(register - 10) // step + offset] for register in registers], quiet)
            row = int(re.search(r" v\[?(\d+)", text)[1]) - 20 + offset
            actual = doubles(outputs, row) if doubled else outputs[row].astype(np.uint64)
            nan = expected != 0
            np.testing.assert_array_equal(actual[nan], expected[nan], text)


def test_rounding_to_integers_makes_nans_quiet(machine: Machine) -> None:
    a = np.full(64, 0xFF800001, np.uint32)
    for row in machine.run(mode(0xF0) + ROUNDED, a)[1:4]:
        assert set(row) == {0xFFC00001}


def test_fractions_of_integers_have_the_sign_of_the_rounded_difference(machine: Machine) -> None:
    a = np.where(LANE % 2, 0, F32(3).view(np.uint32)).astype(np.uint32)
    outputs = machine.run(mode(0xFA) + FRACTIONS, a)  # rounds down, so equal numbers have the difference -0
    assert set(outputs[0]) == {0x80000000}
    assert set(outputs[1]) == {0x8000}


# The oldest engine, with a C library that has to do without FMA.
WITHOUT_FMA = {"DG_SIM_ENGINE": "x86-64", "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA,-AVX2,-FMA_Usable,-AVX2_Usable"}
CHILD = """
import pickle, sys
machine, bodies, vectors = pickle.load(sys.stdin.buffer)
pickle.dump([machine.run(body, *vectors) for body in bodies], sys.stdout.buffer)
"""


def test_doubles_are_fused_on_processors_without_fma(machine: Machine) -> None:
    rng = np.random.default_rng(0)
    a, b = ((rng.uniform(1, 2, 64) * 2.0 ** rng.integers(*exponents, 64)) for exponents in ((-1010, -990), (300, 600)))
    c = -a * b  # so the rounding error is the result, and the C library's summands that are as small as it is
    bodies = [mode(flags) + FUSED_F64 for flags in FLUSHING_F64]
    environment = {**os.environ, **WITHOUT_FMA, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    asked = pickle.dumps((machine, bodies, (a, b, c)))
    child = subprocess.run([sys.executable, "-c", CHILD], input=asked, env=environment, capture_output=True, check=True)
    expected = [float(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in zip(a, b, c, strict=True)]
    for outputs in pickle.loads(child.stdout):
        np.testing.assert_array_equal(doubles(outputs).view(np.float64), expected)


@pytest.mark.parametrize("name", ILLEGAL)
def test_forms_that_do_not_exist_are_refused(machine: Machine, name: str) -> None:
    with pytest.raises(simulator.SimulatorError, match="illegal instruction"):
        machine.run(ILLEGAL_BODIES[name])


def test_flat_offsets_have_no_sign(machine: Machine) -> None:
    assert (machine.run(FLAT_OFFSET, memory=np.arange(4, dtype=np.uint32))[0] == 2).all()


@pytest.mark.parametrize("flags", MODES)
def test_minima_and_maxima(machine: Machine, flags: int) -> None:
    for seed in range(3):
        a, b, c = pairs(SPECIAL_F32, seed)
        a[:2], b[:2] = (0.0, -0.0), (-0.0, 0.0)
        outputs = machine.run(mode(flags) + MINIMA, a, b, c)
        x, y, z = (flush(v) if flags == 0xC0 else v for v in (a, b, c))

        def key(value: float) -> tuple[float, float]:
            return value, math.copysign(1, value)

        for row, pick in enumerate((min, max)):
            expected = [
                q if math.isnan(p) else p if math.isnan(q) else pick(p, q, key=key) for p, q in zip(x, y, strict=True)
            ]
            same_floats(outputs[row], np.array(expected, F32))
        whole = ~(np.isnan(x) | np.isnan(y) | np.isnan(z))
        np.testing.assert_array_equal(outputs[2].view(F32)[whole], np.median([x, y, z], axis=0)[whole].astype(F32))


@pytest.mark.parametrize("flags", MODES)
def test_conversions(machine: Machine, flags: int) -> None:
    a = pairs(SPECIAL_F32, 2, 1)[0]
    outputs = machine.run(mode(flags) + CONVERSIONS, a)

    def integers(function: Callable[[float], int], low: int, high: int) -> list[int]:
        values = [
            0 if math.isnan(x) else (low if x < 0 else high) if math.isinf(x) else clamp(function(x), low, high)
            for x in map(float, a)
        ]
        return [value & 0xFFFFFFFF for value in values]

    np.testing.assert_array_equal(outputs[0], integers(math.trunc, -(2**31), 2**31 - 1))
    np.testing.assert_array_equal(outputs[1], integers(math.trunc, 0, 2**32 - 1))
    x = flush(a) if flags == 0xC0 else a
    with np.errstate(over="ignore"):
        halves = x.astype(np.float16)
    nan = np.isnan(a)
    assert np.isnan(outputs[3][nan].astype(np.uint16).view(np.float16)).all()
    np.testing.assert_array_equal(outputs[3][~nan], halves.view(np.uint16)[~nan])


def test_exponents(machine: Machine) -> None:
    a = pairs(SPECIAL_F32, 3, 1)[0]
    exponents = np.random.default_rng(3).integers(-300, 300, 64).astype(np.int32)
    outputs = machine.run(mode(0xF0) + FREXP, a, a, exponents)
    finite = np.isfinite(a)
    mantissa, exponent = np.frexp(a[finite])
    np.testing.assert_array_equal(outputs[0].view(np.int32)[finite], exponent)
    np.testing.assert_array_equal(outputs[0][~finite], 0)
    same_floats(outputs[1][finite], mantissa)
    expected = [
        rounded(Fraction(float(x)) * Fraction(2) ** int(e), 0)
        for x, e in zip(a[finite], exponents[finite], strict=True)
    ]
    same_floats(outputs[2][finite], np.copysign(np.array(expected, F32), a[finite]))


@pytest.mark.parametrize("flags", F16_MODES)
def test_powers_of_two_of_halves(machine: Machine, flags: int) -> None:
    """All exponents work, and f32's rounding and subnormal modes have no effect."""
    rng = np.random.default_rng(flags)
    tiny, infinite = np.finfo(np.float16).tiny, 0x7C00
    halves = rng.integers(0, 2**16, (6, 64)).astype(np.uint16)
    halves[0, :6] = 0, 0x8000, 0x7C00, 0xFC00, 1, 0x83FF
    for row, reach in zip(halves, (2, 15, 30, 60, 300, 2**15 - 1), strict=True):
        exponents = rng.integers(-reach, reach, 64).astype(np.int16)
        operands = (x.view(np.uint16).astype(np.uint32) for x in (row, exponents))
        results = machine.run(mode(flags) + LDEXP_F16, *operands)[0]
        for bits, exponent, actual in zip(row, exponents, results, strict=True):
            value = bits.view(np.float16)
            if bits & 0x7FFF >= infinite:  # infinity, or NaN, which is quieted
                expected = bits | (0x200 if bits & 0x7FFF > infinite else 0)
            else:
                if flags == 0x30 and abs(value) < tiny:
                    value = np.float16(0)
                exact = Fraction(float(value)) * Fraction(2) ** clamp(int(exponent), -300, 300)
                magnitude = np.float16(abs(rounded(exact, flags >> 2 & 3, np.float16)))
                if flags == 0x30 and magnitude < tiny:
                    magnitude = np.float16(0)
                expected = int(magnitude.view(np.uint16)) | int(bits & 0x8000)
            assert actual == expected, (hex(bits), exponent)


@pytest.mark.parametrize("flags", [0xF0, 0xC0])
@pytest.mark.parametrize("ieee", [True, False])
def test_output_modifiers(machine: Machine, flags: int, ieee: bool) -> None:
    """Output modifiers scale only if IEEE mode is off and subnormals are flushed."""
    rng = np.random.default_rng(6)
    a, b = (rng.standard_normal(64).astype(F32) for _ in range(2))
    a[0], b[0] = -0.0, 1
    outputs = machine.run(mode(flags) + ("" if ieee else NO_IEEE) + OMOD, a, b)
    scaled = flags == 0xC0 and not ieee
    same_floats(outputs[0], a * b * F32(4) + F32(0) if scaled else a * b)
    same_floats(outputs[1], np.clip(a + b, 0, 1) + F32(0))


def test_segments_of_two_over_pi(machine: Machine) -> None:
    """The sum of the segments times the angle is the angle in quarter turns, modulo whole turns."""
    rng = np.random.default_rng(7)
    angles = np.ldexp(rng.uniform(0.5, 1, 64), rng.integers(-10, 1000, 64))
    angles[:2] = 2.0**60, 1e22
    fields = [doubles(machine.run(PREOP, angles, np.full(64, i, np.uint32))).view(np.float64) for i in range(3)]
    digits = 1300
    two_over_pi = _two_over_pi(digits)
    for lane, angle in enumerate(angles):
        scale = Fraction(2) ** 128 if angle >= 2.0**945 else Fraction(1)
        total = sum(Fraction(float(field[lane])) for field in fields) / scale
        error = (Fraction(float(angle)) * (two_over_pi - total)) % 4
        assert min(error, 4 - error) < Fraction(1, 2**90)


def _two_over_pi(bits: int) -> Fraction:
    """2/π to ``bits`` bits, computed with Machin's formula."""

    def arctan_of_inverse(x: int) -> Fraction:
        one = 1 << (bits + 64)
        power = total = one // x
        for n in range(3, bits, 2):
            power //= -x * x
            total += power // n
        return Fraction(total, one)

    return 2 / (4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239)))


def test_masks_are_those_of_active_lanes(machine: Machine) -> None:
    a, b = pairs(INTEGERS, 11, 2)
    outputs = machine.run(MASKS, a, b)
    carries, greater = (int(outputs[i, 0]) | int(outputs[i + 1, 0]) << 32 for i in (0, 2))
    for lane in range(64):
        x, y, is_active = int(a[lane]), int(b[lane]), SOME_LANES >> lane & 1
        assert carries >> lane & 1 == (x + y >> 32 and is_active)
        assert greater >> lane & 1 == (x > y and is_active)


def test_carries_are_passed_on(machine: Machine) -> None:
    low, high, other_low, other_high = (values.astype(np.uint64) for values in pairs(INTEGERS, 13, 4))
    low[:2] = other_low[:2] = other_high[:2] = 2**32 - 1  # the other's high half plus carry wraps to 0
    a, b = low | high << np.uint64(32), other_low | other_high << np.uint64(32)
    outputs = machine.run(CARRIES, a, b)
    np.testing.assert_array_equal(doubles(outputs), a + b)
    np.testing.assert_array_equal(doubles(outputs, 2), a - b)
    borrows, carries = (int(outputs[row, 0]) | int(outputs[row + 1, 0]) << 32 for row in (4, 6))
    assert [bool(borrows >> lane & 1) for lane in range(64)] == (b > a).tolist()
    assert [bool(carries >> lane & 1) for lane in range(64)] == (a + b < a).tolist()


def test_narrow_loads_from_lds(machine: Machine) -> None:
    data = pairs(INTEGERS, 12, 1)[0]
    outputs = machine.run(NARROW, data).astype(np.int32)
    unsigned = data >> 8 & 0xFF, data >> 16
    for i, (values, kind) in enumerate(zip(unsigned, (np.int8, np.int16), strict=True)):
        np.testing.assert_array_equal(outputs[2 * i], values.astype(kind).astype(np.int32))
        np.testing.assert_array_equal(outputs[2 * i + 1], values)


def test_64_bit_results(machine: Machine) -> None:
    rng = np.random.default_rng(8)
    a, b = pairs(INTEGERS, 9, 2)
    c = rng.integers(0, 2**64, 64, dtype=np.uint64)
    c[:4] = 2**63, 2**63 - 1, 2**64 - 1, 0
    shift = (LANE % 8).astype(np.uint32)
    outputs = machine.run(WIDE, a, b, c, shift)
    carries = int(outputs[2, 0]) | int(outputs[3, 0]) << 32
    for lane in range(64):
        x, y, z = int(a[lane]), int(b[lane]), int(c[lane])
        total = signed(x) * signed(y) + signed(z, 64)
        assert int(doubles(outputs)[lane]) == total % 2**64
        assert carries >> lane & 1 == total >> 64 & 1
        assert int(doubles(outputs, 4)[lane]) == (x * y + z) % 2**64
        amount = int(shift[lane]) if shift[lane] <= 4 else 0
        assert int(doubles(outputs, 6)[lane]) == ((z << amount) + (x | y << 32)) % 2**64


def test_division(machine: Machine) -> None:
    """The compiler's sequence gives correctly rounded quotients."""
    rng = np.random.default_rng(10)
    for scale in (1, 60, 125, 148):
        a, b = (
            (rng.standard_normal(64) * 2.0 ** rng.uniform(-scale, min(scale, 126), 64)).astype(F32) for _ in range(2)
        )
        a[:9] = 0, 1, np.inf, np.inf, 0, np.nan, 3, -1, 1
        b[:9] = 0, 0, 0, np.inf, -5, 1, np.inf, 3, -0.0
        b = np.where(b == 0, np.where(LANE < 9, b, F32(1)), b)
        with np.errstate(all="ignore"):
            expected = (a.astype(np.float64) / b.astype(np.float64)).astype(F32)
        whole = LANE >= 9
        exact = [rounded(Fraction(float(x)) / Fraction(float(y)), 0) for x, y in zip(a[whole], b[whole], strict=True)]
        expected[whole] = np.copysign(np.array(exact, F32), expected[whole])
        same_floats(machine.run(mode(0xF0) + DIVISION, a, b)[0], expected)
