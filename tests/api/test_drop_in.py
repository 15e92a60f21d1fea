"""The package has DeepGEMM's functions with DeepGEMM's parameters, and can replace DeepGEMM."""

from __future__ import annotations

import contextlib
import inspect
import io

import pytest
import torch
from helpers.forked import in_clean_child

import deep_gemm_rocm as dg
from deep_gemm_rocm import jit
from deep_gemm_rocm.runtime import hip
from deep_gemm_rocm.testing import GuardedOutput, assert_accurate, gemm_problem, gemm_reference

_RECIPES = "recipe=None, recipe_a=None, recipe_b=None"
_DENSE = f"a, b, d, c=None, {_RECIPES}, compiled_dims='{{dims}}', disable_ue8m0_cast=False, alpha=None"
_GROUPED = f"a, b, d, grouped_layout, {_RECIPES}, compiled_dims='nk', disable_ue8m0_cast=False"
_PSUM = "use_psum_layout=False, ensure_zero_padding=True"
_MASKED = "a, b, d, masked_m, expected_m"
_LENGTHS = "cu_seq_len_k_start, cu_seq_len_k_end, clean_logits=True, max_seqlen_k=0"
_PAGED = "q, kv_cache, weights, context_lens, block_table, schedule_meta, max_context_len, clean_logits=False"
_GROUPED_V1 = "lhs, rhs, out"

