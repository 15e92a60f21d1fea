"""Bad arguments of grouped GEMM raise one error, which names the argument, what was expected and what came."""

from __future__ import annotations

import pytest
import torch

import deep_gemm_rocm as dg
from deep_gemm_rocm.testing import GuardedOutput, grouped_weights, quantised_activations

G, M, N, K = 3, 48, 40, 272


pytestmark = pytest.mark.usefixtures("launched")


def contiguous_arguments():
    a, b = quantised_activations(M, K), grouped_weights(G, N, K)
    return {"a": a, "b": b, "d": None, "grouped_layout": torch.zeros(M, dtype=torch.int32)}


def masked_arguments():
    data, scales = quantised_activations(G * M, K)
    a = data.unflatten(0, (G, M)), scales.unflatten(0, (G, M))
    return {"a": a, "b": grouped_weights(G, N, K), "d": None, "masked_m": torch.zeros(G).int(), "expected_m": 7}


def with_data(value):
    return lambda pair: (value(pair[0]), pair[1])


def with_scales(value):
    return lambda pair: (pair[0], value(pair[1]))


# For each bad input: the change, the error, and a pattern of its message.
BAD = {
    "no b": ("b", lambda b: None, TypeError, "b must be a pair .*NoneType"),
    "b without groups": ("b", with_data(lambda t: t[0]), ValueError, r"b\[0\] must be one matrix for each group.*40"),
    "b[1] without groups": ("b", with_scales(lambda t: t[0]), ValueError, r"b\[1\] must have shape \(3, 1, 3\), one"),
    "b of no groups": ("b", lambda b: [t[:0] for t in b], ValueError, r"b\[0\] must .*(at least one|agree in) group"),
    "b transposed": ("b", with_data(lambda t: t.mT), ValueError, r"agree in K.*\[G, N, K\]"),
    "groups of b misaligned": (
        "b",
        with_data(lambda t: torch.zeros(G * (N * K + 8), dtype=torch.uint8).as_strided(t.shape, (N * K + 8, K, 1))
                  .view(t.dtype)),
        ValueError,
        r"groups of b\[0\] must be a multiple of 16 bytes apart, got strides \(10888, 272, 1\)",
    ),
    "K differs": ("b", with_data(lambda t: t[..., :256]), ValueError, r"agree in K.*\[G, N, K\].*\[G, K, N\] weight"),
    "columns of a contiguous": (
        "a", with_data(lambda t: t.mT.contiguous().mT), ValueError, r"a\[0\] must be contiguous along K.*got strides \("
    ),
    "a[1] fp64": ("a", with_scales(torch.Tensor.double), TypeError, r"a\[1\] must be float32"),
    "no d": ("d", lambda d: None, TypeError, "d must be a torch.Tensor, got NoneType"),
    "d fp64": ("d", torch.Tensor.double, TypeError, "d must be bfloat16, float16 or float32, got torch.float64"),
    "d too short": ("d", lambda d: d[..., :-1], ValueError, r"d must have shape \(.*40\), got \(.*39\)"),
    "recipe": ("recipe", lambda _: (1, 1, 32), NotImplementedError, r"recipes \(1, 128, 128\), .* got \(1, 1, 32\)"),
}  # fmt: skip

BAD_CONTIGUOUS = {
    **BAD,
    "a with groups": ("a", with_data(lambda t: t[None]), ValueError, r"a\[0\] must be a matrix, got shape \(1, 48"),
    "no layout": ("grouped_layout", lambda t: None, TypeError, "grouped_layout must be a torch.Tensor, got NoneType"),
    "layout int64": ("grouped_layout", torch.Tensor.long, TypeError, "grouped_layout must be int32, got torch.int64"),
    "layout too short": (
        "grouped_layout", lambda t: t[:-1], ValueError, r"shape \(48,\), one number for each row of a.*got \(47,\)"
    ),
    "layout strided": (
        "grouped_layout", lambda t: t.repeat(2)[::2], ValueError, r"grouped_layout must be contiguous.*\(2,\)"
    ),
    "two layouts": ("m_indices", lambda _: torch.zeros(M).int(), TypeError, "two names for the same argument"),
    "psum of rows": ("use_psum_layout", lambda _: True, ValueError, r"shape \(3,\), one number for each group of b"),
    "expectation for ids": ("expected_m_for_psum_layout", lambda _: 5, ValueError, "for use_psum_layout=True only"),
    "expectation of none": ("expected_m_for_psum_layout", lambda _: 0, ValueError, "must be at least 1, got 0"),
}  # fmt: skip

