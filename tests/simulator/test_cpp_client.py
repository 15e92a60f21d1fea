"""A C++ program that uses the names, signatures and layouts of AMD's own headers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import test_graphs
from helpers.simulated_hip import Compiler

from deep_gemm_rocm import simulator

CLIENT = Path(__file__).with_name("clients") / "graphs.cpp"


def include_folder() -> Path:
    for root in filter(None, (os.environ.get("ROCM_PATH"), "/opt/rocm", "/usr")):
        if Path(root, "include/hip/hip_runtime_api.h").is_file():
            return Path(root, "include")
    pytest.skip("AMD's HIP headers are not installed")


def test_cpp_client(compiler: Compiler, tmp_path: Path) -> None:
    if (cxx := shutil.which("c++")) is None:
        pytest.skip("no C++ compiler")
    code, program, lib = tmp_path / "kernels.co", tmp_path / "client", simulator.library_path().parent
    code.write_bytes(compiler.code_object(test_graphs.SOURCE))
    options = ["-std=c++17", "-D__HIP_PLATFORM_AMD__", f"-I{include_folder()}", f"-L{lib}", f"-Wl,-rpath,{lib}"]
    subprocess.run([cxx, CLIENT, "-o", program, *options, "-lamdhip64"], check=True)
    done = subprocess.run([program, code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stdout + done.stderr
