"""rocBLAS and hipBLASLt by their C APIs, on the chip or in the model: what their heuristics choose first.

``ROCBLAS_LIBRARY`` and ``HIPBLASLT_LIBRARY`` name the shared libraries. Both take columns first, so they compute D^T =
B A^T, with B, K-major, as the operand that is transposed. Values of enumerations are those of ``rocblas-types.h``,
``hipblaslt.h`` and ``library_types.h``.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import weakref
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

import torch

from ..problems.layout import data_and_scales
from ..runtime import hip
from .operations import AnyProblem
from .problems import Problem

ROCBLAS, HIPBLASLT = "ROCBLAS_LIBRARY", "HIPBLASLT_LIBRARY"

_OPS = {ROCBLAS: ("bf16_gemm_nt",), HIPBLASLT: ("bf16_gemm_nt", "fp8_gemm_nt")}
_NAMES = {ROCBLAS: "librocblas.so", HIPBLASLT: "libhipblaslt.so"}
_AS_IT_IS, _TRANSPOSED = 111, 112
_ROCBLAS_BF16, _ROCBLAS_F32 = 168, 151
_COMPUTE_F32, _F32 = 2, 0  # HIPBLAS_COMPUTE_32F, HIP_R_32F
_TYPES = {torch.bfloat16: 14, torch.float8_e4m3fnuz: 1000}  # HIP_R_16BF, HIP_R_8F_E4M3_FNUZ
_TRANSA, _TRANSB, _A_SCALE_POINTER, _B_SCALE_POINTER = 0, 1, 5, 6  # HIPBLASLT_MATMUL_DESC_
_MAX_WORKSPACE_BYTES = 1  # HIPBLASLT_MATMUL_PREF_
_WORKSPACE_BYTES = 32 << 20


class BlasError(Exception):
    """A function of rocBLAS or hipBLASLt failed, or has no kernel for the problem."""


class _Algo(ctypes.Structure):
    _fields_ = (("data", ctypes.c_uint8 * 16), ("max_workspace_bytes", c_size_t))  # hipblasLtMatmulAlgo_t


class _Choice(ctypes.Structure):  # hipblasLtMatmulHeuristicResult_t
    _fields_ = (
        ("algo", _Algo), ("workspace_bytes", c_size_t), ("state", c_int), ("waves", c_float), ("reserved", c_int * 4)
    )  # fmt: skip


def how_to_get(variable: str) -> str:
    """How to have the library."""
    kernels = "ROCBLAS_TENSILE_LIBPATH" if variable == ROCBLAS else "HIPBLASLT_TENSILE_LIBPATH"
    return f"set {variable} to ROCm's {_NAMES[variable]}, and {kernels} to its folder of gfx942 kernels"


@functools.lru_cache(maxsize=2)
def _loaded(path: str) -> ctypes.CDLL:
    lib = ctypes.CDLL(path)
    # A symbol of a library is also looked for in those that it needs.
    ours = ctypes.cast(hip.runtime().lib.hipModuleLaunchKernel, c_void_p).value
    if ctypes.cast(lib.hipModuleLaunchKernel, c_void_p).value != ours:
        raise OSError("it loads another HIP runtime than this process has: put this one first in LD_LIBRARY_PATH")
    return lib


def missing(variable: str, problem: AnyProblem) -> str:
    """Why the library can't compute the problem; empty if it may."""
    if problem.op not in _OPS[variable]:
        return f"it has no {problem.op}"
    if problem.d.dtype != torch.bfloat16:
        return f"only measured with bf16 results, not {problem.d.dtype}"
    if not (path := os.environ.get(variable)):
        return how_to_get(variable)
    try:
        _loaded(path)
    except (OSError, AttributeError) as failure:
        return f"{path} can't be loaded ({failure}): {how_to_get(variable)}"
    return ""


def candidate(variable: str, problem: Problem) -> tuple[str, Callable[[Problem], None]]:
    """The first choice of the library's heuristics.

    Raises:
        BlasError: the library has no kernel for the problem.
    """
    lib = _loaded(os.environ[variable])
    if variable == ROCBLAS:
        return "rocblas_gemm_ex", functools.partial(_gemm_ex, lib, _handle(lib, "rocblas_create_handle"))
    return "hipblasLtMatmul", _Matmul(lib, problem).run


def _call(lib: ctypes.CDLL, name: str, *arguments: object) -> None:
    if status := getattr(lib, name)(*arguments):
        raise BlasError(f"{name} returned {status}; does the folder of its kernels have those of gfx942?")


@functools.lru_cache(maxsize=2)
def _handle(lib: ctypes.CDLL, create: str) -> c_void_p:
    handle = c_void_p()
    _call(lib, create, byref(handle))
    return handle


