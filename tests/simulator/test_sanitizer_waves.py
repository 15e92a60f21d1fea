"""The sanitizer's reports of races between workgroups, and of waves that wait for ever."""

from __future__ import annotations

import re
from ctypes import c_int

import numpy as np
import pytest
from helpers.assembly import program
from helpers.sanitizer import BARRIER, DEFINE_LDS, LDS_BYTES, PLACE, PROLOGUE, launch_with_buffer
from helpers.simulated_hip import Compiler, Hip, HipCallError

pytestmark = pytest.mark.usefixtures("sanitizer_at_level_1")


# ---- Races between workgroups ----

WORKGROUPS = """
#define KERNEL extern "C" __global__ void
__device__ int group() { return __builtin_amdgcn_workgroup_id_x(); }
__device__ int item() { return __builtin_amdgcn_workitem_id_x(); }
__device__ int add(int* counter) {
  return __hip_atomic_fetch_add(counter, 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

KERNEL write_bug(int* x) { x[item()] = group(); }
KERNEL write_fixed(int* x) { x[64 * group() + item()] = group(); }

KERNEL bytes_bug(char* x) { x[63 * group() + item()] = group(); }
KERNEL bytes_fixed(char* x) { x[65 * group() + item()] = 1; }

KERNEL values_bug(int* x) { x[item()] = 7 * group(); }
KERNEL values_fixed(int* x) {
  volatile char* bytes = (char*)x;
  bytes[item()] = 5;
  *(volatile short*)(bytes + 256 + 2 * item()) = 500;
  if (item() == 0) x[256] = 50000;
  typedef int int4 __attribute__((ext_vector_type(4)));
  *(int4*)(x + 512 + 4 * item()) = int4{1, 2, 3, item()};
}

KERNEL read_bug(int* x) { x[64 * group() + item()] = x[64 * (group() ^ 1) + item()]; }
KERNEL read_fixed(int* x) { x[64 * group() + item()] = x[64 * (group() + 4) + item()]; }

KERNEL overwrite_bug(int* x) { x[64 * group() + item()] = x[64 * group() + 64 + item()]; }
KERNEL overwrite_fixed(int* x) { x[64 * group() + 512 + item()] = x[64 * group() + item()]; }

KERNEL count_bug(int* x) { if (item() == 0) x[0] += 1; }
KERNEL count_fixed(int* x) { if (item() == 0) add(x); }

KERNEL atomic_and_plain_bug(int* x) { if (item() == 0) { add(x); x[1 + group()] = x[0]; } }
KERNEL atomic_and_plain_fixed(int* x) {
  if (item() == 0) {
    add(x);
    x[1 + group()] = __hip_atomic_load(x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  }
}

// How LLVM expands atomics that the chip lacks: a plain read, then compare-and-swap until it finds what was read.
template <bool swaps>
__device__ void double_plus_one(int* x) {
  if (item() != 0) return;
  int seen = x[0];
  if (!swaps) x[0] = 2 * seen + 1;
  while (!__hip_atomic_compare_exchange_strong(x, &seen, 2 * seen + 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                               __HIP_MEMORY_SCOPE_AGENT)) {}
}
KERNEL swap_bug(int* x) { double_plus_one<false>(x); }
KERNEL swap_fixed(int* x) { double_plus_one<true>(x); }

// The last workgroup adds up what all have written.
template <bool releases, bool acquires>
__device__ void last_adds_up(int* x) {
  int* sums = x + 16;
  if (item() != 0) return;
  sums[group()] = group();
  if (releases) __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
  bool last = add(x) == 3;
  if (acquires) __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
  if (last) x[1] = sums[0] + sums[1] + sums[2] + sums[3];
}
KERNEL fence_bug(int* x) { last_adds_up<false, false>(x); }
KERNEL fence_fixed(int* x) { last_adds_up<true, true>(x); }
KERNEL release_bug(int* x) { last_adds_up<false, true>(x); }
KERNEL release_fixed(int* x) { last_adds_up<true, true>(x); }
KERNEL acquire_bug(int* x) { last_adds_up<true, false>(x); }
KERNEL acquire_fixed(int* x) { last_adds_up<true, true>(x); }

template <int release>
__device__ void add_under_lock(int* x) {
  if (item() != 0) return;
  int expected = 0;
  while (!__hip_atomic_compare_exchange_strong(x, &expected, 1, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED,
                                               __HIP_MEMORY_SCOPE_AGENT)) expected = 0;
  x[1] += group();
  __hip_atomic_store(x, 0, release, __HIP_MEMORY_SCOPE_AGENT);
}
KERNEL lock_bug(int* x) { add_under_lock<__ATOMIC_RELAXED>(x); }
KERNEL lock_fixed(int* x) { add_under_lock<__ATOMIC_RELEASE>(x); }
"""


@pytest.fixture(scope="module")
def workgroups(hip: Hip, compiler: Compiler):
    return hip.load(compiler.code_object(WORKGROUPS))


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize(
    "kernel",
    [
        "write",
        "bytes",
        "values",
        "read",
        "overwrite",
        "count",
        "atomic_and_plain",
        "swap",
        "fence",
        "release",
        "acquire",
        "lock",
    ],
)
def test_race_between_workgroups(hip: Hip, workgroups, monkeypatch, kernel: str, threads: str) -> None:
    monkeypatch.setenv("DG_SIM_THREADS", threads)
    launch_with_buffer(hip, workgroups, f"{kernel}_fixed", grid=4)
    with pytest.raises(
        HipCallError, match=r"race between workgroups: .* memory at 0x[0-9a-f]+, which workgroup"
    ) as caught:
        launch_with_buffer(hip, workgroups, f"{kernel}_bug", grid=4)
    assert re.search(PLACE, caught.value.message)
    monkeypatch.setenv("DG_SIM_SANITIZE", "0")
    launch_with_buffer(hip, workgroups, f"{kernel}_bug", grid=4)


