"""``sim profile --html``: a page with the lines' shares, their instructions, and what the waves did when."""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from deep_gemm_rocm import simulator, workbench
from deep_gemm_rocm.__main__ import app
from deep_gemm_rocm.workbench import report

SOURCE = """
#include <hip/hip_runtime.h>

template <int N>
__global__ void scale(const float* x, float* y) {
  __shared__ float tile[N];
  tile[threadIdx.x] = x[blockIdx.x * N + threadIdx.x];
  __syncthreads();
  y[blockIdx.x * N + threadIdx.x] = tile[N - 1 - threadIdx.x] < 1 ? 0 : 2;
}
template __global__ void scale<128>(const float*, float*);
"""


class Page(HTMLParser):
    """Fails where an element isn't closed; collects the text and the rectangles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.rectangles: list[dict[str, str | None]] = []
        self.outside: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        if tag == "rect":
            self.rectangles.append(dict(attrs))
        self.outside += [name for name, _ in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_page(tmp_path: Path) -> None:
    source, path = tmp_path / "scale.hip", tmp_path / "report.html"
    source.write_text(SOURCE)
    command = ["sim", "profile", str(source), "--html", str(path), "--grid", "4", "--block", "128"]
    done = CliRunner().invoke(app, [*command, "--arg", "float32[512]=3", "--arg", "float32[512]"])
    assert done.exit_code == 0, done.output
    page = Page(path.read_text())
    assert "scale<128>, 4x1x1 workgroups of 128x1x1" in page.text
    assert page.outside == []
    line = next(line for line in SOURCE.splitlines() if "? 0 : 2" in line).strip()
    assert line in page.text
    for mnemonic in ("global_load_dword", "ds_write_b32", "s_barrier", "global_store_dword"):
        assert mnemonic in page.text
    shares = [float(share) for share in re.findall(r"--share: ([0-9.]+)%", path.read_text())]
    assert sum(shares) == pytest.approx(100, abs=0.1 * len(shares))
    rows: dict[str | None, list[tuple[float, float]]] = {}
    for rectangle in page.rectangles:
        begin, width = float(rectangle["x"] or "nan"), float(rectangle["width"] or "nan")
        rows.setdefault(rectangle["y"], []).append((begin, begin + width))
    assert len(rows) == 2  # the waves of a workgroup
    for spans in rows.values():
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
        assert spans[-1][1] <= 800


def test_a_profile_without_a_timeline_is_refused(tmp_path: Path) -> None:
    code = workbench.compile(SOURCE, debug=True)
    with simulator.profile() as profiled:
        simulator.launch(code, "scale", 1, 128, [np.zeros(128, np.float32), np.zeros(128, np.float32)])
    (found,) = profiled.kernels
    with pytest.raises(ValueError, match=r"profile\(timeline=CU\)"):
        report.write_html(tmp_path / "report.html", found, simulator.profile_lines(code, found))
    assert list(tmp_path.iterdir()) == []
