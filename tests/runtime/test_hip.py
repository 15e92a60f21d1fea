"""The choice of a process's HIP runtime, and the functions of its module."""

from __future__ import annotations

import ctypes
import os
import pickle
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from helpers.forked import in_clean_child

import deep_gemm_rocm as dg
from deep_gemm_rocm import simulator
from deep_gemm_rocm.runtime import hip, session

# A fake of an installed ROCm's runtime. It reports ARCH, or fails if STATUS is not 0, and runs nothing.
FAKE_RUNTIME = r"""
typedef unsigned long size_t;
static void copy(char* to, const char* from) { while ((*to++ = *from++)); }
int hipGetDeviceCount(int* count) { *count = STATUS ? 0 : COUNT; return STATUS; }
int hipGetDevicePropertiesR0600(char* properties, int index) {
  copy(properties, "Some GPU");
  *(size_t*)(properties + 288) = 192ull << 30;
  *(int*)(properties + 388) = CUS;
  copy(properties + 1160, ARCH ":sramecc+:xnack-");
  return 0;
}
static int last_error;
int hipDeviceGetAttribute(int* value, int attribute, int index) {
  if (attribute != 10018 || XCDS == 0) return last_error = 1;
  *value = XCDS;
  return 0;
}
int hipGetLastError(void) { const int error = last_error; return last_error = 0, error; }
int hipRuntimeGetVersion(int* version) { *version = 60342131; return 0; }
const char* hipGetErrorName(int status) { return status == 100 ? "hipErrorNoDevice" : "hipErrorUnknown"; }
const char* hipGetErrorString(int status) { return "no ROCm-capable device is detected"; }
#define UNUSED(name) int name(void) { return 999; }
UNUSED(hipHostRegister) UNUSED(hipHostUnregister) UNUSED(hipStreamSynchronize) UNUSED(hipEventCreate)
UNUSED(hipEventDestroy) UNUSED(hipEventRecord) UNUSED(hipEventSynchronize) UNUSED(hipEventElapsedTime)
UNUSED(hipLaunchKernel) UNUSED(hipEventQuery) UNUSED(hipThreadExchangeStreamCaptureMode)
"""


_VARIABLES = ("ROCM_PATH", "LD_LIBRARY_PATH", "DG_DEVICE")


