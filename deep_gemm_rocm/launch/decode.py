"""Arguments and launches of decoding, and of attention to chosen tokens."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from ctypes import Structure, c_float, c_int, c_int64, c_void_p
from typing import NamedTuple

import torch

from ..heuristics import DecodeConfig
from ..jit import Request
from ..problems.arguments import Argument, Arguments, present
from ..problems.decode import Decode
from ..problems.layout import align
from ..problems.sparse_mla import ChosenTokens, SparseMla
from .attention import ALIGNED, LOG2_E, Descales, HeadsTensor, heads_by_path, pointers_by_path, sinks
from .launch import Launch, Sizes

_WORD = 4  # bytes of the scratch's fp32 and int32


class PagedTensor(Structure):
    _fields_ = (("data", c_void_p), ("page_stride", c_int64), ("token_stride", c_int64), ("head_stride", c_int64))

    @classmethod
    def of(cls, tensor: torch.Tensor) -> PagedTensor:
        return cls(None, *tensor.stride()[:-1])


class ExtraTokens(Structure):
    _fields_ = (
        ("cache", PagedTensor),
        ("slots", c_void_p),
        ("slots_stride", c_int64),
        ("lengths", c_void_p),
        ("sequences_of_length", c_int),
        ("page_shift", c_int),
        ("num_pages", c_int),
        ("most_tokens", c_int),
    )

    @classmethod
    def of(cls, tokens: ChosenTokens) -> ExtraTokens:
        """The second cache's tokens, without pointers."""
        return cls(
            cache=_latent_pages(tokens),
            slots_stride=tokens.indices.stride(0),
            sequences_of_length=tokens.queries_of_length,
            page_shift=tokens.page_size.bit_length() - 1,
            num_pages=tokens.num_pages,
            most_tokens=tokens.most_tokens,
        )


def _latent_pages(tokens: ChosenTokens) -> PagedTensor:
    return PagedTensor(None, tokens.cache.stride(0), tokens.token_stride, 0)


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
        ("max_logits", c_void_p),
        ("lse_batch_stride", c_int64),
        ("lse_head_stride", c_int64),
        ("sinks", c_void_p),
        ("block_table", c_void_p),
        ("block_table_stride", c_int64),
        ("context_lens", c_void_p),
        ("split_out", c_void_p),
        ("split_lse", c_void_p),
        ("split_max", c_void_p),
        ("extra", ExtraTokens),
        ("parts", c_void_p),
        ("num_splits", c_int),
        ("split_keys", c_int),
        ("num_pieces", c_int),
        ("batch", c_int),
        ("tokens_q", c_int),
        ("heads", c_int),
        ("kv_heads", c_int),
        ("group", c_int),
        ("page_shift", c_int),
        ("num_pages", c_int),
        ("most_tokens", c_int),
        ("sequences_of_length", c_int),
        ("window_left", c_int),
        ("logit_scale", c_float),
        ("logit_cap", c_float),
        ("lse_scale", c_float),
        ("lse_of_none", c_float),
    )


class Dealt(NamedTuple):
    """How a decode kernel splits the keys among workgroups, see decode_schedule.h.

    Attributes:
        config: the kernel.
        num_splits: into how many parts each sequence's keys are split; if None, the keys of all sequences together are
            cut into equal pieces.
        num_pieces: the number of these pieces, or of the splits of all sequences and heads of keys.
        split_keys: about the fewest keys of a split: sequences with few keys have fewer splits. 0 if all sequences have
            ``num_splits``.
    """

    config: DecodeConfig
    num_splits: int | None
    num_pieces: int
    split_keys: int = 0


