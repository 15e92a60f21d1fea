"""Bad arguments raise one error, which names the argument, what was expected and what came; nothing is written."""

from __future__ import annotations

import re

import pytest
import torch

import deep_gemm_rocm as dg
from deep_gemm_rocm.launch import repeated
from deep_gemm_rocm.testing import GuardedOutput, gemm_problem

M, N, K = 24, 40, 272
FP8 = torch.float8_e4m3fnuz


@pytest.fixture(autouse=True)
def no_launch(monkeypatch):
    """Makes launches fail, so that an argument that passes the checks fails the test instead of reading wild memory."""

    def launch(*arguments):
        pytest.fail("the kernel was launched")

    monkeypatch.setattr(repeated, "ready_kernels", launch)


def bytes_of(pair):
    return pair[0].view(torch.uint8)


def fp8(*shape, offset=0, strides=None):
    """Zeros with the given strides, `offset` bytes after a 16-byte boundary."""
    strides = strides or (shape[1], 1)
    reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
    storage = torch.zeros(reach + offset + 16, dtype=torch.uint8)
    start = -storage.data_ptr() % 16 + offset
    return storage.as_strided(shape, strides, start).view(FP8)


def meta(tensor):
    return torch.empty_like(tensor, device="meta")


def replace(pair, index, value):
    return tuple(value if i == index else old for i, old in enumerate(pair))


# For each bad input: the change of (a, b, out), the error, and a pattern of its message.
A, B, OUT = range(3)


def data(which, value):
    return which, lambda pair: replace(pair, 0, value(pair[0]) if callable(value) else value)


def scales(which, value):
    return which, lambda pair: replace(pair, 1, value(pair[1]) if callable(value) else value)


def output(value):
    return OUT, value


