"""AITER's kernels as a baseline: the code objects of a checkout run, and their results are checked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deep_gemm_rocm.benchmarks import aiter, problems, suite
from deep_gemm_rocm.benchmarks.measure import Sampling
from deep_gemm_rocm.benchmarks.shapes import Shape
from deep_gemm_rocm.workbench import compile as compiled

ONCE = Sampling(1, 0, 0)
SHAPE = Shape(21, 256, 384)
# A plain kernel with the arguments and layouts of AITER's.
SOURCE = """
#include <hip/hip_runtime.h>

template <class T>
struct alignas(16) Field { T value; };

struct Arguments {
  Field<unsigned*> d;
  Field<const unsigned char*> a, b;
  Field<const float*> sfa, sfb, bias;
  Field<int> m, n, k, lda, ldb, row_bytes, parts, scale_m, scale_n, scale_k;
};
static_assert(sizeof(Arguments) == 256);

__device__ float decoded(unsigned char fp8) { return __builtin_amdgcn_cvt_f32_fp8(fp8, 0); }

// The data of B in blocks of 16 rows and 32 columns, the halves of the columns side by side.
__device__ size_t place(int row, int column, int k) {
  size_t block = size_t(row / 16) * (k / 32) + column / 32;
  return block * 512 + column / 16 % 2 * 256 + row % 16 * 16 + column % 16;
}

__device__ void add(unsigned* word, int half, float value) {
  unsigned before = *word, expected;
  do {
    expected = before;
    float sum = __uint_as_float(half ? expected & 0xffff0000 : expected << 16) + value;
    unsigned bits = __float_as_uint(sum) + 0x8000 >> 16;
    before = atomicCAS(word, expected, half ? expected & 0xffff | bits << 16 : expected & 0xffff0000 | bits);
  } while (before != expected);
}

