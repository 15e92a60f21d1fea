"""Grouped GEMM: every group against the fp64 oracle, and no writes to other memory."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import pytest
import torch
from helpers.default_run import these
from helpers.gemm_configs import GROUPED, SIGNALS, config_id, each_tile, quick
from helpers.host_memory import reserved
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm import simulator
from deep_gemm_rocm.launch import planning
from deep_gemm_rocm.runtime import hip
from deep_gemm_rocm.testing import GuardedOutput, activations, assert_accurate, gemm_reference, grouped_weights, weights

FP8 = torch.float8_e4m3fnuz
ALIGNMENTS = (16, 32, 64, 128)
NAN = 0x80


@dataclasses.dataclass
class Contiguous:
    """Consecutive groups of the given sizes, each at a multiple of the alignment. Padding rows of a are NaN."""

    sizes: list[int]
    alignment: int
    n: int
    k: int
    tail: int = 0  # rows after the last group

    def __post_init__(self) -> None:
        padded = [-(-size // self.alignment) * self.alignment for size in self.sizes]
        self.starts = [0, *itertools.accumulate(padded)]
        m = self.starts.pop() + self.tail
        self.ids = torch.full((m,), -1, dtype=torch.int32)
        self.ends = torch.tensor([s + size for s, size in zip(self.starts, self.sizes, strict=True)]).int()
        for group, (start, end) in enumerate(zip(self.starts, self.ends.tolist(), strict=True)):
            self.ids[start:end] = group
        data, scales = dg.per_token_cast_to_fp8(activations(m, self.k))
        data.view(torch.uint8)[self.ids < 0] = NAN
        scales[self.ids < 0] = torch.nan
        self.a = data, scales
        self.b = grouped_weights(len(self.sizes), self.n, self.k)

    def run(self, *, psum: bool = False, zero_padding: bool = True) -> torch.Tensor:
        """Returns the result after checking every row, zeros in padding, and that nothing else was written."""
        m = len(self.ids)
        output = GuardedOutput(m, self.n)
        dg.set_mk_alignment_for_contiguous_layout(self.alignment)
        result = dg.m_grouped_fp8_gemm_nt_contiguous(
            self.a,
            self.b,
            output.tensor,
            self.ends if psum else self.ids,
            use_psum_layout=psum,
            ensure_zero_padding=zero_padding,
        )
        assert result is None
        padding = self.ids < 0
        if psum:
            padding[m - self.tail :] = False
            padding &= zero_padding
        output.assert_intact((self.ids >= 0) | padding)
        assert (output.tensor[padding] == 0).all()
        for group, (start, end) in enumerate(zip(self.starts, self.ends.tolist(), strict=True)):
            check(output.tensor[start:end], [t[start:end] for t in self.a], [t[group] for t in self.b])
        return output.tensor


def check(result, a, b) -> None:
    if len(result):
        assert_accurate(result, gemm_reference(a, b))


@dataclasses.dataclass
class Masked:
    """Groups with room for ``max_m`` rows each. Unused rows of a are NaN."""

    sizes: list[int]
    max_m: int
    n: int
    k: int

    def __post_init__(self) -> None:
        groups = len(self.sizes)
        data, scales = dg.per_token_cast_to_fp8(activations(groups * self.max_m, self.k))
        self.masked_m = torch.tensor(self.sizes, dtype=torch.int32)
        self.used = torch.arange(self.max_m).expand(groups, -1) < self.masked_m[:, None]
        data.view(torch.uint8)[~self.used.flatten()] = NAN
        scales[~self.used.flatten()] = torch.nan
        self.a = tuple(t.unflatten(0, (groups, self.max_m)) for t in (data, scales))
        self.b = grouped_weights(groups, self.n, self.k)

    def run(self, expected_m: int = 1, **overlap) -> torch.Tensor:
        """Returns the result after checking every row, every counter if there are some, and other memory."""
        groups = len(self.sizes)
        output = GuardedOutput(groups * self.max_m, self.n)
        d = output.tensor.unflatten(0, (groups, self.max_m))
        returned = dg.m_grouped_fp8_gemm_nt_masked(self.a, self.b, d, self.masked_m, expected_m, **overlap)
        if overlap.get("enable_overlap"):
            assert torch.equal(overlap["signal"], self.counters(*returned, like=overlap["signal"]))
        else:
            assert returned is None
        output.assert_intact(self.used.flatten())
        for group, rows in enumerate(self.used.sum(1).tolist()):
            check(d[group, :rows], [t[group, :rows] for t in self.a], [t[group] for t in self.b])
        return d

    def counters(self, block_m: int, threshold: int, like: torch.Tensor) -> torch.Tensor:
        """The counts a consumer waits for: the threshold for each block of rows of which some are computed, else 0."""
        assert block_m >= 64
        assert threshold > 0
        blocks = -(-self.max_m // block_m)
        expected = torch.zeros_like(like)
        for group, rows in enumerate(self.used.sum(1).tolist()):
            expected[group * blocks :][: -(-rows // block_m)] = threshold
        return expected

    def overlap(self) -> dict:
        return {"enable_overlap": True, "signal": torch.zeros(len(self.sizes) * -(-self.max_m // 64)).int()}


SIZES = {
    "one group": [70],
    "one row": [1],
    "full and ragged": [128, 129, 3],
    "empty groups": [0, 0, 37, 0, 64, 0],
    "all empty": [0, 0, 0],
}


@pytest.mark.parametrize(
    "alignment", [pytest.param(size, marks=pytest.mark.slow if size in (32, 64) else ()) for size in ALIGNMENTS]
)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("psum", [False, True], ids=["ids", "psum"])
def test_contiguous(psum, sizes, alignment):
    problem = Contiguous(sizes, alignment, n=136, k=272, tail=150)
    problem.run(psum=psum)
    problem.run(psum=psum, zero_padding=False)


@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize("psum", [False, True], ids=["ids", "psum"])
def test_groups_around_the_alignment(psum, alignment):
    sizes = [alignment - 1, alignment + 1, alignment, 1]
    Contiguous(sizes, alignment, n=40, k=128).run(psum=psum)
    Contiguous(sizes[::-1], alignment, n=40, k=144, tail=1).run(psum=psum)


# Waves of small tiles scan 512 groups at a time, eight in each lane, others 64. Some of these, also the first and the
# last, have several rows of tiles.
MANY = [{63: 40, 64: 35, 100: 33, 511: 20, 512: 40, 529: 20}.get(group, group % 4) for group in range(530)]


@pytest.mark.parametrize("psum", [False, True], ids=["ids", "psum"])
def test_contiguous_with_many_groups(psum):
    """Many groups and several columns of tiles, with workgroups that compute several tiles."""
    dg.set_num_sms(40)
    Contiguous(MANY, 16, n=264, k=128, tail=20).run(psum=psum)


@pytest.mark.parametrize("psum", [False, True], ids=["ids", "psum"])
def test_contiguous_without_rows(psum):
    Contiguous([0, 0], 128, n=136, k=272).run(psum=psum)


@pytest.mark.parametrize("sizes", [[0, 0, 0], [150, 150, 150], [0, 150, 1], [37, 128, 129], [5]], ids=str)
@pytest.mark.parametrize("expected_m", [0, 20, 150])
def test_masked(sizes, expected_m):
    Masked(sizes, 150, n=136, k=272).run(expected_m)


def test_masked_with_many_groups():
    dg.set_num_sms(40)
    Masked(MANY, 40, n=264, k=128).run(expected_m=2)


@each_tile(GROUPED)
def test_every_configuration(use_config, config):
    """Tails in all dimensions, more tiles than workgroups, and the same bits in a second run."""
    use_config(config)
    n, k = config.block_n + 13, 400 if config.kind.k_tail else 384
    sizes = [config.block_m + 5, 0, 3, config.block_m]
    if config.kind.grouping == "masked":
        problem = Masked(sizes, config.block_m + 7, n, k)
        run = problem.run
    else:
        problem = Contiguous(sizes, 128, n, k, tail=9)

        def run():
            return problem.run(psum=config.kind.grouping == "psum")

    first = run()
    dg.set_num_sms(3)
    assert torch.equal(first.view(torch.int16), run().view(torch.int16))


PING_PONG = [config for config in GROUPED if config.schedule == "pingpong"]
QUICK_PING_PONG = [config for config in quick(GROUPED) if config.schedule == "pingpong"]


@pytest.mark.parametrize(
    "config",
    these(dict.fromkeys((*quick(PING_PONG), *QUICK_PING_PONG)), QUICK_PING_PONG),
    ids=config_id,
)
def test_aligned_output_is_stored_before_all_is_complete(use_config, config):
    """Workgroups go from full tiles to tiles with padding, and back."""
    use_config(config)
    sizes, n = [2 * config.block_m, config.block_m // 2, 0, config.block_m + 1], config.block_n + 8
    dg.set_num_sms(2)
    if config.kind.grouping == "masked":
        Masked(sizes, 2 * config.block_m, n, 384).run()
    else:
        problem = Contiguous(sizes, 128, n, 384, tail=5)
        for zero_padding in (True, False):
            problem.run(psum=config.kind.grouping == "psum", zero_padding=zero_padding)


TALLER = [config for config in GROUPED if config.taller]


@pytest.mark.parametrize("config", TALLER, ids=config_id)
def test_tiles_are_taller_where_fewer_rounds_take_less_time(use_config, config):
    """The device chooses two tiles of 128 rows for 150 rows and two workgroups, but one of 192 for one workgroup."""
    use_config(config)
    results, products = [], []
    for num_sms in (2, 1):
        dg.set_num_sms(num_sms)
        torch.manual_seed(0)
        problem = Masked([150, 0], 200, n=128, k=256)
        if not hip.runtime().is_simulated:
            results.append(problem.run())
            continue
        with simulator.profile() as prof:
            results.append(problem.run())
        (kernel,) = prof.kernels
        products.append(sum(line.executed for line in kernel.listing if line.text.startswith("v_mfma")))
    assert torch.equal(results[0].view(torch.int16), results[1].view(torch.int16))
    mfma_of_row = 2 * 128 // 16 * 4 // 16  # for two K-blocks and 128 columns
    assert products == ([2 * 128 * mfma_of_row, 192 * mfma_of_row] if hip.runtime().is_simulated else [])


@each_tile(GROUPED)
def test_no_races_and_no_missing_waits(use_config, monkeypatch, config):
    """Runs under the simulator's sanitizer, with workgroups that compute several tiles."""
    if not hip.runtime().is_simulated:
        pytest.skip("needs the simulator")
    use_config(config)
    monkeypatch.setenv("DG_SIM_SANITIZE", "2")
    sizes = [config.block_m + 3, 0, 2]
    for seed in range(2):
        dg.set_num_sms(2 + seed)  # with 2 CUs, masked groups get the taller tiles
        monkeypatch.setenv("DG_SIM_SEED", str(seed))
        if config.kind.grouping == "masked":
            Masked(sizes, config.block_m + 3, config.block_n + 5, 384).run()
        else:
            Contiguous(sizes, 128, config.block_n + 5, 384).run(psum=config.kind.grouping == "psum")


