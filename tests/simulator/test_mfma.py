"""Single matrix instructions: registers are loaded lane by lane, and every register of D is compared.

The layouts of elements in lanes are written here independently, from AMD's matrix instruction calculator. The expected
results are mmasim's for floating point, and integer arithmetic for I8.
"""

from __future__ import annotations

import functools
import itertools
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.simulated_hip import ZIG, Hip
from mmasim.amd.sim import MFMA

FLOAT8 = [f"{a}_{b}" for a in ("fp8", "bf8") for b in ("fp8", "bf8")]
DENSE = [
    *[f"v_mfma_f32_16x16x32_{types}" for types in FLOAT8],
    *[f"v_mfma_f32_32x32x16_{types}" for types in FLOAT8],
    *[
        f"v_mfma_f32_{shape}_{half}"
        for half in ("f16", "bf16")
        for shape in ("16x16x16", "32x32x8", "32x32x4_2b", "16x16x4_4b", "4x4x4_16b")
    ],
    "v_mfma_f32_16x16x8_xf32",
    "v_mfma_f32_32x32x4_xf32",
    *[f"v_mfma_f32_{shape}_f32" for shape in ("16x16x4", "32x32x2", "32x32x1_2b", "16x16x1_4b", "4x4x1_16b")],
    "v_mfma_f64_16x16x4_f64",
    "v_mfma_f64_4x4x4_4b_f64",
    *[f"v_mfma_i32_{shape}_i8" for shape in ("16x16x32", "32x32x16", "32x32x4_2b", "16x16x4_4b", "4x4x4_16b")],
]
BLOCKS = [mnemonic for mnemonic in DENSE if re.search(r"_\d+b_", mnemonic) and "f64" not in mnemonic]
SPARSE = [
    *[f"v_smfmac_f32_{shape}_{half}" for shape in ("16x16x32", "32x32x16") for half in ("f16", "bf16")],
    *[f"v_smfmac_f32_{shape}_{types}" for shape in ("16x16x64", "32x32x32") for types in FLOAT8],
    *[f"v_smfmac_i32_{shape}_i8" for shape in ("16x16x64", "32x32x32")],
]

BITS = {"fp8": 8, "bf8": 8, "i8": 8, "f16": 16, "bf16": 16, "f32": 32, "xf32": 32, "f64": 64}
TYPES = {
    "fp8": torch.float8_e4m3fnuz,
    "bf8": torch.float8_e5m2fnuz,
    "i8": torch.int8,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "xf32": torch.float32,
    "f64": torch.float64,
    "i32": torch.int32,
}
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

MODULE = """
.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
{kernels}
.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.kernels:
{metadata}
...
.end_amdgpu_metadata
"""
KERNEL = """
.text
.globl {name}
.p2align 8
.type {name},@function
{name}:
  s_load_dwordx8 s[8:15], s[0:1], 0
  s_load_dwordx2 s[16:17], s[0:1], 32
  v_lshlrev_b32 v0, 2, v0
  s_waitcnt lgkmcnt(0)
{body}
  s_endpgm
.rodata
.p2align 6
.amdhsa_kernel {name}
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_kernarg_size 40
  .amdhsa_next_free_vgpr 128
  .amdhsa_next_free_sgpr 24
  .amdhsa_accum_offset 128
.end_amdhsa_kernel
"""
METADATA = """
  - .name: {name}
    .symbol: {name}.kd
    .kernarg_segment_size: 40
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 0
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 24
    .vgpr_count: 128
    .max_flat_workgroup_size: 64
    .args:
{arguments}
""".strip("\n")
ARGUMENT = "      - {{.size: 8, .offset: {}, .value_kind: global_buffer, .address_space: global}}"


