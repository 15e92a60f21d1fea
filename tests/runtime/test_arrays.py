"""Every function takes arrays of hip-python in a process whose torch has no ROCm."""

from __future__ import annotations

import copy
import ctypes
import pickle
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from helpers.device_memory import Changed, Memory, call
from helpers.forked import in_clean_child
from helpers.good_calls import GOOD

import deep_gemm_rocm as dg
from deep_gemm_rocm import jit, simulator
from deep_gemm_rocm.launch.scratch import Scratch
from deep_gemm_rocm.runtime import array_protocols, array_runtime, arrays, hip, session, streams
from deep_gemm_rocm.testing import assert_accurate, attention_reference, gemm_problem, gemm_reference, visible_keys


@pytest.fixture
def memory():
    memory = Memory()
    yield memory
    memory.free()


def with_tensors(value: Any, change: Any) -> Any:
    """Arguments or results with each tensor replaced by ``change(tensor)``."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: with_tensors(part, change) for name, part in value.items()}
    return type(value)(with_tensors(part, change) for part in value) if isinstance(value, (tuple, list)) else value


def found(value: Any) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    with_tensors(value, tensors.append)
    return tensors


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().contiguous().view(-1).view(torch.uint8)


@pytest.mark.parametrize("name", [name for name, good in GOOD.items() if found(good())])
def test_every_function_gives_the_same_bits_as_for_tensors(memory, name):
    arguments = GOOD[name]()
    arrays = with_tensors(arguments, memory.array)
    function = getattr(dg, name)
    expected, actual = function(**arguments), function(**arrays)
    for written, array in zip(found(arguments), found(arrays), strict=True):
        assert bits(array).equal(bits(written))
    assert len(found(expected)) == len(found(actual))
    for result, array in zip(found(expected), found(actual), strict=True):
        assert isinstance(array, dg.DeviceTensor)
        assert (array.shape, array.dtype, array.stride()) == (result.shape, result.dtype, result.stride())
        assert bits(array).equal(bits(result))
    if not found(expected):
        assert actual == expected


def test_no_sequences_have_a_schedule(memory):
    none = memory.array(torch.zeros(2, dtype=torch.int32))[:0]
    assert bits(dg.get_paged_mqa_logits_metadata(none, 64, 3)).equal(bits(torch.zeros(4, 2)))


def problem(memory: Memory, m: int = 20, n: int = 48, k: int = 256, seed: int = 0) -> tuple[Any, Any, dg.DeviceTensor]:
    """Operands, and an output full of NaN."""
    a, b = with_tensors(gemm_problem(m, n, k, seed), memory.array)
    return a, b, memory.array(torch.full((m, n), torch.nan, dtype=torch.bfloat16))


def assert_right(actual: torch.Tensor, m: int, n: int, k: int, seed: int = 0) -> None:
    assert_accurate(actual.cpu(), gemm_reference(*gemm_problem(m, n, k, seed)))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 8, 128), (37, 48, 272), (130, 136, 128)])
def test_accurate_again_and_again(memory, m, n, k):
    for seed in range(3):
        a, b, d = problem(memory, m, n, k, seed)
        dg.fp8_gemm_nt(a, b, d)
        assert_right(d, m, n, k, seed)
        assert_right(dg.gemm_fp8(a, b), m, n, k, seed)


def kept():
    """The scratch memory of this thread."""
    return session.current().of(Scratch).kept()


def summed(memory: Memory, seed: int = 0) -> tuple[Any, Any, Any, torch.Tensor]:
    """Operands, output and expected result of an Einstein sum that needs a second kernel to add up parts."""
    a, b = gemm_problem(8 * 16, 32, 256, seed)[0][0], gemm_problem(8 * 24, 32, 256, seed)[0][0]
    a, b = a.bfloat16().view(8, 16, 256), b.bfloat16().view(8, 24, 256)
    expected = torch.empty(16, 24)
    dg.einsum("bmk,bnk->mn", a, b, expected)
    return memory.array(a), memory.array(b), memory.array(torch.full((16, 24), torch.nan)), expected


def test_splits_have_scratch(memory):
    kept().clear()
    for seed in range(3):
        a, b, d, expected = summed(memory, seed)
        dg.einsum("bmk,bnk->mn", a, b, d)
        assert d.cpu().equal(expected)
    assert len(kept()) == 2  # that for arrays, and that for tensors


def test_attention_is_accurate(memory):
    q, k, v = (torch.randn(2, tokens, 4, 64).bfloat16() for tokens in (5, 70, 70))
    out, lse = dg.flash_attention(*map(memory.array, (q, k, v)), causal=True, return_lse=True)
    reference = attention_reference(q, k, v, seen=visible_keys(5, 70, True, None))
    reference.assert_accurate(out.cpu(), lse.cpu())


def test_a_call_like_an_earlier_one_is_still_checked(memory):
    a, b, d = problem(memory)
    dg.fp8_gemm_nt(a, b, d)
    wide = memory.allocate(2 * 20 * 256)
    with pytest.raises(ValueError, match=r"a\[0\] must start at a multiple of 16 bytes"):
        dg.fp8_gemm_nt((dg.as_tensor(wide)[8 : 8 + 20 * 256].view(a[0].dtype).view(20, 256), a[1]), b, d)
    with pytest.raises(ValueError, match="d must be writable"):
        dg.fp8_gemm_nt(a, b, dg.as_tensor(Changed(d, data=(d.data_ptr(), True)), torch.bfloat16))
    assert_right(d, 20, 48, 256)


# ---- streams


@pytest.fixture
def stream(memory):
    stream = call(memory.hip.hipStreamCreateWithFlags, 1)  # hipStreamNonBlocking
    yield stream
    call(memory.hip.hipStreamDestroy, stream)


class Captured:
    """Inside, captures a stream's launches into a graph with hip-python."""

    def __init__(self, memory: Memory, stream: Any) -> None:
        self.hip, self.stream = memory.hip, stream

    def __enter__(self) -> Captured:
        call(self.hip.hipStreamBeginCapture, self.stream, self.hip.hipStreamCaptureMode.hipStreamCaptureModeGlobal)
        return self

    def __exit__(self, *_: object) -> None:
        self.graph = call(self.hip.hipStreamEndCapture, self.stream)
        self.executable = call(self.hip.hipGraphInstantiateWithFlags, self.graph, 0)

    def replay(self) -> None:
        call(self.hip.hipGraphLaunch, self.executable, self.stream)
        call(self.hip.hipStreamSynchronize, self.stream)

    def destroy(self) -> None:
        call(self.hip.hipGraphExecDestroy, self.executable)
        call(self.hip.hipGraphDestroy, self.graph)


