"""The locale C without UTF-8 mode, as in many containers: files, paths and output may have any characters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Compiles, computes, and prints; the headers, tables and models have characters beyond ASCII, or may have.
PROGRAM = """
import locale, warnings
warnings.filterwarnings("error", category=EncodingWarning, module="deep_gemm_rocm")
import deep_gemm_rocm as dg
from deep_gemm_rocm import __main__, testing
from deep_gemm_rocm.api import warmup
from deep_gemm_rocm.jit.paths import include_dir

assert locale.getpreferredencoding(False) == "ANSI_X3.4-1968"
a, b = testing.gemm_problem(5, 32, 128)
assert testing.measure(dg.gemm_fp8(a, b), testing.gemm_reference(a, b)).failures == 0
assert all(map(warmup.load, warmup.models().values()))
assert any(not file.read_bytes().isascii() for file in include_dir().rglob("*.h"))
for command in (["info"], ["cache", "list"], ["cache", "verify"]):
    try:
        __main__.app(command)
    except SystemExit as end:
        assert end.code == 0, (command, end.code)
print("2.00 \\u00b5s")  # as other commands do
"""


def test_ascii_is_enough(tmp_path):
    """Every file is opened with an encoding, or Python would warn."""
    (cache := tmp_path / "noyaux_compilés").mkdir()
    environment = os.environ | {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONPATH": str(ROOT),
        "DG_DEVICE": "sim",
        "DG_JIT_CACHE_DIR": str(cache),
        "DG_JIT_DEBUG": "1",
    }
    command = [sys.executable, "-X", "warn_default_encoding", "-c", PROGRAM]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert f"kernel cache   {cache} (1 kernels".encode() in done.stdout
    assert b" whole, 0 damaged" in done.stdout
    assert done.stdout.endswith("2.00 µs\n".encode())
