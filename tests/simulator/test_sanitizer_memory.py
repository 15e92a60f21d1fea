"""The sanitizer's reports of memory that isn't the kernel's, or that nothing has written."""

from __future__ import annotations

import mmap
import re
from ctypes import byref, c_int, c_void_p, create_string_buffer

import numpy as np
import pytest
import torch
from helpers.assembly import program
from helpers.sanitizer import LDS_BYTES, PLACE, PROLOGUE
from helpers.simulated_hip import DEVICE_TO_DEVICE, HOST_TO_DEVICE, Compiler, Hip, HipCallError

from deep_gemm_rocm import simulator

pytestmark = pytest.mark.usefixtures("sanitizer_at_level_1")


# ---- Memory that isn't the kernel's ----


@pytest.fixture(scope="module")
def outside(hip: Hip, compiler: Compiler):
    source = """
    extern "C" __global__ void read(const int* x, int* y, int at) {
      y[__builtin_amdgcn_workitem_id_x()] = x[at + __builtin_amdgcn_workitem_id_x()];
    }
    extern "C" __global__ void write(const int* x, int* y, int at) { y[at + __builtin_amdgcn_workitem_id_x()] = 1; }
    // The resource claims more than there is; what it doesn't claim reads as zeros, and that is no error.
    __device__ __amdgpu_buffer_rsrc_t resource(const int* x) {
      return __builtin_amdgcn_make_buffer_rsrc((void*)x, 0, 0x7FFFFFFF, 0x20000);
    }
    extern "C" __global__ void buffer_read(const int* x, int* y, int at) {
      const int item = __builtin_amdgcn_workitem_id_x();
      y[item] = __builtin_amdgcn_raw_buffer_load_b32(resource(x + at), 4 * item, 0, 0);
    }
    extern "C" __global__ void buffer_write(const int* x, int* y, int at) {
      __builtin_amdgcn_raw_buffer_store_b32(1, resource(y + at), 4 * __builtin_amdgcn_workitem_id_x(), 0, 0);
    }
    extern "C" __global__ void scalar_read(const int* x, int* y, int at) {
      y[__builtin_amdgcn_workitem_id_x()] = at < 0 ? x[at] : x[at + 63];
    }
    __shared__ volatile int shared[64];
    template <class Pointer>
    __device__ void use(Pointer s, int* y, int at) {
      s[at + __builtin_amdgcn_workitem_id_x()] = 1;
      y[__builtin_amdgcn_workitem_id_x()] = s[__builtin_amdgcn_workitem_id_x()];
    }
    extern "C" __global__ void local(const int* x, int* y, int at) {
      use((volatile __attribute__((address_space(3))) int*)shared, y, at);
    }
    extern "C" __global__ void flat(const int* x, int* y, int at) { use((volatile int*)shared, y, at); }
    """
    return hip.load(compiler.code_object(source))


def is_known(hip: Hip, address: int) -> bool:
    try:
        hip.hipPointerGetAttributes(create_string_buffer(256), address)
    except HipCallError:
        return False
    return True


@pytest.mark.parametrize("at", [-64, -1, 1, 64, 1000])
@pytest.mark.parametrize("kernel", ["read", "write", "buffer_read", "buffer_write", "scalar_read"])
def test_access_beside_a_buffer(hip: Hip, outside, kernel: str, at: int) -> None:
    for _ in range(10):  # a tensor of another test may end where a buffer begins
        buffers = [hip.upload(np.zeros(64, np.int32)) for _ in range(4)]  # neighbouring buffers must not hide the bug
        if not any(is_known(hip, buffer + (4 * (63 + at) if at > 0 else -4)) for buffer in buffers[1:3]):
            break
    function = hip.function(outside, kernel)
    hip.launch(function, 1, 64, buffers[1], buffers[2], c_int(0))
    access = r"(lane \d+ accesses|scalar load of) 4 bytes at 0x[0-9a-f]+, outside the memory"
    with pytest.raises(HipCallError, match=access) as caught:
        hip.launch(function, 1, 64, buffers[1], buffers[2], c_int(at))
    assert caught.value.name == "hipErrorIllegalAddress"
    assert re.search(PLACE, caught.value.message)
    hip.launch(function, 1, 64, buffers[1], buffers[2], c_int(0))


