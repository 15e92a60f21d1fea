"""The two protocols by which libraries exchange arrays: DLPack and ``__cuda_array_interface__``."""

from __future__ import annotations

import ctypes
import weakref
from ctypes import (
    POINTER,
    PYFUNCTYPE,
    Structure,
    c_char_p,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    py_object,
)
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

ROCM = 10  # kDLROCM
_ROCM_HOST = 11
_HOSTS = (1, 3, _ROCM_HOST)  # kDLCPU, kDLCUDAHost, kDLROCMHost
_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY
_VERSION = (1, 1)


@dataclass(frozen=True)
class Described:
    """An array in memory.

    Attributes:
        strides: in elements; None if the array is contiguous.
        dtype: None if the protocol only tells ``itemsize``, the bytes of an element.
        stream: the handle of a stream that must be waited for, since it writes the array; else None.
        owner: the object that keeps the memory alive.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: torch.dtype | None
    itemsize: int
    read_only: bool
    stream: int | None
    owner: object


def describe(array: Any, stream: int) -> Described:
    """Asks an array for its address and form.

    Args:
        stream: the handle of the stream that will use the array. With DLPack, the exporter makes it wait for others.

    Raises:
        TypeError: the array knows neither protocol, or describes something that can't be a tensor.
        ValueError: the array is in the host's memory.
    """
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        kind, _ = array.__dlpack_device__()
        if kind in _HOSTS:
            raise ValueError(f"array must be in the GPU's memory, got a {type(array).__name__} in the host's")
        if kind != ROCM:
            raise ValueError(f"array must be in the memory of a GPU of ROCm, got DLPack device type {kind}")
        try:
            capsule = array.__dlpack__(stream=stream, max_version=_VERSION)
        except TypeError:  # an exporter from before DLPack had versions
            capsule = array.__dlpack__(stream=stream)
        return _described_by_dlpack(capsule)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return _described_by_interface(array, interface)
    if hasattr(array, "__array_interface__") or isinstance(array, (bytes, bytearray, memoryview)):
        raise ValueError(f"array must be in the GPU's memory, got a {type(array).__name__} in the host's")
    raise TypeError(f"array must have __dlpack__ or __cuda_array_interface__, got {type(array).__name__}")


# ---- __cuda_array_interface__

_LEGACY_STREAM = 1  # the protocol's number of the null stream
_TYPESTRS = {
    torch.uint8: "|u1",
    torch.int8: "|i1",
    torch.bool: "|b1",
    torch.int16: "<i2",
    torch.int32: "<i4",
    torch.int64: "<i8",
    torch.float16: "<f2",
    torch.float32: "<f4",
    torch.float64: "<f8",
    torch.bfloat16: "<V2",  # as in torch and ml_dtypes
}
_OF_TYPESTR = {typestr: dtype for dtype, typestr in _TYPESTRS.items()}


def interface_of(tensor: torch.Tensor, stream: int, read_only: bool) -> dict[str, Any]:
    """``__cuda_array_interface__`` of a tensor, version 3. Types that NumPy lacks are raw bytes, such as ``|V1``."""
    strides = tuple(stride * tensor.itemsize for stride in tensor.stride())
    return {
        "shape": tuple(tensor.shape),
        "typestr": _TYPESTRS.get(tensor.dtype, f"|V{tensor.itemsize}"),
        "data": (tensor.data_ptr() if tensor.numel() else 0, read_only),
        "strides": None if tensor.is_contiguous() else strides,
        "version": 3,
        "stream": stream or None,
    }


def _described_by_interface(array: Any, interface: Any) -> Described:
    kind = type(array).__name__
    try:
        version, shape, typestr = interface["version"], tuple(interface["shape"]), interface["typestr"]
        address, read_only = interface["data"]
        strides, mask, stream = interface.get("strides"), interface.get("mask"), interface.get("stream")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TypeError(f"array must have a complete __cuda_array_interface__, got a {kind}'s: {error!r}") from error
    if version not in (2, 3):
        raise TypeError(f"array must have version 2 or 3 of __cuda_array_interface__, got {version!r}")
    if mask is not None:
        raise TypeError("array must have no mask, for kernels look at all elements")
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise TypeError(f"array must have sizes from 0 on, got shape {shape}")
    if not isinstance(address, (int, type(None))):
        raise TypeError(f"array must have an int as its address, got {type(address).__name__}")
    if stream is not None and (not isinstance(stream, int) or stream == 0):
        raise TypeError(f"array must name its stream by a handle other than 0, or None, got {stream!r}")
    if stream == _LEGACY_STREAM:
        stream = 0
    dtype, itemsize = _of_typestr(typestr)
    if strides is not None:
        strides = _in_elements(tuple(strides), shape, itemsize)
    return Described(address or 0, shape, strides, dtype, itemsize, bool(read_only), stream, array)


def _of_typestr(typestr: Any) -> tuple[torch.dtype | None, int]:
    try:
        found = np.dtype(typestr)
    except TypeError as error:
        raise TypeError(f"array must have a typestr of NumPy's, got {typestr!r}") from error
    dtype = _OF_TYPESTR.get(typestr, _OF_TYPESTR.get(found.str))
    if dtype is None and found.kind not in "Vu":
        raise TypeError(f"array must have elements of a type that torch knows, got typestr {typestr!r}")
    return dtype, found.itemsize


def _in_elements(strides: tuple[Any, ...], shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    if len(strides) != len(shape) or any(
        not isinstance(stride, int) or stride < 0 or stride % itemsize for stride in strides
    ):
        raise TypeError(
            f"array must have a stride for each of {len(shape)} dimensions, from 0 on and whole elements of {itemsize} "
            f"bytes, got {strides}"
        )
    return tuple(stride // itemsize for stride in strides)


# ---- DLPack


class _Tensor(Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class _Managed(Structure):
    """DLManagedTensor"""


class _Versioned(Structure):
    """DLManagedTensorVersioned"""


_OfManaged, _OfVersioned = (PYFUNCTYPE(None, c_void_p) for _ in range(2))
_Managed._fields_ = (("tensor", _Tensor), ("context", c_void_p), ("deleter", _OfManaged))
_Versioned._fields_ = (
    ("major", c_uint32),
    ("minor", c_uint32),
    ("context", c_void_p),
    ("deleter", _OfVersioned),
    ("flags", c_uint64),
    ("tensor", _Tensor),
)

# DLDataTypeCode and bits.
_DLPACK_TYPES = {
    torch.int8: (0, 8),
    torch.int16: (0, 16),
    torch.int32: (0, 32),
    torch.int64: (0, 64),
    torch.uint8: (1, 8),
    torch.float16: (2, 16),
    torch.float32: (2, 32),
    torch.float64: (2, 64),
    torch.bfloat16: (4, 16),
    torch.bool: (6, 8),
    torch.float8_e4m3fn: (10, 8),
    torch.float8_e4m3fnuz: (11, 8),
    torch.float8_e5m2: (12, 8),
    torch.float8_e5m2fnuz: (13, 8),
}
_OF_DLPACK_TYPE = {code: dtype for dtype, code in _DLPACK_TYPES.items()}
_NAMES = {b"dltensor": (_Managed, b"used_dltensor"), b"dltensor_versioned": (_Versioned, b"used_dltensor_versioned")}

_python = ctypes.pythonapi
_new_capsule = PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", _python))
_is_capsule = PYFUNCTYPE(ctypes.c_int, py_object, c_char_p)(("PyCapsule_IsValid", _python))
_pointer_in = PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", _python))
_rename = PYFUNCTYPE(ctypes.c_int, py_object, c_char_p)(("PyCapsule_SetName", _python))
# These take a capsule's address, since Python must not make an object of a capsule that is being deleted.
_is_dying_capsule = PYFUNCTYPE(ctypes.c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", _python))
_pointer_in_dying = PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", _python))


class _Imported:
    """An array from a capsule. Tells the exporter when it isn't used any more."""

    def __init__(self, managed: Any) -> None:
        if managed.deleter:
            weakref.finalize(self, managed.deleter, ctypes.addressof(managed)).atexit = False


