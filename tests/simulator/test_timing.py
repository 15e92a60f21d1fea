"""The timing model against published figures of the MI300X, with microkernels; docs/timing.md lists the results.

Each figure comes from the difference of two runs, so that the costs of the beginning and the end cancel out.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.simulated_hip import Compiler, Hip

from deep_gemm_rocm import simulator

pytestmark = pytest.mark.unsanitized  # kernels that only take time

LANES = 64
REPEATS = 256

KERNEL = """
extern "C" __global__ void repeated(int n, unsigned* memory) {{
  __shared__ unsigned lds[16384];
  unsigned lane = __builtin_amdgcn_workitem_id_x();
  unsigned address = {address};
  unsigned* pointer = memory + lane;
  float one = 1.0f;
  asm volatile("" :: "v"(lds), "v"(pointer));
  for (int i = 0; i < n; ++i)
    asm volatile(".rept {repeats}\\n{body}\\n.endr\\n{after}" :: "v"(address), "v"(one), "v"(pointer) : {clobbers});
}}
"""
REGISTERS = ", ".join(f'"v{i}"' for i in range(64, 128)) + ', "memory"'

Clocks = Callable[..., float]


@pytest.fixture
def clocks_of(compiler: Compiler) -> Clocks:
    """Returns a function that measures the clocks of each repetition of some assembly in waves of one workgroup."""

    def clocks(body: str, waves: int = 1, address: str = "lane * 16", after: str = "", repeats: int = REPEATS) -> float:
        less, more = repeated(compiler, body, waves, address, after, repeats)
        return (more.cycles - less.cycles) / (16 * repeats)

    return clocks


def repeated(
    compiler: Compiler, body: str, waves: int, address: str, after: str, repeats: int
) -> tuple[simulator.KernelProfile, simulator.KernelProfile]:
    """Launches of which the second runs the assembly ``16 * repeats`` times more often than the first."""
    lines = ["\\n".join(text.split("\n")) for text in (body, after)]
    source = KERNEL.format(body=lines[0], address=address, after=lines[1], repeats=repeats, clobbers=REGISTERS)
    code = compiler.code_object(source)
    memory = np.zeros(1 << 16, np.uint32)
    with simulator.profile() as prof:
        for n in (4, 4, 20):
            simulator.launch(code, "repeated", 1, LANES * waves, [n, memory])
    _, less, more = prof.kernels  # the first launch has cold caches
    return less, more


def approximately(value: float) -> object:
    """The tolerance that the model claims for published figures."""
    return pytest.approx(value, rel=0.1)


@pytest.mark.parametrize(
    ("instruction", "registers", "clocks"),
    [
        ("v_mfma_f32_16x16x32_fp8_fp8", "v[64:67], v[100:101], v[102:103]", 16),
        ("v_mfma_f32_32x32x16_fp8_fp8", "v[64:79], v[100:101], v[102:103]", 32),
        ("v_mfma_f32_16x16x16_f16", "v[64:67], v[100:101], v[102:103]", 16),
        ("v_mfma_f32_32x32x8_f16", "v[64:79], v[100:101], v[102:103]", 32),
    ],
)
@pytest.mark.parametrize("waves", [1, 4, 8])
def test_matrix_rate(clocks_of: Clocks, instruction: str, registers: str, clocks: int, waves: int) -> None:
    accumulator = registers.split(",")[0]
    expected = clocks * max(1, waves // 4)
    assert clocks_of(f"{instruction} {registers}, {accumulator}", waves) == approximately(expected)


@pytest.mark.parametrize(
    ("body", "after", "busiest"),
    [
        ("v_mfma_f32_16x16x32_fp8_fp8 v[64:67], v[100:101], v[102:103], v[64:67]", "", "matrix cores"),
        ("v_add_f32 v64, v65, v66", "", "vector ALUs"),
        ("ds_read_b128 v[64:67], %0", "s_waitcnt lgkmcnt(0)", "LDS"),
        ("global_load_dwordx4 v[64:67], %2, off", "s_waitcnt vmcnt(0)", "vector L1"),
    ],
)
def test_the_busiest_is_told_of_the_cus_that_have_work(compiler: Compiler, body: str, after: str, busiest: str) -> None:
    source = KERNEL.format(body=body, address="lane * 16", after=after, repeats=REPEATS, clobbers=REGISTERS)
    code, memory = compiler.code_object(source), np.zeros(1 << 16, np.uint32)
    with simulator.profile() as prof:
        simulator.launch(code, "repeated", 1, 8 * LANES, [20, memory])
    (kernel,) = prof.kernels
    others = [share for name, share in kernel.busy.items() if name != busiest]
    assert kernel.busiest == f"{busiest} {kernel.busy[busiest]:.0%}"
    assert 0.85 < kernel.busy[busiest] <= 1
    assert max(others) < 0.2
    assert kernel.mfma_utilization == pytest.approx(kernel.busy["matrix cores"] / 304)


@pytest.mark.parametrize(("waves", "clocks"), [(1, 4), (4, 4), (8, 8)])
@pytest.mark.parametrize(
    "instruction", ["v_add_f32 v64, v65, v66", "v_pk_fma_f32 v[64:65], v[66:67], v[68:69], v[64:65]"]
)
def test_vector_rate(clocks_of: Clocks, instruction: str, waves: int, clocks: int) -> None:
    assert clocks_of(instruction, waves) == approximately(clocks)


def test_vector_work_beside_matrix_work(clocks_of: Clocks) -> None:
    matrix = "v_mfma_f32_16x16x32_fp8_fp8 v[64:67], v[100:101], v[102:103], v[64:67]\n"
    assert clocks_of(matrix + "v_add_f32 v80, v81, v82\n" * 3) == approximately(16)
    assert clocks_of(matrix + "v_add_f32 v80, v81, v82\n" * 4) == approximately(20)


def test_reading_a_matrix_result(clocks_of: Clocks) -> None:
    """Reading the result takes three more wait states than the instruction has passes."""
    body = "v_mfma_f32_16x16x32_fp8_fp8 v[64:67], v[100:101], v[102:103], 0\ns_nop 6\nv_add_f32 v64, v64, v65"
    assert clocks_of(body) == approximately(4 * (1 + 7 + 1))


WAIT = "\ns_waitcnt lgkmcnt(0)"


@pytest.mark.parametrize(("instruction", "clocks"), [("ds_read_b32 v64, %0", 52), ("ds_read_b128 v[64:67], %0", 64)])
def test_lds_latency(clocks_of: Clocks, instruction: str, clocks: int) -> None:
    assert clocks_of(instruction + WAIT) == approximately(clocks)


@pytest.mark.parametrize(
    ("instruction", "waves", "address", "clocks"),
    [
        ("ds_read_b128 v[64:67], %0", 1, "lane * 16", 16),
        ("ds_read_b128 v[64:67], %0", 4, "lane % 64 * 16", 4 * 8),
        ("ds_read_b128 v[64:67], %0", 4, "lane % 64 * 128", 4 * 64),  # every lane begins in bank 0
        ("ds_write_b32 %0, v64", 1, "lane * 4", 8),
        ("ds_write_b128 %0, v[64:67]", 1, "lane * 16", 20),
    ],
)
def test_lds_rate(clocks_of: Clocks, instruction: str, waves: int, address: str, clocks: int) -> None:
    assert clocks_of(instruction, waves, address, after=WAIT) == approximately(clocks)


CHASE = """
typedef __attribute__((address_space(1))) unsigned long long* Pointer;
extern "C" __global__ void CHASE(Pointer start, int n, Pointer out) {
  Pointer p = start;
  HIDE
  for (int i = 0; i < n; ++i)
#pragma unroll
    for (int j = 0; j < 16; ++j) p = (Pointer)*p;
  *out = (unsigned long long)p;
}
"""
HOPS = 16  # in one iteration
# The compiler loads values that it knows to be uniform through the scalar cache.
CHASE = CHASE.replace("CHASE", "scalar").replace("HIDE", "") + CHASE.partition(";")[2].replace(
    "CHASE", "vector"
).replace("HIDE", 'asm volatile("" : "+v"(p));')


def chain(size: int, stride: int, *, shuffled: bool = True) -> np.ndarray:
    """Pointers, a stride apart, that lead through the whole array."""
    array = np.zeros(size // 8, np.uint64)
    steps = np.arange(0, size, stride, dtype=np.uint64)
    if shuffled:
        steps = np.random.default_rng(0).permutation(steps)
    array[steps // 8] = np.roll(steps, -1) + np.uint64(array.ctypes.data)
    return array


@pytest.mark.parametrize(
    ("kernel", "size", "clocks"),
    [
        ("vector", 16 << 10, 116),
        ("vector", 2 << 20, 269),
        # the highest published, which fits whole kernels best
        pytest.param("vector", 8 << 20, 262 * 2.1, marks=pytest.mark.slow),
        ("scalar", 8 << 10, 48),
        ("scalar", 2 << 20, 48 + 124),
    ],
    ids=["L1", "L2", "Infinity Cache", "scalar cache", "L2 for scalars"],
)
def test_pointer_chase(compiler: Compiler, kernel: str, size: int, clocks: float) -> None:
    assert clocks_of_hop(compiler, kernel, chain(size, 128)) == approximately(clocks)


@pytest.mark.parametrize(
    ("kernel", "stride", "clocks"),
    [
        ("vector", 64, (116 + 269) / 2),  # lines of 128 bytes, as L2's
        ("vector", 128, 269),
        ("scalar", 32, (48 + 172) / 2),  # of 64 bytes
        ("scalar", 64, 172),
    ],
)
def test_lines(compiler: Compiler, kernel: str, stride: int, clocks: float) -> None:
    """Neighbouring pointers, in order, come with the line of the first one."""
    assert clocks_of_hop(compiler, kernel, chain(256 << 10, stride, shuffled=False)) == approximately(clocks)


def clocks_of_hop(compiler: Compiler, kernel: str, array: np.ndarray) -> float:
    """Clocks from one pointer to the next, after a round through all of them."""
    code, out = compiler.code_object(CHASE), np.zeros(1, np.uint64)
    around = np.count_nonzero(array) // HOPS
    with simulator.profile() as prof:
        for n in (around, around, around + 100):
            simulator.launch(code, kernel, 1, 1, [array, n, out])
    _, first, second = prof.kernels
    return (second.cycles - first.cycles) / (100 * HOPS)


def test_pointer_chase_in_hbm(compiler: Compiler) -> None:
    code = compiler.code_object(CHASE)
    out = np.zeros(1, np.uint64)
    array = chain(48 << 20, 4096)
    with simulator.profile({"mall.bytes": 1 << 20}) as prof:  # makes the Infinity Cache useless
        for n in (50, 50, 150):
            simulator.launch(code, "vector", 1, 1, [array, n, out])
    _, first, second = prof.kernels
    assert (second.cycles - first.cycles) / (100 * HOPS) == approximately(420 * 2.1)  # the highest published


STREAM = """
typedef unsigned Vector __attribute__((ext_vector_type(4)));
extern "C" __global__ void stream(const Vector* x, unsigned steps, unsigned count, Vector* out) {
  unsigned id = __builtin_amdgcn_workgroup_id_x() * 256 + __builtin_amdgcn_workitem_id_x();
  unsigned all = __builtin_amdgcn_grid_size_x();
  Vector sum = {0, 0, 0, 0};
  for (unsigned step = 0; step < steps; step += 8) {
    Vector values[8];
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) values[i] = x[(id + (step + i) * all) & (count - 1)];
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) sum ^= values[i];
  }
  if (sum.x == 1) out[0] = sum;
}
"""


def streaming_bandwidth(compiler: Compiler, groups: int, size: int, steps: int, constants: dict[str, float]) -> float:
    """Bytes per clock while workgroups read an array of `size` bytes front to back."""
    code = compiler.code_object(STREAM)
    whole, out = np.zeros(size + 128, np.uint8), np.zeros(4, np.uint32)
    x = whole[-whole.ctypes.data % 128 :][:size]
    with simulator.profile(constants) as prof:
        for count in (3 * steps, steps, 2 * steps):
            simulator.launch(code, "stream", groups, 256, [x, count, size // 16, out])
    _, first, second = prof.kernels
    if "mall.bytes" in constants:
        assert second.busiest.startswith("HBM")
    return groups * 256 * 16 * steps / (second.cycles - first.cycles)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "constants", "terabytes_per_second"),
    [(128 << 20, {"mall.bytes": 1 << 20}, 4.3), (128 << 20, {}, 11.9)],
    ids=["HBM", "Infinity Cache"],
)
def test_streaming(compiler: Compiler, size: int, constants: dict[str, float], terabytes_per_second: float) -> None:
    bandwidth = streaming_bandwidth(compiler, 1216, size, 8, constants)
    assert bandwidth * 2.1e9 / 1e12 == approximately(terabytes_per_second)


def test_streaming_from_l2(compiler: Compiler) -> None:
    """Measured: 47.6 bytes a clock come into a CU (mt4g on a MI350P, of an interface of 64), and 34 on average over a
    whole GEMM (AITER's int8 kernel on a MI308X)."""
    assert 47.6 < streaming_bandwidth(compiler, 1, 1 << 20, 256, {}) < 65


SUMS = """
extern "C" __global__ void sums(const unsigned* x, const unsigned* y, unsigned* out) {
  unsigned id = __builtin_amdgcn_workitem_id_x();
  volatile unsigned kept = id % 32;  // in scratch
  unsigned sum = 0;
#pragma unroll 16
  for (unsigned i = 0; i < 64; ++i) sum += x[1024 * i + id] - y[1024 * i + id];
  out[id] = sum + kept;
}
"""


def storage_at(address: int, like: torch.Tensor, offset: int = 0) -> torch.Tensor:
    """A copy, `offset` bytes into a storage whose address on the host is `address` mod 4096."""
    size = offset + like.nbytes
    whole = torch.empty(size + 4096, dtype=torch.uint8)
    begin = (address - whole.data_ptr()) % 4096
    array = whole.numpy()[begin : begin + size]
    copy = torch.from_numpy(array)[offset:].view(like.dtype)
    assert copy.untyped_storage().data_ptr() % 4096 == address
    return copy.copy_(like)


def test_time_is_the_same_wherever_the_host_has_the_memory(compiler: Compiler) -> None:
    """The model places storages as hipMalloc would; a view keeps its offset in its storage."""
    code = compiler.code_object(SUMS)
    x = torch.arange(64 * 1024, dtype=torch.int32)
    expected = torch.arange(1024, dtype=torch.int32) % 32

    def cycles(*places: tuple[int, int]) -> int:
        tensors = zip(places, (x, x, expected), strict=True)
        first, second, out = (storage_at(address, tensor, offset) for (address, offset), tensor in tensors)
        with simulator.profile() as prof:
            simulator.launch(code, "sums", 1, 1024, [first, second, out])
        torch.testing.assert_close(out, expected)
        return prof.kernels[0].cycles

    aligned = cycles((0, 0), (0, 0), (0, 0))
    assert {cycles(*((address, 0) for address in places)) for places in ((64, 64, 64), (16, 256, 4080))} == {aligned}
    # Lines lie in other channels of the L2, each of which takes more than a clock for a line.
    assert cycles((0, 256), (64, 256), (16, 256)) == pytest.approx(aligned, rel=0.1)
    misaligned = cycles((0, 64), (0, 64), (0, 64))
    assert misaligned > 1.1 * aligned
    assert cycles((64, 64), (16, 64), (240, 64)) == misaligned


def test_lines_come_in_one_after_another(compiler: Compiler) -> None:
    bandwidth = [streaming_bandwidth(compiler, 1, 1 << 20, 256, {"l1.fill_bytes": rate}) for rate in (16, 32)]
    assert bandwidth == [approximately(16), approximately(32)]


@pytest.mark.parametrize(("instruction", "clocks"), [("global_load_lds_dword", 8), ("global_load_dword v64,", 4)])
def test_loads_to_lds_take_the_port_longer(compiler: Compiler, instruction: str, clocks: int) -> None:
    """And no more energy for a byte."""
    waves = 8
    less, more = repeated(compiler, f"{instruction} %2, off", waves, "lane", "s_waitcnt vmcnt(0)", REPEATS)
    loads = 16 * REPEATS * waves
    assert (more.cycles - less.cycles) / loads == approximately(clocks)
    assert (more.activity["l1_bytes"] - less.activity["l1_bytes"]) / loads == 4 * LANES


def test_launch_cost(compiler: Compiler) -> None:
    with simulator.profile() as prof:
        simulator.launch(compiler.code_object('extern "C" __global__ void empty() {}'), "empty", 1, 64, [])
    assert 1 <= prof.kernels[0].time_us <= 3  # published: 1 of a warm launch, 3 of a cold one


SCALE = """
extern "C" __global__ void scale(float* x, long long* ticks) {
  long long start = __builtin_readcyclecounter();
  int i = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
  x[i] *= 2;
  __builtin_amdgcn_s_waitcnt(0);
  *ticks = __builtin_readcyclecounter() - start;
}
"""


def test_results_and_records(compiler: Compiler) -> None:
    """The kernel's results are the same as without the model, and each launch is recorded."""
    x, ticks = np.arange(6400, dtype=np.float32), np.zeros(1, np.int64)
    with simulator.profile() as prof:
        simulator.launch(compiler.code_object(SCALE), "scale", (50, 2), 64, [x, ticks])
    np.testing.assert_array_equal(x[:3200], np.arange(3200) * 4)
    (kernel,) = prof.kernels
    assert (kernel.name, kernel.grid, kernel.block) == ("scale", (50, 2, 1), (64, 1, 1))
    assert kernel.instructions == sum(line.executed for line in kernel.listing)
    assert 500 < ticks[0] < kernel.cycles
    assert kernel.hbm_read_bytes >= x[:3200].nbytes


def test_records_only_when_asked(compiler: Compiler) -> None:
    x, ticks = np.zeros(64, np.float32), np.zeros(1, np.int64)
    simulator.launch(compiler.code_object(SCALE), "scale", 1, 64, [x, ticks])
    with simulator.profile() as prof:
        pass
    assert prof.kernels == []


def test_constants(compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, ticks = np.zeros(64, np.float32), np.zeros(1, np.int64)
    arguments = (compiler.code_object(SCALE), "scale", 1, 64, [x, ticks])
    times = []
    for nanoseconds in (1000, 5000):
        with simulator.profile({"launch.overhead_ns": nanoseconds}) as prof:
            simulator.launch(*arguments)
        times.append(prof.kernels[0].time_us)
    assert times[1] - times[0] == pytest.approx(4)
    with (
        pytest.raises(simulator.SimulatorError, match=r"lds\.latency is no constant"),
        simulator.profile({"lds.latency": 1}),
    ):
        simulator.launch(*arguments)
    monkeypatch.setenv("DG_SIM_TIMING", "1")
    monkeypatch.setenv("DG_SIM_TIMING_CONSTANTS", str(tmp_path / "missing"))
    with pytest.raises(simulator.SimulatorError, match="can't be read"):
        simulator.launch(*arguments)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("chip.xcds", 0, "chip.xcds: expected a whole number from 1 to 32, got 0"),
        ("chip.xcds", 7.5, "whole number"),
        ("chip.clock_mhz", 0, "chip.clock_mhz: expected a number from 1 to 1000000, got 0"),
        ("l1.port_bytes", 0, "number from 0.1"),
        ("l1.hit_clocks", float("nan"), "number from 0 to 1000000, got nan"),
        ("hbm.extra_ns", 1e18, "number from 0 to 1000000, got 1e"),
        ("l2.hit_clocks", 1, "l2.hit_clocks: expected at least l1.hit_clocks, 116, got 1"),
        ("mall.bytes", 1024, "mall.bytes: expected at least a line for each of its ways, 2048 bytes, got 1024"),
    ],
)
def test_constants_with_which_the_model_cannot_compute(
    compiler: Compiler, name: str, value: float, expected: str
) -> None:
    x, ticks = np.zeros(64, np.float32), np.zeros(1, np.int64)
    code = compiler.code_object(SCALE)
    with pytest.raises(simulator.SimulatorError, match=re.escape(expected)), simulator.profile({name: value}):
        simulator.launch(code, "scale", 1, 64, [x, ticks])