# The signatures of DeepGEMM, from its bindings and its Python files.
CONTRACT = {
    **{
        f"{family}_gemm_{layout}": _DENSE.format(dims=dims)
        for family in ("fp8", "fp8_fp4")
        for layout, dims in {"nt": "nk", "nn": "nk", "tn": "mn", "tt": "mn"}.items()
    },
    **{
        f"bf16_gemm_{layout}": f"a, b, d, c=None, compiled_dims='{dims}', alpha=None"
        for layout, dims in {"nt": "nk", "nn": "nk", "tn": "mn", "tt": "mn"}.items()
    },
    **{f"cublaslt_gemm_{layout}": "a, b, d, c=None" for layout in ("nt", "nn", "tn", "tt")},
    **{
        f"m_grouped_{family}_gemm_{name}": parameters
        for family in ("fp8", "fp8_fp4")
        for name, parameters in {
            "nt_contiguous": f"{_GROUPED}, {_PSUM}, expected_m_for_psum_layout=None",
            "nn_contiguous": f"{_GROUPED}, {_PSUM}",
            "nt_masked": f"{_MASKED}, {_RECIPES}, compiled_dims='nk', disable_ue8m0_cast=False",
        }.items()
    },
    "fp4_gemm_nt": _DENSE.format(dims="nk"),
    "m_grouped_fp4_gemm_nt_contiguous": f"{_GROUPED}, {_PSUM}, expected_m_for_psum_layout=None",
    "m_grouped_fp4_gemm_nt_masked": f"{_MASKED}, {_RECIPES}, compiled_dims='nk', disable_ue8m0_cast=False",
    "fp8_m_grouped_gemm_nt_masked": f"{_MASKED}, {_RECIPES}, compiled_dims='nk', disable_ue8m0_cast=False",
    "m_grouped_bf16_gemm_nt_contiguous": (
        f"a, b, d, grouped_layout, compiled_dims='nk', {_PSUM}, expected_m_for_psum_layout=None"
    ),
    "m_grouped_bf16_gemm_nn_contiguous": f"a, b, d, grouped_layout, compiled_dims='nk', {_PSUM}",
    "m_grouped_bf16_gemm_nt_masked": f"{_MASKED}, compiled_dims='nk'",
    "bf16_m_grouped_gemm_nt_masked": f"{_MASKED}, compiled_dims='nk'",
    **{
        f"k_grouped_fp8_gemm_{layout}_contiguous": (
            "a, b, d, ks_cpu, grouped_layout, c=None, recipe=(1, 1, 128), compiled_dims='mn', use_psum_layout=False"
        )
        for layout in ("nt", "tn")
    },
    "per_token_cast_to_fp4": "x, use_ue8m0, gran_k=128, use_packed_ue8m0=False",
    "cast_back_from_fp4": "packed, sf, gran_k=128, use_packed_ue8m0=False",
    "cast_back_from_fp8": "x_fp8, sf, gran_k=128, use_packed_ue8m0=False",
    "transpose_packed_fp4": "a",
    "ceil_to_ue8m0": "x",
    "pack_ue8m0_to_int": "x",
    "unpack_ue8m0_from_int": "packed_sf",
    "k_grouped_bf16_gemm_tn_contiguous": (
        "a, b, d, ks_cpu, grouped_layout, c=None, compiled_dims='mn', use_psum_layout=False"
    ),
    "fp8_gemm_nt_skip_head_mid": ("a, b, d, head_splits, recipe=None, compiled_dims='nk', disable_ue8m0_cast=False"),
    "einsum": "expr, a, b, d, c=None, use_cublaslt=False",
    "fp8_einsum": "expr, a, b, d, c=None, recipe=(1, 128, 128)",
    "tf32_hc_prenorm_gemm": "a, b, d, sqr_sum, num_splits=None",
    "fp8_mqa_logits": f"q, kv, weights, {_LENGTHS}",
    "fp8_fp4_mqa_logits": (
        "q, kv, weights, cu_seq_len_k_start, cu_seq_len_k_end, clean_logits=None, max_seqlen_k=None, "
        "logits_dtype=torch.float32"
    ),
    "get_mqa_logits_metadata": "cu_seq_len_k_start, cu_seq_len_k_end, num_kv_tokens, num_heads",
    "get_paged_mqa_logits_metadata": "context_lens, block_kv, num_sms, indices=None",
    "fp8_paged_mqa_logits": f"{_PAGED}, indices=None",
    "fp8_fp4_paged_mqa_logits": f"{_PAGED}, logits_dtype=torch.float32, indices=None",
    "transform_sf_into_required_layout": (
        "sf, mn, k, recipe, num_groups=None, is_sfa=None, disable_ue8m0_cast=False, psum_layout=None"
    ),
    "get_tma_aligned_size": "x, element_size",
    "get_mn_major_tma_aligned_tensor": "sf",
    "get_mn_major_tma_aligned_packed_ue8m0_tensor": "sf, psum_layout=None",
    "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor": (
        "sf, grouped_layout, ks_cpu, gran_k, k_alignment, use_psum_layout=False"
    ),
    "set_mk_alignment_for_contiguous_layout": "new_value",
    "get_mk_alignment_for_contiguous_layout": "",
    "get_m_alignment_for_contiguous_layout": "",
    "get_k_alignment_for_contiguous_layout": "",
    "get_theoretical_mk_alignment_for_contiguous_layout": "expected_m=None, num_groups=None",
    "set_num_sms": "new_num_sms",
    "get_num_sms": "",
    "set_tc_util": "new_tc_util",
    "get_tc_util": "",
    "set_pdl": "new_enable_pdl",
    "get_pdl": "",
    "set_ignore_compile_dims": "new_value",
    "set_block_size_multiple_of": "new_value",
    "per_token_cast_to_fp8": "x, use_ue8m0, gran_k=128, use_packed_ue8m0=False",
    "per_channel_cast_to_fp8": "x, use_ue8m0, gran_k=128",
    "per_custom_dims_cast_to_fp8": "x, dims, use_ue8m0",
    "per_block_cast_to_fp8": "x, use_ue8m0, gran_k=128",
    "ceil_div": "x, y",
    "align": "x, y",
    "calc_diff": "x, y",
    "bench": "fn, num_warmups=5, num_tests=10, high_precision=False",
    "bench_kineto": (
        "fn, kernel_names, num_tests=30, suppress_kineto_output=False, trace_path=None, flush_l2=True, "
        "with_multiple_kernels=False, barrier=None"
    ),
    # DeepGEMM 1.
    "gemm_fp8_fp8_bf16_nt": _GROUPED_V1,
    "m_grouped_gemm_fp8_fp8_bf16_nt_contiguous": f"{_GROUPED_V1}, m_indices",
    "m_grouped_gemm_fp8_fp8_bf16_nt_masked": f"{_GROUPED_V1}, masked_m, expected_m",
    "wgrad_gemm_fp8_fp8_fp32_nt": _GROUPED_V1,
    "k_grouped_wgrad_gemm_fp8_fp8_fp32_nt": f"{_GROUPED_V1}, batch_sizes",
    "get_col_major_tma_aligned_tensor": "x",
    # SGLang's additions.
    "get_compile_mode": "",
    "set_compile_mode": "new_compile_mode",
    "warmup_kernels": "name, m_list, n, k, num_groups",
}
POSITIONAL_ONLY = ("get_col_major_tma_aligned_tensor", "set_compile_mode")  # nobody calls them with keywords