BAD = {
    "a is None": ((A, lambda a: None), TypeError, "a must be a pair .*per_token_cast_to_fp8.*NoneType"),
    "b is a tensor": ((B, lambda b: b[0]), TypeError, "b must be a pair .*per_block_cast_to_fp8.*got a Tensor"),
    "a of three": ((A, lambda a: (*a, 1)), TypeError, "a must be a pair .*tuple of 3"),
    "a[0] is None": (data(A, None), TypeError, r"a\[0\] must be a torch.Tensor, got NoneType"),
    "b[1] is a number": (scales(B, 1.0), TypeError, r"b\[1\] must be a torch.Tensor, got float"),
    "a[0] e4m3fn": (
        data(A, lambda t: t.view(torch.uint8).view(torch.float8_e4m3fn)),
        TypeError,
        r"a\[0\] must be float8_e4m3fnuz or float8_e5m2fnuz, got torch.float8_e4m3fn; .*convert_fp8_fn_to_fnuz",
    ),
    "b[0] bf16": (data(B, torch.Tensor.bfloat16), TypeError, r"b\[0\] must be .*fnuz, got torch.bfloat16$"),
    "a[0] 1-D": (data(A, lambda t: t[0]), ValueError, r"a\[0\] must be a matrix, got shape \(272,\)"),
    "b[0] 3-D": (data(B, lambda t: t[None]), ValueError, r"b\[0\] must be a matrix, got shape \(1, 40, 272\)"),
    "K differs": (data(B, fp8(N, K - 16)), ValueError, r"agree in K.*\(24, 272\) and \(40, 256\)"),
    "b transposed": (data(B, fp8(K, N)), ValueError, r"agree in K.*transpose"),
    "a[0] K-strided": (
        data(A, fp8(M, K, strides=(544, 2))),
        ValueError,
        r"a\[0\] must be contiguous along K.*\(544, 2\)",
    ),
    "b[0] column-major": (
        data(B, fp8(N, K, strides=(1, N))),
        ValueError,
        r"columns of b\[0\] must be a multiple of 16 bytes apart, .*; pad them, or make K contiguous",
    ),
    "b[0] of odd columns": (data(B, fp8(38, K, strides=(1, 48))), ValueError, r"b\[0\] must have a multiple of 4 rows"),
    "b[0] overlapping columns": (
        data(B, fp8(N, K, strides=(1, 16))),
        ValueError,
        r"columns of b\[0\] must not overlap",
    ),
    "a[0] expanded": (data(A, fp8(M, K, strides=(0, 1))), ValueError, r"rows of a\[0\] must not overlap.*\(0, 1\)"),
    "b[0] overlapping": (data(B, fp8(N, K, strides=(16, 1))), ValueError, r"rows of b\[0\] must not overlap"),
    "a[0] misaligned": (data(A, fp8(M, K, offset=8)), ValueError, r"a\[0\] must start at a multiple of 16 bytes.* 0x"),
    "b[0] rows misaligned": (
        data(B, fp8(N, K, strides=(K + 8, 1))),
        ValueError,
        r"rows of b\[0\] must be a multiple of 16 bytes apart, got strides \(280, 1\)",
    ),
    "a[0] meta": (data(A, meta), ValueError, r"a\[1\] must be on the device of a\[0\], meta, got cpu"),
    "a[1] meta": (scales(A, meta), ValueError, r"a\[1\] must be on the device of a\[0\], cpu, got meta"),
    "a[1] sparse": (scales(A, torch.Tensor.to_sparse), TypeError, r"a\[1\] must be a strided tensor.*sparse"),
    "b[1] requires grad": (scales(B, torch.nn.Parameter), ValueError, r"b\[1\] must not require grad"),
    "a[1] fp64": (scales(A, torch.Tensor.double), TypeError, r"a\[1\] must be float32, got torch.float64"),
    "b[1] bf16": (scales(B, torch.Tensor.bfloat16), TypeError, r"b\[1\] must be float32, got torch.bfloat16"),
    "a[1] transposed": (scales(A, lambda t: t.T), ValueError, r"a\[1\] must have shape \(24, 3\).*got \(3, 24\)"),
    "a[1] too short": (scales(A, lambda t: t[:, :2]), ValueError, r"a\[1\] must have shape \(24, 3\).*got \(24, 2\)"),
    "b[1] per row": (scales(B, torch.ones(N, 3)), ValueError, r"b\[1\] must have shape \(1, 3\).*got \(40, 3\)"),
    "b[1] scalar": (scales(B, torch.tensor(1.0)), ValueError, r"b\[1\] must have shape \(1, 3\).*got \(\)"),
    "out is a number": (output(lambda out: 1.0), TypeError, "out must be a torch.Tensor, got float"),
    "out fp64": (output(torch.Tensor.double), TypeError, "out must be bfloat16, float16 or float32, got .*float64"),
    "out transposed": (output(lambda out: torch.empty(N, M).bfloat16()), ValueError, r"out must have shape \(24, 40\)"),
    "out 1-D": (output(lambda out: out.reshape(-1)), ValueError, r"out must have shape \(24, 40\), got \(960,\)"),
    "out column-major": (
        output(lambda out: torch.empty(N, M).bfloat16().T),
        ValueError,
        r"out must have contiguous rows.*\(1, 24\)",
    ),
    "out expanded": (
        output(lambda out: torch.empty(1, N).bfloat16().expand(M, N)),
        ValueError,
        r"out must have contiguous rows that don't overlap.*\(0, 1\)",
    ),
    "out meta": (output(meta), ValueError, r"out must be on the device of a\[0\], cpu, got meta"),
    "out requires grad": (output(lambda out: torch.nn.Parameter(out.clone())), ValueError, "out must not require grad"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name):
    (which, change), error, message = BAD[name]
    guarded = GuardedOutput(M, N)
    arguments = [*gemm_problem(M, N, K), guarded.tensor]
    arguments[which] = change(arguments[which])
    for function in (dg.gemm_fp8, dg.fp8_gemm_nt):
        if function is dg.fp8_gemm_nt:
            message = re.sub("^out", "d", message)
        with pytest.raises(error, match=message) as caught:
            function(*arguments)
        assert type(caught.value) is error
        assert "\n" not in str(caught.value)
    guarded.assert_untouched()


@pytest.mark.parametrize("k", [1, 8, 120, 264])
def test_k_must_be_a_multiple_of_16(k):
    with pytest.raises(ValueError, match=rf"K must be a multiple of 16, got {k}; pad"):
        dg.gemm_fp8(*gemm_problem(M, N, k))


@pytest.mark.parametrize(("which", "name"), [(A, r"a\[0\]"), (B, r"b\[0\]")])
def test_output_must_not_share_memory_with_data(which, name):
    pairs = list(gemm_problem(64, 64, 256))
    storage = torch.zeros(64 * 256, dtype=torch.uint8)
    pairs[which] = (storage.view(FP8).view(64, 256), pairs[which][1])
    out = storage.view(torch.bfloat16)[-64 * 64 :].view(64, 64)
    with pytest.raises(ValueError, match=rf"out must not share memory with {name}"):
        dg.gemm_fp8(*pairs, out=out)


def test_output_must_not_share_memory_with_scales():
    a, b = gemm_problem(64, 64, 256)
    storage = torch.zeros(64 * 64 + 512).bfloat16()
    sfa = storage[:256].view(torch.float32).view(64, 2)
    with pytest.raises(ValueError, match=r"out must not share memory with a\[1\]"):
        dg.gemm_fp8((a[0], sfa), b, out=storage[255:][: 64 * 64].view(64, 64))


def test_tiles_must_be_addressable(monkeypatch):
    a, b = gemm_problem(2, 16, 256)
    # Two rows 2 GiB apart, in memory that is never accessed.
    far = torch.empty(2**31 + 256, dtype=torch.uint8).as_strided((2, 256), (2**31, 1)).view(FP8)
    with pytest.raises(ValueError, match=r"a\[0\] must have .* 256 rows within 2 GiB, got shape \(2, 256\)"):
        dg.gemm_fp8((far, a[1]), b)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"c": torch.zeros(M, N)}, TypeError, "c must be bfloat16, got torch.float32"),
        ({"c": torch.zeros(N, M).bfloat16()}, ValueError, r"c must have shape \(24, 40\), got \(40, 24\)"),
        ({"c": 1.0}, TypeError, r"c must be a torch.Tensor, got float"),
        ({"recipe": (1, 1, 32)}, NotImplementedError, r"the recipes \(1, 128, 128\), .*; got \(1, 1, 32\)"),
        ({"recipe": 128}, TypeError, "recipe must be a tuple of 3 ints, got 128"),
        ({"recipe": (1.0, 128, 128)}, TypeError, r"recipe must be a tuple of 3 ints, got \(1.0, 128, 128\)"),
        ({"recipe": (True, 128, 128)}, TypeError, "recipe must be a tuple of 3 ints"),
        ({"recipe_a": (1, 128), "recipe_b": (128, 128.0)}, TypeError, "recipe_b must be a tuple of 2 ints"),
        ({"recipe_a": (1, 128)}, ValueError, "recipe_a and recipe_b must be given both, or neither"),
        ({"recipe_a": (1, 128), "recipe_b": (1, 64)}, ValueError, "must agree in K"),
        (
            {"recipe": (1, 128, 128), "recipe_b": (1, 128)},
            ValueError,
            r"recipe_b must agree with recipe=.*got \(1, 128",
        ),
        ({"recipe": (1, 1, 128)}, ValueError, r"b\[1\] must have shape \(40, 3\), one scale for each row and 128 of K"),
        ({"recipe": (1, 1, None)}, ValueError, r"a\[1\] must have shape \(24, 1\), one .* each row and all of K"),
        ({"recipe": (None, None, None)}, ValueError, r"a\[1\] must have shape \(1, 1\), one scale for all rows"),
    ],
)
def test_bad_recipes_and_c(arguments, error, message):
    with pytest.raises(error, match=message):
        dg.fp8_gemm_nt(*gemm_problem(M, N, K), torch.empty(M, N).bfloat16(), **arguments)


