"""Compiles what a model is going to need before it needs it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

from . import gemm, grouped, jit, k_grouped, planning
from .checks import check_int
from .layout import SCALE_BLOCK, ceil_div

_FP8 = torch.float8_e4m3fnuz
_MODELS = Path(__file__).resolve().parent / "models"

# Kernels change where a tile's rows, up to 256, or a device's tiles fill up: less and less often.
_ALL_M = (*range(16, 1024, 16), *range(1024, 8192, 128), *range(8192, 32769, 1024))


class _Function(NamedTuple):
    """A public function, and how to make arguments for it.

    Attributes:
        arguments: makes them of (function, m, n, k, groups, d_dtype).
        dtype: of the operands; FP8 ones have scales.
        layout: as in the function's name: whether ``a`` and ``b`` are transposed, to [K, M], or not, to [K, N].
    """

    call: Callable[..., Any]
    arguments: Callable[..., tuple[Any, ...]]
    dtype: torch.dtype
    layout: str = "nt"


@dataclass(frozen=True)
class Workload:
    """Calls of one function: those with each of ``m_list``.

    Attributes:
        function: its name, one of ``functions()``.
        m_list: of functions without groups the rows of ``a``; of contiguous groups those of all groups; of masked ones
            the expected rows of a group; for groups along K the rows of the output.
        n, k: columns of the output, and what is summed over (along K: of each group).
        num_groups: 1 where there are none.
        d_dtype: of the output.
    """

    function: str
    m_list: Sequence[int]
    n: int
    k: int
    num_groups: int = 1
    d_dtype: torch.dtype = torch.bfloat16

    def __post_init__(self) -> None:
        """
        Raises:
            TypeError, ValueError: a field is not as above.
        """
        if not isinstance(self.function, str) or self.function not in _FUNCTIONS:
            raise ValueError(f"the function's name must be one of {', '.join(_FUNCTIONS)}, got {self.function!r}")
        if not isinstance(self.m_list, Sequence) or isinstance(self.m_list, str) or not self.m_list:
            raise TypeError(f"m_list must be a list of at least one int, got {self.m_list!r}")
        for m in self.m_list:
            check_int("m_list's numbers", m, 1)
        for name in ("n", "k", "num_groups"):
            check_int(name, getattr(self, name), 1)
        if not isinstance(self.d_dtype, torch.dtype):
            raise TypeError(f"d_dtype must be a torch.dtype, got {self.d_dtype!r}")


def warmup_kernels(
    name: str,
    m_list: Sequence[int],
    n: int,
    k: int,
    num_groups: int = 1,
    *,
    d_dtype: torch.dtype = torch.bfloat16,
) -> int:
    """Compiles and loads, several at once, every kernel that calls of a function with these sizes run.

    Kernels depend on M only in so far as small, medium and large ones have different tiles: there are a handful for any
    number of ``m_list``. Afterwards such calls neither compile nor read a file. Nothing is launched, and no memory is
    needed. Recipes, scales and strides are the function's defaults.

    Args:
        name: of a function of this package: a GEMM, dense or grouped, under any of its names.
        m_list: of functions without groups the rows of ``a``; of contiguous groups those of all groups together; of
            masked ones the rows that a group is expected to have; for groups along K the rows of the output.
        n: columns of the output.
        k: what is summed over, for groups along K that of each.
        num_groups: 1 where there are none.
        d_dtype: of the output.

    Returns:
        How many different kernels that takes, whether they were compiled now or before.

    Raises:
        TypeError, ValueError: an argument is not as above, or the function doesn't take it.
        hip.NoDeviceError, jit.JitError: there is no device, or a compile failed.
    """
    wanted = plan([Workload(name, m_list, n, k, num_groups, d_dtype)])
    compile_all(wanted)
    return len(wanted)


def functions() -> tuple[str, ...]:
    """The names of the functions that can be warmed up."""
    return tuple(_FUNCTIONS)


def models() -> dict[str, Path]:
    """The files of the models whose workloads come with this package, by the models' names."""
    return {file.stem: file for file in sorted(_MODELS.glob("*.json"))}


