"""The HIP API of the simulated MI300X, without launches: devices, memory, streams, events, errors."""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import re
import subprocess
import sys
import threading
from ctypes import byref, c_char, c_float, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path

import numpy as np
import pytest
from helpers.simulated_hip import (
    DEFAULT_KIND,
    DEVICE_TO_DEVICE,
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    Hip,
    HipCallError,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from deep_gemm_rocm import simulator

GIB = 1 << 30
UNMAPPED = 0x10  # an address without memory


def refused(hip: Hip, error: str, message: str = ""):
    return pytest.raises(HipCallError, match=f"^{error}: .*{message}")


# ---- devices

# Fields of hipDeviceProp_tR0600 (HIP 6) and hipDeviceProp_tR0000 (HIP 5): their offsets in AMD's headers, and the
# simulated device's values.
R0600_SIZE, R0600 = (
    1472,
    {
        "name": (0, "AMD Instinct MI300X (simulated)"),
        "totalGlobalMem": (288, c_size_t(192 * GIB)),
        "sharedMemPerBlock": (296, c_size_t(64 << 10)),
        "warpSize": (308, c_int(64)),
        "maxThreadsPerBlock": (320, c_int(1024)),
        "maxThreadsDim[2]": (332, c_int(1024)),
        "maxGridSize[0]": (336, c_int(2**31 - 1)),
        "clockRate": (348, c_int(2_100_000)),
        "major": (360, c_int(9)),
        "minor": (364, c_int(4)),
        "multiProcessorCount": (388, c_int(304)),
        "l2CacheSize": (616, c_int(4 << 20)),
        "maxThreadsPerMultiProcessor": (624, c_int(2048)),
        "gcnArchName": (1160, "gfx942:sramecc+:xnack-"),
        "maxSharedMemoryPerMultiProcessor": (1416, c_size_t(64 << 10)),
        "isLargeBar": (1464, c_int(1)),
    },
)
R0000_SIZE, R0000 = (
    792,
    {
        "name": (0, "AMD Instinct MI300X (simulated)"),
        "totalGlobalMem": (256, c_size_t(192 * GIB)),
        "sharedMemPerBlock": (264, c_size_t(64 << 10)),
        "warpSize": (276, c_int(64)),
        "multiProcessorCount": (336, c_int(304)),
        "gcnArch": (392, c_int(942)),
        "gcnArchName": (396, "gfx942:sramecc+:xnack-"),
    },
)


@pytest.mark.parametrize(
    ("call", "size", "fields"),
    [
        ("hipGetDevicePropertiesR0600", R0600_SIZE, R0600),
        ("hipGetDevicePropertiesR0000", R0000_SIZE, R0000),
        ("hipGetDeviceProperties", R0000_SIZE, R0000),
    ],
)
def test_device_properties(hip, call, size, fields):
    guard = 64
    buffer = (c_char * (size + guard))(*b"\xa5" * (size + guard))
    getattr(hip, call)(buffer, 0)
    assert buffer[size:] == b"\xa5" * guard, "written past the structure's end"
    for name, (offset, expected) in fields.items():
        if isinstance(expected, str):
            assert buffer[offset : offset + 256].split(b"\0")[0].decode() == expected, name
        else:
            assert type(expected).from_buffer(buffer, offset).value == expected.value, name
    assert buffer[size - 1] != b"\xa5"


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        (5, 2_100_000),
        (23, 9),
        (26, 1024),
        (56, 1024),
        (57, 2048),
        (63, 304),
        (74, 64 << 10),
        (87, 64),
        (90, 1),
        (10018, 8),
    ],
)
def test_device_attributes(hip, attribute, expected):
    value = c_int()
    hip.hipDeviceGetAttribute(byref(value), attribute, 0)
    assert value.value == expected