def _gemm_ex(lib: ctypes.CDLL, handle: c_void_p, problem: Problem) -> None:
    a, b = data_and_scales(problem.a)[0], data_and_scales(problem.b)[0]
    m, n, k, _ = problem.shape
    one, zero, d = c_float(1), c_float(0), (c_void_p(problem.d.data_ptr()), c_int(_ROCBLAS_BF16), c_int32(n))
    with hip.runtime().launching(a=a, b=b, d=problem.d) as stream:
        _call(lib, "rocblas_set_stream", handle, c_void_p(stream))
        _call(
            lib, "rocblas_gemm_ex", handle, c_int(_TRANSPOSED), c_int(_AS_IT_IS), c_int32(n), c_int32(m), c_int32(k),
            byref(one), c_void_p(b.data_ptr()), c_int(_ROCBLAS_BF16), c_int32(k),
            c_void_p(a.data_ptr()), c_int(_ROCBLAS_BF16), c_int32(k), byref(zero), *d, *d,
            c_int(_ROCBLAS_F32), c_int(0), c_int32(0), c_uint32(0),
        )  # fmt: skip


class _Matmul:
    """hipBLASLt's product of one shape. What it made in the library is destroyed with it."""

    def __init__(self, lib: ctypes.CDLL, problem: Problem) -> None:
        self._lib, self._handle = lib, _handle(lib, "hipblasLtCreate")
        self._made = contextlib.ExitStack()
        weakref.finalize(self, self._made.close)
        m, n, k, _ = problem.shape
        operand, result = _TYPES[data_and_scales(problem.a)[0].dtype], _TYPES[problem.d.dtype]
        self._a, self._b, self._d = self._layout(operand, k, m), self._layout(operand, k, n), self._layout(result, n, m)
        self._product = self._make("MatmulDesc", c_int(_COMPUTE_F32), c_int(_F32))
        self._set(_TRANSA, c_int32(_TRANSPOSED))
        self._set(_TRANSB, c_int32(_AS_IT_IS))
        self._point_to_scales(problem)
        self._choice = self._first_choice()
        self._workspace = torch.empty(self._choice.workspace_bytes, dtype=torch.uint8, device=problem.d.device)

    def _make(self, what: str, *arguments: object) -> c_void_p:
        made = c_void_p()
        _call(self._lib, f"hipblasLt{what}Create", byref(made), *arguments)
        self._made.callback(_call, self._lib, f"hipblasLt{what}Destroy", made)
        return made

    def _layout(self, dtype: int, rows: int, columns: int) -> c_void_p:
        return self._make("MatrixLayout", c_int(dtype), c_uint64(rows), c_uint64(columns), c_int64(rows))

    def _set(self, attribute: int, value: c_int32 | c_void_p) -> None:
        size = c_size_t(ctypes.sizeof(value))
        _call(self._lib, "hipblasLtMatmulDescSetAttribute", self._product, c_int(attribute), byref(value), size)

    def _point_to_scales(self, problem: Problem) -> None:
        """Each operand of FP8 has one scale, the first."""
        sfa, sfb = data_and_scales(problem.a)[1], data_and_scales(problem.b)[1]
        if sfa is not None and sfb is not None:
            self._set(_A_SCALE_POINTER, c_void_p(sfb.data_ptr()))
            self._set(_B_SCALE_POINTER, c_void_p(sfa.data_ptr()))

    def _first_choice(self) -> _Choice:
        preference, most = self._make("MatmulPreference"), c_uint64(_WORKSPACE_BYTES)
        choice, count = _Choice(), c_int(0)
        limit = c_int(_MAX_WORKSPACE_BYTES), byref(most), c_size_t(ctypes.sizeof(most))
        _call(self._lib, "hipblasLtMatmulPreferenceSetAttribute", preference, *limit)
        layouts = self._b, self._a, self._d, self._d
        _call(
            self._lib, "hipblasLtMatmulAlgoGetHeuristic", self._handle, self._product, *layouts, preference,
            c_int(1), byref(choice), byref(count),
        )  # fmt: skip
        if not count.value:
            raise BlasError(f"no gfx942 kernel for this problem: {how_to_get(HIPBLASLT)}")
        return choice

    def run(self, problem: Problem) -> None:
        (a, sfa), (b, sfb) = data_and_scales(problem.a), data_and_scales(problem.b)
        self._point_to_scales(problem)
        scales = {"sfa": sfa, "sfb": sfb} if sfa is not None and sfb is not None else {}
        used = {"a": a, "b": b, "d": problem.d, "workspace": self._workspace, **scales}
        one, zero, d = c_float(1), c_float(0), c_void_p(problem.d.data_ptr())
        with hip.runtime().launching(**used) as stream:
            _call(
                self._lib, "hipblasLtMatmul", self._handle, self._product, byref(one),
                c_void_p(b.data_ptr()), self._b, c_void_p(a.data_ptr()), self._a, byref(zero), d, self._d, d, self._d,
                byref(self._choice.algo), c_void_p(self._workspace.data_ptr()), c_size_t(self._workspace.nbytes),
                c_void_p(stream),
            )  # fmt: skip