@dataclass(frozen=True)
class Instruction:
    """A parsed mnemonic. A, B and D are `blocks` matrices of size x k, k x size and size x size."""

    mnemonic: str
    sparse: bool
    d_type: str
    size: int
    k: int
    blocks: int
    a_type: str
    b_type: str

    @classmethod
    def of(cls, mnemonic: str) -> Instruction:
        found = re.fullmatch(r"v_(s?)mf\w+?_(\w\d+)_(\d+)x\d+x(\d+)_(?:(\d+)b_)?([a-z]+\d+)_?([a-z]+\d+)?", mnemonic)
        assert found, mnemonic
        sparse, d_type, size, k, blocks, a_type, b_type = found.groups()
        return cls(mnemonic, bool(sparse), d_type, int(size), int(k), int(blocks or 1), a_type, b_type or a_type)

    def registers(self, elements: int, kind: str) -> int:
        return elements * BITS[kind] // 64 // 32

    @property
    def a_registers(self) -> int:
        return self.registers(self.blocks * self.size * self.k, self.a_type) // (2 if self.sparse else 1)

    @property
    def b_registers(self) -> int:
        return self.registers(self.blocks * self.size * self.k, self.b_type)

    @property
    def d_registers(self) -> int:
        return self.registers(self.blocks * self.size**2, "f64" if self.d_type == "f64" else "f32")

    @property
    def modifiers(self) -> list[str]:
        """The modifiers to test; the index of each is the number of its kernel."""
        if self.sparse:
            return ["", "cbsz:1 abid:1", *(f"abid:{abid}" for abid in range(4))]
        if self.d_type == "f64":
            return ["", *(f"neg:[{','.join(signs)}]" for signs in itertools.product("01", repeat=3))]
        broadcasts = [f"cbsz:{cbsz} abid:{2**cbsz - 1}" for cbsz in range(1, self.blocks.bit_length())]
        return ["", *broadcasts, *(f"blgp:{blgp}" for blgp in range(8))]

    def code_object(self, folder: Path) -> bytes:
        arguments = "\n".join(ARGUMENT.format(8 * i) for i in range(5))
        names = [f"run_{i}" for i in range(len(self.modifiers))]
        kernels = [
            KERNEL.format(name=name, body=self._body(how)) for name, how in zip(names, self.modifiers, strict=True)
        ]
        metadata = [METADATA.format(name=name, arguments=arguments) for name in names]
        (folder / "kernel.s").write_text(MODULE.format(kernels="".join(kernels), metadata="\n".join(metadata)))
        target = ["-x", "assembler", "-target", "amdgcn-amd-amdhsa", "-mcpu=gfx942"]
        for command in (
            [ZIG, "clang", *target, "-c", "kernel.s", "-o", "kernel.o"],
            [ZIG, "ld.lld", "-shared", "kernel.o", "-o", "kernel.co"],
        ):
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        return (folder / "kernel.co").read_bytes()

    def _body(self, modifiers: str) -> str:
        """The kernel's body. Its arguments point to [register][lane] dwords of A, B, C, the sparsity indices and D."""

        def move(operation: str, first: int, count: int, pointer: int) -> list[str]:
            lines = []
            for register in range(count):
                operand = f"v{first + register}"
                order = f"v0, {operand}" if operation == "store" else f"{operand}, v0"
                lines.append(f"  global_{operation}_dword {order}, s[{pointer}:{pointer + 1}]")
                lines += [f"  s_add_u32 s{pointer}, s{pointer}, 256", f"  s_addc_u32 s{pointer + 1}, s{pointer + 1}, 0"]
            return lines

        def span(first: int, count: int) -> str:
            return f"v{first}" if count == 1 else f"v[{first}:{first + count - 1}]"

        a, b, index, c, d = 2, 8, 16, 32, 32 if self.sparse else 64
        last = f"v{index}" if self.sparse else span(c, self.d_registers)
        operands = [span(d, self.d_registers), span(a, self.a_registers), span(b, self.b_registers), last]
        body = [
            *move("load", a, self.a_registers, 8),
            *move("load", b, self.b_registers, 10),
            *move("load", c, self.d_registers, 12),
            *(move("load", index, 1, 14) if self.sparse else []),
            "  s_waitcnt vmcnt(0)",
            f"  {self.mnemonic} {', '.join(operands)} {modifiers}",
            *["  s_nop 15"] * 2,
            *move("store", d, self.d_registers, 16),
        ]
        return "\n".join(body)

    def a_lanes(self, matrix: torch.Tensor) -> np.ndarray:
        """The registers of A from [blocks, size, k], or of B from its transpose."""
        size, blocks = self.size, self.blocks
        lanes_of_k = 64 // size // blocks
        lanes = matrix.reshape(blocks, size, lanes_of_k, -1)
        # In F64 instructions, 16 lanes have one k of all blocks.
        order = (2, 0, 1, 3) if self.a_type == "f64" else (0, 2, 1, 3)
        lanes = lanes.permute(order).reshape(64, -1).contiguous()
        return np.ascontiguousarray(lanes.view(torch.int32).numpy().T)

    @functools.cached_property
    def d_places(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Register (F64: pair of registers) and lane of each element of D, [blocks, size, size]."""
        block, i, j = torch.meshgrid(*map(torch.arange, (self.blocks, self.size, self.size)), indexing="ij")
        if self.d_type == "f64":
            return (i // 4, 16 * (i % 4) + j) if self.size == 16 else (0 * i, 16 * i + 4 * block + j)
        if self.size == 4:
            return i, 4 * block + j
        if self.size == 16:
            return 4 * block + i % 4, 16 * (i // 4) + j
        return 16 * block + 4 * (i // 8) + i % 4, 32 * (i // 4 % 2) + j

    def d_lanes(self, matrix: torch.Tensor) -> np.ndarray:
        register, lane = self.d_places
        words = torch.zeros(int(register.max()) + 1, 64, dtype=matrix.dtype)
        words[register, lane] = matrix
        return words.view(torch.int32).reshape(-1, 64, matrix.itemsize // 4).permute(0, 2, 1).contiguous().numpy()

    def d_matrix(self, lanes: np.ndarray) -> torch.Tensor:
        words = torch.from_numpy(lanes).reshape(-1, TYPES[self.d_type].itemsize // 4, 64).permute(0, 2, 1).contiguous()
        register, lane = self.d_places
        return words.view(TYPES[self.d_type])[register, lane, 0]

    def expected(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """D of A [blocks, size, k], B transposed [blocks, size, k] and C."""
        if self.d_type == "i32":
            total = torch.einsum("bik,bjk->bij", a.long(), b.long()) + c.long()
            return (total & 0xFFFFFFFF).to(torch.int32)
        shape = (*c.shape, a.shape[-1])
        model = MFMA("CDNA3", self.mnemonic.removeprefix("v_mfma_"))
        return model.dpa(a[:, :, None].expand(shape), b[:, None].expand(shape), c)


class Runner:
    def __init__(self, hip: Hip, folder: Path) -> None:
        self._hip = hip
        self._module = functools.cache(lambda instruction: hip.load(instruction.code_object(folder)))

    def __call__(
        self,
        instruction: Instruction,
        a: np.ndarray,
        b: np.ndarray,
        c: np.ndarray,
        index: np.ndarray | None = None,
        modifiers: str = "",
    ) -> np.ndarray:
        poison = np.full_like(c, 0x7BADBAD)
        buffers = [self._hip.upload(x) for x in (a, b, c, a if index is None else index, poison)]
        name = f"run_{instruction.modifiers.index(modifiers)}"
        self._hip.launch(self._hip.function(self._module(instruction), name), 1, 64, *buffers)
        d = self._hip.download(buffers[-1], poison)
        for buffer in buffers:
            self._hip.hipFree(buffer)
        return d


@pytest.fixture(scope="module")
def run(hip: Hip, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return Runner(hip, tmp_path_factory.mktemp("mfma"))


def random_numbers(kind: str, shape: tuple[int, ...], orders: int, rng: torch.Generator) -> torch.Tensor:
    """Random numbers that span ``orders`` binary orders of magnitude, with some zeros."""
    if kind in ("i8", "i32"):
        limits = torch.iinfo(TYPES[kind])
        return torch.randint(limits.min, limits.max + 1, shape, generator=rng).to(TYPES[kind])
    scale = torch.exp2((torch.rand(shape, generator=rng, dtype=torch.float64) - 0.5) * orders)
    numbers = torch.randn(shape, generator=rng, dtype=torch.float64) * scale
    return numbers.masked_fill(torch.rand(shape, generator=rng) < 0.05, 0).to(TYPES[kind])


def random_bits(kind: str, shape: tuple[int, ...], rng: torch.Generator) -> torch.Tensor:
    """Random bits without NaN, which would make most of D NaN."""
    integers = INTEGERS[TYPES[kind].itemsize]
    limits = torch.iinfo(integers)
    numbers = torch.randint(limits.min, limits.max, shape, generator=rng).to(integers).view(TYPES[kind])
    return torch.where(numbers.to(torch.float64).isnan(), torch.ones((), dtype=numbers.dtype), numbers)


def near_ties(ins: Instruction, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Operands whose totals lie slightly off the middle of two F32 numbers: C is from 2^24 to 2^25, and products are
    2^0...2^14, 1, and 2^-10...1."""
    exponent = torch.arange(ins.size).expand(ins.blocks, ins.size)
    a, b = (torch.zeros(ins.blocks, ins.size, ins.k, dtype=torch.float64) for _ in range(2))
    for k, powers in enumerate((2.0 ** (exponent % 8), torch.ones(()), 2.0 ** -(exponent % 6))):
        a[..., k], b[..., k] = powers, powers
    signs = [torch.randint(0, 2, (ins.blocks, ins.size, 1), generator=rng) * 2 - 1 for _ in range(3)]
    c = 2**24 + 2 * torch.randint(0, 2**23, (ins.blocks, ins.size, ins.size), generator=rng)
    return (signs[0] * a).to(TYPES[ins.a_type]), (signs[1] * b).to(TYPES[ins.b_type]), (signs[2] * c).float()


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Compares bits. Any NaN equals any other, since no manual specifies the bits of a NaN result."""
    if actual.is_floating_point():
        assert torch.equal(actual.isnan(), expected.isnan())
        actual, expected = actual.nan_to_num(0, torch.inf, -torch.inf), expected.nan_to_num(0, torch.inf, -torch.inf)
    integers = INTEGERS[actual.itemsize]
    different = (actual.view(integers) != expected.view(integers)).nonzero()
    assert not len(different), f"first of {len(different)} at {different[0]}: {actual[tuple(different[0])]}"


@pytest.mark.parametrize("mnemonic", DENSE)
def test_bits(run: Runner, mnemonic: str) -> None:
    """Few and many orders of magnitude, accumulators far below and far above the products, any bits, cancellation."""
    ins = Instruction.of(mnemonic)
    rng = torch.Generator().manual_seed(0)
    operand, result = (ins.blocks, ins.size, ins.k), (ins.blocks, ins.size, ins.size)
    for case in (0, 2, 8, 24, 60, 120, 200, "bits", "zeros", "cancelling", "infinite", "not a number"):
        orders = case if isinstance(case, int) else 4
        a, b, c = (
            random_bits(kind, shape, rng) if case == "bits" else random_numbers(kind, shape, limit, rng)
            for kind, shape, limit in (
                (ins.a_type, operand, orders),
                (ins.b_type, operand, orders),
                (ins.d_type, result, 3 * orders),
            )
        )
        if case == "cancelling" and a.is_floating_point() and ins.k > 1:
            a[..., 1::2], b[..., 1::2] = -a[..., ::2].double(), b[..., ::2]
        if case == "zeros" and a.is_floating_point():
            a[:, 1], b[:, 2] = 0, 0
            c[:, 0], c[:, 1, :4] = -0.0, torch.tensor([0, -0.0, 1e-44, 3e38])
        if case == "infinite" and a.is_floating_point():
            a[:, 1, 0], b[:, 2, 0], c[:, 3, 3] = torch.inf, -torch.inf, torch.inf
        if case == "not a number" and a.is_floating_point():
            a[:, 1, 0], b[:, 2, 0], c[:, 3, 3] = (torch.nan,) * 3
        d = ins.d_matrix(run(ins, ins.a_lanes(a), ins.a_lanes(b), ins.d_lanes(c)))
        assert_same_bits(d, ins.expected(a, b, c))


@pytest.mark.parametrize("mnemonic", [m for m in DENSE if Instruction.of(m).k > 2 and m.startswith("v_mfma_f32")])
def test_near_ties(run: Runner, mnemonic: str) -> None:
    """The bits that are cut off the sum of products decide how the total is rounded."""
    ins = Instruction.of(mnemonic)
    a, b, c = near_ties(ins, torch.Generator().manual_seed(5))
    d = ins.d_matrix(run(ins, ins.a_lanes(a), ins.a_lanes(b), ins.d_lanes(c)))
    assert_same_bits(d, ins.expected(a, b, c))


@pytest.mark.parametrize("mnemonic", BLOCKS)
def test_blocks_of_a_are_broadcast(run: Runner, mnemonic: str) -> None:
    """CBSZ: each group of 2^CBSZ blocks uses the ABID-th block of the group."""
    ins = Instruction.of(mnemonic)
    rng = torch.Generator().manual_seed(1)
    a, b = (random_numbers(ins.a_type, (ins.blocks, ins.size, ins.k), 2, rng) for _ in range(2))
    c = random_numbers(ins.d_type, (ins.blocks, ins.size, ins.size), 2, rng)
    for cbsz in range(1, ins.blocks.bit_length()):
        abid = 2**cbsz - 1
        block = torch.arange(ins.blocks) // 2**cbsz * 2**cbsz + abid
        lanes = run(ins, ins.a_lanes(a), ins.a_lanes(b), ins.d_lanes(c), modifiers=f"cbsz:{cbsz} abid:{abid}")
        assert_same_bits(ins.d_matrix(lanes), ins.expected(a[block], b, c))


@pytest.mark.parametrize("mnemonic", [*BLOCKS, "v_mfma_f32_16x16x4_f32", "v_mfma_f32_32x32x2_f32"])
def test_lanes_of_b_are_rearranged(run: Runner, mnemonic: str) -> None:
    """BLGP: D is the same as without BLGP for rearranged registers of B."""
    ins = Instruction.of(mnemonic)
    rng = torch.Generator().manual_seed(2)
    a, b = (random_numbers(ins.a_type, (ins.blocks, ins.size, ins.k), 2, rng) for _ in range(2))
    c = random_numbers(ins.d_type, (ins.blocks, ins.size, ins.size), 2, rng)
    lane = np.arange(64)
    patterns = [lane, lane % 32, lane % 32 + 32, (lane + 16) % 64, *(lane % 16 + 16 * i for i in range(4))]
    for blgp, pattern in enumerate(patterns):
        arranged = np.ascontiguousarray(ins.a_lanes(b)[:, pattern])
        d = run(ins, ins.a_lanes(a), ins.a_lanes(b), ins.d_lanes(c), modifiers=f"blgp:{blgp}")
        assert np.array_equal(d, run(ins, ins.a_lanes(a), arranged, ins.d_lanes(c)))


@pytest.mark.parametrize("mnemonic", ["v_mfma_f64_16x16x4_f64", "v_mfma_f64_4x4x4_4b_f64"])
@pytest.mark.parametrize("negated", range(8))
def test_f64_operands_are_negated(run: Runner, mnemonic: str, negated: int) -> None:
    ins = Instruction.of(mnemonic)
    rng = torch.Generator().manual_seed(3)
    a, b = (random_numbers("f64", (ins.blocks, ins.size, ins.k), 2, rng) for _ in range(2))
    c = random_numbers("f64", (ins.blocks, ins.size, ins.size), 2, rng)
    signs = [-1 if negated >> bit & 1 else 1 for bit in range(3)]
    modifiers = f"neg:[{','.join(str(negated >> bit & 1) for bit in range(3))}]"
    lanes = run(ins, ins.a_lanes(a), ins.a_lanes(b), ins.d_lanes(c), modifiers=modifiers)
    assert_same_bits(ins.d_matrix(lanes), ins.expected(signs[0] * a, signs[1] * b, signs[2] * c))


@pytest.mark.parametrize("mnemonic", SPARSE)
def test_sparse_a(run: Runner, mnemonic: str) -> None:
    """Small integers, whose sums are exact in any order, with every choice of the index bits."""
    ins = Instruction.of(mnemonic)
    rng = np.random.default_rng(4)
    kept = ins.k // 2  # stored elements of a row of A
    a, b = (torch.from_numpy(rng.integers(-4, 5, shape)) for shape in ((ins.size, kept), (ins.size, ins.k)))
    c = torch.from_numpy(rng.integers(-100, 101, (1, ins.size, ins.size))).to(TYPES[ins.d_type])
    places = np.sort(rng.permuted(np.tile(np.arange(4), (ins.size, ins.k // 4, 1)), axis=2)[..., :2], axis=2)
    columns = torch.from_numpy((places + 4 * np.arange(ins.k // 4)[:, None]).reshape(ins.size, kept))
    dense = torch.zeros(ins.size, ins.k, dtype=torch.int64).scatter_(1, columns, a)
    expected = (dense @ b.T + c[0].long()).to(TYPES[ins.d_type])

    a_lanes = ins.a_lanes(a.to(TYPES[ins.a_type])[None])
    b_lanes = ins.a_lanes(b.to(TYPES[ins.b_type])[None])
    index_bits = 2 * kept * ins.size // 64
    fields = places.reshape(ins.size, 64 // ins.size, index_bits // 2).swapaxes(0, 1).reshape(64, -1)
    index = (fields << 2 * np.arange(index_bits // 2)).sum(1)
    for abid in range(32 // index_bits):
        others = rng.integers(0, 2**32, 64) & ~((2**index_bits - 1) << index_bits * abid)
        word = (others | index << index_bits * abid).astype(np.uint32)
        lanes = run(ins, a_lanes, b_lanes, ins.d_lanes(c), word, f"abid:{abid}")
        assert torch.equal(ins.d_matrix(lanes)[0], expected)
        # CBSZ selects the lowest index bits for any ABID.
        if abid == 0:
            lanes = run(ins, a_lanes, b_lanes, ins.d_lanes(c), word, "cbsz:1 abid:1")
            assert torch.equal(ins.d_matrix(lanes)[0], expected)
