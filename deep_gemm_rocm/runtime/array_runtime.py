"""HIP's functions for device arrays: memory, copies, streams and captures, without torch."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_int, c_size_t, c_uint, c_ulonglong, c_void_p

import torch

from . import hip, session, streams

_KINDS_OF_MEMORY = (2, 3)  # hipMemoryTypeDevice, hipMemoryTypeManaged
TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3  # hipMemcpyKind
_NO_SYNC, _MOVE = 1, 1  # hipUserObjectNoDestructorSync, hipGraphUserObjectMove


class _PointerAttributes(Structure):
    """hipPointerAttribute_t of hip_runtime_api.h."""

    _fields_ = (
        ("type", c_int),
        ("device", c_int),
        ("device_pointer", c_void_p),
        ("host_pointer", c_void_p),
        ("is_managed", c_int),
        ("flags", c_uint),
    )


_PROTOTYPES = {
    "hipGetDevice": [POINTER(c_int)],
    "hipSetDevice": [c_int],
    "hipGetLastError": [],
    "hipPointerGetAttributes": [POINTER(_PointerAttributes), c_void_p],
    "hipMemGetAddressRange": [POINTER(c_void_p), POINTER(c_size_t), c_void_p],
    "hipMalloc": [POINTER(c_void_p), c_size_t],
    "hipFree": [c_void_p],
    "hipMemcpyAsync": [c_void_p, c_void_p, c_size_t, c_int, c_void_p],
    "hipMemsetD8Async": [c_void_p, ctypes.c_ubyte, c_size_t, c_void_p],
    "hipMemsetD16Async": [c_void_p, ctypes.c_ushort, c_size_t, c_void_p],
    "hipMemsetD32Async": [c_void_p, c_int, c_size_t, c_void_p],
    "hipStreamSynchronize": [c_void_p],
    "hipStreamGetDevice": [c_void_p, POINTER(c_int)],
    "hipStreamWaitEvent": [c_void_p, c_void_p, c_uint],
    "hipStreamGetCaptureInfo_v2": [
        c_void_p, POINTER(c_int), POINTER(c_ulonglong), POINTER(c_void_p), c_void_p, c_void_p
    ],
    "hipThreadExchangeStreamCaptureMode": [POINTER(c_int)],
    "hipEventCreateWithFlags": [POINTER(c_void_p), c_uint],
    "hipEventRecord": [c_void_p, c_void_p],
    "hipEventDestroy": [c_void_p],
    "hipUserObjectCreate": [POINTER(c_void_p), c_void_p, c_void_p, c_uint, c_uint],
    "hipGraphRetainUserObject": [c_void_p, c_void_p, c_uint, c_uint],
}  # fmt: skip
_EVENT_WITHOUT_TIME = 2  # hipEventDisableTiming


class Array(torch.Tensor):
    """A tensor in a GPU's memory that torch itself can't access; see ``DeviceTensor``."""


class ArrayRuntime(hip.Runtime, session.Part):
    """The HIP runtime for calls with device arrays. It doesn't use torch, and works on the stream of ``streams``.

    Attributes:
        is_simulated: whether it is the simulated MI300X. Arrays are in the device's memory even then.
    """

    def __init__(self) -> None:
        runtime = hip.runtime()
        self.path, self.is_simulated = runtime.path, runtime.is_simulated
        self._of_tensors = runtime
        self.lib = ctypes.CDLL(str(runtime.path))  # another handle, for other prototypes
        for name, argtypes in _PROTOTYPES.items():
            getattr(self.lib, name).argtypes = argtypes
        self.archs = [device.arch for device in runtime.devices()]
        self._captured = _CapturedByThread()

    def check(self, status: int) -> None:
        if status:
            self.lib.hipGetLastError()  # clears it, or the next call would report it
            self._of_tensors.check(status)

    def check_residence(self, name: str, tensor: torch.Tensor) -> None:
        if isinstance(tensor, Array):
            return
        raise ValueError(
            f"{name} is torch's, on {tensor.device}, but other arguments are arrays in the GPU's memory: pass it "
            "through as_tensor as well"
        )

    def current_stream(self, tensor: torch.Tensor) -> int:
        stream = streams.current()
        if stream > 2:  # HIP's own streams have no device of their own
            device = c_int()
            status = self.lib.hipStreamGetDevice(stream, byref(device))
            self._check_stream(stream, status)
            if device.value != tensor.get_device():
                raise ValueError(f"stream must be of device {tensor.get_device()}, as the arrays, got {device.value}")
        return stream

    def _check_stream(self, stream: int, status: int) -> None:
        if status:
            self.lib.hipGetLastError()
            raise ValueError(f"stream must be one of {self.path} that wasn't destroyed, got {stream:#x}")

    @contextlib.contextmanager
    def on(self, tensor: torch.Tensor) -> Iterator[int]:
        stream = self.current_stream(tensor)
        with self.on_device(tensor.get_device()):
            yield stream

    def relaunch(
        self, launches: Sequence[hip.Launch], tensors: Sequence[torch.Tensor], used: Sequence[Mapping[int, str]]
    ) -> None:
        with self.on(tensors[0]) as stream:
            self.launch_all(launches, stream)

    @contextlib.contextmanager
    def on_device(self, device: int) -> Iterator[None]:
        """Inside, the device is this thread's current one."""
        before = c_int()
        self.check(self.lib.hipGetDevice(byref(before)))
        if before.value == device:
            yield
            return
        self.check(self.lib.hipSetDevice(device))
        try:
            yield
        finally:
            self.check(self.lib.hipSetDevice(before.value))

    def take(self, size: int, device: int) -> int:
        """Allocates memory of a device, and returns its address."""
        address = c_void_p()
        with self.on_device(device), self._beside_captures():
            self.check(self.lib.hipMalloc(byref(address), max(size, 1)))
        assert address.value is not None
        return address.value

    def give_back(self, address: int) -> None:
        """Frees memory after all launched work is done."""
        with self._beside_captures():
            self.lib.hipFree(address)

    def allocate(self, size: int, device: int) -> hip.Memory:
        made = DeviceMemory(self, size, device)
        return hip.Memory(made.address, made)

    def allocate_in_capture(self, size: int, tensor: torch.Tensor) -> hip.Memory:
        stream = self.current_stream(tensor)
        capture = self.capture_of(stream)
        assert capture is not None
        number, kept = self._captured.by_stream.get(stream, (0, None))
        memory = kept() if kept is not None and number == capture[0] else None
        if memory is None or memory.size < size:
            memory = DeviceMemory(self, size, tensor.get_device())
            self._captured.by_stream[stream] = capture[0], weakref.ref(memory)
        return hip.Memory(memory.address, memory)

    def is_capturing(self, device: int | None = None) -> bool:
        return self.capture_of(streams.current()) is not None

    def capture_of(self, stream: int) -> tuple[int, int] | None:
        """The ID of the capture on a stream, and its graph; None if the stream isn't being captured."""
        if stream == 0:  # the null stream can't be captured
            return None
        status, number, graph = c_int(), c_ulonglong(), c_void_p()
        found = self.lib.hipStreamGetCaptureInfo_v2(stream, byref(status), byref(number), byref(graph), None, None)
        self._check_stream(stream, found)
        return (number.value, graph.value or 0) if status.value else None

    def place(self, address: int) -> tuple[int, int]:
        """The device in whose memory an address is, and the bytes from the address to the allocation's end.

        Raises:
            ValueError: the address is not in a gfx942's memory that this runtime knows.
        """
        attributes = _PointerAttributes()
        status = self.lib.hipPointerGetAttributes(byref(attributes), address)
        if status or attributes.type not in _KINDS_OF_MEMORY:
            self.lib.hipGetLastError()
            raise ValueError(
                f"array must be in memory of a GPU that {self.path} knows, got address {address:#x}, which is not. "
                "Allocate it with hipMalloc of this library"
            )
        arch = self.archs[attributes.device]
        if arch != hip.ARCH:
            raise ValueError(f"array must be in memory of a {hip.ARCH}, got device {attributes.device}, a {arch}")
        begin, size = c_void_p(), c_size_t()
        self.check(self.lib.hipMemGetAddressRange(byref(begin), byref(size), address))
        return attributes.device, (begin.value or 0) + size.value - address

    def wait_for(self, other: int, stream: int) -> None:
        """Makes a stream wait for the work that is now in another one."""
        event = c_void_p()
        self.check(self.lib.hipEventCreateWithFlags(byref(event), _EVENT_WITHOUT_TIME))
        try:
            self.check(self.lib.hipEventRecord(event, other))
            self.check(self.lib.hipStreamWaitEvent(stream, event, 0))
        finally:
            self.lib.hipEventDestroy(event)

    def copy(self, to: int, source: int, size: int, kind: int, tensor: torch.Tensor) -> None:
        """Copies on the current stream. Copies from and to the host wait for it."""
        stream = self.current_stream(tensor)
        if kind != ON_DEVICE and self.capture_of(stream):
            raise RuntimeError("a copy to or from the host waits for the stream, which can't be while it is captured")
        if size == 0:
            return
        with self.on(tensor):
            self.check(self.lib.hipMemcpyAsync(to, source, size, kind, stream))
            if kind != ON_DEVICE:
                self.check(self.lib.hipStreamSynchronize(stream))