def number_of(what: str, graph: Any) -> int:
    """The number of a graph's nodes or edges. The bindings' own functions can't ask for the number alone."""
    number, nothing = ctypes.c_size_t(), (None,) * (1 if what == "Nodes" else 2)
    count = getattr(ctypes.CDLL(str(hip.runtime().path)), f"hipGraphGet{what}")
    assert count(ctypes.c_void_p(int(graph)), *nothing, ctypes.byref(number)) == 0
    return number.value


@pytest.mark.parametrize("is_repeated", [False, True])
def test_launches_go_to_the_stream(memory, stream, is_repeated):
    a, b, d = problem(memory)
    dg.gemm_fp8(*gemm_problem(20, 48, 256))  # loads the kernel
    if is_repeated:
        dg.fp8_gemm_nt(a, b, d)
        d.fill_(torch.nan)
    with Captured(memory, stream) as graph, dg.stream(stream):
        dg.fp8_gemm_nt(a, b, d)
    assert d.cpu().isnan().all()  # nothing ran yet
    graph.replay()
    assert_right(d, 20, 48, 256)
    graph.destroy()


def test_without_a_stream_launches_go_to_the_null_stream(memory, stream):
    a, b, d = problem(memory)
    call(memory.hip.hipStreamBeginCapture, stream, memory.hip.hipStreamCaptureMode.hipStreamCaptureModeRelaxed)
    dg.fp8_gemm_nt(a, b, d)
    graph = call(memory.hip.hipStreamEndCapture, stream)
    assert number_of("Nodes", graph) == 0
    call(memory.hip.hipGraphDestroy, graph)
    assert_right(d, 20, 48, 256)


