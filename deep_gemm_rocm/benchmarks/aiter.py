"""AITER's assembler kernels for FP8 GEMM: the code objects of a checkout, on the chip or in the model.

``AITER_PATH`` names the checkout. The arguments are those of ``csrc/py_itfs_cu/asm_a8w8_blockscale_bpreshuffle.cu``.
"""

from __future__ import annotations

import csv
import ctypes
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p
from dataclasses import dataclass
from pathlib import Path

import torch

from ..problems.layout import ceil_div, data_and_scales
from ..runtime import hip
from ..testing import Accuracy
from .operations import AnyProblem
from .problems import Problem, copied

VARIABLE = "AITER_PATH"
CODE = Path("hsa/gfx942")
GET = f"set {VARIABLE} to a checkout: git clone --depth 1 https://github.com/ROCm/aiter"

_OP = "fp8_gemm_nt"
_FOLDER = CODE / "fp8gemm_blockscale"
_KERNELS = "fp8gemm_bf16_blockscale.csv"
_BLOCK = 128  # elements that share a scale
_THREADS = 256
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
_FIELD_BYTES = 16
_BUFFER_BYTES = 256  # at least: the 112x256 tile for int8 declares so many, though AITER passes 208
_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 3  # HIP_LAUNCH_PARAM_
# The kernels truncate to bf16, and workgroups that share K add bf16 with atomics. No 16x16 tile may be further off.
_MOST_TILE_DIFF = 1e-4

Argument = torch.Tensor | int | None


class CodeObject:
    """A kernel of a code object, which takes each argument in 16 bytes."""

    def __init__(self, runtime: hip.Runtime, path: Path, symbol: str) -> None:
        """
        Raises:
            HipError: the file is no code object for this device, or has no such kernel.
        """
        self.runtime = runtime
        self._module, self._function = c_void_p(), c_void_p()
        runtime.check(runtime.lib.hipModuleLoadData(byref(self._module), path.read_bytes()))
        runtime.check(runtime.lib.hipModuleGetFunction(byref(self._function), self._module, symbol.encode()))

    def launch(
        self, grid: tuple[int, int, int], arguments: Sequence[Argument], zeroed: torch.Tensor | None = None
    ) -> None:
        """
        Args:
            zeroed: memory that the launch adds to, filled with zeros before.
        """
        tensors = {f"argument {i}": value for i, value in enumerate(arguments) if isinstance(value, torch.Tensor)}
        fields = [value.data_ptr() if isinstance(value, torch.Tensor) else value or 0 for value in arguments]
        packed = b"".join(field.to_bytes(_FIELD_BYTES, "little") for field in fields).ljust(_BUFFER_BYTES, b"\0")
        size, buffer = c_size_t(len(packed)), ctypes.c_char_p(packed)
        extra = (c_void_p * 5)(
            _BUFFER_POINTER, ctypes.cast(buffer, c_void_p), _BUFFER_SIZE, ctypes.addressof(size), _END
        )  # fmt: skip
        lib, extents = self.runtime.lib, map(c_uint, (*grid, _THREADS, 1, 1))
        with self.runtime.launching(**tensors) as stream:
            if zeroed is not None:
                memory = c_void_p(zeroed.data_ptr()), c_int(0), c_size_t(zeroed.nbytes)
                self.runtime.check(lib.hipMemsetAsync(*memory, c_void_p(stream)))
            status = lib.hipModuleLaunchKernel(self._function, *extents, c_uint(0), c_void_p(stream), None, extra)
            self.runtime.check(status)


@functools.lru_cache(maxsize=64)
def _code_object(runtime: hip.Runtime, path: Path, symbol: str) -> CodeObject:
    return CodeObject(runtime, path, symbol)