@pytest.mark.parametrize("at", [-11, -10, 26, 27])
def test_tensors_are_known_by_their_storage(compiler: Compiler, at: int) -> None:
    source = """
    extern "C" __global__ void write(int* x, int at) { x[at + (int)__builtin_amdgcn_workitem_id_x()] = 1; }
    """
    storage = torch.zeros(100, dtype=torch.int32)
    view = storage[10:20]
    if at in (-10, 26):
        simulator.launch(compiler.code_object(source), "write", 1, 64, [view, at])
        assert torch.equal(storage, torch.nn.functional.pad(torch.ones(64), (10 + at, 26 - at)).int())
    else:
        with pytest.raises(simulator.SimulatorError, match=r"accesses 4 bytes at .* outside the memory"):
            simulator.launch(compiler.code_object(source), "write", 1, 64, [view, at])


@pytest.mark.parametrize("kernel", ["read", "write"])
def test_access_to_freed_memory_and_to_null(hip: Hip, outside, kernel: str) -> None:
    x, freed = (hip.upload(np.zeros(64, np.int32)) for _ in range(2))
    hip.hipFree(freed)
    past = "; the memory was freed: byte 0 of 256 that hipMalloc allocated and hipFree freed"
    for bad, reported in ((freed, past), (0, "wave 0$")):
        with pytest.raises(HipCallError, match=f"lane 0 accesses 4 bytes at 0x.* outside the memory.*{reported}"):
            hip.launch(hip.function(outside, kernel), 1, 64, *((bad, x) if kernel == "read" else (x, bad)), c_int(0))


@pytest.mark.parametrize("at", [-1, 1, 64])
@pytest.mark.parametrize("kernel", ["local", "flat"])
def test_access_beyond_lds(hip: Hip, outside, kernel: str, at: int) -> None:
    x = hip.upload(np.zeros(64, np.int32))
    function = hip.function(outside, kernel)
    hip.launch(function, 1, 64, x, x, c_int(0))
    lane, position = (0, "0xfffffffc") if at < 0 else (64 - at, "0x100")
    with pytest.raises(
        HipCallError, match=f"kernel {kernel}: lane {lane} accesses 4 bytes .*{position}.* LDS|LDS .*{position}"
    ):
        hip.launch(function, 1, 64, x, x, c_int(at))


def test_access_beyond_scratch(hip: Hip, compiler: Compiler) -> None:
    """The access is right after a lane's scratch, where the next lane's begins."""
    bodies = {f"at_{offset}": f"v_mov_b32_e32 v1, {offset}\nscratch_store_dword v1, v0, off" for offset in (12, 14, 16)}
    module = hip.load(compiler.assemble(program(bodies, scratch_bytes=16)))
    hip.launch(hip.function(module, "at_12"), 1, 64, 0)
    for offset in (14, 16):
        with pytest.raises(HipCallError, match=f"lane 0 accesses 4 bytes at {offset:#x}, outside the scratch"):
            hip.launch(hip.function(module, f"at_{offset}"), 1, 64, 0)


