"""A child works, with right results, whatever other threads of its parent did when it was forked."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import itertools
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_int, c_size_t, c_void_p
from pathlib import Path

import pytest
import torch
from helpers.forked import in_child, in_clean_child
from helpers.paths import TEMPLATES

import deep_gemm_rocm as dg
from deep_gemm_rocm import forking, jit, simulator
from deep_gemm_rocm.jit import cache
from deep_gemm_rocm.runtime import hip, session

choices = importlib.import_module("deep_gemm_rocm.heuristics.forced")  # the function of this name hides the module
ARGTYPES = (c_void_p, c_void_p, c_int, c_void_p)
GLOBAL_CAPTURE, NON_BLOCKING = 0, 1
HostFunction = ctypes.CFUNCTYPE(None, c_void_p)


def scale(factor: int, x: torch.Tensor) -> torch.Tensor:
    """factor * x, computed by a kernel that this process loads."""
    values = {"threads": 64, "factor": factor, "plus_one": False}
    kernel = jit.get_kernel("scale.hip.j2", values, ARGTYPES)
    y = torch.full_like(x, torch.nan)
    with hip.runtime().launching(x=x, y=y) as stream:
        kernel(x.data_ptr(), y.data_ptr(), x.numel(), stream)
    return y


X = torch.arange(100.0)


@contextlib.contextmanager
def other_thread(hold):
    """Inside, another thread is within the context manager ``hold()``."""
    entered, leave = threading.Event(), threading.Event()

    def run():
        with hold():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=run)
    thread.start()
    entered.wait()
    try:
        yield
    finally:
        leave.set()
        thread.join()


@contextlib.contextmanager
def repeating(*calls):
    """Inside, other threads repeat these calls, one thread each. None of them may raise."""
    stop = threading.Event()
    failures = []

    def repeat(call):
        try:
            while not stop.is_set():
                call()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=repeat, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures, failures


@pytest.fixture(autouse=True)
def _templates(monkeypatch):
    monkeypatch.setattr(jit.kernels, "include_dir", lambda: TEMPLATES)
    jit.forget()
    scale(2, X)
    yield
    jit.forget()


def works() -> None:
    """Makes typical calls in a child."""
    lib = hip.runtime().lib
    address = c_void_p()
    hip.runtime().check(lib.hipMalloc(byref(address), c_size_t(64)))
    hip.runtime().check(lib.hipFree(address))
    hip.runtime().check(lib.hipDeviceSynchronize())
    assert torch.equal(scale(2, X), 2 * X)
    with hip.runtime().capture() as graph:
        y = scale(2, X)
    graph.replay()
    assert torch.equal(y, 2 * X)


# ---- locks of the package


def test_a_launch_of_another_thread_holds_nothing_up():
    def known():
        attributes = (ctypes.c_char * 64)()
        return hip.runtime().lib.hipPointerGetAttributes(attributes, c_void_p(X.data_ptr())) == 0

    def in_the_child():
        before = known()
        works()
        return before, known()

    with other_thread(lambda: hip.runtime().running([("x", X)])):
        assert known()
        assert in_child(in_the_child) == (False, False)  # a stale registration would allow wild accesses
        assert known()
    assert not known()


@pytest.mark.parametrize("step", ["obtain", "Kernel"])
def test_a_kernel_that_another_thread_is_making_is_made(step, monkeypatch):
    module = {"obtain": cache, "Kernel": jit.kernels}[step]
    original, within, leave = getattr(module, step), threading.Event(), threading.Event()
    parent = os.getpid()

    def halt(*arguments):
        if os.getpid() == parent:
            within.set()
            leave.wait()
        return original(*arguments)

    monkeypatch.setattr(module, step, halt)
    thread = threading.Thread(target=scale, args=(3, X))
    thread.start()
    within.wait()
    try:
        assert in_child(lambda: torch.equal(scale(3, X), 3 * X))
    finally:
        leave.set()
        thread.join()


def test_the_runtime_that_another_thread_is_looking_for_is_found():
    with session.using(session.Session()) as own, other_thread(lambda: own._making):
        assert in_child(lambda: hip.runtime().is_simulated)


def test_a_cached_property_that_another_thread_computes_is_computed():
    within, leave = threading.Event(), threading.Event()

    class Shape:
        waits = True

        @forking.cached_property
        def area(self):
            if self.waits:
                within.set()
                leave.wait()
            return 42

    def in_the_child():
        shape = Shape()
        shape.waits = False
        return shape.area

    thread = threading.Thread(target=lambda: Shape().area)
    thread.start()
    within.wait()
    try:
        assert in_child(in_the_child) == 42
    finally:
        leave.set()
        thread.join()


def test_a_lock_of_the_thread_that_forks_stays_its_own():
    lock = forking.Lock()

    def is_free():
        with ThreadPoolExecutor(1) as other:
            return other.submit(lock.acquire, blocking=False).result()

    with lock:
        assert not in_child(is_free)
    assert in_child(is_free)


def test_a_choice_that_another_thread_forces_is_not_forced_in_the_child():
    def forced():
        return session.current().of(choices.Forced).choice

    @contextlib.contextmanager
    def forcing():
        with contextlib.suppress(choices.ForcedChoiceError), choices.forced(object()):
            yield

    def in_the_child():
        return forced(), choices._one_thread.acquire(blocking=False)

    with other_thread(forcing):
        assert forced() is not None
        assert in_child(in_the_child) == (None, True)
        assert forced() is not None


def test_a_fork_waits_for_what_must_not_be_seen_half_done():
    done = []

    def hold():
        with forking.no_fork:
            within.set()
            time.sleep(0.2)
            done.append(1)

    within = threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    within.wait()
    assert in_child(lambda: len(done)) == 1
    thread.join()
    with forking.no_fork:  # unless it does so itself
        assert in_child(lambda: len(done)) == 1


def test_the_package_has_no_lock_that_a_child_would_find_held():
    """Lock, RLock and cached_property come from forking.py. functools' caches hold no lock while they compute.

    Calibrating, which nothing else calls, has a process of its own only while it runs.
    """
    folder = Path(dg.__file__).parent
    found = re.compile(r"threading\.(Lock|RLock|Condition|Semaphore)\(|functools\.cached_property|multiprocessing")
    files = {str(file.relative_to(folder)) for file in folder.rglob("*.py") if found.search(file.read_text())}
    assert files == {"forking.py", "calibration/fit.py"}


def test_a_profile_of_another_thread_ends_in_the_child():
    def in_the_child():
        names = [name for name in os.environ if name.startswith("DG_SIM_TIMING")]
        with simulator.profile() as own:
            scale(2, X)
        return names, len(own.kernels)

    with other_thread(simulator.profile):
        scale(2, X)
        assert in_child(in_the_child) == ([], 1)
    with simulator.profile():  # its own goes on
        assert "DG_SIM_TIMING" in in_child(lambda: list(os.environ))


@pytest.mark.parametrize("collected", [simulator.counters, simulator.trace])
def test_records_of_another_thread_end_in_the_child(collected):
    def in_the_child():
        scale(2, X)
        return [simulator.library.introspect(name) for name in ("dgSimTakeCounters", "dgSimTakeTrace")]

    with other_thread(collected):
        scale(2, X)
        assert in_child(in_the_child) == ["", ""]


# ---- locks of the simulator's library


def test_a_dispatch_of_another_thread_holds_nothing_up():
    """The threads launch directly, without waiting for each other as the package's launches do."""
    kernel = jit.get_kernel("scale.hip.j2", {"threads": 64, "factor": 2, "plus_one": False}, ARGTYPES)
    x = torch.zeros(500_000)
    runtime = hip.runtime()
    runtime.check(runtime.lib.hipHostRegister(c_void_p(x.data_ptr()), c_size_t(x.nbytes), 0))

    def launch():
        kernel(x.data_ptr(), x.data_ptr(), x.numel(), 0)

    try:
        with repeating(launch, launch):
            for _ in range(3):
                in_child(works)
    finally:
        runtime.lib.hipHostUnregister(c_void_p(x.data_ptr()))


