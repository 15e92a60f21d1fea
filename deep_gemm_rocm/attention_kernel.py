"""The kernels behind attention: their arguments and their launch."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_float, c_int, c_int64, c_void_p

import torch

from . import hip, jit
from .attention_contracts import Attention
from .heuristics import AttentionConfig

_FLASH_ATTENTION = "flash_attention.hip.j2"
_MAX_WORKGROUPS = 2**22  # of a launch, with up to 512 threads each; a workgroup computes several tiles if need be
_LOG2_E = 1.4426950408889634


class HeadsTensor(Structure):
    _fields_ = (("data", c_void_p), ("batch_stride", c_int64), ("token_stride", c_int64), ("head_stride", c_int64))

    @classmethod
    def of(cls, tensor: torch.Tensor) -> HeadsTensor:
        *batch_stride, token_stride, head_stride, _ = tensor.stride()
        return cls(tensor.data_ptr(), *(batch_stride or (0,)), token_stride, head_stride)


class Descales(Structure):
    _fields_ = (
        ("data", c_void_p),
        ("batch_stride", c_int64),
        ("head_stride", c_int64),
        ("block_stride", c_int64),
        ("last_block", c_int),
    )

    @classmethod
    def of(cls, tensor: torch.Tensor | None) -> Descales:
        """Of a tensor that was expanded to [batch, heads, blocks]."""
        return cls() if tensor is None else cls(tensor.data_ptr(), *tensor.stride(), tensor.shape[-1] - 1)


class AttentionArguments(Structure):
    """The structure of the same name in attention_arguments.h."""

    _fields_ = (
        ("q", HeadsTensor),
        ("k", HeadsTensor),
        ("v", HeadsTensor),
        ("out", HeadsTensor),
        ("q_descale", Descales),
        ("k_descale", Descales),
        ("v_descale", Descales),
        ("lse", c_void_p),
        ("lse_batch_stride", c_int64),
        ("lse_head_stride", c_int64),
        ("cu_seqlens_q", c_void_p),
        ("cu_seqlens_k", c_void_p),
        ("batch", c_int),
        ("tokens_q", c_int),
        ("tokens_k", c_int),
        ("heads", c_int),
        ("kv_heads", c_int),
        ("window_left", c_int),
        ("window_right", c_int),
        ("logit_scale", c_float),
        ("max_workgroups", c_int),
    )


_ARGTYPES = (POINTER(AttentionArguments), c_void_p)


def launch_flash_attention(
    config: AttentionConfig,
    problem: Attention,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
) -> None:
    """Launches the kernel that ``config`` describes, on arguments that were checked.

    Args:
        q, k, v, out, cu_seqlens_q, cu_seqlens_k: as those of ``flash_attention``.
        lse: fp32 [batch, heads, tokens] or, where sequences are packed, [heads, tokens].
    """
    given = {
        "q": q, "k": k, "v": v, "out": out, "lse": lse, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k,
        **problem.descales,
    }  # fmt: skip
    tensors = {name: tensor for name, tensor in given.items() if tensor is not None}
    runtime = hip.runtime()
    runtime.check_residence("q", q)  # before a compile; the others are on the same device
    kernel = jit.get_kernel(_FLASH_ATTENTION, config.template_values, _ARGTYPES)
    lse_strides = (0, 0) if lse is None else (0, *lse.stride())[-3:-1]
    arguments = AttentionArguments(
        q=HeadsTensor.of(q),
        k=HeadsTensor.of(k),
        v=HeadsTensor.of(v),
        out=HeadsTensor.of(out),
        **{name: Descales.of(tensor) for name, tensor in problem.descales.items()},
        lse=_address(lse),
        lse_batch_stride=lse_strides[0],
        lse_head_stride=lse_strides[1],
        cu_seqlens_q=_address(cu_seqlens_q),
        cu_seqlens_k=_address(cu_seqlens_k),
        batch=problem.batch,
        tokens_q=problem.tokens_q,
        tokens_k=problem.tokens_k,
        heads=problem.heads,
        kv_heads=problem.kv_heads,
        window_left=problem.window_left,
        window_right=problem.window_right,
        logit_scale=problem.softmax_scale * _LOG2_E,
        max_workgroups=_MAX_WORKGROUPS,
    )
    with runtime.launching(**tensors) as stream:
        kernel(ctypes.byref(arguments), stream)


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
