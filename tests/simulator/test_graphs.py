"""HIP graphs: built node by node, captured from streams, instantiated, updated and launched."""

from __future__ import annotations

import ctypes
import threading
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from pathlib import Path

import numpy as np
import pytest
from helpers.simulated_hip import DEVICE_TO_DEVICE, DEVICE_TO_HOST, HOST_TO_DEVICE, Compiler, Hip, HipCallError

SOURCE = """
extern "C" __global__ void add(int* data, int value) { data[__builtin_amdgcn_workitem_id_x()] += value; }
extern "C" __global__ void multiply(int* data, int value) { data[__builtin_amdgcn_workitem_id_x()] *= value; }
"""
COUNT, BYTES = 64, 256
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
NON_BLOCKING = 1
KERNEL, MEMCPY, MEMSET, HOST, GRAPH, EMPTY, WAIT_EVENT, EVENT_RECORD = range(8)
NONE, ACTIVE, INVALIDATED = 0, 1, 2
HOST_FUNCTION = ctypes.CFUNCTYPE(None, c_void_p)


class Dim3(ctypes.Structure):
    _fields_ = [("x", c_uint), ("y", c_uint), ("z", c_uint)]


class KernelParams(ctypes.Structure):
    _fields_ = [
        ("block", Dim3),
        ("extra", c_void_p),
        ("function", c_void_p),
        ("grid", Dim3),
        ("arguments", ctypes.POINTER(c_void_p)),
        ("dynamic_lds", c_uint),
    ]


class MemsetParams(ctypes.Structure):
    _fields_ = [
        ("destination", c_void_p),
        ("element_size", c_uint),
        ("height", c_size_t),
        ("pitch", c_size_t),
        ("value", c_uint),
        ("width", c_size_t),
    ]


class HostParams(ctypes.Structure):
    _fields_ = [("function", HOST_FUNCTION), ("data", c_void_p)]


def refused(error: str, message: str = ""):
    return pytest.raises(HipCallError, match=f"^{error}: .*{message}")


class Client:
    """A small HIP program: kernels, a buffer of 64 ints, and calls with their handles as ints."""

    def __init__(self, hip: Hip, code: bytes) -> None:
        self.hip = hip
        self.module = hip.load(code)
        self.functions = {name: hip.function(self.module, name) for name in ("add", "multiply")}
        self.data = hip.malloc(BYTES)
        self.streams: list[int] = []
        self.fill(0)

    def close(self) -> None:
        for stream in self.streams:
            self.hip.lib.hipStreamDestroy(c_void_p(stream))
        self.hip.hipFree(self.data)
        self.hip.hipModuleUnload(self.module)

    def out(self, call: str, *arguments) -> int:
        """Calls a function that returns a handle in its first argument; returns the handle."""
        handle = c_void_p()
        getattr(self.hip, call)(byref(handle), *arguments)
        return handle.value or 0

    def stream(self, flags: int = NON_BLOCKING) -> int:
        self.streams.append(self.out("hipStreamCreateWithFlags", flags))
        return self.streams[-1]

    def event(self) -> int:
        return self.out("hipEventCreate")

    def fill(self, value: int) -> None:
        self.hip.hipMemsetD32(self.data, value, COUNT)

    def values(self) -> set[int]:
        return set(self.hip.download(self.data, np.empty(COUNT, np.int32)).tolist())

    def launch(self, stream: int, name: str, value: int) -> None:
        self.hip.launch(self.functions[name], 1, COUNT, self.data, c_int(value), stream=stream)

    def kernel_params(self, name: str, value: int, data: int | None = None) -> KernelParams:
        values = (c_void_p(data or self.data), c_int(value))
        pointers = (c_void_p * 2)(*map(ctypes.addressof, values))
        params = KernelParams(Dim3(COUNT, 1, 1), None, self.functions[name].value, Dim3(1, 1, 1), pointers, 0)
        params.keep = (values, pointers)
        return params

    def node(self, kind: str, graph: int, before: list[int], *arguments) -> int:
        nodes = (c_void_p * len(before))(*before) if before else None
        return self.out(f"hipGraphAdd{kind}", graph, nodes, len(before), *arguments)

    def kernel(self, graph: int, before: list[int], name: str, value: int) -> int:
        return self.node("KernelNode", graph, before, byref(self.kernel_params(name, value)))

    def begin(self, stream: int, mode: int = GLOBAL) -> None:
        self.hip.hipStreamBeginCapture(stream, mode)

    def end(self, stream: int) -> int:
        graph = c_void_p()
        self.hip.hipStreamEndCapture(stream, byref(graph))
        return graph.value or 0

    def status(self, stream: int) -> int:
        status = c_int(-1)
        self.hip.hipStreamIsCapturing(stream, byref(status))
        return status.value

    def run(self, graph: int, times: int = 1) -> None:
        executable = self.out("hipGraphInstantiate", graph, None, None, 0)
        for _ in range(times):
            self.hip.hipGraphLaunch(executable, None)
        self.hip.hipGraphExecDestroy(executable)

    def list(self, call: str, handle: int) -> list[int]:
        count = c_size_t()
        getattr(self.hip, call)(handle, None, byref(count))
        nodes = (c_void_p * count.value)()
        getattr(self.hip, call)(handle, nodes, byref(count))
        return list(nodes)

    def type(self, node: int) -> int:
        kind = c_int(-1)
        self.hip.hipGraphNodeGetType(node, byref(kind))
        return kind.value


