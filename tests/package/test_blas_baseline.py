"""rocBLAS and hipBLASLt as baselines, with stand-ins for both libraries that launch a plain kernel through HIP."""

from __future__ import annotations

import ctypes
import gc
import shutil
import subprocess
from pathlib import Path

import pytest

from deep_gemm_rocm.benchmarks import baselines, blas, problems, suite
from deep_gemm_rocm.benchmarks.measure import Sampling
from deep_gemm_rocm.benchmarks.shapes import Shape
from deep_gemm_rocm.runtime import hip
from deep_gemm_rocm.workbench import compile as compiled

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

SHAPE = Shape(37, 128, 256)
KERNEL = """
#include <hip/hip_runtime.h>
extern "C" __global__ void product(const unsigned char* a, const unsigned char* b, unsigned short* d,
                                   const float* scale_a, const float* scale_b, int m, int n, int k, int fp8) {
  int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= m * n) return;
  size_t row = index % m, column = index / m;
  float sum = 0;
  for (int i = 0; i < k; ++i) {
    size_t at_a = row * k + i, at_b = column * k + i;
    sum += fp8 ? __builtin_amdgcn_cvt_f32_fp8(a[at_a], 0) * __builtin_amdgcn_cvt_f32_fp8(b[at_b], 0)
               : __uint_as_float(((const unsigned short*)a)[at_a] << 16) *
                     __uint_as_float(((const unsigned short*)b)[at_b] << 16);
  }
  if (fp8) sum *= *scale_a * *scale_b;
  unsigned bits = __float_as_uint(sum);
  d[index] = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
"""
LIBRARY = """
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
extern int hipModuleLoad(void**, const char*);
extern int hipModuleGetFunction(void**, void*, const char*);
extern int hipModuleLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                                 void**, void**);
static void* stream_set;
static int launch(const void* a, const void* b, void* d, const void* sa, const void* sb, int m, int n, int k, int fp8,
                  void* stream) {
  static void *module, *function;
  if (!function && (hipModuleLoad(&module, CODE) || hipModuleGetFunction(&function, module, "product"))) return 6;
  void* arguments[] = {&a, &b, &d, &sa, &sb, &m, &n, &k, &fp8};
  return hipModuleLaunchKernel(function, (m * n + 255) / 256, 1, 1, 256, 1, 1, 0, stream, arguments, 0);
}
int rocblas_create_handle(void** handle) { *handle = &stream_set; return 0; }
int rocblas_set_stream(void* handle, void* stream) { *(void**)handle = stream; return 0; }
int rocblas_gemm_ex(void* handle, int ta, int tb, int m, int n, int k, const float* alpha, const void* a, int a_type,
                    int lda, const void* b, int b_type, int ldb, const float* beta, const void* c, int c_type, int ldc,
                    void* d, int d_type, int ldd, int compute, int algo, int solution, unsigned flags) {
  if (ta != 112 || tb != 111 || a_type != 168 || b_type != 168 || c_type != 168 || d_type != 168 || compute != 151 ||
      lda != k || ldb != k || ldc != m || ldd != m || *alpha != 1 || *beta != 0 || algo || solution || flags || c != d)
    return 11;
  return launch(a, b, d, 0, 0, m, n, k, 0, *(void**)handle);
}
int live;  // what was made and isn't destroyed
static int destroy(void* made) { free(made); --live; return 0; }
struct layout { int type; uint64_t rows, columns; int64_t ld; };
struct product { int transposed[2]; const void* scale[2]; };
struct algo { uint8_t data[16]; size_t most_workspace; };
struct choice { struct algo algo; size_t workspace; int state; float waves; int reserved[4]; };
int hipblasLtCreate(void** handle) { *handle = &stream_set; return 0; }
int hipblasLtMatmulDescCreate(struct product** made, int compute, int scale) {
  *made = calloc(1, sizeof **made);
  ++live;
  return compute != 2 || scale != 0;
}
int hipblasLtMatmulDescDestroy(struct product* product) { return destroy(product); }
int hipblasLtMatmulDescSetAttribute(struct product* product, int attribute, const void* value, size_t size) {
  if (attribute < 2 && size == 4) memcpy(&product->transposed[attribute], value, size);
  else if ((attribute == 5 || attribute == 6) && size == 8) memcpy(&product->scale[attribute - 5], value, size);
  else return 3;
  return 0;
}
int hipblasLtMatrixLayoutCreate(struct layout** made, int type, uint64_t rows, uint64_t columns, int64_t ld) {
  *made = malloc(sizeof **made);
  **made = (struct layout){type, rows, columns, ld};
  ++live;
  return 0;
}
int hipblasLtMatrixLayoutDestroy(struct layout* layout) { return destroy(layout); }
int hipblasLtMatmulPreferenceCreate(void** made) { *made = calloc(1, 8); ++live; return 0; }
int hipblasLtMatmulPreferenceSetAttribute(void* preference, int attribute, const void* value, size_t size) {
  return attribute != 1 || size != 8;
}
int hipblasLtMatmulPreferenceDestroy(void* preference) { return destroy(preference); }
int hipblasLtMatmulAlgoGetHeuristic(void* handle, struct product* product, struct layout* a, struct layout* b,
                                    struct layout* c, struct layout* d, void* preference, int most,
                                    struct choice* choice, int* count) {
  *count = a->columns == 48 ? 0 : 1;  // no kernel for this N
  choice->algo.data[0] = 42;
  choice->workspace = 64;
  return 0;
}
int hipblasLtMatmul(void* handle, struct product* product, const float* alpha, const void* a, struct layout* la,
                    const void* b, struct layout* lb, const float* beta, const void* c, struct layout* lc, void* d,
                    struct layout* ld, const struct algo* algo, void* workspace, size_t bytes, void* stream) {
  int fp8 = la->type == 1000;
  if (product->transposed[0] != 112 || product->transposed[1] != 111 || la->type != lb->type || ld->type != 14 ||
      la->rows != lb->rows || ld->rows != la->columns || ld->columns != lb->columns || algo->data[0] != 42 ||
      bytes != 64 || *alpha != 1 || *beta != 0 || (fp8 && !(product->scale[0] && product->scale[1])))
    return 3;
  return launch(a, b, d, product->scale[0], product->scale[1], la->columns, lb->columns, la->rows, fp8, stream);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("blas")
    (folder / "product.co").write_bytes(compiled(KERNEL))
    (folder / "blas.c").write_text(LIBRARY)
    define, runtime = f'-DCODE="{folder / "product.co"}"', hip.runtime().lib._name
    command = ["cc", "-w", "-shared", "-fPIC", define, str(folder / "blas.c"), "-o", str(folder / "blas.so"), runtime]
    subprocess.run(command, check=True)
    return folder / "blas.so"


@pytest.fixture
def named(library, monkeypatch) -> None:
    monkeypatch.setenv(blas.ROCBLAS, str(library))
    monkeypatch.setenv(blas.HIPBLASLT, str(library))


def results(name: str, op: str, shape: Shape = SHAPE) -> suite.Result:
    _, result = suite.run(op, shape, [name], Sampling(1, 0, 0), lambda _: None)
    return result


@pytest.mark.parametrize(
    ("name", "op"), [("rocblas", "bf16_gemm_nt"), ("hipblaslt", "bf16_gemm_nt"), ("hipblaslt", "fp8_gemm_nt")]
)
def test_results_are_checked_and_timed(named, name, op):
    result = results(name, op)
    assert not result.missing
    assert result.how == {"rocblas": "rocblas_gemm_ex", "hipblaslt": "hipblasLtMatmul"}[name]
    assert result.timing.sustained_us > 0
    assert result.error > 0


@pytest.mark.parametrize("shape", [SHAPE, Shape(16, 48, 128)])  # there is no kernel for the second one
def test_what_hipblaslt_made_is_destroyed(named, library, shape):
    results("hipblaslt", "bf16_gemm_nt", shape)
    gc.collect()
    assert ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "live").value == 0


def test_torch_is_timed_where_the_library_has_no_kernel(named, monkeypatch):
    problem = problems.make("bf16_gemm_nt", Shape(16, 48, 128), hip.runtime().tensor_device)
    candidates = baselines.BASELINES["hipblaslt"].candidates
    with pytest.raises(blas.BlasError, match="no gfx942 kernel"):
        list(candidates(problem))
    monkeypatch.setattr(baselines, "_torch_has", lambda problem: True)
    assert [how for how, _ in candidates(problem)] == ["torch.mm"]


def test_what_is_missing_is_one_line(named, monkeypatch, tmp_path):
    assert results("rocblas", "fp8_gemm_nt", Shape(16, 128, 128)).missing == "it has no fp8_gemm_nt"
    assert "no gfx942 kernel for this problem" in results("hipblaslt", "bf16_gemm_nt", Shape(16, 48, 128)).missing
    monkeypatch.setenv(blas.ROCBLAS, str(tmp_path / "absent.so"))
    assert results("rocblas", "bf16_gemm_nt").missing.endswith(blas.how_to_get(blas.ROCBLAS))
    monkeypatch.delenv(blas.ROCBLAS)
    assert results("rocblas", "bf16_gemm_nt").missing == blas.how_to_get(blas.ROCBLAS)
