"""printf and assert in HIP kernels, device_print and device_assert in Triton's."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from deep_gemm_rocm import simulator, workbench

SOURCE = r"""
#include <hip/hip_runtime.h>
#include <cassert>
#include <cstdio>

__global__ void conversions(const double* x, const char* unused) {
  if (threadIdx.x != 3) return;
  const char* nothing = nullptr;
  printf("%d|%5u|%-4x|%hhd|%lld|%zu|", -7, 42u, 255, 300, -(1ll << 40), sizeof(double));
  printf("%c|%s|%.3s|%8.3f|%g|%*d|%%|%s|\n", 'q', "text", "shortened", x[3], 1e30, 6, 5, nothing);
  printf("%.*f|%.*f|%*d|%-6.*s|\n", -2, x[3], 1, x[3], -4, 9, -1, "all");
}
// Puts the first packet on the list of requests, as its own successor.
__global__ void endless_requests() {
  auto* buffer = static_cast<unsigned long long**>(__builtin_amdgcn_implicitarg_ptr())[10];
  const unsigned long long first = buffer[5] + 1;
  unsigned long long* header = reinterpret_cast<unsigned long long*>(buffer[0]);
  header[0] = first, header[1] = 0;
  buffer[4] = first;
  __builtin_amdgcn_s_waitcnt(0);
  __builtin_amdgcn_s_sendmsg(1, 0);
}
__global__ void long_text(int* sent) {
  const int i = threadIdx.x;
  if (i % 32 == 0) {
    sent[i / 32] = printf("%s lane %d: %d %d %d %d %d %d %d %d\n",
                          "more than the fifty-six characters that a packet has room for", i, 1, 2, 3, 4, 5, 6, 7, 8);
  }
}
__global__ void rounds(int n) {
  for (int k = 0; k < n; ++k) printf("%d %d %d\n", blockIdx.x, threadIdx.x / 64, k);
}
__global__ void asserts(const float* x) {
  assert(x[threadIdx.x] < 2);
}
"""


@functools.cache
def code() -> bytes:
    return workbench.compile(SOURCE, debug=True)


def test_conversions(capfd: pytest.CaptureFixture[str]) -> None:
    simulator.launch(code(), "conversions", 1, 64, [np.full(64, 2.71828), None])
    first, second = capfd.readouterr().out.splitlines()
    assert first == "-7|   42|ff  |44|-1099511627776|8|q|text|sho|   2.718|1e+30|     5|%||"
    assert second == "2.718280|2.7|9   |all   |"


def test_a_loop_in_the_list_of_requests_is_reported() -> None:
    with pytest.raises(simulator.SimulatorError, match="list of requests to the host is a loop"):
        simulator.launch(code(), "endless_requests", 1, 1, [])


def test_text_of_several_packets_and_the_number_of_characters(capfd: pytest.CaptureFixture[str]) -> None:
    sent = np.full(4, -1, np.int32)
    simulator.launch(code(), "long_text", 1, 128, [sent])
    lines = capfd.readouterr().out.splitlines(keepends=True)
    text = "more than the fifty-six characters that a packet has room for"
    assert sorted(lines) == sorted(f"{text} lane {lane}: 1 2 3 4 5 6 7 8\n" for lane in (0, 32, 64, 96))
    assert sorted(sent) == sorted(map(len, lines))


@pytest.mark.parametrize("how", ["plain", "sanitized", "timed"])
def test_each_wave_prints_in_order(
    how: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DG_SIM_SANITIZE", str(int(how == "sanitized")))
    monkeypatch.setenv("DG_SIM_TIMING", str(int(how == "timed")))
    simulator.launch(code(), "rounds", 5, 128, [6])
    lines = [tuple(map(int, line.split())) for line in capfd.readouterr().out.splitlines()]
    for group in range(5):
        for wave in range(2):
            rounds = [line[2] for line in lines if line[:2] == (group, wave)]
            assert rounds == [k for k in range(6) for _ in range(64)]


def test_assert_prints_and_the_report_names_its_line(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(simulator.SimulatorError, match="s_trap") as caught:
        simulator.launch(code(), "asserts", 1, 64, [np.arange(64, dtype=np.float32) / 31])
    expected = 1 + SOURCE[: SOURCE.index("assert(x")].count("\n")
    assert caught.value.place is not None
    assert caught.value.place.line == expected
    printed = capfd.readouterr().err.splitlines()
    assert len(printed) == 2  # lanes 62 and 63
    assert all(
        f":{expected}: " in line and "Device-side assertion `x[threadIdx.x] < 2' failed." in line for line in printed
    )


@triton.jit
def print_positive(x, n, BLOCK: tl.constexpr):  # noqa: N803
    i = tl.arange(0, BLOCK)
    values = tl.load(x + i, i < n, 0.0)
    tl.device_print("value", values)
    tl.device_assert(values >= 0, "a negative value")


def test_triton(capfd: pytest.CaptureFixture[str]) -> None:
    x = torch.arange(64, dtype=torch.float32)
    workbench.run_triton(print_positive, 1, x, 64, BLOCK=64, num_warps=1, debug=True)
    lines = capfd.readouterr().out.splitlines()
    assert [float(line.rsplit(":", 1)[1]) for line in lines] == list(range(64))
    x[5] = -1
    with pytest.raises(simulator.SimulatorError, match="s_trap"):
        workbench.run_triton(print_positive, 1, x, 64, BLOCK=64, num_warps=1, debug=True)
    assert "a negative value" in "".join(capfd.readouterr())
