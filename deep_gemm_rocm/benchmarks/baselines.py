"""Baselines: other implementations that the machine has, and the package's own kernels on other inputs."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from ..problems.layout import data_and_scales
from ..runtime import hip
from . import aiter, blas, problems
from .attention_problems import AttentionProblem
from .experts_problems import ExpertsProblem
from .operations import AnyProblem
from .problems import Problem, kernel_names
from .row_problems import RowsProblem

# Computes a problem into its ``d``, or returns the result, which isn't copied while time is taken.
Run = Callable[[Any], torch.Tensor | None]
Candidate = tuple[str, Run]  # with a description

_WHOLE_ROWS = (1, 1, None)


@dataclass(frozen=True)
class Baseline:
    """Something that a kernel is compared with.

    Attributes:
        missing: tells why the baseline can't compute a problem; empty if it can.
        candidates: ways to compute it, of which the fastest counts.
        instead: returns the problem that the baseline computes, with the same FLOPs; the same problem by default.
        recipe: of the scales of that problem, if not that of the operation.
    """

    missing: Callable[[Any], str]
    candidates: Callable[[Any], Iterable[Candidate]]
    instead: Callable[[Any], Any] = lambda problem: problem
    recipe: tuple[int | None, int | None, int | None] | None = None


def _triton_module(problem: AnyProblem) -> ModuleType | None:
    """The module with Triton's kernels for problems of this type."""
    if isinstance(problem, Problem):
        name = "gemm"
    elif isinstance(problem, RowsProblem):
        name = "rows"
    elif isinstance(problem, AttentionProblem):
        name = "decode" if problem.arguments.keys() & {"k_cache", "kv_cache"} else "attention"
    elif isinstance(problem, ExpertsProblem):
        name = "experts"
    else:
        return None
    return importlib.import_module(f".triton_{name}", __package__)


def _triton_missing(problem: AnyProblem) -> str:
    if importlib.util.find_spec("triton") is None:
        return "triton isn't installed"
    module = _triton_module(problem)
    return module.missing(problem) if module else f"no Triton kernel of ours for {problem.op}"


def _triton_candidates(problem: AnyProblem) -> Iterable[Candidate]:
    module = _triton_module(problem)
    assert module is not None
    return module.candidates(problem)


def _needs_gpu(problem: AnyProblem, op: str) -> str:
    """Why a library for GPUs that only computes ``op`` can't compute this problem; empty if it can."""
    if hip.runtime().is_simulated:
        return "its kernels need a GPU"
    return "" if problem.op == op else f"it has no {problem.op}"


@contextlib.contextmanager
def _blas(library: str) -> Iterator[None]:
    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library(library)
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)


def _mm(library: str) -> Callable[[Problem], Iterable[Candidate]]:
    def run(problem: Problem) -> None:
        a, b = data_and_scales(problem.a)[0], data_and_scales(problem.b)[0]
        with _blas(library):
            torch.mm(a, b.T, out=problem.d)

    return lambda _: [("torch.mm", run)]


def _torch_has(problem: AnyProblem) -> bool:
    """Whether torch calls these libraries for the problem."""
    return problem.op == "bf16_gemm_nt" and not hip.runtime().is_simulated


def _blas_missing(variable: str) -> Callable[[AnyProblem], str]:
    return lambda problem: "" if _torch_has(problem) else blas.missing(variable, problem)


def _blas_candidates(variable: str, library: str) -> Callable[[Problem], Iterable[Candidate]]:
    """The library by its C API, and on hardware through torch too."""

    def candidates(problem: Problem) -> Iterator[Candidate]:
        if not blas.missing(variable, problem):
            try:
                yield blas.candidate(variable, problem)
            except blas.BlasError:
                if not _torch_has(problem):
                    raise
        if _torch_has(problem):
            yield from _mm(library)(problem)

    return candidates


def _scaled_mm(problem: Problem) -> Iterable[Candidate]:
    """hipBLASLt's FP8 through torch. It has scales for rows, but not for blocks."""
    (a, _), (b, _) = data_and_scales(problem.a), data_and_scales(problem.b)
    ones_a, ones_b = torch.ones(len(a), 1, device=a.device), torch.ones(1, len(b), device=a.device)

    def run(problem: Problem) -> None:
        (a, _), (b, _) = data_and_scales(problem.a), data_and_scales(problem.b)
        torch._scaled_mm(a, b.T, ones_a, ones_b, out_dtype=problem.d.dtype, out=problem.d)

    return [("scales of rows", run)]