class Wrapped:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__ |= attributes


STREAMS = {
    "hip-python": lambda stream: stream,
    "int": int,
    "ctypes": lambda stream: ctypes.c_void_p(int(stream)),
    "torch": lambda stream: Wrapped(cuda_stream=int(stream)),
    "cupy": lambda stream: Wrapped(ptr=int(stream)),
    "numba": lambda stream: Wrapped(handle=ctypes.c_void_p(int(stream))),
    "protocol": lambda stream: Wrapped(__cuda_stream__=lambda: (0, int(stream))),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_a_stream_is_given_by_any_of_its_names(stream, kind):
    with dg.stream(STREAMS[kind](stream)) as handle:
        assert handle == int(stream) == streams.current()
        with dg.stream(ctypes.c_void_p()):
            assert streams.current() == 0
            seen = []
            thread = threading.Thread(target=lambda: seen.append(streams.current()))
            thread.start()
            thread.join()
        assert streams.current() == handle
    assert streams.current() == 0 == seen[0]


@pytest.mark.parametrize(
    "bad", [None, True, "1", b"1", 1.5, object(), 1j, np.float32(1)], ids=lambda bad: type(bad).__name__
)
def test_what_is_no_stream(bad):
    with pytest.raises(TypeError, match="stream must be a stream's object or its handle"), dg.stream(bad):
        pass


@pytest.mark.parametrize("bad", [-1, 2**64])
def test_what_is_no_handle(bad):
    with pytest.raises(ValueError, match="stream must be a handle from 0"), dg.stream(bad):
        pass


@pytest.mark.parametrize("is_repeated", [False, True])
def test_a_stream_that_was_destroyed(memory, is_repeated):
    a, b, d = problem(memory)
    if is_repeated:
        dg.fp8_gemm_nt(a, b, d)
        d.fill_(torch.nan)
    stream = call(memory.hip.hipStreamCreate)
    call(memory.hip.hipStreamDestroy, stream)
    with dg.stream(stream), pytest.raises(ValueError, match=r"stream must be one of .* that wasn't destroyed"):
        dg.fp8_gemm_nt(a, b, d)
    assert d.cpu().isnan().all()
    call(memory.hip.hipGetLastError)  # the error was cleared


def test_in_inference_mode(memory):
    with torch.inference_mode():
        a, b, d = problem(memory)
        bias = memory.array(torch.ones(48))
        dg.fp8_gemm_nt(a, b, d, bias=bias)
        expected = dg.gemm_fp8(*gemm_problem(20, 48, 256), bias=torch.ones(48))
        assert d.cpu().equal(expected)


def test_tensors_of_torch_are_not_affected(stream):
    a, b = gemm_problem(20, 48, 256)
    with dg.stream(stream):
        assert_right(dg.gemm_fp8(a, b), 20, 48, 256)


def free_bytes(memory: Memory) -> int:
    array_runtime._gone.clear()
    return call(memory.hip.hipMemGetInfo)[0]


def test_memory_of_captured_calls_is_their_graphs(memory, stream):
    """Scratch memory of split K and of decoding, which needs more, and results live exactly as long as the graph."""
    a, b, d, sums = summed(memory)
    dg.einsum("bmk,bnk->mn", a, b, d)
    decode = GOOD["flash_attention_decode"]() | {"num_splits": 9}
    expected = dg.flash_attention_decode(**decode)
    decode = with_tensors(decode | {"out": None}, memory.array)
    kept().clear()
    before = free_bytes(memory)
    graphs = []
    for _ in range(2):
        with dg.stream(stream), Captured(memory, stream) as graph:
            dg.einsum("bmk,bnk->mn", a, b, d)
            out = dg.flash_attention_decode(**decode)
            dg.einsum("bmk,bnk->mn", a, b, d)
        graphs.append(graph)
    place = out.data_ptr()
    del out
    assert len(array_runtime._kept_by_graphs) == 6
    for graph in graphs:
        d.fill_(torch.nan)
        graph.replay()
        assert d.cpu().equal(sums)
    raw = memory.bytes_of(
        dg.as_tensor(Changed(d, typestr="<i2", data=(place, False), shape=(expected.numel(),))), expected.nbytes
    )
    assert bits(expected).flatten().numpy().tobytes() == raw.tobytes()
    for graph in graphs:
        graph.destroy()
    assert not array_runtime._kept_by_graphs
    kept().clear()
    assert free_bytes(memory) == before


def test_kernels_are_not_compiled_while_the_stream_is_captured(memory, stream):
    a, b, d = problem(memory)
    jit.forget()
    with dg.stream(stream), Captured(memory, stream) as graph, pytest.raises(jit.CaptureError):
        dg.fp8_gemm_nt(a, b, d)
    graph.destroy()


def test_nothing_waits_for_a_stream_that_is_captured(memory, stream):
    array = memory.array(torch.ones(4, 128))
    with dg.stream(stream), Captured(memory, stream) as graph:
        for copies in (
            array.cpu,
            lambda: array.copy_(torch.zeros(4, 128)),
            lambda: dg.ceil_to_ue8m0(array),
        ):
            with pytest.raises(RuntimeError, match="waits for the stream, which can't be while it is captured"):
                copies()
    graph.destroy()
    assert array.cpu().equal(torch.ones(4, 128))


# ---- protocols


@pytest.mark.parametrize(
    ("typestr", "dtype"),
    [
        ("<f4", torch.float32), ("float32", torch.float32), ("f2", torch.float16), ("B", torch.uint8),
        ("int8", torch.int8), ("<i4", torch.int32), ("int32", torch.int32), ("<i8", torch.int64),
        ("<V2", torch.bfloat16), ("?", torch.bool),
    ],
)  # fmt: skip
def test_types_of_the_interface(memory, typestr, dtype):
    buffer = memory.allocate(48 * dtype.itemsize)
    array = dg.as_tensor(Changed(buffer, typestr=typestr, shape=(6, 8)))
    assert (array.dtype, tuple(array.shape), array.stride()) == (dtype, (6, 8), (8, 1))
    assert array.data_ptr() == int(buffer)
    assert (array.device, array.is_read_only) == (torch.device("cuda", 0), False)


def test_what_hip_python_says_of_its_arrays(memory):
    buffer = memory.allocate(96)
    assert dg.as_tensor(buffer).dtype == torch.uint8
    buffer.configure(typestr="float32", itemsize=4, shape=(4, 6))
    array = dg.as_tensor(buffer)
    assert (array.dtype, tuple(array.shape)) == (torch.float32, (4, 6))


def test_raw_bytes_need_a_type(memory):
    buffer = memory.allocate(256)
    raw = Changed(buffer, typestr="|V1", shape=(2, 128))
    with pytest.raises(TypeError, match="dtype must be given for an array of bytes"):
        dg.as_tensor(raw)
    assert dg.as_tensor(raw, torch.float8_e4m3fnuz).dtype == torch.float8_e4m3fnuz
    array = dg.as_tensor(buffer, torch.bfloat16, (4, 32))
    assert (array.dtype, tuple(array.shape)) == (torch.bfloat16, (4, 32))
    assert dg.as_tensor(array, torch.uint8, [256]).data_ptr() == int(buffer)


def test_strides_of_the_interface(memory):
    values = torch.arange(60, dtype=torch.float32).view(6, 10)
    buffer = memory.holding(values)
    array = dg.as_tensor(Changed(buffer, typestr="<f4", shape=(3, 10), strides=(80, 4)))
    assert array.cpu().equal(values[::2])
    assert dg.as_tensor(array).__cuda_array_interface__ == {
        "shape": (3, 10), "typestr": "<f4", "data": (int(buffer), False), "strides": (80, 4), "version": 3,
        "stream": None,
    }  # fmt: skip


BAD = [
    ({"version": 1}, TypeError, "must have version 2 or 3"),
    ({"mask": object()}, TypeError, "must have no mask"),
    ({"strides": (3,)}, TypeError, "must have a stride for each of 1 dimensions"),
    ({"strides": (4, 4)}, TypeError, "must have a stride for each of 1 dimensions"),
    ({"strides": (-4,)}, TypeError, "must have a stride for each of 1 dimensions, from 0 on"),
    ({"shape": (-1,)}, TypeError, "must have sizes from 0 on"),
    ({"shape": (2**40,)}, ValueError, "must lie in its allocation, but needs 4398046511104 bytes"),
    ({"strides": (400,)}, ValueError, "must lie in its allocation, but needs 3604 bytes"),
    ({"typestr": "<c8"}, TypeError, "must have elements of a type that torch knows"),
    ({"typestr": ">f4"}, TypeError, "must have elements of a type that torch knows"),
    ({"typestr": "what"}, TypeError, "must have a typestr of NumPy's"),
    ({"data": 3}, TypeError, "must have a complete __cuda_array_interface__"),
    ({"data": ("3", False)}, TypeError, "must have an int as its address"),
    ({"data": (64, False)}, ValueError, "must be in memory of a GPU that .* knows, got address 0x40"),
    ({"stream": 0}, TypeError, "must name its stream by a handle other than 0"),
    ({"stream": "x"}, TypeError, "must name its stream by a handle other than 0"),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD, ids=[f"{next(iter(c[0]))}-{c[2][:40]}" for c in BAD])
def test_interfaces_that_can_not_be(memory, changes, error, message):
    buffer = memory.allocate(40)
    buffer.configure(typestr="<f4", itemsize=4, shape=(10,))
    with pytest.raises(error, match=f"array {message}"):
        dg.as_tensor(Changed(buffer, **changes))


def test_an_address_between_elements(memory):
    buffer = memory.allocate(40)
    with pytest.raises(ValueError, match="array must begin at a multiple of 4 bytes"):
        dg.as_tensor(Changed(buffer, typestr="<f4", shape=(3,), data=(int(buffer) + 2, False)))


@pytest.mark.parametrize(("dtype", "shape"), [(torch.float16, None), (None, (3, 11)), (torch.float32, (4,))])
def test_views_that_can_not_be(memory, dtype, shape):
    with pytest.raises(ValueError, match="array must have a view of dtype"):
        dg.as_tensor(memory.allocate(33), dtype, shape if shape != (3, 11) else (3, 12))


def test_memory_of_the_host_is_refused(memory):
    pinned = call(memory.hip.hipHostMalloc, 64, 0)
    for host in (np.zeros(4), torch.zeros(4), b"1234", memory.array(torch.zeros(4)).cpu()):
        with pytest.raises(ValueError, match="array must be in the GPU's memory, got a"):
            dg.as_tensor(host)
    with pytest.raises(ValueError, match="array must be in memory of a GPU"):
        dg.as_tensor(Changed(memory.allocate(64), data=(int(pinned), False)))
    call(memory.hip.hipHostFree, pinned)


def test_freed_memory_is_refused(memory):
    buffer = call(memory.hip.hipMalloc, 64)
    call(memory.hip.hipFree, buffer)
    with pytest.raises(ValueError, match="array must be in memory of a GPU"):
        dg.as_tensor(buffer)


@pytest.mark.parametrize("what", [None, 3, "x", [1.0], object()], ids=lambda what: type(what).__name__)
def test_what_is_no_array(what):
    with pytest.raises(TypeError, match="array must have __dlpack__ or __cuda_array_interface__"):
        dg.as_tensor(what)
    with pytest.raises(TypeError, match=r"dtype must be a torch\.dtype"):
        dg.as_tensor(what, "float32")


def test_functions_say_what_to_do_with_arrays(memory):
    _, b, d = problem(memory)
    with pytest.raises(TypeError, match=r"a\[0\] must be a torch.Tensor, got DeviceArray; pass it through as_tensor"):
        dg.fp8_gemm_nt((memory.allocate(20 * 256), b[1]), b, d)


def test_who_writes_an_array_is_waited_for(memory, stream):
    """The wait shows as an edge of a graph: a stream that waits for a captured stream is captured as well."""
    buffer, other = memory.allocate(64), call(memory.hip.hipStreamCreateWithFlags, 1)
    with Captured(memory, stream) as graph:
        call(memory.hip.hipMemsetD8Async, buffer, 7, 64, stream)
        with dg.stream(other):
            array = dg.as_tensor(Changed(buffer, stream=int(stream)))
            array.fill_(9)
            assert array.__cuda_array_interface__["stream"] == int(other)
        with dg.stream(stream):
            again = dg.as_tensor(Exported(array, other))
        assert again.data_ptr() == int(buffer)
    assert number_of("Nodes", graph.graph) == 2
    assert number_of("Edges", graph.graph) == 1
    graph.replay()
    assert (memory.bytes_of(buffer, 64) == 9).all()
    graph.destroy()
    call(memory.hip.hipStreamDestroy, other)


def test_the_interfaces_stream_1_is_the_null_stream(memory, stream):
    buffer = memory.allocate(64)
    with Captured(memory, stream) as graph:
        dg.as_tensor(Changed(buffer, stream=1))
    assert number_of("Nodes", graph.graph) == 0
    graph.destroy()


class Exported:
    """An array of a library that supports only DLPack, and works on its own stream."""

    def __init__(self, array: dg.DeviceTensor, stream: Any = 0, **more: Any) -> None:
        self.array, self.stream, self.more = array, stream, more

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream: int, **more: Any) -> Any:
        with dg.stream(self.stream):
            return self.array.__dlpack__(stream=stream, **more | self.more)


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (2, 0)])
@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.bfloat16, torch.int32, torch.bool]
)
def test_dlpack_there_and_back(memory, dtype, version):
    array = memory.array(torch.arange(24).view(4, 6).to(dtype))[1:, ::2]
    back = dg.as_tensor(Exported(array, max_version=version))
    assert array_protocols._exported
    assert (back.dtype, back.shape, back.stride()) == (array.dtype, array.shape, array.stride())
    assert (back.data_ptr(), back.device) == (array.data_ptr(), array.device)
    view = back[0]
    del back
    assert array_protocols._exported
    del view
    assert not array_protocols._exported


