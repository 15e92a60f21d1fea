from collections.abc import Callable, Sequence
from typing import Any

import torch

from .fast_path import Describe, Described, Fill, Make, Step, TensorForm

def use(
    dlpack_functions: object,
    tensor: type,
    parameter: type,
    is_grad_enabled: Callable[[], bool],
    empty_strided: Callable[..., torch.Tensor],
    describe_in_python: Describe,
    make_in_python: Make,
    /,
) -> bool: ...
def describe(function: object, values: object, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Described: ...
def make(forms: list[TensorForm], tensors: list[torch.Tensor], addresses: tuple[int, ...], /) -> tuple[int, ...]: ...
def filler(
    steps: Sequence[Step],
    aligned: Sequence[int],
    apart: Sequence[tuple[int, int, int, int]],
    together: Sequence[tuple[int, int, int]],
    /,
) -> Fill: ...
def entry_point(address: int, /) -> Callable[[bytes, int], int]: ...