def flash_decode_launch(
    deal: Callable[[int], Dealt],
    problem: Decode,
    q: torch.Tensor,
    caches: Arguments,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    lse_base_2: bool = False,
    attn_sink: torch.Tensor | None = None,
    *,
    made: dict[str, torch.Tensor],
) -> Launch:
    """Describes the launch of a decode kernel on checked arguments.

    Args:
        deal: says how the keys are split, for a number of sequences.
        q, block_table, context_lens, out, attn_sink: as for ``flash_attention_decode``.
        caches: ``k`` and ``v``; for ``mla_decode`` both are its only cache, and ``k_descale`` may be its factor.
        lse: fp32 [batch, heads, tokens].
        lse_base_2: whether ``lse`` is to base 2 rather than e.
        made: the results that are new tensors.
    """
    queries = problem.tokens_q * (problem.heads // problem.kv_heads)
    sizes_of = functools.partial(_sizes_of_decode, deal, problem.kv_heads, queries, problem.value_dim, ("split_lse",))
    sizes = sizes_of(problem.batch)
    arguments = DecodeArguments(
        **sizes.fields,
        q=HeadsTensor.of(q),
        out=HeadsTensor.of(out),
        k=PagedTensor.of(caches["k"].tensor),
        v=PagedTensor.of(caches["v"].tensor),
        **{name: Descales.of(tensor) for name, tensor in problem.descales.items()},
        lse_batch_stride=0 if lse is None else lse.stride(0),
        lse_head_stride=0 if lse is None else lse.stride(1),
        block_table_stride=block_table.stride(0),
        tokens_q=problem.tokens_q,
        heads=problem.heads,
        kv_heads=problem.kv_heads,
        group=problem.heads // problem.kv_heads,
        page_shift=problem.page_size.bit_length() - 1,
        num_pages=problem.num_pages,
        most_tokens=problem.most_keys,
        sequences_of_length=1,
        window_left=problem.window_left,
        logit_scale=problem.softmax_scale * LOG2_E,
        logit_cap=problem.softcap * LOG2_E,
        lse_scale=1 if lse_base_2 else 1 / LOG2_E,
        lse_of_none=-math.inf,
    )
    pointers = heads_by_path(q=q, out=out, **problem.descales)
    pointers |= {f"{role}.data": cache for role, cache in caches.items()}
    pointers |= pointers_by_path(lse=lse, block_table=block_table, context_lens=context_lens) | sinks(attn_sink)
    return Launch(
        sizes.kernel,
        arguments,
        pointers,
        sizes.scratch,
        made,
        written=("out.data",),
        aligned=ALIGNED,
        contents=problem.contents,
        sizes=sizes_of,
    )


def _sizes_of_decode(
    deal: Callable[[int], Dealt],
    kv_heads: int,
    queries_of_kv_head: int,
    value_dim: int,
    of_queries: tuple[str, ...],
    batch: int,
) -> Sizes:
    """``Launch.sizes`` of a decode kernel. ``of_queries``: pointers to a number for each query and split."""
    config, num_splits, num_pieces, split_keys = deal(batch)
    sequence_heads = batch * kv_heads
    scratch = {}
    if num_splits is None or split_keys > 0:
        scratch["parts"] = sequence_heads * 2 * _WORD
    if num_splits != 1:
        num_parts = num_pieces + (sequence_heads if num_splits is None else 0)
        scratch["split_out"] = num_parts * queries_of_kv_head * _part_row_bytes(value_dim)
        scratch |= dict.fromkeys(of_queries, num_parts * queries_of_kv_head * _WORD)
    fields = {"batch": batch, "num_splits": num_splits or 0, "split_keys": split_keys, "num_pieces": num_pieces}
    request = Request(f"{config.family}.hip.j2", config.template_values)
    return Sizes(request, fields, dict.fromkeys(("out.data", "lse", "max_logits"), batch), scratch=scratch)


def _part_row_bytes(value_dim: int) -> int:
    """``PartRow::kBytes`` in part_row.h: f16 values, padded to whole lanes, and 32 bytes for powers of two."""
    return 2 * align(value_dim, 64) + 32


def sparse_mla_launch(
    deal: Callable[[int], Dealt],
    problem: SparseMla,
    q: torch.Tensor,
    attn_sink: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    max_logits: torch.Tensor,
    made: dict[str, torch.Tensor],
) -> Launch:
    """Describes the launch of a decode kernel on checked arguments of ``sparse_mla``.

    A query is a sequence of its own for the kernel.

    Args:
        deal: says how the keys are split, for a number of queries.
        lse, max_logits: fp32 [queries, heads], contiguous.
        made: the results that are new tensors.
    """
    queries, heads, _ = q.shape
    sizes_of = functools.partial(_sizes_of_decode, deal, 1, heads, problem.value_dim, ("split_lse", "split_max"))
    sizes = sizes_of(queries)
    tokens, extra = problem.tokens, problem.extra
    cache = _latent_pages(tokens)
    arguments = DecodeArguments(
        **sizes.fields,
        q=HeadsTensor(None, q.stride(0), 0, q.stride(1)),
        out=HeadsTensor(None, out.stride(0), 0, out.stride(1)),
        k=cache,
        v=cache,
        lse_batch_stride=heads,
        lse_head_stride=1,
        block_table_stride=tokens.indices.stride(0),
        extra=ExtraTokens() if extra is None else ExtraTokens.of(extra),
        tokens_q=1,
        heads=heads,
        kv_heads=1,
        group=heads,
        page_shift=tokens.page_size.bit_length() - 1,
        num_pages=tokens.num_pages,
        most_tokens=tokens.most_tokens,
        sequences_of_length=tokens.queries_of_length,
        window_left=problem.top_k,
        logit_scale=problem.softmax_scale * LOG2_E,
        lse_scale=1 / LOG2_E,
        lse_of_none=math.inf,
    )
    pointers = heads_by_path(q=q, out=out) | dict.fromkeys(("k.data", "v.data"), Argument("kv_cache", tokens.cache))
    pointers |= present(block_table=("indices", tokens.indices), context_lens=("topk_length", tokens.lengths))
    if extra is not None:
        of_extra = {
            "cache.data": ("extra_kv_cache", extra.cache),
            "slots": ("extra_indices", extra.indices),
            "lengths": ("extra_topk_length", extra.lengths),
        }
        pointers |= present(**{f"extra.{path}": argument for path, argument in of_extra.items()})
    pointers |= pointers_by_path(lse=lse, max_logits=max_logits) | sinks(attn_sink)
    return Launch(
        sizes.kernel,
        arguments,
        pointers,
        sizes.scratch,
        made,
        written=("out.data",),
        aligned=(*ALIGNED, "extra.cache.data"),
        sizes=sizes_of,
    )
