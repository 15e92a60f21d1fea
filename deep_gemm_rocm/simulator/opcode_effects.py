"""What each gfx942 opcode does beside computing its result: columns of csrc/engine/isa/opcodes.inc.

LLVM's disassembler prints the operands of an instruction, but neither what it reads and writes besides (SCC, VCC, EXEC)
nor how it accesses memory. These rules say so, after the CDNA3 ISA manual. Every opcode is named by exactly one rule:
generate_opcodes.py fails for one of a later LLVM version that nobody has classified. isa/opcodes.h explains the units,
derivations and traits.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

# Traits, then the opcodes that have them, without the types in their names. Some traits aren't in the table itself:
# `transcendental` chooses the unit, `reads_mask` and `writes_mask` concern VCC in VOP2 forms only, and `no_access` says
# that no memory is touched at an address of each lane.
Rules = tuple[tuple[str, str], ...]

SCALAR: Rules = (
    ("", "mov movk bfm mul mul_hi pack_ll pack_lh pack_hh brev ff0 ff1 flbit sext bitreplicate getpc"),
    (
        "writes_scc",
        "add sub min max absdiff abs and or xor andn2 orn2 nand nor xnor not wqm quadmask lshl lshr ashr bfe bcnt0 "
        "bcnt1 lshl1_add lshl2_add lshl3_add lshl4_add cmp_eq cmp_lg cmp_gt cmp_ge cmp_lt cmp_le bitcmp0 bitcmp1",
    ),
    ("reads_scc writes_scc", "addc subb"),
    ("reads_scc", "cselect"),
    ("reads_scc reads_dst", "cmov cmovk"),
    ("reads_dst", "bitset0 bitset1 mulk"),
    ("reads_dst writes_scc", "addk"),
    ("reads_dst keeps_dst writes_scc", "cmpk_eq cmpk_lg cmpk_gt cmpk_ge cmpk_lt cmpk_le"),
    ("reads_dst keeps_dst", "setreg setreg_imm32"),
    ("reads_status", "getreg"),
    (
        "combines_exec saves_exec writes_scc",
        "and_saveexec or_saveexec xor_saveexec andn1_saveexec andn2_saveexec orn1_saveexec orn2_saveexec nand_saveexec "
        "nor_saveexec xnor_saveexec",
    ),
    ("combines_exec writes_scc", "andn1_wrexec andn2_wrexec"),
    ("branch untraceable", "setpc swappc call cbranch_g_fork cbranch_join"),
    ("branch untraceable reads_dst keeps_dst", "cbranch_i_fork"),
    ("untraceable", "rfe rfe_restore movrels movreld set_gpr_idx_on set_gpr_idx_idx setvskip"),
)

PROGRAM: Rules = (
    (
        "",
        "nop endpgm endpgm_saved endpgm_ordered_ps_done wakeup barrier setkill waitcnt sethalt sleep setprio sendmsg "
        "sendmsghalt trap icache_inv incperflevel decperflevel ttracedata",
    ),
    ("branch", "branch cbranch_execz cbranch_execnz"),
    ("branch", "cbranch_cdbgsys cbranch_cdbguser cbranch_cdbgsys_or_user cbranch_cdbgsys_and_user"),
    ("branch reads_scc", "cbranch_scc0 cbranch_scc1"),
    ("branch reads_vcc", "cbranch_vccz cbranch_vccnz"),
    ("untraceable", "set_gpr_idx_off set_gpr_idx_mode"),
)

VECTOR: Rules = (
    (
        "reads_exec",
        # Moves and conversions.
        "nop clrexcp screen_partition_4se mov accvgpr_mov accvgpr_read accvgpr_write pk_mov readfirstlane cvt cvt_rpi "
        "cvt_flr cvt_off cvt_norm cvt_pk cvt_pknorm cvt_pkrtz cvt_pkaccum cvt_sr sat_pk pack trunc ceil rndne floor "
        "fract frexp_exp frexp_mant ldexp "
        # Arithmetic.
        "add sub subrev mul mul_hi mul_lo fma fmac fmamk fmaak mac mad madmk madak min max min3 max3 med3 add3 "
        "lshl_add add_lshl xad fma_mix fma_mixlo fma_mixhi div_fixup div_scale trig_preop cubeid cubesc cubetc cubema "
        "pk_add pk_sub pk_mul pk_mul_lo pk_mad pk_fma pk_fmac pk_min pk_max "
        # Bits and bytes.
        "and or xor xnor not and_or or3 lshl_or bfe bfi bfm bfrev bcnt mbcnt_lo mbcnt_hi ffbh ffbl lshlrev lshrrev "
        "ashrrev pk_lshlrev pk_lshrrev pk_ashrrev alignbit alignbyte perm lerp sad sad_hi msad qsad_pk mqsad mqsad_pk "
        # Compares to a mask of lanes.
        "cmp_class cmp_f cmp_lt cmp_eq cmp_le cmp_gt cmp_lg cmp_ne cmp_ge cmp_o cmp_u cmp_nge cmp_nlg cmp_ngt cmp_nle "
        "cmp_neq cmp_nlt cmp_t cmp_tru",
    ),
    (
        "reads_exec writes_exec",
        "cmpx_class cmpx_f cmpx_lt cmpx_eq cmpx_le cmpx_gt cmpx_lg cmpx_ne cmpx_ge cmpx_o cmpx_u cmpx_nge cmpx_nlg "
        "cmpx_ngt cmpx_nle cmpx_neq cmpx_nlt cmpx_t cmpx_tru",
    ),
    ("reads_exec transcendental", "exp log rcp rsq sqrt sin cos"),
    ("reads_exec dot", "dot2 dot4 dot8 dot2c dot4c dot8c"),
    ("reads_exec reads_vcc", "div_fmas"),
    ("reads_exec reads_mask", "cndmask"),
    ("reads_exec writes_mask", "add_co sub_co subrev_co"),
    ("reads_exec reads_mask writes_mask", "addc_co subb_co subbrev_co"),
    ("reads_exec untraceable", "swap"),
    ("", "readlane writelane"),
)

_LDS_UPDATES = "(?:add|sub|rsub|inc|dec|min|max|and|or|xor|mskor|pk_add|wrap|condxchg32)(?:_rtn)?_[a-z]+[0-9]+"
_UPDATES = "(?:add|sub|smin|umin|min|smax|umax|max|and|or|xor|inc|dec|pk_add)"

# Traits, then a pattern of all that follows the first word of a mnemonic (ds_, flat_, …).
LDS: Rules = (
    ("load", "read_[biu][0-9]+(?:_d16)?(?:_d16_hi)?"),
    ("load pair", "read2_b[0-9]+"),
    ("load pair stride64", "read2st64_b[0-9]+"),
    ("store overwrites", "write_b[0-9]+(?:_d16_hi)?"),
    ("store overwrites pair", "write2_b[0-9]+"),
    ("store overwrites pair stride64", "write2st64_b[0-9]+"),
    ("store atomic", _LDS_UPDATES),
    ("store atomic compares", "cmpst(?:_rtn)?_[bf][0-9]+"),
    ("store atomic overwrites", "wrxchg_rtn_b[0-9]+"),
    ("store atomic overwrites pair", "wrxchg2_rtn_b[0-9]+"),
    ("store atomic overwrites pair stride64", "wrxchg2st64_rtn_b[0-9]+"),
    ("load store no_access", "permute_b32|bpermute_b32"),
    ("load no_access", "swizzle_b32"),
    ("load no_access untraceable", "read_addtid_b32|append|consume"),
    ("store no_access untraceable", "write_addtid_b32"),
    ("no_access untraceable", "gws_(?:sema_release_all|init|sema_v|sema_br|sema_p|barrier)"),
    ("", "nop"),
)
VECTOR_MEMORY: Rules = (
    ("load", "load_(?:[su]byte|[su]short|dword(?:x[234])?)|load_(?:[su]byte|short)_d16"),
    ("load high_half", "load_(?:[su]byte|short)_d16_hi"),
    ("load to_lds", "load_lds_(?:[su]byte|[su]short|dword)"),
    ("load converts", "load_format_(?:d16_)?(?:x|xy|xyz|xyzw)"),
    ("load converts high_half", "load_format_d16_hi_x"),
    ("store overwrites", "store_(?:byte|short|dword(?:x[234])?)"),
    ("store overwrites high_half", "store_(?:byte|short)_d16_hi"),
    ("store overwrites converts", "store_format_(?:d16_)?(?:x|xy|xyz|xyzw)"),
    ("store overwrites converts high_half", "store_format_d16_hi_x"),
    ("store atomic", f"atomic_(?:swap|{_UPDATES})(?:_x2)?"),
    ("store atomic floating", f"atomic_{_UPDATES}_b?f[0-9]+"),
    ("store atomic compares", "atomic_cmpswap(?:_x2)?"),
    ("", "wbl2|inv|wbinvl1(?:_vol)?"),
)
SCALAR_MEMORY: Rules = (
    ("load", "(?:buffer_|scratch_)?load_dword(?:x[0-9]+)?"),
    ("load no_access", "memtime|memrealtime"),
    ("store", "(?:buffer_|scratch_)?store_dword(?:x[0-9]+)?"),
    ("store atomic", f"(?:buffer_)?atomic_(?:swap|{_UPDATES})(?:_x2)?"),
    ("store atomic compares", "(?:buffer_)?atomic_cmpswap(?:_x2)?"),
    ("", "dcache_(?:inv|wb)(?:_vol)?|dcache_discard(?:_x2)?|atc_probe(?:_buffer)?"),
)

# How the sanitizer derives whether a result is defined, where that isn't from all operands.
DERIVATIONS = {
    "bit_move": "s_mov_b32 s_mov_b64",
    "bit_and": "s_and_b32 s_and_b64 s_and_saveexec_b64",
    "bit_or": "s_or_b32 s_or_b64 s_or_saveexec_b64",
    "bit_and_not": "s_andn2_b32 s_andn2_b64 s_andn2_saveexec_b64 s_andn2_wrexec_b64",
    "bit_not_and": "s_andn1_saveexec_b64 s_andn1_wrexec_b64",
    "select": "v_cndmask_b32",
    "carry": "v_addc_co_u32 v_subb_co_u32 v_subbrev_co_u32",
    "packed_move": "v_pk_mov_b32",
    "packed_pairs": "v_pk_fma_f32 v_pk_mul_f32 v_pk_add_f32",
    "low_dwords_first": "v_mov_b64 v_mad_u64_u32 v_mad_i64_i32 v_lshlrev_b64 v_lshl_add_u64",
    "read_lane": "v_readlane_b32 v_readfirstlane_b32",
    "write_lane": "v_writelane_b32",
    "crossing": "ds_permute_b32 ds_bpermute_b32 ds_swizzle_b32",
}
_DERIVATION_OF = {name: derivation for derivation, names in DERIVATIONS.items() for name in names.split()}

_UNITS = {"SOPP": "other", "SMEM": "scalar_memory", "DS": "lds", "FLAT": "flat"}
_UNITS |= dict.fromkeys(("SOP1", "SOP2", "SOPC", "SOPK"), "scalar")
_UNITS |= dict.fromkeys(("GLOBAL", "SCRATCH", "MUBUF", "MTBUF"), "vector_memory")
_UNITS |= dict.fromkeys(("VOP1", "VOP2", "VOPC", "VOP3", "VOP3P"), "vector")


@dataclass(frozen=True)
class Effects:
    unit: str
    derivation: str = "all_operands"
    bytes: int = 0  # of each access of a lane; 0 where it touches no memory or the buffer's format tells
    traits: tuple[str, ...] = ()


@dataclass(frozen=True)
class Matrix:
    """The shape of a matrix instruction, its passes of four clocks, and the type of A and B (fp8: any 8-bit float)."""

    mnemonic: str
    m: int
    n: int
    k: int
    blocks: int
    passes: int
    type: str
    sparse: bool

    @classmethod
    def parse(cls, mnemonic: str) -> "Matrix | None":
        shape = re.fullmatch(
            r"v_(mfma|smfmac)_[fi]\d+_(\d+)x(\d+)x(\d+)(?:_(\d+)b)?_(f64|xf32|f32|bf16|f16|i8|[fb][pf]8_[fb][pf]8)",
            mnemonic,
        )
        if shape is None:
            return None
        m, n, k, blocks = (int(group or 1) for group in shape.groups()[1:5])
        kind = "fp8" if "8_" in shape[6] else shape[6]
        return cls(mnemonic, m, n, k, blocks, matrix_passes(m, blocks, kind), kind, shape[1] == "smfmac")


def matrix_passes(m: int, blocks: int, kind: str) -> int:
    """LLVM, SISchedule.td for gfx940, and AMD's matrix instruction calculator."""
    if kind == "f64":
        return {16: 8, 4: 4}[m]
    if m == 4:
        return 2
    half_rate = blocks > 1 or kind == "f32"
    return (16 if half_rate else 8) if m == 32 else (8 if half_rate else 4)