BAD_MASKED = {
    **BAD,
    "a without groups": ("a", with_data(lambda t: t[0]), ValueError, r"a\[0\] must be one matrix for each group.*\(48"),
    "fewer groups in a": ("a", with_data(lambda t: t[:2]), ValueError, r"agree in groups.*\(2, 48, 272\) and \(3, 40"),
    "masked_m int64": ("masked_m", torch.Tensor.long, TypeError, "masked_m must be int32, got torch.int64"),
    "masked_m is a list": ("masked_m", torch.Tensor.tolist, TypeError, "masked_m must be a torch.Tensor, got list"),
    "masked_m too long": (
        "masked_m",
        lambda t: t.repeat(2),
        ValueError,
        r"masked_m must have shape \(3,\), one.*\(6,\)",
    ),
    "expected_m float": ("expected_m", float, TypeError, "expected_m must be an int, got float"),
    "expected_m negative": ("expected_m", lambda _: -1, ValueError, "expected_m must be at least 0, got -1"),
    "groups of d overlap": (
        "d",
        lambda d: torch.zeros(G * M * N).bfloat16().as_strided((G, M, N), (N, N, 1)),
        ValueError,
        r"d must have contiguous rows that don't overlap, got strides \(40, 40, 1\)",
    ),
}

CASES = [
    *(pytest.param(contiguous_arguments, *case, id=f"contiguous-{name}") for name, case in BAD_CONTIGUOUS.items()),
    *(pytest.param(masked_arguments, *case, id=f"masked-{name}") for name, case in BAD_MASKED.items()),
]


@pytest.mark.parametrize(("make_arguments", "which", "change", "error", "message"), CASES)
def test_bad_arguments(launched, make_arguments, which, change, error, message):
    arguments = make_arguments()
    masked = make_arguments is masked_arguments
    guarded = GuardedOutput(G * M if masked else M, N)
    arguments["d"] = guarded.tensor.unflatten(0, (G, M)) if masked else guarded.tensor
    arguments[which] = change(arguments.get(which))
    function = dg.m_grouped_fp8_gemm_nt_masked if masked else dg.m_grouped_fp8_gemm_nt_contiguous
    with pytest.raises(error, match=message) as caught:
        function(**arguments)
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)
    guarded.assert_untouched()
    assert not launched


def test_output_must_not_share_memory_with_the_layout():
    arguments = contiguous_arguments()
    storage = torch.zeros(M * N).bfloat16()
    layout = storage.view(torch.int32)[:M]
    with pytest.raises(ValueError, match="d must not share memory with m_indices"):
        dg.m_grouped_fp8_gemm_nt_contiguous(arguments["a"], arguments["b"], storage.view(M, N), m_indices=layout)


def test_empty_problems_launch_nothing(launched):
    arguments = contiguous_arguments()
    a, ids = tuple(t[:0] for t in arguments["a"]), torch.zeros(0).int()
    dg.m_grouped_fp8_gemm_nt_contiguous(a, arguments["b"], torch.empty(0, N).bfloat16(), ids)
    arguments = masked_arguments()
    a = tuple(t[:, :0] for t in arguments["a"])
    dg.m_grouped_fp8_gemm_nt_masked(a, arguments["b"], torch.empty(G, 0, N).bfloat16(), arguments["masked_m"], 1)
    assert not launched


@pytest.mark.parametrize("alignment", [16, 32, 64, 128])
def test_tiles_are_within_the_alignment(launched, alignment):
    dg.set_mk_alignment_for_contiguous_layout(alignment)
    d = torch.empty(M, N).bfloat16()
    dg.m_grouped_fp8_gemm_nt_contiguous(**{**contiguous_arguments(), "d": d})
    (launch,) = launched
    assert launch.kernel.values["block_m"] <= alignment