@pytest.mark.parametrize("name", CONTRACT)
def test_names_and_parameters(name):
    """Parameters have DeepGEMM's order and defaults. Additional ones come last and are optional."""
    theirs = list(inspect.signature(eval(f"lambda {CONTRACT[name]}: None")).parameters.values())
    ours = list(inspect.signature(getattr(dg, name)).parameters.values())
    assert name in dg.__all__
    if name not in POSITIONAL_ONLY:
        assert [parameter.name for parameter in ours[: len(theirs)]] == [parameter.name for parameter in theirs]
    for parameter, their in zip(ours, theirs, strict=False):
        assert parameter.kind == parameter.POSITIONAL_OR_KEYWORD
        if their.default is not their.empty:
            assert parameter.default == their.default
    assert len(ours) >= len(theirs)
    assert all(parameter.default is not parameter.empty for parameter in ours[len(theirs) :])


FUNCTIONS_AND_CLASSES = [
    name for name in dg.__all__ if inspect.isroutine(getattr(dg, name)) or inspect.isclass(getattr(dg, name))
]


@pytest.mark.parametrize("name", FUNCTIONS_AND_CLASSES)
def test_everything_public_is_documented(name):
    assert inspect.getdoc(getattr(dg, name))


INSTALL = """
import importlib.util, sys
import deep_gemm_rocm
assert importlib.util.find_spec("deep_gemm") is None, "the test needs a Python without DeepGEMM"
deep_gemm_rocm.install_as_deep_gemm()
deep_gemm_rocm.install_as_deep_gemm()
import deep_gemm
import deep_gemm.utils.layout
import deep_gemm.utils.math
from deep_gemm import *
from deep_gemm.testing import assert_bitwise_equal, bench_kineto, calc_diff, count_bytes
from deep_gemm.testing import get_arch_major, ignore_env, test_filter
from deep_gemm.utils import per_token_cast_to_fp8
from deep_gemm.utils.layout import get_mn_major_tma_aligned_tensor
assert fp8_gemm_nt is deep_gemm.fp8_gemm_nt is deep_gemm_rocm.fp8_gemm_nt
assert deep_gemm.utils.layout.get_mn_major_tma_aligned_tensor is deep_gemm_rocm.get_mn_major_tma_aligned_tensor
assert deep_gemm.__version__ == "2.8.1" and not hasattr(deep_gemm, "test_filter")
assert getattr(deep_gemm, "no_such_function", None) is None and not hasattr(deep_gemm, "fp8_fp4_sparse_mqa_logits")
assert deep_gemm.epilogue.Identity() == deep_gemm.epilogue.Alpha(1) == "identity"
for refused in (
    lambda: deep_gemm.epilogue.Alpha(0.5),
    lambda: deep_gemm.epilogue.FP8Quantization(None),
    deep_gemm.epilogue.BF16StochasticRounding,
):
    try:
        refused()
    except NotImplementedError as error:
        assert "epilogue" in str(error) or "alpha" in str(error)
    else:
        raise AssertionError
for name in ("deep_gemm", "deep_gemm.utils", "deep_gemm.utils.layout", "deep_gemm.utils.math", "deep_gemm.testing"):
    spec = importlib.util.find_spec(name)
    assert spec is sys.modules[name].__spec__ and spec.name == name and spec.origin == deep_gemm_rocm.__file__, spec
assert importlib.util.find_spec("deep_gemm.nothing") is None
try:
    import deep_gemm.nothing
except ModuleNotFoundError:
    print("as expected")
"""

