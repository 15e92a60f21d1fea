"""``sim profile --json`` and ``sim compare``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deep_gemm_rocm.__main__ import app
from deep_gemm_rocm.files import replacing
from deep_gemm_rocm.workbench import measurements

pytestmark = pytest.mark.unsanitized

SOURCE = """
#include <hip/hip_runtime.h>
__global__ void scale(const float* x, float* y, int times) {
  __shared__ float shared[SIZE];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  for (int n = 0; n < times; ++n) {
    shared[threadIdx.x] = x[i] * FACTOR;
    __syncthreads();
    y[i] = shared[threadIdx.x];
    __syncthreads();
  }
}
"""


def measure(folder: Path, file: str, *, grid: int = 2, times: int = 4, size: int = 64, factor: int = 2) -> Path:
    source = folder / "scale.hip"
    source.write_text(SOURCE)
    flags = [f"--flag=-DSIZE={size}", f"--flag=-DFACTOR={factor}"]
    arguments = ["--arg", f"float32[{64 * grid}]=1", "--arg", f"float32[{64 * grid}]", "--arg", str(times)]
    path = folder / file
    command = ["sim", "profile", str(source), "--grid", str(grid), *flags, *arguments, "--json", str(path)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    return path


def compare(*arguments: object):
    return CliRunner().invoke(app, ["sim", "compare", *map(str, arguments)])


def test_the_same_kernel_has_not_changed(tmp_path):
    before, after = (measure(tmp_path, name) for name in ("before.json", "after.json"))
    assert before.read_bytes() == after.read_bytes()
    done = compare(before, after, "--tolerance", 0)
    assert done.exit_code == 0
    (line,) = done.output.splitlines()
    assert line.startswith("scale 2x1x1 of 64x1x1: ")
    assert line.endswith(" µs (+0.0%)")


def test_what_changed_is_told(tmp_path):
    before = measure(tmp_path, "before.json")
    after = measure(tmp_path, "after.json", times=400, size=8192, factor=3)
    done = compare(before, after)
    assert done.exit_code == 0
    headline, *facts = done.output.splitlines()
    old, new = (json.loads(path.read_text())["kernels"][0] for path in (before, after))
    assert f"{old['sustained_us']:.2f} -> {new['sustained_us']:.2f} µs (+" in headline
    assert "    results differ" in facts
    assert f"    cycles {old['cycles']:,} -> {new['cycles']:,}" in facts
    assert "    LDS bytes of a workgroup 256 -> 32,768" in facts
    assert "    waves of a CU 32 -> 2" in facts
    assert any(fact.startswith("    clocks waited: wait_memory ") for fact in facts)
    assert compare(before, after, "--tolerance", 10).exit_code == 1
    assert compare(after, before, "--tolerance", 10).exit_code == 0
    for wrong in ("nan", "-1"):
        done = compare(before, after, "--tolerance", wrong)
        assert done.exit_code == 2
        assert f"expected a percentage from 0 on, got {wrong}" in done.output


def test_launches_are_kept_beside_others_in_a_file(tmp_path):
    before, after = measure(tmp_path, "before.json"), measure(tmp_path, "after.json", grid=3)
    measure(tmp_path, "before.json", grid=3)
    measure(tmp_path, "before.json", grid=3)
    assert len(json.loads(before.read_text())["kernels"]) == 2
    done = compare(before, after, "--tolerance", 5)
    assert done.exit_code == 1
    assert "1 of 2 launches take over 5% longer, or are missing" in done.output
    assert "only before" in done.output
    assert compare(after, before, "--tolerance", 5).exit_code == 0


def test_a_full_disk_loses_no_launch_of_a_file(tmp_path, monkeypatch):
    """Links are followed, and what can't be replaced, such as a pipe, is written itself."""
    file, link = measure(tmp_path, "kept.json"), tmp_path / "link.json"
    link.symlink_to(file)
    before = file.read_text()
    [measurement] = measurements.read(file)

    def half(path, text, **_):
        path.write_bytes(text[:100].encode())
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.write_text", half)
        with pytest.raises(OSError, match="no space left"):
            measurements.add(link, measurement)
    assert file.read_text() == before
    assert not list(tmp_path.glob("*.new"))
    measurements.add(link, dataclasses.replace(measurement, kernel="another"))
    assert link.is_symlink()
    assert len(measurements.read(file)) == 2
    with replacing(Path("/dev/null")) as new:
        assert new == Path("/dev/null")


@pytest.mark.parametrize("text", ["", "{}", '{"format": 2, "kernels": []}', '{"format": 1, "kernels": [{}]}', "[]"])
def test_another_file_is_refused(tmp_path, text):
    other = tmp_path / "other.json"
    other.write_text(text)
    done = compare(other, other)
    assert done.exit_code == 1
    assert "other.json has no measurements as `sim profile --json` writes them" in done.output
    assert "Traceback" not in done.output