@pytest.fixture(scope="module")
def code(compiler: Compiler) -> bytes:
    return compiler.code_object(SOURCE)


@pytest.fixture
def client(hip: Hip, code: bytes):
    client = Client(hip, code)
    yield client
    client.close()


# ---- graphs built node by node


def test_nodes_of_every_type(client: Client) -> None:
    """memset to 3, + 4 = 7, copied; a host function reads the copy; * 2 in a child graph."""
    hip, seen = client.hip, []
    copy, host = hip.malloc(BYTES), np.zeros(COUNT, np.int32)
    callback = HOST_FUNCTION(lambda data: seen.append((data, host[0])))
    graph, inner = client.out("hipGraphCreate", 0), client.out("hipGraphCreate", 0)
    client.kernel(inner, [], "multiply", 2)
    event = client.event()

    fill = client.node("MemsetNode", graph, [], byref(MemsetParams(client.data, 4, 1, BYTES, 3, COUNT)))
    add = client.kernel(graph, [fill], "add", 4)
    away = client.node("MemcpyNode1D", graph, [add], copy, client.data, BYTES, DEVICE_TO_DEVICE)
    home = client.node("MemcpyNode1D", graph, [away], host, copy, BYTES, DEVICE_TO_HOST)
    call = client.node("HostNode", graph, [home], byref(HostParams(callback, 42)))
    nothing = client.node("EmptyNode", graph, [call])
    wait = client.node("EventWaitNode", graph, [nothing], event)
    child = client.node("ChildGraphNode", graph, [wait], inner)
    record = client.node("EventRecordNode", graph, [child], event)
    nodes = [fill, add, away, home, call, nothing, wait, child, record]

    assert client.list("hipGraphGetNodes", graph) == nodes
    assert client.list("hipGraphGetRootNodes", graph) == [fill]
    assert client.list("hipGraphNodeGetDependencies", add) == [fill]
    assert client.list("hipGraphNodeGetDependentNodes", add) == [away]
    assert [client.type(node) for node in nodes] == [
        MEMSET, KERNEL, MEMCPY, MEMCPY, HOST, EMPTY, WAIT_EVENT, GRAPH, EVENT_RECORD,
    ]  # fmt: skip
    assert client.values() == {0}, "nothing runs before the launch"
    client.run(graph)
    assert client.values() == {14}
    assert seen == [(42, 7)]
    hip.hipEventSynchronize(event)
    hip.hipGraphDestroy(inner)
    hip.hipGraphDestroy(graph)
    with refused("hipErrorInvalidHandle", "not a node of a graph"):
        client.type(add)
    hip.hipFree(copy)