def load(file: Path) -> list[Workload]:
    """The workloads in a file: a JSON list of objects with ``function``, ``n`` and ``k``.

    They may have ``num_groups``, ``d_dtype`` (``bfloat16``, ``float16`` or ``float32``) and ``m``, a number or a list
    of them; without it, all from 1 to 32768.

    Raises:
        ValueError: the file is not of that form.
        OSError: it can't be read.
    """
    try:
        entries = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} must be JSON: {error}") from error
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{file} must be a JSON list of at least one object")
    return [_workload(f"{file}, entry {index}", entry) for index, entry in enumerate(entries)]


def plan(workloads: Iterable[Workload]) -> list[planning.Request]:
    """The kernels that these workloads need, each once.

    Raises:
        TypeError, ValueError: a function doesn't take such sizes.
        hip.NoDeviceError: there is no device.
    """
    with planning.planning() as wanted:
        for workload in workloads:
            function = _FUNCTIONS[workload.function]
            for m in workload.m_list:
                sizes = (m, workload.n, workload.k, workload.num_groups)
                function.call(*function.arguments(function, *sizes, workload.d_dtype))
    return list(wanted.values())


def compile_all(
    wanted: Sequence[planning.Request],
    jobs: int | None = None,
    done: Callable[[jit.Kernel], None] = lambda kernel: None,
) -> None:
    """Compiles and loads the kernels, ``jobs`` at once (as many as this process has CPUs if None).

    Args:
        done: called with each kernel that is ready.

    Raises:
        hip.NoDeviceError, jit.JitError: there is no device, or a compile failed; those that began are finished before.
    """
    with ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0)), "warmup") as threads:
        futures = [threads.submit(jit.get_kernel, *request) for request in wanted]
        try:
            for future in futures:
                done(future.result())
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def _workload(where: str, entry: Any) -> Workload:
    if not isinstance(entry, dict):
        raise ValueError(f"{where} must be an object, got {entry!r}")
    known = {"function", "m", "n", "k", "num_groups", "d_dtype"}
    if unknown := entry.keys() - known:
        raise ValueError(f"{where} has unknown keys {sorted(unknown)}; known are {sorted(known)}")
    if missing := {"function", "n", "k"} - entry.keys():
        raise ValueError(f"{where} lacks {sorted(missing)}")
    m = entry.get("m", _ALL_M)
    dtype = getattr(torch, str(entry.get("d_dtype", "bfloat16")), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{where}: d_dtype must be the name of a dtype of torch, got {entry['d_dtype']!r}")
    try:
        return Workload(
            entry["function"],
            [m] if isinstance(m, int) else m,
            entry["n"],
            entry["k"],
            entry.get("num_groups", 1),
            dtype,
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error


def _tensor(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _operand(
    function: _Function, groups: tuple[int, ...], rows: int, k: int, scaled_rows: int, transposed: bool
) -> Any:
    data = _tensor(*groups, *((k, rows) if transposed else (rows, k)), dtype=function.dtype)
    if function.dtype != _FP8:
        return data
    blocks = (ceil_div(rows, scaled_rows), ceil_div(k, SCALE_BLOCK))
    return data, _tensor(*groups, *(reversed(blocks) if transposed else blocks), dtype=torch.float32)


def _operands(function: _Function, m: int, n: int, k: int, of_a: tuple[int, ...], of_b: tuple[int, ...]) -> Any:
    a = _operand(function, of_a, m, k, 1, function.layout[0] == "t")
    b = _operand(function, of_b, n, k, SCALE_BLOCK, function.layout[1] == "n")
    return a, b


def _dense(function: _Function, m: int, n: int, k: int, groups: int, d_dtype: torch.dtype) -> tuple[Any, ...]:
    if groups != 1:
        raise ValueError(f"num_groups must be 1 for a function without groups, got {groups}")
    return *_operands(function, m, n, k, (), ()), _tensor(m, n, dtype=d_dtype)


def _contiguous(function: _Function, m: int, n: int, k: int, groups: int, d_dtype: torch.dtype) -> tuple[Any, ...]:
    operands = _operands(function, m, n, k, (), (groups,))
    return *operands, _tensor(m, n, dtype=d_dtype), _tensor(m, dtype=torch.int32)


def _masked(function: _Function, m: int, n: int, k: int, groups: int, d_dtype: torch.dtype) -> tuple[Any, ...]:
    operands = _operands(function, m, n, k, (groups,), (groups,))
    return *operands, _tensor(groups, m, n, dtype=d_dtype), _tensor(groups, dtype=torch.int32), m


def _along_k(function: _Function, m: int, n: int, k: int, groups: int, d_dtype: torch.dtype) -> tuple[Any, ...]:
    def operand(rows: int) -> Any:
        packed = function.layout == "nt"
        shape = (groups * k * rows,) if packed else (groups * k, rows)
        data = _tensor(*shape, dtype=function.dtype)
        if function.dtype != _FP8:
            return data
        blocks = groups * ceil_div(k, SCALE_BLOCK)
        return data, _tensor(*((rows, blocks) if packed else (blocks, rows)), dtype=torch.float32)

    ks = [k] * groups
    d = _tensor(groups, m, n, dtype=d_dtype)
    return operand(m), operand(n), d, ks, _tensor(groups, dtype=torch.int32)


def _rows(
    module: ModuleType, arguments: Callable[..., tuple[Any, ...]], dtype: torch.dtype, layout: str, *names: str
) -> dict[str, _Function]:
    return {name: _Function(getattr(module, name), arguments, dtype, layout) for name in names}


_BF16, _F16 = torch.bfloat16, torch.float16
_FUNCTIONS = (
    _rows(gemm, _dense, _FP8, "nt", "fp8_gemm_nt", "gemm_fp8", "gemm_fp8_fp8_bf16_nt", "fp8_fp4_gemm_nt")
    | _rows(gemm, _dense, _FP8, "nn", "fp8_gemm_nn", "fp8_fp4_gemm_nn")
    | _rows(gemm, _dense, _FP8, "tn", "fp8_gemm_tn", "fp8_fp4_gemm_tn")
    | _rows(gemm, _dense, _FP8, "tt", "fp8_gemm_tt", "fp8_fp4_gemm_tt")
    | _rows(gemm, _dense, _BF16, "nt", "bf16_gemm_nt")
    | _rows(gemm, _dense, _BF16, "nn", "bf16_gemm_nn")
    | _rows(gemm, _dense, _BF16, "tn", "bf16_gemm_tn")
    | _rows(gemm, _dense, _BF16, "tt", "bf16_gemm_tt")
    | _rows(gemm, _dense, _F16, "nt", "f16_gemm_nt")
    | _rows(
        grouped, _contiguous, _FP8, "nt", "m_grouped_fp8_gemm_nt_contiguous", "m_grouped_fp8_fp4_gemm_nt_contiguous"
    )
    | _rows(grouped, _contiguous, _FP8, "nt", "m_grouped_gemm_fp8_fp8_bf16_nt_contiguous")
    | _rows(
        grouped, _contiguous, _FP8, "nn", "m_grouped_fp8_gemm_nn_contiguous", "m_grouped_fp8_fp4_gemm_nn_contiguous"
    )
    | _rows(grouped, _contiguous, _BF16, "nt", "m_grouped_bf16_gemm_nt_contiguous")
    | _rows(grouped, _contiguous, _BF16, "nn", "m_grouped_bf16_gemm_nn_contiguous")
    | _rows(grouped, _masked, _FP8, "nt", "m_grouped_fp8_gemm_nt_masked", "fp8_m_grouped_gemm_nt_masked")
    | _rows(grouped, _masked, _FP8, "nt", "m_grouped_fp8_fp4_gemm_nt_masked", "m_grouped_gemm_fp8_fp8_bf16_nt_masked")
    | _rows(grouped, _masked, _BF16, "nt", "m_grouped_bf16_gemm_nt_masked", "bf16_m_grouped_gemm_nt_masked")
    | _rows(k_grouped, _along_k, _FP8, "nt", "k_grouped_fp8_gemm_nt_contiguous")
    | _rows(k_grouped, _along_k, _FP8, "tn", "k_grouped_fp8_gemm_tn_contiguous")
    | _rows(k_grouped, _along_k, _BF16, "tn", "k_grouped_bf16_gemm_tn_contiguous")
)