def test_every_constant_tells_its_source() -> None:
    for line in (Path(simulator.__file__).parent / "mi300x_timing.toml").read_text(encoding="utf-8").splitlines():
        if "=" in line.partition("#")[0]:
            assert re.search(r"# (source: |fit: |guess)", line), line


def test_events_tell_simulated_time(hip: Hip, compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DG_SIM_TIMING", "1")
    function = hip.function(hip.load(compiler.code_object(SCALE)), "scale")
    x, ticks = hip.malloc(64 * 4), hip.malloc(8)
    start, stop, milliseconds = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_float(-1)
    hip.hipEventCreate(ctypes.byref(start))
    hip.hipEventCreate(ctypes.byref(stop))
    hip.hipEventRecord(start, None)
    for _ in range(3):
        hip.launch(function, 1, 64, x, ticks)
    hip.hipEventRecord(stop, None)
    hip.hipEventElapsedTime(ctypes.byref(milliseconds), start, stop)
    assert 3 * 0.0025 < milliseconds.value < 0.015  # three launches, each with its fixed cost


POLL = """
extern "C" __global__ void poll(int* flag, int* out) {
  if (__builtin_amdgcn_workgroup_id_x() == 0) {
    while (__hip_atomic_load(flag, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT) == 0) __builtin_amdgcn_s_sleep(1);
    *out = *flag;
  } else {
    for (int i = 0; i < 100; ++i) __builtin_amdgcn_s_sleep(100);
    __hip_atomic_store(flag, 7, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  }
}
"""


def test_waiting_for_another_workgroup(compiler: Compiler) -> None:
    """The first workgroup waits as long as the second one sleeps."""
    flag, out = np.zeros(1, np.int32), np.zeros(1, np.int32)
    with simulator.profile() as prof:
        simulator.launch(compiler.code_object(POLL), "poll", 2, 64, [flag, out])
    assert out[0] == 7
    assert 640_000 < prof.kernels[0].cycles < 660_000


def test_power_limits_the_sustained_clock(compiler: Compiler) -> None:
    """With all matrix cores busy, the clock falls to about that of AMD's "max achievable" rates, 1230 MHz; without
    MFMAs it stays at the boost clock."""
    source = KERNEL.format(
        body="v_mfma_f32_16x16x32_fp8_fp8 v[64:67], v[100:101], v[102:103], v[64:67]",
        address="lane",
        after="",
        repeats=REPEATS,
        clobbers=REGISTERS,
    )
    memory = np.zeros(1 << 16, np.uint32)
    with simulator.profile(compute="sampled") as prof:
        simulator.launch(compiler.code_object(source), "repeated", 304, LANES * 4, [20, memory])
        simulator.launch(compiler.code_object(SCALE), "scale", 1, LANES, [memory.view(np.float32), memory])
    busy, idle = prof.kernels
    assert 1100 < busy.sustained_mhz < 1500
    assert busy.sustained_us > busy.time_us
    assert idle.sustained_mhz == 2100
    assert idle.sustained_us == pytest.approx(idle.time_us, rel=1e-3)


def test_chips_differ(compiler: Compiler) -> None:
    """An MI308X has 80 CUs in place of 304."""
    code, memory = compiler.code_object(SCALE), np.zeros(1 << 16, np.uint32)
    cus = {}
    for chip in (None, "mi308x", "MI325X"):
        with simulator.profile(chip=chip) as prof:
            simulator.launch(code, "scale", 1, LANES, [memory.view(np.float32), memory])
        cus[chip] = prof.kernels[0].activity["cu_clocks"] / prof.kernels[0].cycles
    assert cus == {None: 304, "mi308x": 80, "MI325X": 304}
    with pytest.raises(ValueError, match="chip: expected one of mi300x, "), simulator.profile(chip="mi999"):
        pass