def test_order_is_that_of_the_dependencies(client: Client) -> None:
    """(0 + 5) * 3, where the multiplication was added first."""
    graph = client.out("hipGraphCreate", 0)
    multiply = client.kernel(graph, [], "multiply", 3)
    add = client.kernel(graph, [], "add", 5)
    edges = (c_void_p(add), c_void_p(multiply))
    client.hip.hipGraphAddDependencies(graph, byref(edges[0]), byref(edges[1]), 1)
    client.run(graph)
    assert client.values() == {15}
    with refused("hipErrorInvalidValue", "exists already"):
        client.hip.hipGraphAddDependencies(graph, byref(edges[0]), byref(edges[1]), 1)
    client.hip.hipGraphAddDependencies(graph, byref(edges[1]), byref(edges[0]), 1)
    with refused("hipErrorInvalidValue", "cycle"):
        client.run(graph)
    client.hip.hipGraphRemoveDependencies(graph, byref(edges[1]), byref(edges[0]), 1)
    client.hip.hipGraphDestroyNode(add)
    assert client.list("hipGraphNodeGetDependencies", multiply) == []
    client.run(graph)
    assert client.values() == {45}
    client.hip.hipGraphDestroy(graph)


def test_a_node_waits_for_all_of_its_dependencies(client: Client) -> None:
    """(0 + 5) * 3 + 2, where the last node depends on both others, and was added before the second."""
    graph = client.out("hipGraphCreate", 0)
    first = client.kernel(graph, [], "add", 5)
    last = client.kernel(graph, [first], "add", 2)
    second = client.kernel(graph, [first], "multiply", 3)
    edge = (c_void_p(second), c_void_p(last))
    client.hip.hipGraphAddDependencies(graph, byref(edge[0]), byref(edge[1]), 1)
    client.run(graph)
    assert client.values() == {17}
    client.hip.hipGraphDestroy(graph)


def test_parameters_of_nodes(client: Client) -> None:
    hip, graph = client.hip, client.out("hipGraphCreate", 0)
    fill = client.node("MemsetNode", graph, [], byref(MemsetParams(client.data, 4, 1, BYTES, 3, COUNT)))
    add = client.kernel(graph, [fill], "add", 4)
    executable = client.out("hipGraphInstantiateWithFlags", graph, c_ulonglong(0))

    params = KernelParams()
    hip.hipGraphKernelNodeGetParams(add, byref(params))
    assert (params.function, params.block.x, params.grid.x) == (client.functions["add"].value, COUNT, 1)
    assert ctypes.c_int.from_address(params.arguments[1]).value == 4
    found = MemsetParams()
    hip.hipGraphMemsetNodeGetParams(fill, byref(found))
    assert (found.destination, found.element_size, found.width, found.value) == (client.data, 4, COUNT, 3)

    hip.hipGraphExecKernelNodeSetParams(executable, add, byref(client.kernel_params("multiply", 5)))
    hip.hipGraphLaunch(executable, None)
    assert client.values() == {15}
    client.run(graph)
    assert client.values() == {7}, "the graph itself is as it was"
    hip.hipGraphKernelNodeSetParams(add, byref(client.kernel_params("add", 10)))
    client.run(graph)
    assert client.values() == {13}
    hip.hipGraphNodeSetEnabled(executable, add, 0)
    hip.hipGraphLaunch(executable, None)
    assert client.values() == {3}
    with refused("hipErrorInvalidValue", "another type"):
        hip.hipGraphKernelNodeGetParams(fill, byref(params))
    with refused("hipErrorInvalidValue", "not 0"):
        hip.hipGraphExecKernelNodeSetParams(executable, fill, byref(client.kernel_params("add", 1)))
    hip.hipGraphExecDestroy(executable)
    hip.hipGraphDestroy(graph)
    with refused("hipErrorInvalidHandle", "not an executable graph"):
        hip.hipGraphLaunch(executable, None)


