"""Calls with tensors on GPUs, with stand-ins for torch.cuda and for AMD's HIP library.

Kernels run on the simulator. docs/hardware.md lists what these tests can't cover.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
import torch
from helpers.forked import in_clean_child
from helpers.hardware import stand_in

import deep_gemm_rocm as dg
from deep_gemm_rocm import jit
from deep_gemm_rocm.benchmarks.measure import Sampling, time_calls
from deep_gemm_rocm.launch import repeated, scratch
from deep_gemm_rocm.runtime import hip, session
from deep_gemm_rocm.testing import assert_accurate, bench, gemm_problem, gemm_reference, stopwatch

pytestmark = pytest.mark.skipif(Path("/opt/rocm/lib/libamdhip64.so").exists(), reason="this machine's ROCm is found")

M, N, K = 20, 48, 256


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return stand_in.build(tmp_path_factory.mktemp("hardware") / "rocm")


@pytest.fixture
def machine(root):
    """Calls a function in a process that has GPUs."""
    return lambda function, *arguments: in_clean_child(on_machine, root, function, *arguments)


def on_machine(root, function, *arguments):
    for name in ("DG_DEVICE", "LD_LIBRARY_PATH", "DG_SIM_SANITIZE"):
        os.environ.pop(name, None)
    os.environ["ROCM_PATH"] = str(root)
    stand_in.install(root)
    assert type(hip.runtime()) is hip.Runtime
    assert hip.runtime().path.parent.parent == root
    return function(*arguments)


def moved(operand, device):
    return tuple(tensor.to(device) for tensor in operand)


def output(device, m=M, n=N):
    return torch.full((m, n), torch.nan, dtype=torch.bfloat16).to(device)


def gemm(device, seed=0, m=M):
    """A function that calls GEMM, and one that checks its result."""
    a, b = gemm_problem(m, N, K, seed=seed)
    given, d = (moved(a, device), moved(b, device)), output(device, m)
    return lambda: dg.fp8_gemm_nt(*given, d), lambda: assert_accurate(d.cpu(), gemm_reference(a, b))


def split_gemm(device, m=3, k=16384, seed=0):
    """Like ``gemm``, for a GEMM with two kernels and scratch memory between them."""
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(rows, k, generator=generator).bfloat16() for rows in (m, 64))
    given, d = (a.to(device), b.to(device)), output(device, m, 64)
    expected = a.double() @ b.double().T
    close = {"rtol": 2**-7, "atol": 0.05}
    return (
        lambda: dg.bf16_gemm_nt(*given, d),
        lambda: torch.testing.assert_close(d.cpu().double(), expected, **close),
    )


def all_kept():
    """The scratch memory of this thread."""
    return session.current().of(scratch.Scratch).kept()


def kept(device, stream=None):
    """Size and block of this thread's scratch memory on a stream."""
    stream = stream or torch.cuda.current_stream(device)
    size, memory = all_kept()[hip.runtime(), torch.device(device).index, stream.cuda_stream]
    return size, stand_in.allocator.blocks[memory.address]


# ---- devices and streams


def use_each_device():
    for current in (0, 1):
        with torch.cuda.device(current):
            for device in ("cuda:0", "cuda:1"):
                for seed in range(3):  # a device's first call isn't a repeated one
                    call, check = gemm(device, seed)
                    call()
                    check()
                call, check = split_gemm(device)
                for _ in range(2):
                    call()
                    check()
                assert torch.cuda.current_device() == current


def test_calls_run_on_the_device_of_their_tensors(machine):
    machine(use_each_device)


def use_other_families():
    q, k, v = (torch.randn(1, 32, 2, 64).bfloat16() for _ in range(3))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()) / 8
    expected = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v.double())
    for device in ("cuda:1", "cuda:0"):
        out = dg.flash_attention(*(tensor.to(device) for tensor in (q, k, v)))
        assert out.device == torch.device(device)
        torch.testing.assert_close(out.cpu().double(), expected, rtol=2**-7, atol=0.02)
        cache = (tensor.view(2, 16, 2, 64).contiguous().to(device) for tensor in (k, v))
        table, lengths = (torch.tensor(x, dtype=torch.int32).to(device) for x in ([[0, 1]], [32]))
        last = q[:, -1:].contiguous().to(device)
        out = dg.flash_attention_decode(last, *cache, block_table=table, context_lens=lengths)
        torch.testing.assert_close(out.cpu().double(), expected[:, -1:], rtol=2**-7, atol=0.02)