@each_tile(SIGNALS)
def test_finished_tiles_are_counted(use_config, monkeypatch, config):
    """With more tiles than workgroups, the same bits as without counters, under the sanitizer."""
    use_config(config)
    monkeypatch.setenv("DG_SIM_SANITIZE", "2")
    dg.set_num_sms(3)
    sizes = [config.block_m + 5, 0, 3, config.block_m, 2 * config.block_m + 70]
    problem = Masked(sizes, 2 * config.block_m + 80, config.block_n + 13, 400 if config.kind.k_tail else 384)
    problem.run(**problem.overlap())


@pytest.mark.parametrize("sizes", [[0, 0, 0], [150, 150, 150], [0, 150, 1], [37, 128, 129], [5]], ids=str)
@pytest.mark.parametrize("expected_m", [0, 20, 150])
def test_finished_tiles_of_any_sizes(sizes, expected_m):
    problem = Masked(sizes, 150, n=136, k=272)
    plain = problem.run(expected_m)
    for _ in range(2):  # the second call repeats a remembered one
        counted = problem.run(expected_m, **problem.overlap())
        assert torch.equal(counted.view(torch.int16), plain.view(torch.int16))


def test_counters_are_added_to():
    """Other counters than those of the tensor's groups aren't touched, and each call adds again."""
    problem = Masked([70, 0, 64], 128, n=64, k=144)
    d = torch.empty(3, 128, 64, dtype=torch.bfloat16)
    signal = torch.arange(9, dtype=torch.int32)
    counts = {"enable_overlap": True, "signal": signal}
    block_m, threshold = dg.m_grouped_fp8_gemm_nt_masked(problem.a, problem.b, d, problem.masked_m, 20, **counts)
    assert block_m == 64
    assert signal.tolist() == [threshold, 1 + threshold, 2, 3, 4 + threshold, 5, 6, 7, 8]
    dg.fp8_m_grouped_gemm_nt_masked(problem.a, problem.b, d, problem.masked_m, 20, **counts)
    assert signal.tolist() == [2 * threshold, 1 + 2 * threshold, 2, 3, 4 + 2 * threshold, 5, 6, 7, 8]
    nothing = {"enable_overlap": True, "signal": torch.empty(0, dtype=torch.int32)}
    a, d = tuple(t[:, :0] for t in problem.a), d[:, :0]
    assert dg.m_grouped_fp8_gemm_nt_masked(a, problem.b, d, problem.masked_m, 1, **nothing) == (64, 0)


