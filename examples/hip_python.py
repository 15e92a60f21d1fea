"""FP8 GEMM on memory and a stream of hip-python, AMD's own Python bindings. The torch needs no ROCm.

    pip install 'deep_gemm_rocm[rocm]'
    python examples/hip_python.py

multiplies activations with a weight on a hip-python stream, once directly and once from a graph, and compares the
results with an fp64 product. It runs on an MI300X or the simulated one.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch

import deep_gemm_rocm as dg
from deep_gemm_rocm import simulator

if not os.path.exists("/dev/kfd"):  # no GPU: hip-python looks for HIP's library below ROCM_PATH
    os.environ["ROCM_PATH"] = str(simulator.library_path().parents[1])

from hip import hip

M, N, K = 64, 256, 512


def call(function: Any, *arguments: Any) -> Any:
    """Calls a HIP function, raises if its status isn't hipSuccess, and returns the other results."""
    status, *results = function(*arguments)
    if status != hip.hipError_t.hipSuccess:
        raise RuntimeError(f"{function.__name__}: {status}")
    return results[0] if len(results) == 1 else results


def to_device(values: np.ndarray) -> Any:
    """Copies to the GPU's memory, as a DeviceArray of hip-python with the same type and shape."""
    array = call(hip.hipMalloc, values.nbytes)
    call(hip.hipMemcpy, array, values, values.nbytes, hip.hipMemcpyKind.hipMemcpyHostToDevice)
    array.configure(typestr=values.dtype.name, itemsize=values.itemsize, shape=values.shape)
    return array


def main() -> None:
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape, np.float32) for shape in ((M, K), (N, K)))
    x_array, w_array = to_device(x), to_device(w)
    d_array = call(hip.hipMalloc, M * N * 2)
    stream = call(hip.hipStreamCreate)

    # All functions take the DeviceTensors that as_tensor returns. hip-python has no name for bf16.
    d = dg.as_tensor(d_array, torch.bfloat16, (M, N))
    a = dg.per_token_cast_to_fp8(dg.as_tensor(x_array))
    b = dg.per_block_cast_to_fp8(dg.as_tensor(w_array))
    with dg.stream(stream):
        dg.fp8_gemm_nt(a, b, d)  # asynchronous, like any launch
    call(hip.hipStreamSynchronize, stream)
    compare("launched", d, x, w)

    call(hip.hipMemset, d_array, 0xFF, M * N * 2)
    call(hip.hipStreamBeginCapture, stream, hip.hipStreamCaptureMode.hipStreamCaptureModeGlobal)
    with dg.stream(stream):
        dg.fp8_gemm_nt(a, b, d)
    graph = call(hip.hipStreamEndCapture, stream)
    executable = call(hip.hipGraphInstantiateWithFlags, graph, 0)
    call(hip.hipGraphLaunch, executable, stream)
    call(hip.hipStreamSynchronize, stream)
    compare("replayed", d, x, w)

    result = dg.gemm_fp8(a, b)  # a new array, in memory that is freed with it
    values = np.empty((M, N), np.uint16)
    call(hip.hipMemcpy, values, result, values.nbytes, hip.hipMemcpyKind.hipMemcpyDeviceToHost)
    assert np.array_equal(values, d.cpu().view(torch.uint16).numpy())

    call(hip.hipGraphExecDestroy, executable)
    call(hip.hipGraphDestroy, graph)
    call(hip.hipStreamDestroy, stream)
    for array in (x_array, w_array, d_array):
        call(hip.hipFree, array)


def compare(how: str, d: dg.DeviceTensor, x: np.ndarray, w: np.ndarray) -> None:
    exact = x.astype(np.float64) @ w.T.astype(np.float64)
    difference = dg.calc_diff(d.cpu().double(), torch.from_numpy(exact))
    print(f"{how}: differs from fp64 by {difference:.1e}")
    assert difference < 1e-3


if __name__ == "__main__":
    main()
