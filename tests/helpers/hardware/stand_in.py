"""A stand-in for torch with ROCm on a machine with three GPUs, made from a torch without ROCm and ``runtime.c``.

It replaces those parts of torch.cuda that the package uses. Tensors on ``cuda`` are real torch tensors in the host's
memory, lent to torch with a capsule that names the GPU. Torch's operators on them run on the CPU. The allocator works
like torch's: freed memory is used again in the order of its stream, after the streams that were recorded for it have
done their work. It is overwritten then, so that a use after free shows.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from ctypes import byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_void_p, py_object
from pathlib import Path
from typing import Any

import torch

from deep_gemm_rocm import simulator

DEVICES = ("cuda:0", "cuda:1", "cuda:2")  # the last one is no gfx942
_MODES = {"global": 0, "thread_local": 1, "relaxed": 2}
_CUDA = 2  # kDLCUDA
_UNIT = 512


def build(folder: Path) -> Path:
    """Builds the runtime library in a folder for ROCM_PATH."""
    library = folder / "lib" / "libamdhip64.so"
    library.parent.mkdir(parents=True)
    compiler = [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-w", "-O1"]
    define = f'-DSIMULATOR="{simulator.library_path()}"'
    source = Path(__file__).with_name("runtime.c")
    subprocess.run([*compiler, define, source, "-o", library], check=True)
    return folder


class Hip:
    """The HIP runtime, as torch uses it."""

    def __init__(self, root: Path) -> None:
        self.lib = ctypes.CDLL(str(root / "lib" / "libamdhip64.so"))

    def __call__(self, name: str, *arguments: Any) -> None:
        status = getattr(self.lib, name)(*arguments)
        if status:
            raise torch.AcceleratorError(f"{name}: HIP error {status}")


hip: Hip


class Stream(torch.Stream):
    """Stands in for torch.cuda.Stream."""

    _numbers = itertools.count(1)

    def __new__(cls, device: int | None = None, *, is_default: bool = False) -> Stream:
        device = current_device() if device is None else device
        number = 0 if is_default else next(cls._numbers)
        stream = super().__new__(cls, stream_id=number, device_index=device, device_type=1)
        handle = c_void_p()
        if not is_default:
            with on_device(device):
                hip("hipStreamCreateWithFlags", byref(handle), c_uint(1))
        stream.cuda_stream = handle.value or 0
        _streams[number, device] = stream
        return stream

    def __init__(self, device: int | None = None, *, is_default: bool = False) -> None:
        pass

    def wait_stream(self, other: Stream) -> None:
        event = c_void_p()
        with on_device(other.device.index):
            hip("hipEventCreate", byref(event))
            hip("hipEventRecord", event, c_void_p(other.cuda_stream))
        with on_device(self.device.index):
            hip("hipStreamWaitEvent", c_void_p(self.cuda_stream), event, 0)
        hip("hipEventDestroy", event)

    def synchronize(self) -> None:
        with on_device(self.device.index):
            hip("hipStreamSynchronize", c_void_p(self.cuda_stream))

    def is_capturing(self) -> bool:
        status = c_int()
        with on_device(self.device.index):
            hip("hipStreamIsCapturing", c_void_p(self.cuda_stream), byref(status))
        return status.value == 1


_streams: dict[tuple[int, int], Stream] = {}


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self.pool: object = None


_of_thread = _OfThread()


def current_device() -> int:
    number = c_int()
    hip("hipGetDevice", byref(number))
    return number.value


def _number(device: Any) -> int:
    return device if isinstance(device, int) else torch.device(device).index


@contextlib.contextmanager
def on_device(device: Any) -> Iterator[None]:
    before = current_device()
    hip("hipSetDevice", _number(device))
    try:
        yield
    finally:
        hip("hipSetDevice", before)


def default_stream(device: Any = None) -> Stream:
    number = current_device() if device is None else _number(device)
    return _streams.get((0, number)) or Stream(number, is_default=True)


def current_stream(device: Any = None) -> Stream:
    number = current_device() if device is None else _number(device)
    return _of_thread.streams.get(number) or default_stream(number)


@contextlib.contextmanager
def on_stream(stream: Stream) -> Iterator[None]:
    number = stream.device.index
    before = current_stream(number)
    _of_thread.streams[number] = stream
    try:
        with on_device(number):
            yield
    finally:
        _of_thread.streams[number] = before


def synchronize() -> None:
    hip("hipDeviceSynchronize")


# ---- memory


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    mode = c_int(_MODES["relaxed"])
    hip("hipThreadExchangeStreamCaptureMode", byref(mode))
    try:
        yield
    finally:
        hip("hipThreadExchangeStreamCaptureMode", byref(mode))


class Allocator:
    """Attributes:
    blocks: blocks in use, by their addresses.
    """

    def __init__(self) -> None:
        self.blocks: dict[int, Any] = {}
        self.free: dict[tuple[int, int, object], list[tuple[int, int]]] = {}

    def allocate(self, size: int, device: int) -> Any:
        size = max(1, -(-size // _UNIT)) * _UNIT
        stream = current_stream(device)
        pool = next((graph.pool for graph in _capturing if graph.stream is stream), _of_thread.pool)
        place = device, stream.stream_id, pool
        for found in self.free.get(place, []):
            if found[1] == size:
                self.free[place].remove(found)
                address = found[0]
                break
        else:
            pointer = c_void_p()
            # Like torch, relax the capture mode only for allocations of a captured stream.
            beside_captures = relaxed() if stream.is_capturing() else contextlib.nullcontext()
            with on_device(device), beside_captures:
                hip("hipMalloc", byref(pointer), c_size_t(size))
            address = pointer.value or 0
        block = type("Block", (c_char * size,), {"__del__": lambda block: self._release(block)}).from_address(address)
        block.address, block.size, block.place, block.recorded = address, size, place, set()
        self.blocks[address] = (size, place, block.recorded)
        return block

    def _release(self, block: Any) -> None:
        """Frees a block in the order of its stream, after the work of the recorded streams."""
        device, stream_id, _ = block.place
        del self.blocks[block.address]
        for stream in block.recorded:
            stream.synchronize()
        stream = _streams[stream_id, device]
        if not stream.is_capturing():
            with on_device(device):
                handle = c_void_p(stream.cuda_stream)
                hip("hipMemsetAsync", c_void_p(block.address), 0xFF, c_size_t(block.size), handle)
        self.free.setdefault(block.place, []).append((block.address, block.size))

    def of(self, tensor: torch.Tensor) -> tuple[int, tuple[int, tuple[int, int, object], set[Stream]]]:
        address = tensor.data_ptr()
        return next((a, held) for a, held in self.blocks.items() if a <= address < a + held[0])


allocator = Allocator()


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int), ("device_id", c_int)]


def _lend(tensor: torch.Tensor, device: int) -> torch.Tensor:
    """A tensor on the GPU in the memory of a host tensor."""
    capsule = torch.utils.dlpack.to_dlpack(tensor)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c_void_p, [py_object, c_char_p]
    lent = _DLTensor.from_address(pointer(capsule, b"dltensor"))
    lent.device_type, lent.device_id = _CUDA, device
    return torch._C._from_dlpack(capsule)


_libraries: list[torch.library.Library] = []


def _bytes(tensor: torch.Tensor) -> int:
    """The bytes from the first element to the end of the last."""
    reach = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return reach * tensor.element_size() if tensor.numel() else 0


def _on_gpu(tensor: torch.Tensor, device: int) -> torch.Tensor:
    """A copy in the GPU's memory with the same strides. For a meta tensor, uninitialised memory."""
    block = allocator.allocate(_bytes(tensor), device)
    flat = torch.frombuffer(block, dtype=torch.uint8)[: _bytes(tensor)].view(tensor.dtype)
    own = flat.as_strided(tensor.shape, tensor.stride())
    if not tensor.is_meta:
        current_stream(device).synchronize()  # its work may still use the block that was freed
        own.copy_(tensor)
    return _lend(own, device)


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The GPU's memory as a tensor of the CPU, for as long as that tensor lives."""
    if not tensor.numel():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    memory = (c_char * _bytes(tensor)).from_address(tensor.data_ptr())
    memory.tensor = tensor
    flat = torch.frombuffer(memory, dtype=torch.uint8).view(tensor.dtype)
    return flat.as_strided(tensor.shape, tensor.stride())