@pytest.mark.parametrize(("most", "columns"), [(None, 256), (256, 256), (255, 128), (128, 128), (64, 32)])
def test_tiles_of_no_more_columns_than_allowed(most, columns):
    groups, m, n, k = 32, 4096, 7168, 2048

    def meta(*shape, dtype=FP8):
        return torch.empty(shape, dtype=dtype, device="meta")

    a = meta(groups, m, k), meta(groups, m, k // 128, dtype=torch.float32)
    b = meta(groups, n, k), meta(groups, n // 128, k // 128, dtype=torch.float32)
    with planning.planning() as plan:
        d, counts = meta(groups, m, n, dtype=torch.bfloat16), meta(groups, dtype=torch.int32)
        dg.m_grouped_fp8_gemm_nt_masked(a, b, d, counts, m, max_block_n=most)
    (request,) = plan.values()
    assert request.values["block_n"] == columns


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"signal": None}, "signal must be a torch.Tensor with enable_overlap, got None"),
        (
            {"signal": torch.zeros(5).int()},
            r"signal must have shape \(6,\) or more, a number for each group and 64 rows",
        ),
        ({"signal": torch.zeros(2, 3).int()}, "signal must have shape"),
        ({"signal": torch.zeros(6)}, "signal must be int32"),
        ({"signal": torch.zeros(12).int()[::2]}, "signal must be contiguous"),
        ({"enable_overlap": 1}, "enable_overlap must be a bool"),
        ({"max_block_n": 31}, "max_block_n must be at least 32, the fewest columns of a tile, got 31"),
        ({"max_block_n": 0}, "max_block_n must be at least 1, got 0"),
        ({"max_block_n": 128.0}, "max_block_n must be an int"),
    ],
)
def test_bad_arguments_of_overlap(arguments, words):
    problem = Masked([70, 3], 150, n=64, k=128)
    d = torch.zeros(2, 150, 64, dtype=torch.bfloat16)
    given = problem.overlap() | arguments
    with pytest.raises((TypeError, ValueError), match=words):
        dg.m_grouped_fp8_gemm_nt_masked(problem.a, problem.b, d, problem.masked_m, 100, **given)
    assert not d.any()