def test_device_count_name_and_versions(hip):
    count, version, name = c_int(), c_int(), (c_char * 8)()
    hip.hipGetDeviceCount(byref(count))
    assert count.value == 1
    hip.hipRuntimeGetVersion(byref(version))
    assert version.value // 10_000_000 == 6
    hip.hipDeviceGetName(name, 8, 0)
    assert name.value == b"AMD Ins"  # cut to the buffer, and terminated
    hip.hipInit(0)
    hip.hipSetDevice(0)
    hip.hipDeviceSynchronize()


def test_bad_devices(hip):
    value, buffer = c_int(), (c_char * 4096)()
    with refused(hip, "hipErrorInvalidDevice", "device 1 does not exist"):
        hip.hipSetDevice(1)
    with refused(hip, "hipErrorInvalidDevice", "device -1"):
        hip.hipGetDevicePropertiesR0600(buffer, c_int(-1))
    assert not any(buffer.raw)
    with refused(hip, "hipErrorInvalidValue", "null"):
        hip.hipGetDeviceCount(None)
    with refused(hip, "hipErrorInvalidValue", "attribute 12345"):
        hip.hipDeviceGetAttribute(byref(value), 12345, 0)


# ---- errors


def test_error_names_and_strings(hip):
    for status, name in [
        (0, "hipSuccess"),
        (1, "hipErrorInvalidValue"),
        (209, "hipErrorNoBinaryForGpu"),
        (719, "hipErrorLaunchFailure"),
    ]:
        assert hip.lib.hipGetErrorName(status).decode() == name
        assert hip.lib.hipGetErrorString(status)
    assert hip.lib.hipGetErrorName(12345) == b"hipErrorUnknown"


def test_last_error_is_that_of_the_last_call(hip):
    invalid_device = 101
    assert hip.lib.hipSetDevice(7) == invalid_device
    assert hip.lib.hipPeekAtLastError() == invalid_device
    assert hip.lib.hipGetLastError() == invalid_device
    assert hip.lib.hipGetLastError() == 0
    hip.lib.hipSetDevice(7)
    hip.hipDeviceSynchronize()
    assert hip.lib.hipGetLastError() == 0


def test_errors_belong_to_their_thread(hip):
    hip.lib.hipSetDevice(7)
    seen = []
    thread = threading.Thread(target=lambda: seen.extend([hip.lib.hipPeekAtLastError(), hip.last_message()]))
    thread.start()
    thread.join()
    assert seen == [0, ""]
    assert "device 7" in hip.last_message()
    hip.lib.hipGetLastError()


@pytest.mark.parametrize(
    "call", ["hipGraphAddMemAllocNode", "hipMemCreate", "hipImportExternalMemory", "hipTexRefSetArray"]
)
def test_calls_that_are_missing_say_so(hip, call):
    with refused(hip, "hipErrorNotSupported", call):
        getattr(hip, call)(None, None, None)


def test_every_call_of_hip_exists(hip):
    """AMD's Python bindings have the names of all HIP functions, including those of later versions."""
    (folder,) = importlib.util.find_spec("rocm.bindings").submodule_search_locations
    names = re.findall(r"^cdef hipError_t (hip\w+)\(", Path(folder, "cyhip.pxd").read_text(), re.MULTILINE)
    assert len(names) > 500
    assert [name for name in names if not hasattr(hip.lib, name)] == []


# ---- allocation


def test_malloc_is_aligned_and_exact(hip):
    pointers = [hip.malloc(size) for size in (1, 255, 4096, 100_001)]
    for pointer, size in zip(pointers, (1, 255, 4096, 100_001), strict=True):
        assert pointer % 256 == 0
        hip.hipMemset(pointer, 1, size)
        with refused(hip, "hipErrorInvalidValue", f"run past the end of the {size} bytes"):
            hip.hipMemset(pointer, 2, size + 1)
        base, extent = c_void_p(), c_size_t()
        hip.hipMemGetAddressRange(byref(base), byref(extent), pointer + size - 1)
        assert (base.value, extent.value) == (pointer, size)
        hip.hipFree(pointer)
        with refused(hip, "hipErrorInvalidValue"):
            hip.hipMemset(pointer, 1, 1)


