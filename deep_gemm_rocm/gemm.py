"""Dense GEMM."""

from __future__ import annotations

from ctypes import c_int, c_int64, c_void_p

import torch

from . import hip, jit
from .contracts import Pair, check_fp8_gemm_nt
from .heuristics import choose_gemm_config

_TEMPLATE = "gemm_fp8.hip.j2"
# a, b, sfa, sfb, d · m, n, k · row strides of a, b, d · strides of sfa and sfb · stream
_ARGTYPES = (c_void_p,) * 5 + (c_int,) * 3 + (c_int64,) * 3 + (c_int64,) * 4 + (c_void_p,)

_RECIPE = (1, 128, 128)


def gemm_fp8(a: Pair, b: Pair, out: torch.Tensor | None = None) -> torch.Tensor:
    """Multiplies FP8 activations with FP8 weights: ``out = (a · sfa) · (b · sfb)ᵀ``, accumulated in fp32.

    Every 128 of K are summed by the matrix cores, then scaled and added up in fp32. The same inputs give the same bits.

    Args:
        a: data float8_e4m3fnuz [M, K] and scales fp32 [M, ceil(K/128)], as ``per_token_cast_to_fp8`` returns them.
        b: data float8_e4m3fnuz [N, K] and scales fp32 [ceil(N/128), ceil(K/128)], as ``per_block_cast_to_fp8`` returns
            them.
        out: bf16 [M, N] to write into, rows contiguous and not overlapping; a new one if None. It must not share memory
            with the inputs.

    M and N are arbitrary (an N that is a multiple of 8 with 16-byte aligned rows of ``out`` runs at full speed), K is a
    multiple of 16. Rows of the data are contiguous, 16-byte aligned and any distance apart; scales may have any
    strides, and are multiplied with the data to dequantise it.

    Returns:
        ``out``.

    Raises:
        TypeError, ValueError: an argument is not as above; nothing is written then.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    m, n, k = check_fp8_gemm_nt(a, b, out, "out")
    if out is None:
        out = torch.empty(m, n, dtype=torch.bfloat16, device=a[0].device)
    _launch(a, b, out, m, n, k)
    return out


def fp8_gemm_nt(
    a: Pair,
    b: Pair,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    recipe: tuple[int, int, int] | None = None,
    recipe_a: tuple[int, int] | None = None,
    recipe_b: tuple[int, int] | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
) -> None:
    """DeepGEMM's name and signature for ``gemm_fp8``: writes ``d = (a · sfa) · (b · sfb)ᵀ``.

    Args:
        a, b, d: as ``a``, ``b`` and ``out`` of ``gemm_fp8``.
        c: must be None: accumulation is not supported yet.
        recipe: None or (1, 128, 128), the rows of ``a``, rows of ``b`` and values along K that share a scale.
        recipe_a, recipe_b: None, or (1, 128) and (128, 128).
        compiled_dims: accepted and not used; no dimension is compiled into a kernel here.
        disable_ue8m0_cast: accepted and not used; scales stay fp32 on this hardware.

    Raises:
        NotImplementedError: ``c`` or a recipe that is not supported yet.
        TypeError, ValueError and others: as ``gemm_fp8``.
    """
    if c is not None:
        raise NotImplementedError("fp8_gemm_nt can't accumulate into c yet; pass c=None and add it afterwards")
    for name, value, supported in (
        ("recipe", recipe, _RECIPE),
        ("recipe_a", recipe_a, (_RECIPE[0], _RECIPE[2])),
        ("recipe_b", recipe_b, (_RECIPE[1], _RECIPE[2])),
    ):
        if value is not None and tuple(value) != supported:
            raise NotImplementedError(f"fp8_gemm_nt supports {name}={supported} only for now, got {value}")
    if d is None:
        raise TypeError("d must be a torch.Tensor, got NoneType; gemm_fp8 makes a new output")
    m, n, k = check_fp8_gemm_nt(a, b, d, "d")
    _launch(a, b, d, m, n, k)


def _launch(a: Pair, b: Pair, d: torch.Tensor, m: int, n: int, k: int) -> None:
    if m == 0 or n == 0:
        return
    (a_data, sfa), (b_data, sfb) = a, b
    runtime = hip.runtime()
    runtime.check_residence("a[0]", a_data)  # before a compile; the others are on the same device
    kernel = jit.get_kernel(_TEMPLATE, choose_gemm_config(m, n, k).template_values, _ARGTYPES)
    with runtime.launching(a=a_data, b=b_data, sfa=sfa, sfb=sfb, d=d) as stream:
        kernel(
            a_data.data_ptr(), b_data.data_ptr(), sfa.data_ptr(), sfb.data_ptr(), d.data_ptr(),
            m, n, k,
            a_data.stride(0), b_data.stride(0), d.stride(0),
            *sfa.stride(), *sfb.stride(),
            stream,
        )  # fmt: skip
