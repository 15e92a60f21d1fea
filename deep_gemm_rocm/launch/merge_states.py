"""Arguments and launches of the kernels that merge results of attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import Structure, c_int64, c_uint, c_void_p

import torch

from ..jit import Request
from ..problems.arguments import Argument
from ..problems.layout import TYPES
from .attention import HeadsTensor
from .launch import Launch, Sizes

VECTOR = 8  # values of a lane
_MOST_VECTORS = 2**31  # kernels count them with 32 bits


class LogSums(Structure):
    """The structure of the same name in merge_states.h."""

    _fields_ = (("data", c_void_p), ("batch_stride", c_int64), ("head_stride", c_int64), ("token_stride", c_int64))

    @classmethod
    def of(cls, tensor: torch.Tensor) -> LogSums:
        *batch_stride, head_stride, token_stride = tensor.stride()
        return cls(None, *(batch_stride or (0,)), head_stride, token_stride)


class MergeStatesArguments(Structure):
    """The structure of the same name in merge_states.h."""

    _fields_ = (
        ("first", HeadsTensor),
        ("second", HeadsTensor),
        ("out", HeadsTensor),
        ("first_lse", LogSums),
        ("second_lse", LogSums),
        ("out_lse", LogSums),
        ("vectors", c_uint),
        ("tokens", c_uint),
        ("heads", c_uint),
        ("vectors_of_head", c_uint),
    )


def num_vectors(name: str, shape: Sequence[int]) -> int:
    """Vectors of a tensor of this shape.

    Raises:
        ValueError: there are too many.
    """
    vectors = math.prod(shape) // VECTOR
    if vectors >= _MOST_VECTORS:
        raise ValueError(f"{name} must have fewer than 2^34 values, got shape {tuple(shape)}")
    return vectors


def merge_states_launch(
    states: dict[str, torch.Tensor], sums: dict[str, torch.Tensor], made: dict[str, torch.Tensor]
) -> Launch:
    """Describes the launch for checked arguments of ``merge_attention_states``, with at least one value.

    Args:
        states: ``first``, ``second`` and ``out``.
        sums: ``first_lse``, ``second_lse`` and ``out_lse``.
        made: those that are new tensors.
    """
    out = states["out"]
    *batch, tokens, heads, width = out.shape
    name_of_type = TYPES[out.dtype]
    request = Request(
        "merge_states.hip.j2", {"type": name_of_type, "kernel_name": f"merge_attention_states_{name_of_type}"}
    )
    # Their strides depend on the tokens.
    contiguous_states = [name for name, tensor in states.items() if batch and tensor.is_contiguous()]
    contiguous_sums = [name for name, tensor in sums.items() if tensor.is_contiguous()]

    def sizes_of(tokens: int) -> Sizes:
        shape = (*batch, tokens, heads, width)
        fields = {"vectors": num_vectors("first", shape), "tokens": tokens}
        fields |= {f"{name}.batch_stride": tokens * heads * width for name in contiguous_states}
        fields |= {f"{name}.head_stride": tokens for name in contiguous_sums}
        if batch:
            fields |= {f"{name}.batch_stride": heads * tokens for name in contiguous_sums}
        return Sizes(request, fields, {"out.data": shape, "out_lse.data": (*batch, heads, tokens)})

    arguments = MergeStatesArguments(
        **{name: HeadsTensor.of(tensor) for name, tensor in states.items()},
        **{name: LogSums.of(tensor) for name, tensor in sums.items()},
        vectors=num_vectors("first", out.shape),
        tokens=tokens,
        heads=heads,
        vectors_of_head=width // VECTOR,
    )
    return Launch(
        request,
        arguments,
        {f"{name}.data": Argument(name, tensor) for name, tensor in (states | sums).items()},
        made=made,
        written=("out.data", "out_lse.data"),
        aligned=tuple(f"{name}.data" for name in states),
        sizes=sizes_of,
    )
