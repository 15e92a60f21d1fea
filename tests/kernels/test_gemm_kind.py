"""Properties that Python and C++ both derive from a kind of GEMM."""

from __future__ import annotations

import itertools

from helpers.host_functions import compile_functions, including

from deep_gemm_rocm.problems.gemm_kind import GemmKind

SOURCE = """
#include "deep_gemm_rocm/arithmetic/activation.h"
%s
#include "deep_gemm_rocm/hardware/mfma.h"
#include "deep_gemm_rocm/tiles/gemm_kind.h"
#include "deep_gemm_rocm/tiles/tile_shape.h"
using namespace deep_gemm_rocm;
template <class D, Scaling kScaling, bool kAccumulate, bool kSkipsHeadMid, class Bias, class Activation>
constexpr int conclusions() {
  using Kind = GemmKind<E4M3, E4M3, D, Major::kK, Major::kK, kScaling, kAccumulate, false, kSkipsHeadMid, false, false,
                        Bias, Activation>;
  using Shape = TileShape<Mfma<E4M3, E4M3, 16>, 128, 128, 2, 2, Activation::kParts>;
  return kStreamsResults<Kind, Shape> + 2 * Kind::kQuantised + 4 * Activation::kParts;
}
extern "C" int conclusion(int number) {
  constexpr int kAll[] = {%s};
  return kAll[number];
}
"""
TYPES = {"e4m3": "E4M3", "e5m2": "E5M2", "bf16": "__bf16", "f16": "_Float16", "f32": "float", "none": "None"}
ACTIVATIONS = {"identity": "Identity", "silu_and_mul": "SiluAndMul"}
VALUES = {
    "d_type": ("bf16", "f16", "f32", "e4m3", "e5m2"),
    "scaling": ("none", "blocks", "vectors", "rows"),
    "accumulate": (False, True),
    "skips_head_mid": (False, True),
    "bias": ("none", "bf16", "f32"),
    "activation": tuple(ACTIVATIONS),
}


def kinds():
    for values in itertools.product(*VALUES.values()):
        try:
            yield GemmKind(**dict(zip(VALUES, values, strict=True)))
        except ValueError:
            continue


def cpp_arguments(kind: GemmKind) -> str:
    d, bias, activation = TYPES[kind.d_type], TYPES[kind.bias], ACTIVATIONS[kind.activation]
    flags = f"{kind.accumulate:d}, {kind.skips_head_mid:d}"
    return f"{d}, Scaling::k{kind.scaling.capitalize()}, {flags}, {bias}, {activation}"


def test_python_and_cpp_conclude_the_same(tmp_path):
    """Results are streamed between MFMAs unless scales of rows or vectors leave no time for that."""
    every = list(kinds())
    (streams,) = including("constexpr bool kStreamsResults")
    calls = ", ".join(f"conclusions<{cpp_arguments(kind)}>()" for kind in every)
    conclusion = compile_functions(tmp_path, SOURCE % (streams, calls)).conclusion
    for number, kind in enumerate(every):
        is_streamed = kind.only_rounds and kind.scaling in ("none", "blocks")
        assert conclusion(number) == is_streamed + 2 * kind.is_quantised + 4 * kind.parts, kind
