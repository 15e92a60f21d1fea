"""The layer of experts, against fp64."""

from __future__ import annotations

import re

import pytest
import torch
from helpers.default_run import some, these
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm import jit
from deep_gemm_rocm.api import experts as api
from deep_gemm_rocm.api.fp4 import FP4_VALUES, pack_codes, unpack_codes
from deep_gemm_rocm.launch.experts import sum_of_experts_launch
from deep_gemm_rocm.launch.repeated import launches
from deep_gemm_rocm.problems.experts import check_experts
from deep_gemm_rocm.problems.layout import FP8
from deep_gemm_rocm.runtime import hip
from deep_gemm_rocm.testing import fused_moe_reference

BF16 = torch.bfloat16
# The most by which rounding to the type between the GEMMs changes a value, by how weights are scaled.
ROUNDING = {
    "blocks": 2.0**-4,
    "rows": 2.0**-4,
    "none": 2.0**-8,
    "fp4": 2.0**-8,
    "fp4 by fp8": 2.0**-4,
    "int4": 2.0**-8,
    "int4 by fp8": 2.0**-4,
    "int4 of 32 by fp8": 2.0**-4,
}
# "int4 by fp8" takes multiples of 128 only.
INT4_BY_FP8 = ("int4 by fp8", "int4 of 32 by fp8")
ALL_SCALINGS = list(ROUNDING)[:-2]
SCALINGS = [pytest.param(name, marks=pytest.mark.slow if name == "int4" else ()) for name in ALL_SCALINGS]
OF_FOUR_BITS = ("fp4", "fp4 by fp8", "int4", *INT4_BY_FP8)
FEW_COLUMNS = {name: 96 if name in OF_FOUR_BITS else 80 for name in ROUNDING}  # of intermediate values, with a tail


def generator(*seeds: int) -> torch.Generator:
    return torch.Generator().manual_seed(hash(seeds))


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=generator(*shape, seed))