def test_lds_addresses_wrap_around(hip: Hip, compiler: Compiler) -> None:
    """Compilers index backwards with negative addresses and an offset."""
    body = """
      v_sub_u32_e32 v2, 0, v1
      ds_write_b32 v2, v0 offset:252
      ds_add_u32 v2, v0 offset:252
      v_mov_b32_e32 v6, 0
      ds_write_b8 v2, v6 offset:253
      ds_read_u16 v3, v2 offset:252
      ds_read2_b32 v[4:5], v2 offset0:63 offset1:63
      s_waitcnt lgkmcnt(0)
      v_add3_u32 v3, v3, v4, v5
      global_store_dword v1, v3, s[4:5]
    """
    x = hip.upload(np.zeros(64, np.int32))
    module = hip.load(compiler.assemble(program({"backwards": PROLOGUE + body}, LDS_BYTES)))
    hip.launch(hip.function(module, "backwards"), 1, 64, x)
    assert np.array_equal(hip.download(x, np.zeros(64, np.int32)), 6 * np.arange(64))


def test_freed_addresses_are_not_given_out_again_at_once(hip: Hip, outside) -> None:
    x, freed = hip.upload(np.zeros(64, np.int32)), hip.upload(np.zeros(64, np.int32))
    hip.hipFree(freed)
    others = [hip.upload(np.zeros(64, np.int32)) for _ in range(50)]
    assert freed not in others
    with pytest.raises(HipCallError, match=r"lane 0 accesses 4 bytes at 0x.* outside the memory"):
        hip.launch(hip.function(outside, "read"), 1, 64, freed, x, c_int(0))


# ---- Global memory that nothing has written ----

UNWRITTEN = """
#define KERNEL extern "C" __global__ void
__device__ int item() { return __builtin_amdgcn_workitem_id_x(); }
KERNEL address(const int* x, int* y) { y[x[item()] & 63] = 1; }
KERNEL branch(const int* x, int* y) {
  if (x[item()] > 5) y[item()] = 1;
  else __builtin_amdgcn_s_sleep(1);
}
KERNEL store(const int* x, int* y) { y[item()] = x[item()]; }
KERNEL scalar_address(const int* x, int* y) { y[x[40] & 63] = 1; }
KERNEL scalar_branch(const int* x, int* y) { if (x[40] == 7) y[item()] = 1; }
KERNEL bytes(const char* x, int* y) { y[item()] = x[128 + item()]; }
KERNEL wide(const int* x, int* y) {
  typedef int int4 __attribute__((ext_vector_type(4)));
  if (item() < 16) ((int4*)y)[item()] = ((const int4*)x)[item()];
}
KERNEL count(int* x, int* y) {
  __hip_atomic_fetch_add(x + item(), 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  y[0] = x[40];
}
KERNEL unused(const int* x, int* y) {
  volatile const int* p = x;
  int loaded = p[item()];
  asm volatile("s_waitcnt vmcnt(0)" : : "v"(loaded));
  y[item()] = 1;
}
KERNEL fill(int* x, int* y) { x[item()] = item(); }
"""


@pytest.fixture(scope="module")
def unwritten(hip: Hip, compiler: Compiler):
    return hip.load(compiler.code_object(UNWRITTEN))


@pytest.mark.parametrize(
    ("kernel", "reported"),
    [
        ("address", "the address in"),
        ("branch", "a branch on"),
        ("store", "what is stored"),
        ("scalar_address", "the address in"),
        ("scalar_branch", "a branch on"),
        ("bytes", "what is stored"),
        ("wide", "what is stored"),
    ],
)
def test_unwritten_memory(hip: Hip, unwritten, kernel: str, reported: str) -> None:
    """First only the first half of x is written, by the host, a copy or a kernel; then all of x."""
    x, y, source = hip.malloc(256), hip.malloc(256), hip.malloc(256)
    hip.hipMemset(source, 0, 128)
    function = hip.function(unwritten, kernel)
    for write_half in (
        lambda: None,
        lambda: hip.hipMemset(x, 1, 128),
        lambda: hip.hipMemcpy(x, source, 256, DEVICE_TO_DEVICE),  # only half of the source is written
        lambda: hip.launch(hip.function(unwritten, "fill"), 1, 32, x, y),
    ):
        write_half()
        with pytest.raises(
            HipCallError, match=rf"kernel {kernel}: {reported}.* memory that (never was|was never)"
        ) as caught:
            hip.launch(function, 1, 64, x, y)
        assert re.search(PLACE, caught.value.message)
    for write_all in (
        lambda: hip.launch(hip.function(unwritten, "fill"), 1, 64, x, y),
        lambda: hip.hipMemcpy(x, np.zeros(64, np.int32), 256, HOST_TO_DEVICE),
    ):
        write_all()
        hip.launch(function, 1, 64, x, y)
    for pointer in (x, y, source):
        hip.hipFree(pointer)