ANOTHER = """
import sys, types
import deep_gemm_rocm
another = sys.modules["deep_gemm"] = types.ModuleType("deep_gemm")
try:
    deep_gemm_rocm.install_as_deep_gemm()
except RuntimeError as error:
    assert sys.modules["deep_gemm"] is another and "deep_gemm.utils" not in sys.modules
    print(error)
"""


def what_prints(program: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(program, {})
    return printed.getvalue()


@pytest.mark.parametrize(
    ("program", "printed"), [(INSTALL, "as expected"), (ANOTHER, "another package")], ids=["installs", "refuses"]
)
def test_as_deep_gemm(program, printed):
    assert printed in in_clean_child(what_prints, program)


FLASH_MLA = """
import deep_gemm_rocm
deep_gemm_rocm.install_as_flash_mla()
deep_gemm_rocm.install_as_flash_mla()
import flash_mla
from flash_mla import flash_mla_sparse_fwd, flash_mla_with_kvcache, get_mla_metadata
from flash_mla.flash_mla_interface import FlashMLASchedMeta
assert flash_mla.flash_mla_interface.flash_mla_with_kvcache is flash_mla_with_kvcache
assert flash_mla_with_kvcache is deep_gemm_rocm.flash_mla_with_kvcache
metadata, none = get_mla_metadata()
assert isinstance(metadata, FlashMLASchedMeta) and none is None
print("found")
"""


def test_as_flash_mla():
    assert "found" in in_clean_child(what_prints, FLASH_MLA)


@pytest.mark.parametrize("groups", [None, 3])
@pytest.mark.parametrize(
    ("recipe", "is_sfa", "rows"),
    [((1, 128, 128), True, 1), ((1, 128, 128), False, 128), ((1, 1, 128), False, 1), ((128, 128), None, 128)],
)
def test_required_layout_of_scales(recipe, is_sfa, rows, groups):
    mn, k = 261, 400
    shape = (*(() if groups is None else (groups,)), -(-mn // rows), 4)
    sf = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    transformed = dg.transform_sf_into_required_layout(sf, mn, k, recipe, groups, is_sfa)
    assert torch.equal(transformed, sf)
    if rows == 1:
        assert transformed.stride() == dg.get_mn_major_tma_aligned_tensor(sf).stride()
        again = dg.transform_sf_into_required_layout(transformed, mn, k, recipe, groups, is_sfa)
        assert again is transformed
    else:
        assert transformed is sf


def test_gemm_takes_transformed_scales():
    m, n, k = 37, 130, 272
    a, b = gemm_problem(m, n, k)
    sfa = dg.transform_sf_into_required_layout(a[1], m, k, (1, 128, 128), is_sfa=True)
    sfb = dg.transform_sf_into_required_layout(b[1], n, k, (1, 128, 128), is_sfa=False)
    output = GuardedOutput(m, n)
    dg.fp8_gemm_nt((a[0], sfa), (b[0], sfb), output.tensor)
    output.assert_intact()
    assert_accurate(output.tensor, gemm_reference(a, b))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"sf": [1.0]}, TypeError, "sf must be a torch.Tensor, got list"),
        ({"sf": torch.ones(8, 3).double()}, TypeError, "sf must be float32, got torch.float64"),
        ({"sf": torch.ones(8, 1).int()}, NotImplementedError, "sf must be float32: .* SM100"),
        ({"sf": torch.ones(8, 4)}, ValueError, r"sf must have shape \(8, 3\), got \(8, 4\)"),
        ({"num_groups": 2}, ValueError, r"sf must have shape \(2, 8, 3\), got \(8, 3\)"),
        ({"num_groups": 2.0}, TypeError, "num_groups must be an int, got float"),
        ({"mn": "8"}, TypeError, "mn must be an int, got str"),
        ({"k": -1}, ValueError, "k must be at least 0, got -1"),
        ({"recipe": None}, TypeError, "recipe must be a tuple of 2 or 3 ints, got None"),
        ({"recipe": (1, 1, 128.0)}, TypeError, r"recipe must be a tuple of 2 or 3 ints, got \(1, 1, 128.0\)"),
        ({"recipe": (1, 128)}, ValueError, "is_sfa must be given with a recipe of 3 numbers and only then"),
        ({"is_sfa": None}, ValueError, "is_sfa must be given with a recipe of 3 numbers and only then"),
        ({"recipe": (1, 1, 32)}, NotImplementedError, "1 or 128 rows and 128 values along K, got 1 and 32"),
    ],
)
def test_bad_scales(changes, error, message):
    arguments = {"sf": torch.ones(8, 3), "mn": 8, "k": 300, "recipe": (1, 128, 128), "is_sfa": True, **changes}
    with pytest.raises(error, match=message):
        dg.transform_sf_into_required_layout(**arguments)