def _described_by_dlpack(capsule: Any) -> Described:
    name = next((name for name in _NAMES if _is_capsule(capsule, name)), None)
    if name is None:
        raise TypeError("array.__dlpack__() must return a capsule that nobody has used, named dltensor")
    kind, used = _NAMES[name]
    managed = kind.from_address(_pointer_in(capsule, name))
    if kind is _Versioned and managed.major != _VERSION[0]:
        raise TypeError(f"array must have version {_VERSION[0]} of DLPack, got {managed.major}.{managed.minor}")
    _rename(capsule, used)
    owner, tensor = _Imported(managed), managed.tensor
    shape = tuple(tensor.shape[: tensor.ndim])
    if tensor.lanes != 1 or tensor.bits % 8:
        raise TypeError(f"array must have elements of whole bytes, got {tensor.bits} bits and {tensor.lanes} lanes")
    dtype = _OF_DLPACK_TYPE.get((tensor.code, tensor.bits))
    return Described(
        address=(tensor.data or 0) + tensor.byte_offset,
        shape=shape,
        strides=tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None,
        dtype=dtype,
        itemsize=tensor.bits // 8,
        read_only=kind is _Versioned and bool(managed.flags & _READ_ONLY),
        stream=None,
        owner=owner,
    )


_exported: dict[int, tuple[Any, ...]] = {}  # objects to keep until the consumer is done, by the structure's address