def test_other_families_do_so_too(machine):
    machine(use_other_families)


def use_streams():
    for device in ("cuda:0", "cuda:1"):
        streams = [torch.cuda.Stream(torch.device(device).index) for _ in range(2)]
        for seed in range(2):
            a, b = gemm_problem(M, N, K, seed=seed)
            given, d = (moved(a, device), moved(b, device)), [output(device) for _ in streams]
            for stream, out in zip(streams, d, strict=True):
                with torch.cuda.stream(stream):
                    dg.fp8_gemm_nt(*given, out)
            for stream, out in zip(streams, d, strict=True):  # without a wait, streams have done nothing yet
                assert stand_in._on_host(out).isnan().all()
                stream.synchronize()
                assert_accurate(stand_in._on_host(out), gemm_reference(a, b))


def test_calls_run_on_the_current_stream_of_the_device(machine):
    machine(use_streams)


# ---- tensors that kernels can't access


def misplace():
    a, b = gemm_problem(M, N, K)
    on = {device: (moved(a, device), moved(b, device)) for device in stand_in.DEVICES}
    (data, scales), weight = on["cuda:1"]
    for _ in range(2):  # before and after a remembered call
        out = output("cuda:1")
        for given, message in [
            (on["cuda:2"], r"a\[0\] is on cuda:2, a gfx90a, but kernels are for gfx942: expected .* cuda:0 or cuda:1"),
            (((data, scales), on["cuda:0"][1]), r"b\[0\] must be on the device of a\[0\], cuda:1, got cuda:0"),
            (((data, on["cuda:0"][0][1]), weight), r"a\[1\] must be on the device of a\[0\], cuda:1, got cuda:0"),
            (((data, a[1]), weight), r"a\[1\] must be on the device of a\[0\], cuda:1, got cpu"),
            ((a, b), r"a\[0\] is on cpu, but kernels run on the GPU: expected a tensor on cuda"),
        ]:
            d = out if given[0][0].get_device() == 1 else output(given[0][0].device)
            with pytest.raises(ValueError, match=message):
                dg.fp8_gemm_nt(*given, d)
            assert d.cpu().isnan().all()
        with pytest.raises(ValueError, match=r"d must be on the device of a\[0\], cuda:1, got cuda:0"):
            dg.fp8_gemm_nt((data, scales), weight, output("cuda:0"))
        dg.fp8_gemm_nt((data, scales), weight, out)
        assert_accurate(out.cpu(), gemm_reference(a, b))
    runtime = hip.runtime()
    one, other = on["cuda:0"][0][0], on["cuda:1"][0][0]
    with pytest.raises(ValueError, match="y is on cuda:1, but x is on cuda:0: expected all tensors of a call on one"):
        runtime.launching(x=one, y=other)
    with pytest.raises(ValueError, match="y is on cuda:2, a gfx90a"):
        runtime.launching(x=one, y=on["cuda:2"][0][0])
    freed = torch.zeros(10)  # a torch without CUDA can't free a GPU's
    freed.untyped_storage().resize_(0)
    with (
        mock.patch.object(runtime, "check_residence"),
        pytest.raises(ValueError, match="x needs 40 bytes of its storage, which has 0: it was resized or freed"),
    ):
        runtime.launching(x=freed)


def test_misplaced_tensors_are_refused_by_name(machine):
    machine(misplace)


# ---- memory between kernels


