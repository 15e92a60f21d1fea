"""Arguments and launches of attention to whole sequences."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import Structure, c_float, c_int, c_int64, c_void_p

import torch

from ..heuristics import AttentionConfig
from ..jit import Request
from ..problems.arguments import Argument
from ..problems.attention import Attention
from ..problems.heads import seen_keys
from .launch import Launch, Sizes

_FLASH_ATTENTION = "flash_attention.hip.j2"
_MAX_WORKGROUPS = 2**22  # of up to 512 threads in a launch; with more tiles, a workgroup computes several
LOG2_E = 1.4426950408889634
ALIGNED = ("q.data", "k.data", "v.data", "out.data")


class HeadsTensor(Structure):
    _fields_ = (("data", c_void_p), ("batch_stride", c_int64), ("token_stride", c_int64), ("head_stride", c_int64))

    @classmethod
    def of(cls, tensor: torch.Tensor) -> HeadsTensor:
        *batch_stride, token_stride, head_stride, _ = tensor.stride()
        return cls(None, *(batch_stride or (0,)), token_stride, head_stride)


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
        """The strides of a tensor that was expanded to [batch, heads, blocks]."""
        return cls() if tensor is None else cls(None, *tensor.stride(), tensor.shape[-1] - 1)


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
        ("sinks", c_void_p),
        ("cu_seqlens_q", c_void_p),
        ("cu_seqlens_k", c_void_p),
        ("block_table", c_void_p),
        ("block_table_stride", c_int64),
        ("context_lens", c_void_p),
        ("batch", c_int),
        ("tokens_q", c_int),
        ("tokens_k", c_int),
        ("heads", c_int),
        ("kv_heads", c_int),
        ("page_shift", c_int),
        ("num_pages", c_int),
        ("window_left", c_int),
        ("window_right", c_int),
        ("logit_scale", c_float),
        ("logit_cap", c_float),
        ("max_workgroups", c_int),
    )


def flash_attention_launch(
    choose: Callable[[int, int, int], AttentionConfig],
    window: tuple[int, int],
    problem: Attention,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    attn_sink: torch.Tensor | None,
    block_table: torch.Tensor | None,
    made: dict[str, torch.Tensor],
    **of_sequences: torch.Tensor | None,
) -> Launch:
    """Describes the launch of a kernel on checked arguments of ``flash_attention``.

    Args:
        choose: returns the kernel for a number of tokens of q, of tokens of k, and of sequences.
        window: as ``check_window`` returns it.
        q, k, v, out, attn_sink, block_table: as for ``flash_attention``.
        lse: fp32 [batch, heads, tokens] or, if sequences are packed, [heads, tokens].
        made: the results that are new tensors.
        of_sequences: ``cu_seqlens_q``, ``cu_seqlens_k`` and ``context_lens``.
    """
    heads = {"q": q, "k": k, "v": v, "out": out}
    sizes_of = _sizes_of_attention(choose, window, problem, heads, has_lse=lse is not None)
    sizes = sizes_of(problem.tokens_q, problem.tokens_k, problem.batch)
    arguments = AttentionArguments(
        **{name: HeadsTensor.of(tensor) for name, tensor in heads.items()},
        **{name: Descales.of(tensor) for name, tensor in problem.descales.items()},
        block_table_stride=0 if block_table is None else block_table.stride(0),
        **{name: number for name, number in sizes.fields.items() if "." not in name},
        heads=problem.heads,
        kv_heads=problem.kv_heads,
        page_shift=problem.page_size.bit_length() - 1,
        num_pages=problem.num_pages,
        logit_scale=problem.softmax_scale * LOG2_E,
        logit_cap=problem.softcap * LOG2_E,
        max_workgroups=_MAX_WORKGROUPS,
    )
    pointers = heads_by_path(**heads, **problem.descales)
    pointers |= pointers_by_path(lse=lse, block_table=block_table, **of_sequences) | sinks(attn_sink)
    return Launch(
        sizes.kernel,
        arguments,
        pointers,
        made=made,
        written=("out.data",),
        aligned=ALIGNED,
        contents=problem.contents,
        sizes=sizes_of if problem.is_good_in_any_size else None,
    )


def _sizes_of_attention(
    choose: Callable[[int, int, int], AttentionConfig],
    window: tuple[int, int],
    problem: Attention,
    tensors: dict[str, torch.Tensor],
    *,
    has_lse: bool,
) -> Callable[[int, int, int], Sizes]:
    """``Launch.sizes`` of ``flash_attention``. Sizes are tokens of q, tokens of k, and sequences; 0 stands for those of
    the problem.
    """
    shared = problem._replace(descales={}, contents=())
    is_packed = tensors["q"].dim() == 3
    rows = {  # tensors whose stride between sequences depends on the number of tokens, and their elements for a token
        name: tensor.shape[-2] * tensor.shape[-1]
        for name, tensor in tensors.items()
        if tensor.dim() == 4 and tensor.is_contiguous() and not (problem.num_pages and name in ("k", "v"))
    }

    def sizes_of(tokens_q: int, tokens_k: int, sequences: int) -> Sizes:
        batch, tokens_q, tokens_k = sequences or shared.batch, tokens_q or shared.tokens_q, tokens_k or shared.tokens_k
        window_left, window_right = seen_keys(window, tokens_q + tokens_k)
        fields = {
            "batch": batch,
            "tokens_q": tokens_q,
            "tokens_k": tokens_k,
            "window_left": window_left,
            "window_right": window_right,
        }
        for name, row in rows.items():
            fields[f"{name}.batch_stride"] = row * (tokens_q if name in ("q", "out") else tokens_k)
        of_result = () if is_packed else (batch,)
        if has_lse:
            fields["lse_head_stride"] = tokens_q
            fields["lse_batch_stride"] = 0 if is_packed else shared.heads * tokens_q
        made = {
            "out.data": (*of_result, tokens_q, shared.heads, shared.value_dim),
            "lse": (*of_result, shared.heads, tokens_q),
        }
        request = Request(_FLASH_ATTENTION, choose(tokens_q, tokens_k, batch).template_values)
        return Sizes(request, fields, made)

    return sizes_of


def sinks(attn_sink: torch.Tensor | None) -> dict[str, Argument]:
    return {} if attn_sink is None else {"sinks": Argument("attn_sink", attn_sink)}


def heads_by_path(**tensors: torch.Tensor | None) -> dict[str, Argument]:
    """Tensors that the kernel takes as structures, by the path of the structure's pointer."""
    return {f"{name}.data": Argument(name, tensor) for name, tensor in tensors.items() if tensor is not None}


def pointers_by_path(**tensors: torch.Tensor | None) -> dict[str, Argument]:
    """Tensors that the kernel takes as bare pointers, by the pointer's path."""
    return {name: Argument(name, tensor) for name, tensor in tensors.items() if tensor is not None}
