"""GEMM whose K is split: parts of it are summed at once, by more workgroups, and these sums by a second kernel."""

from __future__ import annotations

import dataclasses
from ctypes import Structure, c_int, c_void_p

import torch

from . import jit, warm
from .contracts import Gemm
from .gemm_kernel import Matrix, launch_gemm
from .heuristics import GemmConfig
from .layout import Pair, align, data_and_scales

_PART_ALIGNMENT = 4  # of a row of a part, see sum_of_parts.h


class SumArguments(Structure):
    """The structure of the same name in sum_of_parts.h."""

    _fields_ = (
        ("parts", c_void_p),
        ("bias", Matrix),
        ("c", Matrix),
        ("d", Matrix),
        ("m", c_int),
        ("n", c_int),
        ("part_stride", c_int),
        ("num_parts", c_int),
    )


_ARGTYPES = (c_void_p, c_void_p)  # SumArguments by reference, and the stream


def launch_split_gemm(
    config: GemmConfig,
    gemm: Gemm,
    a: Pair | torch.Tensor,
    b: Pair | torch.Tensor,
    d: Pair | torch.Tensor,
    num_splits: int,
    *,
    c: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> None:
    """``launch_gemm`` for [m, n] of a kind that deals K to groups, of which there will be ``num_splits``.

    Parts are added up in their order: the same inputs and ``num_splits`` give the same bits.
    """
    gemm = gemm._replace(groups=num_splits)
    if num_splits == 1:
        launch_gemm(config, gemm, a, b, d, c=c, bias=bias)
        return
    d, _ = data_and_scales(d)
    stride = align(gemm.n, _PART_ALIGNMENT)
    parts = warm.scratch(num_splits, gemm.m, stride, dtype=torch.float32, device=d.device)[:, :, : gemm.n]
    kind = dataclasses.replace(config.kind, d_type="f32", accumulate=False, bias="none")
    of_parts = dataclasses.replace(config, kind=kind)
    launch_gemm(of_parts, gemm, a, b, parts)
    d_type, accumulate, bias_type = config.kind.d_type, config.kind.accumulate, config.kind.bias
    with_bias = "" if bias is None else f"_bias_{bias_type}"
    values: dict[str, int | bool | str] = {
        "kernel_name": f"sum_of_parts{with_bias}_{d_type}{'_c' if accumulate else ''}",
        "d_type": d_type,
        "bias": bias_type,
        "accumulate": accumulate,
    }
    kernel = jit.get_kernel("sum_of_parts.hip.j2", values, _ARGTYPES)
    arguments = SumArguments(
        parts=parts.data_ptr(),
        bias=Matrix() if bias is None else Matrix.of(bias.unsqueeze(0)),
        c=Matrix() if c is None else Matrix.of(c),
        d=Matrix.of(d),
        m=gemm.m,
        n=gemm.n,
        part_stride=stride,
        num_parts=num_splits,
    )
    given = {"parts": parts, "bias": bias, "c": c, "d": d}
    tensors = {name: tensor for name, tensor in given.items() if tensor is not None}
    warm.launch(kernel, arguments, tensors, written=("d",), aligned=())