def test_memory_that_may_have_been_written(hip: Hip, unwritten, monkeypatch) -> None:
    """No reports after writes by atomics, unsanitized launches or the host, or if a loaded value isn't used."""
    x, y, host = hip.malloc(256), hip.malloc(256), c_void_p()
    hip.launch(hip.function(unwritten, "unused"), 1, 64, x, y)
    hip.launch(hip.function(unwritten, "count"), 1, 64, x, y)
    hip.hipHostMalloc(byref(host), 256, 0)
    hip.launch(hip.function(unwritten, "store"), 1, 64, host, y)
    hip.hipFree(x)
    x = hip.malloc(256)
    with monkeypatch.context() as context:
        context.setenv("DG_SIM_SANITIZE", "0")
        hip.launch(hip.function(unwritten, "fill"), 1, 64, x, y)
    hip.launch(hip.function(unwritten, "store"), 1, 64, x, y)
    for pointer in (x, y, host):
        hip.hipFree(pointer)


def test_neighbours_do_not_hide_what_was_never_written(hip: Hip, unwritten) -> None:
    """Host memory right after an allocation, as pages of modules and tensors may be."""
    page = mmap.PAGESIZE
    x, y = hip.malloc(page), hip.malloc(256)
    hip.hipHostRegister(x + page, page, 0)
    for kernel in ("store", "branch"):
        with pytest.raises(HipCallError, match=f"kernel {kernel}: .* memory that (never was|was never)"):
            hip.launch(hip.function(unwritten, kernel), 1, 64, x, y)
    hip.hipHostUnregister(x + page)
    for pointer in (x, y):
        hip.hipFree(pointer)


# ---- Scratch that nothing has written ----

SCRATCH = """
#define KERNEL extern "C" __global__ void
__device__ int item() { return __builtin_amdgcn_workitem_id_x(); }
__device__ void fill(volatile int* a, int n) { for (int i = 0; i < n; ++i) a[i] = 1; }
KERNEL variable(int* x, int n) {
  volatile int a;
  if (item() < 16 * n) a = 1;
  x[item()] = a;
}
KERNEL array(int* x, int n) {
  volatile int a[4];
  for (int i = 0; i < n; ++i) a[i] = i;
  x[item()] = a[item() & 3];
}
KERNEL address(int* x, int n) {
  volatile int a[4];
  for (int i = 0; i < n; ++i) a[i] = i;
  x[a[item() & 3] & 63] = 1;
}
KERNEL branch(int* x, int n) {
  volatile int a[4];
  for (int i = 0; i < n; ++i) a[i] = i;
  if (a[3] > 5) x[item()] = 1;
}
KERNEL called(int* x, int n) {
  volatile int a[4];
  fill(a, n);
  x[item()] = a[item() & 3];
}
"""


@pytest.fixture(scope="module", params=["-O0", "-O3"])
def unwritten_scratch(hip: Hip, compiler: Compiler, request: pytest.FixtureRequest):
    return hip.load(compiler.code_object(SCRATCH, request.param))


@pytest.mark.parametrize("kernel", ["variable", "array", "address", "branch", "called"])
def test_unwritten_scratch(hip: Hip, unwritten_scratch, kernel: str) -> None:
    x = hip.upload(np.zeros(64, np.int32))
    function = hip.function(unwritten_scratch, kernel)
    hip.launch(function, 1, 64, x, c_int(4))
    with pytest.raises(HipCallError, match="was never written") as caught:
        hip.launch(function, 1, 64, x, c_int(3))
    assert re.search(PLACE, caught.value.message)
    hip.hipFree(x)