def test_update_of_an_executable_graph(client: Client) -> None:
    hip, graphs = client.hip, []
    for value in (1, 100):
        graph = client.out("hipGraphCreate", 0)
        client.kernel(graph, [client.kernel(graph, [], "add", value)], "add", value)
        graphs.append(graph)
    executable = client.out("hipGraphInstantiate", graphs[0], None, None, 0)
    node, result = c_void_p(), c_int()
    hip.hipGraphExecUpdate(executable, graphs[1], byref(node), byref(result))
    hip.hipGraphLaunch(executable, None)
    assert client.values() == {200}
    extra = client.kernel(graphs[1], [], "add", 1)
    with refused("hipErrorGraphExecUpdateFailure"):
        hip.hipGraphExecUpdate(executable, graphs[1], byref(node), byref(result))
    assert result.value == 2  # topology
    hip.hipGraphDestroyNode(extra)
    hip.hipGraphLaunch(executable, None)
    assert client.values() == {400}


def test_clones(client: Client) -> None:
    graph = client.out("hipGraphCreate", 0)
    add = client.kernel(graph, [], "add", 2)
    clone = client.out("hipGraphClone", graph)
    twin = client.out("hipGraphNodeFindInClone", add, clone)
    assert client.list("hipGraphGetNodes", clone) == [twin]
    client.hip.hipGraphKernelNodeSetParams(twin, byref(client.kernel_params("add", 30)))
    client.hip.hipGraphDestroy(graph)
    client.run(clone)
    assert client.values() == {30}


def test_user_objects_live_as_long_as_their_graphs(client: Client) -> None:
    destroyed = []
    destructor = HOST_FUNCTION(destroyed.append)
    graph = client.out("hipGraphCreate", 0)
    held = client.out("hipUserObjectCreate", 7, destructor, 1, 1)
    client.hip.hipGraphRetainUserObject(graph, held, 1, 1)  # moved
    executable = client.out("hipGraphInstantiate", graph, None, None, 0)
    client.hip.hipGraphDestroy(graph)
    assert destroyed == []
    client.hip.hipGraphExecDestroy(executable)
    assert destroyed == [7]


def test_dot(client: Client, tmp_path: Path) -> None:
    graph = client.out("hipGraphCreate", 0)
    client.kernel(graph, [client.kernel(graph, [], "add", 2)], "multiply", 2)
    client.hip.hipGraphDebugDotPrint(graph, c_char_p(str(tmp_path / "graph.dot").encode()), 0)
    text = (tmp_path / "graph.dot").read_text()
    assert "0 -> 1" in text
    assert "kernel multiply" in text


def test_bad_handles_and_nodes(client: Client) -> None:
    hip, graph, other = client.hip, client.out("hipGraphCreate", 0), client.out("hipGraphCreate", 0)
    for wild in (None, 0x10, 2**64 - 8, client.data):
        with refused("hipErrorInvalidHandle", "not a graph"):
            hip.hipGraphDestroy(wild)
        with refused("hipErrorInvalidHandle"):
            client.kernel(graph, [wild or 0x20], "add", 1)
        with refused("hipErrorInvalidHandle"):
            hip.hipGraphLaunch(wild, None)
    node = client.kernel(other, [], "add", 1)
    with refused("hipErrorInvalidValue", "another graph"):
        client.kernel(graph, [node], "add", 1)
    with refused("hipErrorInvalidValue", "twice"):
        client.kernel(other, [node, node], "add", 1)
    with refused("hipErrorInvalidValue", "can't be read"):
        hip.hipGraphAddEmptyNode(byref(c_void_p()), graph, c_void_p(0x10), 3)
    with refused("hipErrorInvalidConfiguration"):
        params = client.kernel_params("add", 1)
        params.block.x = 4096
        client.node("KernelNode", graph, [], byref(params))
    assert client.list("hipGraphGetNodes", graph) == []