def capsule_of(tensor: torch.Tensor, read_only: bool, max_version: tuple[int, int] | None) -> Any:
    """A DLPack capsule of a GPU's tensor. It keeps the tensor alive.

    Raises:
        BufferError: DLPack lacks the dtype, or the tensor is read-only and the consumer's DLPack can't express that.
    """
    code = _DLPACK_TYPES.get(tensor.dtype)
    if code is None:
        raise BufferError(f"DLPack has no type for {tensor.dtype}; export a view of another dtype")
    versioned = max_version is not None and max_version[0] >= _VERSION[0]
    if read_only and not versioned:
        raise BufferError("the array is read-only, which DLPack says from version 1 on; ask for max_version=(1, 0)")
    kind, name = (_Versioned, b"dltensor_versioned") if versioned else (_Managed, b"dltensor")
    managed: Any = kind()
    rank = tensor.dim()
    shape, strides = (c_int64 * rank)(*tensor.shape), (c_int64 * rank)(*tensor.stride())
    managed.tensor = _Tensor(
        tensor.data_ptr(), ROCM, tensor.get_device(), rank, *code, 1,
        ctypes.cast(shape, POINTER(c_int64)), ctypes.cast(strides, POINTER(c_int64)), 0,
    )  # fmt: skip
    if versioned:
        managed.major, managed.minor = _VERSION
        managed.flags = _READ_ONLY if read_only else 0
        managed.deleter = _delete_versioned
    else:
        managed.deleter = _delete_managed
    address = ctypes.addressof(managed)
    _exported[address] = (managed, shape, strides, tensor)
    return _new_capsule(address, name, ctypes.cast(_delete_capsule, c_void_p))


def _delete(address: int) -> None:
    _exported.pop(address, None)


_delete_managed, _delete_versioned = _OfManaged(_delete), _OfVersioned(_delete)


def _delete_unused(capsule: int) -> None:
    for name in _NAMES:
        if _is_dying_capsule(capsule, name):
            _delete(_pointer_in_dying(capsule, name))


_delete_capsule = PYFUNCTYPE(None, c_void_p)(_delete_unused)