def keep_memory():
    for device in ("cuda:0", "cuda:1"):
        call, check = split_gemm(device)
        call()
        check()
        size, (_, place, _) = kept(device)
        assert (size, place) == (2**20, (torch.device(device).index, 0, None))
    with torch.cuda.stream(torch.cuda.Stream()), torch.cuda.use_mem_pool(pool := object()):
        torch.empty(1, device="cuda:0")
        assert pool in {place[2] for _, place, _ in stand_in.allocator.blocks.values()} | {
            place[2] for place in stand_in.allocator.free
        }
        call, check = split_gemm("cuda:0")
        call()
        check()
        assert kept("cuda:0")[1][1][2] is None  # kept memory would keep the pool alive
    assert len(all_kept()) == 3
    del call, check
    before = len(stand_in.allocator.blocks)
    with ThreadPoolExecutor(1) as other:
        call, check = split_gemm("cuda:0")
        other.submit(call).result()
        check()
    del call, check
    assert len(stand_in.allocator.blocks) == before  # it was freed with the thread


def test_memory_between_kernels_is_torchs_and_in_no_pool(machine):
    machine(keep_memory)


def outgrow_memory():
    """Streams run as late as possible, so that two of them would write memory that was freed too early."""
    scratch._LEAST_BYTES = 2**16
    stream = torch.cuda.Stream()
    # The default stream's pending work reads memory that is then freed, and that the other stream may get.
    a, b = torch.randn(3, 256).bfloat16(), torch.randn(128, 256).bfloat16()
    weight, d = b.to("cuda:0"), output("cuda:0", 3, 128)
    assert weight.nbytes == 2**16
    dg.bf16_gemm_nt(a_on := a.to("cuda:0"), weight, d)
    small, check_small = split_gemm("cuda:0")
    large, check_large = split_gemm("cuda:0", m=200)
    dg.bf16_gemm_nt(a_on, weight, d)
    address = weight.data_ptr()
    del weight
    with torch.cuda.stream(stream):
        small()
        assert all_kept()[hip.runtime(), 0, stream.cuda_stream][1].address == address
        stream.synchronize()
        torch.cuda.default_stream().synchronize()
        torch.testing.assert_close(d.cpu().double(), a.double() @ b.double().T, rtol=2**-7, atol=0.05)
        # The stream's pending work writes memory that is then freed, and that the default stream may get.
        small()
        large()
    after = torch.empty(2**16, dtype=torch.uint8, device="cuda:0")
    assert after.data_ptr() == address
    after.fill_(7)
    stream.synchronize()
    assert (after.cpu() == 7).all()
    check_small()
    check_large()


def test_memory_that_is_outgrown_waits_for_its_stream(machine):
    machine(outgrow_memory)


# ---- graphs


def capture(device, how):
    runtime = hip.runtime()
    dense, split = gemm(device), split_gemm(device)
    for call, _ in (dense, split):
        call()  # compiles
    with torch.cuda.device(device):
        if how == "runtime":
            capturing = runtime.capture()
        else:
            graph = torch.cuda.CUDAGraph()
            capturing = torch.cuda.graph(graph)
        dense, split = gemm(device, seed=1), split_gemm(device, seed=1)
        with capturing as captured:
            assert runtime.is_capturing()
            for call, _ in (dense, split):
                call()
            with pytest.raises(jit.CaptureError, match="not loaded"):
                dg.fp8_gemm_nt(*moved_while_captured(device))
        assert not runtime.is_capturing()
        with pytest.raises(AssertionError):
            dense[1]()
        (graph if how == "torch" else captured).replay()
        for _, check in (dense, split):
            check()


def moved_while_captured(device):
    """Arguments for a kernel that isn't loaded, with fp32 results."""
    data, scales = (torch.empty(s, dtype=t, device=device) for s, t in (((M, K), dg_fp8), ((M, 2), torch.float32)))
    weight = torch.empty(N, K, dtype=dg_fp8, device=device), torch.empty(1, 2, device=device)
    return (data, scales), weight, torch.empty(M, N, device=device)


dg_fp8 = torch.float8_e4m3fnuz


@pytest.mark.parametrize("how", ["runtime", "torch"])
@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_calls_are_captured(machine, device, how):
    machine(capture, device, how)


def capture_elsewhere():
    call, check = split_gemm("cuda:1")
    call()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(1)
    with torch.cuda.stream(stream):
        graph.capture_begin()
        with torch.cuda.device(0):
            assert not hip.runtime().is_capturing()
            assert hip.runtime().is_capturing(1)
            call()
        graph.capture_end()
    assert (hip.runtime(), 1, stream.cuda_stream) not in all_kept()  # the graph has its own scratch memory
    graph.replay()
    check()