def test_counters_share_no_memory_with_operands():
    problem = Masked([70, 3], 150, n=64, k=128)
    d = torch.zeros(2, 150, 64, dtype=torch.bfloat16)
    counts = {"enable_overlap": True, "signal": d.flatten()[:12].view(torch.int32)}
    with pytest.raises(ValueError, match="must not share memory with"):
        dg.m_grouped_fp8_gemm_nt_masked(problem.a, problem.b, d, problem.masked_m, 100, **counts)


def test_same_bits_as_dense():
    """Therefore a row's result depends neither on its neighbours nor on the layout."""
    problem = Contiguous([70, 130], 64, n=136, k=400)
    expected = [
        dg.gemm_fp8(
            tuple(t[start:end] for t in problem.a),
            tuple(t[group] for t in problem.b),
        )
        for group, (start, end) in enumerate(zip(problem.starts, problem.ends.tolist(), strict=True))
    ]
    for psum in (False, True):
        result = problem.run(psum=psum)[problem.ids >= 0]
        assert torch.equal(result.view(torch.int16), torch.cat(expected).view(torch.int16))


def each_contiguous_tile(test):
    tiles = [config for config in GROUPED if config.kind.grouping == "contiguous"]
    # The default run has one tile of each schedule that spans several waves' rows, and those of other tests.
    quick_ones = [config for config in tiles if config.block_m != 64 or config.block_n == 256]
    return pytest.mark.parametrize("config", these(tiles, quick_ones), ids=config_id)(test)


