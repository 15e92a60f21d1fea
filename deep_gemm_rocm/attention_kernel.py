"""The kernels behind attention: their arguments and their launch."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_float, c_int, c_int64, c_void_p

import torch

from . import arrays, jit, warm
from .attention_contracts import Attention, Decode
from .heuristics import AttentionConfig, DecodeConfig

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


class PagedTensor(Structure):
    _fields_ = (("data", c_void_p), ("page_stride", c_int64), ("token_stride", c_int64), ("head_stride", c_int64))

    @classmethod
    def of(cls, tensor: torch.Tensor) -> PagedTensor:
        return cls(tensor.data_ptr(), *tensor.stride()[:-1])


class DecodeArguments(Structure):
    """The structure of the same name in decode_arguments.h."""

    _fields_ = (
        ("q", HeadsTensor),
        ("out", HeadsTensor),
        ("k", PagedTensor),
        ("v", PagedTensor),
        ("q_descale", Descales),
        ("k_descale", Descales),
        ("v_descale", Descales),
        ("lse", c_void_p),
        ("lse_batch_stride", c_int64),
        ("lse_head_stride", c_int64),
        ("block_table", c_void_p),
        ("block_table_stride", c_int64),
        ("context_lens", c_void_p),
        ("split_out", c_void_p),
        ("split_lse", c_void_p),
        ("parts", c_void_p),
        ("num_splits", c_int),
        ("num_pieces", c_int),
        ("batch", c_int),
        ("tokens_q", c_int),
        ("heads", c_int),
        ("kv_heads", c_int),
        ("page_shift", c_int),
        ("num_pages", c_int),
        ("pages_of_sequence", c_int),
        ("window_left", c_int),
        ("logit_scale", c_float),
    )


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
    arrays.runtime_of(q).check_residence("q", q)  # before a compile; the others are on the same device
    kernel = jit.get_kernel(_FLASH_ATTENTION, config.template_values, _argtypes(AttentionArguments))
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
    warm.launch(kernel, arguments, tensors, written=("out",))


def launch_flash_decode(
    config: DecodeConfig,
    problem: Decode,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    num_splits: int | None,
    num_pieces: int,
) -> None:
    """Launches the kernels that ``config`` describes, on arguments that were checked.

    Args:
        q, k_cache, v_cache, block_table, context_lens, out: as those of ``flash_attention_decode``; for ``mla_decode``
            both caches are its only one.
        lse: fp32 [batch, heads, tokens].
        num_splits: into how many parts each sequence's keys are split; if None, all keys are cut into equal pieces.
        num_pieces: splits of all sequences and heads of keys, or these pieces.
    """
    arrays.runtime_of(q).check_residence("q", q)  # before a compile; the others are on the same device
    kernel = jit.get_kernel(f"{config.family}.hip.j2", config.template_values, _argtypes(DecodeArguments))
    sequence_heads = problem.batch * problem.kv_heads
    queries = problem.tokens_q * (problem.heads // problem.kv_heads)
    forms: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    if num_splits is None:
        forms["parts"] = ((sequence_heads, 2), torch.int32)
    if num_splits != 1:
        num_parts = num_pieces + (sequence_heads if num_splits is None else 0)
        forms["split_out"] = ((num_parts, queries, problem.value_dim), torch.float32)
        forms["split_lse"] = ((num_parts, queries), torch.float32)
    made = dict(zip(forms, arrays.temporaries(q, *forms.values()), strict=True))
    given = {
        "q": q, "k_cache": k_cache, "v_cache": v_cache, "out": out, "lse": lse, "block_table": block_table,
        "context_lens": context_lens, **made, **problem.descales,
    }  # fmt: skip
    arguments = DecodeArguments(
        q=HeadsTensor.of(q),
        out=HeadsTensor.of(out),
        k=PagedTensor.of(k_cache),
        v=PagedTensor.of(v_cache),
        **{name: Descales.of(tensor) for name, tensor in problem.descales.items()},
        lse=_address(lse),
        lse_batch_stride=0 if lse is None else lse.stride(0),
        lse_head_stride=0 if lse is None else lse.stride(1),
        block_table=block_table.data_ptr(),
        block_table_stride=block_table.stride(0),
        context_lens=context_lens.data_ptr(),
        split_out=_address(made.get("split_out")),
        split_lse=_address(made.get("split_lse")),
        parts=_address(made.get("parts")),
        num_splits=num_splits or 0,
        num_pieces=num_pieces,
        batch=problem.batch,
        tokens_q=problem.tokens_q,
        heads=problem.heads,
        kv_heads=problem.kv_heads,
        page_shift=problem.page_size.bit_length() - 1,
        num_pages=problem.num_pages,
        pages_of_sequence=problem.pages_of_sequence,
        window_left=problem.window_left,
        logit_scale=problem.softmax_scale * _LOG2_E,
    )
    tensors = {name: tensor for name, tensor in given.items() if tensor is not None}
    warm.launch(kernel, arguments, tensors, written=("out",))


def _argtypes(arguments: type[Structure]) -> tuple[type, ...]:
    return POINTER(arguments), c_void_p


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