def test_malloc_of_nothing_is_null_and_free_takes_it(hip):
    assert hip.malloc(0) == 0
    hip.hipFree(None)


def test_malloc_commits_no_memory(hip):
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    before = resident()
    pointer = hip.malloc(100 * GIB)
    hip.hipMemset(pointer + 99 * GIB, 1, 1 << 20)
    assert resident() - before < 64 << 20
    hip.hipFree(pointer)


def test_malloc_ends_at_the_devices_memory(hip):
    free, total = c_size_t(), c_size_t()
    hip.hipMemGetInfo(byref(free), byref(total))
    assert total.value == 192 * GIB
    before = free.value
    with refused(hip, "hipErrorOutOfMemory", str(before)):
        hip.malloc(before + 1)
    with refused(hip, "hipErrorOutOfMemory"):
        hip.malloc(2**64 - 1)
    pointer = hip.malloc(GIB)
    hip.hipMemGetInfo(byref(free), byref(total))
    assert free.value == before - GIB
    hip.hipFree(pointer)
    hip.hipMemGetInfo(byref(free), byref(total))
    assert free.value == before


def test_bad_frees(hip):
    pointer = hip.malloc(1000)
    for wild in (UNMAPPED, pointer + 256, pointer - 4096):
        with refused(hip, "hipErrorInvalidValue", "not the beginning of an allocation"):
            hip.hipFree(wild)
    hip.hipFree(pointer)
    with refused(hip, "hipErrorInvalidValue"):
        hip.hipFree(pointer)


def test_reset_frees_what_was_allocated(hip):
    """This runs in a new process, since a reset would free other tests' memory, too."""
    program = """
import ctypes, sys
hip = ctypes.CDLL(sys.argv[1])
device, host, managed = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
assert hip.hipMalloc(ctypes.byref(device), ctypes.c_size_t(100)) == 0
assert hip.hipHostMalloc(ctypes.byref(host), ctypes.c_size_t(100), 0) == 0
assert hip.hipMallocManaged(ctypes.byref(managed), ctypes.c_size_t(100), 0) == 0
assert hip.hipDeviceReset() == 0
assert [hip.hipMemset(pointer, 0, ctypes.c_size_t(1)) for pointer in (device, host, managed)] == [1, 1, 0]
free, total = ctypes.c_size_t(), ctypes.c_size_t()
hip.hipMemGetInfo(ctypes.byref(free), ctypes.byref(total))
assert total.value - free.value == 100
"""
    subprocess.run([sys.executable, "-c", program, str(simulator.library_path())], check=True)


@pytest.mark.parametrize("call", ["hipHostMalloc", "hipMallocManaged", "hipMallocAsync"])
def test_other_allocations(hip, call):
    pointer = c_void_p()
    getattr(hip, call)(byref(pointer), 1000, 0)
    hip.hipMemset(pointer, 7, 1000)
    assert ctypes.string_at(pointer.value, 1000) == b"\7" * 1000
    hip.hipFree(pointer)


def test_pitched_allocation(hip):
    pointer, pitch = c_void_p(), c_size_t()
    hip.hipMallocPitch(byref(pointer), byref(pitch), 1000, 7)
    assert pitch.value >= 1000
    assert pitch.value % 256 == 0
    hip.hipMemset2D(pointer, pitch, 3, 1000, 7)
    with refused(hip, "hipErrorInvalidValue"):
        hip.hipMemset2D(pointer, pitch, 3, 1000, 8)
    hip.hipFree(pointer)
    with refused(hip, "hipErrorOutOfMemory"):
        hip.hipMallocPitch(byref(pointer), byref(pitch), 1 << 40, 1 << 40)


