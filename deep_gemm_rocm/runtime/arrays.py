"""Device arrays of hip-python and other libraries, for programs whose torch has no ROCm.

``as_tensor`` makes a ``DeviceTensor`` of an array. All public functions take these like torch's own tensors, and return
new ones in memory from HIP. Torch itself only computes shapes and strides of their views.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, ParamSpec, TypeVar

import torch

from ..checks import is_traced, reach
from . import hip, streams
from .array_protocols import ROCM, capsule_of, describe, interface_of
from .array_runtime import ON_DEVICE, TO_DEVICE, TO_HOST, Array, DeviceMemory, array_runtime

_P = ParamSpec("_P")
_R = TypeVar("_R")


def runtime_of(*tensors: torch.Tensor) -> hip.Runtime:
    """The runtime for calls with these tensors: ``hip.runtime()``, or its ``ArrayRuntime`` if any is a device array."""
    for tensor in tensors:
        if isinstance(tensor, DeviceTensor):
            return array_runtime()
    return hip.runtime()


def is_capturing() -> bool:
    """Whether this thread's launches are captured, on its stream for arrays or on torch's current stream."""
    runtime = hip.runtime()
    if streams.current() and array_runtime().is_capturing():
        return True
    return (runtime.is_simulated or torch.cuda.is_available()) and runtime.is_capturing()


class DeviceTensor(Array):
    """An array in a GPU's memory, which torch itself can't access; made by ``as_tensor``.

    It has a tensor's dtype, shape and strides, and the device ``cuda:<number>``, torch's name for ROCm's devices.
    Supported are:

    - views: indexing with numbers and slices, ``view``, ``reshape`` without a copy, ``T``, ``mT``, ``permute``,
      ``expand`` and so on, and views of another dtype, such as ``view(torch.float8_e4m3fnuz)``;
    - copies: ``cpu()``, ``clone()``, ``contiguous()`` and ``copy_`` from a tensor, on the stream of ``stream``.

    For everything else, ``__dlpack__`` and ``__cuda_array_interface__`` pass it on to CuPy, Numba, hip-python or a
    torch with ROCm.
    """

    _address: int
    _owner: object
    _read_only: bool

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    __dlpack_c_exchange_api__ = None  # torch's needs a storage

    @staticmethod
    def _at(
        address: int,
        shape: Sequence[Any],
        strides: Sequence[Any],
        dtype: torch.dtype,
        device: torch.device,
        owner: object,
        read_only: bool,
    ) -> DeviceTensor:
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            DeviceTensor, tuple(shape), strides=tuple(strides), dtype=dtype, device=device
        )
        made._address, made._owner, made._read_only = address, owner, read_only
        return made

    def data_ptr(self) -> int:
        """The address of the first element."""
        return self._address

    @property
    def is_read_only(self) -> bool:
        """Whether the memory's owner forbids writing."""
        return self._read_only

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return interface_of(self, streams.current(), self._read_only)

    def __dlpack_device__(self) -> tuple[Any, int]:
        return ROCM, self.get_device()

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: Any = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule. The consumer's ``stream`` waits for the current stream of ``streams.stream``."""
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("the array can only be exported where it is, without a copy; see cpu() and clone()")
        runtime, ours = array_runtime(), streams.current()
        theirs = 0 if stream is None else int(stream)
        if theirs != -1 and theirs != ours:
            with runtime.on_device(self.get_device()):
                runtime.wait_for(ours, theirs)
        return capsule_of(self, self._read_only, max_version)

    # Torch's own methods of these names try to make the device current.

    def contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
        return self if self.is_contiguous(memory_format=memory_format) else self.clone(memory_format=memory_format)

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        return _copy(self, source, non_blocking)

    def __getitem__(self, index: Any) -> DeviceTensor:
        whole = _meta(self)
        part = whole[index]
        if part.untyped_storage()._cdata != whole.untyped_storage()._cdata:
            raise TypeError("only numbers, slices, None and ... index an array on the GPU: others would copy it")
        return _view(self, part)

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise TypeError("elements of an array on the GPU can't be set here; copy a tensor into a view with copy_")

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return (
            f"DeviceTensor({self._address:#x}, shape={tuple(self.shape)}, strides={self.stride()}, "
            f"dtype={self.dtype}, device='{self.device}')"
        )

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return self.clone()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("an array on the GPU can't be pickled; pickle its cpu()")

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _VIEWS:
            array, *rest = args
            found = func(_meta(array), *rest, **kwargs)
            return [_view(array, part) for part in found] if isinstance(found, (list, tuple)) else _view(array, found)
        function = _FUNCTIONS.get(func)
        if function is None:
            parts = func.decompose(*args, **kwargs)  # in inference mode, composite operators get here undecomposed
            if parts is not NotImplemented:
                return parts
            raise NotImplementedError(
                f"{func} can't run on arrays from as_tensor: compute on .cpu(), or hand the array on by __dlpack__ or "
                "__cuda_array_interface__"
            )
        return function(*args, **kwargs)