@dataclass(frozen=True)
class Kernel:
    """A tile of AITER's, of ``rows`` by ``columns``."""

    path: Path
    symbol: str
    rows: int
    columns: int
    splits_k: bool

    def launch(self, problem: AiterProblem, parts: int) -> None:
        """Runs it with K in parts, which add up in ``d``."""
        (a, sfa), (_, sfb) = data_and_scales(problem.a), data_and_scales(problem.b)
        assert sfa is not None
        m, n, k, _ = problem.shape
        tensors = [problem.d, a, problem.shuffled_b, sfa.T, sfb, problem.bias]
        numbers = [m, n, k, k, k, n * problem.d.itemsize, parts, m, n // _BLOCK, k // _BLOCK]
        grid = (n // self.columns * parts, ceil_div(m, self.rows), 1)
        kernel = _code_object(hip.runtime(), self.path, self.symbol)
        kernel.launch(grid, [*tensors, *numbers], problem.d if parts > 1 else None)


@dataclass(frozen=True)
class AiterProblem(Problem):
    """A problem with its operands as AITER's kernels take them.

    Attributes:
        shuffled_b: the data of ``b`` in AITER's layout for weights.
        bias: zeros, fp32 [N].
    """

    shuffled_b: torch.Tensor = dataclasses.field(default_factory=lambda: torch.empty(0))
    bias: torch.Tensor = dataclasses.field(default_factory=lambda: torch.empty(0))

    @classmethod
    def of(cls, problem: Problem) -> AiterProblem:
        (a, sfa), (b, sfb) = data_and_scales(problem.a), data_and_scales(problem.b)
        assert sfa is not None
        assert sfb is not None
        fields = {field.name: getattr(problem, field.name) for field in dataclasses.fields(Problem)}
        by_columns = sfa.T.contiguous().T
        return cls(
            **{**fields, "a": (a, by_columns), "b": (b, sfb.contiguous())},
            shuffled_b=shuffled(b),
            bias=torch.zeros(len(b), device=b.device),
        )

    def copy(self) -> AiterProblem:
        """The same problem in memory of its own."""
        other = super().copy()
        assert isinstance(other, AiterProblem)
        return dataclasses.replace(other, shuffled_b=copied(self.shuffled_b))

    def failures(self, accuracy: Accuracy) -> int:
        """Elements beyond the bound of one rounding, if a tile is further off than truncated parts explain."""
        return accuracy.failures if accuracy.max_tile_diff > _MOST_TILE_DIFF else 0


def shuffled(b: torch.Tensor) -> torch.Tensor:
    """AITER's layout of FP8 weights [N, K]: blocks of 16 rows and 32 columns, halves of these columns side by side."""
    n, k = b.shape
    blocks = b.view(torch.uint8).view(n // 16, 16, k // 32, 2, 16).permute(0, 2, 3, 1, 4)
    return blocks.contiguous().view(n, k)


def checkout() -> Path | None:
    """The user's checkout of AITER."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else None


def missing(problem: AnyProblem, path: Path) -> str:
    """Why the checkout's kernels can't compute the problem; empty if they can."""
    if not isinstance(problem, Problem) or problem.op != _OP:
        return f"its code objects have no {problem.op}"
    if not (path / _FOLDER / _KERNELS).is_file():
        return f"{path} has no {_FOLDER / _KERNELS}: {GET}"
    m, n, k, _ = problem.shape
    if problem.d.dtype != torch.bfloat16 or n % _BLOCK or k % _BLOCK or not m * n * k:
        return f"its tiles are bf16 and take N and K in multiples of {_BLOCK}"
    return ""


def _kernels(path: Path) -> list[Kernel]:
    with (path / _FOLDER / _KERNELS).open(encoding="utf-8") as table:
        return [
            Kernel(
                path / _FOLDER / row["co_name"],
                row["knl_name"],
                int(row["tile_m"]),
                int(row["tile_n"]),
                row["splitK"] == "1",
            )
            for row in csv.DictReader(table)
            if row["bpreshuffle"] == "1"
        ]


def candidates(problem: Problem, path: Path) -> Iterator[tuple[str, Callable[[AiterProblem], None]]]:
    """Every tile that isn't higher than M needs, with K in as many parts as find CUs without work."""
    m, n, k, _ = problem.shape
    kernels = [kernel for kernel in _kernels(path) if n % kernel.columns == 0]
    enough = min((kernel.rows for kernel in kernels if kernel.rows >= m), default=m)
    for kernel in kernels:
        if kernel.rows > enough:
            continue
        tiles = ceil_div(m, kernel.rows) * n // kernel.columns
        for parts in _SPLITS if kernel.splits_k else (1,):
            if parts == 1 or (_divides(k // _BLOCK, parts) and tiles * (parts - 1) < hip.runtime().num_cus):
                how = f"{kernel.rows}x{kernel.columns}" + (f", K in {parts} parts" if parts > 1 else "")
                yield how, functools.partial(kernel.launch, parts=parts)


def _divides(k_blocks: int, parts: int) -> bool:
    """Whether AITER accepts as many parts: each has as many K-blocks, but the last one fewer."""
    return ceil_div(k_blocks, ceil_div(k_blocks, parts)) == parts
