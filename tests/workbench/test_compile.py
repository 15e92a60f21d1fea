"""``workbench.compile``, and the commands that take HIP source."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from helpers.simulated_hip import GFX942, bundle
from typer.testing import CliRunner

from deep_gemm_rocm import simulator, workbench
from deep_gemm_rocm.__main__ import app
from deep_gemm_rocm.simulator.code_objects import code_objects

SCALE = """
#include <hip/hip_runtime.h>
#ifndef FACTOR
#define FACTOR 2
#endif
__global__ void scale(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = FACTOR * x[i];
}
"""
TWO = """
namespace shapes {
template <class T, int by> __global__ void grow(T* x) { x[threadIdx.x] *= by; }
template __global__ void grow<float, 2>(float*);
template __global__ void grow<float, 3>(float*);
}
template <class T> __global__ void zoom(T* x, _Float16* y) { y[threadIdx.x] = float(x[threadIdx.x]); }
template __global__ void zoom<__bf16>(__bf16*, _Float16*);
template __global__ void zoom<_Float16>(_Float16*, _Float16*);
__global__ void shrink(float* x) { x[threadIdx.x] /= 2; }
"""


def sim(*arguments: str | Path):
    return CliRunner().invoke(app, ["sim", *map(str, arguments)])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "scale.hip"
    path.write_text(SCALE)
    return path


def test_text_and_file_give_the_same_code(source: Path) -> None:
    x, y = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    for code in (workbench.compile(SCALE), workbench.compile(source, flags=["-DFACTOR=2"])):
        y[:] = 0
        simulator.launch(code, "scale", 2, 64, [x, y, 100])
        np.testing.assert_array_equal(y, 2 * x)


def test_debug_information_leaves_the_code_alone(source: Path) -> None:
    plain, debug = (workbench.compile(source, debug=on) for on in (False, True))
    assert b".debug_line" not in plain
    assert b".debug_line" in debug
    assert simulator.disassemble_kernel(plain, "scale") == simulator.disassemble_kernel(debug, "scale")


def test_a_header_beside_the_file(tmp_path: Path, source: Path) -> None:
    (tmp_path / "factor.h").write_text("#define FACTOR 7\n")
    source.write_text('#include "factor.h"\n' + SCALE)
    x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
    simulator.launch(workbench.compile(source), "scale", 1, 64, [x, y, 4])
    np.testing.assert_array_equal(y, 7 * x)


def test_errors_show_the_line(tmp_path: Path) -> None:
    path = tmp_path / "wrong.hip"
    path.write_text(SCALE.replace("x[i];", "z[i];"))
    with pytest.raises(
        workbench.SourceError, match=r"wrong\.hip:8:\d+: error: use of undeclared identifier 'z'"
    ) as error:
        workbench.compile(path)
    assert "if (i < n) y[i] = FACTOR * z[i];" in str(error.value)
    with pytest.raises(workbench.SourceError, match=r"kernel\.hip:1:\d+: error"):
        workbench.compile("__global__ void f( {}")
    with pytest.raises(workbench.SourceError, match=r"undefined.*missing_function"):
        workbench.compile('extern "C" __device__ void missing_function(); __global__ void f() { missing_function(); }')
    with pytest.raises(FileNotFoundError, match=r"absent\.hip"):
        workbench.compile(tmp_path / "absent.hip")


def test_hipcc_compiles_with_its_own_headers(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for hipcc notes its arguments."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "hipcc"
    program.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "HIP version: 7.0"; echo "clang version 20.0.0"; exit; fi\n'
        f'echo "$@" > {tmp_path}/arguments\n'
        'while [ "$1" != -o ]; do shift; done\n'
        'echo made > "$2"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setenv("DG_TOOLCHAIN", "hipcc")
    monkeypatch.setattr("deep_gemm_rocm.jit.probe.failure", lambda hipcc: None)
    assert workbench.compile(source, debug=True, flags=["-DN=3"]) == b"made\n"
    given = (tmp_path / "arguments").read_text()
    assert "--offload-arch=gfx942" in given
    assert "-g" in given.split()
    assert "-DN=3" in given
    assert "nogpuinc" not in given
    assert "workbench/include" not in given


def test_kernels_by_their_names_in_the_source() -> None:
    code = workbench.compile(TWO)
    assert sorted(simulator.kernel_names(code).values()) == [
        "shapes::grow<float, 2>",
        "shapes::grow<float, 3>",
        "shrink",
        "zoom<_Float16>",
        "zoom<std::bfloat16_t>",
    ]
    x = np.ones(64, np.float32)
    simulator.launch(code, "shapes::grow<float, 3>", 1, 64, [x])
    simulator.launch(code, "shrink", 1, 64, [x])
    np.testing.assert_array_equal(x, np.full(64, 1.5))
    with pytest.raises(simulator.SimulatorError, match="shapes::grow is the name of several kernels"):
        simulator.launch(code, "shapes::grow", 1, 64, [x])
    with pytest.raises(simulator.SimulatorError, match="grew is no kernel of this code object; it has shapes::grow"):
        simulator.launch(code, "grew", 1, 64, [x])
    overloads = workbench.compile("__global__ void f(int*) {} __global__ void f(float*) {} __global__ void g() {}")
    with pytest.raises(simulator.SimulatorError, match="f is the name of several kernels; it has _Z1fPf, _Z1fPi, g"):
        simulator.launch(overloads, "f", 1, 64, [x])
    simulator.launch(overloads, "_Z1fPf", 1, 64, [x])


def test_the_compile_command(tmp_path: Path, source: Path) -> None:
    done = sim("compile", source, "-g", "--flag=-DFACTOR=5")
    assert done.exit_code == 0, done.output
    assert b".debug_line" in (tmp_path / "scale.co").read_bytes()
    done = sim("run", tmp_path / "scale.co", "--arg", "float32[9]=2", "--arg", "float32[9]", "--arg", "9")
    assert done.exit_code == 0, done.output
    assert "arg1 float32[9]: [10., 10., 10.," in done.output
    source.write_text("int x = ;")
    done = sim("compile", source)
    assert done.exit_code == 1
    assert re.search(r"scale\.hip:1:\d+: error", done.output)
    assert "Traceback" not in done.output


def test_code_in_a_bundle_or_a_library(tmp_path: Path) -> None:
    shrink, grow = (workbench.compile(f"__global__ void {name}(int* x) {{ ++*x; }}") for name in ("shrink", "grow"))
    (tmp_path / "kernel.hipfb").write_bytes(bundle({"host-x86_64-unknown-linux-gnu-": b"", GFX942: shrink}))
    assert "global_store_dword" in sim("disasm", tmp_path / "kernel.hipfb").output
    foreign = "hipv4-amdgcn-amd-amdhsa--gfx90a"
    library = b"\x7fELF".ljust(4096, b"\0") + bundle({foreign: grow, GFX942: shrink}) + bundle({GFX942: grow})
    (tmp_path / "kernel.so").write_bytes(library)
    assert "name the kernel with --kernel: the file has grow, shrink" in sim("disasm", tmp_path / "kernel.so").output
    for name in ("grow", "shrink"):
        done = sim("run", tmp_path / "kernel.so", "--kernel", name, "--block", "1", "--arg", "int32[1]=4")
        assert "arg0 int32[1]: [5]" in done.output
    (tmp_path / "kernel.so").write_bytes(bundle({foreign: grow}))
    assert "is no code object for gfx942" in sim("disasm", tmp_path / "kernel.so").output.replace("\n", " ")
    assert code_objects(library[: 4096 + 60]) == []  # cut off
    others = {f"{GFX942}:xnack+": grow, "hipv4-amdgcn-amd-amdhsa--gfx9-4-generic": grow, GFX942: grow}
    for order in (1, -1):
        assert code_objects(bundle(dict([*others.items(), (f"{GFX942}:xnack-", shrink)][::order]))) == [shrink]


def test_run_compiles_on_the_way(tmp_path: Path, source: Path) -> None:
    done = sim("run", source, "--arg", "float32[9]=2", "--arg", "float32[9]", "--arg", "9")
    assert done.exit_code == 0, done.output
    assert "arg1 float32[9]: [4., 4., 4.," in done.output
    assert "global_load_dword" in sim("disasm", source).output
    source.write_text(TWO)
    done = sim("run", source, "--arg", "float32[64]=2")
    assert done.exit_code == 1
    assert "name the kernel with --kernel: the file has shapes::grow<float, 2>," in done.output
    (nothing := tmp_path / "nothing").write_text("something else")
    assert f"{nothing.name} has no kernels: it is no code object" in sim("disasm", nothing).output.replace("\n", "")
