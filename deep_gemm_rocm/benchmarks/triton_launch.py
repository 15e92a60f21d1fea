"""Compiles Triton kernels for gfx942 without a GPU, and runs them on the simulator."""

from __future__ import annotations

from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from .. import simulator

TARGET = GPUTarget("hip", "gfx942", 64)
TYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fnuz: "fp8e4b8",
    torch.float8_e5m2fnuz: "fp8e5b16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
}


def run(function: Any, grid: int | tuple[int, ...], *arguments: Any, num_warps: int = 4, **more: Any) -> None:
    """Runs ``function[grid](*arguments, **more)``; names tell constants from the compiler's options.

    The kernel is specialised as by Triton's launcher for a GPU: for 1, for multiples of 16, for memory below 2 GB.
    """
    constants = {name: value for name, value in more.items() if name in function.arg_names}
    options = {name: value for name, value in more.items() if name not in constants}
    names = [name for name in function.arg_names if name not in constants]
    signature: dict[str, str] = {}
    attributes = {}
    passed = []
    for name, value in zip(names, arguments, strict=True):
        index = function.arg_names.index(name)
        if isinstance(value, int) and value == 1:
            constants[name] = value
            continue
        passed.append(value)
        signature[name] = _type(value)
        aligned = value.data_ptr() if isinstance(value, torch.Tensor) else value
        if isinstance(aligned, int) and aligned % 16 == 0:
            attributes[(index,)] = [["tt.divisibility", 16]]
        if isinstance(value, torch.Tensor) and value.untyped_storage().nbytes() < 2**31:
            attributes.setdefault((index,), []).append(["tt.pointer_range", 32])
    signature = {name: signature.get(name, "constexpr") for name in function.arg_names}
    source = ASTSource(function, signature, constants, attributes)
    compiled = compile(source, target=TARGET, options={"num_warps": num_warps, "enable_fp_fusion": True, **options})
    scratch = (None, None)  # pointers to scratch memory, which Triton appends to the arguments
    assert compiled.metadata.global_scratch_size == compiled.metadata.profile_scratch_size == 0
    simulator.launch(
        compiled.asm["hsaco"],
        compiled.metadata.name,
        grid,
        64 * num_warps,
        [*passed, *scratch],
        compiled.metadata.shared,
    )


def _type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "*" + TYPES[value.dtype]
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    assert isinstance(value, float)
    return "fp32"