def test_capsules_are_used_once_or_not_at_all(memory):
    array = memory.array(torch.ones(4))
    capsule = array.__dlpack__()
    exporter = Wrapped(__dlpack__=lambda **_: capsule, __dlpack_device__=array.__dlpack_device__)
    taken = dg.as_tensor(exporter)
    with pytest.raises(TypeError, match="must return a capsule that nobody has used"):
        dg.as_tensor(exporter)
    del taken
    unused = array.__dlpack__()
    assert len(array_protocols._exported) == 1
    del unused
    assert not array_protocols._exported


@pytest.mark.parametrize("dtype", array_protocols._DLPACK_TYPES, ids=str)
def test_types_are_called_as_torch_calls_them(dtype):
    try:
        capsule = torch.ones(3, 2).to(dtype).__dlpack__()
    except (BufferError, RuntimeError):
        pytest.skip("this torch exports no such tensors")
    described = array_protocols._described_by_dlpack(capsule)
    assert (described.dtype, described.itemsize, described.shape) == (dtype, dtype.itemsize, (3, 2))


def test_other_forms_of_dlpack(memory):
    """The tensor may have an offset, and contiguous tensors may lack strides."""
    array = memory.array(torch.arange(24, dtype=torch.int32).view(4, 6))
    capsule = array.__dlpack__()
    ((managed, *_),) = array_protocols._exported.values()
    managed.tensor.byte_offset = 24
    managed.tensor.shape[0] = 3
    managed.tensor.strides = None
    back = dg.as_tensor(Wrapped(__dlpack__=lambda **_: capsule, __dlpack_device__=array.__dlpack_device__))
    assert back.cpu().equal(array.cpu()[1:])