@pytest.mark.parametrize(
    ("make", "memory_type", "managed"),
    [("hipMalloc", 2, 0), ("hipHostMalloc", 1, 0), ("hipMallocManaged", 3, 1)],
)
def test_pointer_attributes(hip, make, memory_type, managed):
    class Attributes(ctypes.Structure):
        _fields_ = [("type", c_int), ("device", c_int), ("on_device", c_void_p), ("on_host", c_void_p),
                    ("managed", c_int), ("flags", c_uint)]  # fmt: skip

    pointer, found = c_void_p(), Attributes()
    getattr(hip, make)(byref(pointer), 64, 0)
    hip.hipPointerGetAttributes(byref(found), pointer.value + 63)
    assert (found.type, found.device, found.managed) == (memory_type, 0, managed)
    assert found.on_device == pointer.value + 63
    assert found.on_host == (None if make == "hipMalloc" else pointer.value + 63)
    hip.hipFree(pointer)
    with refused(hip, "hipErrorInvalidValue"):
        hip.hipPointerGetAttributes(byref(found), pointer)


def test_single_pointer_attributes(hip):
    memory_type, device_pointer, is_managed, begin, size = 2, 3, 8, 11, 12
    pointer = hip.malloc(100)

    def attribute(which: int) -> int:
        value = c_size_t()
        hip.hipPointerGetAttribute(byref(value), which, pointer + 10)
        return value.value

    assert (attribute(memory_type), attribute(device_pointer), attribute(is_managed)) == (2, pointer + 10, 0)
    assert (attribute(begin), attribute(size)) == (pointer, 100)
    values = (c_size_t(), c_size_t())
    selectors, outs = (c_int * 2)(begin, size), (c_void_p * 2)(*map(ctypes.addressof, values))
    hip.hipDrvPointerGetAttributes(2, selectors, outs, pointer)
    assert [value.value for value in values] == [pointer, 100]
    with refused(hip, "hipErrorNotSupported", "attribute 7"):
        attribute(7)
    with refused(hip, "hipErrorInvalidValue", "can't be written"):
        hip.hipPointerGetAttribute(UNMAPPED, begin, pointer)
    hip.hipFree(pointer)


# ---- copies and fills


def test_copies_between_host_and_device(hip):
    source = np.random.default_rng(0).integers(0, 256, 70_001, dtype=np.uint8)
    first, second = hip.upload(source), hip.malloc(source.nbytes)
    hip.hipMemcpy(second, first, source.nbytes, DEVICE_TO_DEVICE)
    assert np.array_equal(hip.download(second, source), source)
    result = np.zeros_like(source)
    hip.hipMemcpyAsync(result, second + 1, source.nbytes - 1, DEFAULT_KIND, None)
    assert np.array_equal(result[:-1], source[1:])
    assert result[-1] == 0
    hip.hipFree(first)
    hip.hipFree(second)


def test_copies_that_reach_too_far_write_nothing(hip):
    device, host = hip.malloc(100), np.full(200, 5, np.uint8)
    hip.hipMemset(device, 9, 100)
    with refused(hip, "hipErrorInvalidValue", "destination: 101 bytes"):
        hip.hipMemcpy(device, host, 101, HOST_TO_DEVICE)
    with refused(hip, "hipErrorInvalidValue", "source: 101 bytes"):
        hip.hipMemcpy(host, device, 101, DEVICE_TO_HOST)
    with refused(hip, "hipErrorInvalidValue", "source"):
        hip.hipMemcpy(host, device + 1, 2**64 - 1, DEVICE_TO_HOST)
    assert (host == 5).all()
    assert (hip.download(device, host[:100]) == 9).all()
    hip.hipFree(device)


