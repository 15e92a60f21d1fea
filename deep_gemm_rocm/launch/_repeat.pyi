from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..runtime.hip import EntryPoint
from .fast_path import Launches, Places, Recall, Recalled, Step, TensorForm

def use(
    dlpack_functions: object,
    tensor: type,
    parameter: type,
    is_grad_enabled: Callable[[], bool],
    empty_strided: Callable[..., torch.Tensor],
    recall_in_python: Recall,
    /,
) -> bool: ...
def recall(
    function: object,
    values: object,
    known: dict[tuple[Any, ...], Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    /,
) -> Recalled: ...
def filler(
    steps: Sequence[Step],
    num_given: int,
    aligned: Sequence[int],
    apart: Sequence[tuple[int, int, int, int]],
    together: Sequence[tuple[int, int, int]],
    made: tuple[TensorForm, ...],
    scratch: Callable[[torch.Tensor], int] | None,
    /,
) -> object: ...
def launches(steps: Sequence[tuple[EntryPoint, bytes, Places]], addresses: Sequence[int], /) -> Launches: ...
def with_numbers(arguments: bytes, numbers: Mapping[str, int], places: Mapping[str, tuple[int, int]], /) -> bytes: ...
def entry_point(address: int, /) -> Callable[[bytes, int], int]: ...