# ---- Barriers that not all waves reach, and waves that never end ----

BARRIERS = """
extern "C" __global__ void some(int* x, int waves) {
  int item = __builtin_amdgcn_workitem_id_x();
  if (item < 64 * waves) __builtin_amdgcn_s_barrier();
  x[item] = 1;
}
extern "C" __global__ void second(int* x, int waves) {
  int item = __builtin_amdgcn_workitem_id_x();
  __builtin_amdgcn_s_barrier();
  if (item >= 64 * waves) return;
  __builtin_amdgcn_s_barrier();
  x[item] = 1;
}
"""


@pytest.mark.parametrize("timing", ["0", "1"])
@pytest.mark.parametrize("kernel", ["some", "second"])
def test_barrier_that_not_all_waves_reach(hip: Hip, compiler: Compiler, monkeypatch, kernel: str, timing: str) -> None:
    monkeypatch.setenv("DG_SIM_TIMING", timing)
    x = hip.upload(np.zeros(256, np.int32))
    function = hip.function(hip.load(compiler.code_object(BARRIERS)), kernel)
    hip.launch(function, 1, 256, x, c_int(4))
    with pytest.raises(HipCallError, match=r"not all waves reach; .*ended: wave 2, 3; at s_barrier") as caught:
        hip.launch(function, 1, 256, x, c_int(2))
    assert re.search(PLACE, caught.value.message)
    hip.launch(function, 1, 256, x, c_int(4))
    monkeypatch.setenv("DG_SIM_SANITIZE", "0")
    hip.launch(function, 1, 256, x, c_int(2))  # the chip doesn't wait for waves that have ended
    hip.hipFree(x)


SPINNING = {
    # Wave 1 polls LDS for a value that wave 0 writes only after a barrier.
    "spin_bug": DEFINE_LDS
    + BARRIER
    + "\nv_readfirstlane_b32 s8, v0\ns_cmp_eq_u32 s8, 0\ns_cbranch_scc0 spin_bug_poll\n"
    "s_barrier\ns_endpgm\nspin_bug_poll:\nv_mov_b32_e32 v3, 0\nds_read_b32 v2, v3\ns_waitcnt lgkmcnt(0)\n"
    "v_readfirstlane_b32 s9, v2\ns_cmp_eq_u32 s9, 0\ns_cbranch_scc1 spin_bug_poll\ns_barrier",
    "endless_bug": "s_nop 4\nv_readfirstlane_b32 s8, v0\ns_cmp_eq_u32 s8, 0\ns_cbranch_scc1 1\n"
    "endless_bug_again: s_branch endless_bug_again",
    "spin_fixed": DEFINE_LDS + BARRIER,
}


@pytest.fixture(scope="module")
def spinning(hip: Hip, compiler: Compiler):
    kernels = {name: PROLOGUE + body for name, body in SPINNING.items()}
    return hip.load(compiler.assemble(program(kernels, LDS_BYTES)))


def test_deadlock_tells_who_waits_where(hip: Hip, spinning, monkeypatch) -> None:
    monkeypatch.setenv("DG_SIM_MAX_INSTRUCTIONS", "20000")
    launch_with_buffer(hip, spinning, "spin_fixed", block=192)
    with pytest.raises(HipCallError, match=r"; at the s_barrier at offset 0x[0-9a-f]+: wave 0; ") as caught:
        launch_with_buffer(hip, spinning, "spin_bug", block=192)
    assert caught.value.name == "hipErrorLaunchTimeOut"
    assert re.search(r"instructions without an end \(limit: DG_SIM_MAX_INSTRUCTIONS\)", caught.value.message)
    assert re.search(PLACE, caught.value.message)
    with pytest.raises(HipCallError, match=r"; ended: wave 0; at s_branch"):
        launch_with_buffer(hip, spinning, "endless_bug", block=128)


# ---- Order of waves ----


def test_seed_chooses_the_order_of_waves(hip: Hip, compiler: Compiler, monkeypatch) -> None:
    source = """
    __shared__ int tickets;
    extern "C" __global__ void order(int* x) {
      int item = __builtin_amdgcn_workitem_id_x();
      if (item == 0) tickets = 0;
      __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
      __builtin_amdgcn_s_barrier();
      if (item % 64) return;
      x[item / 64] = __hip_atomic_fetch_add(&tickets, 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
    }
    """
    function = hip.function(hip.load(compiler.code_object(source)), "order")
    x = hip.upload(np.zeros(8, np.int32))

    def order(seed: int) -> tuple[int, ...]:
        monkeypatch.setenv("DG_SIM_SEED", str(seed))
        hip.launch(function, 1, 512, x)
        return tuple(hip.download(x, np.zeros(8, np.int32)))

    orders = [order(seed) for seed in range(8)]
    assert len(set(orders)) > 4
    assert all(sorted(tickets) == list(range(8)) for tickets in orders)
    assert [order(seed) for seed in range(8)] == orders
