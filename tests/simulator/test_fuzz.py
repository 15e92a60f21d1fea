"""Machine code that no compiler made: the process survives it, and every launch ends with a HIP status."""

from __future__ import annotations

import os
from pathlib import Path

import fuzz
import pytest
from helpers import assembly
from helpers.forked import in_clean_child
from helpers.simulated_hip import Compiler

# Kernels to damage, with control flow, LDS, barriers, atomics, MFMAs, conversions and calls.
SOURCE = """
typedef float float4 __attribute__((ext_vector_type(4)));
__shared__ int shared[256];
__device__ __attribute__((noinline)) int powers(int x, int n) { return n == 0 ? 1 : x * powers(x, n - 1); }
extern "C" __global__ void damaged(float* x, double* z, int n) {
  int i = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
  shared[i & 255] = i;
  __builtin_amdgcn_s_barrier();
  float4 sum = {0, 0, 0, 0};
  for (int k = 0; k < n; ++k) {
    long a = *(long*)(x + k) ^ shared[(i + k) & 255];
    sum = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(a, a * 3, sum, 0, 0, 0);
  }
  *(float4*)(x + 4 * i) = sum;
  z[i] = __builtin_sqrt(z[i]) / 3 + (_Float16)x[i] + powers(i, n & 7);
  __atomic_fetch_add((int*)x, __builtin_popcount(i) + __builtin_amdgcn_ds_bpermute(4 * i, i), __ATOMIC_RELAXED);
  __atomic_fetch_max(shared, i / 7, __ATOMIC_RELAXED);
}
"""

MARKER = 0xBF80005A  # s_nop 90, which no compiler emits


@pytest.fixture(scope="module")
def inputs(compiler: Compiler, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    body = f"  .rept {fuzz.WORDS}\n  .long {MARKER:#x}\n  .endr\n"
    text = assembly.program({"fuzzed": body}, lds_bytes=4096, registers=assembly.ALL)
    (folder / "template.co").write_bytes(compiler.assemble(text))
    (folder / "compiled.co").write_bytes(compiler.code_object(SOURCE))
    return folder


def fuzzed(environment: dict[str, str], arguments: list[str]) -> dict[str, int]:
    os.environ.clear()
    os.environ.update(environment)
    return fuzz.main(arguments)


def run(inputs: Path, what: str, count: int, watch: str = "nothing", seed: int = 1) -> dict[str, int]:
    progress = inputs / f"progress-{what}-{watch}"
    options = ["--template", inputs / "template.co", "--marker", hex(MARKER), "--compiled", inputs / "compiled.co"]
    options += ["--count", count, "--seed", seed, "--watch", watch, "--progress", progress]
    try:
        endings = in_clean_child(fuzzed, dict(os.environ), [what, *map(str, options)], seconds=60 + count / 10)
    except AssertionError as error:
        at = progress.read_bytes().rstrip(b"\0 ").decode() if progress.exists() else "the beginning"
        raise AssertionError(f"{error} at input {at} of seed {seed}") from None
    assert sum(endings.values()) == count
    return endings


def test_decoder(inputs: Path) -> None:
    run(inputs, "decode", 2000)


@pytest.mark.parametrize(
    "watch",
    ["sanitizer", "timing", *(pytest.param(watch, marks=pytest.mark.slow) for watch in ("nothing", "counters"))],
)
def test_execution(inputs: Path, watch: str) -> None:
    count = 100
    endings = run(inputs, "execute", count, watch)
    assert endings["hipErrorLaunchFailure"] > count // 8  # illegal instructions
    assert endings["hipErrorIllegalAddress"] > 0


@pytest.mark.parametrize("watch", [pytest.param("nothing", marks=pytest.mark.slow), "sanitizer"])
def test_launches_of_damaged_code_objects(inputs: Path, watch: str) -> None:
    endings = run(inputs, "launch", 60, watch)
    assert endings["hipErrorInvalidImage"] > 10
    assert endings["hipErrorIllegalAddress"] > 10  # those that load are launched


@pytest.mark.slow
@pytest.mark.parametrize("watch", fuzz.WATCHES)
def test_many_launches_of_damaged_code_objects(inputs: Path, watch: str) -> None:
    run(inputs, "launch", 50_000, watch, seed=2)


@pytest.mark.slow
def test_decoder_with_a_million_inputs(inputs: Path) -> None:
    run(inputs, "decode", 1_000_000, seed=2)


@pytest.mark.slow
@pytest.mark.parametrize("watch", fuzz.WATCHES)
def test_execution_of_a_million_inputs(inputs: Path, watch: str) -> None:
    run(inputs, "execute", 250_000, watch, seed=2)