def _run(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs an operator on GPUs' tensors on the CPU, after the GPUs' work is done."""
    flat, spec = torch.utils._pytree.tree_flatten((args, kwargs))
    given = [part for part in flat if isinstance(part, torch.Tensor) and part.is_cuda]
    wanted = kwargs.get("device")
    device = _number(wanted) if wanted is not None and torch.device(wanted).type == "cuda" else None
    if operator is torch.ops.aten.record_stream.default:
        allocator.of(args[0])[1][2].add(_streams[args[1].stream_id, args[1].device_index])
        return None
    if operator is torch.ops.aten.zero_.default:  # the only operator that runs in the stream's order
        (filled,) = args
        with on_device(filled.get_device()):
            handle = c_void_p(current_stream().cuda_stream)
            hip("hipMemsetAsync", c_void_p(filled.data_ptr()), 0, c_size_t(filled.nbytes), handle)
        return filled
    if given:
        device = given[0].get_device() if wanted is None else device
        for tensor in given:
            current_stream(tensor.get_device()).synchronize()
    elif device is None:
        device = current_device()
    hosts = {id(tensor): _on_host(tensor) for tensor in given}
    args, kwargs = torch.utils._pytree.tree_unflatten([hosts.get(id(part), part) for part in flat], spec)
    if wanted is not None:
        is_empty = operator.overloadpacket in (torch.ops.aten.empty, torch.ops.aten.empty_strided)
        kwargs = {**kwargs, "device": torch.device("meta" if is_empty else "cpu")}
    result = operator(*args, **kwargs)

    def back(part: Any) -> Any:
        if not isinstance(part, torch.Tensor):
            return part
        for tensor in given:
            host = hosts[id(tensor)]
            if part is host:
                return tensor
            if part.untyped_storage().data_ptr() == host.untyped_storage().data_ptr() and part.numel():
                return _lend(part, tensor.get_device())
        to_host = wanted is not None and torch.device(wanted).type == "cpu"
        return part if to_host else _on_gpu(part, device)

    return torch.utils._pytree.tree_map(back, result)


@contextlib.contextmanager
def use_mem_pool(pool: object) -> Iterator[None]:
    """Stands in for torch.cuda.use_mem_pool: inside, this thread's allocations come from the pool."""
    before, _of_thread.pool = _of_thread.pool, pool
    try:
        yield
    finally:
        _of_thread.pool = before


# ---- graphs

_capturing: list[CUDAGraph] = []


class CUDAGraph:
    """Stands in for torch.cuda.CUDAGraph."""

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
        self.stream, self.pool = current_stream(), pool or object()
        hip("hipStreamBeginCapture", c_void_p(self.stream.cuda_stream), _MODES[capture_error_mode])
        _capturing.append(self)

    def capture_end(self) -> None:
        _capturing.remove(self)
        graph, self._executable = c_void_p(), c_void_p()
        hip("hipStreamEndCapture", c_void_p(self.stream.cuda_stream), byref(graph))
        hip("hipGraphInstantiate", byref(self._executable), graph, None, None, c_size_t(0))
        hip("hipGraphDestroy", graph)

    def replay(self) -> None:
        with on_device(self.stream.device.index):
            hip("hipGraphLaunch", self._executable, c_void_p(current_stream().cuda_stream))


@contextlib.contextmanager
def graph(captured: CUDAGraph, capture_error_mode: str = "global") -> Iterator[None]:
    """Stands in for torch.cuda.graph."""
    synchronize()
    with on_stream(Stream()):
        captured.capture_begin(capture_error_mode=capture_error_mode)
        try:
            yield
        finally:
            captured.capture_end()


def install(root: Path) -> None:
    """Installs the stand-in in this process's torch."""
    global hip
    hip = Hip(root)
    torch.set_num_threads(1)
    everything, aten = (torch.library.Library(name, "IMPL") for name in ("_", "aten"))
    everything.fallback(_run, "CUDA")
    for name in ("copy_", "record_stream", "zero_"):  # torch's implementations of these for CUDA would be called
        operator = getattr(torch.ops.aten, name).default
        aten.impl(name, functools.partial(_run, operator), "CUDA")
    _libraries.extend((everything, aten))
    replaced = {
        "_initialized": True, "CUDAGraph": CUDAGraph, "Stream": Stream, "current_device": current_device,
        "current_stream": current_stream, "default_stream": default_stream, "device": on_device,
        "device_count": lambda: len(DEVICES), "graph": graph, "is_available": lambda: True,
        "is_current_stream_capturing": lambda: current_stream().is_capturing(), "stream": on_stream,
        "synchronize": synchronize, "use_mem_pool": use_mem_pool,
    }  # fmt: skip
    for name, value in replaced.items():
        setattr(torch.cuda, name, value)
    torch._C._cuda_getCurrentRawStream = lambda device: current_stream(device).cuda_stream