def test_a_failing_node_fails_the_launch_and_the_next_one_works(client: Client) -> None:
    graph = client.out("hipGraphCreate", 0)
    node = client.node("KernelNode", graph, [], byref(client.kernel_params("add", 1, data=0x1000)))
    with refused("hipErrorIllegalAddress", "lane 0"):
        client.run(graph)
    client.hip.hipGraphKernelNodeSetParams(node, byref(client.kernel_params("add", 1)))
    client.run(graph)
    assert client.values() == {1}


# ---- capture


def test_captured_work_runs_at_the_launch(client: Client) -> None:
    stream = client.stream()
    host = np.full(COUNT, 6, np.int32)
    client.begin(stream)
    assert client.status(stream) == ACTIVE
    client.hip.hipMemcpyAsync(client.data, host, BYTES, HOST_TO_DEVICE, stream)
    value = 1
    client.launch(stream, "add", value)
    client.hip.hipMemsetD32Async(client.data, 9, 1, stream)
    client.launch(stream, "multiply", 2)
    assert client.values() == {0}
    graph = client.end(stream)
    assert client.status(stream) == NONE
    assert [client.type(node) for node in client.list("hipGraphGetNodes", graph)] == [MEMCPY, KERNEL, MEMSET, KERNEL]
    client.run(graph, times=2)
    assert client.values() == {14, 18}
    client.launch(stream, "add", 1)  # runs again
    assert client.values() == {15, 19}
    client.hip.hipGraphDestroy(graph)


def test_streams_join_a_capture_through_events(client: Client) -> None:
    """Fork and join: + 1 in the first stream, then * 10 in the second, then + 2 in the first."""
    first, second = client.stream(), client.stream()
    fork, join = client.event(), client.event()
    client.begin(first)
    client.launch(first, "add", 1)
    client.hip.hipEventRecord(fork, first)
    client.hip.hipStreamWaitEvent(second, fork, 0)
    assert client.status(second) == ACTIVE
    client.launch(second, "multiply", 10)
    client.hip.hipEventRecord(join, second)
    client.hip.hipStreamWaitEvent(first, join, 0)
    client.launch(first, "add", 2)
    graph = client.end(first)
    assert client.status(second) == NONE
    nodes = client.list("hipGraphGetNodes", graph)
    assert client.list("hipGraphNodeGetDependencies", nodes[1]) == [nodes[0]]
    assert client.list("hipGraphNodeGetDependencies", nodes[2]) == [nodes[0], nodes[1]]
    client.run(graph)
    assert client.values() == {12}


def test_events_order_streams_without_capture(client: Client) -> None:
    first, second, event = client.stream(), client.stream(), client.event()
    client.launch(first, "add", 2)
    client.hip.hipEventRecord(event, first)
    client.hip.hipStreamWaitEvent(second, event, 0)
    client.launch(second, "multiply", 4)
    client.hip.hipStreamSynchronize(second)
    assert client.values() == {8}


def test_graphs_are_captured_into_graphs(client: Client) -> None:
    stream = client.stream()
    client.begin(stream)
    client.launch(stream, "add", 3)
    inner = client.out("hipGraphInstantiate", client.end(stream), None, None, 0)
    client.begin(stream)
    client.hip.hipGraphLaunch(inner, stream)
    client.hip.hipGraphLaunch(inner, stream)
    graph = client.end(stream)
    client.hip.hipGraphExecDestroy(inner)
    assert [client.type(node) for node in client.list("hipGraphGetNodes", graph)] == [GRAPH, GRAPH]
    assert client.values() == {0}
    client.run(graph)
    assert client.values() == {6}