def test_powers_of_two_as_scales():
    x = torch.randn(300, 260, generator=torch.Generator().manual_seed(1)) * 3.7
    x[128:256, :128] = 0
    x[:128, 128:256] = 240.0  # the exact scale is a power of two
    for cast, rows in ((dg.per_token_cast_to_fp8, 1), (dg.per_block_cast_to_fp8, 128)):
        _, exact = cast(x)
        data, scales = cast(x, True)
        assert torch.equal(scales, torch.exp2(torch.log2(exact.double()).ceil()).float())
        spread = scales.repeat_interleave(rows, 0).repeat_interleave(128, 1)[:300, :260]
        assert ((data.float() * spread - x).abs() <= torch.maximum(x.abs() / 16, spread * 2.0**-11)).all()
    by_column, scales_of_columns = dg.per_channel_cast_to_fp8(x, True)
    by_row, scales_of_rows = dg.per_token_cast_to_fp8(x.T, True)
    assert torch.equal(by_column.float(), by_row.float().T)
    assert torch.equal(scales_of_columns, scales_of_rows.T)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_has_no_power_of_two(value):
    data, scales = dg.per_token_cast_to_fp8(torch.tensor([[1.0, value]]), use_ue8m0=True)
    assert (data.float() * scales).isnan().all()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: dg.get_mn_major_tma_aligned_packed_ue8m0_tensor(x),
        lambda x: dg.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(x, x, [128], 128, 128),
        lambda x: dg.per_token_cast_to_fp8(x, True, 128, True),
        lambda x: dg.per_token_cast_to_fp8(x, False, 32),
        lambda x: dg.per_block_cast_to_fp8(x, gran_k=64),
        lambda x: dg.cublaslt_gemm_nt(x, x, x),
        lambda x: dg.cublaslt_gemm_nn(x, x, x),
        lambda x: dg.cublaslt_gemm_tn(x, x, x),
        lambda x: dg.cublaslt_gemm_tt(x, x, x),
        lambda x: dg.set_block_size_multiple_of((32, 1)),
    ],
)
def test_what_gfx942_has_no_use_for(call):
    with pytest.raises(NotImplementedError, match=r"SM100|cuBLASLt .* use bf16_gemm|gran_k must be 128|must be 1"):
        call(torch.ones(4, 256))


def test_settings_that_change_nothing():
    assert (dg.get_tc_util(), dg.get_pdl()) == (100, False)
    dg.set_tc_util(40)
    dg.set_pdl(True)
    dg.set_ignore_compile_dims(True)
    dg.set_block_size_multiple_of(1)
    dg.set_block_size_multiple_of((1, 1))
    assert (dg.get_tc_util(), dg.get_pdl()) == (40, True)
    dg.set_tc_util(0)
    assert dg.get_tc_util() == 100


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: dg.set_tc_util(101), ValueError),
        (lambda: dg.set_tc_util(-1), ValueError),
        (lambda: dg.set_tc_util(50.0), TypeError),
        (lambda: dg.set_pdl(1), TypeError),
        (lambda: dg.set_ignore_compile_dims("yes"), TypeError),
        (lambda: dg.set_compile_mode(2), ValueError),
        (lambda: dg.set_compile_mode(True), TypeError),
    ],
)
def test_bad_settings(call, error):
    with pytest.raises(error, match=r"new_\w+ must be"):
        call()
    assert (dg.get_tc_util(), dg.get_pdl(), dg.get_compile_mode()) == (100, False, 0)