def test_copies_with_wild_pointers(hip):
    device, host = hip.malloc(100), np.zeros(100, np.uint8)
    read_only = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ)
    constant = np.frombuffer(read_only, np.uint8)
    for arguments in [
        (None, device, 100, DEVICE_TO_HOST),
        (host, None, 100, DEFAULT_KIND),
        (UNMAPPED, device, 100, DEVICE_TO_HOST),
        (device, UNMAPPED, 100, HOST_TO_DEVICE),
        (constant, device, 100, DEVICE_TO_HOST),  # not writable
        (host, host, 100, HOST_TO_DEVICE),  # not device memory
        (host, host, 100, DEVICE_TO_HOST),
    ]:
        with refused(hip, "hipErrorInvalidValue"):
            hip.hipMemcpy(*arguments)
    hip.hipMemcpy(device, constant, 100, HOST_TO_DEVICE)
    with refused(hip, "hipErrorInvalidMemcpyDirection"):
        hip.hipMemcpy(device, host, 100, 17)
    with refused(hip, "hipErrorInvalidHandle"):
        hip.hipMemcpyAsync(device, host, 100, HOST_TO_DEVICE, 0xDEAD)
    hip.hipFree(device)


def test_copies_of_rectangles(hip):
    source = np.arange(12 * 32, dtype=np.uint8).reshape(12, 32)
    device = hip.malloc(12 * 48)
    hip.hipMemset(device, 0xEE, 12 * 48)
    hip.hipMemcpy2D(device, 48, source, 32, 20, 12, HOST_TO_DEVICE)
    found = hip.download(device, np.empty((12, 48), np.uint8))
    assert np.array_equal(found[:, :20], source[:, :20])
    assert (found[:, 20:] == 0xEE).all()
    with refused(hip, "hipErrorInvalidPitchValue"):
        hip.hipMemcpy2D(device, 8, source, 32, 20, 12, HOST_TO_DEVICE)
    with refused(hip, "hipErrorInvalidValue"):
        hip.hipMemcpy2D(device, 48, source, 32, 20, 13, HOST_TO_DEVICE)
    with refused(hip, "hipErrorInvalidValue", "overflow"):
        hip.hipMemcpy2D(device, 48, source, 1 << 40, 20, 1 << 40, HOST_TO_DEVICE)
    hip.hipFree(device)


def test_copies_of_boxes(hip):
    class Position(ctypes.Structure):
        _fields_ = [("x", c_size_t), ("y", c_size_t), ("z", c_size_t)]

    class Pitched(ctypes.Structure):
        _fields_ = [("pointer", c_void_p), ("pitch", c_size_t), ("x", c_size_t), ("y", c_size_t)]

    class Parameters(ctypes.Structure):
        _fields_ = [("source_array", c_void_p), ("source_at", Position), ("source", Pitched),
                    ("target_array", c_void_p), ("target_at", Position), ("target", Pitched),
                    ("extent", Position), ("kind", c_int)]  # fmt: skip

    source = np.random.default_rng(1).integers(0, 256, (4, 5, 16), dtype=np.uint8)
    device = hip.malloc(6 * 7 * 24)
    hip.hipMemset(device, 0, 6 * 7 * 24)
    parameters = Parameters(
        source_at=Position(2, 1, 1), source=Pitched(source.ctypes.data, 16, 16, 5),
        target_at=Position(3, 2, 4), target=Pitched(device, 24, 24, 7),
        extent=Position(10, 3, 2), kind=HOST_TO_DEVICE,
    )  # fmt: skip
    hip.hipMemcpy3D(byref(parameters))
    expected = np.zeros((6, 7, 24), np.uint8)
    expected[4:6, 2:5, 3:13] = source[1:3, 1:4, 2:12]
    assert np.array_equal(hip.download(device, expected), expected)
    parameters.extent.z = 3
    with refused(hip, "hipErrorInvalidValue", "destination"):
        hip.hipMemcpy3D(byref(parameters))
    hip.hipFree(device)


