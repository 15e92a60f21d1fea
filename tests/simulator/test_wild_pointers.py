"""Pointers, handles, counts and extents that can't be used are errors of every call of the HIP API, never a crash."""

from __future__ import annotations

import ctypes
import json
import mmap
import re
import subprocess
import sys
from collections.abc import Callable
from ctypes import addressof, byref, c_char, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path

import numpy as np
import pytest
from elf_symbols import dynamic_symbols
from simulated_hip import DEFAULT_KIND, HOST_TO_DEVICE, Compiler, Hip, HipCallError
from wild_pointers import Copy2D, Copy3D, Dim3, Extent, Fill, Host, Kernel, Launch, Node, Pitched, functions

from deep_gemm_rocm import simulator

WILD = 0x10
HUGE = 1 << 61  # times 8, the size of a pointer, it is 0

CODE = """
__device__ int shared[4];
extern "C" __global__ void probe(int* x, int n) { x[__builtin_amdgcn_workitem_id_x()] = n + shared[0]; }
"""


@pytest.fixture(scope="module")
def code(compiler: Compiler) -> bytes:
    return compiler.code_object(CODE)


def test_no_call_follows_a_wild_pointer(code: bytes, tmp_path: Path) -> None:
    path, program = tmp_path / "code.co", Path(__file__).with_name("wild_pointers.py")
    path.write_bytes(code)
    crashed, wrong, called, first = [], [], 0, 0
    while len(crashed) < 3:
        command = [sys.executable, program, path, str(first)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines()
        wrong += [json.loads(line) for line in lines if line.startswith("{")]
        begun = [line for line in lines if re.match(r"\d+ ", line)]
        called += len(begun)
        if lines and lines[-1] == "done":
            break
        assert begun, done.stderr
        number, name = begun[-1].split()
        crashed.append((name, done.returncode, done.stderr[-500:]))
        first = int(number) + 1
    assert crashed == []
    assert wrong == []
    assert called > 250


def test_no_signature_has_a_pointer_that_could_be_followed_unprobed() -> None:
    raw = [(function.name, parameter.type, parameter.name) for function in functions()
           for parameter in function.parameters
           if parameter.type.endswith("*") and not re.fullmatch(r"(const )?void ?\*", parameter.type)]  # fmt: skip
    assert raw == []


def test_all_calls_are_known() -> None:
    """Those that are made by macros say what is missing, or go on to others."""
    source = {path.name: path.read_text() for path in Path(simulator.__file__).parent.glob("csrc/hip/*.cpp")}
    made = set(re.findall(r"X\((\w+)\)", source["unsupported.cpp"]))
    made |= {f"{name}_spt" for name in re.findall(r"X\((\w+)\)", source["per_thread_stream.cpp"])}
    exported = {symbol.name for symbol in dynamic_symbols(simulator.library_path())}
    assert exported - made - {function.name for function in functions()} == set()


# ---- what structures and arrays refer to


@pytest.fixture
def graph(hip: Hip):
    handle = c_void_p()
    hip.hipGraphCreate(byref(handle), 0)
    yield handle
    hip.hipGraphDestroy(handle)


@pytest.fixture
def memory(hip: Hip):
    pointer = hip.malloc(4096)
    yield pointer
    hip.hipFree(pointer)


@pytest.fixture
def kernel(hip: Hip, code: bytes) -> c_void_p:
    return hip.function(hip.load(code), "probe")


def refuses(call: Callable[..., None], *arguments: object, error: str = "hipErrorInvalidValue") -> None:
    with pytest.raises(HipCallError, match=f"^{error}: "):
        call(*arguments)


def pointers(*values: int) -> ctypes.Array[c_void_p]:
    return (c_void_p * len(values))(*values)


def test_launches(hip: Hip, kernel: c_void_p, memory: int) -> None:
    one, pointer, number = c_uint(1), c_void_p(memory), c_int(3)
    size = c_size_t(12)
    buffer = (c_char * 12)(*bytes(pointer) + bytes(number))

    def launch(arguments: object, extra: object = None) -> None:
        hip.hipModuleLaunchKernel(kernel, *[one] * 6, c_uint(0), None, arguments, extra)

    launch(pointers(addressof(pointer), addressof(number)))
    launch(None, pointers(1, addressof(buffer), 2, addressof(size), 3))
    for wild in (WILD, 2**64 - 1, 0xDEAD_BEEF_DEAD_BEEF):
        refuses(launch, pointers(addressof(pointer), wild))
        refuses(launch, pointers(wild, addressof(number)))
        refuses(launch, None, pointers(1, wild, 2, addressof(size), 3))
        refuses(launch, None, pointers(1, addressof(buffer), 2, wild, 3))
    for call, function in (("hipLaunchKernelExC", kernel), ("hipDrvLaunchKernelEx", kernel)):
        config = Launch(Dim3(1, 1, 1), Dim3(1, 1, 1), 0, None, WILD, 1)
        refuses(getattr(hip, call), byref(config), function, pointers(addressof(pointer), addressof(number)), None)


def test_nodes(hip: Hip, graph: c_void_p, kernel: c_void_p, memory: int) -> None:
    node, nothing = c_void_p(), (None, 0)
    add_kernel = Kernel(Dim3(1, 1, 1), None, kernel.value, Dim3(1, 1, 1), WILD, 0)
    refuses(hip.hipGraphAddKernelNode, byref(node), graph, *nothing, byref(add_kernel))
    arguments = pointers(WILD, WILD)
    add_kernel.kernelParams = addressof(arguments)
    refuses(hip.hipGraphAddKernelNode, byref(node), graph, *nothing, byref(add_kernel))
    described = Node(type=0)
    ctypes.memmove(addressof(described) + 16, byref(add_kernel), ctypes.sizeof(add_kernel))
    refuses(hip.hipGraphAddNode, byref(node), graph, *nothing, byref(described))
    refuses(hip.hipGraphAddHostNode, byref(node), graph, *nothing, byref(Host(WILD, None)))
    assert node.value is None
    # Only the launch looks at what is copied and filled.
    place, wild = Pitched(memory, 64, 64, 4), Pitched(WILD, 64, 64, 4)
    for copy in (Copy3D(srcPtr=wild, dstPtr=place, extent=Extent(64, 2, 1), kind=DEFAULT_KIND),
                 Copy3D(srcPtr=place, dstPtr=wild, extent=Extent(64, 2, 1), kind=DEFAULT_KIND)):  # fmt: skip
        refuses(hip.hipMemcpy3D, byref(copy))
        hip.hipGraphAddMemcpyNode(byref(node), graph, *nothing, byref(copy))
        refuses(launch_graph, hip, graph)
        hip.hipGraphDestroyNode(node)
    hip.hipGraphAddMemsetNode(byref(node), graph, *nothing, byref(Fill(WILD, 4, 1, 0, 7, 16)))
    refuses(launch_graph, hip, graph)


def launch_graph(hip: Hip, graph: c_void_p) -> None:
    executable = c_void_p()
    hip.hipGraphInstantiate(byref(executable), graph, None, None, 0)
    try:
        hip.hipGraphLaunch(executable, None)
    finally:
        hip.hipGraphExecDestroy(executable)


def test_copies_of_rows(hip: Hip, memory: int) -> None:
    copy = Copy2D(srcType=1, srcHost=WILD, srcPitch=64, dstType=2, dstDevice=memory, dstPitch=64, width=64, height=2)
    refuses(hip.hipMemcpyParam2D, byref(copy))
    copy = Copy2D(srcType=2, srcDevice=memory, srcPitch=64, dstType=1, dstHost=WILD, dstPitch=64, width=64, height=2)
    refuses(hip.hipMemcpyParam2D, byref(copy))


def test_a_result_is_not_written_where_another_one_cannot_be(hip: Hip, memory: int) -> None:
    free, pitch, base, values = c_size_t(5), c_size_t(5), c_void_p(5), (c_size_t * 2)(5, 5)
    pointer = c_void_p(5)
    refuses(hip.hipMemGetInfo, byref(free), WILD)
    refuses(hip.hipMallocPitch, byref(pointer), WILD, 16, 16)
    refuses(hip.hipMallocPitch, WILD, byref(pitch), 16, 16)
    refuses(hip.hipMemGetAddressRange, byref(base), WILD, memory)
    selectors, outs = (c_int * 2)(11, 12), pointers(addressof(values), WILD)
    refuses(hip.hipDrvPointerGetAttributes, 2, selectors, outs, memory)
    assert [free.value, pitch.value, base.value, pointer.value, *values] == [5] * 6


def test_a_refused_allocation_takes_no_memory(hip: Hip) -> None:
    def free() -> int:
        value = c_size_t()
        hip.hipMemGetInfo(byref(value), None)
        return value.value

    before = free()
    for call in ("hipMalloc", "hipHostMalloc", "hipMallocManaged", "hipMallocAsync"):
        refuses(getattr(hip, call), WILD, 4096, 0)
    refuses(hip.hipMalloc3D, WILD, Extent(16, 16, 16))
    assert free() == before


def test_registered_memory_that_is_gone(hip: Hip, memory: int) -> None:
    libc = ctypes.CDLL(None)
    libc.mmap.restype = c_void_p
    place = libc.mmap(None, c_size_t(mmap.PAGESIZE), 3, 0x22, -1, c_size_t(0))
    hip.hipHostRegister(place, mmap.PAGESIZE, 0)
    libc.munmap(c_void_p(place), c_size_t(mmap.PAGESIZE))
    refuses(hip.hipMemcpy, memory, place, 64, HOST_TO_DEVICE)
    refuses(hip.hipMemcpy, place, memory, 64, DEFAULT_KIND)
    refuses(hip.hipMemset, place, 0, 64)
    hip.hipHostUnregister(place)


def test_read_only_memory_is_registered_as_such(hip: Hip) -> None:
    libc = ctypes.CDLL(None)
    libc.mmap.restype = c_void_p
    place = libc.mmap(None, c_size_t(mmap.PAGESIZE), mmap.PROT_READ, 0x22, -1, c_size_t(0))
    refuses(hip.hipHostRegister, place, mmap.PAGESIZE, 0)
    hip.hipHostRegister(place, mmap.PAGESIZE, 8)
    hip.hipHostUnregister(place)
    libc.mprotect(c_void_p(place), c_size_t(mmap.PAGESIZE), 0)
    refuses(hip.hipHostRegister, place, mmap.PAGESIZE, 8)
    libc.munmap(c_void_p(place), c_size_t(mmap.PAGESIZE))


# ---- counts and extents


def test_counts_that_wrap_around(hip: Hip, graph: c_void_p, memory: int) -> None:
    nodes = pointers(0, 0)
    node, count = c_void_p(), c_size_t(HUGE)
    hip.hipGraphAddEmptyNode(byref(node), graph, None, 0)
    nodes[0] = node.value
    out = c_void_p()
    refuses(hip.hipGraphAddEmptyNode, byref(out), graph, nodes, HUGE)
    refuses(hip.hipGraphAddMemsetNode, byref(out), graph, nodes, HUGE, byref(Fill(memory, 4, 1, 0, 7, 16)))
    assert out.value is None
    refuses(hip.hipGraphAddDependencies, graph, nodes, nodes, HUGE)
    refuses(hip.hipGraphRemoveDependencies, graph, nodes, nodes, HUGE)
    for call, handle in (("hipGraphGetNodes", graph), ("hipGraphGetRootNodes", graph),
                         ("hipGraphNodeGetDependencies", node), ("hipGraphNodeGetDependentNodes", node)):  # fmt: skip
        refuses(getattr(hip, call), handle, nodes, byref(count))
    refuses(hip.hipGraphGetEdges, graph, nodes, nodes, byref(count))
    assert (count.value, nodes[0], nodes[1]) == (HUGE, node.value, None)
    pool = c_void_p()
    hip.hipDeviceGetDefaultMemPool(byref(pool), 0)
    refuses(hip.hipMemPoolSetAccess, pool, (c_int * 3)(1, 0, 3), 2**64 // 12 + 1)
    refuses(hip.hipDrvPointerGetAttributes, c_uint(2**32 - 1), (c_int * 1)(2), nodes, memory)
    refuses(hip.hipSetValidDevices, (c_int * 1)(0), c_int(2**31 - 1))
    stream = c_void_p()
    hip.hipStreamCreate(byref(stream))
    refuses(hip.hipStreamBeginCaptureToGraph, stream, graph, nodes, None, HUGE, 2)
    hip.hipStreamDestroy(stream)


def test_extents_that_wrap_around(hip: Hip, memory: int) -> None:
    host = np.zeros(4096, np.uint8)
    refuses(hip.hipMemcpy, memory, host, 2**64 - 1, HOST_TO_DEVICE)
    refuses(hip.hipMemcpy2D, memory, 2**32, host, 2**32, 16, 2**32 + 1, HOST_TO_DEVICE)
    refuses(hip.hipMemset2D, memory, 2**32, 0, 16, 2**32 + 1)
    refuses(hip.hipMemsetD32, memory, 0, 2**62 + 1)
    refuses(hip.hipMemset3D, Pitched(memory, 2**33, 16, 2**31), 0, Extent(16, 1, 2))
    refuses(hip.hipMemset3D, Pitched(memory, 64, 64, 4), 0, Extent(16, 1, 2**60))
    out = (c_char * 32)()
    refuses(hip.hipMalloc3D, byref(out), Extent(2**20, 2**32, 2**32), error="hipErrorOutOfMemory")
    refuses(hip.hipMalloc3D, byref(out), Extent(2**64 - 1, 1, 1), error="hipErrorOutOfMemory")
    assert not any(out.raw)
    # Positions that lead back to where they began.
    rows = Copy2D(srcType=1, srcY=2**58, srcHost=host.ctypes.data, srcPitch=64, dstType=2, dstDevice=memory,
                  dstPitch=64, width=64, height=1)  # fmt: skip
    refuses(hip.hipMemcpyParam2D, byref(rows))
    rows.srcY, rows.dstX = 0, 2**64 - 64
    refuses(hip.hipMemcpyParam2D, byref(rows))
    place, source = Pitched(memory, 64, 64, 4), Pitched(host.ctypes.data, 64, 64, 4)
    for position in (Extent(0, 2**58, 0), Extent(0, 0, 2**56), Extent(2**64 - 64, 1, 0)):
        copy = Copy3D(srcPtr=source, srcPos=position, dstPtr=place, extent=Extent(64, 1, 1), kind=HOST_TO_DEVICE)
        refuses(hip.hipMemcpy3D, byref(copy))
    hip.hipMemcpy3D(byref(Copy3D(srcPtr=source, dstPtr=place, extent=Extent(64, 4, 1), kind=HOST_TO_DEVICE)))