@pytest.mark.parametrize("kind", [1, 2, 3, 11, 15])
def test_dlpack_of_other_devices(kind):
    with pytest.raises(ValueError, match="array must be in the"):
        dg.as_tensor(Wrapped(__dlpack__=None, __dlpack_device__=lambda: (kind, 0)))


def test_read_only_arrays_are_read_and_not_written(memory):
    a, b, d = problem(memory)
    fixed = dg.as_tensor(Changed(a[1], data=(a[1].data_ptr(), True)))
    assert fixed.is_read_only
    assert fixed[1:].is_read_only
    assert dg.as_tensor(Exported(fixed)).is_read_only
    assert fixed.__cuda_array_interface__["data"] == (a[1].data_ptr(), True)
    dg.fp8_gemm_nt((a[0], fixed), b, d)
    assert_right(d, 20, 48, 256)
    with pytest.raises(BufferError, match="read-only"):
        fixed.__dlpack__()
    for writes in (lambda: fixed.fill_(1), lambda: fixed.copy_(torch.ones(fixed.shape))):
        with pytest.raises(ValueError, match="self must be writable"):
            writes()
    attention = with_tensors(GOOD["flash_attention"](), memory.array)
    out = dg.as_tensor(Changed(attention["out"], data=(attention["out"].data_ptr(), True)), torch.bfloat16)
    with pytest.raises(ValueError, match="out must be writable"):
        dg.flash_attention(**attention | {"out": out})
    assert not out.cpu().any()