def test_a_dispatch_under_the_timing_model_holds_nothing_up(monkeypatch):
    monkeypatch.setenv("DG_SIM_TIMING", "1")
    monkeypatch.setenv("DG_SIM_TIMING_SAMPLING", "0")
    x = torch.zeros(20_000)
    with repeating(lambda: scale(2, x)):
        for _ in range(3):
            in_child(works)


@contextlib.contextmanager
def capturing():
    """Inside, a stream is captured in global mode, in which no thread may allocate."""
    check, lib = hip.runtime().check, hip.runtime().lib
    stream, graph = c_void_p(), c_void_p()
    check(lib.hipStreamCreateWithFlags(byref(stream), NON_BLOCKING))
    check(lib.hipStreamBeginCapture(stream, GLOBAL_CAPTURE))
    yield
    lib.hipStreamEndCapture(stream, byref(graph))
    lib.hipGraphDestroy(graph)


def test_a_capture_of_another_thread_ends_in_the_child():
    with other_thread(capturing):
        in_child(works)


def test_a_capture_of_the_thread_that_forks_goes_on():
    def in_the_child():
        return hip.runtime().lib.hipMalloc(byref(c_void_p()), c_size_t(64))

    with capturing():
        assert in_child(in_the_child) == 900
        assert in_the_child() == 900


