"""Arguments and launches of the kernels that merge results of attention."""

from __future__ import annotations

from ctypes import Structure, c_int64, c_uint, c_void_p

import torch

from ..jit import Request
from ..problems.arguments import Argument
from .attention import HeadsTensor
from .launch import Launch

VECTOR = 8  # values of a lane
_TYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}


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
    arguments = MergeStatesArguments(
        **{name: HeadsTensor.of(tensor) for name, tensor in states.items()},
        **{name: LogSums.of(tensor) for name, tensor in sums.items()},
        vectors=out.numel() // VECTOR,
        tokens=out.shape[-3],
        heads=out.shape[-2],
        vectors_of_head=out.shape[-1] // VECTOR,
    )
    name_of_type = _TYPES[out.dtype]
    request = Request(
        "merge_states.hip.j2", {"type": name_of_type, "kernel_name": f"merge_attention_states_{name_of_type}"}
    )
    pointers = {f"{name}.data": Argument(name, tensor) for name, tensor in (states | sums).items()}
    aligned = tuple(f"{name}.data" for name in states)
    return Launch(request, arguments, pointers, made=made, written=("out.data", "out_lse.data"), aligned=aligned)