def test_compile_mode():
    """In compile mode, arguments are checked and kernels loaded, but nothing runs."""
    a, b = gemm_problem(5, 40, 128)
    output = GuardedOutput(5, 40)
    jit.forget()
    dg.set_compile_mode(1)
    assert dg.get_compile_mode() == 1
    dg.fp8_gemm_nt(a, b, output.tensor)
    output.assert_untouched()
    assert len(jit.loaded()) == 1
    with pytest.raises(ValueError, match="d must have shape"):
        dg.fp8_gemm_nt(a, b, output.tensor.T)
    dg.set_compile_mode(0)
    dg.fp8_gemm_nt(a, b, output.tensor)
    assert len(jit.loaded()) == 1
    assert_accurate(output.tensor, gemm_reference(a, b))


def test_bench():
    a, b = gemm_problem(16, 128, 256)
    d = torch.empty(16, 128, dtype=torch.bfloat16)
    calls = []

    def run():
        calls.append(1)
        dg.fp8_gemm_nt(a, b, d)

    assert 0 < dg.bench(run, num_warmups=1, num_tests=2) < 1e-3
    assert len(calls) == 3
    assert 0 < dg.bench_kineto(run, "gemm", num_tests=2) < 1e-3
    of_gemm, of_nothing = dg.bench_kineto(run, ("gemm", "no such kernel"), num_tests=2, barrier=lambda: calls.clear())
    assert 0 < of_gemm < 1e-3
    assert of_nothing == 0
    assert len(calls) == 1


def test_bench_of_several_kernels():
    a, b = gemm_problem(16, 128, 256)
    outputs = [torch.empty(16, 128, dtype=dtype) for dtype in (torch.bfloat16, torch.float32)]

    def run():
        for d in outputs:
            dg.fp8_gemm_nt(a, b, d)

    with pytest.raises(ValueError, match="kernel_names: 'gemm' is part of several kernels' names"):
        dg.bench_kineto(run, "gemm", num_tests=1)
    assert dg.bench_kineto(run, "gemm", num_tests=1, with_multiple_kernels=True) > 0


def test_no_trace_of_simulated_kernels():
    if not hip.runtime().is_simulated:
        pytest.skip("needs the simulator")
    with pytest.raises(NotImplementedError, match="trace_path must be None"):
        dg.bench_kineto(lambda: None, "gemm", trace_path="trace.json")


def logits_problem():
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(3, 32, 64, generator=generator).to(torch.float8_e4m3fnuz)
    keys = torch.randn(40, 64, generator=generator).to(torch.float8_e4m3fnuz)
    ends = torch.tensor([3, 17, 40], dtype=torch.int32)
    return q, (keys, torch.rand(40, generator=generator)), torch.rand(3, 32, generator=generator), ends * 0, ends


def test_logits_of_a_pair_without_scales():
    q, *others = logits_problem()
    assert torch.equal(dg.fp8_fp4_mqa_logits((q, None), *others), dg.fp8_mqa_logits(q, *others))


@pytest.mark.parametrize(
    ("q", "keywords", "error", "message"),
    [
        (lambda q: q, {}, TypeError, r"q must be a pair \(FP8 data, None\), got a Tensor"),
        (lambda q: (q, torch.ones(3, 32)), {}, NotImplementedError, "no FP4"),
        (lambda q: (q, None), {"logits_dtype": torch.float16}, TypeError, "logits_dtype must be float32 or bfloat16"),
    ],
)
def test_logits_that_gfx942_lacks(q, keywords, error, message):
    data, *others = logits_problem()
    with pytest.raises(error, match=message):
        dg.fp8_fp4_mqa_logits(q(data), *others, **keywords)