def as_tensor(array: Any, dtype: torch.dtype | None = None, shape: Sequence[int] | None = None) -> DeviceTensor:
    """Makes a tensor for this package's functions from an array in a GPU's memory, without a copy or ROCm's torch.

    Args:
        array: an array of hip-python (as ``hipMalloc`` returns it), CuPy, Numba, JAX or torch with ROCm; any object
            with ``__dlpack__`` or ``__cuda_array_interface__``; or a result of this function. It is in a gfx942's
            memory, and the result keeps it alive. If it names the stream that writes it, the current stream waits for
            that one.
        dtype: reinterprets the bytes, as ``torch.Tensor.view`` does: libraries without FP8 or bf16 hold these as
            ``uint8``. None for the array's dtype.
        shape: shape of the result, as in ``torch.Tensor.view``; None for the array's.

    Returns:
        A ``DeviceTensor``. Calls that take one work on the stream that ``stream`` set, by default the null stream, and
        return new ``DeviceTensor``s.

    Raises:
        TypeError: ``array`` is none of these, or its dtype is unknown and ``dtype`` is None.
        ValueError: it is in the host's memory, or in memory that this process's HIP library doesn't know; it reaches
            beyond its allocation; or ``dtype`` or ``shape`` don't fit.
        hip.NoDeviceError, hip.HipError: there is no device, or HIP failed.
    """
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype, got {type(dtype).__name__}")
    tensor: Any = array if isinstance(array, DeviceTensor) else _taken(array, dtype)
    try:
        if dtype is not None and tensor.dtype != dtype:
            tensor = tensor.view(dtype)
        return tensor if shape is None else tensor.view(tuple(shape))
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"array must have a view of dtype {dtype or tensor.dtype} and shape {shape or tuple(tensor.shape)}, got "
            f"{tensor!r}: {error}"
        ) from error


def _taken(array: Any, dtype: torch.dtype | None) -> DeviceTensor:
    if isinstance(array, torch.Tensor) and not array.is_cuda:
        raise ValueError(
            f"array must be in the GPU's memory, got a torch.Tensor on {array.device}; copy it there, or pass it to "
            "functions as it is, which the simulated MI300X takes"
        )
    runtime = array_runtime()
    stream = streams.current()
    found = describe(array, stream)
    own = found.dtype
    if own is None:
        if dtype is None or dtype.itemsize != found.itemsize:
            raise TypeError(f"dtype must be given for an array of bytes, one of {found.itemsize} bytes, got {dtype}")
        own = dtype
    strides = _contiguous(found.shape) if found.strides is None else found.strides
    if any(stride < 0 for stride in strides):
        raise ValueError(f"array must have strides from 0 on, got {strides}")
    size, device = reach(found.shape, strides) * own.itemsize, 0
    if size:
        device, available = runtime.place(found.address)
        if size > available:
            raise ValueError(
                f"array must lie in its allocation, but needs {size} bytes from {found.address:#x} on, which has "
                f"{available}"
            )
        if found.stream is not None and found.stream != stream:
            with runtime.on_device(device):
                runtime.wait_for(found.stream, stream)
    if found.address % own.itemsize:
        raise ValueError(f"array must begin at a multiple of {own.itemsize} bytes, got {found.address:#x}")
    return DeviceTensor._at(
        found.address, found.shape, strides, own, torch.device("cuda", device), found.owner, found.read_only
    )