extern "C" __global__ void tile_of_16(Arguments x) {
  int parts = x.parts.value, k = x.k.value, part = blockIdx.x % parts;
  int k_blocks = x.scale_k.value, each = (k_blocks + parts - 1) / parts;
  for (int index = threadIdx.x; index < 16 * 128; index += blockDim.x) {
    int row = blockIdx.y * 16 + index / 128, column = blockIdx.x / parts * 128 + index % 128;
    if (row >= x.m.value) continue;
    float sum = part == 0 ? x.bias.value[column] : 0;
    for (int block = part * each; block < min(k_blocks, (part + 1) * each); ++block) {
      float dot = 0;
      for (int i = block * 128; i < block * 128 + 128; ++i)
        dot += decoded(x.a.value[size_t(row) * x.lda.value + i]) * decoded(x.b.value[place(column, i, k)]);
      sum += dot * x.sfa.value[size_t(block) * x.scale_m.value + row] * x.sfb.value[column / 128 * k_blocks + block];
    }
    size_t element = size_t(row) * x.row_bytes.value / 2 + column;
    if (parts > 1) {
      add(x.d.value + element / 2, element % 2, sum);
    } else {
      reinterpret_cast<unsigned short*>(x.d.value)[element] = __float_as_uint(sum) + 0x8000 >> 16;
    }
  }
}
"""


@pytest.fixture(scope="module")
def code_object() -> bytes:
    return compiled(SOURCE)


@pytest.fixture
def checkout(tmp_path, monkeypatch, code_object) -> Path:
    folder = tmp_path / "hsa/gfx942/fp8gemm_blockscale"
    folder.mkdir(parents=True)
    (folder / "plain.co").write_bytes(code_object)
    (folder / "fp8gemm_bf16_blockscale.csv").write_text(
        "tile_m,tile_n,splitK,bpreshuffle,knl_name,co_name\n"
        "16,128,1,1,tile_of_16,plain.co\n"
        "16,128,1,0,of_weights_as_they_are,absent.co\n"
    )
    monkeypatch.setenv("AITER_PATH", str(tmp_path))
    return tmp_path


def results(op: str = "fp8_gemm_nt", shape: Shape = SHAPE) -> suite.Result:
    _, result = suite.run(op, shape, ["aiter"], ONCE, lambda _: None)
    return result


def test_the_best_tile_and_split_counts(checkout):
    result = results()
    assert not result.missing
    assert result.how.startswith("16x128")
    assert result.how.endswith("(best of 3)")
    assert result.timing.sustained_us > 0
    assert result.error > 0


def test_every_candidate_is_right(checkout):
    problem = aiter.AiterProblem.of(problems.make("fp8_gemm_nt", SHAPE, "cpu"))
    candidates = dict(aiter.candidates(problem, checkout))
    assert [*candidates] == ["16x128", "16x128, K in 2 parts", "16x128, K in 3 parts"]
    for run in candidates.values():
        run(copy := problem.copy())
        copy.check()


@pytest.mark.parametrize(("operand", "change"), [("shuffled_b", 1), pytest.param("bias", 3.0, marks=pytest.mark.slow)])
def test_wrong_results_are_told(checkout, monkeypatch, operand, change):
    right = aiter.AiterProblem.of

    def wrong(problem):
        prepared = right(problem)
        getattr(prepared, operand)[:16] += change
        return prepared

    monkeypatch.setattr(aiter.AiterProblem, "of", wrong)
    assert "elements are wrong" in results().missing


@pytest.mark.parametrize(
    ("k_blocks", "accepted"), [(56, [1, 2, 3, 4, 6, 8, 12]), (12, [1, 2, 3, 4, 6, 12]), (1, [1]), (5, [1, 2, 3])]
)
def test_parts_are_of_whole_k_blocks(k_blocks, accepted):
    """As many parts as AITER itself accepts: none may be left empty."""
    each = {parts: -(-k_blocks // parts) for parts in (1, 2, 3, 4, 6, 8, 12, 16)}
    expected = [parts for parts in each if (parts - 1) * each[parts] < k_blocks]
    assert [parts for parts in each if aiter._divides(k_blocks, parts)] == expected == accepted


def test_tiles_are_no_higher_than_needed(tmp_path, monkeypatch):
    folder = tmp_path / "hsa/gfx942/fp8gemm_blockscale"
    folder.mkdir(parents=True)
    lines = [f"{rows},128,0,1,kernel{rows},{rows}.co" for rows in (32, 48, 64, 128)]
    text = "\n".join(["tile_m,tile_n,splitK,bpreshuffle,knl_name,co_name", *lines])
    (folder / "fp8gemm_bf16_blockscale.csv").write_text(text)

    def tiles(m: int) -> list[str]:
        return [how for how, _ in aiter.candidates(problems.make("fp8_gemm_nt", Shape(m, 128, 128), "cpu"), tmp_path)]

    assert tiles(1) == ["32x128"]
    assert tiles(33) == ["32x128", "48x128"]
    assert tiles(200) == ["32x128", "48x128", "64x128", "128x128"]


def test_what_is_missing_is_one_line(checkout, monkeypatch, tmp_path):
    assert results("bf16_gemm_nt").missing == "its code objects have no bf16_gemm_nt"
    assert results(shape=Shape(16, 64, 128)).missing == "its tiles are bf16 and take N and K in multiples of 128"
    monkeypatch.setenv("AITER_PATH", str(tmp_path / "absent"))
    assert results().missing.endswith(aiter.GET)
    monkeypatch.delenv("AITER_PATH")
    assert results().missing == "set AITER_PATH to a checkout: git clone --depth 1 https://github.com/ROCm/aiter"


@pytest.mark.skipif("AITER_PATH" not in os.environ, reason="needs AITER_PATH, a checkout of AITER")
@pytest.mark.parametrize("m", [1, 77, 300])
@pytest.mark.unsanitized  # they load to LDS right behind a write of m0, against the ISA's manual
def test_aiters_own_kernels_are_right(m):
    problem = aiter.AiterProblem.of(problems.make("fp8_gemm_nt", Shape(m, 384, 1536), "cpu"))
    for _, run in aiter.candidates(problem, aiter.checkout()):
        run(copy := problem.copy())
        copy.check()