def array_runtime() -> ArrayRuntime:
    """The session's, of the same library as ``hip.runtime()``."""
    hip.runtime()  # before ``of``, which can't choose a runtime while it makes the part
    return session.current().of(ArrayRuntime)


class DeviceMemory:
    """Device memory that is freed when neither a Python object nor a graph uses it any more."""

    def __init__(self, runtime: ArrayRuntime, size: int, device: int) -> None:
        _gone.clear()
        self._runtime = runtime
        self.size = size
        self.address = runtime.take(size, device)
        weakref.finalize(self, runtime.give_back, self.address).atexit = False
        capture = runtime.capture_of(streams.current())
        if capture is not None:
            self._keep_with(capture[1])

    def _keep_with(self, graph: int) -> None:
        handle, check, lib = c_void_p(), self._runtime.check, self._runtime.lib
        check(lib.hipUserObjectCreate(byref(handle), self.address, _graph_is_gone, 1, _NO_SYNC))
        _kept_by_graphs[self.address] = self
        check(lib.hipGraphRetainUserObject(graph, handle, 1, _MOVE))


_kept_by_graphs: dict[int, DeviceMemory] = {}
_gone: deque[DeviceMemory] = deque()  # to be freed later, since a graph's destructor may not call HIP


def _drop(address: int) -> None:
    _gone.append(_kept_by_graphs.pop(address))


_graph_is_gone = CFUNCTYPE(None, c_void_p)(_drop)


class _CapturedByThread(threading.local):
    """By stream: the ID of a capture, and the scratch memory that this thread's launches in it share.

    The graph keeps the memory alive.
    """

    def __init__(self) -> None:
        self.by_stream: dict[int, tuple[int, weakref.ref[DeviceMemory]]] = {}