def check_writable(name: str, tensor: torch.Tensor | None) -> None:
    """
    Raises:
        ValueError: the tensor is a read-only array.
    """
    if isinstance(tensor, DeviceTensor) and tensor.is_read_only:
        raise ValueError(f"{name} must be writable, got an array that is read-only")


def through_host(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Lets a function that consists of torch's operators take device arrays, by computing on the host.

    Resulting tensors are copied to the device of the first array. Copies in both directions wait for the current
    stream.
    """

    @functools.wraps(function)
    def through(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if is_traced():
            return function(*args, **kwargs)
        given = [part for part in (*args, *kwargs.values()) if isinstance(part, DeviceTensor)]
        if not given:
            return function(*args, **kwargs)

        def host(part: Any) -> Any:
            return part.cpu() if isinstance(part, DeviceTensor) else part

        def on_device(part: Any) -> Any:
            return beside(given[0], part) if isinstance(part, torch.Tensor) else part

        result: Any = function(*map(host, args), **{name: host(part) for name, part in kwargs.items()})
        result = tuple(map(on_device, result)) if isinstance(result, tuple) else on_device(result)
        return result

    return through


def beside(tensor: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
    """Copies the tensor ``host`` to the device of ``tensor``."""
    if not isinstance(tensor, DeviceTensor):
        return host.to(tensor.device)
    return _copy(_new(host.shape, host.dtype, tensor, host.stride()), host)


def _meta(array: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(array.shape, array.stride(), dtype=array.dtype, device="meta")


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of torch's contiguous tensors."""
    below = itertools.accumulate(reversed(shape[1:]), lambda stride, size: stride * max(size, 1), initial=1)
    return tuple(below)[: len(shape)][::-1]


def _view(array: DeviceTensor, form: torch.Tensor) -> DeviceTensor:
    begin = int(form.storage_offset()) * form.itemsize
    if begin + reach(form.shape, form.stride()) * form.itemsize > reach(array.shape, array.stride()) * array.itemsize:
        raise ValueError(f"views must lie in their array, {array!r}, got shape {tuple(form.shape)}, {form.stride()}")
    return DeviceTensor._at(
        array._address + begin, form.shape, form.stride(), form.dtype, array.device, array._owner, array._read_only
    )


def _new(
    shape: Sequence[int], dtype: torch.dtype, beside: DeviceTensor, strides: Sequence[int] | None = None
) -> DeviceTensor:
    strides = _contiguous(shape) if strides is None else strides
    memory = DeviceMemory(array_runtime(), reach(shape, strides) * dtype.itemsize, beside.get_device())
    return DeviceTensor._at(memory.address, shape, strides, dtype, beside.device, memory, False)


# ---- operators of torch


def _new_empty(array: DeviceTensor, size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> DeviceTensor:
    return _new(size, dtype or array.dtype, array)


def _new_empty_strided(
    array: DeviceTensor, size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any
) -> DeviceTensor:
    return _new(size, dtype or array.dtype, array, stride)


def _empty_like(array: DeviceTensor, *, dtype: torch.dtype | None = None, **_: Any) -> DeviceTensor:
    return _new(array.shape, dtype or array.dtype, array)


def _new_full(
    array: DeviceTensor, size: Sequence[int], value: float, *, dtype: torch.dtype | None = None, **_: Any
) -> DeviceTensor:
    return _fill(_new(size, dtype or array.dtype, array), value)


def _fill(array: DeviceTensor, value: float) -> DeviceTensor:
    check_writable("self", array)
    runtime = array_runtime()
    functions = {1: runtime.lib.hipMemsetD8Async, 2: runtime.lib.hipMemsetD16Async, 4: runtime.lib.hipMemsetD32Async}
    if not array.is_contiguous() or array.itemsize not in functions:
        raise NotImplementedError("only contiguous arrays of up to 4 bytes an element can be filled")
    bits = int.from_bytes(bytes(torch.tensor([value], dtype=array.dtype).view(torch.uint8).tolist()), "little")
    if array.numel():
        with runtime.on(array) as stream:
            runtime.check(functions[array.itemsize](array.data_ptr(), bits, array.numel(), stream))
    return array


def _on_host(array: DeviceTensor) -> torch.Tensor:
    """A copy on the host with the same strides."""
    bytes_there = torch.empty(reach(array.shape, array.stride()) * array.itemsize, dtype=torch.uint8)
    runtime = array_runtime()
    runtime.copy(bytes_there.data_ptr(), array.data_ptr(), len(bytes_there), TO_HOST, array)
    if not len(bytes_there):
        return torch.empty(array.shape, dtype=array.dtype)
    return bytes_there.view(array.dtype).as_strided(array.shape, array.stride())


def _to_copy(
    array: DeviceTensor, *, dtype: torch.dtype | None = None, device: torch.device | None = None, **_: Any
) -> torch.Tensor:
    if device is None or torch.device(device).type != "cpu":
        raise NotImplementedError("an array in the GPU's memory can only be copied to the host; convert its .cpu()")
    host = _on_host(array).contiguous()
    return host if dtype is None else host.to(dtype)


def _copy(to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if not isinstance(to, DeviceTensor):
        assert isinstance(source, DeviceTensor)
        return to.copy_(_on_host(source))
    check_writable("self", to)
    runtime, size = array_runtime(), to.numel() * to.itemsize
    if isinstance(source, DeviceTensor):
        forms = [(array.shape, array.stride(), array.dtype, array.device) for array in (to, source)]
        if forms[0] != forms[1] or reach(to.shape, to.stride()) != to.numel():
            raise NotImplementedError("arrays in the GPU's memory can only be copied to dense ones of the same form")
        runtime.copy(to.data_ptr(), source.data_ptr(), size, ON_DEVICE, to)
        return to
    if reach(to.shape, to.stride()) != to.numel():
        raise NotImplementedError("only a dense array in the GPU's memory can be copied into from the host")
    host = torch.empty_strided(to.shape, to.stride(), dtype=to.dtype).copy_(source)
    runtime.copy(to.data_ptr(), host.data_ptr(), size, TO_DEVICE, to)
    return to


def _clone(array: DeviceTensor, *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    if array.is_contiguous():
        return _copy(_new(array.shape, array.dtype, array), array)
    return beside(array, _on_host(array).contiguous())


_aten: Any = torch.ops.aten
_VIEWS = {
    _aten.alias.default, _aten.as_strided.default, _aten.detach.default, _aten.diagonal.default, _aten.expand.default,
    _aten.permute.default, _aten.select.int, _aten.slice.Tensor, _aten.split.Tensor, _aten.split_with_sizes.default,
    _aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims, _aten.t.default, _aten.transpose.int,
    _aten.unbind.int, _aten.unfold.default, _aten.unsqueeze.default, _aten.view.default, _aten.view.dtype,
    _aten._reshape_alias.default, _aten._unsafe_view.default,
}  # fmt: skip
_FUNCTIONS: dict[Any, Callable[..., torch.Tensor]] = {
    _aten.clone.default: _clone,
    _aten.copy_.default: _copy,
    _aten.empty_like.default: _empty_like,
    _aten.fill_.Scalar: _fill,
    _aten.new_empty.default: _new_empty,
    _aten.new_empty_strided.default: _new_empty_strided,
    _aten.new_full.default: _new_full,
    _aten._to_copy.default: _to_copy,
}