@pytest.mark.parametrize(("call", "dtype"), [("hipMemsetD8", "u1"), ("hipMemsetD16", "u2"), ("hipMemsetD32", "u4")])
def test_fills_with_elements(hip, call, dtype):
    array = np.zeros(33, dtype)
    device = hip.upload(array)
    value = 0x89ABCDEF & np.iinfo(dtype).max
    getattr(hip, call)(device + array.itemsize, value, 31)
    found = hip.download(device, array)
    assert (found[1:-1] == value).all()
    assert found[0] == 0
    assert found[-1] == 0
    with refused(hip, "hipErrorInvalidValue"):
        getattr(hip, call)(device, value, 34)
    if array.itemsize > 1:
        with refused(hip, "hipErrorInvalidValue", "aligned"):
            getattr(hip, call)(device + 1, value, 1)
    hip.hipFree(device)


@pytest.mark.parametrize(
    ("call", "dtype"), [("hipMemsetD2D8", "u1"), ("hipMemsetD2D16", "u2"), ("hipMemsetD2D32", "u4")]
)
def test_fills_of_rows(hip, call, dtype):
    array = np.zeros((5, 16), dtype)
    device = hip.upload(array)
    getattr(hip, call)(device, 16 * array.itemsize, 7, 3, 4)
    getattr(hip, call + "Async")(device, 16 * array.itemsize, 9, 1, 2, None)
    expected = array.copy()
    expected[:4, :3], expected[:2, :1] = 7, 9
    assert np.array_equal(hip.download(device, array), expected)
    with refused(hip, "hipErrorInvalidValue", "run past the end"):
        getattr(hip, call)(device, 16 * array.itemsize, 7, 16, 6)
    with refused(hip, "hipErrorInvalidPitchValue"):
        getattr(hip, call)(device, array.itemsize, 7, 2, 2)
    hip.hipFree(device)


# ---- memory pools


class PoolProperties(ctypes.Structure):
    _fields_ = [("type", c_int), ("handles", c_int), ("location_type", c_int), ("device", c_int),
                ("security", c_void_p), ("most", c_size_t), ("reserved", c_char * 56)]  # fmt: skip


def test_memory_pools(hip):
    used_now, used_high, threshold = 7, 8, 4
    pool, standard, current, pointer, value = c_void_p(), c_void_p(), c_void_p(), c_void_p(), c_size_t()
    hip.hipMemPoolCreate(byref(pool), byref(PoolProperties(type=1, location_type=1, most=1000)))
    hip.hipDeviceGetDefaultMemPool(byref(standard), 0)
    hip.hipDeviceGetMemPool(byref(current), 0)
    assert current.value == standard.value != pool.value

    def attribute(which: int) -> int:
        hip.hipMemPoolGetAttribute(pool, which, byref(value))
        return value.value

    hip.hipMallocFromPoolAsync(byref(pointer), 600, pool, None)
    assert (attribute(used_now), attribute(used_high)) == (600, 600)
    hip.hipMemsetAsync(pointer, 1, 600, None)
    with refused(hip, "hipErrorOutOfMemory", "the pool has 400 left"):
        hip.hipMallocFromPoolAsync(byref(c_void_p()), 500, pool, None)
    hip.hipFreeAsync(pointer, None)
    assert (attribute(used_now), attribute(used_high)) == (0, 600)
    hip.hipMemPoolSetAttribute(pool, used_high, byref(c_size_t(0)))
    hip.hipMemPoolSetAttribute(pool, threshold, byref(c_size_t(4096)))
    assert (attribute(used_high), attribute(threshold)) == (0, 4096)
    hip.hipMemPoolTrimTo(pool, 0)

    hip.hipDeviceSetMemPool(0, pool)
    hip.hipMallocAsync(byref(pointer), 16, None)
    assert attribute(used_now) == 16
    hip.hipFree(pointer)
    assert attribute(used_now) == 0
    hip.hipMemPoolDestroy(pool)
    hip.hipDeviceGetMemPool(byref(current), 0)
    assert current.value == standard.value
    with refused(hip, "hipErrorInvalidHandle", "not a memory pool"):
        hip.hipMallocFromPoolAsync(byref(pointer), 16, pool, None)
    with refused(hip, "hipErrorInvalidValue", "default pool"):
        hip.hipMemPoolDestroy(standard)
    with refused(hip, "hipErrorNotSupported", "other processes"):
        hip.hipMemPoolCreate(byref(pool), byref(PoolProperties(type=1, handles=1, location_type=1)))


