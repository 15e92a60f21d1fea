"""gemm_fp8 with every shape, tail, stride and configuration, against the fp64 oracle."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import mmap
import warnings
from operator import attrgetter

import pytest
import torch
from helpers.default_run import these
from helpers.gemm_configs import ALL, QUICK_ALL, config_id, each_dense_tile, has_row_scales_in_lds
from helpers.host_memory import reserved
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.heuristics import GemmConfig, forced
from deep_gemm_rocm.runtime import hip
from deep_gemm_rocm.testing import (
    GuardedOutput,
    activations,
    assert_accurate,
    gemm_problem,
    gemm_reference,
    measure,
    quantised_activations,
    weights,
)

FP8 = torch.float8_e4m3fnuz
NAN = 0x80

SMALL_MACS = 1e8  # takes the simulator a second

MODEL_SHAPES = [(2112, 7168), (576, 7168), (4096, 7168), (264, 896), (48, 272)]
SHAPES = [
    pytest.param(m, n, k, marks=[pytest.mark.slow] if m * n * k > SMALL_MACS or m in (7, 128) else [])
    for n, k in MODEL_SHAPES
    for m in (0, 1, 7, 64, 77, 128, 300)
]


@functools.lru_cache(maxsize=1)
def quantised_weights(n: int, k: int):
    return dg.per_block_cast_to_fp8(weights(n, k))


def run(a, b, m: int, n: int, columns: int = 8) -> torch.Tensor:
    """Returns the result, and checks that nothing outside the output was written."""
    output = GuardedOutput(m, n, columns)
    assert dg.gemm_fp8(a, b, out=output.tensor) is output.tensor
    output.assert_intact()
    return output.tensor


def in_nan(matrix: torch.Tensor, before: int, after: int, columns: int) -> torch.Tensor:
    """The FP8 matrix as a view of storage with NaN before and after the matrix and its rows."""
    rows, k = matrix.shape
    storage = torch.full(((before + rows + after) * (k + columns) + 16,), NAN, dtype=torch.uint8)
    first = -storage.data_ptr() % 16
    padded = storage[first:].as_strided((before + rows + after, k + columns), (k + columns, 1))
    padded[before : before + rows, :k] = matrix.view(torch.uint8)
    return padded[before : before + rows, :k].view(FP8)


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_shapes_of_models(m, n, k):
    a, b = dg.per_token_cast_to_fp8(activations(m, k)), quantised_weights(n, k)
    accuracy = assert_accurate(run(a, b, m, n), gemm_reference(a, b))
    assert accuracy.max_tile_diff < 1e-5


@each_dense_tile
def test_every_configuration_with_tails(use_config, config):
    """Several tiles in each direction, the last ones incomplete; numbers of columns with and without wide stores."""
    use_config(config)
    k = 128 * 3 + (48 if config.kind.k_tail else 0)
    m = 2 * config.block_m - 5
    for n in (2 * config.block_n - 8, config.block_n + 13):
        (a_data, sfa), (b_data, sfb) = gemm_problem(m, n, k)
        a, b = (in_nan(a_data, 1, 300, 32), sfa), (in_nan(b_data, 2, 300, 16), sfb)
        assert_accurate(run(a, b, m, n), gemm_reference(a, b))


@each_dense_tile
def test_every_number_of_k_blocks(use_config, config):
    """Few K-blocks, so that the pipeline is never filled or filled once, and odd and even numbers of K-blocks."""
    use_config(config)
    for k in [16, 144, 272, 528] if config.kind.k_tail else [128, 256, 384, 512, 640]:
        a, b = gemm_problem(17, 40, k)
        assert_accurate(run(a, b, 17, 40), gemm_reference(a, b))


@each_dense_tile
def test_no_races_and_no_missing_waits(use_config, monkeypatch, config):
    """Runs under the simulator's sanitizer, with another order of the waves each time."""
    if not hip.runtime().is_simulated:
        pytest.skip("needs the simulator")
    use_config(config)
    monkeypatch.setenv("DG_SIM_SANITIZE", "2")
    m, n, k = config.block_m + 3, config.block_n + 5, 128 * 5 - (16 if config.kind.k_tail else 0)
    a, b = gemm_problem(m, n, k)
    reference = gemm_reference(a, b)
    for seed in (1, 2):
        monkeypatch.setenv("DG_SIM_SEED", str(seed))
        if seed == 2:
            dg.set_num_sms(2)  # each workgroup computes several tiles
        assert_accurate(run(a, b, m, n), reference)