STRUCTURES = """
#define KERNEL extern "C" __global__ void
struct Narrow { char tag; int value; };
struct Wide { int tag; double value; };
__device__ int item() { return __builtin_amdgcn_workitem_id_x(); }
__device__ void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
template <class T>
__device__ void fill(T& x) { x.tag = item(); x.value = item(); }

// y is a copy of what is in x; of neither has anything written the padding.
template <class T>
__device__ void copy(T* x, T* y) {
  T copy = x[item()], other = x[item() ^ 1];
  y[item()] = item() & 4 ? copy : other;
  y[128] = x[7];
}
template <class T>
__device__ void copy_from_lds(T* y) {
  __shared__ T shared[128];
  fill(shared[item()]);
  barrier();
  y[item()] = shared[item() ^ 64];
}
template <class T>
__device__ void copy_to_lds(T* x, T* y) {
  __shared__ T shared[128];
  shared[item()] = x[item()];
  barrier();
  y[item()] = shared[item() ^ 64];
}
KERNEL fill_narrow(Narrow* x, Narrow* y) { fill(x[item()]); }
KERNEL fill_wide(Wide* x, Wide* y) { fill(x[item()]); }
KERNEL copy_narrow(Narrow* x, Narrow* y) { copy(x, y); }
KERNEL copy_wide(Wide* x, Wide* y) { copy(x, y); }
KERNEL from_lds_narrow(Narrow* x, Narrow* y) { copy_from_lds(y); }
KERNEL from_lds_wide(Wide* x, Wide* y) { copy_from_lds(y); }
KERNEL to_lds_narrow(Narrow* x, Narrow* y) { copy_to_lds(x, y); }
KERNEL to_lds_wide(Wide* x, Wide* y) { copy_to_lds(x, y); }

// The second number is in the place of a Wide's padding.
typedef int Numbers __attribute__((ext_vector_type(4)));
KERNEL use_number(const Numbers* x, int* y) { Numbers n = x[item()]; y[item()] = n.x + n.z + n.w; }
KERNEL use_padding(const Numbers* x, int* y) { Numbers n = x[item()]; y[item()] = n.x + n.y; }
KERNEL use_padding_of_all(const Numbers* x, int* y) { Numbers n = x[1]; y[item()] = n.x + n.y; }
KERNEL store_padding(const Numbers* x, int* y) { y[item()] = x[item()].y; }
"""


@pytest.fixture(scope="module", params=["-O0", "-O3"])
def structures(hip: Hip, compiler: Compiler, request: pytest.FixtureRequest):
    return hip.load(compiler.code_object(STRUCTURES, request.param))


@pytest.mark.parametrize("way", ["copy", "from_lds", "to_lds"])
@pytest.mark.parametrize("kind", ["narrow", "wide"])
def test_structures_are_copied_with_their_padding(hip: Hip, structures, kind: str, way: str) -> None:
    x, y, numbers = (hip.malloc(129 * 16) for _ in range(3))
    hip.launch(hip.function(structures, f"fill_{kind}"), 1, 128, x, y)
    hip.launch(hip.function(structures, f"{way}_{kind}"), 1, 128, x, y)
    if kind == "wide":  # the copy's padding is as uninitialised as the original's
        for memory in (x, y):
            hip.launch(hip.function(structures, "use_number"), 1, 128, memory, numbers)
            for kernel in ("use_padding", "use_padding_of_all", "store_padding"):
                with pytest.raises(HipCallError, match=f"kernel {kernel}: what is stored.* memory that never was"):
                    hip.launch(hip.function(structures, kernel), 1, 128, memory, numbers)
    for pointer in (x, y, numbers):
        hip.hipFree(pointer)