def test_logits_of_both_generations():
    """In DeepGEMM 2.6 the sixth argument is a bool, ``clean_logits``, in 2.8 an int, ``max_seqlen_k``."""
    q, *others = logits_problem()
    starts, ends = others[2:]
    longest = int((ends - starts).max())
    cleaned = dg.fp8_mqa_logits(q, *others)
    seen = torch.arange(longest) < (ends - starts)[:, None]
    metadata = dg.get_mqa_logits_metadata(starts, ends, 40, 32)
    assert torch.equal(dg.fp8_fp4_mqa_logits((q, None), *others, True, 0, torch.float32), cleaned)
    assert torch.equal(dg.fp8_fp4_mqa_logits((q, None), *others, max_seqlen_k=0), cleaned)
    for arguments, keywords in (
        ((False, longest), {}),
        ((longest,), {}),
        ((longest, metadata), {}),
        ((longest, None), {"logits_dtype": torch.float32}),
        ((), {"max_seqlen_k": longest, "schedule_meta": metadata}),
        ((), {"max_seqlen_k": longest, "clean_logits": False}),
    ):
        logits = dg.fp8_fp4_mqa_logits((q, None), *others, *arguments, **keywords)
        assert torch.equal(logits[seen], cleaned[seen]), (arguments, keywords)
    with pytest.raises(TypeError, match="clean_logits must be a bool where max_seqlen_k is given, got 1"):
        dg.fp8_fp4_mqa_logits((q, None), *others, 1, 40)
    with pytest.raises(ValueError, match="clean_logits must be False for compressed logits"):
        dg.fp8_fp4_mqa_logits((q, None), *others, True, 40)


def test_alpha_and_epilogue():
    a, b = gemm_problem(5, 40, 128)
    expected, d = dg.gemm_fp8(a, b), torch.empty(5, 40, dtype=torch.bfloat16)
    for keywords in ({"alpha": 1.0}, {"epilogue": None}, {"epilogue": "identity", "alpha": None}):
        dg.fp8_gemm_nt(a, b, d.zero_(), **keywords)
        assert torch.equal(d, expected)
    for function, operands in ((dg.fp8_gemm_nt, (a, b)), (dg.bf16_gemm_nt, (d, d))):
        with pytest.raises(NotImplementedError, match=r"alpha must be None or 1, got 2: .* multiply the scales of b"):
            function(*operands, d, alpha=2)


def test_paged_logits_of_single_tokens():
    """Tokens of one sequence, each with its own row of pages, may have the same number in ``indices``."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(3, 1, 32, 64, generator=generator).to(torch.float8_e4m3fnuz)
    cache = torch.zeros(4, 64, 1, 68, dtype=torch.uint8)
    values = torch.randn(4, 64 * 64, generator=generator).to(torch.float8_e4m3fnuz)
    scales = torch.rand(4, 64, generator=generator)
    cache.view(4, -1)[:, : 64 * 64] = values.view(torch.uint8)
    cache.view(4, -1)[:, 64 * 64 :] = scales.view(torch.uint8)
    weights = torch.rand(3, 32, generator=generator)
    lengths = torch.tensor([[99], [100], [30]], dtype=torch.int32)
    pages = torch.tensor([[2, 0], [2, 0], [1, 3]], dtype=torch.int32)
    indices = torch.tensor([0, 0, 1], dtype=torch.int32)
    metadata = dg.get_paged_mqa_logits_metadata(lengths, 64, 20)
    arguments = (cache, weights, lengths, pages, metadata, 128, True)
    expected = dg.fp8_paged_mqa_logits(q, *arguments)
    assert torch.equal(dg.get_paged_mqa_logits_metadata(lengths, 64, 20, indices), metadata)
    assert torch.equal(dg.fp8_paged_mqa_logits(q, *arguments, indices=indices), expected)
    assert torch.equal(dg.fp8_fp4_paged_mqa_logits((q, None), *arguments, indices=indices), expected)
    assert torch.equal(dg.fp8_fp4_paged_mqa_logits((q, None), *arguments[:-1], indices)[:, :30], expected[:, :30])
    with pytest.raises(TypeError, match="clean_logits must be a bool where indices are given, got a Tensor"):
        dg.fp8_fp4_paged_mqa_logits((q, None), *arguments[:-1], indices, indices=indices)
    with pytest.raises(ValueError, match=r"indices must have shape \(3\), got \(2,\)"):
        dg.fp8_paged_mqa_logits(q, *arguments, indices=indices[:2])
