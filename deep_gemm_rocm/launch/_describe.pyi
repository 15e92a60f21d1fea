from collections.abc import Callable
from typing import Any

import torch

from .described import Describe, Described, Form, Make

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
def make(forms: list[Form], tensors: list[torch.Tensor], addresses: tuple[int, ...], /) -> tuple[int, ...]: ...
def entry_point(address: int, /) -> Callable[[bytes, int], int]: ...