# ---- operators


def test_results_are_taken_by_hip_python_and_freed(memory):
    a, b, _ = problem(memory)
    session.current().forget_choices()
    before = free_bytes(memory)
    d = dg.gemm_fp8(a, b)
    values = torch.from_numpy(memory.bytes_of(d, d.nbytes)).view(torch.bfloat16).view(d.shape)
    assert_right(values, 20, 48, 256)
    assert free_bytes(memory) < before
    part = d[3:5]
    del d
    assert free_bytes(memory) < before
    del part
    session.current().forget_choices()
    assert free_bytes(memory) == before


def test_owners_of_arrays_live_as_long(memory):
    owner = Changed(memory.allocate(64))
    array, watch = dg.as_tensor(owner)[8:], weakref.ref(owner)
    del owner
    assert watch() is not None
    del array
    assert watch() is None


VIEWS = {
    "index": lambda t: t[1:, ::2], "number": lambda t: t[-1], "none": lambda t: t[None, ..., 1], "T": lambda t: t.T,
    "mT": lambda t: t.mT, "permute": lambda t: t.permute(1, 0), "view": lambda t: t.view(2, -1),
    "reshape": lambda t: t.reshape(8, 3), "dtype": lambda t: t.view(torch.int16),
    "expand": lambda t: t[:1].expand(5, 6),
    "narrow": lambda t: t.narrow(1, 2, 3), "unflatten": lambda t: t.unflatten(1, (2, 3)),
    "unsqueeze": lambda t: t.unsqueeze(-2), "squeeze": lambda t: t[:, :1].squeeze(1), "detach": lambda t: t.detach(),
    "movedim": lambda t: t.movedim(0, 1), "split": lambda t: t.split(3)[1], "unbind": lambda t: t.unbind(1)[2],
    "strided": lambda t: t.as_strided((3, 2), (1, 4), 5), "diagonal": lambda t: t.diagonal(), "t": lambda t: t.t(),
    "contiguous": lambda t: t.T.contiguous(), "clone": lambda t: t.clone(), "flatten": lambda t: t.flatten(),
    "empty": lambda t: t[:0], "chunk": lambda t: t.chunk(2)[0],
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_views(memory, name):
    values = torch.arange(24, dtype=torch.float32).view(4, 6)
    expected, actual = VIEWS[name](values), VIEWS[name](memory.array(values))
    assert isinstance(actual, dg.DeviceTensor)
    assert (actual.shape, actual.stride(), actual.dtype) == (expected.shape, expected.stride(), expected.dtype)
    assert actual.cpu().equal(expected)
    with torch.inference_mode():
        assert VIEWS[name](memory.array(values)).cpu().equal(expected)


def test_copies(memory):
    array = memory.array(torch.zeros(4, 6))
    copied = copy.deepcopy(array)
    assert copied.cpu().equal(array.cpu())
    assert copied.data_ptr() != array.data_ptr()
    values = torch.arange(24, dtype=torch.float32).view(4, 6)
    assert array.copy_(values) is array
    assert array.cpu().equal(values)
    assert array.T.copy_(values[0, :4]).cpu().equal(values[0, :4].expand(6, 4))
    assert memory.array(torch.zeros(4, 6)).copy_(array).cpu().equal(array.cpu())
    assert torch.empty(4, 6, dtype=torch.int64).copy_(array).equal(array.cpu().long())
    assert array.fill_(-torch.inf).cpu().isneginf().all()
    for unsupported in (
        lambda: array[:, :3].copy_(values[:, :3]),
        lambda: array.copy_(array.T.contiguous().T),
        lambda: array[:, 1].fill_(0),
        lambda: array.double(),
        lambda: array.to(torch.float16),
    ):
        with pytest.raises(NotImplementedError):
            unsupported()


def test_torch_does_nothing_else_with_them(memory):
    array = memory.array(torch.ones(4, 4))
    for operator in (
        lambda: array + 1,
        lambda: array @ array,
        array.sum,
        lambda: array.add_(1),
        lambda: bool(array[0, 0]),
    ):
        with pytest.raises(NotImplementedError, match="can't run on arrays from as_tensor"):
            operator()
    with pytest.raises(TypeError, match="index an array on the GPU"):
        array[torch.tensor([1, 0])]
    with pytest.raises(TypeError, match="can't be set"):
        array[0] = 1
    with pytest.raises(TypeError, match="pickle its cpu"):
        pickle.dumps(array)
    with pytest.raises(ValueError, match="views must lie in their array"):
        array.as_strided((17,), (1,))
    assert repr(array) == str(array) == f"{array}"
    assert "shape=(4, 4)" in repr(array)


@pytest.mark.parametrize("which", ["a", "b", "d"])
def test_tensors_of_the_host_among_arrays(memory, which):
    a, b, d = problem(memory)
    arguments = {"a": a, "b": b, "d": d}
    arguments[which] = with_tensors(arguments[which], lambda array: array.cpu())
    with pytest.raises(ValueError, match="must be on the device of"):
        dg.fp8_gemm_nt(**arguments)
    assert d.cpu().isnan().all()


REAL = ("m_grouped_fp8_gemm_nt_masked", "fp8_paged_mqa_logits", "einsum")


def on_a_real_runtime() -> list[list[bytes]]:
    """The class for AMD's runtime, with the simulator's library and a torch without ROCm."""
    runtime = hip.Runtime(simulator.library_path())
    runtime.make_global()
    session._current = session.Session(runtime)
    assert not torch.version.hip
    memory = Memory()
    stream = call(memory.hip.hipStreamCreate)
    written = []
    for name in REAL:
        arrays = with_tensors(GOOD[name](), memory.array)
        with dg.stream(stream):
            results = [getattr(dg, name)(**arrays) for _ in range(2)]
            written.append([bits(tensor).numpy().tobytes() for tensor in found([arrays, results])])
    with pytest.raises(ValueError, match=r"a\[0\] is on cpu, but kernels run on the GPU"):
        dg.gemm_fp8(*gemm_problem(20, 48, 256))
    return written


def test_a_real_runtime_without_torchs_rocm():
    for name, written in zip(REAL, in_clean_child(on_a_real_runtime), strict=True):
        arguments = GOOD[name]()
        results = [getattr(dg, name)(**arguments) for _ in range(2)]
        assert written == [bits(tensor).numpy().tobytes() for tensor in found([arguments, results])]


def test_the_device_and_its_streams_are_the_arrays(memory, monkeypatch):
    """A host has two devices, and this thread's current device is the other one."""
    runtime = arrays.runtime_of(memory.array(torch.zeros(4)))
    set_to = []
    lib = Wrapped(
        hipGetDevice=lambda device: 0,
        hipSetDevice=lambda device: set_to.append(device) or 0,
        hipStreamGetDevice=lambda stream, device: 0,
        hipGetLastError=lambda: 0,
    )
    monkeypatch.setattr(runtime, "lib", lib)
    tensor = dg.DeviceTensor._at(4096, (4,), (1,), torch.float32, torch.device("cuda", 1), None, False)
    with runtime.launching(tensor=tensor):
        assert set_to == [1]
    assert set_to == [1, 0]
    with dg.stream(99), pytest.raises(ValueError, match="stream must be of device 1, as the arrays, got 0"):
        runtime.current_stream(tensor)
    with (
        pytest.raises(ValueError, match="expected all tensors of a call on one device"),
        runtime.launching(
            one=tensor, other=dg.DeviceTensor._at(4096, (4,), (1,), torch.float32, torch.device("cuda", 0), None, False)
        ),
    ):
        pass