# ---- entry points


def test_functions_by_name(hip):
    function, status = c_void_p(), c_int(-1)
    for version, name in ((50200000, "hipGetDeviceProperties"), (60300000, "hipGetDevicePropertiesR0600")):
        hip.hipGetProcAddress(b"hipGetDeviceProperties", byref(function), version, 0, byref(status))
        assert function.value == ctypes.cast(getattr(hip.lib, name), c_void_p).value
        assert status.value == 0
    hip.hipGetProcAddress(b"hipMemcpyAsync", byref(function), 60300000, 2, None)
    assert function.value == ctypes.cast(hip.lib.hipMemcpyAsync_spt, c_void_p).value
    for bad in (b"hipNothing", b"malloc", b""):
        with refused(hip, "hipErrorInvalidValue"):
            hip.hipGetProcAddress(bad, byref(function), 60300000, 0, byref(status))
        assert status.value == 1
        assert function.value is None


# ---- host memory


def test_registered_memory_has_the_exact_bounds(hip):
    array = np.zeros(1000, np.uint8)
    begin = array.ctypes.data
    hip.hipHostRegister(begin + 10, 900, 0)
    hip.hipMemset(begin + 10, 1, 900)
    for start, size in [(9, 1), (9, 900), (11, 900), (910, 1)]:
        with refused(hip, "hipErrorInvalidValue"):
            hip.hipMemset(begin + start, 2, size)
    assert array.sum() == 900
    device_pointer = c_void_p()
    hip.hipHostGetDevicePointer(byref(device_pointer), begin + 10, 0)
    assert device_pointer.value == begin + 10
    hip.hipHostUnregister(begin + 10)
    with refused(hip, "hipErrorHostMemoryNotRegistered"):
        hip.hipHostUnregister(begin + 10)


def test_bad_registrations(hip):
    with refused(hip, "hipErrorInvalidValue", "not all memory"):
        hip.hipHostRegister(UNMAPPED, 100, 0)
    with refused(hip, "hipErrorInvalidValue"):
        hip.hipHostRegister(None, 100, 0)
    array = np.zeros(10, np.uint8)
    with refused(hip, "hipErrorInvalidValue", "0"):
        hip.hipHostRegister(array, 0, 0)
    with refused(hip, "hipErrorInvalidValue"):
        hip.hipHostRegister(array, 1 << 46, 0)
    pointer = hip.malloc(10)
    with refused(hip, "hipErrorHostMemoryNotRegistered"):
        hip.hipHostUnregister(pointer)
    hip.hipFree(pointer)


INTERVALS = st.tuples(st.integers(0, 60), st.integers(1, 20))


@settings(max_examples=200, deadline=None)
@given(st.lists(INTERVALS, max_size=8), st.lists(st.integers(0, 7), max_size=8), st.lists(INTERVALS, max_size=8))
def test_registrations_overlap_and_nest(hip, registered, forgotten, probes):
    """For any order of registrations, exactly the bytes in some registration are accessible."""
    array = np.zeros(80, np.uint8)
    begin = array.ctypes.data
    alive = []
    for start, size in registered:
        hip.hipHostRegister(begin + start, size, 0)
        alive.append((start, size))
    try:
        for index in forgotten:
            if index < len(alive):
                start = alive[index][0]
                hip.hipHostUnregister(begin + start)
                # The oldest of several registrations that begin there is removed.
                alive.remove(next(entry for entry in alive if entry[0] == start))
        covered = {byte for start, size in alive for byte in range(start, start + size)}
        for start, size in probes:
            status = hip.lib.hipMemsetD8(c_void_p(begin + start), c_uint(1), c_size_t(size))
            assert (status == 0) == covered.issuperset(range(start, start + size))
    finally:
        for start, _ in alive:
            hip.hipHostUnregister(begin + start)