def effects_of(family: str, mnemonic: str, widths: dict[str, int]) -> Effects:
    """The columns of an opcode. Raises ValueError where no rule, or more than one, names it."""
    if Matrix.parse(mnemonic) is not None:
        return Effects("matrix", "matrix")
    if family.startswith("V"):
        return _vector_effects(family, mnemonic)
    derivation = _DERIVATION_OF.get(mnemonic, "all_operands")
    if family.startswith("SOP"):
        rules = PROGRAM if family == "SOPP" else SCALAR
        return Effects(_UNITS[family], derivation, 0, _named(rules, family, mnemonic))
    rules = {"DS": LDS, "SMEM": SCALAR_MEMORY}.get(family, VECTOR_MEMORY)
    traits = _matching(rules, family, mnemonic)
    if derivation == "all_operands" and ("load" in traits or "atomic" in traits):
        derivation = "loaded"
    kept = tuple(trait for trait in traits if trait != "no_access")
    return Effects(_UNITS[family], derivation, _access_bytes(family, mnemonic, widths, traits), kept)


def _vector_effects(family: str, mnemonic: str) -> Effects:
    traits = _named(VECTOR, family, mnemonic)
    unit = "transcendental" if "transcendental" in traits else "vector"
    # VOP3 forms name the masks that VOP2 forms have in VCC.
    in_vcc = {"reads_mask": "reads_vcc", "writes_mask": "writes_vcc"} if family == "VOP2" else {}
    kept = [in_vcc.get(trait, trait) for trait in traits if trait != "transcendental"]
    kept = [trait for trait in kept if not trait.endswith("_mask")]
    if re.search("16|fp8|bf8", mnemonic):
        kept.append("narrow")
    return Effects(unit, _DERIVATION_OF.get(mnemonic, "all_operands"), 0, tuple(kept))