def _with_scales_of_one(problem: Problem) -> Problem:
    (a, _), (b, _) = data_and_scales(problem.a), data_and_scales(problem.b)
    ones = (torch.ones(len(tensor), 1, device=tensor.device) for tensor in (a, b))
    return dataclasses.replace(problem, a=(a, next(ones)), b=(b, next(ones)))


def _aiter_missing(problem: AnyProblem) -> str:
    if path := aiter.checkout():
        return aiter.missing(problem, path)
    if hip.runtime().is_simulated:
        return aiter.GET
    if importlib.util.find_spec("aiter") is None:
        return f"aiter isn't installed: install it, or {aiter.GET}"
    return _needs_gpu(problem, "fp8_gemm_nt")


def _aiter_candidates(problem: Problem) -> Iterable[Candidate]:
    if path := aiter.checkout():
        return aiter.candidates(problem, path)
    installed = importlib.import_module("aiter")

    def run(problem: Problem) -> torch.Tensor:
        (a, sfa), (b, sfb) = data_and_scales(problem.a), data_and_scales(problem.b)
        return installed.gemm_a8w8_blockscale(a, b, sfa, sfb, problem.d.dtype)

    return [("gemm_a8w8_blockscale", run)]


def _in_aiters_layout(problem: Problem) -> Problem:
    """The problem in the layout that AITER takes, made before time is taken."""
    if aiter.checkout():
        return aiter.AiterProblem.of(problem)
    (a, sfa), (b, sfb) = data_and_scales(problem.a), data_and_scales(problem.b)
    assert sfa is not None
    assert sfb is not None
    return dataclasses.replace(problem, a=(a, sfa.contiguous()), b=(b, sfb.contiguous()))


def _dense_missing(problem: AnyProblem) -> str:
    return "" if problem.op.startswith("m_grouped") else f"{problem.op} has no groups of rows"


def _as_dense(problem: Problem) -> Problem:
    """The dense product of as many rows as all groups have together, with the weights of one group.

    FLOPs are the same, since only rows with results count. The dense product has no padding between groups, as the
    contiguous layout has, and no unused rows, as the masked one has. Both are a cost of grouping.
    """
    op = problem.op.removeprefix("m_grouped_").rpartition("_")[0]
    shape = problem.shape._replace(m=sum(problem.group_sizes), groups=1)
    return problems.make(op, shape, hip.runtime().tensor_device)


def _dense_candidates(problem: Problem) -> Iterable[Candidate]:
    return [(f"{problem.op} {problem.shape}: {', '.join(kernel_names(problem))}", Problem.run)]


def _row_scales_missing(problem: AnyProblem) -> str:
    if isinstance(problem, Problem) and problem.is_fp8 and not problem.op.startswith("k_grouped"):
        return ""
    return f"{problem.op} has no scales for each row and 128 elements"


def _with_scales_by_rows(problem: Problem) -> Problem:
    """The same problem, where the scales of a row are contiguous, not those of a column."""
    a, sfa = data_and_scales(problem.a)
    assert sfa is not None
    return dataclasses.replace(problem, a=(a, sfa.contiguous()))


def _ours(problem: Problem) -> Iterable[Candidate]:
    return [(", ".join(kernel_names(problem)), Problem.run)]


BASELINES = {
    "triton": Baseline(_triton_missing, _triton_candidates),
    "rocblas": Baseline(_blas_missing(blas.ROCBLAS), _blas_candidates(blas.ROCBLAS, "cublas")),
    "hipblaslt": Baseline(
        _blas_missing(blas.HIPBLASLT),
        _blas_candidates(blas.HIPBLASLT, "cublaslt"),
        lambda problem: _with_scales_of_one(problem) if problem.is_fp8 else problem,
        _WHOLE_ROWS,
    ),
    "torch_scaled_mm": Baseline(
        lambda problem: _needs_gpu(problem, "fp8_gemm_nt"), _scaled_mm, _with_scales_of_one, _WHOLE_ROWS
    ),
    "aiter": Baseline(_aiter_missing, _aiter_candidates, _in_aiters_layout),
    "dense": Baseline(_dense_missing, _dense_candidates, _as_dense),
    "row_scales": Baseline(_row_scales_missing, _ours, _with_scales_by_rows),
}
