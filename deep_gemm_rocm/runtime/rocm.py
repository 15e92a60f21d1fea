"""AMD's HIP runtime, reached through ctypes."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from ctypes import POINTER, byref, c_char, c_char_p, c_float, c_int, c_size_t, c_uint, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from .. import forking
from ..checks import check_storage

ARCH = "gfx942"

_NUMBER_OF_XCCS = 10018  # hipDeviceAttributeNumberOfXccs, new in ROCm 7
# MI300X and MI300A have 38, MI308X has 20 (data sheets: 8 · 38, 6 · 38 and 4 · 20), also in partitions.
_CUS_OF_XCD = (38, 20)
_RELAXED_CAPTURE = 2  # hipStreamCaptureModeRelaxed


class HipError(RuntimeError):
    """A HIP function failed.

    Attributes:
        status: its hipError_t.
    """

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)

    def __reduce__(self) -> tuple[type[HipError], tuple[int, str]]:
        # So that one process can tell another: by default the message alone would be passed to __init__.
        return type(self), (self.status, str(self))


class NoDeviceError(RuntimeError):
    """This process has no HIP runtime with a gfx942 device. The message says where it was searched and what to do."""


@dataclass(frozen=True)
class Device:
    """Properties of one device, from ``hipGetDeviceProperties`` and ``hipDeviceGetAttribute``."""

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


@dataclass(frozen=True)
class Memory:
    """Memory of a device, which lives as long as this object."""

    address: int
    holder: object


EntryPoint = Callable[[bytes, int], int]  # takes a kernel's arguments and a stream's handle, and returns a status
Launch = tuple[EntryPoint, bytes]  # the bytes are the kernel's argument structure


class Graph(Protocol):
    """Captured launches."""

    def replay(self) -> None:
        """Runs the launches again, on the current contents of the same tensors."""


class Runtime:
    """AMD's HIP runtime. Kernels work on tensors in the GPU's memory and on torch's current stream.

    Attributes:
        path: the library.
        lib: the library, for functions without a method here. They return a status for ``check``.
        tensor_device: the type of torch device that kernels' tensors must be on.
    """

    is_simulated = False
    tensor_device = "cuda"

    def __init__(self, path: Path) -> None:
        """Opens the library without making its symbols global; see ``make_global``.

        Raises:
            OSError: the library can't be opened.
            AttributeError: the library lacks a function. It is older than HIP 6 and doesn't know gfx942.
        """
        self.path = path
        self.lib = ctypes.CDLL(str(path))
        for name, argtypes in _PROTOTYPES.items():
            getattr(self.lib, name).argtypes = argtypes
        for name in ("hipGetErrorName", "hipGetErrorString"):
            function = getattr(self.lib, name)
            function.argtypes, function.restype = [c_int], c_char_p

    def make_global(self) -> None:
        """Makes kernels' libraries bind to this runtime; they don't name any HIP library themselves.

        Raises:
            NoDeviceError: they would bind to another copy.
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
        """HIP's version, such as ``6.3.42131``."""
        version = c_int()
        self.check(self.lib.hipRuntimeGetVersion(byref(version)))
        return f"{version.value // 10_000_000}.{version.value // 100_000 % 100}.{version.value % 100_000}"

    def devices(self) -> list[Device]:
        """The devices that this process sees."""
        count = c_int()
        self.check(self.lib.hipGetDeviceCount(byref(count)))
        return [self._device(index) for index in range(count.value)]

    def describe(self) -> str:
        """The name of the device that kernels run on, and whether it is a real one."""
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
        """The device's number of XCDs. Before ROCm 7, which added a query for it, it follows from the number of CUs."""
        count = c_int()
        if self.lib.hipDeviceGetAttribute(byref(count), _NUMBER_OF_XCCS, index) == 0 and count.value > 0:
            return count.value
        self.lib.hipGetLastError()  # clears it, or torch would report the unknown attribute after its next launch
        return next((compute_units // cus for cus in _CUS_OF_XCD if compute_units % cus == 0), 1)

    def check(self, status: int) -> None:
        """Raises an error unless ``status`` is hipSuccess.

        Raises:
            HipError: it has the status's name and the runtime's explanation.
        """
        if status:
            raise HipError(status, f"{self.lib.hipGetErrorName(status).decode()}: {self._explain(status)}")

    def _explain(self, status: int) -> str:
        text: bytes = self.lib.hipGetErrorString(status)
        return text.decode()

    @forking.cached_property
    def num_cus(self) -> int:
        """Compute units of the gfx942 device; with several devices, the smallest number."""
        return min(device.compute_units for device in self.devices() if device.arch == ARCH)

    @forking.cached_property
    def num_xcds(self) -> int:
        """XCDs of the gfx942 device, which get workgroups round-robin; with several devices, the smallest number."""
        return min(device.xcds for device in self.devices() if device.arch == ARCH)

    @forking.cached_property
    def _archs(self) -> list[str]:
        """The architectures of the devices, in HIP's order, which is also torch's."""
        return [device.arch for device in self.devices()]

    def check_residence(self, name: str, tensor: torch.Tensor) -> None:
        """
        Raises:
            ValueError: kernels of this runtime can't access the tensor, or its GPU isn't a gfx942. The message names
                the argument ``name``.
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
        # As Triton's launches do: torch.cuda.current_stream would make an object, in several calls of Python functions.
        handle: int = torch._C._cuda_getCurrentRawStream(tensor.get_device())
        return handle

    def on(self, tensor: torch.Tensor) -> AbstractContextManager[int]:
        """Inside, the tensor's device is the current one. Yields the handle of the stream to launch on."""
        stream = self.current_stream(tensor)
        is_current = tensor.get_device() == torch.cuda.current_device()
        return contextlib.nullcontext(stream) if is_current else _on(tensor.device, stream)

    def check_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Checks that one kernel can be launched on tensors, by the names of their arguments.

        Raises:
            ValueError: kernels can't access a tensor, see ``check_residence``, a tensor's memory was freed, or the
                tensors are on different devices.
        """
        first, device = next((name, tensor.device) for name, tensor in tensors.items())
        for name, tensor in tensors.items():
            self.check_residence(name, tensor)
            check_storage(name, tensor)
            if tensor.device != device:
                raise ValueError(
                    f"{name} is on {tensor.device}, but {first} is on {device}: expected all tensors of a call on one "
                    "device. Move them with .to()."
                )

    def launching(self, **tensors: torch.Tensor) -> AbstractContextManager[int]:
        """Inside, one kernel may be launched on ``tensors``. Yields the handle of the stream to launch on.

        Raises:
            ValueError: as ``check_tensors``.
        """
        self.check_tensors(tensors)
        return self.on(next(iter(tensors.values())))

    def relaunch(
        self, launches: Sequence[Launch], tensors: Sequence[torch.Tensor], used: Sequence[Mapping[int, str]]
    ) -> None:
        """Launches kernels on tensors that passed ``check_tensors``, or are similar to such and on the same device.

        Args:
            used: for each launch, the index and name of each of the ``tensors`` that its kernel works on.
        """
        tensor = tensors[0]
        if tensor.get_device() == torch.cuda.current_device():
            self.launch_all(launches, self.current_stream(tensor))
        else:
            with self.on(tensor) as stream:
                self.launch_all(launches, stream)

    def launch_all(self, launches: Sequence[Launch], stream: int) -> None:
        """
        Raises:
            HipError: a launch failed, and those behind it were not launched.
        """
        for entry_point, arguments in launches:
            status = entry_point(arguments, stream)
            if status:
                self.check(status)

    def allocate(self, size: int, device: int) -> Memory:
        """Allocates memory for this thread's current stream on a device, by torch's number of the device.

        Torch allocates it, so that freeing doesn't synchronise. It must not come from a graph's pool, which this thread
        may be allocating from, since scratch memory outlives the graph. Captures of other threads aren't disturbed.

        Raises:
            torch.OutOfMemoryError: there isn't enough memory.
        """
        stream = torch.cuda.current_stream(device)
        with ThreadPoolExecutor(1) as other:  # outside this thread's pool
            tensor = other.submit(self._empty, size, device).result()
        stream.wait_stream(torch.cuda.default_stream(device))
        tensor.record_stream(stream)
        return Memory(tensor.data_ptr(), tensor)

    def _empty(self, size: int, device: int) -> torch.Tensor:
        with self._beside_captures():
            return torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", device))

    @contextlib.contextmanager
    def _beside_captures(self) -> Iterator[None]:
        """Inside, this thread may allocate and free even while another thread captures in global mode."""
        mode = c_int(_RELAXED_CAPTURE)
        self.check(self.lib.hipThreadExchangeStreamCaptureMode(byref(mode)))
        try:
            yield
        finally:
            self.lib.hipThreadExchangeStreamCaptureMode(byref(mode))

    def allocate_in_capture(self, size: int, tensor: torch.Tensor) -> Memory:
        """Memory on the tensor's device for one launch that is being captured; it lives as long as the graph."""
        made = torch.empty(size, dtype=torch.uint8, device=tensor.device)  # from the graph's pool
        return Memory(made.data_ptr(), made)

    def is_capturing(self, device: int | None = None) -> bool:
        """Whether this thread's launches on a device (the current one if None) are captured instead of run."""
        if device is None or device == torch.cuda.current_device():
            return torch.cuda.is_current_stream_capturing()
        with torch.cuda.device(device):
            return torch.cuda.is_current_stream_capturing()

    @contextlib.contextmanager
    def capture(self) -> Iterator[Graph]:
        """Inside, this thread's launches are captured into a graph, which can be replayed afterwards.

        On hardware this is torch's ``CUDAGraph``, on a new stream of the current device. Unlike ``torch.cuda.graph``,
        which synchronises the device, it doesn't disturb other threads' captures.
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


@contextlib.contextmanager
def _on(device: torch.device, stream: int) -> Iterator[int]:
    with torch.cuda.device(device):
        yield stream


def _address(function: object) -> int | None:
    return ctypes.cast(function, c_void_p).value  # type: ignore[arg-type]