def test_a_capture_on_another_device_than_the_current_one_is_noticed(machine):
    machine(capture_elsewhere)


def capture_at_once():
    """Two threads capture while a third allocates and a fourth captures in global mode, which forbids allocations."""
    calls = [gemm("cuda:0"), split_gemm("cuda:0"), gemm("cuda:1"), split_gemm("cuda:1")]
    for call, _ in calls:
        call()
    all_kept().clear()
    stand_in.allocator.free.clear()  # so that every allocation calls HIP
    for seed, device in enumerate(("cuda:0", "cuda:1")):
        calls[2 * seed : 2 * seed + 2] = gemm(device, seed + 1), split_gemm(device, seed=seed + 1)
    waiting = threading.Barrier(4)

    def capture(device):
        with torch.cuda.device(device), hip.runtime().capture() as graph:
            waiting.wait(20)
            for call, _ in calls[2 * device : 2 * device + 2]:
                call()
            waiting.wait(20)
            waiting.wait(20)
        return graph

    def capture_globally():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin()
            waiting.wait(20)
            waiting.wait(20)
            waiting.wait(20)
            graph.capture_end()

    def work():
        waiting.wait(20)
        waiting.wait(20)
        try:
            (call, check), (grown, check_grown) = split, larger
            call()
            grown()
        finally:
            waiting.wait(20)
        check()
        check_grown()

    split, larger = split_gemm("cuda:0", seed=5), split_gemm("cuda:0", m=300, seed=6)
    with ThreadPoolExecutor(4) as threads:
        graphs = [threads.submit(capture, device) for device in (0, 1)]
        others = threads.submit(capture_globally), threads.submit(work)
        for other in others:
            other.result()
        graphs = [graph.result() for graph in graphs]
    for device, graph in enumerate(graphs):
        with torch.cuda.device(device):
            graph.replay()
    for _, check in calls:
        check()


def test_threads_capture_and_allocate_at_once(machine):
    machine(capture_at_once)


def allocate_beside_a_capture():
    call, check = gemm("cuda:0")
    call()
    with hip.runtime().capture() as graph, ThreadPoolExecutor(1) as other:
        other.submit(torch.empty, 2**20, device="cuda:0").result()
        call()
    graph.replay()
    check()


def test_other_threads_may_allocate_while_one_captures(machine):
    machine(allocate_beside_a_capture)


# ---- errors and times


def fail():
    call, check = gemm("cuda:0")
    call()
    check()
    (kernel,) = jit.loaded()
    entry_point, d = kernel.entry_point, output("cuda:0")
    (a, b), stream = gemm_problem(M, N, K), torch.cuda.Stream(1)
    given = moved(a, "cuda:0"), moved(b, "cuda:0")
    session.current().of(repeated.Calls).known.clear()  # it knows the entry point
    kernel.entry_point = lambda arguments, _: entry_point(arguments, stream.cuda_stream)
    with pytest.raises(hip.HipError, match="hipErrorInvalidHandle: "):
        dg.fp8_gemm_nt(*given, d)
    kernel.entry_point = entry_point
    assert d.cpu().isnan().all()
    d = output("cuda:0")
    dg.fp8_gemm_nt(*given, d)
    assert_accurate(d.cpu(), gemm_reference(a, b))
    with pytest.raises(RuntimeError, match="hipMalloc: HIP error 2"):
        hip.runtime().allocate(2**40, 0)


def test_a_launch_or_an_allocation_that_fails_raises(machine):
    machine(fail)


def measure():
    stopwatch._FLUSHED_BYTES = 2**16
    call, _ = gemm("cuda:0")
    timing = time_calls([call], Sampling(iters=3, cold_iters=1, rotating_mb=0))
    split, _ = split_gemm("cuda:0")
    return timing.median_us, 1e6 * bench(split, num_warmups=1, num_tests=3)


def test_times_are_those_of_kernels(machine):
    assert machine(measure) == pytest.approx((5, 10))  # what runtime.c says of one kernel
