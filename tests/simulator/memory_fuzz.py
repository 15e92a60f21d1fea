"""Random memory instructions, and what they do by AMD's CDNA3 and CDNA4 ISA manuals, chapters 8 to 12, and LLVM.

Each instruction is a text, a function that draws operands, and a model in Python of what it does to registers, memory,
LDS and scratch. One kernel holds them all, because a code object for each would take long to load.
"""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Callable, Iterable
from ctypes import c_size_t, c_uint, c_void_p
from dataclasses import dataclass, field

import numpy as np
from helpers.assembly import Allocation, program
from helpers.simulated_hip import Compiler
from test_typed_buffers import WIDTHS, decoded

from deep_gemm_rocm.simulator.library import library

LANES, WORD = 64, 1 << 32
ROWS = 8  # of inputs, v10 to v17, and of outputs, v20 to v27
MEMORY_BYTES, LDS_BYTES, SCRATCH_BYTES = 4096, 2048, 64
# Where the kernel finds its state, and leaves it: in one allocation, so that a stray store is noticed.
INPUTS, OUTPUTS, SCALARS, RESULTS, NUMBER, MEMORY, LDS, SCRATCH = 0, 2048, 4096, 4352, 4608, 8192, 12288, 14336
STATE_BYTES = 20480
BODY_BYTES = 512

PROLOGUE = f"""
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  s_mul_i32 s7, s2, {STATE_BYTES}
  s_waitcnt lgkmcnt(0)
  s_add_u32 s4, s4, s7
  s_addc_u32 s5, s5, 0
  s_load_dwordx16 s[16:31], s[4:5], {SCALARS}
  s_load_dwordx16 s[32:47], s[4:5], {SCALARS + 64}
  s_load_dwordx16 s[48:63], s[4:5], {RESULTS}
  s_load_dword s6, s[4:5], {NUMBER}
  s_add_u32 s10, s4, {LDS}
  s_addc_u32 s11, s5, 0
  v_lshlrev_b32_e32 v1, 2, v0
  v_lshlrev_b32_e32 v3, 4, v0
  v_lshlrev_b32_e32 v4, 6, v0
"""
PROLOGUE += "".join(f"  global_load_dword v{10 + i}, v1, s[4:5] offset:{256 * i}\n" for i in range(ROWS))
PROLOGUE += "".join(f"  global_load_dword v{20 + i}, v1, s[4:5] offset:{OUTPUTS + 256 * i}\n" for i in range(ROWS))
PROLOGUE += "".join(
    f"  global_load_dwordx4 v[{30 + 4 * i}:{33 + 4 * i}], v3, s[10:11] offset:{1024 * i}\n" for i in (0, 1)
)
PROLOGUE += "".join(
    f"  global_load_dwordx4 v[{38 + 4 * i}:{41 + 4 * i}], v4, s[10:11] offset:{SCRATCH - LDS + 16 * i}\n"
    for i in range(4)
)
PROLOGUE += "  s_waitcnt vmcnt(0)\n"
PROLOGUE += "".join(f"  ds_write_b128 v3, v[{30 + 4 * i}:{33 + 4 * i}] offset:{1024 * i}\n" for i in (0, 1))
PROLOGUE += "".join(
    f"  scratch_store_dwordx4 off, v[{38 + 4 * i}:{41 + 4 * i}], off offset:{16 * i}\n" for i in range(4)
)
PROLOGUE += f"""
  s_waitcnt vmcnt(0) lgkmcnt(0)
  s_mov_b32 m0, s45
  s_setreg_b32 hwreg(HW_REG_MODE, 0, 8), s44
  s_lshl_b32 s6, s6, {BODY_BYTES.bit_length() - 1}
  s_getpc_b64 s[12:13]
here:
  s_add_u32 s14, s12, epilogue-here
  s_addc_u32 s15, s13, 0
  s_add_u32 s12, s12, bodies-here
  s_addc_u32 s13, s13, 0
  s_add_u32 s12, s12, s6
  s_addc_u32 s13, s13, 0
  s_setpc_b64 s[12:13]
"""
EPILOGUE = "epilogue:\n"
EPILOGUE += "".join(f"  global_store_dword v1, v{20 + i}, s[4:5] offset:{OUTPUTS + 256 * i}\n" for i in range(ROWS))
EPILOGUE += "".join(f"  v_writelane_b32 v29, s{48 + i}, {i}\n" for i in range(16))
EPILOGUE += "".join(f"  ds_read_b128 v[{30 + 4 * i}:{33 + 4 * i}], v3 offset:{1024 * i}\n" for i in (0, 1))
EPILOGUE += "".join(
    f"  scratch_load_dwordx4 v[{38 + 4 * i}:{41 + 4 * i}], off, off offset:{16 * i}\n" for i in range(4)
)
EPILOGUE += "  s_waitcnt vmcnt(0) lgkmcnt(0)\n"
EPILOGUE += "".join(
    f"  global_store_dwordx4 v3, v[{30 + 4 * i}:{33 + 4 * i}], s[10:11] offset:{1024 * i}\n" for i in (0, 1)
)
EPILOGUE += "".join(
    f"  global_store_dwordx4 v4, v[{38 + 4 * i}:{41 + 4 * i}], s[10:11] offset:{SCRATCH - LDS + 16 * i}\n"
    for i in range(4)
)
EPILOGUE += f"""
  s_add_u32 s10, s4, {RESULTS}
  s_addc_u32 s11, s5, 0
  s_mov_b64 exec, 0xffff
  s_nop 4
  global_store_dword v1, v29, s[10:11]
  s_endpgm
  .p2align {BODY_BYTES.bit_length() - 1}
bodies:
"""
# SCALARS: s16 to s47. What bodies use by name:
MODE, M0, EXEC = 44, 45, 46