def test_c_may_be_the_output_but_not_overlap_it(launched):
    d = torch.zeros(M + 1, N).bfloat16()
    dg.fp8_gemm_nt(*gemm_problem(M, N, K), d[1:], c=d[1:])
    with pytest.raises(ValueError, match="d must not share memory with c"):
        dg.fp8_gemm_nt(*gemm_problem(M, N, K), d[1:], c=d[:M])
    wide = torch.zeros(M, 2 * N).bfloat16()
    with pytest.raises(ValueError, match="d must not share memory with c"):
        dg.fp8_gemm_nt(*gemm_problem(M, N, K), wide[:, :N], c=wide.view(-1)[: M * N].view(M, N))
    with pytest.raises(ValueError, match="d must not share memory with c"):
        dg.fp8_gemm_nt(*gemm_problem(M, N, K), wide[:, :N], c=wide[:, N - 1 : -1])
    assert len(launched) == 1
    dg.fp8_gemm_nt(*gemm_problem(M, N, K), wide[:, :N], c=wide[:, N:])  # between each other
    assert len(launched) == 2


def test_rows_of_the_output_must_not_overlap(launched):
    d = torch.zeros(M * N).bfloat16().as_strided((M, N), (N - 1, 1))
    with pytest.raises(ValueError, match="d must have contiguous rows that don't overlap"):
        dg.fp8_gemm_nt(*gemm_problem(M, N, K), d)


