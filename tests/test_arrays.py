"""Arrays that hip-python allocated, given to every function by a process whose torch has no ROCm."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from device_memory import Memory
from test_bad_arguments import GOOD

import deep_gemm_rocm as dg


@pytest.fixture
def memory():
    memory = Memory()
    yield memory
    memory.free()


def with_tensors(value: Any, change: Any) -> Any:
    """Arguments or results with their tensors exchanged."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: with_tensors(part, change) for name, part in value.items()}
    return type(value)(with_tensors(part, change) for part in value) if isinstance(value, (tuple, list)) else value


def found(value: Any) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    with_tensors(value, tensors.append)
    return tensors


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().contiguous().view(torch.uint8)


@pytest.mark.parametrize("name", [name for name, good in GOOD.items() if found(good())])
def test_every_function_gives_the_same_bits_as_for_tensors(memory, name):
    arguments = GOOD[name]()
    arrays = with_tensors(arguments, memory.array)
    function = getattr(dg, name)
    expected, actual = function(**arguments), function(**arrays)
    for written, array in zip(found(arguments), found(arrays), strict=True):
        assert bits(array).equal(bits(written))
    assert len(found(expected)) == len(found(actual))
    for result, array in zip(found(expected), found(actual), strict=True):
        assert isinstance(array, dg.DeviceTensor)
        assert (array.shape, array.dtype, array.stride()) == (result.shape, result.dtype, result.stride())
        assert bits(array).equal(bits(result))
    if not found(expected):
        assert actual == expected
