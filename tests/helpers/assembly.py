"""Directives and metadata around the instructions of assembly kernels."""

from __future__ import annotations

from typing import NamedTuple


class Allocation(NamedTuple):
    """The registers that a kernel asks for."""

    scalars: int = 32
    vectors: int = 64
    accumulators: int = 64


SOME = Allocation()
ALL = Allocation(96, 256, 256)


def program(
    kernels: dict[str, str],
    lds_bytes: int = 0,
    pointers: int = 1,
    scratch_bytes: int = 0,
    registers: Allocation = SOME,
) -> str:
    """A module of kernels, by name, with `pointers` pointer arguments. In a body, s[0:1] has the address of the
    kernel's arguments, s2 the workgroup's number and v0 the work-item's."""
    texts = [_text(name, body, lds_bytes, pointers, scratch_bytes, registers) for name, body in kernels.items()]
    entries = [_metadata(name, lds_bytes, pointers, scratch_bytes, registers) for name in kernels]
    header = '.amdgcn_target "amdgcn-amd-amdhsa--gfx942"\n'
    metadata = "\n.amdgpu_metadata\namdhsa.version: [1, 2]\namdhsa.target: amdgcn-amd-amdhsa--gfx942\namdhsa.kernels:"
    return header + "".join(texts) + metadata + "".join(entries) + "\n.end_amdgpu_metadata\n"


def _text(name: str, body: str, lds_bytes: int, pointers: int, scratch_bytes: int, registers: Allocation) -> str:
    return f"""
.text
.globl {name}
.p2align 8
.type {name},@function
{name}:
{body}
  s_endpgm
.size {name}, .-{name}
.section .rodata,"a"
.p2align 6
.amdhsa_kernel {name}
  .amdhsa_group_segment_fixed_size {lds_bytes}
  .amdhsa_private_segment_fixed_size {scratch_bytes}
  .amdhsa_kernarg_size {8 * pointers}
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_next_free_vgpr {registers.vectors + registers.accumulators}
  .amdhsa_next_free_sgpr {registers.scalars}
  .amdhsa_accum_offset {registers.vectors}
.end_amdhsa_kernel
"""


def _metadata(name: str, lds_bytes: int, pointers: int, scratch_bytes: int, registers: Allocation) -> str:
    arguments = ", ".join(
        f"{{.size: 8, .offset: {8 * i}, .value_kind: global_buffer, .address_space: global}}" for i in range(pointers)
    )
    return f"""
  - .name: {name}
    .symbol: {name}.kd
    .args: [{arguments}]
    .kernarg_segment_size: {8 * pointers}
    .kernarg_segment_align: 8
    .group_segment_fixed_size: {lds_bytes}
    .private_segment_fixed_size: {scratch_bytes}
    .wavefront_size: 64
    .sgpr_count: {registers.scalars}
    .vgpr_count: {registers.vectors + registers.accumulators}
    .agpr_count: {registers.accumulators}
    .max_flat_workgroup_size: 1024"""