def check_contiguous(problem: Contiguous, groups: Sequence[int]) -> torch.Tensor:
    """Checks the padding, and the rows of these groups."""
    d = torch.full((len(problem.ids), problem.n), 7.0).bfloat16()
    dg.m_grouped_fp8_gemm_nt_contiguous(problem.a, problem.b, d, problem.ids)
    assert (d[problem.ids < 0] == 0).all()
    for group in groups:
        rows = problem.ids == group
        a = problem.a[0].view(torch.uint8)[rows].view(problem.a[0].dtype), problem.a[1][rows]
        check(d[rows], a, [t[group] for t in problem.b])
    return d


@each_contiguous_tile
def test_padding_between_rows_of_a_group(use_config, config):
    use_config(config)
    problem = Contiguous([100, 40], 128, n=40, k=256)
    problem.ids[[0, 17, 64, 140]] = -1
    check_contiguous(problem, [0, 1])


@each_contiguous_tile
def test_padding_between_rows_of_no_group(use_config, config):
    use_config(config)
    problem = Contiguous([100, 40], 128, n=40, k=256)
    problem.ids[:100] = 2
    problem.ids[[0, 17, 64]] = -1
    d = check_contiguous(problem, [1])
    assert d[problem.ids == 2].isnan().all()


def test_any_strides():
    """Scales with vLLM's strides, groups interleaved in the output, and expanded weights."""
    problem = Masked([60, 7, 33], 70, n=72, k=400)
    groups, rows, k_blocks = problem.a[1].shape
    sfa = torch.full((groups * rows * k_blocks,), torch.nan)
    sfa = sfa.as_strided((groups, rows, k_blocks), (rows * k_blocks, 1, rows)).copy_(problem.a[1])
    b = tuple(t[:1].expand(groups, -1, -1) for t in problem.b)
    output = GuardedOutput(rows, groups * 72)
    d = output.tensor.unflatten(1, (groups, 72)).transpose(0, 1)
    dg.m_grouped_fp8_gemm_nt_masked((problem.a[0], sfa), b, d, problem.masked_m, 10)
    output.assert_intact()
    for group, size in enumerate(problem.sizes):
        assert d[group, size:].isnan().all()
        check(d[group, :size], [t[group, :size] for t in problem.a], [t[0] for t in b])


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 90), min_size=1, max_size=6),
    alignment=st.sampled_from(ALIGNMENTS),
    n=st.integers(1, 200),
    k=st.integers(1, 30).map(lambda chunks: 16 * chunks),
    tail=st.integers(0, 40),
    kind=st.sampled_from(["ids", "psum", "masked"]),
    zero_padding=st.booleans(),
    expected_m=st.integers(0, 300),
)
def test_any_groups(sizes, alignment, n, k, tail, kind, zero_padding, expected_m):
    if kind == "masked":
        Masked(sizes, max(sizes) + tail + 1, n, k).run(expected_m)
    else:
        Contiguous(sizes, alignment, n, k, tail).run(psum=kind == "psum", zero_padding=zero_padding)


def test_empty_sums_are_zero():
    assert (Contiguous([3, 5], 16, n=20, k=0).run() == 0).all()
    assert (Masked([3, 3], 3, n=20, k=0).run() == 0).all()


@pytest.mark.parametrize("psum", [False, True], ids=["ids", "psum"])
def test_nonsense_in_a_layout_reaches_nothing_else(psum):
    m, n, k = 256, 40, 128
    a, b = dg.per_token_cast_to_fp8(activations(m, k)), grouped_weights(3, n, k)
    layout = torch.randint(-(2**31), 2**31, (3 if psum else m,), generator=torch.Generator().manual_seed(0)).int()
    output = GuardedOutput(m, n)
    dg.m_grouped_fp8_gemm_nt_contiguous(a, b, output.tensor, layout, use_psum_layout=psum)
    output.assert_intact()
    if not psum:
        assert output.tensor[layout > 2].isnan().all()
        assert (output.tensor[layout < 0] == 0).all()