@pytest.mark.parametrize("kind", ["host function", "destructor"])
def test_functions_of_the_program_hold_nothing_up(kind):
    """Host functions may wait for the forking thread, which holds Python's GIL."""
    lib, check = hip.runtime().lib, hip.runtime().check
    within, leave = threading.Event(), threading.Event()

    @HostFunction
    def function(_):
        within.set()
        leave.wait()

    def run():
        if kind == "host function":
            check(lib.hipLaunchHostFunc(None, function, None))
            return
        # A dropped capture destroys its graph under the lock of captures.
        graph, stream, held = c_void_p(), c_void_p(), c_void_p()
        check(lib.hipStreamCreateWithFlags(byref(stream), NON_BLOCKING))
        check(lib.hipStreamBeginCapture(stream, GLOBAL_CAPTURE))
        check(lib.hipStreamGetCaptureInfo_v2(stream, byref(c_int()), None, byref(graph), None, None))
        check(lib.hipUserObjectCreate(byref(held), None, function, 1, 1))
        check(lib.hipGraphRetainUserObject(graph, held, 1, 1))
        check(lib.hipStreamDestroy(stream))

    thread = threading.Thread(target=run)
    thread.start()
    assert within.wait(10)
    try:
        in_child(works)
    finally:
        leave.set()
        thread.join()


# ---- everything at once


def stress(children: int) -> None:
    torch.set_num_threads(1)
    jit.kernels.include_dir = lambda: TEMPLATES
    scale(2, X)
    lib = hip.runtime().lib
    numbers = itertools.count()

    def launch():
        assert torch.equal(scale(2, X), 2 * X)

    def render():
        values = {"threads": 64, "factor": 2, "plus_one": False, f"x{next(numbers)}": 1}
        jit.get_kernel("scale.hip.j2", values, ARGTYPES)

    def allocate():
        address = c_void_p()
        assert lib.hipMalloc(byref(address), c_size_t(4096)) == 0
        assert lib.hipFree(address) == 0

    def capture():
        with hip.runtime().capture() as graph:
            y = scale(2, X)
        graph.replay()
        assert torch.equal(y, 2 * X)

    def record():
        with simulator.counters():
            scale(2, X)

    with repeating(launch, launch, render, allocate, capture, record):
        for _ in range(children):
            child = os.fork()
            if child == 0:
                try:
                    works()
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitpid(child, 0)[1] == 0


def test_children_are_forked_amid_everything():
    in_clean_child(stress, 12)
