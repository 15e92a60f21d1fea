"""AMD's unmodified Python bindings on the simulated MI300X, as an independent HIP client."""

from __future__ import annotations

import os
import subprocess
import sys

from deep_gemm_rocm import simulator

KERNEL = """
extern "C" __global__ void scale(float* data, float factor, int n) {
  int i = __builtin_amdgcn_workgroup_id_x() * 256 + __builtin_amdgcn_workitem_id_x();
  if (i < n) data[i] *= factor;
}
"""

# The bindings bind a process to one HIP library, so they run in a new process.
PROGRAM = """
import ctypes, sys
import numpy as np
from hip import hip

def call(function, *arguments, **more):
    status, *results = function(*arguments, **more)
    assert status == hip.hipError_t.hipSuccess, (function, status)
    return results[0] if len(results) == 1 else results

assert call(hip.hipGetDeviceCount) == 1
properties = call(hip.hipGetDeviceProperties, 0)
assert properties.gcnArchName == "gfx942:sramecc+:xnack-", properties.gcnArchName
assert (properties.multiProcessorCount, properties.warpSize) == (304, 64)

data = np.arange(1000, dtype=np.float32)
device = call(hip.hipMalloc, data.nbytes)
stream = call(hip.hipStreamCreate)
start, stop = call(hip.hipEventCreate), call(hip.hipEventCreate)
call(hip.hipMemcpyAsync, device, data, data.nbytes, hip.hipMemcpyKind.hipMemcpyHostToDevice, stream)
module = call(hip.hipModuleLoad, sys.argv[1].encode())
function = call(hip.hipModuleGetFunction, module, b"scale")
call(hip.hipEventRecord, start, stream)
arguments = (device, ctypes.c_float(0.5), ctypes.c_int(len(data)))
call(hip.hipModuleLaunchKernel, function, 4, 1, 1, 256, 1, 1, sharedMemBytes=0, stream=stream, kernelParams=None,
     extra=arguments)
call(hip.hipEventRecord, stop, stream)
call(hip.hipEventSynchronize, stop)
assert call(hip.hipEventElapsedTime, start, stop) >= 0
result = np.empty_like(data)
call(hip.hipMemcpy, result, device, data.nbytes, hip.hipMemcpyKind.hipMemcpyDeviceToHost)
assert np.array_equal(result, data * 0.5)

(status,) = hip.hipModuleLaunchKernel(function, 4, 1, 1, 2048, 1, 1, sharedMemBytes=0, stream=stream,
                                      kernelParams=None, extra=arguments)
assert status == hip.hipError_t.hipErrorInvalidConfiguration, status
# Work of two streams, one behind the other, captured and launched twice.
other = call(hip.hipStreamCreate)
fork, join = call(hip.hipEventCreate), call(hip.hipEventCreate)
call(hip.hipStreamBeginCapture, stream, hip.hipStreamCaptureMode.hipStreamCaptureModeGlobal)
call(hip.hipMemsetD32Async, device, 0x3F800000, len(data), stream)
call(hip.hipEventRecord, fork, stream)
call(hip.hipStreamWaitEvent, other, fork, 0)
call(hip.hipModuleLaunchKernel, function, 4, 1, 1, 256, 1, 1, sharedMemBytes=0, stream=other, kernelParams=None,
     extra=(device, ctypes.c_float(3), ctypes.c_int(10)))
call(hip.hipEventRecord, join, other)
call(hip.hipStreamWaitEvent, stream, join, 0)
assert hip.hipStreamSynchronize(stream)[0] == hip.hipError_t.hipErrorStreamCaptureUnsupported
assert hip.hipStreamEndCapture(stream)[0] == hip.hipError_t.hipErrorStreamCaptureInvalidated

call(hip.hipStreamBeginCapture, stream, hip.hipStreamCaptureMode.hipStreamCaptureModeRelaxed)
call(hip.hipMemsetD32Async, device, 0x3F800000, len(data), stream)
call(hip.hipModuleLaunchKernel, function, 4, 1, 1, 256, 1, 1, sharedMemBytes=0, stream=stream, kernelParams=None,
     extra=(device, ctypes.c_float(3), ctypes.c_int(10)))
graph = call(hip.hipStreamEndCapture, stream)
executable = call(hip.hipGraphInstantiateWithFlags, graph, 0)
for _ in range(2):
    call(hip.hipGraphLaunch, executable, stream)
call(hip.hipStreamSynchronize, stream)
call(hip.hipMemcpy, result, device, data.nbytes, hip.hipMemcpyKind.hipMemcpyDeviceToHost)
assert np.array_equal(result, np.where(np.arange(1000) < 10, 3, 1))
call(hip.hipGraphExecDestroy, executable)
call(hip.hipGraphDestroy, graph)

call(hip.hipFree, device)
call(hip.hipModuleUnload, module)
"""


def test_hip_python(compiler, tmp_path):
    code_object = tmp_path / "scale.co"
    code_object.write_bytes(compiler.code_object(KERNEL))
    (tmp_path / "lib").symlink_to(simulator.library_path().parent)
    environment = {**os.environ, "ROCM_PATH": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, str(code_object)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