SCALES_IN_LDS = [config for config in ALL if config.kind.k_tail and has_row_scales_in_lds(config)]
# Those that other tests of the default run compile, and one of several waves that don't deal K.
QUICK_IN_LDS = [config for config in SCALES_IN_LDS if config in QUICK_ALL]
QUICK_IN_LDS.append(max((config for config in SCALES_IN_LDS if config.waves_k == 1), key=attrgetter("block_n")))
QUICK_IN_LDS_BY_ROWS = list(zip(QUICK_IN_LDS, itertools.cycle((True, False)), strict=False))


@pytest.mark.parametrize(
    ("config", "by_rows"),
    these(itertools.product(SCALES_IN_LDS, (True, False)), QUICK_IN_LDS_BY_ROWS),
    ids=lambda value: ("columns", "rows")[value] if isinstance(value, bool) else config_id(value),
)
def test_scales_of_many_k_blocks(use_config, monkeypatch, config, by_rows):
    """More K-blocks than LDS has scales of at once, under the sanitizer."""
    if hip.runtime().is_simulated:
        monkeypatch.setenv("DG_SIM_SANITIZE", "1")
    use_config(config)
    m, n, k = config.block_m + 9, 16, 128 * 37 * config.waves_k + 16
    (a, sfa), b = gemm_problem(m, n, k)
    scales = sfa.contiguous() if by_rows else sfa.T.contiguous().T
    assert_accurate(run((a, scales), b, m, n), gemm_reference((a, sfa), b))


PING_PONG = [
    pytest.param(config, marks=pytest.mark.slow if number % 2 else ())
    for number, config in enumerate(config for config in ALL if config.schedule == "pingpong")
]


@pytest.mark.parametrize("config", PING_PONG, ids=config_id)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_tiles_that_overlap(use_config, monkeypatch, config, seed):
    """Two workgroups with two or three tiles each give the same bits as one workgroup for each tile, for any K."""
    use_config(config)
    monkeypatch.setenv("DG_SIM_SEED", str(seed))
    m, n = 2 * config.block_m + 5, 2 * config.block_n - 8
    for k_blocks in (1, 2, 3, 4, 7) if seed else (1, 3, 4):
        a, b = gemm_problem(m, n, 128 * k_blocks - (16 if config.kind.k_tail else 0), seed)
        dg.set_num_sms(0)
        expected = run(a, b, m, n)
        assert_accurate(expected, gemm_reference(a, b))
        dg.set_num_sms(2)
        assert torch.equal(run(a, b, m, n).view(torch.int16), expected.view(torch.int16))


@pytest.mark.parametrize("config", PING_PONG, ids=config_id)
def test_tiles_that_overlap_hold_what_is_no_number(use_config, config):
    """NaNs and infinities in tiles between others give the same results as without overlap."""
    dg.set_num_sms(1)
    m, n = 2 * config.block_m + 5, config.block_n + 24
    a, b = gemm_problem(m, n, 256)
    infinite, first_nan, second_nan, both = 1, config.block_m + 3, config.block_m + 4, m - 1
    a[1][infinite, 1] = torch.inf
    a[1].view(torch.int32)[first_nan, 0] = 0x7FFFFFFF
    a[1].view(torch.int32)[second_nan, 1] = -1
    a[1][both] = torch.tensor([torch.inf, -torch.inf])
    use_config(GemmConfig(64, 128, 2, 4, num_stages=2, kind=config.kind))
    expected = run(a, b, m, n)
    use_config(config)
    result = run(a, b, m, n)
    assert expected[[first_nan, second_nan]].isnan().all()
    assert expected[infinite].isinf().all()
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result.nan_to_num(), expected.nan_to_num())


def test_configurations_agree_bit_by_bit():
    """Configurations that split K alike sum in the same order, whatever their tile and schedule."""
    a, b = gemm_problem(130, 136, 512)
    results = collections.defaultdict(list)
    for config in QUICK_ALL:
        with forced(config):
            results[config.waves_k].append(run(a, b, 130, 136).view(torch.int16))
    assert len(results[1]) > 1
    assert all(torch.equal(of_waves[0], result) for of_waves in results.values() for result in of_waves)


