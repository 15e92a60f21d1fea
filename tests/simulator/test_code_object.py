"""Code objects in the simulated HIP runtime: containers, ELF files, metadata, globals, and launches."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import struct
import subprocess
import sys
import threading
from ctypes import byref, c_float, c_int, c_size_t, c_uint, c_void_p

import numpy as np
import pytest
from helpers.assembly import program
from helpers.simulated_hip import DEVICE_TO_HOST, GFX942, HOST_TO_DEVICE, Compiler, Hip, HipCallError, bundle

from deep_gemm_rocm import simulator

KERNELS = """
typedef unsigned int u32;
typedef unsigned short u16;

extern "C" {
__device__ int table[4] = {1, 2, 3, 4};
__device__ int* table_pointer = table;  // a relocation
__device__ int counter;
__constant__ float scale = 2.0f;

__global__ void vector_add(const float* a, const float* b, float* sum, int n) {
  int i = __builtin_amdgcn_workgroup_id_x() * __builtin_amdgcn_workgroup_size_x() + __builtin_amdgcn_workitem_id_x();
  if (i < n) sum[i] = a[i] + b[i];
}

// Arguments of every size and alignment.
struct Pair { double x; char y; };
__global__ void arguments(double* out, char a, short b, int c, long d, float e, Pair f, char g) {
  double values[] = {double(a), double(b), double(c), double(d), e, f.x, double(f.y), double(g)};
  for (int i = 0; i < 8; ++i) out[i] = values[i];
}

__global__ void use_globals(int* out) {
  int i = __builtin_amdgcn_workitem_id_x();
  out[i] = table_pointer[i & 3] * int(scale);
  if (i == 0) counter += 7;
}

// The implicit arguments, at the offsets of "Code Object V5 Kernel Argument Metadata Map" (AMDGPUUsage).
__global__ void hidden(u32* out) {
  auto* p = (__attribute__((address_space(4))) const char*)__builtin_amdgcn_implicitarg_ptr();
  for (int i = 0; i < 3; ++i) out[i] = *(__attribute__((address_space(4))) const u32*)(p + 4 * i);
  for (int i = 0; i < 6; ++i) out[3 + i] = *(__attribute__((address_space(4))) const u16*)(p + 12 + 2 * i);
  out[9] = *(__attribute__((address_space(4))) const u16*)(p + 64);
  out[10] = *(__attribute__((address_space(4))) const u32*)(p + 120);
}

__global__ void write_at(int* p, int i) { p[i] = 1; }
__global__ void trap() { __builtin_trap(); }
__attribute__((amdgpu_flat_work_group_size(64, 128))) __global__ void small_blocks() {}
__global__ void much_lds(int* out) {
  __shared__ int lds[15000];
  int i = __builtin_amdgcn_workitem_id_x();
  lds[i * 100] = i;
  __builtin_amdgcn_s_barrier();
  out[i] = lds[(63 - i) * 100];
}
}
"""

VERSIONS = ["-mcode-object-version=4", "-mcode-object-version=5", "-mcode-object-version=6"]


@pytest.fixture(scope="module")
def code(compiler: Compiler) -> bytes:
    return compiler.code_object(KERNELS)


@pytest.fixture
def module(hip: Hip, code: bytes):
    module = hip.load(code)
    yield module
    hip.hipModuleUnload(module)


@pytest.fixture
def out(hip: Hip):
    """Zeroed device memory for 64 numbers of up to 8 bytes."""
    pointer = hip.malloc(512)
    hip.hipMemset(pointer, 0, 512)
    yield pointer
    hip.hipFree(pointer)


def refused(error: str, message: str = ""):
    return pytest.raises(HipCallError, match=f"(?s)^{error}: .*{message}")


def assert_adds(hip: Hip, function: c_void_p, n: int = 1000) -> None:
    a, b = np.random.default_rng(n).standard_normal((2, n), np.float32)
    pointers = [hip.upload(a), hip.upload(b), hip.upload(np.full(n, np.nan, np.float32))]
    hip.launch(function, -(-n // 128), 128, *pointers, c_int(n))
    assert np.array_equal(hip.download(pointers[2], a), a + b)
    for pointer in pointers:
        hip.hipFree(pointer)


# ---- containers


def test_load_from_memory_from_a_file_and_from_a_bundle(hip, code, tmp_path):
    (tmp_path / "kernel.co").write_bytes(code)
    (tmp_path / "kernel.hipfb").write_bytes(bundle({"host-x86_64-unknown-linux-gnu-": b"", GFX942: code}))
    modules = [hip.load(code), hip.load(bundle({GFX942: code})), c_void_p(), c_void_p()]
    hip.hipModuleLoad(byref(modules[2]), str(tmp_path / "kernel.co").encode())
    hip.hipModuleLoad(byref(modules[3]), str(tmp_path / "kernel.hipfb").encode())
    for module in modules:
        assert_adds(hip, hip.function(module, "vector_add"))
        hip.hipModuleUnload(module)


@pytest.mark.parametrize("flag", VERSIONS)
@pytest.mark.parametrize("level", ["-O0", "-O3"])
def test_code_object_versions(hip, compiler, flag, level):
    module = hip.load(compiler.code_object(KERNELS, flag, level))
    assert_adds(hip, hip.function(module, "vector_add"))
    hip.hipModuleUnload(module)


def test_the_closest_entry_of_a_bundle_is_taken(hip, code):
    other = b"not an ELF file: taken by mistake, it would fail"
    for fitting in (":sramecc+:xnack-", ":xnack-", ""):
        entries = {GFX942 + ":xnack+": other, GFX942 + fitting: code, GFX942 + ":sramecc-": other}
        entries["hipv4-amdgcn-amd-amdhsa--gfx90a"] = other
        if fitting:
            entries[GFX942] = other
        hip.hipModuleUnload(hip.load(bundle(entries)))


def test_bundles_without_code_for_the_device(hip, code):
    foreign = {"hipv4-amdgcn-amd-amdhsa--gfx90a:xnack-": code, "hipv4-amdgcn-amd-amdhsa--gfx1100": code}
    with refused("hipErrorNoBinaryForGpu", "gfx90a:xnack-, gfx1100.*gfx942:sramecc"):
        hip.load(bundle(foreign))
    with refused("hipErrorNoBinaryForGpu", "no GPU"):
        hip.load(bundle({}))
    with refused("hipErrorInvalidImage", "compressed"):
        hip.load(b"CCOB" + bytes(100))


def test_code_for_other_targets(hip, compiler):
    source = 'extern "C" __global__ void nothing() {}'
    for arch, name in [("gfx90a", "gfx90a"), ("gfx942:xnack+", r"gfx942.*xnack\+")]:
        with refused("hipErrorNoBinaryForGpu", name):
            hip.load(compiler.code_object(source, "-O3", arch=arch))


def test_tritons_spelling_of_the_target(hip, code):
    """Triton 3.9 writes amdgpu9.42-… into the metadata. Only the processor in the ELF header matters."""
    usual, tritons = b"amdgcn-amd-amdhsa--gfx942", b"amdgpu9.42-amd-amdhsa-gfx"
    assert code.count(usual) == 1
    hip.hipModuleUnload(hip.load(code.replace(usual, tritons)))


def test_files_that_are_missing_or_no_code_objects(hip, tmp_path):
    module = c_void_p()
    with refused("hipErrorFileNotFound", "nothing.co"):
        hip.hipModuleLoad(byref(module), str(tmp_path / "nothing.co").encode())
    with refused("hipErrorFileNotFound", "regular"):
        hip.hipModuleLoad(byref(module), str(tmp_path).encode())
    for contents in (b"", b"\x7fELF", b"text " * 100):
        (tmp_path / "bad.co").write_bytes(contents)
        with refused("hipErrorInvalidImage"):
            hip.hipModuleLoad(byref(module), str(tmp_path / "bad.co").encode())
    with refused("hipErrorInvalidValue", "null"):
        hip.hipModuleLoadData(byref(module), None)
    with refused("hipErrorInvalidValue", "can't be read"):
        hip.hipModuleLoadData(byref(module), 0x10)
    with refused("hipErrorNoBinaryForGpu", "machine 62"):
        hip.hipModuleLoad(byref(module), sys.executable.encode())


def test_count_of_kernels(hip, module):
    count = c_uint()
    hip.hipModuleGetFunctionCount(byref(count), module)
    assert count.value == KERNELS.count("__global__")


class LaunchConfig(ctypes.Structure):
    """HIP_LAUNCH_CONFIG, for kernels of modules. hipLaunchConfig_t differs in a 64-bit size of the dynamic LDS."""

    _fields_ = [("grid", c_uint * 3), ("block", c_uint * 3), ("dynamic_lds", c_uint), ("stream", c_void_p),
                ("attributes", c_void_p), ("count", c_uint)]  # fmt: skip


class LaunchAttribute(ctypes.Structure):
    _fields_ = [("id", c_int), ("padding", c_int), ("value", c_int), ("rest", c_int * 15)]


def test_launches_with_a_configuration(hip, module, out):
    a = hip.upload(np.arange(64, dtype=np.float32))
    values = [c_void_p(a), c_void_p(a), c_void_p(out), c_int(64)]
    pointers = (c_void_p * 4)(*map(ctypes.addressof, values))
    config = LaunchConfig((1, 1, 1), (64, 1, 1))
    function = hip.function(module, "vector_add")
    hip.hipDrvLaunchKernelEx(byref(config), function, pointers, None)
    assert np.array_equal(hip.download(out, np.empty(64, np.float32)), 2 * np.arange(64))
    cooperative = LaunchAttribute(id=2, value=1)
    config.attributes, config.count = ctypes.addressof(cooperative), 1
    hip.hipMemset(c_void_p(out), 0, c_size_t(256))
    hip.hipDrvLaunchKernelEx(byref(config), function, pointers, None)
    assert np.array_equal(hip.download(out, np.empty(64, np.float32)), 2 * np.arange(64))
    config.grid = (304 * 32 + 1, 1, 1)
    with refused("hipErrorCooperativeLaunchTooLarge", "a cooperative launch of 9729 blocks, 9728 fit"):
        hip.hipDrvLaunchKernelEx(byref(config), function, pointers, None)
    hip.hipFree(a)


@pytest.mark.parametrize("call", ["hipLaunchCooperativeKernel", "hipLaunchCooperativeKernel_spt"])
def test_cooperative_launches(hip, module, out, call: str):
    """A dim3 takes two registers, of which the first one holds x and y."""
    supported, hip_device_attribute_cooperative_launch = c_int(0), 10
    hip.hipDeviceGetAttribute(byref(supported), hip_device_attribute_cooperative_launch, 0)
    assert supported.value == 1
    a = hip.upload(np.arange(64, dtype=np.float32))
    values = [c_void_p(a), c_void_p(a), c_void_p(out), c_int(64)]
    pointers = (c_void_p * 4)(*map(ctypes.addressof, values))
    function, block = hip.function(module, "vector_add"), (c_size_t(64 | 1 << 32), 1)
    getattr(hip, call)(function, c_size_t(1 | 1 << 32), 1, *block, pointers, c_uint(0), None)
    assert np.array_equal(hip.download(out, np.empty(64, np.float32)), 2 * np.arange(64))
    with refused("hipErrorCooperativeLaunchTooLarge", "9729 blocks, 9728 fit"):
        getattr(hip, call)(function, c_size_t(9729 | 1 << 32), 1, *block, pointers, c_uint(0), None)
    with refused("hipErrorCooperativeLaunchTooLarge", "305 blocks, 304 fit"):
        getattr(hip, call)(function, c_size_t(305 | 1 << 32), 1, *block, pointers, c_uint(65536), None)
    hip.hipFree(a)


def store(value: int) -> str:
    return (
        "  s_load_dwordx2 s[4:5], s[0:1], 0x0\n  s_waitcnt lgkmcnt(0)\n  v_mov_b32_e32 v1, 0\n"
        f"  v_mov_b32_e32 v2, {value}\n  global_store_dword v1, v2, s[4:5]\n"
    )


def test_code_objects_that_are_linked_from_several_objects(hip, compiler: Compiler):
    """Each object brings a note with its kernels, and the linker keeps them all."""
    parts = [{"first": store(1), "second": store(2)}, {"third": store(3)}, {"fourth": store(4)}]
    module, count = hip.load(compiler.assemble(*map(program, parts))), c_uint()
    hip.hipModuleGetFunctionCount(byref(count), module)
    assert count.value == 4
    out = hip.malloc(4)
    for value, name in enumerate(["first", "second", "third", "fourth"], 1):
        hip.launch(hip.function(module, name), 1, 1, out)
        assert hip.download(out, np.empty(1, np.int32))[0] == value
    hip.hipFree(out)


def test_a_kernel_that_is_missing_is_told_of_in_few_words(hip, compiler: Compiler):
    """Programs may look for kernels just to see whether they exist."""
    names = [f"kernel_with_a_long_name_{i:03}_" + 300 * "x" for i in range(100)]
    module, function = hip.load(compiler.assemble(program(dict.fromkeys(names, "")))), c_void_p(5)
    with refused("hipErrorNotFound", "no kernel missing in the code object") as caught:
        hip.hipModuleGetFunction(byref(function), module, b"missing")
    assert "and 92 more" in caught.value.message
    assert len(caught.value.message) < 1200
    assert function.value == 5
    with refused("hipErrorNotFound") as caught:
        hip.hipModuleGetFunction(byref(function), module, 5000 * b"y")
    assert len(caught.value.message) < 1400


def test_a_kernel_that_is_missing_is_not_logged(compiler: Compiler, tmp_path):
    path = tmp_path / "code.co"
    path.write_bytes(compiler.assemble(program({"there": ""})))
    source = """
