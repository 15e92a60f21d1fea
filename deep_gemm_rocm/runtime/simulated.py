"""The simulated MI300X as a HIP runtime."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path

import torch

from .. import forking
from ..checks import check_storage
from .rocm import Graph, Launch, Memory, Runtime

OWN_FUNCTION = "dgSimLastMessage"  # only the simulator's library has it

_NON_BLOCKING = 1  # hipStreamNonBlocking: the default stream doesn't wait for it
_THREAD_LOCAL_CAPTURE = 1  # hipStreamCaptureModeThreadLocal
_READ_ONLY = 8  # hipHostRegisterReadOnly

# On hardware, torch calls these.
_GRAPH_PROTOTYPES = {
    "hipStreamCreateWithFlags": [POINTER(c_void_p), c_uint],
    "hipStreamDestroy": [c_void_p],
    "hipStreamBeginCapture": [c_void_p, c_int],
    "hipStreamEndCapture": [c_void_p, POINTER(c_void_p)],
    "hipGraphInstantiate": [POINTER(c_void_p), c_void_p, c_void_p, c_void_p, c_size_t],
    "hipGraphLaunch": [c_void_p, c_void_p],
    "hipGraphDestroy": [c_void_p],
    "hipGraphExecDestroy": [c_void_p],
}


class SimulatedRuntime(Runtime):
    """The simulated MI300X. Kernels work on CPU tensors and on the default stream.

    A kernel may access only memory that the runtime knows. The memory of CPU tensors is registered just for the time of
    a launch, so that no registration outlives its tensor. Launches of several threads take turns, since they may work
    on the same tensor; each uses all cores of the host.
    """

    is_simulated = True
    tensor_device = "cpu"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        for name, argtypes in _GRAPH_PROTOTYPES.items():
            getattr(self.lib, name).argtypes = argtypes
        self._last_message = getattr(self.lib, OWN_FUNCTION)
        self._last_message.restype = c_char_p
        self._turn = forking.Lock()
        self._graph: ContextVar[_SimulatedGraph | None] = ContextVar("graph", default=None)

    def _explain(self, status: int) -> str:
        return self._last_message().decode() or super()._explain(status)

    def check_residence(self, name: str, tensor: torch.Tensor) -> None:
        if tensor.device.type != self.tensor_device:
            raise ValueError(
                f"{name} is on {tensor.device}, but kernels run on the simulated MI300X: expected a tensor on the CPU. "
                "Move it with .cpu(), or set DG_DEVICE=hip to run kernels on a real one."
            )

    def current_stream(self, tensor: torch.Tensor) -> int:
        return 0

    def check_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            if not tensor.is_cpu:
                self.check_residence(name, tensor)

    def launching(self, **tensors: torch.Tensor) -> AbstractContextManager[int]:
        self.check_tensors(tensors)
        return self._launching(list(tensors.items()))

    @contextlib.contextmanager
    def _launching(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> Iterator[int]:
        if graph := self._graph.get():
            graph.tensors += tensors
            yield graph.stream
            return
        with self.running(tensors):
            yield 0

    @contextlib.contextmanager
    def running(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[None]:
        """Inside, launches on the default stream may access ``tensors``; they have ended when the context ends."""
        ranges = {_storage_range(name, tensor) for name, tensor in tensors if tensor.numel()}

        def unregister() -> None:
            for begin, _ in ranges:
                self.lib.hipHostUnregister(begin)  # fails harmlessly if the other thread had not registered it yet

        with self._turn, forking.undone_in_child(unregister), contextlib.ExitStack() as registered:
            for begin, size in ranges:
                # Registering for writing fails for weights that are mapped from a read-only file.
                if self.lib.hipHostRegister(begin, size, 0):
                    self.check(self.lib.hipHostRegister(begin, size, _READ_ONLY))
                registered.callback(self.lib.hipHostUnregister, begin)
            yield
            self.check(self.lib.hipStreamSynchronize(None))

    def relaunch(
        self, launches: Sequence[Launch], tensors: Sequence[torch.Tensor], used: Sequence[Mapping[int, str]]
    ) -> None:
        for launch, names in zip(launches, used, strict=True):
            with self._launching([(name, tensors[index]) for index, name in names.items()]) as stream:
                self.launch_all([launch], stream)

    def allocate(self, size: int, device: int) -> Memory:
        return Memory((allocated := _Allocated(self, size)).address, allocated)

    def allocate_in_capture(self, size: int, tensor: torch.Tensor) -> Memory:
        graph = self._graph.get()
        assert graph is not None
        if graph.scratch is None or graph.scratch.size < size:
            graph.scratch = _Allocated(self, size)
            graph.kept.append(graph.scratch)
        return Memory(graph.scratch.address, graph.scratch)

    def is_capturing(self, device: int | None = None) -> bool:
        return self._graph.get() is not None

    @contextlib.contextmanager
    def capture(self) -> Iterator[Graph]:
        graph = _SimulatedGraph(self)
        token = self._graph.set(graph)
        try:
            with graph.captured():
                yield graph
        finally:
            self._graph.reset(token)


class _Allocated:
    """Memory of the simulated device. Unlike in CPU tensors, the sanitizer finds reads of uninitialised bytes in it."""

    def __init__(self, runtime: SimulatedRuntime, size: int) -> None:
        self._runtime = runtime
        self.size = size
        address = c_void_p()
        with runtime._beside_captures():
            runtime.check(runtime.lib.hipMalloc(byref(address), c_size_t(size)))
        self.address = address.value or 0

    def __del__(self) -> None:
        if hasattr(self, "address"):
            with self._runtime._beside_captures():
                self._runtime.lib.hipFree(c_void_p(self.address))


class _SimulatedGraph:
    """A graph of the simulator. It keeps the tensors and the memory that its kernels work on."""

    def __init__(self, runtime: SimulatedRuntime) -> None:
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.scratch: _Allocated | None = None
        self.kept: list[_Allocated] = []
        self.stream = 0
        self._runtime = runtime
        self._executable = c_void_p()

    @contextlib.contextmanager
    def captured(self) -> Iterator[None]:
        check, lib = self._runtime.check, self._runtime.lib
        stream, graph = c_void_p(), c_void_p()
        check(lib.hipStreamCreateWithFlags(byref(stream), _NON_BLOCKING))
        try:
            check(lib.hipStreamBeginCapture(stream, _THREAD_LOCAL_CAPTURE))
            self.stream = stream.value or 0
            try:
                yield
            finally:
                status = lib.hipStreamEndCapture(stream, byref(graph))
            check(status)
            check(lib.hipGraphInstantiate(byref(self._executable), graph, None, None, 0))
        finally:
            lib.hipGraphDestroy(graph)
            lib.hipStreamDestroy(stream)

    def replay(self) -> None:
        with self._runtime.running(self.tensors):
            self._runtime.check(self._runtime.lib.hipGraphLaunch(self._executable, None))

    def __del__(self) -> None:
        if self._executable:
            self._runtime.lib.hipGraphExecDestroy(self._executable)


def _storage_range(name: str, tensor: torch.Tensor) -> tuple[int, int]:
    """Address and size of the tensor's storage. A kernel may access all of it, like one allocation on hardware."""
    check_storage(name, tensor)
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()