@pytest.mark.parametrize("columns", [8, 5], ids=["vectors", "elements"])
@pytest.mark.parametrize("config", [ALL[0], PING_PONG[0]], ids=config_id)
def test_ties_round_to_even(use_config, config, columns):
    """The sums are integers from 256 to 383; every other one lies halfway between two bf16 numbers."""
    use_config(config)
    m, n = config.block_m + 3, config.block_n + columns
    a, b = torch.zeros(m, 128), torch.zeros(n, 128)
    a[:, :9] = torch.tensor([240, 16, *(2**bit for bit in range(7))]).float()
    a[1::2] *= -1
    b[:, :2] = 1
    b[:, 2:9] = torch.arange(n)[:, None] >> torch.arange(7) & 1
    result = run((a.to(FP8), torch.ones(m, 1)), (b.to(FP8), torch.ones(-(-n // 128), 1)), m, n)
    assert torch.equal(result, (a @ b.T).bfloat16())


def test_runs_repeat_bit_by_bit():
    a, b = gemm_problem(77, 264, 896)
    assert torch.equal(run(a, b, 77, 264).view(torch.int16), run(a, b, 77, 264).view(torch.int16))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 12, 127, 128, 129, 130, 257])
def test_any_n(n):
    a, b = gemm_problem(9, n, 256)
    for columns in (1, 4, 8):
        assert_accurate(run(a, b, 9, n, columns), gemm_reference(a, b))


@pytest.mark.parametrize(("m", "n"), [(9, 13), (300, 140)])
def test_what_is_between_rows_of_the_output_stays(m, n):
    """Rows begin at multiples of the bytes that a lane stores at once, but end in between."""
    a, b = gemm_problem(m, n, 256)
    memory = torch.full((m, n // 16 * 16 + 32), 7.0).bfloat16()
    dg.fp8_gemm_nt(a, b, memory[:, :n])
    assert (memory[:, n:] == 7).all()
    assert_accurate(memory[:, :n], gemm_reference(a, b))


@settings(max_examples=25, deadline=None)
@given(
    m=st.integers(1, 150),
    n=st.integers(1, 300),
    k=st.integers(1, 40).map(lambda chunks: 16 * chunks),
    pad_a=st.integers(0, 3).map(lambda chunks: 16 * chunks),
    pad_b=st.integers(0, 3).map(lambda chunks: 16 * chunks),
    columns=st.integers(0, 9),
    sfa_layout=st.sampled_from(["row-major", "column-major", "padded columns"]),
    sfb_layout=st.sampled_from(["row-major", "column-major", "padded columns"]),
    config=st.sampled_from(QUICK_ALL),
)
def test_any_shape_and_strides(m, n, k, pad_a, pad_b, columns, sfa_layout, sfb_layout, config):
    def arranged(scales: torch.Tensor, layout: str) -> torch.Tensor:
        rows, k_blocks = scales.shape
        if layout == "row-major":
            return scales
        pitch = rows if layout == "column-major" else -(-rows // 4) * 4 + 4
        return torch.full((k_blocks * pitch,), torch.nan).as_strided((rows, k_blocks), (1, pitch)).copy_(scales)

    (a_data, sfa), (b_data, sfb) = gemm_problem(m, n, k, seed=m + n + k)
    a = in_nan(a_data, 0, 1, pad_a), arranged(sfa, sfa_layout)
    b = in_nan(b_data, 0, 1, pad_b), arranged(sfb, sfb_layout)
    with forced(config) if config.kind.k_tail or k % 128 == 0 else contextlib.nullcontext():
        assert_accurate(run(a, b, m, n, columns), gemm_reference(a, b))


def test_expanded_scales():
    (a_data, _), (b_data, sfb) = gemm_problem(20, 264, 384)
    a = a_data, torch.tensor([[0.5]]).expand(20, 3)
    b = b_data, sfb[:1, :1].expand(3, 3)
    assert_accurate(run(a, b, 20, 264), gemm_reference(a, b))


def test_nan_stays_in_its_row_and_column():
    a, b = gemm_problem(40, 72, 400)
    a[0].view(torch.uint8)[5, 399] = NAN
    b[0].view(torch.uint8)[70, 0] = NAN
    a[1][30, 1] = torch.nan
    result = run(a, b, 40, 72)
    expected = torch.zeros(40, 72, dtype=torch.bool)
    expected[[5, 30]] = True
    expected[:, 70] = True
    assert torch.equal(result.isnan(), expected)
    assert measure(result, gemm_reference(a, b)).failures == 0


@pytest.mark.parametrize("bits", [0x7FFFFFFF, -1, 0x7F800001])
@pytest.mark.parametrize("m", [8, 300])
def test_any_nan_stays_one(m, bits):
    """Rounding a NaN to bf16 must not carry into the sign bit."""
    a, b = gemm_problem(m, 128, 256)
    a[1].view(torch.int32)[3, 1] = bits
    result = run(a, b, m, 128)
    assert result[3].isnan().all()
    assert not torch.cat([result[:3], result[4:]]).isnan().any()


@pytest.mark.parametrize("m", [8, 300])
def test_ties_are_rounded_to_even(m):
    """Sums of a single product that lie halfway between two bf16 numbers."""
    a, b = gemm_problem(m, 128, 256)
    a[0].view(torch.uint8).zero_()
    a[0][:, 0] = b[0][:, 0] = 1
    b[1].fill_(1)
    exact = 1 + (2 * torch.arange(m) % 128 + 1) * 2.0**-8
    a[1][:, 0] = exact
    assert torch.equal(run(a, b, m, 128), exact.bfloat16()[:, None].expand(m, 128))


def test_scales_of_zero_and_of_extreme_size():
    a, b = gemm_problem(16, 256, 512)
    a[1][0] = 0
    a[1][1] *= 2.0**-100
    a[1][2] *= 2.0**100
    b[1][1] *= 2.0**-40
    result = run(a, b, 16, 256)
    assert (result[0] == 0).all()
    assert_accurate(result, gemm_reference(a, b))


def test_empty_sums_are_zero():
    a, b = gemm_problem(10, 20, 0)
    assert (run(a, b, 10, 20) == 0).all()


@pytest.mark.parametrize(("m", "n"), [(0, 64), (64, 0), (0, 0)])
def test_empty_outputs(m, n):
    a, b = gemm_problem(m, n, 128)
    run(a, b, m, n)
    assert dg.gemm_fp8(a, b).shape == (m, n)


def test_deep_gemm_name_writes_the_same_bits():
    a, b = gemm_problem(33, 130, 272)
    output = GuardedOutput(33, 130)
    assert dg.fp8_gemm_nt(a, b, output.tensor, recipe=(1, 128, 128)) is None
    output.assert_intact()
    assert torch.equal(output.tensor.view(torch.int16), run(a, b, 33, 130).view(torch.int16))


@pytest.mark.parametrize("which", ["a", "b", "out", "sfa", "sfb"])
def test_tensors_past_4_gib(which):
    """Rows (for scales columns) are so far apart that the last offsets exceed 32 bits."""
    m, n, k = 600, 600, 384
    (a_data, sfa), (b_data, sfb) = gemm_problem(m, n, k)
    row = 2**23
    if which in ("a", "b"):
        data = {"a": a_data, "b": b_data}[which]
        far = reserved(m * row).as_strided(data.shape, (row, 1))
        far.copy_(data.view(torch.uint8))
        a_data, b_data = (far.view(FP8), b_data) if which == "a" else (a_data, far.view(FP8))
    if which in ("sfa", "sfb"):
        scales = {"sfa": sfa, "sfb": sfb}[which]
        far = reserved(3 * 2**31).view(torch.float32).as_strided(scales.shape, (1, 2**29))
        far.copy_(scales)
        sfa, sfb = (far, sfb) if which == "sfa" else (sfa, far)
    out = torch.empty(m, n, dtype=torch.bfloat16)
    if which == "out":
        out = reserved(m * row).view(torch.bfloat16).as_strided((m, n), (row // 2, 1))
    a, b = (a_data, sfa), (b_data, sfb)
    dg.gemm_fp8(a, b, out=out)
    assert_accurate(out, gemm_reference(a, b))


def test_scales_of_two_parts_past_4_gib():
    """Rows of scales are so far apart that the second part's first one is past 4 GiB."""
    n, k, row = 600, 256, 2**21
    a, data = quantised_activations(20, k), weights(2 * n, k).to(FP8)
    scales = reserved(4 * 2 * n * row).view(torch.float32).as_strided((2 * n, 2), (row, 1))
    scales.copy_(torch.rand(2 * n, 2) + 0.5)
    d = torch.full((20, n), torch.nan)
    dg.fp8_gemm_nt(a, (data, scales), d, recipe=(1, 1, 128), epilogue="silu_and_mul")
    assert_accurate(d, gemm_reference(a, (data, scales), recipe=(1, 1, 128), epilogue="silu_and_mul"))


def test_weights_mapped_from_a_file_that_can_not_be_written(tmp_path):
    a, (data, scales) = gemm_problem(9, 48, 256)
    path = tmp_path / "weight"
    path.write_bytes(bytes(data.untyped_storage()))
    with path.open("rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of read-only memory
        mapped = torch.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), dtype=torch.uint8)
        b = mapped.view(FP8).view_as(data), scales
    assert_accurate(run(a, b, 9, 48), gemm_reference(a, (data, scales)))
