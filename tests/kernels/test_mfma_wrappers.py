"""Every wrapper in mfma.h, on operands and accumulators from memory. All elements of the results are compared.

The reference is mmasim, a bit-accurate model of the matrix cores that was validated on an MI300X.
"""

from __future__ import annotations

import pytest
import torch
from mmasim.amd import MFMA

from deep_gemm_rocm.selftest import mfma
from deep_gemm_rocm.selftest.mfma import multiply_add

# AMD's instruction for (rows, type of A, type of B) in mfma.h.
FORMATS = {"E4M3": "fp8", "E5M2": "bf8", "_Float16": "f16", "__bf16": "bf16"}
INSTRUCTIONS = {
    (16, "_Float16", "_Float16"): "f32_16x16x16_f16",
    (32, "_Float16", "_Float16"): "f32_32x32x8_f16",
    (16, "__bf16", "__bf16"): "f32_16x16x16_bf16",
    (32, "__bf16", "__bf16"): "f32_32x32x8_bf16",
    (16, "float", "float"): "f32_16x16x8_xf32",
    (32, "float", "float"): "f32_32x32x4_xf32",
    **{
        (rows, a, b): f"f32_{rows}x{rows}x{512 // rows}_{FORMATS[a]}_{FORMATS[b]}"
        for rows in (16, 32)
        for a in ("E4M3", "E5M2")
        for b in ("E4M3", "E5M2")
    },
}

every_instruction = pytest.mark.parametrize(("rows", "a_type", "b_type"), INSTRUCTIONS, ids=list(INSTRUCTIONS.values()))


def run(rows: int, a_type: str, b_type: str, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    b_transposed = b.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[b.element_size()]).T.contiguous()
    return multiply_add(rows, a_type, b_type, a, b_transposed, c)


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Compares bits. Any NaN equals any other, since no manual specifies the bits of a NaN result."""
    assert torch.equal(actual.isnan(), expected.isnan())
    assert torch.equal(actual.nan_to_num(0).view(torch.int32), expected.nan_to_num(0).view(torch.int32))


def random_bits(shape, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
    limits = torch.iinfo(integers)
    return torch.randint(limits.min, limits.max + 1, shape, dtype=integers, generator=generator).view(dtype)


@every_instruction
def test_each_element_lands_where_the_manual_says(rows, a_type, b_type):
    """Small integers are exact in every format, and give a different result for each element."""
    model = MFMA("CDNA3", INSTRUCTIONS[rows, a_type, b_type])
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(-8, 9, (rows, model.k), generator=generator).float()
    b = torch.randint(-8, 9, (model.k, rows), generator=generator).float()
    c = torch.arange(rows * rows).float().view(rows, rows) * 4096
    d = run(rows, a_type, b_type, a.to(model.a_type), b.to(model.b_type), c)
    assert torch.equal(d, a @ b + c)


@every_instruction
@pytest.mark.parametrize("exponents", [0, 4, 20])
def test_rounds_as_the_matrix_cores_do(rows, a_type, b_type, exponents):
    """Data spans few or many binary orders of magnitude; accumulators are far below to far above the products."""
    model = MFMA("CDNA3", INSTRUCTIONS[rows, a_type, b_type])
    generator = torch.Generator().manual_seed(exponents)

    def spread(shape, orders):
        return torch.randn(shape, generator=generator) * torch.exp2(
            (torch.rand(shape, generator=generator) - 0.5) * orders
        )

    a = spread((rows, model.k), exponents).to(model.a_type)
    b = spread((model.k, rows), exponents).to(model.b_type)
    c = spread((rows, rows), 60)
    assert_same_bits(run(rows, a_type, b_type, a, b, c), model(a, b, c))


@every_instruction
def test_any_bits(rows, a_type, b_type):
    """Random bits include NaN, infinities, zeros of both signs and subnormals."""
    model = MFMA("CDNA3", INSTRUCTIONS[rows, a_type, b_type])
    generator = torch.Generator().manual_seed(7)
    a = random_bits((rows, model.k), model.a_type, generator)
    b = random_bits((model.k, rows), model.b_type, generator)
    c = random_bits((rows, rows), torch.float32, generator)
    # Only the last rows and columns have NaN, or all results would be NaN.
    for operand, good in ((a, slice(0, rows - 4)), (b.T, slice(0, rows - 4))):
        operand[good] = operand[good].float().nan_to_num(0.5, 1.0, -1.0).to(operand.dtype)
    assert_same_bits(run(rows, a_type, b_type, a, b, c), model(a, b, c))


def make_vectors() -> dict[str, torch.Tensor]:
    """The stored vectors of ``selftest``: for each instruction, random operands and the model's result."""
    vectors = {}
    for (rows, a_type, b_type), name in INSTRUCTIONS.items():
        model = MFMA("CDNA3", name)
        generator = torch.Generator().manual_seed(rows)
        a = random_bits((rows, model.k), model.a_type, generator)
        b = random_bits((model.k, rows), model.b_type, generator)
        c = torch.randn(rows, rows, generator=generator) * torch.exp2(
            torch.rand(rows, rows, generator=generator) * 40 - 20
        )
        for operand in (a[2:], b[:, 2:]):
            operand.copy_(operand.float().nan_to_num(0.5, 1.0, -1.0).clamp(-100, 100).to(operand.dtype))
        b_transposed = b.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[b.element_size()]).T.contiguous()
        key = f"{rows} {a_type} {b_type}"
        for part, tensor in (("a", a), ("b", b_transposed), ("c", c), ("d", model(a, b, c))):
            vectors[f"{key} {part}"] = tensor.contiguous().view(torch.uint8)
    return vectors


def test_the_stored_vectors_are_those_of_the_model():
    stored, made = mfma.vectors(), make_vectors()
    assert stored.keys() == made.keys()
    assert all(torch.equal(stored[name], made[name]) for name in made)


if __name__ == "__main__":
    mfma.store(make_vectors())