@pytest.mark.parametrize(("function", "dtype"), [(dg.bf16_gemm_nt, torch.bfloat16), (dg.f16_gemm_nt, torch.float16)])
def test_bad_operands_of_16_bits(function, dtype):
    a, b, d = torch.zeros(M, K, dtype=dtype), torch.zeros(N, K, dtype=dtype), torch.zeros(M, N)
    for arguments, error, message in (
        ((a.float(), b, d), TypeError, "^a must be b?float16, got torch.float32"),
        ((a, b.float(), d), TypeError, "^b must be b?float16, got torch.float32"),
        ((a, b[:, 8:], d), ValueError, r"^a and b must agree in K"),
        ((a[:, :12], b[:, :12], d), ValueError, "K must be a multiple of 8, got 12; pad a and b with zeros"),
        ((a[:, ::2], b[:, ::2], d), ValueError, "a must be contiguous along K, its last dimension, or along its rows"),
        ((a[:, 4:12], b[:, :8], d), ValueError, "a must start at a multiple of 16 bytes"),
        ((a, b, d.T), ValueError, r"d must have shape \(24, 40\)"),
    ):
        with pytest.raises(error, match=message):
            function(*arguments)


def test_d_is_required():
    with pytest.raises(TypeError, match=r"d must be a torch\.Tensor"):
        dg.fp8_gemm_nt(*gemm_problem(M, N, K), None)


def test_good_arguments(launched):
    a, b = gemm_problem(M, N, K)
    lists = [list(a), list(b)]
    strided = (fp8(M, K, strides=(K + 32, 1)), a[1].T.contiguous().T)
    one_row = [(pair[0][:1].as_strided((1, K), (1, 1)), pair[1][:1]) for pair in (a, b)]
    padded = torch.empty(M, N + 3).bfloat16()[:, :N]
    recipes = {"recipe": [1, 128, 128], "recipe_a": (1, 128), "recipe_b": (128, 128)}
    dg.gemm_fp8(*lists)
    dg.gemm_fp8(strided, b, out=padded)
    dg.gemm_fp8(*one_row)
    dg.fp8_gemm_nt(a, b, padded, **recipes, compiled_dims="mn", disable_ue8m0_cast=True)
    with torch.no_grad():
        dg.gemm_fp8((a[0], torch.nn.Parameter(a[1])), b)
    dg.gemm_fp8((a[0], a[1][:1].expand(M, 3)), b)
    dg.gemm_fp8((a[0][:0], a[1][:0]), b)
    dg.gemm_fp8((a[0][:, :0], a[1][:, :0]), (b[0][:, :0], b[1][:, :0]))
    shapes = [(launch.arguments.m, launch.arguments.n, launch.arguments.k) for launch in launched]
    assert [shape for shape in shapes if shape != (M, N, K)] == [(1, 1, K), (M, N, 0)]


def test_gemm_fp8_makes_an_output(launched):
    out = dg.gemm_fp8(*gemm_problem(M, N, K))
    assert (out.shape, out.dtype, out.is_contiguous()) == ((M, N), torch.bfloat16, True)
    assert launched[0].pointers["d.data"].tensor is out


def test_lazily_negated_tensors_are_refused():
    a, b = gemm_problem(4, 8, 128)
    negated = torch.complex(torch.zeros_like(a[1]), a[1]).conj().imag
    with pytest.raises(ValueError, match=r"a\[1\] must hold its own values, got a lazily negated view"):
        dg.gemm_fp8((a[0], negated), b)


def test_matrices_without_rows_have_any_strides():
    """NumPy gives arrays without elements to torch with strides of 0."""

    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty_strided(shape, (0,) * len(shape), dtype=dtype)

    b = torch.ones(8, 64, dtype=torch.bfloat16)
    dg.bf16_gemm_nt(empty(0, 64), b, empty(0, 8))
    dg.bf16_gemm_nt(b, empty(0, 64), empty(8, 0))
    ends = torch.zeros(1, dtype=torch.int32)
    dg.m_grouped_bf16_gemm_nt_contiguous(empty(0, 64), b[None], empty(0, 8), ends, use_psum_layout=True)
    scales = empty(0, 1, dtype=torch.float32)
    dg.fp8_gemm_nt((empty(0, 128, dtype=FP8), scales), (torch.zeros(8, 128).to(FP8), torch.ones(1, 1)), empty(0, 8))