def _access_bytes(family: str, mnemonic: str, widths: dict[str, int], traits: tuple[str, ...]) -> int:
    if not {"load", "store"} & set(traits) or {"converts", "no_access"} & set(traits):
        return 0
    if re.search(r"byte|ds_.*_[biu]8", mnemonic):
        return 1
    if re.search(r"short|ds_.*_[biu]16", mnemonic):
        return 2
    in_dst = family in ("SMEM", "MUBUF") or "store" not in traits
    dwords = max(1, widths.get("dst" if in_dst else "src1", 0))
    # These data are two values: what to store and what to expect, or what two places hold.
    is_double = "cmpswap" in mnemonic or ("pair" in traits and "store" not in traits)
    return 4 * dwords // (2 if is_double else 1)


def _named(rules: Rules, family: str, mnemonic: str) -> tuple[str, ...]:
    """By the name without its prefix and its types: v_cvt_f32_ubyte0 is named `cvt`."""
    name = mnemonic.split("_", 1)[1]
    if family != "SOPP":
        name = re.sub(r"(_legacy|_iflag)?(_b?[biuf]p?[0-9]+|_ubyte[0-9])*$", "", name)
    return _only(((traits, name in names.split()) for traits, names in rules), family, mnemonic)


def _matching(rules: Rules, family: str, mnemonic: str) -> tuple[str, ...]:
    name = mnemonic.split("_", 1)[1]
    return _only(((traits, bool(re.fullmatch(pattern, name))) for traits, pattern in rules), family, mnemonic)


def _only(rules: Iterable[tuple[str, bool]], family: str, mnemonic: str) -> tuple[str, ...]:
    found = [traits for traits, applies in rules if applies]
    if len(found) != 1:
        raise ValueError(
            f"{mnemonic} ({family}): {len(found)} rules of opcode_effects.py name it; exactly one has to, "
            "to say what it reads and writes beside its operands"
        )
    return tuple(found[0].split())