@pytest.fixture
def rocm(tmp_path):
    """Makes folders with a fake runtime for ROCM_PATH."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("needs a C compiler")
    if Path("/opt/rocm/lib/libamdhip64.so").exists():
        pytest.skip("this machine's ROCm would be found")

    def make(
        folder: str,
        arch: str = "gfx942",
        count: int = 1,
        status: int = 0,
        omit: str = "",
        cus: int = 304,
        xcds: int = 0,  # 0 as before ROCm 7, which has no query for it
    ) -> Path:
        library = tmp_path / folder / "lib" / "libamdhip64.so"
        library.parent.mkdir(parents=True)
        source = FAKE_RUNTIME.replace(omit, f"{omit}_is_missing") if omit else FAKE_RUNTIME
        defines = [f'-DARCH="{arch}"', f"-DCOUNT={count}", f"-DSTATUS={status}", f"-DCUS={cus}", f"-DXCDS={xcds}"]
        command = [compiler, "-shared", "-fPIC", "-w", *defines, "-x", "c", "-", "-o", str(library)]
        subprocess.run(command, input=source.encode(), check=True)
        return tmp_path / folder

    return make


def find(environment: dict[str, str], mapped: Path | None = None, mode: int = ctypes.RTLD_LOCAL) -> dict[str, object]:
    """The runtime that a process finds with these environment variables and with this library loaded."""
    for name in _VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(environment)
    if mapped:
        ctypes.CDLL(str(mapped), mode=mode)
    try:
        runtime = hip.runtime()
    except hip.NoDeviceError as error:
        return {"error": str(error)}
    return {
        "path": runtime.path,
        "simulated": runtime.is_simulated,
        "description": runtime.describe(),
        "version": runtime.version,
    }


def chosen(mapped: Path | None = None, mode: int = ctypes.RTLD_LOCAL, **environment: object) -> dict[str, object]:
    variables = {name: str(value) for name, value in environment.items()}
    return in_clean_child(find, variables, mapped and mapped / "lib" / "libamdhip64.so", mode)


def test_without_rocm_the_simulator_is_chosen(rocm):
    found = chosen()
    assert found["path"] == simulator.library_path()
    assert found["simulated"]
    assert "MI300X" in found["description"]
    assert "simulated" in found["description"]


def test_a_runtime_with_a_gfx942_device_is_chosen(rocm):
    root = rocm("rocm")
    expected = {
        "path": root / "lib" / "libamdhip64.so",
        "simulated": False,
        "description": "Some GPU, real",
        "version": "6.3.42131",
    }
    assert chosen(ROCM_PATH=root) == expected
    assert chosen(ROCM_PATH=root, DG_DEVICE="hip") == expected
    assert chosen(LD_LIBRARY_PATH=root / "lib") == expected
    assert chosen(ROCM_PATH=root, DG_DEVICE="sim")["simulated"]


@pytest.mark.parametrize(
    ("options", "xcds"),
    [
        ({"cus": 304, "xcds": 8}, 8),
        ({"cus": 64, "xcds": 4}, 4),  # the query has precedence over the number of CUs
        *(({"cus": cus}, xcds) for cus, xcds in {304: 8, 228: 6, 152: 4, 76: 2, 38: 1, 80: 4, 20: 1, 33: 1}.items()),
    ],
)
def test_xcds_are_asked_for_or_else_follow_from_the_compute_units(rocm, options, xcds):
    runtime = hip.Runtime(rocm("rocm", **options) / "lib" / "libamdhip64.so")
    assert [device.xcds for device in runtime.devices()] == [xcds]
    assert runtime.lib.hipGetLastError() == 0  # torch would report it after the next launch


def test_the_first_runtime_that_counts_is_chosen(rocm):
    other, root, last = rocm("gfx90a", arch="gfx90a"), rocm("gfx942"), rocm("also gfx942")
    found = chosen(LD_LIBRARY_PATH=f"{other}/lib:{root}/lib", ROCM_PATH=last)
    assert found["path"] == root / "lib" / "libamdhip64.so"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"arch": "gfx90a"}, "shows gfx90a, and no gfx942"),
        ({"count": 0}, "shows no device"),
        ({"status": 100}, "hipErrorNoDevice: no ROCm-capable device"),
        ({"omit": "hipGetDevicePropertiesR0600"}, "HIP 6 is needed"),
    ],
    ids=["other architecture", "no device", "error", "too old"],
)
def test_a_runtime_that_does_not_count_is_passed_over(rocm, options, reason):
    root = rocm("rocm", **options)
    assert chosen(ROCM_PATH=root)["simulated"]
    message = chosen(ROCM_PATH=root, DG_DEVICE="hip")["error"]
    assert reason in message
    assert str(root) in message


def test_a_file_that_is_no_library_is_passed_over(rocm, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libamdhip64.so").write_text("not ELF")
    assert chosen(ROCM_PATH=tmp_path)["simulated"]
    assert "can't be opened" in chosen(ROCM_PATH=tmp_path, DG_DEVICE="hip")["error"]


def test_the_runtime_that_is_mapped_comes_first(rocm):
    mapped, other = rocm("mapped"), rocm("other")
    assert chosen(mapped, ROCM_PATH=other)["path"] == mapped / "lib" / "libamdhip64.so"


def test_a_mapped_runtime_without_device_hides_the_installed_ones(rocm):
    mapped, other = rocm("mapped", count=0), rocm("other")
    assert chosen(mapped, ROCM_PATH=other)["simulated"]  # two real copies in one process would crash it
    assert str(other) not in chosen(mapped, ROCM_PATH=other, DG_DEVICE="hip")["error"]


def test_a_global_runtime_that_kernels_would_call_instead_is_an_error(rocm):
    assert "another HIP runtime" in chosen(rocm("mapped", count=0), ctypes.RTLD_GLOBAL)["error"]


def test_the_simulator_does_not_count_as_a_real_one(rocm):
    folder = simulator.library_path().parent
    assert chosen(LD_LIBRARY_PATH=folder)["simulated"]
    assert "simulated MI300X" in chosen(LD_LIBRARY_PATH=folder, DG_DEVICE="hip")["error"]


def test_device_hip_without_any_runtime_says_where_it_looked(rocm):
    assert "LD_LIBRARY_PATH, ROCM_PATH or /opt/rocm" in chosen(DG_DEVICE="hip")["error"]


def test_an_unknown_device_is_an_error(rocm):
    assert "hip or sim, not 'cuda'" in chosen(DG_DEVICE="cuda")["error"]


def without_a_simulator() -> dict[str, object]:
    simulator.library._LIBRARY = Path("nowhere/libamdhip64.so")
    return find({})


def test_a_simulator_that_is_not_built_says_how_to_build_it(rocm):
    assert "setup.py build_ext" in in_clean_child(without_a_simulator)["error"]


def launch_on_hardware(root: Path) -> tuple[str, str]:
    assert not find({"ROCM_PATH": str(root)})["simulated"]
    with pytest.raises(ValueError, match="cuda") as checked:
        hip.runtime().check_residence("a", torch.zeros(1))
    with pytest.raises(ValueError, match="cuda") as launched:
        hip.runtime().launching(a=torch.zeros(1))
    return str(checked.value), str(launched.value)


def test_hardware_refuses_cpu_tensors(rocm):
    for message in in_clean_child(launch_on_hardware, rocm("rocm")):
        assert message.startswith("a is on cpu, but kernels run on the GPU: expected a tensor on cuda")
        assert "DG_DEVICE=sim" in message


# ---- the simulated one


@pytest.fixture
def runtime(monkeypatch):
    monkeypatch.setenv("DG_DEVICE", "sim")
    with session.using(session.Session()):
        yield hip.runtime()


def test_the_simulated_device_is_a_mi300x(runtime):
    (device,) = runtime.devices()
    assert "MI300X" in device.name
    assert (device.arch, device.compute_units, device.lds_bytes) == ("gfx942", 304, 64 * 1024)
    assert device.memory_bytes == pytest.approx(192 * 2**30, rel=0.02)
    assert 2_000_000 <= device.clock_khz <= 2_200_000


def test_a_failed_call_raises_its_name_and_reason(runtime):
    assert runtime.check(0) is None
    with pytest.raises(hip.HipError, match="hipErrorInvalidValue: ") as failed:
        runtime.check(runtime.lib.hipHostRegister(None, 8, 0))
    assert failed.value.status == 1


def test_tensors_are_registered_for_the_time_of_a_launch_only(runtime):
    tensor = torch.zeros(1000)
    with runtime.launching(x=tensor[10:20]) as stream:
        assert stream == runtime.current_stream(tensor) == 0
        assert is_known(runtime, tensor.data_ptr())  # the whole storage is
        assert is_known(runtime, tensor.data_ptr() + tensor.nbytes - 1)
        assert not is_known(runtime, tensor.data_ptr() + tensor.nbytes)
    assert not is_known(runtime, tensor.data_ptr())


def test_tensors_are_forgotten_after_a_failed_launch(runtime):
    tensor = torch.zeros(10)
    with pytest.raises(KeyError), runtime.launching(x=tensor):
        raise KeyError
    assert not is_known(runtime, tensor.data_ptr())


def test_tensors_may_share_memory(runtime):
    memory = torch.zeros(100).numpy()
    whole, part = torch.from_numpy(memory), torch.from_numpy(memory[10:20])
    with runtime.launching(whole=whole, again=whole[5:], part=part):
        assert is_known(runtime, whole.data_ptr() + whole.nbytes - 1)
    assert not is_known(runtime, whole.data_ptr())
    assert not is_known(runtime, part.data_ptr())


def test_an_empty_tensor_needs_no_memory(runtime):
    with runtime.launching(x=torch.empty(0, 16)):
        pass


def test_a_tensor_whose_storage_was_freed_is_refused(runtime):
    tensor = torch.zeros(10)
    tensor.untyped_storage().resize_(8)
    with pytest.raises(ValueError, match="x needs 40 bytes of its storage, which has 8"), runtime.launching(x=tensor):
        pass


def test_a_tensor_that_is_elsewhere_is_refused(runtime):
    elsewhere = torch.zeros(10, device="meta")
    with pytest.raises(ValueError, match=r"x is on meta.*expected a tensor on the CPU"), runtime.launching(x=elsewhere):
        pass
    with pytest.raises(ValueError, match="x is on meta"):
        runtime.check_residence("x", elsewhere)
    runtime.check_residence("x", torch.zeros(1))


def test_events_measure_from_one_to_the_other(runtime, monkeypatch):
    monkeypatch.setenv("DG_SIM_TIMING", "1")
    start, end = hip.Event(), hip.Event()
    start.record()
    dg.bf16_gemm_nt(torch.ones(16, 64).bfloat16(), torch.ones(16, 64).bfloat16(), torch.empty(16, 16).bfloat16())
    end.record()
    end.synchronize()
    assert 0 < end.milliseconds_since(start) < 1


def test_an_event_that_was_not_recorded_is_an_error(runtime):
    with pytest.raises(hip.HipError):
        hip.Event().milliseconds_since(hip.Event())


def is_known(runtime: hip.Runtime, address: int) -> bool:
    attributes = (ctypes.c_char * 64)()
    return runtime.lib.hipPointerGetAttributes(attributes, ctypes.c_void_p(address)) == 0


def test_errors_pass_from_one_process_to_another() -> None:
    error = pickle.loads(pickle.dumps(hip.HipError(719, "hipErrorLaunchFailure: a race")))
    assert (error.status, str(error)) == (719, "hipErrorLaunchFailure: a race")