class State:
    """Registers, memory, LDS and scratch, before or after an instruction."""

    def __init__(self, raw: np.ndarray, address: int) -> None:
        words = raw.view(np.uint32)
        self.raw, self.base = raw, address + MEMORY
        self.inputs = words[INPUTS // 4 :][: ROWS * LANES].reshape(ROWS, LANES)
        self.outputs = words[OUTPUTS // 4 :][: ROWS * LANES].reshape(ROWS, LANES)
        self.scalars = words[SCALARS // 4 :][:32]
        self.results = words[RESULTS // 4 :][:16]
        self.memory = raw[MEMORY : MEMORY + MEMORY_BYTES]
        self.lds = raw[LDS : LDS + LDS_BYTES]
        self.scratch = raw[SCRATCH : SCRATCH + LANES * SCRATCH_BYTES].reshape(LANES, SCRATCH_BYTES)

    def set_scalar(self, number: int, value: int, dwords: int = 1) -> None:
        for i in range(dwords):
            self.scalars[number - 16 + i] = value >> 32 * i & WORD - 1

    def scalar(self, number: int, dwords: int = 1) -> int:
        return sum(int(self.scalars[number - 16 + i]) << 32 * i for i in range(dwords))

    def set_input(self, row: int, lane: int, value: int, dwords: int = 1) -> None:
        for i in range(dwords):
            self.inputs[row + i, lane] = value >> 32 * i & WORD - 1

    def input(self, row: int, lane: int, dwords: int = 1) -> int:
        return sum(int(self.inputs[row + i, lane]) << 32 * i for i in range(dwords))

    def set_output(self, row: int, lane: int, value: int, dwords: int = 1) -> None:
        for i in range(dwords):
            self.outputs[row + i, lane] = value >> 32 * i & WORD - 1

    def active(self) -> list[int]:
        mask = self.scalar(EXEC, 2)
        return [lane for lane in range(LANES) if mask >> lane & 1]

    def flushes_f32(self) -> bool:
        return self.scalar(MODE) & 0x30 == 0


Place = tuple[np.ndarray, int]  # a memory and a byte of it


def read(place: Place, size: int) -> int:
    memory, at = place
    return int.from_bytes(memory[at : at + size].tobytes(), "little")


def write(place: Place, size: int, value: int) -> None:
    memory, at = place
    memory[at : at + size] = np.frombuffer(value.to_bytes(size, "little"), np.uint8)


# ---- What is loaded and stored ----

LOADS = {"ubyte": 1, "sbyte": 1, "ushort": 2, "sshort": 2, "dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16}
LOADS |= {
    f"{name}_d16{half}": size for name, size in (("ubyte", 1), ("sbyte", 1), ("short", 2)) for half in ("", "_hi")
}
STORES = {
    "byte": 1,
    "byte_d16_hi": 1,
    "short": 2,
    "short_d16_hi": 2,
    "dword": 4,
    "dwordx2": 8,
    "dwordx3": 12,
    "dwordx4": 16,
}


def signed(value: int, bits: int) -> int:
    return value - (value >> bits - 1 << bits)


def dwords_of(size: int) -> int:
    """Registers that so many bytes take."""
    return max(1, size // 4)


def loaded(name: str, value: int) -> int:
    """The registers that a load of these bytes fills."""
    size = LOADS[name]
    if name.startswith("s") and size < 4 and name[1] in "bs":
        value = signed(value, 8 * size)
    if "d16" in name:  # SRAM ECC clears the other half
        return (value & 0xFFFF) << (16 if name.endswith("hi") else 0)
    return value & ((1 << 32 * dwords_of(size)) - 1)


def stored(name: str, value: int) -> int:
    return value >> (16 if name.endswith("hi") else 0) & ((1 << 8 * STORES[name]) - 1)


# ---- Atomics ----


def as_float(bits: int, width: int) -> np.floating:
    if width == 64:
        return np.uint64(bits).view(np.float64)
    return np.uint32(bits).view(np.float32)


def bits_of(value: np.floating) -> int:
    return int(value.view(np.uint64 if value.itemsize == 8 else np.uint32))


def flushed(bits: int) -> int:
    return bits if bits & 0x7F800000 else bits & 0x80000000


def add_float(width: int, flush: bool = False) -> Callable[[int, int], int]:
    def add(old: int, data: int) -> int:
        if flush:
            old, data = flushed(old), flushed(data)
        total = bits_of(as_float(old, width) + as_float(data, width))
        return flushed(total) if flush else total

    return add


def add_halves(old: int, data: int) -> int:
    a, b = (np.array([value], np.uint32).view(np.float16).astype(np.float64) for value in (old, data))
    return int((a + b).astype(np.float16).view(np.uint32)[0])


def bf16_from(value: float) -> int:
    bits = bits_of(np.float32(value))
    return 0x7FC0 if np.isnan(value) else bits + 0x7FFF + (bits >> 16 & 1) >> 16


def add_bf16(flush: bool) -> Callable[[int, int], int]:
    add = add_float(
        32, flush
    )  # the sum in f32 is exact or so far from a tie of bf16 that rounding twice is rounding once

    def pair(old: int, data: int) -> int:
        sums = [add((old >> s & 0xFFFF) << 16, (data >> s & 0xFFFF) << 16) for s in (0, 16)]
        return bf16_from(as_float(sums[0], 32)) | bf16_from(as_float(sums[1], 32)) << 16

    return pair


def extreme_float(width: int, largest: bool) -> Callable[[int, int], int]:
    """A number wins over a quiet NaN, and -0 is less than 0."""

    def select(old: int, data: int) -> int:
        a, b = as_float(old, width), as_float(data, width)
        quiet = 1 << (51 if width == 64 else 22)
        for value, bits in ((a, old), (b, data)):
            if np.isnan(value) and not bits & quiet:
                return bits | quiet
        if np.isnan(a) or np.isnan(b):
            return old if np.isnan(b) else data
        first, second = ((float(v), -int(np.signbit(v))) for v in (a, b))
        return data if (second > first if largest else second < first) else old

    return select


def integer_atomics(width: int) -> dict[str, Callable[[int, int], int]]:
    top = (1 << width) - 1
    return {
        "swap": lambda old, data: data,
        "add": lambda old, data: old + data & top,
        "sub": lambda old, data: old - data & top,
        "smin": lambda old, data: min(old, data, key=lambda x: signed(x, width)),
        "smax": lambda old, data: max(old, data, key=lambda x: signed(x, width)),
        "umin": min,
        "umax": max,
        "and": lambda old, data: old & data,
        "or": lambda old, data: old | data,
        "xor": lambda old, data: old ^ data,
        "inc": lambda old, data: 0 if old >= data else old + 1,
        "dec": lambda old, data: data if old == 0 or old > data else old - 1,
    }


@dataclass
class Atomic:
    name: str
    bits: int
    update: Callable[[int, int], int]
    floating: str = ""

    @property
    def bytes(self) -> int:
        return self.bits // 8


MEMORY_ATOMICS = [Atomic(name, 32, f) for name, f in integer_atomics(32).items()]
MEMORY_ATOMICS += [Atomic(f"{name}_x2", 64, f) for name, f in integer_atomics(64).items()]
SCALAR_ATOMICS = list(MEMORY_ATOMICS)
# Sums round to nearest even in every mode. Memory flushes no subnormals on this chip (LLVM's feature
# memory-atomic-fadd-f32-denormal-support).
MEMORY_ATOMICS += [
    Atomic("add_f32", 32, add_float(32), "f32"),
    Atomic("add_f64", 64, add_float(64), "f64"),
    Atomic("min_f64", 64, extreme_float(64, False), "f64"),
    Atomic("max_f64", 64, extreme_float(64, True), "f64"),
    Atomic("pk_add_f16", 32, add_halves, "f16"),
    Atomic("pk_add_bf16", 32, add_bf16(False), "bf16"),
]

# Whether these store their data depends on another operand.
COMPARES = [Atomic("cmpswap", 32, lambda old, data: data), Atomic("cmpswap_x2", 64, lambda old, data: data)]

SPECIAL = {
    "f32": [0, 0x80000000, 1, 0x80000001, 0x00800000, 0x3F800000, 0x7F800000, 0xFF800000, 0x7FC00001, 0x7F7FFFFF],
    "f64": [0, 1 << 63, 1, 1 << 52, 0x3FF0000000000000, 0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000001],
    "f16": [0, 0x80008000, 0x00010001, 0x04000400, 0x3C003C00, 0x7C00FC00, 0x7BFF7BFF, 0x33333333],
    "bf16": [0, 0x80008000, 0x00010001, 0x00800080, 0x3F803F80, 0x7F80FF80, 0x7F7F7F7F],
}


def drawn_number(rng: random.Random, bits: int, floating: str = "") -> int:
    """Often a value near others, so that comparisons meet equal and neighbouring ones."""
    kind = rng.random()
    if floating and kind < 0.5:
        return rng.choice(SPECIAL[floating])
    if floating and kind < 0.9:  # near 1, so that sums round
        value = rng.uniform(0.5, 4) * rng.choice((1, -1))
        if floating == "f64":
            return bits_of(np.float64(value))
        if floating == "f32":
            return bits_of(np.float32(value))
        half = int(np.float16(value).view(np.uint16)) if floating == "f16" else bf16_from(value)
        return half | half << 16
    if kind < 0.3:
        return rng.choice((0, 1, 2, 3, (1 << bits) - 1, 1 << bits - 1, (1 << bits - 1) - 1))
    return rng.getrandbits(bits)


# ---- Instructions ----


@dataclass
class Instruction:
    text: str
    draw: Callable[[State, random.Random], None]
    apply: Callable[[State], None]
    before: list[str] = field(default_factory=list)  # moves into the registers of the instruction, and out of them
    after: list[str] = field(default_factory=list)
    has_nans: bool = False  # any NaN stands for any other

    def body(self) -> str:
        lines = [*self.before, "s_mov_b64 exec, s[46:47]", "s_nop 4", self.text, "s_waitcnt vmcnt(0) lgkmcnt(0)"]
        lines += ["s_mov_b64 exec, -1", "s_nop 4", *self.after, "s_setpc_b64 s[14:15]"]
        return "".join(f"  {line}\n" for line in lines) + f"  .p2align {BODY_BYTES.bit_length() - 1}\n"


def tuple_of(file: str, first: int, count: int) -> str:
    return f"{file}{first}" if count == 1 else f"{file}[{first}:{first + count - 1}]"


class Registers:
    """Chooses registers for data: those of the inputs and outputs, the last ones, or accumulators."""

    def __init__(self, rng: random.Random, files: str = "va") -> None:
        self.file = rng.choice(files)
        self.moves_in: list[str] = []
        self.moves_out: list[str] = []
        self._next = 0 if self.file == "a" else 44
        self._at_end = rng.random() < 0.3
        self._in_place = self.file == "v" and rng.random() < 0.6

    def _take(self, count: int) -> int:
        first = 64 - (count + 1) // 2 * 2 if self._at_end else self._next
        self._at_end = False
        self._next += (count + 1) // 2 * 2
        return first

    def _copy(self, target: str, source: str) -> str:
        name = (
            "v_accvgpr_write_b32" if target[0] == "a" else "v_accvgpr_read_b32" if source[0] == "a" else "v_mov_b32_e32"
        )
        return f"{name} {target}, {source}"

    def source(self, row: int, count: int) -> str:
        if self._in_place:
            return tuple_of("v", 10 + row, count)
        first = self._take(count)
        self.moves_in += [self._copy(f"{self.file}{first + i}", f"v{10 + row + i}") for i in range(count)]
        return tuple_of(self.file, first, count)

    def result(self, count: int, same_as: str | None = None) -> str:
        """`same_as`: the operand that it shares its registers with."""
        if same_as is not None:
            first = int("".join(c for c in same_as.split(":")[0] if c.isdigit()))
            file = same_as[0]
        elif self._in_place:
            return tuple_of("v", 20, count)
        else:
            first, file = self._take(count), self.file
            self.moves_in += [self._copy(f"{file}{first + i}", f"v{20 + i}") for i in range(count)]
        self.moves_out += [self._copy(f"v{20 + i}", f"{file}{first + i}") for i in range(count)]
        return tuple_of(file, first, count)


def draw_data(state: State, rng: random.Random, rows: Iterable[int]) -> None:
    for row in rows:
        for lane in range(LANES):
            state.inputs[row, lane] = drawn_number(rng, 32)


# A form of addressing: draw(state, rng, lane, bytes, aligned) sets the operands of a lane's access to somewhere legal,
# place(state, lane, bytes) says where that is.
@dataclass
class Addressing:
    prepare: Callable[[State, random.Random], None]
    draw: Callable[[State, random.Random, int, int, int], None]
    place: Callable[[State, int, int], Place]
    operand: str  # text after the mnemonic and the data
    suffix: str


def random_place(rng: random.Random, room: int, size: int, align: int) -> int:
    return rng.randrange(0, room - size + 1) // align * align


def global_addressing(rng: random.Random) -> Addressing:
    imm = rng.choice((0, rng.randrange(-4096, 4096), -4096, 4095))
    if rng.random() < 0.5:

        def draw(state: State, rng: random.Random, lane: int, size: int, align: int) -> None:
            state.set_input(0, lane, state.base + random_place(rng, MEMORY_BYTES, size, align) - imm, 2)

        def place(state: State, lane: int, size: int) -> Place:
            return state.memory, (state.input(0, lane, 2) + imm) % (1 << 64) - state.base

        return Addressing(lambda state, rng: None, draw, place, "v[10:11], {data}off", f" offset:{imm}")

    def prepare(state: State, rng: random.Random) -> None:
        state.set_scalar(16, state.base - rng.choice((8192, 1 << 31)), 2)

    def draw_offset(state: State, rng: random.Random, lane: int, size: int, align: int) -> None:
        target = state.base + random_place(rng, MEMORY_BYTES, size, align)
        state.set_input(0, lane, target - state.scalar(16, 2) - imm)

    def place_of_offset(state: State, lane: int, size: int) -> Place:
        return state.memory, state.scalar(16, 2) + state.input(0, lane) + imm - state.base

    return Addressing(prepare, draw_offset, place_of_offset, "v10, {data}s[16:17]", f" offset:{imm}")


SHARED, PRIVATE = 1 << 48, 2 << 48  # the simulator's apertures, which src_shared_base and src_private_base tell kernels


def flat_addressing(rng: random.Random, regions: str = "mlp") -> Addressing:
    imm = rng.choice((0, rng.randrange(4096), 4095))

    def draw(state: State, rng: random.Random, lane: int, size: int, align: int) -> None:
        region = rng.choice(regions)
        base, room = {"m": (state.base, MEMORY_BYTES), "l": (SHARED, LDS_BYTES), "p": (PRIVATE, SCRATCH_BYTES)}[region]
        state.set_input(0, lane, base + random_place(rng, room, size, align) - imm, 2)

    def place(state: State, lane: int, size: int) -> Place:
        address = state.input(0, lane, 2) + imm
        if address >> 48 == 1:
            return state.lds, address - SHARED
        if address >> 48 == 2:
            return state.scratch[lane], address - PRIVATE
        return state.memory, address - state.base

    return Addressing(lambda state, rng: None, draw, place, "v[10:11]{data}", f" offset:{imm}")


def scratch_addressing(rng: random.Random) -> Addressing:
    has_vector, has_scalar = rng.random() < 0.5, rng.random() < 0.5
    imm = rng.randrange(-4096, 4096) if has_vector or has_scalar else rng.randrange(0, SCRATCH_BYTES - 15)

    def prepare(state: State, rng: random.Random) -> None:
        target = rng.randrange(0, SCRATCH_BYTES - 15) // 8 * 8
        state.set_scalar(16, rng.getrandbits(12) if has_vector else target - imm)

    def total(state: State, lane: int) -> int:
        offset = (state.input(0, lane) if has_vector else 0) + (state.scalar(16) if has_scalar else 0) + imm
        return offset % WORD

    def draw(state: State, rng: random.Random, lane: int, size: int, align: int) -> None:
        scalar = state.scalar(16) if has_scalar else 0
        state.set_input(0, lane, random_place(rng, SCRATCH_BYTES, size, align) - imm - scalar)

    def place(state: State, lane: int, size: int) -> Place:
        return state.scratch[lane], total(state, lane)

    operand = f"{'v10' if has_vector else 'off'}, {{data}}{'s16' if has_scalar else 'off'}"
    return Addressing(prepare, draw, place, operand, f" offset:{imm}")


def draw_lanes(state: State, rng: random.Random, way: Addressing, size: int, align: int, exclusive: bool) -> None:
    """Draws an address for each lane. Lanes whose store would meet another one's are made inactive: the order of lanes
    isn't documented."""
    way.prepare(state, rng)
    taken: set[tuple[int, int]] = set()
    mask = state.scalar(EXEC, 2)
    for lane in range(LANES):
        for _ in range(4):
            way.draw(state, rng, lane, size, align)
            memory, at = way.place(state, lane, size)
            touched = {(memory.ctypes.data, at + i) for i in range(size)}
            if not exclusive or not touched & taken:
                break
        else:
            mask &= ~(1 << lane)
        if mask >> lane & 1:
            taken |= touched
    state.set_scalar(EXEC, mask, 2)


ADDRESSINGS = {"global": global_addressing, "flat": flat_addressing, "scratch": scratch_addressing}


def load(text: str, name: str, way: Addressing, registers: Registers) -> Instruction:
    """A load of ``LOADS``, whose result ``registers`` have been asked for."""
    size = LOADS[name]

    def draw(state: State, rng: random.Random) -> None:
        draw_lanes(state, rng, way, size, 1, False)

    def apply(state: State) -> None:
        for lane in state.active():
            state.set_output(0, lane, loaded(name, read(way.place(state, lane, size), size)), dwords_of(size))

    return Instruction(text, draw, apply, registers.moves_in, registers.moves_out)


def store(text: str, name: str, way: Addressing, registers: Registers) -> Instruction:
    """A store of ``STORES``, whose data ``registers`` have been asked for, from row 2 on."""
    size = STORES[name]

    def draw(state: State, rng: random.Random) -> None:
        draw_data(state, rng, range(2, 6))
        draw_lanes(state, rng, way, size, 1, True)

    def apply(state: State) -> None:
        for lane in state.active():
            write(way.place(state, lane, size), size, stored(name, state.input(2, lane, dwords_of(size))))

    return Instruction(text, draw, apply, registers.moves_in)


def flat_load(rng: random.Random) -> Instruction:
    family = rng.choice(list(ADDRESSINGS))
    way, name = ADDRESSINGS[family](rng), rng.choice(list(LOADS))
    registers = Registers(rng)
    result = registers.result(dwords_of(LOADS[name]))
    return load(f"{family}_load_{name} {result}, {way.operand.format(data='')}{way.suffix}", name, way, registers)


def flat_store(rng: random.Random) -> Instruction:
    family = rng.choice(list(ADDRESSINGS))
    way, name = ADDRESSINGS[family](rng), rng.choice(list(STORES))
    registers = Registers(rng)
    data = registers.source(2, dwords_of(STORES[name]))
    operands = way.operand.format(data=f", {data}" if family == "flat" else f"{data}, ")
    return store(f"{family}_store_{name} {operands}{way.suffix}", name, way, registers)


def draw_numbers(state: State, rng: random.Random, row: int, atomic: Atomic) -> None:
    for lane in range(LANES):
        state.set_input(row, lane, drawn_number(rng, atomic.bits, atomic.floating), atomic.bits // 32)


def fill_memory(memory: np.ndarray, rng: random.Random, atomic: Atomic) -> None:
    for at in range(0, memory.size, atomic.bytes):
        write((memory.reshape(-1), at), atomic.bytes, drawn_number(rng, atomic.bits, atomic.floating))


def memory_atomic(rng: random.Random) -> Instruction:
    family = rng.choice(("global", "flat"))
    way = global_addressing(rng) if family == "global" else flat_addressing(rng)
    compares = rng.random() < 0.15
    atomic = rng.choice(MEMORY_ATOMICS)
    if compares:
        atomic = rng.choice(COMPARES)
    if atomic.floating and family == "flat":
        way = flat_addressing(rng, "mp")  # whether the mode's flushing is for LDS by this way isn't documented
    returns, registers = rng.random() < 0.6, Registers(rng, "v" if atomic.floating else "va")  # as LLVM has them
    dwords = atomic.bits // 32

    def draw(state: State, rng: random.Random) -> None:
        fill_memory(state.memory, rng, atomic)
        fill_memory(state.lds, rng, atomic)
        draw_lanes(state, rng, way, atomic.bytes, atomic.bytes, True)
        draw_numbers(state, rng, 2, atomic)
        for lane in range(LANES):
            if compares:
                old = read(way.place(state, lane, atomic.bytes), atomic.bytes) if lane in state.active() else 0
                state.set_input(2 + dwords, lane, old ^ rng.choice((0, 0, 1)), dwords)

    def apply(state: State) -> None:
        for lane in state.active():
            place = way.place(state, lane, atomic.bytes)
            old, data = read(place, atomic.bytes), state.input(2, lane, dwords)
            if compares:
                new = data if old == state.input(2 + dwords, lane, dwords) else old
            else:
                new = atomic.update(old, data)
            write(place, atomic.bytes, new)
            if returns:
                state.set_output(0, lane, old, dwords)

    data = registers.source(2, dwords * (2 if compares else 1))
    result = f"{registers.result(dwords)}, " if returns else ""
    operands = way.operand.format(data=f", {data}" if family == "flat" else f"{data}, ")
    text = f"{family}_atomic_{atomic.name} {result}{operands}{way.suffix}{' sc0' if returns else ''}"
    return Instruction(text, draw, apply, registers.moves_in, registers.moves_out, bool(atomic.floating))


# ---- LDS ----

DS_LOADS = {"b32": "dword", "b64": "dwordx2", "b96": "dwordx3", "b128": "dwordx4", "i8": "sbyte", "u8": "ubyte",
            "i16": "sshort", "u16": "ushort", "u8_d16": "ubyte_d16", "u8_d16_hi": "ubyte_d16_hi", "i8_d16": "sbyte_d16",
            "i8_d16_hi": "sbyte_d16_hi", "u16_d16": "short_d16", "u16_d16_hi": "short_d16_hi"}  # fmt: skip
DS_STORES = {"b32": "dword", "b64": "dwordx2", "b96": "dwordx3", "b128": "dwordx4", "b8": "byte", "b16": "short",
             "b8_d16_hi": "byte_d16_hi", "b16_d16_hi": "short_d16_hi"}  # fmt: skip


def ds_addressing(offset: int) -> Addressing:
    """The sum wraps around at 32 bits: LLVM gives negative addresses offsets (GCNSubtarget::hasUsableDSOffset)."""

    def draw(state: State, rng: random.Random, lane: int, size: int, align: int) -> None:
        state.set_input(0, lane, random_place(rng, LDS_BYTES, size, align) - offset)

    def place(state: State, lane: int, size: int) -> Place:
        return state.lds, (state.input(0, lane) + offset) % WORD

    return Addressing(lambda state, rng: None, draw, place, "", "")


def ds_offset(rng: random.Random) -> int:
    return rng.choice((0, rng.randrange(1 << 16), rng.randrange(LDS_BYTES), 65535, 8 * rng.randrange(8)))


def ds_load(rng: random.Random) -> Instruction:
    name, offset, registers = rng.choice(list(DS_LOADS)), ds_offset(rng), Registers(rng)
    result = registers.result(dwords_of(LOADS[DS_LOADS[name]]))
    return load(f"ds_read_{name} {result}, v10 offset:{offset}", DS_LOADS[name], ds_addressing(offset), registers)


def ds_store(rng: random.Random) -> Instruction:
    name, offset, registers = rng.choice(list(DS_STORES)), ds_offset(rng), Registers(rng)
    data = registers.source(2, dwords_of(STORES[DS_STORES[name]]))
    return store(f"ds_write_{name} v10, {data} offset:{offset}", DS_STORES[name], ds_addressing(offset), registers)


def ds_pair(rng: random.Random) -> Instruction:
    """Two places of a lane: READ2, WRITE2 and WRXCHG2."""
    what, dwords, registers = rng.choice(("read", "write", "wrxchg")), rng.choice((1, 2)), Registers(rng)
    far = rng.random() < 0.4
    unit = 4 * dwords * (64 if far else 1)
    most = min(256, LDS_BYTES // unit)
    first, second = rng.randrange(most), rng.randrange(most)
    if what != "read" and first == second:
        second = (first + 1) % most  # the manual says two things about one place
    size = 4 * dwords
    ways = [ds_addressing(first * unit), ds_addressing(second * unit)]
    low, high = min(first, second) * unit, max(first, second) * unit

    def draw(state: State, rng: random.Random) -> None:
        draw_data(state, rng, range(2, 6))
        taken: set[int] = set()
        mask = state.scalar(EXEC, 2)
        for lane in range(LANES):
            place = random_place(rng, LDS_BYTES - (high - low), size, 1 if what == "read" else size)
            state.set_input(0, lane, place - low)
            touched = {way.place(state, lane, size)[1] + i for way in ways for i in range(size)}
            if what != "read" and touched & taken:
                mask &= ~(1 << lane)
            elif mask >> lane & 1:
                taken |= touched
        state.set_scalar(EXEC, mask, 2)

    def apply(state: State) -> None:
        for lane in state.active():
            places = [way.place(state, lane, size) for way in ways]
            for i, place in enumerate(places):
                if what != "write":
                    state.set_output(i * dwords, lane, read(place, size), dwords)
                if what != "read":
                    write(place, size, state.input(2 + 2 * i, lane, dwords))

    data = "" if what == "read" else f", {registers.source(2, dwords)}, {registers.source(4, dwords)}"
    result = "" if what == "write" else f"{registers.result(2 * dwords)}, "
    text = f"ds_{what}2{'st64' if far else ''}{'_rtn' if what == 'wrxchg' else ''}_b{32 * dwords} {result}v10{data}"
    text += f" offset0:{first} offset1:{second}"
    return Instruction(text, draw, apply, registers.moves_in, registers.moves_out)


def conditional_exchange(old: int, data: int) -> int:
    halves = [(data >> s & 0x7FFFFFFF) if data >> s + 31 & 1 else old >> s & WORD - 1 for s in (0, 32)]
    return halves[0] | halves[1] << 32


def compare_floats(width: int) -> Callable[[int, int, int], int]:
    return lambda old, first, second: second if as_float(old, width) == as_float(first, width) else old


def ds_atomic(rng: random.Random) -> Instruction:
    bits, offset, registers = rng.choice((32, 64)), 8 * rng.randrange(64), Registers(rng)
    top = (1 << bits) - 1
    types = {"and": "b", "or": "b", "xor": "b", "swap": "b", "smin": "i", "smax": "i"}
    names = {"smin": "min", "umin": "min", "smax": "max", "umax": "max", "swap": "wrxchg"}
    functions = integer_atomics(bits).items()
    one = {f"{names.get(name, name)}_{types.get(name, 'u')}{bits}": function for name, function in functions}
    one[f"rsub_u{bits}"] = lambda old, data: data - old & top
    two: dict[str, Callable[[int, int, int], int]] = {
        f"mskor_b{bits}": lambda old, mask, data: old & ~mask | data,
        f"cmpst_b{bits}": lambda old, expected, data: data if old == expected else old,
        f"cmpst_f{bits}": compare_floats(bits),
    }
    if bits == 64:
        one["condxchg32_b64"] = conditional_exchange
    else:
        two["wrap_b32"] = lambda old, limit, data: old - limit if old >= limit else old + data & top
    of_floats = [f"{name}_f{bits}" for name in ("add", "min", "max")] + ["pk_add_f16", "pk_add_bf16"] * (bits == 32)
    name = rng.choice([*one, *two, *of_floats])
    floating = name.split("_")[-1] if name in of_floats or name.startswith("cmpst_f") else ""
    returns = rng.random() < 0.6 or name.startswith(("wrxchg", "wrap", "condxchg32"))
    atomic, way, dwords = Atomic(name, bits, lambda old, data: data, floating), ds_addressing(offset), bits // 32

    def update(state: State, old: int, first: int, second: int) -> int:
        if name in two:
            return two[name](old, first, second)
        flush = state.flushes_f32()
        floats = {
            "add_f32": add_float(32, flush),
            "add_f64": add_float(64),
            f"min_f{bits}": extreme_float(bits, False),
            f"max_f{bits}": extreme_float(bits, True),
            "pk_add_f16": add_halves,
            "pk_add_bf16": add_bf16(flush),
        }
        return (floats.get(name) or one[name])(old, first)

    def draw(state: State, rng: random.Random) -> None:
        if name.startswith(("cmpst_f", "min_f", "max_f")):
            state.set_scalar(MODE, 0xF0)  # what becomes of compared subnormals that are flushed isn't clear
        fill_memory(state.lds, rng, atomic)
        draw_lanes(state, rng, way, atomic.bytes, atomic.bytes, True)
        draw_numbers(state, rng, 2, atomic)
        draw_numbers(state, rng, 4, atomic)
        if name.startswith("cmpst"):
            for lane in state.active():
                state.set_input(
                    2, lane, read(way.place(state, lane, bits // 8), bits // 8) ^ rng.choice((0, 0, 1)), dwords
                )

    def apply(state: State) -> None:
        for lane in state.active():
            place = way.place(state, lane, bits // 8)
            old = read(place, bits // 8)
            write(place, bits // 8, update(state, old, state.input(2, lane, dwords), state.input(4, lane, dwords)))
            if returns:
                state.set_output(0, lane, old, dwords)

    data = registers.source(2, dwords) + (f", {registers.source(4, dwords)}" if name in two else "")
    stem, kind = name.rsplit("_", 1)
    result = f"{registers.result(dwords)}, " if returns else ""
    text = f"ds_{stem}{'_rtn' if returns else ''}_{kind} {result}v10, {data} offset:{offset}"
    return Instruction(text, draw, apply, registers.moves_in, registers.moves_out, bool(floating))


def ds_crossing(rng: random.Random) -> Instruction:
    name = rng.choice(("permute", "bpermute", "swizzle"))
    offset = rng.choice((0, 4 * rng.randrange(64), rng.randrange(1 << 16)))
    if name == "swizzle":
        offset = rng.choice((0, 0x8000, 0xC000, 0xE000)) | rng.randrange(1 << 15) & (
            0x1FFF if rng.random() < 0.5 else 0x7FFF
        )

    def draw(state: State, rng: random.Random) -> None:
        draw_data(state, rng, range(2, 3))
        for lane in range(LANES):
            state.set_input(0, lane, rng.choice((4 * rng.randrange(64), rng.getrandbits(32))))

    def source_of(lane: int) -> int:
        """The manual's pseudocode of DS_SWIZZLE_B32."""
        position, mask = lane & 31, offset & 31
        if offset >= 0xE000:
            source = int(f"{position:05b}"[::-1], 2) >> bin(mask).count("1") | position & mask
        elif offset >= 0xC000:
            rotate = (offset >> 5 & 31) * (-1 if offset >> 10 & 1 else 1)
            source = position & mask | position + rotate & ~mask & 31
        elif offset >> 15:
            return lane & ~3 | offset >> 2 * (lane & 3) & 3
        else:
            source = (position & mask | offset >> 5 & 31) ^ (offset >> 10 & 31)
        return source | lane & 32

    def apply(state: State) -> None:
        active, results = state.active(), [0] * LANES
        if name == "permute":
            for lane in active:
                results[(state.input(0, lane) + offset) // 4 % 64] = state.input(2, lane)
        else:
            for lane in active:
                source = source_of(lane) if name == "swizzle" else (state.input(0, lane) + offset) // 4 % 64
                results[lane] = state.input(2, source) if source in active else 0
        for lane in active:
            state.set_output(0, lane, results[lane])

    operands = "v12" if name == "swizzle" else "v10, v12"
    return Instruction(f"ds_{name}_b32 v20, {operands} offset:{offset}", draw, apply)


def ds_by_m0(rng: random.Random) -> Instruction:
    name = rng.choice(("append", "consume", "read_addtid_b32", "write_addtid_b32"))
    offset = 4 * rng.randrange(128)

    def draw(state: State, rng: random.Random) -> None:
        draw_data(state, rng, range(2, 3))
        state.set_scalar(M0, 4 * rng.randrange(256) | rng.getrandbits(16) << 16)

    def apply(state: State) -> None:
        start, active = (state.scalar(M0) & 0xFFFF) + offset, state.active()
        if name in ("append", "consume"):
            if not active:
                return
            old = read((state.lds, start), 4)
            write((state.lds, start), 4, old + (len(active) if name == "append" else -len(active)) & WORD - 1)
        for lane in active:
            if name == "read_addtid_b32":
                state.set_output(0, lane, read((state.lds, start + 4 * lane), 4))
            elif name == "write_addtid_b32":
                write((state.lds, start + 4 * lane), 4, state.input(2, lane))
            else:
                state.set_output(0, lane, old)

    register = "v12" if name.startswith("write") else "v20"
    return Instruction(f"ds_{name} {register} offset:{offset}", draw, apply)


def load_to_lds(rng: random.Random) -> Instruction:
    """Lane l fills the dword at M0 + offset + 4 * l."""
    family, name = rng.choice(("global", "scratch")), rng.choice(("ubyte", "sbyte", "ushort", "sshort", "dword"))
    way, size = ADDRESSINGS[family](rng), LOADS[name]
    while (imm := int(way.suffix.split(":")[1])) % 4:  # which dword of LDS others mean isn't documented
        way = ADDRESSINGS[family](rng)

    def draw(state: State, rng: random.Random) -> None:
        state.set_scalar(M0, (4 * rng.randrange(128) - imm) // 4 * 4 & 0xFFFF | rng.getrandbits(14) << 18)
        draw_lanes(state, rng, way, size, 1, False)
        base = (state.scalar(M0) & 0xFFFF) + imm
        if base < 0 or base + 256 > LDS_BYTES:
            state.set_scalar(EXEC, 0, 2)

    def apply(state: State) -> None:
        values = {lane: loaded(name, read(way.place(state, lane, size), size)) for lane in state.active()}
        for lane, value in values.items():
            write((state.lds, (state.scalar(M0) & 0xFFFF) + imm + 4 * lane), 4, value)

    return Instruction(f"{family}_load_lds_{name} {way.operand.format(data='')}{way.suffix}", draw, apply)


# ---- Buffers ----


def buffer_instruction(rng: random.Random) -> Instruction:
    """Range checks and swizzles follow AMD's emulator as corrected by tests on chips (test_buffer_range.py)."""
    kind, registers = rng.choice(("load", "store", "atomic", "format", "typed", "lds")), Registers(rng)
    idxen, offen, imm = rng.random() < 0.5, rng.random() < 0.5, rng.choice((0, rng.randrange(64), 4095))
    soffset = rng.choice(("0", "s20", "m0", "16"))
    atomic = rng.choice([a for a in MEMORY_ATOMICS if a.name != "pk_add_bf16"])
    returns, compares = rng.random() < 0.6, False
    if kind == "atomic" and rng.random() < 0.15:
        atomic, compares = rng.choice(COMPARES), True
    data_format = rng.choice(list(WIDTHS))
    number = rng.choice((0, 1, 2, 3, 4, 5, 7)) if data_format in (2, 4, 5, 6, 7, 11, 12, 13, 14) else rng.randrange(6)
    components = rng.randrange(1, 5)
    halves = rng.random() < 0.3 and kind in ("format", "typed")
    converts = kind in ("format", "typed")
    if kind in ("load", "lds"):
        name = rng.choice(list(LOADS) if kind == "load" else ["ubyte", "sbyte", "ushort", "sshort", "dword"])
        size = LOADS[name]
    elif kind == "store":
        name = rng.choice(list(STORES))
        size = STORES[name]
    elif kind == "atomic":
        name, size = atomic.name, atomic.bytes
    else:
        name, size = "", sum(WIDTHS[data_format]) // 8
    align = size if kind == "atomic" else 1
    exclusive = kind in ("store", "atomic")

    def scalar_offset(state: State) -> int:
        return {"0": 0, "16": 16, "s20": state.scalar(20), "m0": state.scalar(M0)}[soffset]

    def prepare(state: State, rng: random.Random) -> None:
        tid, swizzled = rng.random() < 0.3, rng.random() < 0.4
        base = state.base + rng.choice((0, 0, 4, 64)) + (0 if align > 1 else rng.randrange(2))
        stride = rng.choice((0, 4, 8, 16, 64)) + (0 if align > 1 or swizzled else rng.choice((0, 1)))
        if align == 8:
            base, stride = base // 8 * 8, stride // 8 * 8
        dfmt = data_format if converts or not tid else 0  # else the upper bits of the stride
        index_stride = rng.randrange(4)
        state.set_scalar(16, base, 2)
        state.set_scalar(17, state.scalar(17) | stride << 16 | swizzled << 31)
        state.set_scalar(18, rng.choice((0, 40, 64, 255, 256, 1000, 4096 - 64, 1 << 31)))
        select = rng.choice((4 | 5 << 3 | 6 << 6 | 7 << 9, 7 | 1 << 3 | 0 << 6 | 4 << 9))
        state.set_scalar(19, select | number << 12 | dfmt << 15 | index_stride << 21 | tid << 23)
        state.set_scalar(20, 8 * rng.randrange(8) if align > 1 else rng.randrange(64))
        if kind == "lds":
            state.set_scalar(M0, 4 * rng.randrange(64) if soffset == "m0" else 4 * rng.randrange(128))
            if imm > 1024 or imm % 4:
                state.set_scalar(EXEC, 0, 2)
        elif soffset == "m0":
            state.set_scalar(M0, 8 * rng.randrange(8))

    def located(state: State, lane: int) -> tuple[int, int]:
        """The byte of the memory, and how many from there on are in range."""
        word1, records, word3 = (state.scalar(17 + i) for i in range(3))
        base = state.scalar(16) | (word1 & 0xFFFF) << 32
        stride, swizzled, tid = word1 >> 16 & 0x3FFF, bool(word1 >> 31), bool(word3 >> 23 & 1)
        index = state.input(0, lane) if idxen else 0
        vector = state.input(int(idxen), lane) if offen else 0
        offset, scalar = (vector + imm) % WORD, scalar_offset(state)
        if tid and not idxen:
            in_range = 1 << 40
        elif idxen and stride:
            in_range = 1 << 40 if index < records else 0
        else:
            in_range = max(0, records - offset - scalar)
        if tid and (swizzled or not idxen):
            index += lane
        if tid and swizzled:
            group = 8 << (word3 >> 21 & 3)
            inside = (index // group * stride + offset // 4 * 4) * group + index % group * 4 + offset % 4
            return base + scalar + inside - state.base, min(in_range, 4 - offset % 4)
        return base + scalar + index * stride + offset - state.base, in_range

    def valid_bytes(state: State, lane: int) -> int:
        """Dwords are checked one by one, anything else as a whole."""
        in_range = located(state, lane)[1]
        if kind in ("load", "store") and size >= 4:
            return min(size, in_range // 4 * 4)
        return size if in_range >= size else 0

    def draw(state: State, rng: random.Random) -> None:
        draw_data(state, rng, range(2, 6))
        if kind == "atomic":
            fill_memory(state.memory, rng, atomic)
            draw_numbers(state, rng, 2, atomic)
        prepare(state, rng)
        taken: set[int] = set()
        mask = state.scalar(EXEC, 2)
        for lane in range(LANES):
            for _ in range(4):
                index, offset = rng.randrange(48), rng.randrange(128)
                offset = offset // align * align - (imm if rng.random() < 0.3 or align > 1 else 0)
                if rng.random() < 0.2:
                    index, offset = rng.choice((index, WORD - 1)), rng.choice((WORD - 4 - imm, 1 << 31, 4096))
                state.set_input(0, lane, index if idxen else offset)
                if idxen and offen:
                    state.set_input(1, lane, offset)
                at, count = located(state, lane)[0], valid_bytes(state, lane)
                touched = set(range(at, at + count))
                legal = count == 0 or (at >= 0 and at + count <= MEMORY_BYTES and (state.base + at) % align == 0)
                if legal and not (exclusive and touched & taken):
                    break
            else:
                mask &= ~(1 << lane)
            if mask >> lane & 1:
                taken |= touched
        state.set_scalar(EXEC, mask, 2)
        for lane in range(LANES):
            if compares:
                valid = mask >> lane & 1 and valid_bytes(state, lane)
                old = read((state.memory, located(state, lane)[0]), size) if valid else 0
                state.set_input(2 + size // 4, lane, old ^ rng.choice((0, 0, 1)), size // 4)

    def convert(state: State, lane: int, component: int) -> int:
        place, valid = (state.memory, located(state, lane)[0]), valid_bytes(state, lane)
        select = 4 + component if kind == "typed" else state.scalar(19) >> 3 * component & 7
        if select == 1:
            return 1 if number in (4, 5) else 0x3F800000
        widths = WIDTHS[data_format]
        if select < 4 or select - 4 >= len(widths) or not valid:
            return 0
        code = read(place, size) >> sum(widths[: select - 4]) & ((1 << widths[select - 4]) - 1)
        return decoded(code, widths[select - 4], number)

    def narrowed(value: int) -> int:
        if number in (4, 5):
            return value & 0xFFFF
        with np.errstate(over="ignore"):
            return int(np.uint32(value).view(np.float32).astype(np.float16).view(np.uint16))

    def apply(state: State) -> None:
        m0 = state.scalar(M0) & 0xFFFF
        if kind == "atomic" and returns:  # in the registers of the data
            state.outputs[: size // 4] = state.inputs[2 : 2 + size // 4]
        for lane in state.active():
            place, valid = (state.memory, located(state, lane)[0]), valid_bytes(state, lane)
            value = read(place, valid) if valid else 0
            if kind == "load":
                state.set_output(0, lane, loaded(name, value), dwords_of(size))
            elif kind == "lds":
                write((state.lds, m0 + imm + 4 * lane), 4, loaded(name, value))
            elif kind == "store":
                data = stored(name, state.input(2, lane, dwords_of(size)))
                if valid:
                    write(place, valid, data & ((1 << 8 * valid) - 1))
            elif kind == "atomic":
                data = state.input(2, lane, size // 4)
                if valid and compares:
                    new = data if value == state.input(2 + size // 4, lane, size // 4) else value
                    write(place, size, new)
                elif valid:
                    write(place, size, atomic.update(value, data))
                if returns:
                    state.set_output(0, lane, value, size // 4)
            else:
                values = [convert(state, lane, i) for i in range(components)]
                if halves:
                    packed = [narrowed(v) for v in values]
                    packed += [0] * (len(packed) % 2)
                    values = [packed[i] | packed[i + 1] << 16 for i in range(0, len(packed), 2)]
                for i, v in enumerate(values):
                    state.set_output(i, lane, v)

    address = {(0, 0): "off", (1, 0): "v10", (0, 1): "v10", (1, 1): "v[10:11]"}[int(idxen), int(offen)]
    flags = f"{' idxen' * idxen}{' offen' * offen} offset:{imm}"
    rest = f"{address}, s[16:19], {soffset}"
    if kind == "load":
        text = f"buffer_load_{name} {registers.result(dwords_of(size))}, {rest}{flags}"
    elif kind == "lds":
        text = f"buffer_load_{name} {rest}{flags} lds"
    elif kind == "store":
        text = f"buffer_store_{name} {registers.source(2, dwords_of(size))}, {rest}{flags}"
    elif kind == "atomic":
        data = registers.source(2, size // 4 * (2 if compares else 1))
        if returns:
            registers.result(size // 4, data)
        text = f"buffer_atomic_{name} {data}, {rest}{flags}{' sc0' * returns}"
    else:
        count = (components + 1) // 2 if halves else components
        form = f"format{'_d16' * halves}_{'xyzw'[:components]}"
        prefix, format_ = ("tbuffer", f" format:{data_format | number << 4}") if kind == "typed" else ("buffer", "")
        text = f"{prefix}_load_{form} {registers.result(count)}, {rest}{format_}{flags}"
    has_nans = converts or (kind == "atomic" and atomic.floating != "")
    return Instruction(text, draw, apply, registers.moves_in, registers.moves_out, has_nans)


# ---- Scalar memory ----


def scalar_memory(rng: random.Random) -> Instruction:
    kind = rng.choice(("load", "load", "store", "atomic"))
    is_buffer, is_scratch = rng.random() < 0.5, False
    if not is_buffer and kind != "atomic":
        is_scratch = rng.random() < 0.3
    widths = (1, 2, 4, 8, 16) if kind == "load" and not is_scratch else (1, 2, 4)
    dwords = rng.choice(widths)
    atomic, returns, compares = rng.choice(SCALAR_ATOMICS), rng.random() < 0.5, False
    if kind == "atomic":
        if rng.random() < 0.15:
            atomic, compares = rng.choice(COMPARES), True
        dwords = atomic.bits // 32
    size = 4 * dwords
    span = dwords * (2 if compares else 1)
    data = 48 + rng.randrange(0, 17 - span) // min(4, span) * min(4, span)
    form = rng.choice(("imm", "s20", "m0") if kind == "load" else ("imm", "m0"))
    imm = rng.choice((0, 4, 1024, 1 << 19, rng.randrange(1 << 20)))
    has_both = form != "imm" and rng.random() < 0.4 and kind == "load"
    if has_both:
        imm = rng.choice((imm, -4, -1, -(1 << 20)))
    if is_buffer:
        imm = rng.choice((0, 8, 200, 1 << 18, *((4, 7) if kind != "atomic" else ())))

    def offset(state: State) -> int:
        register = {"imm": 0, "s20": state.scalar(20), "m0": state.scalar(M0)}[form]
        return (imm if form == "imm" or has_both else 0) + register * (64 if is_scratch else 1)

    def draw(state: State, rng: random.Random) -> None:
        minimum = -imm if has_both and imm < 0 else 0
        register = minimum + rng.choice((0, 1, 60, rng.randrange(4096)))
        if kind == "atomic":
            register = register // 8 * 8
        state.set_scalar(20, register)
        state.set_scalar(M0, register)
        for i in range(16):
            state.results[i] = drawn_number(rng, 32)
        if is_buffer:
            base = state.base + (0 if kind == "atomic" else rng.randrange(4))
            state.set_scalar(16, base, 2)
            stride = rng.choice((0, 0, 4, 16))
            state.set_scalar(17, state.scalar(17) | stride << 16)
            state.set_scalar(18, rng.choice((0, 3, 16, 100, 200)) if stride else rng.choice((0, 3, 250, 256, 4092)))
        else:
            target = state.base + random_place(rng, MEMORY_BYTES, size, 8 if kind == "atomic" else 4)
            unaligned = 0 if kind == "atomic" else rng.randrange(4)
            state.set_scalar(16, target - offset(state) + unaligned, 2)
        if kind == "atomic":
            fill_memory(state.memory, rng, atomic)
            if compares:
                at, valid = located(state, 0)
                expected = read((state.memory, at), size) if valid else 0
                for i in range(dwords):
                    state.results[data - 48 + dwords + i] = expected >> 32 * i & WORD - 1
                state.results[data - 48 + dwords] ^= rng.choice((0, 0, 1))

    def located(state: State, dword: int) -> tuple[int, bool]:
        if not is_buffer:
            return (state.scalar(16, 2) + offset(state) + 4 * dword) // 4 * 4 - state.base, True
        base = (state.scalar(16) | (state.scalar(17) & 0xFFFF) << 32) // 4 * 4
        stride = state.scalar(17) >> 16 & 0x3FFF
        at = offset(state) // 4 * 4 + 4 * dword
        needed = size if kind == "atomic" else 4
        return base + at - state.base, at + needed <= state.scalar(18) * (stride or 1)

    def apply(state: State) -> None:
        results = state.results[data - 48 :]
        if kind == "atomic":
            at, valid = located(state, 0)
            place = (state.memory, at)
            old = read(place, size) if valid else 0
            value = sum(int(results[i]) << 32 * i for i in range(dwords))
            expected = sum(int(results[dwords + i]) << 32 * i for i in range(dwords)) if compares else 0
            if valid:
                write(place, size, (value if old == expected else old) if compares else atomic.update(old, value))
            for i in range(dwords if returns else 0):
                results[i] = old >> 32 * i & WORD - 1
            return
        for i in range(dwords):
            at, valid = located(state, i)
            if kind == "load":
                results[i] = read((state.memory, at), 4) if valid else 0
            elif valid:
                write((state.memory, at), 4, int(results[i]))

    name = f"s_{'buffer_' * is_buffer}{'scratch_' * is_scratch}"
    name += f"atomic_{atomic.name}" if kind == "atomic" else f"{kind}_dword{f'x{dwords}' if dwords > 1 else ''}"
    address = "s[16:19]" if is_buffer else "s[16:17]"
    where = f"{imm:#x}" if form == "imm" else f"{form} offset:{imm:#x}" if has_both else form
    text = f"{name} {tuple_of('s', data, span)}, {address}, {where}{' glc' * (kind == 'atomic' and returns)}"
    return Instruction(text, draw, apply)


FAMILIES: dict[str, Callable[[random.Random], Instruction]] = {
    "flat_load": flat_load,
    "flat_store": flat_store,
    "memory_atomic": memory_atomic,
    "ds_load": ds_load,
    "ds_store": ds_store,
    "ds_pair": ds_pair,
    "ds_atomic": ds_atomic,
    "ds_crossing": ds_crossing,
    "ds_by_m0": ds_by_m0,
    "load_to_lds": load_to_lds,
    "buffer": buffer_instruction,
    "scalar": scalar_memory,
}


class Runner:
    """Launches workgroups of one wave, each of which executes one instruction on a state of its own."""

    def __init__(self, compiler: Compiler, instructions: list[Instruction], groups: int) -> None:
        self.instructions = instructions
        kernel = PROLOGUE + EPILOGUE + "".join(instruction.body() for instruction in instructions)
        image = compiler.assemble(program({"fuzzed": kernel}, LDS_BYTES, 1, SCRATCH_BYTES, Allocation(scalars=64)))
        self._module, self._function = c_void_p(), c_void_p()
        loaded = ctypes.create_string_buffer(image, len(image))
        assert library().hipModuleLoadData(ctypes.byref(self._module), loaded) == 0
        assert library().hipModuleGetFunction(ctypes.byref(self._function), self._module, b"fuzzed") == 0
        pages = np.zeros(groups * STATE_BYTES + 4096, np.uint8)
        start = -pages.ctypes.data % 4096
        self._states = pages[start : start + groups * STATE_BYTES].reshape(groups, STATE_BYTES)
        self._pointer = c_void_p(self._states.ctypes.data)
        assert library().hipHostRegister(self._pointer, c_size_t(self._states.nbytes), 0) == 0

    def close(self) -> None:
        """Gives back the module and the memory, which others may get next."""
        assert library().hipHostUnregister(self._pointer) == 0
        assert library().hipModuleUnload(self._module) == 0

    def draw(self, number: int, group: int, rng: random.Random) -> State:
        """A state for an instruction, in which its accesses are legal."""
        raw = np.frombuffer(rng.randbytes(STATE_BYTES), np.uint8).copy()
        state = State(raw, self._states[group].ctypes.data)
        mask = rng.choice((-1, -1, 0, 1 << rng.randrange(64), rng.getrandbits(64), rng.getrandbits(64)))
        state.set_scalar(EXEC, mask, 2)
        state.set_scalar(MODE, rng.choice((0xF0, 0xC0, 0xFF, 0xF5, 0xCA)))
        raw[NUMBER : NUMBER + 4] = np.frombuffer(struct.pack("<I", number), np.uint8)
        self.instructions[number].draw(state, rng)
        return state

    def run(self, before: list[State]) -> tuple[int, list[State]]:
        """The HIP status, and the states after the instructions."""
        for group, state in enumerate(before):
            self._states[group] = state.raw
        arguments = (c_void_p * 1)(ctypes.addressof(self._pointer))
        shape = map(c_uint, (len(before), 1, 1, LANES, 1, 1, 0))
        status = library().hipModuleLaunchKernel(self._function, *shape, None, arguments, None)
        return status, [State(self._states[i].copy(), state.base - MEMORY) for i, state in enumerate(before)]

    def expected(self, number: int, before: State) -> State:
        after = State(before.raw.copy(), before.base - MEMORY)
        with np.errstate(all="ignore"):
            self.instructions[number].apply(after)
        return after


def nans(raw: np.ndarray) -> np.ndarray:
    """The bytes that may belong to a NaN of any type."""
    found = np.zeros(raw.size, bool)
    for kind, unit in ((np.float16, 2), (np.float32, 4), (np.float64, 8)):
        found |= np.repeat(np.isnan(raw.view(kind)), unit)
    found |= np.repeat((raw.view(np.uint16) & 0x7FFF) > 0x7F80, 2)
    return found


def differences(instruction: Instruction, expected: State, actual: State) -> np.ndarray:
    """Bytes of the state that differ, apart from NaNs that stand for NaNs."""
    differ = expected.raw != actual.raw
    if instruction.has_nans and differ.any():
        differ &= ~(nans(expected.raw) & nans(actual.raw))
    return np.nonzero(differ)[0]


def region_of(byte: int) -> str:
    starts = {"inputs": INPUTS, "outputs": OUTPUTS, "scalars": SCALARS, "results": RESULTS, "number": NUMBER}
    starts |= {"memory": MEMORY, "lds": LDS, "scratch": SCRATCH}
    name = max((start, name) for name, start in starts.items() if start <= byte)[1]
    return f"{name}+{byte - starts[name]:#x}"