def test_freeing_in_one_thread_and_allocating_in_others(hip):
    failures = []

    def work(seed: int) -> None:
        generator = np.random.default_rng(seed)
        try:
            for _ in range(200):
                data = generator.integers(0, 256, int(generator.integers(1, 20_000)), dtype=np.uint8)
                pointer = hip.upload(data)
                if not np.array_equal(hip.download(pointer, data), data):
                    failures.append("wrong data")
                hip.hipFree(pointer)
        except HipCallError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# ---- streams and events


def test_streams(hip):
    stream, flags = c_void_p(), c_uint(99)
    hip.hipStreamCreateWithFlags(byref(stream), 1)
    hip.hipStreamGetFlags(stream, byref(flags))
    assert flags.value == 1
    hip.hipStreamQuery(stream)
    hip.hipStreamSynchronize(stream)
    capturing = c_int(99)
    hip.hipStreamIsCapturing(stream, byref(capturing))
    assert capturing.value == 0
    hip.hipStreamDestroy(stream)
    for call in (hip.hipStreamSynchronize, hip.hipStreamDestroy, hip.hipStreamQuery):
        with refused(hip, "hipErrorInvalidHandle", "not a stream"):
            call(stream)
    for special in (0, 1, 2):  # the null stream, hipStreamLegacy, hipStreamPerThread
        hip.hipStreamSynchronize(special)
    with refused(hip, "hipErrorInvalidValue", "flags"):
        hip.hipStreamCreateWithFlags(byref(stream), 8)


def test_stream_callbacks_run_in_order(hip):
    seen = []
    callback = ctypes.CFUNCTYPE(None, c_void_p)(lambda data: seen.append(data))
    hip.hipLaunchHostFunc(None, callback, 41)
    hip.hipLaunchHostFunc(None, callback, 42)
    assert seen == [41, 42]


def test_events(hip):
    start, stop, untimed, milliseconds = c_void_p(), c_void_p(), c_void_p(), c_float(-1)
    hip.hipEventCreate(byref(start))
    hip.hipEventCreate(byref(stop))
    hip.hipEventCreateWithFlags(byref(untimed), 2)
    with refused(hip, "hipErrorInvalidHandle", "never recorded"):
        hip.hipEventElapsedTime(byref(milliseconds), start, stop)
    for event in (start, stop, untimed):
        hip.hipEventRecord(event, None)
        hip.hipEventSynchronize(event)
        hip.hipEventQuery(event)
        hip.hipStreamWaitEvent(None, event, 0)
    hip.hipEventElapsedTime(byref(milliseconds), start, stop)
    assert milliseconds.value == 0  # without the timing model, simulated time doesn't advance
    with refused(hip, "hipErrorInvalidHandle", "without timing"):
        hip.hipEventElapsedTime(byref(milliseconds), start, untimed)
    for event in (start, stop, untimed):
        hip.hipEventDestroy(event)
        with refused(hip, "hipErrorInvalidHandle", "not an event"):
            hip.hipEventRecord(event, None)


def test_runtime_survives_the_end_of_the_process(compiler):
    """HIP is called from static destructors, at least from that of the fat binary."""
    library = compiler.library('extern "C" __global__ void nothing() {}')
    script = (
        "import ctypes\n"
        f"ctypes.CDLL({str(simulator.library_path())!r}, ctypes.RTLD_GLOBAL)\n"
        f"ctypes.CDLL({str(library)!r})\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