def test_capture_into_a_graph_that_exists(client: Client) -> None:
    stream, graph = client.stream(), client.out("hipGraphCreate", 0)
    root = client.kernel(graph, [], "add", 1)
    client.hip.hipStreamBeginCaptureToGraph(stream, graph, byref(c_void_p(root)), None, 1, RELAXED)
    client.launch(stream, "multiply", 7)
    status, number, found, count = c_int(), c_ulonglong(), c_void_p(), c_size_t()
    last = ctypes.POINTER(c_void_p)()
    client.hip.hipStreamGetCaptureInfo_v2(stream, byref(status), byref(number), byref(found), byref(last), byref(count))
    assert (status.value, found.value, count.value) == (ACTIVE, graph, 1)
    with refused("hipErrorIllegalState", "captures into the graph"):
        client.hip.hipGraphDestroy(graph)
    client.hip.hipStreamUpdateCaptureDependencies(stream, byref(c_void_p(root)), 1, 1)  # replaces the kernel
    assert client.end(stream) == graph
    client.run(graph)
    assert client.values() == {7}


def invalid(client: Client, stream: int) -> None:
    """Checks that the capture is invalid and yields no graph, and that the stream works again afterwards."""
    assert client.status(stream) == INVALIDATED
    with refused("hipErrorStreamCaptureInvalidated"):
        client.launch(stream, "add", 1)
    with refused("hipErrorStreamCaptureInvalidated"):
        client.end(stream)
    assert client.status(stream) == NONE
    client.fill(0)
    client.launch(stream, "add", 1)
    assert client.values() == {1}


@pytest.mark.parametrize("call", ["hipStreamSynchronize", "hipStreamQuery"])
def test_waiting_for_a_capturing_stream(client: Client, call: str) -> None:
    stream = client.stream()
    client.begin(stream, RELAXED)
    with refused("hipErrorStreamCaptureUnsupported"):
        getattr(client.hip, call)(stream)
    invalid(client, stream)


@pytest.mark.parametrize("call", ["hipEventSynchronize", "hipEventQuery"])
def test_waiting_for_a_captured_event(client: Client, call: str) -> None:
    stream, event = client.stream(), client.event()
    client.begin(stream)
    client.hip.hipEventRecord(event, stream)
    with refused("hipErrorCapturedEvent"):
        getattr(client.hip, call)(event)
    invalid(client, stream)
    client.hip.hipEventRecord(event, None)
    getattr(client.hip, call)(event)


def test_the_legacy_stream_while_a_blocking_one_captures(client: Client) -> None:
    stream = client.stream(flags=0)
    client.begin(stream)
    with refused("hipErrorStreamCaptureImplicit"):
        client.status(0)
    assert client.status(stream) == ACTIVE  # asking doesn't invalidate the capture
    with refused("hipErrorStreamCaptureImplicit"):
        client.launch(0, "add", 1)
    with refused("hipErrorStreamCaptureImplicit"):
        client.hip.hipMemset(client.data, 0, 4)
    with refused("hipErrorStreamCaptureInvalidated"):
        client.end(stream)
    other = client.stream()
    client.begin(other)
    client.launch(0, "add", 1)  # isn't ordered with a non-blocking stream
    client.end(other)
    assert client.values() == {1}


