from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .fast_path import Launches, PlaceOfSize, Recall, Recalled, Step, TensorForm

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
    parts: Sequence[int],
    scratch: Callable[[torch.Tensor], int] | None,
    /,
) -> object: ...
def fill(fill: object, tensors: list[torch.Tensor], addresses: tuple[int, ...], /) -> Launches | None: ...
def without_sizes(
    words: bytes, places: Sequence[PlaceOfSize], most: Sequence[int], /
) -> tuple[bytes, tuple[int, ...], tuple[int, ...], bool] | None: ...
def with_numbers(arguments: bytes, numbers: Mapping[str, int], places: Mapping[str, tuple[int, int]], /) -> bytes: ...
def entry_point(address: int, /) -> Callable[[bytes, int], int]: ...