@pytest.mark.parametrize("wrong", [3, 4, 2**31 - 1])
def test_rows_of_a_group_that_does_not_exist_are_nan(wrong):
    a, b = dg.per_token_cast_to_fp8(activations(256, 128)), grouped_weights(3, 40, 128)
    layout = torch.full((256,), wrong, dtype=torch.int32)
    layout[128:] = 2
    output = GuardedOutput(256, 40)
    dg.m_grouped_fp8_gemm_nt_contiguous(a, b, output.tensor, layout)
    output.assert_intact()
    assert output.tensor[:128].isnan().all()
    assert not output.tensor[128:].isnan().any()


def test_masked_m_is_limited_to_the_rows_there_are():
    problem = Masked([20, 0, 3], 20, n=40, k=128)
    problem.masked_m = torch.tensor([2**31 - 1, -5, 3], dtype=torch.int32)
    problem.run()


def test_a_misplaced_group_shows_as_nan(use_config):
    use_config(next(c for c in GROUPED if c.kind.grouping == "contiguous" and c.block_m == 128))
    problem = Contiguous([100, 40], 128, n=40, k=256)
    problem.ids[90:] = 1
    d = torch.zeros(256, 40).bfloat16()
    dg.m_grouped_fp8_gemm_nt_contiguous(problem.a, problem.b, d, problem.ids)
    assert d[90:128].isnan().all()
    assert not d[:90].isnan().any()


def test_other_names_write_the_same_bits():
    problem = Contiguous([20, 40], 128, n=40, k=256)
    expected = problem.run().view(torch.int16)
    for function, layout in (
        (dg.m_grouped_fp8_gemm_nt_contiguous, {"m_indices": problem.ids}),
        (dg.m_grouped_fp8_fp4_gemm_nt_contiguous, {"grouped_layout": problem.ids, "recipe": (1, 128, 128)}),
        (dg.m_grouped_gemm_fp8_fp8_bf16_nt_contiguous, {"m_indices": problem.ids}),
    ):
        d = torch.full(expected.shape, torch.nan).bfloat16()
        assert function(problem.a, problem.b, d, **layout) is None
        assert torch.equal(d.view(torch.int16), expected)

    masked = Masked([9, 20], 20, n=40, k=256)
    expected = masked.run()[masked.used].view(torch.int16)
    for function in (
        dg.fp8_m_grouped_gemm_nt_masked,
        dg.m_grouped_fp8_fp4_gemm_nt_masked,
        dg.m_grouped_gemm_fp8_fp8_bf16_nt_masked,
    ):
        d = torch.full((2, 20, 40), torch.nan).bfloat16()
        assert function(masked.a, masked.b, d, masked.masked_m, 10) is None
        assert torch.equal(d[masked.used].view(torch.int16), expected)


@pytest.mark.parametrize("psum", [False, True], ids=["ids", "psum"])
@pytest.mark.parametrize("which", ["a", "b", "d"])
def test_contiguous_past_4_gib(which, psum):
    """Rows, or groups of weights, are so far apart that the last offsets exceed 32 bits."""
    n, k = 40, 256
    problem = Contiguous([200, 37, 130], 128, n, k, tail=90)
    m = len(problem.ids)
    a, b = list(problem.a), list(problem.b)
    d = torch.zeros(m, n).bfloat16()
    if which == "d":
        d = reserved(m * 2**23).view(torch.bfloat16).as_strided((m, n), (2**22, 1))
    elif which == "a":
        a[0] = reserved(m * 2**23).as_strided((m, k), (2**23, 1)).copy_(a[0].view(torch.uint8)).view(FP8)
    else:
        far = reserved(3 * 3 * 2**30).as_strided((3, n, k), (3 * 2**30, k, 1))
        b[0] = far.copy_(b[0].view(torch.uint8)).view(FP8)
    dg.m_grouped_fp8_gemm_nt_contiguous(a, b, d, problem.ends if psum else problem.ids, use_psum_layout=psum)
    for group, (start, end) in enumerate(zip(problem.starts, problem.ends.tolist(), strict=True)):
        check(d[start:end], [t[start:end] for t in a], [t[group] for t in b])
    assert (d[problem.ids < 0] == 0).all()