import ctypes, sys
hip, module, function = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p(), ctypes.c_void_p()
assert hip.hipModuleLoad(ctypes.byref(module), sys.argv[2].encode()) == 0
assert hip.hipModuleGetFunction(ctypes.byref(function), module, b"missing") == 500
assert hip.hipModuleGetFunction(ctypes.byref(function), module, None) == 1
"""
    command = [sys.executable, "-c", source, str(simulator.library_path()), str(path)]
    for level, lines in (("1", 1), ("3", 2)):
        done = subprocess.run(
            command, env={**os.environ, "AMD_LOG_LEVEL": level}, check=True, capture_output=True, text=True
        )
        assert len(done.stderr.splitlines()) == lines, done.stderr


# ---- damaged files


class GuardedMemory:
    """Memory before a page that can't be read, so that a read past the end crashes."""

    def __init__(self, capacity: int) -> None:
        self._size = -(-capacity // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, self._size + mmap.PAGESIZE)
        self._view = (ctypes.c_char * (self._size + mmap.PAGESIZE)).from_buffer(self._map)
        guard = ctypes.addressof(self._view) + self._size
        assert ctypes.CDLL(None).mprotect(c_void_p(guard), c_size_t(mmap.PAGESIZE), c_int(0)) == 0

    def put(self, data: bytes) -> int:
        """Puts data at the memory's end; returns its address."""
        self._map[self._size - len(data) : self._size] = data
        return ctypes.addressof(self._view) + self._size - len(data)


def test_truncated_code_objects(hip, code):
    memory = GuardedMemory(len(code))
    module = c_void_p()
    for length in [*range(0, 600, 7), *range(600, len(code), 211), len(code) - 1]:
        with refused("hipErrorInvalid(Image|Value)"):
            hip.hipModuleLoadData(byref(module), memory.put(code[:length]))
    packed = bundle({GFX942: code})
    memory = GuardedMemory(len(packed))
    for length in [*range(0, 200, 3), 4095, 4096, 4500, len(packed) - 1]:
        with refused("hipErrorInvalid(Image|Value)"):
            hip.hipModuleLoadData(byref(module), memory.put(packed[:length]))


INTERESTING = [
    0,
    1,
    0x7F,
    0xFF,
    0xDD,
    0xDF,
    0xFFFF,
    0x7FFFFFFF,
    0xFFFFFFFF,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
]


def mutate(data: bytes, generator: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(generator.randrange(1, 6)):
        # Half of the damage goes to the headers, where it has most effect.
        at = generator.randrange(min(len(damaged), 0x400) if generator.random() < 0.5 else len(damaged))
        kind = generator.randrange(4)
        if kind == 0:
            damaged[at] ^= 1 << generator.randrange(8)
        elif kind == 1:
            value = struct.pack("<Q", generator.choice(INTERESTING))[: 1 << generator.randrange(4)]
            damaged[at : at + len(value)] = value[: len(damaged) - at]
        elif kind == 2:
            start = generator.randrange(len(damaged))
            piece = damaged[start : start + generator.randrange(1, 64)]
            damaged[at : at + len(piece)] = piece[: len(damaged) - at]
        else:
            del damaged[max(at, 1) :]
    return bytes(damaged)


def load_damaged(hip: Hip, images: list[bytes], count: int, seed: int) -> tuple[int, int]:
    """Loads damaged images; returns how many were refused and how many were loaded nevertheless."""
    memory = GuardedMemory(max(map(len, images)))
    generator = random.Random(seed)
    refusals = 0
    for _ in range(count):
        module = c_void_p()
        if hip.lib.hipModuleLoadData(byref(module), c_void_p(memory.put(mutate(generator.choice(images), generator)))):
            assert not module.value
            assert hip.last_message()
            refusals += 1
        else:
            hip.hipModuleUnload(module)
    return refusals, count - refusals


def test_damaged_code_objects(hip, code):
    refusals, loads = load_damaged(hip, [code, bundle({GFX942: code})], 3000, seed=1)
    assert refusals > 300
    assert loads > 300  # damage to code or names may go unnoticed
    assert_adds(hip, hip.function(hip.load(code), "vector_add"))


@pytest.mark.slow
def test_a_million_damaged_code_objects(hip, compiler, code):
    images = [code, bundle({GFX942: code}), compiler.code_object(KERNELS, "-O0")]
    refusals, loads = load_damaged(hip, images, 1_000_000, seed=2)
    assert min(refusals, loads) > 100_000


# ---- modules


def test_missing_kernels_are_named(hip, module):
    with refused("hipErrorNotFound", "no kernel nope.*vector_add"):
        hip.function(module, "nope")
    with refused("hipErrorNotFound", "no variable nope"):
        hip.variable(module, "nope")


def test_unloaded_modules_and_their_functions_are_refused(hip, code):
    module = hip.load(code)
    function = hip.function(module, "vector_add")
    assert hip.function(module, "vector_add").value == function.value
    address, _ = hip.variable(module, "counter")
    hip.hipMemset(address, 0, 4)
    hip.hipModuleUnload(module)
    with refused("hipErrorInvalidHandle", "not a module"):
        hip.hipModuleUnload(module)
    with refused("hipErrorInvalidHandle", "not a module"):
        hip.function(module, "vector_add")
    with refused("hipErrorInvalidHandle", "not a kernel function"):
        hip.launch(function, 1, 64)
    with refused("hipErrorInvalidValue"):
        hip.hipMemset(address, 0, 4)


def test_globals(hip, module, out):
    address, size = hip.variable(module, "table")
    assert size == 16
    assert hip.download(address, np.zeros(4, np.int32)).tolist() == [1, 2, 3, 4]
    hip.hipMemcpy(address, np.array([5, 6, 7, 8], np.int32), 16, HOST_TO_DEVICE)
    scale, _ = hip.variable(module, "scale")
    hip.hipMemcpy(scale, np.array([3], np.float32), 4, HOST_TO_DEVICE)
    for _ in range(3):
        hip.launch(hip.function(module, "use_globals"), 1, 8, out)
    assert hip.download(out, np.zeros(8, np.int32)).tolist() == [15, 18, 21, 24] * 2
    counter, _ = hip.variable(module, "counter")
    assert hip.download(counter, np.zeros(1, np.int32))[0] == 21


def test_function_attributes_and_occupancy(hip, module):
    value, grid, block = c_int(), c_int(), c_int()
    names = {"max threads": 0, "lds": 1, "registers": 4, "dynamic lds": 8}

    def attribute(kernel: str, name: str) -> int:
        hip.hipFuncGetAttribute(byref(value), names[name], hip.function(module, kernel))
        return value.value

    assert attribute("vector_add", "max threads") == 1024
    assert attribute("small_blocks", "max threads") == 128
    assert attribute("much_lds", "lds") == 60_000
    assert attribute("much_lds", "dynamic lds") == 65_536 - 60_000
    assert 0 < attribute("vector_add", "registers") <= 32

    occupancy = hip.hipModuleOccupancyMaxActiveBlocksPerMultiprocessor
    for kernel, threads, dynamic_lds, expected in [
        ("vector_add", 64, 0, 32),
        ("vector_add", 1024, 0, 2),
        ("vector_add", 65, 0, 16),
        ("vector_add", 64, 16 << 10, 4),
        ("vector_add", 64, 1 << 20, 0),
        ("much_lds", 64, 0, 1),
        ("small_blocks", 129, 0, 0),
    ]:
        occupancy(byref(value), hip.function(module, kernel), threads, dynamic_lds)
        assert value.value == expected, (kernel, threads, dynamic_lds)
    hip.hipModuleOccupancyMaxPotentialBlockSize(byref(grid), byref(block), hip.function(module, "vector_add"), 0, 0)
    assert (grid.value, block.value) == (2 * 304, 1024)


# ---- launches


@pytest.mark.parametrize("level", ["-O0", "-O3"])
def test_arguments_of_every_size(hip, compiler, level, out):
    class Pair(ctypes.Structure):
        _fields_ = [("x", ctypes.c_double), ("y", ctypes.c_byte)]

    module = hip.load(compiler.code_object(KERNELS, level))
    values = [ctypes.c_byte(-1), ctypes.c_short(-2), c_int(3), ctypes.c_long(-4), c_float(0.5), Pair(6.5, 7)]
    hip.launch(hip.function(module, "arguments"), 1, 1, out, *values, ctypes.c_byte(8))
    assert hip.download(out, np.zeros(8)).tolist() == [-1, -2, 3, -4, 0.5, 6.5, 7, 8]
    hip.hipModuleUnload(module)


@pytest.mark.parametrize("flag", VERSIONS[1:])
@pytest.mark.parametrize("level", ["-O0", "-O3"])
def test_hidden_arguments(hip, compiler, flag, level, out):
    module = hip.load(compiler.code_object(KERNELS, flag, level))
    hip.launch(hip.function(module, "hidden"), (5, 6, 7), (32, 2, 1), out, dynamic_lds=1234)
    blocks, threads, remainders, dimensions = [5, 6, 7], [32, 2, 1], [0, 0, 0], [3]
    dynamic_lds = [1234] if level == "-O3" else [0]  # with -O0, only kernels with dynamic LDS know it
    found = hip.download(out, np.zeros(11, np.uint32)).tolist()
    assert found[:10] == blocks + threads + remainders + dimensions
    assert found[10:] in ([0], dynamic_lds)
    hip.hipModuleUnload(module)


@pytest.mark.parametrize(("skipped", "dwords"), [(0, 6), (2, 4), (3, 1)])
def test_preloaded_arguments(hip, compiler, out, skipped, dwords):
    """Arguments are in SGPRs, and waves start after the 256 bytes of code for firmware that can't preload."""
    body = "  s_trap 2\n  .fill 63, 4, 0xbf800000\n"
    body += "  s_load_dwordx2 s[16:17], s[0:1], 0x0\n  v_mov_b32_e32 v0, 0\n  s_waitcnt lgkmcnt(0)\n"
    for i in range(dwords + 1):
        body += f"  v_mov_b32_e32 v1, s{2 + i}\n  global_store_dword v0, v1, s[16:17] offset:{4 * i}\n"
    enable = ".amdhsa_user_sgpr_kernarg_segment_ptr 1\n"
    preload = f"  .amdhsa_user_sgpr_kernarg_preload_length {dwords}\n"
    preload += f"  .amdhsa_user_sgpr_kernarg_preload_offset {skipped}\n"
    module = hip.load(compiler.assemble(program({"dump": body}, pointers=3).replace(enable, enable + preload)))
    arguments = np.array([out, 0x123456789ABCDEF, 0xFEDCBA9876543210], np.uint64)
    hip.launch(hip.function(module, "dump"), 1, 1, *map(int, arguments))
    found = hip.download(out, np.zeros(dwords + 1, np.uint32)).tolist()
    workgroup = 0  # the SGPR after the arguments
    assert found == [*arguments.view(np.uint32)[skipped : skipped + dwords].tolist(), workgroup]


def test_launch_with_an_argument_buffer(hip, module):
    function = hip.function(module, "vector_add")
    a = np.arange(100, dtype=np.float32)
    pointers = [hip.upload(a), hip.upload(a), hip.upload(np.zeros_like(a))]
    packed = struct.pack("<QQQi", *pointers, 100)

    def launch(size: int, *, pointers_too: bool = False, end: int = 3) -> None:
        buffer, size_value = ctypes.create_string_buffer(packed, len(packed)), c_size_t(size)
        extra = (c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size_value), end)
        one = (c_uint(1),) * 2
        arguments = (c_void_p * 1)() if pointers_too else None
        hip.hipModuleLaunchKernel(function, c_uint(1), *one, c_uint(128), *one, c_uint(0), None, arguments, extra)

    launch(28)
    assert np.array_equal(hip.download(pointers[2], a), a + a)
    with refused("hipErrorInvalidValue", "takes 28 bytes of arguments, the buffer has 27"):
        launch(27)
    with refused("hipErrorInvalidValue", "both"):
        launch(28, pointers_too=True)
    with refused("hipErrorInvalidValue", "HIP_LAUNCH_PARAM_"):
        launch(28, end=9)
    for pointer in pointers:
        hip.hipFree(pointer)


def test_launch_counted_in_threads(hip, module):
    function = hip.function(module, "hidden")
    out = np.zeros(11, np.uint32)
    hip.hipHostRegister(out, out.nbytes, 0)
    pointer = c_void_p(out.ctypes.data)
    arguments = (c_void_p * 1)(ctypes.addressof(pointer))
    start, stop = c_void_p(), c_void_p()
    hip.hipEventCreate(byref(start))
    hip.hipEventCreate(byref(stop))

    def launch(threads: int) -> None:
        grid, block = (c_uint(threads), c_uint(2), c_uint(1)), (c_uint(64), c_uint(2), c_uint(1))
        hip.hipExtModuleLaunchKernel(function, *grid, *block, 0, None, arguments, None, start, stop, c_uint(0))

    launch(192)
    assert out[:6].tolist() == [3, 1, 1, 64, 2, 1]
    hip.hipEventElapsedTime(byref(c_float()), start, stop)
    with refused("hipErrorInvalidConfiguration", "no multiple"):
        launch(100)
    hip.hipHostUnregister(out)


@pytest.mark.parametrize(
    ("kernel", "grid", "block", "dynamic_lds", "error", "message"),
    [
        ("trap", (0, 1, 1), 64, 0, "hipErrorInvalidConfiguration", "grid of 0 x 1 x 1"),
        ("trap", 1, (64, 0, 1), 0, "hipErrorInvalidConfiguration", "block of 64 x 0 x 1"),
        ("trap", 1, 1025, 0, "hipErrorInvalidConfiguration", "1024"),
        ("trap", 1, (32, 32, 2), 0, "hipErrorInvalidConfiguration", "2048 threads"),
        ("trap", 1, (2**31, 2, 1), 0, "hipErrorInvalidConfiguration", "1024"),
        ("trap", 2**32 - 1, 1024, 0, "hipErrorInvalidConfiguration", "4294967295 blocks"),
        ("trap", 1, 64, 65537, "hipErrorInvalidConfiguration", "65537 dynamic"),
        ("much_lds", 1, 64, 5537, "hipErrorInvalidConfiguration", "60000 bytes of LDS and 5537"),
        ("small_blocks", 1, 129, 0, "hipErrorLaunchFailure", "at most 128"),
    ],
)
def test_impossible_launches(hip, module, out, kernel, grid, block, dynamic_lds, error, message):
    with refused(error, f"{kernel}.*{message}"):
        hip.launch(hip.function(module, kernel), grid, block, out, dynamic_lds=dynamic_lds)
    hip.launch(hip.function(module, "much_lds"), 1, 64, out, dynamic_lds=5536)
    assert hip.download(out, np.zeros(64, np.int32)).tolist() == list(range(63, -1, -1))


def test_kernels_that_take_one_block_only(hip, compiler, out):
    source = """
    __attribute__((reqd_work_group_size(32, 4, 1))) kernel void exact(global int* out) { out[0] = 1; }
    """
    module = hip.load(compiler.code_object(source, "-O3", language="cl"))
    with refused("hipErrorInvalidConfiguration", "compiled for 32 x 4 x 1"):
        hip.launch(hip.function(module, "exact"), 1, 128, out)
    hip.launch(hip.function(module, "exact"), 1, (32, 4), out)
    assert hip.download(out, np.zeros(1, np.int32))[0] == 1
    hip.hipModuleUnload(module)


def test_bad_arguments(hip, module, out):
    function = hip.function(module, "write_at")
    one = (c_uint(1),) * 3
    with refused("hipErrorInvalidValue", "neither kernelParams nor extra"):
        hip.hipModuleLaunchKernel(function, *one, *one, c_uint(0), None, None, None)
    with refused("hipErrorInvalidValue", "array of kernel arguments"):
        hip.hipModuleLaunchKernel(function, *one, *one, c_uint(0), None, 0x10, None)
    with refused("hipErrorInvalidValue", "pointer to argument 0 is .*nil"):
        hip.hipModuleLaunchKernel(function, *one, *one, c_uint(0), None, (c_void_p * 2)(), None)
    pointer = c_void_p(out)
    with refused("hipErrorInvalidValue", "argument 1 is 0x10, where 4 bytes"):
        arguments = (c_void_p * 2)(ctypes.addressof(pointer), 0x10)
        hip.hipModuleLaunchKernel(function, *one, *one, c_uint(0), None, arguments, None)
    with refused("hipErrorInvalidHandle", "not a stream"):
        hip.launch(function, 1, 1, out, c_int(0), stream=0xDEAD)
    with refused("hipErrorInvalidHandle", "not a kernel function"):
        hip.launch(c_void_p(0xDEAD), 1, 1, out, c_int(0))


def test_kernels_that_fail_leave_the_runtime_usable(hip, module, out):
    for index in (128, -1, 1 << 28):
        with refused("hipErrorIllegalAddress", "write_at"):
            hip.launch(hip.function(module, "write_at"), 1, 1, out, c_int(index))
    with refused("hipErrorIllegalAddress", "write_at"):
        hip.launch(hip.function(module, "write_at"), 1, 1, 0, c_int(0))
    with refused("hipErrorLaunchFailure", "trap"):
        hip.launch(hip.function(module, "trap"), 1, 1)
    assert not hip.download(out, np.zeros(128, np.int32)).any()
    hip.launch(hip.function(module, "write_at"), 1, 1, out, c_int(127))
    assert hip.download(out, np.zeros(128, np.int32))[127] == 1
    hip.hipMemset(out, 0, 512)


def test_freed_memory_is_out_of_reach(hip, module):
    pointer = hip.malloc(256)
    hip.launch(hip.function(module, "write_at"), 1, 1, pointer, c_int(0))
    hip.hipFree(pointer)
    with refused("hipErrorIllegalAddress"):
        hip.launch(hip.function(module, "write_at"), 1, 1, pointer, c_int(0))


def test_launches_and_frees_in_several_threads(hip, module):
    function = hip.function(module, "vector_add")
    failures = []

    def work(n: int) -> None:
        try:
            for _ in range(20):
                assert_adds(hip, function, n)
        except Exception as error:  # reported by the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 300, 1000, 5000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# ---- compiled host code

LIBRARY = (
    KERNELS
    + """
extern "C" {
__managed__ int managed[2] = {10, 20};
__global__ void add_to_managed(int n) { managed[0] += n; }

int launch_vector_add(const float* a, const float* b, float* sum, int n, ihipStream_t* stream) {
  vector_add<<<dim3((n + 127) / 128), dim3(128), 0, stream>>>(a, b, sum, n);
  return hipGetLastError();
}
int launch_use_globals(int* out) { use_globals<<<1, 8>>>(out); return hipGetLastError(); }
int launch_add_to_managed(int n) { add_to_managed<<<1, 1>>>(n); return hipGetLastError(); }
int launch_too_large() { trap<<<1, 2048>>>(); return hipGetLastError(); }
int launch_trap() { trap<<<1, 64>>>(); return hipGetLastError(); }
int read_managed() { return managed[0]; }
void* symbol_of_table() { return (void*)&table; }
void* symbol_of_vector_add() { return (void*)&vector_add; }
}
"""
)


@pytest.fixture(scope="module")
def library(hip: Hip, compiler: Compiler) -> ctypes.CDLL:
    library = ctypes.CDLL(str(compiler.library(LIBRARY)))
    library.symbol_of_table.restype = library.symbol_of_vector_add.restype = c_void_p
    return library


def test_launch_from_compiled_host_code(hip, library):
    n = 777
    a, b = np.random.default_rng(0).standard_normal((2, n), np.float32)
    pointers = [hip.upload(a), hip.upload(b), hip.malloc(4 * n)]
    stream = c_void_p()
    hip.hipStreamCreate(byref(stream))
    assert library.launch_vector_add(*map(c_void_p, pointers), n, stream) == 0, hip.last_message()
    assert np.array_equal(hip.download(pointers[2], a), a + b)
    hip.hipStreamDestroy(stream)
    invalid_handle = 400
    assert library.launch_vector_add(*map(c_void_p, pointers), n, stream) == invalid_handle
    for pointer in pointers:
        hip.hipFree(pointer)


def test_failures_from_compiled_host_code(hip, library):
    invalid_configuration, launch_failure = 9, 719
    assert library.launch_too_large() == invalid_configuration
    assert "2048 x 1 x 1" in hip.last_message()
    assert library.launch_trap() == launch_failure
    assert "kernel trap" in hip.last_message()


def test_symbols(hip, library, out):
    symbol, address, size = library.symbol_of_table(), c_void_p(), c_size_t()
    hip.hipGetSymbolAddress(byref(address), symbol)
    hip.hipGetSymbolSize(byref(size), symbol)
    assert size.value == 16
    assert address.value != symbol
    hip.hipMemcpyToSymbol(symbol, np.array([30, 40], np.int32), 8, 8, HOST_TO_DEVICE)
    found = np.zeros(4, np.int32)
    hip.hipMemcpyFromSymbol(found, symbol, 16, 0, DEVICE_TO_HOST)
    assert found.tolist() == [1, 2, 30, 40]
    assert library.launch_use_globals(c_void_p(out)) == 0, hip.last_message()
    assert hip.download(out, np.zeros(8, np.int32)).tolist() == [2, 4, 60, 80] * 2
    with refused("hipErrorInvalidValue", "12 bytes at offset 8 of a variable of 16"):
        hip.hipMemcpyFromSymbol(found, symbol, 12, 8, DEVICE_TO_HOST)
    with refused("hipErrorInvalidSymbol"):
        hip.hipGetSymbolAddress(byref(address), out)


def test_managed_variables(hip, compiler, library):
    assert library.read_managed() == 10
    assert library.launch_add_to_managed(5) == 0, hip.last_message()
    assert library.read_managed() == 15
    module = hip.load(compiler.code_object(LIBRARY))  # without the host's code
    hip.launch(hip.function(module, "add_to_managed"), 1, 1, c_int(7))
    address, size = hip.variable(module, "managed")
    assert size == 8
    assert hip.download(address, np.zeros(2, np.int32)).tolist() == [17, 20]
    hip.hipModuleUnload(module)


def test_functions_of_compiled_host_code(hip, library):
    function, blocks, symbol = c_void_p(), c_int(), library.symbol_of_vector_add()
    hip.hipGetFuncBySymbol(byref(function), symbol)
    assert_adds(hip, function)
    hip.hipOccupancyMaxActiveBlocksPerMultiprocessor(byref(blocks), symbol, 256, 0)
    assert blocks.value == 8
    hip.hipFuncSetAttribute(symbol, 8, 65_536)
    with refused("hipErrorInvalidValue", "65537"):
        hip.hipFuncSetAttribute(symbol, 8, 65_537)
    with refused("hipErrorInvalidDeviceFunction"):
        hip.hipFuncGetAttributes(ctypes.create_string_buffer(56), 0x10)
    with refused("hipErrorInvalidDeviceFunction"):
        hip.hipLaunchKernel(0x10, c_size_t(1 | 1 << 32), 1, c_size_t(1 | 1 << 32), 1, None, 0, None)


def test_closed_libraries_take_their_code_along(hip, compiler):
    source = 'extern "C" __global__ void alone() {}\nextern "C" void* symbol() { return (void*)&alone; }\n'
    path = compiler.library(source + 'extern "C" int launch() { alone<<<1, 1>>>(); return hipGetLastError(); }')
    library = ctypes.CDLL(str(path))
    library.symbol.restype = c_void_p
    symbol, function = library.symbol(), c_void_p()
    assert library.launch() == 0
    hip.hipGetFuncBySymbol(byref(function), symbol)
    ctypes.CDLL(None).dlclose(c_void_p(library._handle))
    with refused("hipErrorInvalidHandle"):
        hip.launch(function, 1, 1)
    with refused("hipErrorInvalidDeviceFunction"):
        hip.hipGetFuncBySymbol(byref(function), symbol)
