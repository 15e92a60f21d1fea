"""Arrays in the simulated MI300X's memory, allocated and copied by AMD's Python bindings."""

from __future__ import annotations

import os
from typing import Any
from unittest import mock

import numpy as np
import torch

import deep_gemm_rocm as dg
from deep_gemm_rocm import simulator


def bindings() -> Any:
    """hip-python's unmodified module ``hip``, which finds the simulator in place of ROCm."""
    with mock.patch.dict(os.environ, ROCM_PATH=str(simulator.library_path().parents[1])):
        from hip import hip

        call(hip.hipGetDeviceCount)  # opens the library while ROCM_PATH is set
    return hip


def call(function: Any, *arguments: Any, **more: Any) -> Any:
    """Calls a function of hip-python, checks its status and returns its results."""
    status, *results = function(*arguments, **more)
    assert int(status) == 0, (function.__name__, status)
    return results[0] if len(results) == 1 else results


class Memory:
    """Buffers of hip-python, freed at a test's end."""

    def __init__(self) -> None:
        self.hip = bindings()
        self.buffers: list[Any] = []

    def allocate(self, size: int) -> Any:
        self.buffers.append(call(self.hip.hipMalloc, max(size, 1)))
        return self.buffers[-1]

    def holding(self, tensor: torch.Tensor) -> Any:
        """A buffer with a copy of a tensor's memory."""
        size = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
        size = size * tensor.itemsize if tensor.numel() else 0
        buffer = self.allocate(size)
        if size:
            values = tensor.as_strided((size // tensor.itemsize,), (1,)).view(torch.uint8).numpy()
            call(self.hip.hipMemcpy, buffer, values, size, self.hip.hipMemcpyKind.hipMemcpyHostToDevice)
        return buffer

    def array(self, tensor: torch.Tensor) -> dg.DeviceTensor:
        """An array with a copy of a tensor, with the same strides."""
        buffer = self.holding(tensor)
        if tensor.numel() == 0:
            return dg.as_tensor(Changed(buffer, shape=(0,)), tensor.dtype, tensor.shape)
        array = dg.as_tensor(buffer)
        return array.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())

    def bytes_of(self, array: Any, size: int) -> np.ndarray:
        """The current bytes of an array."""
        values = np.empty(size, np.uint8)
        call(self.hip.hipMemcpy, values, array, size, self.hip.hipMemcpyKind.hipMemcpyDeviceToHost)
        return values

    def free(self) -> None:
        for buffer in self.buffers:
            call(self.hip.hipFree, buffer)
        self.buffers.clear()


class Changed:
    """An array whose ``__cuda_array_interface__`` has some entries changed."""

    def __init__(self, array: Any, **changes: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = dict(array.__cuda_array_interface__) | changes
