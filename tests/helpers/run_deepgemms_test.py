"""Runs one of DeepGEMM's test functions with this package as ``deep_gemm``.

usage: run_deepgemms_test.py FOLDER MODULE FUNCTION

On the simulator, whose tensors are the CPU's, ``device='cuda'`` is ``cpu``, times aren't taken, and the sizes that
``generators.py`` enumerates are cut down.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

import deep_gemm_rocm
from deep_gemm_rocm.problems.layout import align
from deep_gemm_rocm.runtime import hip

_LARGEST = 384  # of the sizes that the simulator computes
_MOST = 12  # problems of a function


class OnCpu(TorchFunctionMode):
    """Lets torch's functions make tensors on the CPU where they are asked for a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def small(value: Any) -> Any:
    """A size, cut down to one with the same remainder; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, int) or value <= _LARGEST:
        return value
    return 256 + value % 128 if value % 1024 else _LARGEST


def cut_down(enumerate_: Callable[..., Iterator[tuple[Any, ...]]]) -> Callable[..., Iterator[tuple[Any, ...]]]:
    """What a generator yields with small sizes, each problem once and not too many."""

    is_grouped, is_masked = "grouped" in enumerate_.__name__, "masked" in enumerate_.__name__

    def smaller(dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
        seen, problems = set(), []
        for given in enumerate_(dtype):
            problem = [small(value) for value in given]
            if is_grouped:
                problem[2] = min(given[2], 4)  # groups
            if is_masked:
                problem[3] = 512  # rows of a group at most
            key = str([value for value in problem if isinstance(value, (int, torch.dtype)) or hasattr(value, "value")])
            if key not in seen:
                seen.add(key)
                problems.append(tuple(problem))
        yield from itertools.islice(problems[:: max(len(problems) // _MOST, 1)], _MOST)

    return smaller


def few_k_groups(dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    """``enumerate_k_grouped_contiguous`` for small K, as on SM90."""
    generators = sys.modules["generators"]
    major = generators.MajorTypeAB.MNMajor if dtype == torch.bfloat16 else generators.MajorTypeAB.KMajor
    for groups, m, n in ((2, 256, 384), (3, 128, 256)):
        sizes = [random.randint(1, 400) for _ in range(groups)]
        yield groups, m, n, major, major, sizes, [align(size, 128) for size in sizes], 256, 128, 128, False


def timed_where_possible(bench_kineto: Callable[..., Any]) -> Callable[..., Any]:
    """A second for what isn't timed: everything on the simulator, and cuBLASLt, which is refused."""

    def timed(fn: Callable[[], Any], names: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(NotImplementedError):
            if not hip.runtime().is_simulated:
                return bench_kineto(fn, names, *args, **kwargs)
        return (1.0,) * len(names) if isinstance(names, tuple) else 1.0

    return timed


def simulate(generators: Any) -> None:
    for name in ("manual_seed", "synchronize", "empty_cache", "reset_peak_memory_stats"):
        setattr(torch.cuda, name, lambda *_: None)
    torch.cuda.manual_seed = lambda *_: None
    for name in ("enumerate_normal", "enumerate_m_grouped_contiguous", "enumerate_m_grouped_masked"):
        setattr(generators, name, cut_down(getattr(generators, name)))
    generators.enumerate_k_grouped_contiguous = few_k_groups


def main(folder: str, module: str, function: str) -> None:
    deep_gemm_rocm.install_as_deep_gemm()
    sys.path.insert(0, folder)
    on = contextlib.nullcontext()
    testing: Any = importlib.import_module("deep_gemm.testing")
    testing.bench_kineto = timed_where_possible(testing.bench_kineto)
    if hip.runtime().is_simulated:
        simulate(importlib.import_module("generators"))
        on = OnCpu()
    tests = importlib.import_module(module)
    torch.manual_seed(0)
    random.seed(0)
    with on:
        getattr(tests, function)()


if __name__ == "__main__":
    main(*sys.argv[1:])