@pytest.mark.parametrize("which", ["a", "b", "d"])
def test_groups_past_4_gib(which):
    problem = Masked([5, 20, 20], 20, n=40, k=256)
    group_bytes = 3 * 2**30
    groups, k = 3, 256
    memory = reserved(3 * group_bytes)
    a, b = list(problem.a), list(problem.b)
    d = torch.zeros(groups, 20, 40).bfloat16()
    if which == "d":
        d = memory.view(torch.bfloat16).as_strided((groups, 20, 40), (group_bytes // 2, 40, 1))
    else:
        pair = {"a": a, "b": b}[which]
        far = memory.as_strided(pair[0].shape, (group_bytes, k, 1)).copy_(pair[0].view(torch.uint8))
        pair[0] = far.view(FP8)
    dg.m_grouped_fp8_gemm_nt_masked(a, b, d, problem.masked_m, 20)
    for group, size in enumerate(problem.sizes):
        check(d[group, :size], [t[group, :size] for t in a], [t[group] for t in b])
        assert (d[group, size:] == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize(("n", "k"), [(4096, 2048), (1024, 7168)])
def test_shapes_of_models(n, k):
    Contiguous([21, 39, 30, 24], 32, n, k).run(psum=True)
    Contiguous([21, 39, 30, 24], 32, n, k).run()
    Masked([14, 26, 20, 0, 17, 23], 1024, n, k).run(expected_m=20)


@pytest.mark.parametrize("grouping", ["ids", "psum", "masked"])
def test_bf16(grouping):
    sizes, room, n, k = [37, 0, 64, 5], 70, 136, 200
    starts = [0, 128, 128, 256]
    groups = len(sizes)
    b = torch.stack([weights(n, k, group) for group in range(groups)])
    if grouping == "masked":
        output = GuardedOutput(groups * room, n, dtype=torch.float32)
        a = activations(groups * room, k).unflatten(0, (groups, room))
        d = output.tensor.unflatten(0, (groups, room))
        dg.m_grouped_bf16_gemm_nt_masked(a, b, d, torch.tensor(sizes).int(), 30)
        results = [(a[group, :size], d[group, :size]) for group, size in enumerate(sizes)]
        output.assert_intact(torch.cat([torch.arange(room) < size for size in sizes]))
    else:
        output = GuardedOutput(300, n)
        a, d = activations(300, k), output.tensor
        ends = torch.tensor([start + size for start, size in zip(starts, sizes, strict=True)]).int()
        ids = torch.full((300,), -1, dtype=torch.int32)
        for group, (start, end) in enumerate(zip(starts, ends.tolist(), strict=True)):
            ids[start:end] = group
        layout = {"grouped_layout": ends, "use_psum_layout": True} if grouping == "psum" else {"m_indices": ids}
        dg.m_grouped_bf16_gemm_nt_contiguous(a, b, d, **layout)
        results = [(a[s : s + size], d[s : s + size]) for s, size in zip(starts, sizes, strict=True)]
        output.assert_intact()
        assert (d[37:128] == 0).all()
    for group, (rows, result) in enumerate(results):
        check(result, rows, b[group])


@pytest.mark.parametrize("recipe", [(1, 1, 128), pytest.param((1, 1, None), marks=pytest.mark.slow)])
def test_other_recipes(recipe):
    sizes, n, k = [37, 130], 136, 272
    shape = (2, n, 3 if recipe[2] else 1)
    b = grouped_weights(2, n, k)[0], torch.rand(shape) + 0.5
    data, _ = dg.per_token_cast_to_fp8(activations(2 * 150, k))
    a = data.unflatten(0, (2, 150)), (torch.rand(300, shape[-1]) + 0.5).unflatten(0, (2, 150))
    output = GuardedOutput(300, n, dtype=torch.float32)
    d = output.tensor.unflatten(0, (2, 150))
    dg.m_grouped_fp8_gemm_nt_masked(a, b, d, torch.tensor(sizes).int(), 80, recipe=recipe)
    output.assert_intact(torch.cat([torch.arange(150) < size for size in sizes]))
    for group, rows in enumerate(sizes):
        operands = (tuple(t[group, :rows] for t in a), tuple(t[group] for t in b))
        assert_accurate(d[group, :rows], gemm_reference(*operands, recipe=recipe))


def test_weights_with_contiguous_columns():
    """The nn layout gives the same bits as nt."""
    problem = Contiguous([37, 130], 128, n=144, k=272)
    expected = problem.run()
    b = tuple(t.mT.contiguous() for t in problem.b)
    output = GuardedOutput(*expected.shape)
    dg.m_grouped_fp8_gemm_nn_contiguous(problem.a, b, output.tensor, problem.ids)
    output.assert_intact()
    assert torch.equal(output.tensor.view(torch.int16), expected.view(torch.int16))
