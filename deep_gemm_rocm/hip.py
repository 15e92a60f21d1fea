"""The HIP runtime of this process: found, checked, and reached through ctypes.

The runtime is AMD's, with a gfx942 device, or the simulated MI300X, which implements the same functions. This is the
only module that knows which of the two it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from contextvars import ContextVar
from ctypes import POINTER, byref, c_char, c_char_p, c_float, c_int, c_size_t, c_uint, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from . import forking, planning, simulator
from .checks import check_storage

ARCH = "gfx942"

_LIBRARY = "libamdhip64.so"
_NON_BLOCKING = 1  # hipStreamNonBlocking: the default stream doesn't wait for it
_THREAD_LOCAL_CAPTURE = 1  # hipStreamCaptureModeThreadLocal
_NUMBER_OF_XCCS = 10018  # hipDeviceAttributeNumberOfXccs, of ROCm 7
# MI300X and MI300A, MI308X; of the whole chip, or of a partition (data sheets: 8 · 38, 6 · 38, 4 · 20).
_CUS_OF_XCD = (38, 20)
_RELAXED_CAPTURE = 2  # hipStreamCaptureModeRelaxed
_READ_ONLY = 8  # hipHostRegisterReadOnly
_NOT_READY = 600  # hipErrorNotReady
_SIMULATORS_OWN_FUNCTION = "dgSimLastMessage"


class HipError(RuntimeError):
    """A HIP function failed.

    Attributes:
        status: its hipError_t.
    """

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


class NoDeviceError(RuntimeError):
    """This process has no HIP runtime with a gfx942 device; the message says what was looked at and what to do."""


@dataclass(frozen=True)
class Device:
    """What ``hipGetDeviceProperties`` and ``hipDeviceGetAttribute`` say of one device."""

    name: str
    arch: str
    compute_units: int
    xcds: int
    memory_bytes: int
    lds_bytes: int
    clock_khz: int


class _DeviceProperties(ctypes.Structure):
    """hipDeviceProp_tR0600 of hip_runtime_api.h: the fields used here at their offsets, in its 1472 bytes."""

    _fields_ = [
        ("name", c_char * 256),
        ("_uuid_to_luid", c_char * 32),
        ("total_global_mem", c_size_t),
        ("shared_mem_per_block", c_size_t),
        ("_regs_per_block_to_max_grid_size", c_char * 44),
        ("clock_rate", c_int),
        ("_total_const_mem_to_device_overlap", c_char * 36),
        ("multi_processor_count", c_int),
        ("_kernel_exec_timeout_to_hip_reserved", c_char * 768),
        ("gcn_arch_name", c_char * 256),
        ("_rest", c_char * 56),
    ]


assert (_DeviceProperties.gcn_arch_name.offset, ctypes.sizeof(_DeviceProperties)) == (1160, 1472)

_PROTOTYPES = {
    "hipGetDeviceCount": [POINTER(c_int)],
    "hipGetDevicePropertiesR0600": [POINTER(_DeviceProperties), c_int],
    "hipDeviceGetAttribute": [POINTER(c_int), c_int, c_int],
    "hipGetLastError": [],
    "hipRuntimeGetVersion": [POINTER(c_int)],
    "hipHostRegister": [c_void_p, c_size_t, c_uint],
    "hipHostUnregister": [c_void_p],
    "hipStreamSynchronize": [c_void_p],
    "hipThreadExchangeStreamCaptureMode": [POINTER(c_int)],
    "hipEventCreate": [POINTER(c_void_p)],
    "hipEventDestroy": [c_void_p],
    "hipEventRecord": [c_void_p, c_void_p],
    "hipEventQuery": [c_void_p],
    "hipEventSynchronize": [c_void_p],
    "hipEventElapsedTime": [POINTER(c_float), c_void_p, c_void_p],
}

# What torch does on hardware.
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


@dataclass(frozen=True)
class Memory:
    """Memory of a device, for as long as somebody keeps this."""

    address: int
    holder: object


# A kernel's entry point, and its arguments' structure, which it is called with together with a stream's handle.
Launch = tuple[Callable[[bytes, int], int], bytes]


class Runtime:
    """AMD's HIP runtime. Kernels work on tensors in the GPU's memory and on torch's current stream.

    Attributes:
        path: the library.
        lib: the library, for functions that have no method here; they return a status for ``check``.
        tensor_device: the type of the torch device on which kernels' tensors must be.
    """

    is_simulated = False
    tensor_device = "cuda"

    def __init__(self, path: Path) -> None:
        """Opens the library for this module alone; see ``make_global``.

        Raises:
            OSError: it can't be opened.
            AttributeError: it lacks a function, so it is of a HIP older than 6 and knows no gfx942.
        """
        self.path = path
        self.lib = ctypes.CDLL(str(path))
        for name, argtypes in _PROTOTYPES.items():
            getattr(self.lib, name).argtypes = argtypes
        for name in ("hipGetErrorName", "hipGetErrorString"):
            function = getattr(self.lib, name)
            function.argtypes, function.restype = [c_int], c_char_p

    def make_global(self) -> None:
        """Lets kernels, whose libraries name no HIP library, bind to this one.

        Raises:
            NoDeviceError: they would bind to another one.
        """
        ctypes.CDLL(str(self.path), mode=ctypes.RTLD_GLOBAL)
        bound, own = (_address(lib.hipLaunchKernel) for lib in (ctypes.CDLL(None), self.lib))
        if bound != own:
            raise NoDeviceError(
                f"kernels would call another HIP runtime than {self.path}, for one was loaded into this process with "
                "its names global. Start a process without it (a torch without ROCm, no LD_PRELOAD)."
            )

    @property
    def version(self) -> str:
        """HIP's version, as in ``6.3.42131``."""
        version = c_int()
        self.check(self.lib.hipRuntimeGetVersion(byref(version)))
        return f"{version.value // 10_000_000}.{version.value // 100_000 % 100}.{version.value % 100_000}"

    def devices(self) -> list[Device]:
        """The devices that this process sees."""
        count = c_int()
        self.check(self.lib.hipGetDeviceCount(byref(count)))
        return [self._device(index) for index in range(count.value)]

    def describe(self) -> str:
        """The device that kernels run on, and plainly whether it is a real one."""
        device = next(device for device in self.devices() if device.arch == ARCH)
        return f"{device.name}, {'executed by this CPU' if self.is_simulated else 'real'}"

    def _device(self, index: int) -> Device:
        found = _DeviceProperties()
        self.check(self.lib.hipGetDevicePropertiesR0600(byref(found), index))
        return Device(
            name=found.name.decode(),
            arch=found.gcn_arch_name.decode().partition(":")[0],
            compute_units=found.multi_processor_count,
            xcds=self._xcds(index, found.multi_processor_count),
            memory_bytes=found.total_global_mem,
            lds_bytes=found.shared_mem_per_block,
            clock_khz=found.clock_rate,
        )

    def _xcds(self, index: int, compute_units: int) -> int:
        """The device's number of XCDs; before ROCm 7, which has no query for it, by the number of its CUs."""
        count = c_int()
        if self.lib.hipDeviceGetAttribute(byref(count), _NUMBER_OF_XCCS, index) == 0 and count.value > 0:
            return count.value
        self.lib.hipGetLastError()  # else torch would report the unknown attribute after its next launch
        return next((compute_units // cus for cus in _CUS_OF_XCD if compute_units % cus == 0), 1)

    def check(self, status: int) -> None:
        """Does nothing for hipSuccess.

        Raises:
            HipError: for any other status, with its name and what the runtime has to say.
        """
        if status:
            raise HipError(status, f"{self.lib.hipGetErrorName(status).decode()}: {self._explain(status)}")

    def _explain(self, status: int) -> str:
        text: bytes = self.lib.hipGetErrorString(status)
        return text.decode()

    @forking.cached_property
    def _archs(self) -> list[str]:
        """The devices' architectures; torch's numbers of devices are HIP's."""
        return [device.arch for device in self.devices()]

    def check_residence(self, name: str, tensor: torch.Tensor) -> None:
        """
        Raises:
            ValueError: kernels of this runtime can't reach the tensor, or its GPU isn't one that they are for; ``name``
                says which argument it is.
        """
        if tensor.device.type != self.tensor_device:
            raise ValueError(
                f"{name} is on {tensor.device}, but kernels run on the GPU: expected a tensor on cuda. Move it with "
                ".cuda(), or set DG_DEVICE=sim to run kernels on the simulated MI300X."
            )
        arch = self._archs[tensor.get_device()]
        if arch != ARCH:
            able = " or ".join(f"cuda:{index}" for index, other in enumerate(self._archs) if other == ARCH)
            raise ValueError(
                f"{name} is on {tensor.device}, a {arch}, but kernels are for {ARCH}: expected a tensor on {able}. "
                "Move it with .to()."
            )

    def current_stream(self, tensor: torch.Tensor) -> int:
        """The handle of the stream on which torch works on the tensor's device."""
        return torch.cuda.current_stream(tensor.device).cuda_stream

    def launching(self, **tensors: torch.Tensor) -> AbstractContextManager[int]:
        """For the time of one launch that works on ``tensors``; gives the handle of the stream to launch on.

        Raises:
            ValueError: one of them is where kernels can't reach it, see ``check_residence``; or they are on
                different devices.
        """
        first, device = next((name, tensor.device) for name, tensor in tensors.items())
        for name, tensor in tensors.items():
            self.check_residence(name, tensor)
            if tensor.device != device:
                raise ValueError(
                    f"{name} is on {tensor.device}, but {first} is on {device}: expected all tensors of a call on one "
                    "device. Move them with .to()."
                )
        stream = torch.cuda.current_stream(device).cuda_stream
        return contextlib.nullcontext(stream) if device.index == torch.cuda.current_device() else _on(device, stream)

    def relaunch(self, launch: Launch, tensors: Sequence[torch.Tensor], used: Mapping[int, str]) -> None:
        """Launches a kernel within what ``launching`` gives for all that it works on.

        Args:
            used: places in ``tensors`` of what it works on, and its names; that is on the same device, as was other
                tensors' for which ``launching`` was called before.
        """
        device = tensors[0].get_device()
        stream = torch.cuda.current_stream(device).cuda_stream
        if device == torch.cuda.current_device():
            self.launch(launch, stream)
        else:
            with torch.cuda.device(device):
                self.launch(launch, stream)

    def launch(self, launch: Launch, stream: int) -> None:
        """
        Raises:
            HipError: the launch failed.
        """
        entry_point, arguments = launch
        status = entry_point(arguments, stream)
        if status:
            self.check(status)

    def allocate(self, size: int, device: int) -> Memory:
        """Memory for this thread's current stream on a device, whose number is as in torch.

        It is torch's, so that freeing it waits for nothing, but belongs to no pool: this thread may be allocating from
        a graph's, and what is kept must not come from there. Captures of any thread go on.

        Raises:
            torch.OutOfMemoryError: there isn't as much.
        """
        stream = torch.cuda.current_stream(device)
        with ThreadPoolExecutor(1) as other:  # pools are threads', or streams' other than the default one
            tensor = other.submit(self._empty, size, device).result()
        stream.wait_stream(torch.cuda.default_stream(device))
        tensor.record_stream(stream)
        return Memory(tensor.data_ptr(), tensor)

    def _empty(self, size: int, device: int) -> torch.Tensor:
        with self._beside_captures():
            return torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", device))

    @contextlib.contextmanager
    def _beside_captures(self) -> Iterator[None]:
        """This thread may allocate and free while others capture in the mode that forbids it to all."""
        mode = c_int(_RELAXED_CAPTURE)
        self.check(self.lib.hipThreadExchangeStreamCaptureMode(byref(mode)))
        try:
            yield
        finally:
            self.lib.hipThreadExchangeStreamCaptureMode(byref(mode))

    def is_capturing(self, device: int | None = None) -> bool:
        """Whether what this thread launches on a device, the current one if None, is captured instead of being run."""
        if device is None or device == torch.cuda.current_device():
            return torch.cuda.is_current_stream_capturing()
        with torch.cuda.device(device):
            return torch.cuda.is_current_stream_capturing()

    @contextlib.contextmanager
    def capture(self) -> Iterator[Graph]:
        """Captures what this thread launches inside of it into a graph, which can be replayed afterwards.

        On hardware this is torch's ``CUDAGraph``, on a stream of its own of the current device. Unlike
        ``torch.cuda.graph``, which waits for the device, it leaves other threads' captures alone.
        """
        graph, before, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(), torch.cuda.Stream()
        stream.wait_stream(before)
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                yield graph
            finally:
                graph.capture_end()
        before.wait_stream(stream)


class SimulatedRuntime(Runtime):
    """The simulated MI300X. Kernels work on CPU tensors and on the default stream.

    A kernel may touch only memory that the runtime knows. A CPU tensor's is registered for the time of a launch: so it
    is never stale, whatever happens to the tensor, its storage or its neighbours in between. Launches take turns,
    for two of them may work on the same tensor; each has all cores of the host to itself.
    """

    is_simulated = True
    tensor_device = "cpu"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        for name, argtypes in _GRAPH_PROTOTYPES.items():
            getattr(self.lib, name).argtypes = argtypes
        self._last_message = getattr(self.lib, _SIMULATORS_OWN_FUNCTION)
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

    def launching(self, **tensors: torch.Tensor) -> AbstractContextManager[int]:
        return self._launching(list(tensors.items()))

    @contextlib.contextmanager
    def _launching(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> Iterator[int]:
        for name, tensor in tensors:
            self.check_residence(name, tensor)
        if graph := self._graph.get():
            graph.tensors += tensors
            yield graph.stream
            return
        with self.running(tensors):
            yield 0

    @contextlib.contextmanager
    def running(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[None]:
        """What is launched on the default stream inside of it may touch ``tensors``, and has ended behind it."""
        ranges = {_storage_range(name, tensor) for name, tensor in tensors if tensor.numel()}

        def unregister() -> None:
            for begin, _ in ranges:
                self.lib.hipHostUnregister(begin)  # fails where the other thread had not got so far

        with self._turn, forking.undone_in_child(unregister), contextlib.ExitStack() as registered:
            for begin, size in ranges:
                # Weights may be mapped from a file that can't be written.
                if self.lib.hipHostRegister(begin, size, 0):
                    self.check(self.lib.hipHostRegister(begin, size, _READ_ONLY))
                registered.callback(self.lib.hipHostUnregister, begin)
            yield
            self.check(self.lib.hipStreamSynchronize(None))

    def relaunch(self, launch: Launch, tensors: Sequence[torch.Tensor], used: Mapping[int, str]) -> None:
        with self._launching([(name, tensors[index]) for index, name in used.items()]) as stream:
            self.launch(launch, stream)

    def allocate(self, size: int, device: int) -> Memory:
        return Memory((allocated := _Allocated(self, size)).address, allocated)

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
    """Memory of the simulated device: of what a tensor's memory holds, the sanitizer doesn't know what was written."""

    def __init__(self, runtime: SimulatedRuntime, size: int) -> None:
        self._runtime = runtime
        address = c_void_p()
        with runtime._beside_captures():
            runtime.check(runtime.lib.hipMalloc(byref(address), c_size_t(size)))
        self.address = address.value or 0

    def __del__(self) -> None:
        if hasattr(self, "address"):
            with self._runtime._beside_captures():
                self._runtime.lib.hipFree(c_void_p(self.address))


class Graph(Protocol):
    """Captured launches."""

    def replay(self) -> None:
        """Runs them again, on the same tensors, whatever these hold by now."""


class _SimulatedGraph:
    """A graph of the simulator. It keeps the tensors that its kernels work on."""

    def __init__(self, runtime: SimulatedRuntime) -> None:
        self.tensors: list[tuple[str, torch.Tensor]] = []
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


class _PlanningRuntime(Runtime):
    """Stands in for the runtime while calls are planned: tensors have no memory, and nothing is launched."""

    tensor_device = "meta"

    def __init__(self, runtime: Runtime) -> None:
        self.path, self.lib = runtime.path, runtime.lib

    def check_residence(self, name: str, tensor: torch.Tensor) -> None:
        if not tensor.is_meta:
            raise ValueError(f"{name} is on {tensor.device}, but calls are planned with tensors of the meta device")

    def current_stream(self, tensor: torch.Tensor) -> int:
        return 0

    def launching(self, **tensors: torch.Tensor) -> AbstractContextManager[int]:
        return contextlib.nullcontext(0)


class Event:
    """A point in a stream's work.

    On hardware the time between two of them is measured; in simulation it is the simulated device's.
    """

    def __init__(self) -> None:
        self._runtime = runtime()
        self._handle = c_void_p()
        self._runtime.check(self._runtime.lib.hipEventCreate(byref(self._handle)))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._runtime.lib.hipEventDestroy(self._handle)

    def record(self, stream: int = 0) -> None:
        """Marks the point that the stream's work has reached; ``stream`` is a handle as ``current_stream`` gives it."""
        self._runtime.check(self._runtime.lib.hipEventRecord(self._handle, stream))

    def is_reached(self) -> bool:
        """Whether all work before the recorded point is done."""
        status = self._runtime.lib.hipEventQuery(self._handle)
        if status == _NOT_READY:
            return False
        self._runtime.check(status)
        return True

    def synchronize(self) -> None:
        """Waits until all work before the recorded point is done."""
        self._runtime.check(self._runtime.lib.hipEventSynchronize(self._handle))

    def milliseconds_since(self, start: Event) -> float:
        """The device's time from ``start`` to this event; both must be recorded and reached."""
        milliseconds = c_float()
        self._runtime.check(self._runtime.lib.hipEventElapsedTime(byref(milliseconds), start._handle, self._handle))
        return milliseconds.value


_runtime: Runtime | None = None
_finding = forking.Lock()


def runtime() -> Runtime:
    """The HIP runtime of this process, chosen on the first call; while calls are planned, one without memory.

    A real one counts only if it shows a gfx942 device: the copy that is already in this process, for two would crash
    it, or else the one in ``LD_LIBRARY_PATH``, ``ROCM_PATH`` or ``/opt/rocm``. Without one, the simulated MI300X.
    ``DG_DEVICE=hip`` and ``DG_DEVICE=sim`` force the choice.

    Raises:
        NoDeviceError: there is none, or not what ``DG_DEVICE`` asks for.
    """
    global _runtime
    if _runtime is None:
        with _finding:
            if _runtime is None:
                found = _find(os.environ.get("DG_DEVICE") or None)
                found.make_global()
                _runtime = found
    return _runtime if planning.current() is None else _PlanningRuntime(_runtime)


def _find(wanted: str | None) -> Runtime:
    if wanted not in (None, "hip", "sim"):
        raise NoDeviceError(f"DG_DEVICE must be hip or sim, not {wanted!r}")
    looked_at = []
    if wanted != "sim":
        for path in _mapped() or _installed():
            try:
                return _real(path)
            except _PassedOverError as reason:
                looked_at.append(f"{path}: {reason}")
    found = "; ".join(looked_at) or f"no {_LIBRARY} in this process, LD_LIBRARY_PATH, ROCM_PATH or /opt/rocm"
    if wanted == "hip":
        raise NoDeviceError(f"DG_DEVICE=hip, but there is no HIP runtime with a {ARCH} device ({found})")
    try:
        return SimulatedRuntime(simulator.library_path())
    except FileNotFoundError as error:
        raise NoDeviceError(f"there is no HIP runtime with a {ARCH} device ({found}), and {error}") from error


class _PassedOverError(Exception):
    """Why a runtime doesn't count as a real one."""


def _real(path: Path) -> Runtime:
    try:
        found = Runtime(path)
        archs = [device.arch for device in found.devices()]
    except OSError as error:
        raise _PassedOverError(f"can't be opened ({error})") from error
    except AttributeError as error:
        raise _PassedOverError(f"is too old for {ARCH}, HIP 6 is needed ({error})") from error
    except HipError as error:
        raise _PassedOverError(str(error)) from error
    if hasattr(found.lib, _SIMULATORS_OWN_FUNCTION):
        raise _PassedOverError("is the simulated MI300X")
    if ARCH not in archs:
        raise _PassedOverError(f"shows {', '.join(archs) or 'no device'}, and no {ARCH}")
    return found


def _mapped() -> list[Path]:
    """Copies of the runtime that are in this process already, as the one that torch's ROCm wheels bring."""
    fields = (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines())
    paths = (Path(field[5]) for field in fields if len(field) == 6)
    return list(dict.fromkeys(path for path in paths if path.name.startswith(_LIBRARY)))


def _installed() -> list[Path]:
    rocm = [Path(root, "lib") for root in (os.environ.get("ROCM_PATH"), "/opt/rocm") if root]
    folders = [*map(Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))), *rocm]
    found = (min(folder.glob(f"{_LIBRARY}*"), default=None) for folder in folders)  # the plain name, if it is there
    return list(dict.fromkeys(path.resolve() for path in found if path))


def _storage_range(name: str, tensor: torch.Tensor) -> tuple[int, int]:
    """Address and size of the tensor's storage: all that a kernel may touch, as on hardware, where it is one block."""
    check_storage(name, tensor)
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


@contextlib.contextmanager
def _on(device: torch.device, stream: int) -> Iterator[int]:
    with torch.cuda.device(device):
        yield stream


def _address(function: object) -> int | None:
    return ctypes.cast(function, c_void_p).value  # type: ignore[arg-type]
