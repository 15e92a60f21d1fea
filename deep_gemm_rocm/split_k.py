"""GEMM whose K is split: parts of it are summed at once, by more workgroups, and these sums by a second kernel."""

from __future__ import annotations

import ctypes
import dataclasses
from ctypes import POINTER, Structure, c_int, c_void_p

import torch

from . import hip, jit
from .contracts import Gemm
from .gemm_kernel import Matrix, launch_gemm
from .heuristics import GemmConfig
from .layout import Pair


class SumArguments(Structure):
    """The structure of the same name in sum_of_parts.h."""

    _fields_ = (
        ("parts", c_void_p),
        ("c", Matrix),
        ("d", Matrix),
        ("m", c_int),
        ("n", c_int),
        ("num_parts", c_int),
    )


def launch_split_gemm(
    config: GemmConfig,
    gemm: Gemm,
    a: Pair | torch.Tensor,
    b: Pair | torch.Tensor,
    d: torch.Tensor,
    num_splits: int,
    *,
    c: torch.Tensor | None = None,
) -> None:
    """``launch_gemm`` for [m, n] of a kind that deals K to groups, of which there will be ``num_splits``.

    Parts are added up in their order: the same inputs and ``num_splits`` give the same bits.
    """
    gemm = gemm._replace(groups=num_splits)
    if num_splits == 1:
        launch_gemm(config, gemm, a, b, d, c=c)
        return
    parts = torch.empty(num_splits, gemm.m, gemm.n, dtype=torch.float32, device=d.device)
    of_parts = dataclasses.replace(config, kind=dataclasses.replace(config.kind, d_type="f32", accumulate=False))
    launch_gemm(of_parts, gemm, a, b, parts)
    d_type, accumulate = config.kind.d_type, config.kind.accumulate
    values: dict[str, int | bool | str] = {
        "kernel_name": f"sum_of_parts_{d_type}{'_c' if accumulate else ''}",
        "d_type": d_type,
        "accumulate": accumulate,
    }
    kernel = jit.get_kernel("sum_of_parts.hip.j2", values, (POINTER(SumArguments), c_void_p))
    arguments = SumArguments(
        parts=parts.data_ptr(),
        c=Matrix() if c is None else Matrix.of(c),
        d=Matrix.of(d),
        m=gemm.m,
        n=gemm.n,
        num_parts=num_splits,
    )
    tensors = {"parts": parts, "d": d} | ({} if c is None else {"c": c})
    with hip.runtime().launching(**tensors) as stream:
        kernel(ctypes.byref(arguments), stream)
