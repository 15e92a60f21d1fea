"""Runs Triton kernels on the simulated MI300X, without a GPU and without Triton's driver."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from .. import simulator

Grid: TypeAlias = "int | Sequence[int] | Callable[[Mapping[str, Any]], Sequence[int]]"

_TYPES = {
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
    torch.bool: "i1",
}
_LDS_BYTES = 64 * 1024


def run_triton(kernel: Any, grid: Grid, *args: Any, **constants: Any) -> Any:
    """Runs ``kernel[grid](*args, **constants)`` on the simulated MI300X and waits for its end.

    The kernel is compiled for gfx942 and specialised as by Triton's launcher for a GPU: for 1, for multiples of 16, for
    memory below 2 GB.

    Args:
        kernel: a function under ``@triton.jit``, and also ``@triton.autotune`` and ``@triton.heuristics``. Of several
            configurations, the one with the least simulated time under sustained load is run, and chosen again for
            the same key. Every configuration runs once on the arguments, as it does many times on a GPU; so kernels
            that add to their results need ``reset_to_zero`` or ``restore_value``.
        grid: programs in x, y and z, or a function that gives them from a dict of the kernel's arguments.
        args: the kernel's leading arguments: CPU tensors, which the kernel reads and writes in place, ints, floats,
            bools, or None.
        constants: the others by name, and the compiler's options, as in ``num_warps=8``. ``num_warps`` is 4 by default.

    Returns:
        Triton's compiled kernel: ``asm["amdgcn"]``, ``asm["hsaco"]`` (which ``simulator.launch`` takes),
        ``metadata.num_warps``, ``n_regs`` and so on.

    Raises:
        ImportError: triton isn't installed.
        SimulatorError: the kernel failed; the message says where and why.
        triton.OutOfResources: the kernel takes more than 64 KiB of LDS.
        TypeError: the kernel is no Triton function, or an argument's type is none of those above.
    """
    compiled: list[Any] = []

    def run(*arguments: Any, grid: Grid, warmup: bool, **more: Any) -> Any:
        compiled.append(_run(_function_of(kernel), grid, arguments, more))
        return compiled[-1]

    with _simulated(kernel, run):
        kernel.run(*args, grid=grid, warmup=False, **constants)
    return compiled[-1]


def _layers(kernel: Any) -> Iterator[Any]:
    """Autotuners and heuristics from the outside, then the function itself."""
    outermost = kernel
    while not hasattr(kernel, "create_binder"):
        if not hasattr(kernel, "fn"):
            raise TypeError(f"kernel: expected a function under @triton.jit, got {outermost!r}")
        yield kernel
        kernel = kernel.fn
    yield kernel


def _function_of(kernel: Any) -> Any:
    *_, function = _layers(kernel)
    return function


@contextlib.contextmanager
def _simulated(kernel: Any, run: Callable[..., Any]) -> Iterator[None]:
    """Makes the kernel's layers run their function, and measure configurations, on the simulator."""
    with contextlib.ExitStack() as stack:

        def replace(owner: Any, name: str, value: Any) -> None:
            own, before = vars(owner), vars(owner).get(name)
            stack.callback(own.pop if before is None else own.__setitem__, name, *(() if before is None else (before,)))
            own[name] = value

        for layer in _layers(kernel):
            if hasattr(layer, "configs"):
                replace(layer, "do_bench", _simulated_time)
        replace(_function_of(kernel), "run", run)
        yield


def _simulated_time(call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
    """Milliseconds of one run under sustained load, for each of the quantiles."""
    with simulator.profile() as profiled:
        call()
    return [sum(kernel.sustained_us for kernel in profiled.kernels) / 1000] * len(quantiles)


def _run(function: Any, grid: Grid, arguments: Sequence[Any], more: Mapping[str, Any]) -> Any:
    from triton import OutOfResources
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    named = {name: value for name, value in more.items() if name in function.arg_names}
    options = {"num_warps": 4, "enable_fp_fusion": True, **more}
    options = {name: value for name, value in options.items() if name not in named}
    bound = function.signature.bind(*arguments, **named)
    bound.apply_defaults()
    values = dict(bound.arguments)

    signature, constants, attributes, passed = {}, {}, {}, []
    for index, parameter in enumerate(function.params):
        name, value = parameter.name, values[parameter.name]
        specialised = not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (specialised and type(value) is int and value == 1):
            signature[name] = "constexpr"
            constants[name] = value
            continue
        signature[name] = _type(name, value)
        passed.append(value)
        aligned = value.data_ptr() if isinstance(value, torch.Tensor) else value
        found = []
        if specialised and type(aligned) is int and aligned % 16 == 0:
            found.append(["tt.divisibility", 16])
        if isinstance(value, torch.Tensor) and value.untyped_storage().nbytes() < 2**31:
            found.append(["tt.pointer_range", 32])
        if found:
            attributes[(index,)] = found
    source = ASTSource(function, signature, constants, attributes)
    compiled = compile(source, target=GPUTarget("hip", "gfx942", 64), options=options)
    metadata = compiled.metadata
    if metadata.shared > _LDS_BYTES:
        raise OutOfResources(metadata.shared, _LDS_BYTES, "shared memory")
    if metadata.global_scratch_size or metadata.profile_scratch_size:
        raise NotImplementedError(f"{metadata.name} asks for scratch memory in global memory, which run_triton lacks")
    extent = grid(values) if callable(grid) else grid
    scratch = (None, None)  # Triton appends pointers to that memory to the arguments
    block = 64 * metadata.num_warps
    simulator.launch(compiled.asm["hsaco"], metadata.name, extent, block, [*passed, *scratch], metadata.shared)
    return compiled


def _type(name: str, value: Any) -> str:
    if isinstance(value, torch.Tensor) and value.dtype in _TYPES:
        return "*" + _TYPES[value.dtype]
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    if isinstance(value, float):
        return "fp32"
    kind = f"a tensor of {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__
    raise TypeError(f"{name}: expected a tensor of a type that Triton has, a number or None, got {kind}")