def random_ids(least: int, end: int, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(least, end, shape, generator=generator(*shape, end, seed)).int()


def spread(scales: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Scales for each of ``rows`` x ``columns`` elements."""
    blocks = [size if scales.shape[i - 2] in (1, size) else 128 for i, size in enumerate((rows, columns))]
    repeats = [1 if scales.shape[i - 2] == size else blocks[i] for i, size in enumerate((rows, columns))]
    return scales.repeat_interleave(repeats[0], -2).repeat_interleave(repeats[1], -1)[..., :rows, :columns]


def quantised(x: torch.Tensor, cast):
    """A matrix or a stack of them, quantised, and the values that this stands for."""
    pair = cast(x) if x.dim() == 2 else tuple(torch.stack(parts) for parts in zip(*map(cast, x), strict=True))
    return pair, pair[0].double() * spread(pair[1], *x.shape[-2:]).double()


class Layer:
    """Weights of a layer as ``fused_moe`` takes them, and their exact values."""

    def __init__(self, hidden: int, intermediate: int, experts: int, scaling: str = "blocks") -> None:
        self.scaling = scaling
        self.hidden, self.experts = hidden, experts
        gate_up = (randn(experts, 2 * intermediate, hidden) * 2 / hidden**0.5).to(BF16)
        down = (randn(experts, hidden, intermediate, seed=1) / intermediate**0.5).to(BF16)
        self.gate_up, self.exact_gate_up = self.weight(gate_up)
        self.down, self.exact_down = self.weight(down)

    @property
    def takes_bf16(self) -> bool:
        return self.scaling in ("none", "fp4") or (self.scaling.startswith("int4") and "by fp8" not in self.scaling)

    def weight(self, weight: torch.Tensor):
        if self.scaling.startswith("fp4"):
            casts = [dg.per_token_cast_to_fp4(expert, use_ue8m0=True, gran_k=32) for expert in weight]
            data, scales = (torch.stack(parts) for parts in zip(*casts, strict=True))
            values = torch.tensor(FP4_VALUES)[unpack_codes(data).int()].double()
            exponents = (scales.log2() + 127).to(torch.uint8)
            return (data, exponents), values * scales.double().repeat_interleave(32, -1)
        if self.scaling.startswith("int4"):
            return self.int4_weight(weight)
        if self.scaling == "none":
            return weight, weight.double()
        cast = dg.per_block_cast_to_fp8 if self.scaling == "blocks" else dg.per_row_cast_to_fp8
        return quantised(weight, cast)

    def int4_weight(self, weight: torch.Tensor):
        """Groups have 32 values, or as many as the scaling says; "with zeros", each has a code for 0 of its own."""
        named = re.search(r"of (\d+)", self.scaling)
        group = int(named[1]) if named else 128 if self.scaling == "int4 by fp8" else 32
        has_zeros = "with zeros" in self.scaling
        groups = weight.float().unflatten(-1, (-1, group))
        least, largest = (groups.amin(-1), groups.amax(-1)) if has_zeros else (0, groups.abs().amax(-1))
        scales = ((largest - least) / (15 if has_zeros else 8)).to(BF16)
        zeros = (-least / scales.float()).round().clamp(0, 15) if has_zeros else torch.full(scales.shape, 8.0)
        codes = ((groups / scales.float()[..., None]).round() + zeros[..., None]).clamp(0, 15)
        values = ((codes - zeros[..., None]) * scales.float()[..., None]).flatten(-2)
        values = values.to(BF16) if self.scaling == "int4" else values
        words = pack_codes(codes.flatten(-2).to(torch.uint8)).view(torch.int32)
        packed_zeros = pack_codes(zeros.mT.to(torch.uint8)).clone(memory_format=torch.contiguous_format)
        words_of_zeros = packed_zeros.view(torch.int32).mT if has_zeros else None
        return dg.repack_int4(words, scales, words_of_zeros, packing="compressed-tensors"), values.double()

    def input(self, tokens: int):
        x = randn(tokens, self.hidden, seed=2).to(BF16)
        if self.takes_bf16:
            return x, x, x.double()
        cast = dg.per_row_cast_to_fp8 if self.scaling == "rows" else dg.per_token_cast_to_fp8
        own, exact = quantised(x, cast)
        return (own if "by fp8" in self.scaling else x), own, exact

    def biases(self, dtype: torch.dtype = BF16) -> dict[str, torch.Tensor]:
        gate_up, down = (len(exact[0]) for exact in (self.exact_gate_up, self.exact_down))
        of_down = torch.nn.functional.pad(randn(self.experts, down, seed=8), (0, 3))[:, :-3]  # experts are apart
        return {"gate_up_bias": randn(self.experts, gate_up, seed=7).to(dtype), "down_bias": of_down.to(dtype)}

    def assert_right(self, ids: torch.Tensor, expert_map: torch.Tensor | None = None, **options) -> torch.Tensor:
        tokens, top_k = ids.shape
        weights = torch.rand(tokens, top_k, generator=generator(tokens, top_k))
        x, own, exact_x = self.input(tokens)
        out = torch.full((tokens, self.hidden), torch.nan).to(BF16)
        call = (self.gate_up, self.down, weights, ids)
        returned = dg.fused_moe(x, *call, expert_map=expert_map, out=out, **options)
        assert returned is out
        operands = (exact_x, self.exact_gate_up, self.exact_down, weights, ids, expert_map)
        exact, magnitudes, of_results = fused_moe_reference(*operands, **options)
        # Quantised and bf16 values between the GEMMs, bf16 results of experts, and bf16 sums.
        rounding = ROUNDING.get(self.scaling, ROUNDING["int4" if self.takes_bf16 else "int4 by fp8"])
        bound = rounding * magnitudes + 2.0**-8 * (of_results + exact.abs())
        assert ((out.double() - exact).abs() <= bound).all()
        if exact.any():
            typical = (out.double() - exact).norm() / exact.norm()
            assert typical < (0.01 if self.takes_bf16 else 0.05)
        again = dg.fused_moe(own, *call, expert_map=expert_map, **options)
        assert again.equal(out)
        return out


@pytest.mark.parametrize(
    ("tokens", "hidden", "intermediate", "experts", "top_k", "scaling"),
    [
        pytest.param(*shape, name, marks=() if shape[0] == 19 and "int4" not in name else pytest.mark.slow)
        for shape in ((1, 256, 128, 4, 2), (37, 400, 256, 5, 3), (19, 256, 80, 3, 2), (70, 128, 128, 1, 1))
        for name in (*ALL_SCALINGS, *INT4_BY_FP8)
    ],
)
def test_layers(tokens, hidden, intermediate, experts, top_k, scaling):
    if scaling in INT4_BY_FP8:
        hidden, intermediate = 384, 128
    elif scaling in OF_FOUR_BITS:
        hidden, intermediate = (size + 16 if size % 32 else size for size in (hidden, intermediate))
    Layer(hidden, intermediate, experts, scaling).assert_right(random_ids(0, experts, tokens, top_k))


@pytest.mark.parametrize(
    "clamps",
    [pytest.param({"limit": 0.7}, marks=pytest.mark.slow), {"alpha": 1.702, "limit": 7.0}],
    ids=["limit", "alpha and limit"],
)
@pytest.mark.parametrize("scaling", these(ALL_SCALINGS, ["fp4 by fp8"]))
def test_clamped_activations(scaling, clamps):
    intermediate = 128 if scaling == "blocks" else FEW_COLUMNS[scaling]
    Layer(256, intermediate, 4, scaling).assert_right(random_ids(0, 4, 21, 2), **clamps)


@pytest.mark.parametrize("scaling", some(ALL_SCALINGS, 1))
def test_biases(scaling):
    layer = Layer(256, 96, 4, scaling)  # scales of 128 columns have rows of gate and of up
    layer.assert_right(random_ids(-1, 4, 21, 2), alpha=1.702, limit=7.0, **layer.biases())


def test_one_bias_in_fp32():
    layer = Layer(256, FEW_COLUMNS["fp4"], 3, "fp4")
    layer.assert_right(random_ids(-1, 3, 21, 2), gate_up_bias=layer.biases(torch.float32)["gate_up_bias"])


def test_many_rows_with_clamps_and_biases():
    layer = Layer(128, 128, 2)
    layer.assert_right(random_ids(0, 2, 300, 1), limit=2.0, **layer.biases())


@pytest.mark.parametrize("form", ["packed", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("scaling", ["fp4", pytest.param("fp4 by fp8", marks=pytest.mark.slow)])
def test_other_scales_of_four_bits(scaling, form):
    layer = Layer(160, 96, 3, scaling)  # 160 is five groups, and the last of two words has one

    def other(exponents: torch.Tensor) -> torch.Tensor:
        if form == "float32":
            return torch.exp2(exponents.float() - 127)
        return torch.nn.functional.pad(exponents, (0, -exponents.shape[-1] % 4), value=255).view(torch.int32)

    ids, weights = random_ids(0, 3, 9, 2), torch.ones(9, 2)
    x, _, _ = layer.input(9)
    both = [(data, other(scales)) for data, scales in (layer.gate_up, layer.down)]
    expected = dg.fused_moe(x, layer.gate_up, layer.down, weights, ids)
    assert dg.fused_moe(x, *both, weights, ids).equal(expected)


@pytest.mark.parametrize("scaling", these(["none", "fp4", "fp4 by fp8", "int4"], ["int4"]))
def test_no_races_and_no_missing_waits(monkeypatch, scaling):
    if not hip.runtime().is_simulated:
        pytest.skip("needs the simulator")
    monkeypatch.setenv("DG_SIM_SANITIZE", "2")
    layer = Layer(288, 160, 3, scaling)
    layer.assert_right(random_ids(-1, 3, 40, 2), alpha=1.702, limit=7.0, **layer.biases())


@pytest.mark.parametrize("tokens", [304, *(pytest.param(tokens, marks=pytest.mark.slow) for tokens in (303, 336))])
def test_many_tokens(tokens):
    Layer(128, 128, 33).assert_right(random_ids(0, 33, tokens, 9))


@pytest.mark.parametrize("scaling", SCALINGS)
def test_choices_without_an_expert(scaling):
    layer = Layer(256, FEW_COLUMNS[scaling], 6, scaling)
    ids = random_ids(-3, 9, 40, 3)
    ids[5] = -1
    out = layer.assert_right(ids)
    assert (out[5] == 0).all()
    assert (layer.assert_right(torch.full((3, 2), -1).int()) == 0).all()


def test_all_tokens_on_one_expert():
    Layer(256, 128, 5).assert_right(torch.full((130, 2), 3).int())


def test_experts_of_other_ranks():
    layer = Layer(256, 128, 4)
    expert_map = torch.tensor([-1, 2, -1, 0, 1, 4, 3, -7]).int()  # there is no expert 4
    layer.assert_right(random_ids(-1, 10, 50, 3), expert_map)


def test_no_tokens():
    layer = Layer(256, 128, 2)
    x, ids = torch.empty(0, 256, dtype=BF16), torch.empty(0, 3).int()
    assert dg.fused_moe(x, layer.gate_up, layer.down, torch.empty(0, 3), ids).shape == (0, 256)


def test_rows_may_be_apart():
    layer = Layer(256, FEW_COLUMNS["none"], 3, "none")
    ids, weights = random_ids(0, 3, 9, 2), torch.ones(9, 2)
    x, _, _ = layer.input(9)
    expected = dg.fused_moe(x, layer.gate_up, layer.down, weights, ids)
    apart = torch.nn.functional.pad(x, (0, 8))[:, :256]
    padded = torch.nn.functional.pad(layer.gate_up, (0, 16))[..., :256]
    wide = torch.full((9, 512), 7.0).to(BF16)
    dg.fused_moe(apart, padded, layer.down, weights, ids, out=wide[:, :256])
    assert wide[:, :256].equal(expected)
    assert (wide[:, 256:] == 7).all()


def test_a_token_does_not_depend_on_its_batch():
    layer = Layer(256, 128, 5)
    ids, weights = random_ids(0, 5, 40, 3), torch.rand(40, 3, generator=generator(1))
    x, _, _ = layer.input(40)
    both = layer.gate_up, layer.down
    expected = dg.fused_moe(x, *both, weights, ids)
    order = torch.randperm(40, generator=generator(2))
    assert dg.fused_moe(x[order], *both, weights[order], ids[order].contiguous()).equal(expected[order])


def test_few_tokens_have_the_bits_of_many():
    dg.set_batch_invariant(True)
    layer = Layer(256, 256, 2)
    ids = random_ids(0, 2, 700, 2)
    many = layer.assert_right(ids)
    x, _, _ = layer.input(700)
    weights = torch.rand(700, 2, generator=generator(700, 2))
    few = dg.fused_moe(x[:9], layer.gate_up, layer.down, weights[:9], ids[:9])
    assert few.equal(many[:9])


def test_what_is_not_finite_stays_with_its_token():
    layer = Layer(256, 128, 3)
    ids, weights = random_ids(0, 3, 20, 2), torch.ones(20, 2)
    x, _, _ = layer.input(20)
    expected = dg.fused_moe(x, layer.gate_up, layer.down, weights, ids)
    x[7, 3] = torch.nan
    out = dg.fused_moe(x, layer.gate_up, layer.down, weights, ids)
    others = torch.arange(20) != 7
    assert out[7].isnan().all()
    assert out[others].equal(expected[others])


def test_captured_with_other_routing():
    layer = Layer(256, 128, 5)
    x, _, _ = layer.input(40)
    ids, weights = random_ids(0, 5, 40, 3), torch.rand(40, 3, generator=generator(3))
    call = x, layer.gate_up, layer.down, weights, ids
    out = dg.fused_moe(*call)  # compiles
    with hip.runtime().capture() as graph:
        dg.fused_moe(*call, out=out)
    for others in (random_ids(-1, 5, 40, 3, seed=1), torch.full((40, 3), 4).int()):
        ids.copy_(others)
        x.mul_(-1.5)
        out.fill_(torch.nan)
        graph.replay()
        assert out.equal(dg.fused_moe(*call))


def test_masked_layout():
    layer, counts, room = Layer(256, 128, 3), torch.tensor([5, 0, 130]).int(), 160
    x, exact_x = quantised(randn(3, room, 256).to(BF16), dg.per_token_cast_to_fp8)
    activated = torch.empty(3, room, 128, dtype=x[0].dtype), torch.full((3, room, 1), torch.nan)
    out = torch.full((3, room, 256), torch.nan).to(BF16)

    def run():
        dg.m_grouped_fp8_gemm_nt_masked(x, layer.gate_up, activated, counts, 64, epilogue="silu_and_mul")
        dg.m_grouped_fp8_gemm_nt_masked(activated, layer.down, out, counts, 64)

    run()  # compiles
    with hip.runtime().capture() as graph:
        run()
    for numbers in ([5, 0, 130], [1, 160, 17]):
        counts.copy_(torch.tensor(numbers))
        out.fill_(torch.nan)
        graph.replay()
        for expert, number in enumerate(numbers):
            ids, ones = torch.full((number, 1), expert).int(), torch.ones(number, 1)
            operands = (exact_x[expert, :number], layer.exact_gate_up, layer.exact_down, ones, ids)
            exact, magnitudes, of_results = fused_moe_reference(*operands)
            bound = ROUNDING["blocks"] * magnitudes + 2.0**-8 * (of_results + exact.abs())
            assert ((out[expert, :number].double() - exact).abs() <= bound).all()
            assert out[expert, number:].isnan().all()


@pytest.mark.parametrize("scaling", ["blocks", "rows", "none"])
def test_repeated_calls(scaling, monkeypatch):
    """They compute what first calls do, for other values at other addresses, also after a change of settings."""
    checks, real = [], api.check_experts
    monkeypatch.setattr(api, "check_experts", lambda *arguments: checks.append(1) or real(*arguments))
    layer, tokens = Layer(256, 80, 3, scaling), 19

    def inputs(seed):
        weights = torch.rand(tokens, 2, generator=generator(seed))
        return randn(tokens, 256, seed=seed).to(BF16), layer.gate_up, layer.down, weights, random_ids(-1, 3, tokens, 2)

    calls, first = [inputs(seed) for seed in range(3)], []
    for call in calls:
        jit.forget()
        first.append(dg.fused_moe(*call))
    checks.clear()
    again = [dg.fused_moe(*calls[i]) for i in (0, 1, 2, 0)]
    for i, result in zip((0, 1, 2, 0), again, strict=True):
        assert result.equal(first[i])
    for _ in range(2):
        dg.set_num_sms(100)
        dg.fused_moe(*calls[0])
        dg.set_num_sms(0)
        assert dg.fused_moe(*calls[1]).equal(first[1])
    assert len(checks) == 1
    x, *others = calls[0]
    shifted = torch.zeros(x.numel() + 1, dtype=BF16)[1:].view(x.shape)
    with pytest.raises(ValueError, match="x must start at a multiple of 16 bytes"):
        dg.fused_moe(shifted, *others)


def test_another_number_of_tokens_has_scales_of_its_own():
    layer = Layer(256, 256, 5)  # the distance of two blocks' scales depends on the number of tokens and of choices
    ids, weights = random_ids(0, 5, 39, 3), torch.rand(39, 3, generator=generator(39))
    x, _, _ = layer.input(39)

    def first(tokens: int) -> torch.Tensor:
        return dg.fused_moe(x[:tokens], layer.gate_up, layer.down, weights[:tokens], ids[:tokens])

    expected = first(39)
    assert first(17).equal(expected[:17])


def sorted_reference(ids: torch.Tensor, expert_map: torch.Tensor | None, experts: int):
    flat = ids.flatten().tolist()
    mapping = range(experts) if expert_map is None else expert_map.tolist()
    local = [mapping[id_] if 0 <= id_ < len(mapping) else -1 for id_ in flat]
    order = [i for expert in range(experts) for i, own in enumerate(local) if own == expert]
    rows = [-1] * len(flat)
    for row, choice in enumerate(order):
        rows[choice] = row
    counts = [local.count(expert) for expert in range(experts)]
    ends = torch.tensor(counts).cumsum(0).tolist()
    return ends, [choice // ids.shape[1] for choice in order], rows


sorted_choices = launches(api._sorted_choices)


def assert_sorted(ids, expert_map, experts):
    ends, tokens, rows = (part.tolist() for part in sorted_choices(ids, expert_map, experts))
    expected_ends, expected_tokens, expected_rows = sorted_reference(ids, expert_map, experts)
    assert (ends, tokens[: ends[-1]], rows) == (expected_ends, expected_tokens, expected_rows)


@pytest.mark.parametrize(
    ("tokens", "top_k", "experts"),
    [(1, 1, 1), (1, 16, 512), (113, 9, 33), (114, 9, 33), (1100, 8, 3), (70, 3, 64), (70, 3, 65)],
)
def test_sorting(tokens, top_k, experts):
    assert_sorted(random_ids(-1, experts + 1, tokens, top_k), None, experts)


@settings(max_examples=15, deadline=None)
@given(data=st.data(), experts=st.integers(1, 512), top_k=st.integers(1, 16), tokens=st.integers(1, 40))
def test_sorting_of_anything(data, experts, top_k, tokens):
    spread_of_ids = data.draw(st.integers(1, experts + 2))
    ids = random_ids(-2, spread_of_ids, tokens, top_k, seed=data.draw(st.integers(0, 9)))
    expert_map = data.draw(st.sampled_from([None, random_ids(-1, experts + 1, experts)]))
    assert_sorted(ids, expert_map, experts)


@pytest.mark.slow
def test_sorting_of_the_most_choices():
    ids = random_ids(-1, 513, 65536, 16)
    ends, tokens, rows = sorted_choices(ids, None, 512)
    flat = ids.flatten().long()
    keys = torch.where((flat >= 0) & (flat < 512), flat, 512)
    order, count = keys.argsort(stable=True), int((keys < 512).sum())
    assert ends.equal(torch.bincount(keys, minlength=513)[:512].cumsum(0).int())
    assert tokens[:count].equal((order[:count] // 16).int())
    assert rows[order[:count]].equal(torch.arange(count).int())
    assert (rows[order[count:]] == -1).all()


@launches
def sum_of_experts(results, topk_weights, rows, out):
    return out, sum_of_experts_launch(results, topk_weights, rows, out)


def assert_summed(results: torch.Tensor, rows: torch.Tensor) -> None:
    weights, columns = randn(*rows.shape), results.shape[1]
    terms = weights.double()[..., None] * results[rows.clamp(min=0).long()].double()
    terms[rows < 0] = 0
    out = torch.full((len(rows), columns), torch.nan).to(BF16)
    sum_of_experts(results, weights, rows, out)
    exact = terms.sum(1)
    assert ((out.double() - exact).abs() <= 2.0**-8 * exact.abs() + 2.0**-20 * terms.abs().sum(1)).all()


@pytest.mark.parametrize("top_k", [1, 4, 5, 8, 9, 12, 13, 16])
def test_sums_of_any_number_of_choices(top_k):
    rows = random_ids(-1, 5 * top_k, 5, top_k)
    rows[0, -1] = 0  # the last choice counts
    assert_summed(randn(5 * top_k, 2056).to(BF16), rows)  # a workgroup has 2048 columns


def test_sums_of_rows_past_4_gib():
    results = torch.empty(2**20, 2056, dtype=BF16)  # of 65536 tokens and 16 choices
    rows = torch.tensor([[2**20 - 1, 7], [2**19 + 5, -1]]).int()
    for row in rows[rows >= 0].tolist():
        results[row] = randn(2056, seed=row).to(BF16)
    assert_summed(results, rows)


def empty(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def largest_layer(tokens: int, experts: int) -> tuple:
    routing = empty(tokens, 2, dtype=torch.float32), empty(tokens, 2, dtype=torch.int32)
    return empty(tokens, 8), empty(experts, 16, 8), empty(experts, 8, 8), *routing


def test_most_tokens_and_experts():
    layer = check_experts(*largest_layer(65536, 512), "silu_and_mul", None, None)
    assert (layer.tokens, layer.experts, layer.takes_any_tokens) == (65536, 512, True)
    with pytest.raises(ValueError, match="x must have at most 65536 rows, got 65537"):
        dg.fused_moe(*largest_layer(65537, 512))
    with pytest.raises(ValueError, match="gate_up must have 1 to 512 experts, got 513"):
        dg.fused_moe(*largest_layer(65536, 513))


def strided(shape: tuple[int, ...], row: int) -> torch.Tensor:
    """Matrices whose rows are ``row`` elements apart."""
    return torch.empty_strided(shape, (*[1] * (len(shape) - 2), row, 1), dtype=BF16, device="meta")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": strided((65536, 8), 2**14)}, "x must take less than 2 GiB, got 65536 rows of 32768 bytes"),
        ({"gate_up": strided((1, 2064, 8), 2**19)}, "an expert of gate_up must take less than 2 GiB"),  # its middle
        ({"gate_up": strided((1, 256, 8), 2**22)}, "an expert of gate_up must take less than 2 GiB"),  # 256 rows
        ({"out": strided((65536, 8), 2**14)}, "out must take less than 2 GiB"),
    ],
)
def test_what_kernels_do_not_reach_is_refused(changed, message):
    x, gate_up, _, *routing = largest_layer(65536, 1)
    given = {"x": x, "gate_up": gate_up} | changed
    down = empty(1, 8, given["gate_up"].shape[1] // 2)
    with pytest.raises(ValueError, match=message):
        dg.fused_moe(given["x"], given["gate_up"], down, *routing, out=given.get("out"))


def test_experts_start_at_multiples_of_16_bytes():
    x, gate_up, down, *routing = largest_layer(4, 3)
    apart = torch.empty_strided(gate_up.shape, (16 * 8 + 4, 8, 1), dtype=BF16, device="meta")
    with pytest.raises(ValueError, match=r"gate_up must be a multiple of 16 bytes apart, got strides \(132, 8, 1\)"):
        dg.fused_moe(x, apart, down, *routing)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"activation": "gelu"}, ValueError, "activation must be silu_and_mul"),
        ({"topk_ids": torch.zeros(4, 17).int()}, ValueError, "1 to 16 columns"),
        ({"topk_ids": torch.zeros(4, 2).long()}, TypeError, "topk_ids must be int32"),
        ({"topk_weights": torch.zeros(4, 3)}, ValueError, r"topk_weights must have shape \(4, 2\)"),
        ({"x": torch.zeros(4, 250, dtype=BF16)}, ValueError, "gate_up"),
        ({"down": torch.zeros(3, 256, 128, dtype=BF16)}, TypeError, "must both be .* got a pair and Tensor"),
        ({"expert_map": torch.empty(0).int()}, ValueError, "expert_map"),
        ({"limit": -1.0}, ValueError, "limit must be"),
        (
            {"alpha": 1e39},
            ValueError,
            r"alpha must be positive, from 1.17549e-38 to 3.4.*got 1e\+39",
        ),
        ({"limit": 1e-50}, ValueError, "limit must be positive, from 1.17549e-38 to .* got 1e-50"),
        ({"gate_up_bias": torch.zeros(3, 255)}, ValueError, r"gate_up_bias must have shape \(3, 256\), a number"),
        ({"down_bias": torch.zeros(3, 256).double()}, TypeError, "down_bias must be"),
        ({"down_bias": torch.zeros(256, 3).T}, ValueError, "down_bias must be contiguous"),
        ({"out": torch.zeros(4, 255, dtype=BF16)}, ValueError, r"out must have shape \(4, 256\)"),
    ],
)
def test_bad_arguments(changed, error, message):
    layer = Layer(256, 128, 3)
    good = {
        "x": layer.input(4)[0], "gate_up": layer.gate_up, "down": layer.down, "topk_weights": torch.zeros(4, 2),
        "topk_ids": torch.zeros(4, 2).int(),
    }  # fmt: skip
    with pytest.raises(error, match=message):
        dg.fused_moe(**(good | changed))


@pytest.mark.parametrize(
    ("name", "shape", "strides"),
    [
        ("x", (4, 2), (2**29, 1)),  # rows that are gathered from 4 GiB
        ("x", (4, 2), (1, 2**29)),
        ("gate_up", (3, 256, 1), (1, 2**22, 1)),
        ("down", (3, 256, 1), (1, 2**22, 1)),
    ],
)
def test_scales_that_are_too_far_apart(name, shape, strides):
    layer = Layer(256, 128, 3, "blocks" if name == "x" else "rows")
    operands = {"x": layer.input(4)[1], "gate_up": layer.gate_up, "down": layer.down}
    scales = torch.empty_strided(shape, strides, device="meta")  # their strides are checked before their device
    operands[name] = operands[name][0], scales
    out = torch.full((4, 256), 7.0).to(BF16)
    with pytest.raises(ValueError, match=rf"{name}\[1\] must lie within 2 GiB, got strides \({strides[0]}, "):
        dg.fused_moe(**operands, topk_weights=torch.zeros(4, 2), topk_ids=torch.zeros(4, 2).int(), out=out)
    assert (out == 7).all()


def test_more_tokens_whose_scales_are_too_far_apart():
    layer = Layer(256, 128, 4)
    data, scales = layer.input(5)[1]
    apart = torch.empty_strided((5, 2), (2**27, 1)).copy_(scales)  # 2 GiB from the first row to the last
    ids, weights = random_ids(0, 4, 5, 2), torch.ones(5, 2)

    def layer_of(tokens):
        x = data[:tokens], apart[:tokens]
        return dg.fused_moe(x, layer.gate_up, layer.down, weights[:tokens], ids[:tokens])

    few = dg.fused_moe((data[:3], scales[:3]), layer.gate_up, layer.down, weights[:3], ids[:3])
    assert layer_of(3).equal(few)
    with pytest.raises(ValueError, match=r"x\[1\] must lie within 2 GiB"):
        layer_of(5)


def four_bits(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int8)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"gate_up": (four_bits(3, 256, 64), torch.ones(3, 256, 8))}, ValueError, r"gate_up\[0\] must have shape"),
        ({"gate_up": (four_bits(3, 256, 128), torch.ones(3, 256, 4))}, ValueError, r"gate_up\[1\] must have shape"),
        ({"gate_up": (four_bits(3, 256, 128), torch.ones(3, 256, 8).half())}, TypeError, r"gate_up\[1\] must be"),
        ({"gate_up": (four_bits(3, 96, 128), torch.ones(3, 96, 8))}, ValueError, "twice a multiple of 32 rows"),
        ({"down": (four_bits(3, 256, 64), torch.ones(3, 256, 2))}, ValueError, r"down\[1\] must have shape"),
        ({"down": torch.zeros(3, 256, 128, dtype=BF16)}, TypeError, "must both be"),
        ({"down": (four_bits(3, 256, 64).short(), torch.ones(3, 256, 4))}, TypeError, r"down\[0\] must be int8"),
        ({"x": (four_bits(4, 256), torch.ones(4, 2))}, TypeError, r"x\[0\] must be float8_e4m3fnuz"),
        ({"x": (four_bits(4, 256).float().to(FP8), torch.ones(4, 1))}, ValueError, r"x\[1\] must have shape \(4, 2\)"),
    ],
)
def test_bad_arguments_with_four_bits(changed, error, message):
    layer = Layer(256, 128, 3, "fp4")
    good = {
        "x": layer.input(4)[0], "gate_up": layer.gate_up, "down": layer.down, "topk_weights": torch.zeros(4, 2),
        "topk_ids": torch.zeros(4, 2).int(),
    }  # fmt: skip
    out = torch.full((4, 256), 7.0).to(BF16)
    with pytest.raises(error, match=message):
        dg.fused_moe(**(good | changed), out=out)
    assert (out == 7).all()


@pytest.mark.slow
@pytest.mark.parametrize("tokens", ["", " by fp8"])
@pytest.mark.parametrize("groups", ["of 32 with zeros", "of 64", "of 64 with zeros", "of 128", "of 128 with zeros"])
def test_int4_in_groups_of_any_size_with_zeros(groups, tokens):
    for count, hidden, intermediate in ((5, 256, 128), (150, 384, 256)):
        Layer(hidden, intermediate, 3, f"int4 {groups}{tokens}").assert_right(random_ids(0, 3, count, 2))


def test_int4_of_few_values_takes_fp8_tokens():
    layer = Layer(256, 128, 3, "int4 of 32 by fp8")
    assert layer.gate_up[1].dtype == BF16
    layer.assert_right(random_ids(0, 3, 5, 2))


@pytest.mark.parametrize("kind", ["int4 of 32 by fp8", pytest.param("int4 by fp8", marks=pytest.mark.slow)])
def test_shuffled_int4(kind):
    layer = Layer(256, 128, 3, kind)
    ids = random_ids(0, 3, 70, 2)
    expected = layer.assert_right(ids)
    layer.gate_up, layer.down = (dg.shuffle_weight(*pair) for pair in (layer.gate_up, layer.down))
    assert torch.equal(layer.assert_right(ids), expected)
    x = torch.zeros(4, 256).bfloat16()
    with pytest.raises(NotImplementedError, match=r"gate_up\[0\] must be int32 for activations in bf16"):
        dg.fused_moe(x, layer.gate_up, layer.down, torch.zeros(4, 2), torch.zeros(4, 2).int())


@pytest.mark.parametrize(
    "name",
    ["x", "gate_up", "down", "topk_weights", "topk_ids", "expert_map", "gate_up_bias", "down_bias"],
)
def test_output_that_is_read_is_refused(name):
    shapes = {
        "x": (4, 256), "gate_up": (3, 256, 256), "down": (3, 256, 128), "topk_weights": (4, 2), "topk_ids": (4, 2),
        "expert_map": (3,), "gate_up_bias": (3, 256), "down_bias": (3, 256),
    }  # fmt: skip
    dtypes = {"topk_weights": torch.float32, "topk_ids": torch.int32, "expert_map": torch.int32}
    given = {other: torch.zeros(shape).to(dtypes.get(other, BF16)) for other, shape in shapes.items()}
    memory = torch.zeros(256 * 256 * 3, dtype=BF16)
    read = given[name]
    given[name] = memory.view(read.dtype)[: read.numel()].view(read.shape)
    with pytest.raises(ValueError, match=f"out must not share memory with {name}, which"):
        dg.fused_moe(**given, out=memory[:1024].view(4, 256))
