"""Symbol versions: libraries that were linked against AMD's libamdhip64 require them, others name none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.elf_symbols import all_symbols, dynamic_symbols
from helpers.simulated_hip import ZIG

from deep_gemm_rocm import simulator

# Symbols of different versions in AMD's library (ROCm/clr, hipamd/src/hip_hcc.map.in).
VERSIONS = {
    "__hipRegisterFatBinary": "hip_4.2",
    "hipMalloc": "hip_4.2",
    "hipModuleGetFunction": "hip_4.2",
    "hipGetDeviceProperties": "hip_4.2",
    "hipGraphCreate": "hip_4.3",
    "hipGraphAddEmptyNode": "hip_4.4",
    "hipGraphInstantiateWithFlags": "hip_4.5",
    "hipPointerGetAttribute": "hip_5.0",
    "hipMallocAsync": "hip_5.1",
    "hipMemcpy_spt": "hip_5.2",
    "hipLaunchHostFunc": "hip_5.3",
    "hipGraphAddNode": "hip_5.5",
    "hipDrvGraphAddMemsetNode": "hip_5.6",
    "hipGetDevicePropertiesR0600": "hip_6.0",
    "hipGetProcAddress": "hip_6.1",
    "hipSetValidDevices": "hip_6.2",
    "hipExtHostAlloc": "hip_6.3",
    "hipEventRecordWithFlags": "hip_6.4",
    "hipLaunchKernelExC": "hip_6.5",
    "hipMemsetD2D8": "hip_7.1",
    "hipLibraryLoadData": "hip_7.2",
    "dgSimLastMessage": "simulator_1",
}


def test_every_function_has_one_version() -> None:
    symbols = dynamic_symbols(simulator.library_path())
    versions = {symbol.name: symbol.version for symbol in symbols}
    assert len(versions) == len(symbols)
    assert {name: versions[name] for name in VERSIONS} == VERSIONS
    assert [symbol for symbol in symbols if not symbol.version or not symbol.is_default] == []


CALLS = ["hipMalloc", "hipFree", "hipGraphCreate", "hipMallocAsync", "hipGetDevicePropertiesR0600"]
CLIENT = """
int hipMalloc(void**, unsigned long);
int hipFree(void*);
int hipGraphCreate(void**, unsigned);
int hipMallocAsync(void**, unsigned long, void*);
int hipGetDevicePropertiesR0600(void*, int);
int run(void) {
  static char properties[2000];
  void* pointer;
  if (hipMalloc(&pointer, 100) || hipFree(pointer) || hipMallocAsync(&pointer, 100, 0) || hipFree(pointer)) return 1;
  return hipGraphCreate(&pointer, 0) || hipGetDevicePropertiesR0600(properties, 0) ? 2 : 42;
}
"""


def build(folder: Path, name: str, source: str, *arguments: str | Path) -> Path:
    (folder / "source.c").write_text(source)
    target = ["-target", "x86_64-linux-gnu", "-shared", "-fPIC", "-nostdlib"]  # zig would compile glibc first
    command = [ZIG, "cc", *target, folder / "source.c", "-o", folder / name, *arguments]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    return folder / name


@pytest.mark.parametrize("versioned", [True, False])
def test_clients_of_another_library_bind(tmp_path: Path, versioned: bool) -> None:
    """A client is linked against a stand-in for AMD's library, and loaded with the simulator's."""
    stand_in, script = "".join(f"int {name}() {{ return 1; }}\n" for name in CALLS), tmp_path / "versions"
    nodes = dict.fromkeys(VERSIONS[name] for name in CALLS if name in VERSIONS)
    of = {name: VERSIONS.get(name, "hip_4.2") for name in CALLS}
    script.write_text("".join(
        f"{node} {{ global: {' '.join(f'{name};' for name in CALLS if of[name] == node)} }};\n" for node in nodes
    ) if versioned else "{ global: *; };\n")  # fmt: skip
    (tmp_path / "theirs").mkdir()
    flags = [f"-Wl,--version-script={script}", "-Wl,-soname,libamdhip64.so.6"]
    library = build(tmp_path / "theirs", "libamdhip64.so.6", stand_in, *flags)
    client = build(tmp_path, "client.so", CLIENT, library)
    wanted = {symbol.name: symbol.version for symbol in all_symbols(client) if symbol.name in CALLS}
    assert wanted == (of if versioned else dict.fromkeys(CALLS, ""))
    for path in simulator.library_path().parent.glob("*.so"):
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "libamdhip64.so.6").symlink_to(simulator.library_path())
    # For libraries that a program is started with, the loader only warns.
    program = "import ctypes; print(ctypes.CDLL(None).run())"
    loading = {"LD_LIBRARY_PATH": str(tmp_path), "LD_PRELOAD": str(client), "LD_BIND_NOW": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env={**os.environ, **loading}
    )
    assert (done.stdout, done.stderr) == ("42\n", "")