def test_capture_modes(client: Client) -> None:
    """Whether hipMalloc is allowed while this or another thread captures, for each mode."""

    def malloc() -> bool:
        pointer = c_void_p()
        status = client.hip.lib.hipMalloc(byref(pointer), c_size_t(16))
        if status == 0:
            client.hip.lib.hipFree(pointer)
        return status == 0

    def in_thread() -> bool:
        results: list[bool] = []
        thread = threading.Thread(target=lambda: results.append(malloc()))
        thread.start()
        thread.join()
        return results[0]

    for mode, here, elsewhere in ((GLOBAL, False, False), (THREAD_LOCAL, False, True), (RELAXED, True, True)):
        stream = client.stream()
        client.begin(stream, mode)
        assert in_thread() == elsewhere
        assert malloc() == here
        assert client.status(stream) == (ACTIVE if here else INVALIDATED)
        client.hip.lib.hipStreamEndCapture(c_void_p(stream), byref(c_void_p()))
    stream, relaxed = client.stream(), c_int(RELAXED)
    client.begin(stream)
    client.hip.hipThreadExchangeStreamCaptureMode(byref(relaxed))
    assert relaxed.value == GLOBAL
    assert malloc()
    client.hip.hipThreadExchangeStreamCaptureMode(byref(relaxed))
    assert not malloc()
    with refused("hipErrorStreamCaptureUnsupported"):
        client.hip.hipDeviceSynchronize()


def test_captures_that_end_wrong(client: Client) -> None:
    first, second, event = client.stream(), client.stream(), client.event()
    with refused("hipErrorIllegalState", "captures nothing"):
        client.end(first)
    for legacy in (0, 1):
        with refused("hipErrorStreamCaptureUnsupported", "legacy"):
            client.begin(legacy)
    with refused("hipErrorInvalidValue", "hipStreamCaptureMode"):
        client.begin(first, 3)
    client.begin(first)
    with refused("hipErrorIllegalState", "already"):
        client.begin(first)
    client.hip.hipEventRecord(event, first)
    client.hip.hipStreamWaitEvent(second, event, 0)
    client.launch(second, "add", 1)
    with refused("hipErrorStreamCaptureUnmatched"):
        client.end(second)
    errors: list[str] = []

    def end() -> None:
        try:
            client.end(first)
        except HipCallError as error:
            errors.append(error.name)

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    assert errors == ["hipErrorStreamCaptureWrongThread"]
    with refused("hipErrorStreamCaptureUnjoined"):
        client.end(first)
    assert client.status(first) == client.status(second) == NONE


def test_events_from_elsewhere(client: Client) -> None:
    first, second, outside, inside = client.stream(), client.stream(), client.event(), client.event()
    client.hip.hipEventRecord(outside, second)
    client.begin(first)
    with refused("hipErrorStreamCaptureIsolation"):
        client.hip.hipStreamWaitEvent(first, outside, 0)
    invalid(client, first)
    client.begin(first)
    client.begin(second)
    client.hip.hipEventRecord(inside, second)
    with refused("hipErrorStreamCaptureMerge"):
        client.hip.hipStreamWaitEvent(first, inside, 0)
    invalid(client, first)
    with refused("hipErrorStreamCaptureInvalidated"):
        client.end(second)


def test_a_capturing_stream_is_destroyed(client: Client) -> None:
    first, second, event = client.stream(), client.stream(), client.event()
    client.begin(first)
    client.hip.hipEventRecord(event, first)
    client.hip.hipStreamWaitEvent(second, event, 0)
    client.hip.hipStreamDestroy(first)
    assert client.status(second) == NONE
    client.launch(second, "add", 1)
    assert client.values() == {1}


def test_calls_that_no_graph_can_hold(client: Client) -> None:
    stream, pointer = client.stream(), c_void_p()
    for arguments in (
        ("hipMallocAsync", byref(pointer), 16, stream),
        ("hipFreeAsync", client.data, stream),
        ("hipStreamAddCallback", stream, HOST_FUNCTION(print), None, 0),
        ("hipMemcpyWithStream", client.data, client.data, 4, DEVICE_TO_DEVICE, stream),
    ):
        client.begin(stream)
        with refused("hipErrorStreamCaptureUnsupported"):
            getattr(client.hip, arguments[0])(*arguments[1:])
        invalid(client, stream)
