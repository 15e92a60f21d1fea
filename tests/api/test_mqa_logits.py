"""The sparse indexer's logits against an fp64 oracle, element by element."""

from __future__ import annotations

import bisect
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.api import mqa_logits
from deep_gemm_rocm.runtime import hip
from deep_gemm_rocm.testing import logits_reference

FP8 = torch.float8_e4m3fnuz
KINDS = [(heads, dim) for heads in (32, 64) for dim in (32, 64, 128)]
OTHERS = [(16, 128), (40, 32), (96, 128), (120, 64)]
QUICK = [(64, 128), (32, 32), (32, 128)]
kinds = pytest.mark.parametrize(
    ("heads", "dim"), [kind if kind in QUICK else pytest.param(*kind, marks=pytest.mark.slow) for kind in KINDS]
)


def random(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return (torch.randn(shape, generator=generator) * 8).to(FP8)


def assert_logits(actual, q, keys, scales, weights, seen) -> None:
    """Checks logits against the oracle. ``q`` is [S, H, D], ``actual`` and ``seen``, the visible keys, [S, keys]."""
    reference = logits_reference(q, keys, scales, weights)
    exact, bound = reference.exact, reference.error
    same = (actual.double() == exact) | (actual.isnan() & exact.isnan())
    wrong = seen & ~(same | ((actual.double() - exact).abs() <= bound))
    assert not wrong.any(), f"{int(wrong.sum())} logits are wrong, the first at {wrong.nonzero()[0].tolist()}"


class Problem:
    def __init__(self, queries: int, keys: int, heads: int = 64, dim: int = 128, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.q = random((queries, heads, dim), generator)
        self.keys = random((keys, dim), generator)
        self.scales = torch.rand(keys, generator=generator) + 0.1
        self.weights = torch.randn(queries, heads, generator=generator)
        ends = torch.randint(0, keys + 1, (2, queries), generator=generator).int()
        self.begin, self.end = ends.amin(dim=0), ends.amax(dim=0)

    @property
    def arguments(self) -> tuple:
        return self.q, (self.keys, self.scales), self.weights, self.begin, self.end

    def seen(self) -> torch.Tensor:
        key = torch.arange(len(self.keys))[None]
        return (key >= self.begin[:, None]) & (key < self.end[:, None])

    def run(self) -> torch.Tensor:
        logits = dg.fp8_mqa_logits(*self.arguments)
        seen = self.seen()
        assert (logits[~seen] == -torch.inf).all()
        assert_logits(logits, self.q, self.keys, self.scales, self.weights, seen)
        return logits


@kinds
def test_every_kind(heads, dim):
    Problem(70, 700, heads, dim).run()


@pytest.mark.parametrize(
    ("heads", "dim"), [(128, 128), *(pytest.param(*kind, marks=pytest.mark.slow) for kind in ((8, 64), *OTHERS))]
)
def test_other_numbers_of_heads(heads, dim):
    Problem(40, 300, heads, dim).run()
    Paged((100, 0, 65), 2, heads, dim).run()


@settings(max_examples=15, deadline=None)
@given(queries=st.integers(0, 140), keys=st.integers(0, 700), seed=st.integers(0, 99))
def test_any_shape(queries, keys, seed):
    Problem(queries, keys, 32, 32, seed).run()


def test_bf16_logits_are_the_fp32_ones_rounded():
    problem, paged = Problem(70, 300, 32, 32), Paged((300, 0, 65), 2, 32, 32)
    problem.q[3, 0, 0] = torch.nan
    for clean in (True, False):
        rounded = dg.fp8_mqa_logits(*problem.arguments, clean, logits_dtype=torch.bfloat16)
        seen = problem.seen() if not clean else torch.ones(70, 300, dtype=torch.bool)
        exact = dg.fp8_mqa_logits(*problem.arguments, clean).bfloat16()
        assert rounded.dtype == torch.bfloat16
        assert torch.equal(rounded[seen].nan_to_num(7.0), exact[seen].nan_to_num(7.0))
    meta = dg.get_paged_mqa_logits_metadata(paged.context_lens, 64, 5)
    arguments = (paged.q, paged.cache, paged.weights, paged.context_lens, paged.block_table, meta, 303, True)
    rounded = dg.fp8_paged_mqa_logits(*arguments, logits_dtype=torch.bfloat16)
    assert torch.equal(rounded, dg.fp8_paged_mqa_logits(*arguments).bfloat16())


def test_compressed_is_the_same_from_the_first_key_on():
    problem = Problem(70, 700, 32, 32)
    full = problem.run()
    columns = int((problem.end - problem.begin).max())
    for max_seqlen_k in (columns, columns // 2, columns + 50):
        compressed = dg.fp8_mqa_logits(*problem.arguments, clean_logits=False, max_seqlen_k=max_seqlen_k)
        assert compressed.shape == (70, max_seqlen_k)
        for row, begin, end in zip(range(70), problem.begin.tolist(), problem.end.tolist(), strict=True):
            count = min(end - begin, max_seqlen_k)
            assert torch.equal(compressed[row, :count], full[row, begin : begin + count])


def test_ranges_outside_of_the_keys_are_cut():
    problem = Problem(20, 100, 32, 32)
    problem.begin[:] = torch.arange(-10, 10)
    problem.end[:] = torch.arange(91, 111)
    problem.run()


def test_unseen_logits_of_a_result_that_is_not_cleaned_are_not_written(monkeypatch):
    problem = Problem(70, 700, 32, 32)
    new_empty = torch.Tensor.new_empty

    def filled(self, *shape, **options):
        return new_empty(self, *shape, **options).fill_(77.0)

    monkeypatch.setattr(torch.Tensor, "new_empty", filled)
    logits = dg.fp8_mqa_logits(*problem.arguments, clean_logits=False)
    assert (logits[~problem.seen()] == 77.0).all()


def test_nan_shows_in_its_query_and_its_key():
    problem = Problem(40, 100, 32, 32)
    problem.keys[17, 3] = torch.nan
    problem.q[5, 2, 1] = torch.nan
    problem.run()


def test_strided_inputs():
    problem = Problem(40, 100, 32, 64)
    plain = problem.run()
    problem.q = torch.cat([problem.q, problem.q], dim=1)[:, :32]
    problem.keys = torch.cat([problem.keys, problem.keys], dim=1)[:, :64]
    problem.weights = torch.cat([problem.weights, problem.weights], dim=1)[:, :32]
    assert torch.equal(problem.run(), plain)


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "dim"), [(32, 64), (32, 128), (64, 64), (64, 128)])
@pytest.mark.parametrize("keys", [8192, 65536])
@pytest.mark.parametrize("queries", [2048, 8192])
def test_shapes_of_deep_gemm(queries, keys, heads, dim):
    """Checks which keys every query sees, and the logits of some queries of each tile."""
    problem = Problem(queries, keys, heads, dim)
    logits = dg.fp8_mqa_logits(*problem.arguments)
    seen = problem.seen()
    assert torch.equal(logits.isfinite(), seen)
    assert (logits[~seen] == -torch.inf).all()
    for row in range(0, queries, 61):
        rows = slice(row, row + 1)
        operands = (problem.q[rows], problem.keys, problem.scales, problem.weights[rows])
        assert_logits(logits[rows], *operands, seen[rows])


class Paged:
    """Sequences scattered over a cache, which has NaNs in all other places."""

    def __init__(
        self,
        lens,
        next_n: int = 1,
        heads: int = 64,
        dim: int = 128,
        seed: int = 0,
        page: int = 64,
        shuffled: bool = False,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.page, self.shuffled = page, shuffled
        lens = [max(tokens, next_n) if tokens else 0 for tokens in lens]
        pages = [-(-tokens // page) for tokens in lens]
        used = sum(pages)
        self.context_lens = torch.tensor(lens, dtype=torch.int32)
        self.next_n = next_n
        self.q = random((len(lens), next_n, heads, dim), generator)
        self.weights = torch.randn(len(lens) * next_n, heads, generator=generator)
        self.cache = torch.full((used + 1, page, 1, dim + 4), 0x80, dtype=torch.uint8)
        self.block_table = torch.full((len(lens), max(pages, default=0) + 1), -1, dtype=torch.int32)
        order = torch.randperm(used + 1, generator=torch.Generator().manual_seed(seed + 1))[:used]
        self.keys, self.scales = [], []
        for sequence, tokens in enumerate(lens):
            own, order = order[: pages[sequence]], order[pages[sequence] :]
            self.block_table[sequence, : len(own)] = own.int()
            keys, scales = random((tokens, dim), generator), torch.rand(tokens, generator=generator)
            self.keys.append(keys)
            self.scales.append(scales)
            for number, first in zip(own.tolist(), range(0, tokens, page), strict=True):
                count = min(page, tokens - first)
                flat = self.cache[number].view(-1)
                flat[: count * dim] = keys[first : first + count].view(torch.uint8).flatten()
                flat[page * dim : page * dim + 4 * count] = scales[first : first + count].view(torch.uint8)
        if shuffled:
            values = self.cache.view(used + 1, -1)[:, : page * dim]
            tiles = values.view(-1, page // 16, 16, dim // 16, 16).transpose(2, 3)
            values[:] = tiles.reshape(values.shape)

    def run(self, *, columns: int | None = None, units: int | None = 5, per_query: bool = False) -> torch.Tensor:
        """Checks and returns the logits; without units, the kernel shares out its work itself."""
        last = self.context_lens[:, None] - self.next_n + 1 + torch.arange(self.next_n)
        limits = last.clamp_min(0).int()
        lens = limits.contiguous() if per_query else self.context_lens
        columns = int(self.context_lens.max()) + 3 if columns is None else columns
        meta = None if units is None else dg.get_paged_mqa_logits_metadata(lens, self.page, units)
        assert meta is None or meta.shape == (units + 1, 2)
        logits = dg.fp8_paged_mqa_logits(
            self.q, self.cache, self.weights, lens, self.block_table, meta, columns, True, shuffled_keys=self.shuffled
        )
        assert logits.shape == (len(self.q) * self.next_n, columns)
        for sequence, (keys, scales) in enumerate(zip(self.keys, self.scales, strict=True)):
            rows = slice(sequence * self.next_n, (sequence + 1) * self.next_n)
            seen = torch.arange(columns)[None] < limits[sequence][:, None]
            assert (logits[rows][~seen] == -torch.inf).all()
            count = min(columns, len(keys))
            assert_logits(
                logits[rows, :count],
                self.q[sequence],
                keys[:count],
                scales[:count],
                self.weights[rows],
                seen[:, :count],
            )
        return logits


@kinds
def test_every_paged_kind(heads, dim):
    Paged((100, 0, 700, 64, 1), 2, heads, dim).run()


@settings(max_examples=15, deadline=None)
@given(
    lens=st.lists(st.integers(0, 600), min_size=1, max_size=5),
    next_n=st.integers(1, 8),
    units=st.integers(1, 20) | st.none(),
    per_query=st.booleans(),
    page=st.sampled_from([1, 16, 32, 64, 128]),
    seed=st.integers(0, 99),
)
def test_any_paged_shape(lens, next_n, units, per_query, page, seed):
    Paged(lens, next_n, 32, 32, seed, page).run(units=units, per_query=per_query)


@pytest.mark.parametrize("heads", [64, pytest.param(128, marks=pytest.mark.slow)])
@pytest.mark.parametrize("next_n", [3, 4])
def test_more_tokens_than_registers_hold_in_several_segments(heads, next_n):
    Paged((1100, 5, 300), next_n, heads, 32).run(units=2)


def test_the_stride_of_a_single_token_may_be_anything():
    problem = Paged((70, 100, 3), 1, 32, 32)
    problem.q = problem.q.squeeze(1)[None].transpose(0, 1)
    assert problem.q.is_contiguous()
    assert problem.q.stride(1) == problem.q.numel()
    problem.run()


@pytest.mark.slow
@pytest.mark.parametrize("next_n", [1, 2])
@pytest.mark.parametrize(("batch", "tokens"), [(256, 8192), (4096, 256)])
def test_paged_shapes_of_deep_gemm(batch, tokens, next_n):
    lens = torch.randint(int(0.7 * tokens), int(1.3 * tokens), (batch,), generator=torch.Generator().manual_seed(0))
    Paged(lens.tolist(), next_n).run(units=304)


@pytest.mark.parametrize("page", [1, 16, 32, 128])
def test_pages_of_any_size_give_the_same_bits(page):
    """Keys are the same, whatever their pages are."""
    expected = Paged((300, 0, 65), 3, 32, 64).run()
    assert torch.equal(Paged((300, 0, 65), 3, 32, 64, page=page).run(), expected)


@pytest.mark.parametrize("dim", [32, 64, 128])
@pytest.mark.parametrize("page", [16, 32, 64, 128])
def test_shuffled_keys_give_the_same_bits(page, dim):
    """AITER's order of the keys in a page."""
    expected = Paged((300, 0, 65), 3, 32, dim, page=page).run()
    assert torch.equal(Paged((300, 0, 65), 3, 32, dim, page=page, shuffled=True).run(), expected)


@pytest.mark.parametrize(
    ("dtype", "is_scheduled"), [(torch.float32, True), (torch.bfloat16, False)], ids=["fp32", "bf16 unscheduled"]
)
def test_every_call_and_replay_cleans_what_the_one_before_wrote(monkeypatch, dtype, is_scheduled):
    """Sequences become shorter and longer. Columns are several pieces of a wave."""
    plain = torch.Tensor.new_empty

    def poisoned(self, *shape, **options):
        made = plain(self, *shape, **options)
        return made.fill_(77) if made.dtype == dtype else made

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    problem, columns = Paged((300, 100), 2, 32, 32), 2100
    lens, units = problem.context_lens.clone(), 3
    meta = dg.get_paged_mqa_logits_metadata(lens, 64, units) if is_scheduled else None
    operands = (problem.q, problem.cache, problem.weights, lens, problem.block_table, meta, columns)

    def run():
        logits = dg.fp8_paged_mqa_logits(*operands, clean_logits=True, logits_dtype=dtype)
        return logits, dg.top_k_per_row(logits, 40)

    def assert_clean(logits, chosen):
        limits = (lens[:, None] - 1 + torch.arange(2)).view(-1, 1)
        seen = torch.arange(columns) < limits
        assert torch.equal(logits, expected.where(seen, torch.tensor(-torch.inf, dtype=dtype)))
        assert torch.equal(chosen, dg.top_k_per_row(logits, 40))

    expected = problem.run(columns=columns).to(dtype)
    for _ in range(3):
        assert_clean(*run())
    with hip.runtime().capture() as graph:
        captured = run()
    for tokens in [(300, 100), (3, 70), (0, 2), (300, 1)]:
        lens.copy_(torch.tensor(tokens))
        if meta is not None:
            meta.copy_(dg.get_paged_mqa_logits_metadata(lens, 64, units))
        graph.replay()
        assert_clean(*captured)
        assert_clean(*run())


@pytest.mark.parametrize("per_query", [False, True])
def test_unseen_paged_logits_of_a_result_that_is_not_cleaned_are_not_written(monkeypatch, per_query):
    problem, columns = Paged((300, 0, 2), 2, 32, 32), 1100
    limits = (problem.context_lens[:, None] - 1 + torch.arange(2)).clamp_min(0).int()
    lens = limits if per_query else problem.context_lens
    meta = dg.get_paged_mqa_logits_metadata(lens, 64, 3)
    operands = (problem.q, problem.cache, problem.weights, lens, problem.block_table, meta, columns)
    cleaned = dg.fp8_paged_mqa_logits(*operands, clean_logits=True)
    new_empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda self, *shape, **kw: new_empty(self, *shape, **kw).fill_(77))
    logits = dg.fp8_paged_mqa_logits(*operands, clean_logits=False)
    seen = torch.arange(columns) < limits.view(-1, 1)
    assert torch.equal(logits, cleaned.where(seen, torch.tensor(77.0)))
    assert (cleaned[~seen] == -torch.inf).all()


def test_fewer_columns_than_keys():
    Paged((300, 20), 2, 32, 32).run(columns=70)


def test_same_bits_however_the_work_is_spread():
    problem = Paged((700, 300, 64), 2, 32, 32)
    expected = problem.run(units=1)
    for units in (304, None):
        assert torch.equal(problem.run(units=units), expected)


@pytest.mark.parametrize("sequences", [64, 65, 128, 4200])
def test_the_kernel_shares_out_any_number_of_sequences(sequences):
    lens = torch.randint(0, 900, (sequences,), generator=torch.Generator().manual_seed(sequences))
    lens[torch.arange(sequences) % (sequences // 6) > 9] = 0  # most of many sequences have no key
    problem = Paged(lens.tolist(), 1, 8, 32)
    operands = (problem.q, problem.cache, problem.weights, problem.context_lens, problem.block_table)
    meta = dg.get_paged_mqa_logits_metadata(problem.context_lens, 64, 11)
    expected = dg.fp8_paged_mqa_logits(*operands, meta, 900, clean_logits=True)
    dg.set_num_sms(7)
    assert torch.equal(dg.fp8_paged_mqa_logits(*operands, None, 900, clean_logits=True), expected)


@pytest.mark.parametrize("is_scheduled", [True, False])
@pytest.mark.parametrize("tokens", [200, -5, 2**31 - 1])
def test_nonsense_on_the_device_reaches_nothing_else(monkeypatch, tokens, is_scheduled):
    """Block tables and lengths on a GPU aren't checked. If they are wrong, the kernel reads other existing pages."""
    monkeypatch.setattr(mqa_logits, "check_pages", lambda *arguments, **options: ())
    problem = Paged((300, 200), 2, 32, 32)
    expected = problem.run(columns=300)
    meta = dg.get_paged_mqa_logits_metadata(problem.context_lens, 64, 5) if is_scheduled else None
    problem.context_lens[1] = tokens
    problem.block_table[1] = torch.tensor([2**31 - 1, -(2**31), 10**6]).int().repeat(2)[: problem.block_table.shape[1]]
    operands = (problem.q, problem.cache, problem.weights, problem.context_lens, problem.block_table, meta)
    logits = dg.fp8_paged_mqa_logits(*operands, 300, clean_logits=True)
    assert torch.equal(logits[:2], expected[:2])


def test_a_nonsensical_schedule_reaches_nothing_else():
    problem = Paged((300, 200), 2, 32, 32)
    beyond, most = 2**23, 2**31 - 1  # the first segment whose first key is beyond int32, and the largest number
    schedule = torch.tensor([[0, beyond], [0, most], [most, -most], [-most, beyond + 1], [most, most]]).int()
    operands = (problem.q, problem.cache, problem.weights, problem.context_lens, problem.block_table, schedule)
    dg.fp8_paged_mqa_logits(*operands, 300)
    problem.run()


def test_metadata_gives_every_unit_as_much_as_any_other():
    lens = torch.tensor([256 * 7, 0, 1, 256 * 3 + 1]).int()
    meta = dg.get_paged_mqa_logits_metadata(lens, 64, 4)
    # The sequences have 7, 0, 1 and 4 segments; each of the four units gets three.
    assert meta.tolist() == [[0, 0], [0, 3], [0, 6], [3, 1], [4, 0]]


LENGTHS = st.one_of(st.integers(-300, 3000), st.sampled_from([-(2**31), 0, 1, 256, 257, 2**31 - 1]))


@settings(max_examples=12)
@given(
    lengths=st.lists(LENGTHS, max_size=20).flatmap(lambda few: st.integers(0, 70).map(lambda more: few * more + few)),
    next_n=st.integers(0, 3),
    units=st.one_of(st.integers(1, 700), st.just(2**16)),
)
def test_metadata_cuts_the_line_of_all_segments(lengths, next_n, units):
    """Also for more sequences than are looked at together, and for several lengths of a sequence."""
    lens = torch.tensor(lengths, dtype=torch.int32)
    if next_n:
        lens = torch.stack([*[lens.clamp_max(100 * i) for i in range(1, next_n)], lens]).T  # columns are neighbours
    segments = [(max(length, 0) + 255) // 256 for length in lengths]
    ends = list(itertools.accumulate(segments))
    positions = [sum(segments) * unit // units for unit in range(units + 1)]
    sequences = [bisect.bisect_right(ends, position) for position in positions]
    expected = [[s, at - (ends[s - 1] if s else 0)] for s, at in zip(sequences, positions, strict=True)]
    assert dg.get_paged_mqa_logits_metadata(lens, 64, units).tolist() == expected


def paged() -> dict:
    problem = Paged((30, 16), 1, 32, 32)
    names = ("q", "kv_cache", "weights", "context_lens", "block_table")
    tensors = (problem.q, problem.cache, problem.weights, problem.context_lens, problem.block_table)
    meta = dg.get_paged_mqa_logits_metadata(problem.context_lens, 64, 4)
    return {**dict(zip(names, tensors, strict=True)), "schedule_meta": meta, "max_context_len": 30}


def plain() -> dict:
    names = ("q", "kv", "weights", "cu_seq_len_k_start", "cu_seq_len_k_end")
    return dict(zip(names, Problem(8, 16, 32, 32).arguments, strict=True))


def metadata() -> dict:
    return {"context_lens": torch.tensor([30, 16]).int(), "block_kv": 64, "num_sms": 4}


SINGLE = {"kv_cache": torch.zeros(3, 1, 1, 36).byte(), "shuffled_keys": True}
BAD = [
    (dg.fp8_mqa_logits, plain, {"q": torch.zeros(8, 32, 32)}, TypeError, "q must be float8_e4m3fnuz"),
    (dg.fp8_mqa_logits, plain, {"q": torch.zeros(8, 12, 32).to(FP8)}, ValueError, "q must have a multiple of 8 heads"),
    (dg.fp8_mqa_logits, plain, {"kv": torch.zeros(8)}, TypeError, "kv must be a pair"),
    (dg.fp8_mqa_logits, plain, {"weights": torch.zeros(8, 31)}, ValueError, "weights must have shape"),
    (dg.fp8_mqa_logits, plain, {"cu_seq_len_k_end": torch.zeros(8)}, TypeError, "cu_seq_len_k_end must be int32"),
    (dg.fp8_mqa_logits, plain, {"max_seqlen_k": 4}, ValueError, "clean_logits must be False"),
    (dg.fp8_paged_mqa_logits, paged, {"q": torch.zeros(2, 9, 32, 32).to(FP8)}, ValueError, "1 to 8 tokens"),
    (dg.fp8_paged_mqa_logits, paged, {"kv_cache": torch.zeros(3, 64, 1, 32)}, TypeError, "kv_cache must be uint8"),
    (
        dg.fp8_paged_mqa_logits,
        paged,
        {"kv_cache": torch.zeros(3, 48, 1, 36).byte()},
        ValueError,
        r"a block of kv_cache must have one of \(1, 16, 32, 64, 128\) tokens, got 48",
    ),
    (dg.get_paged_mqa_logits_metadata, metadata, {"block_kv": 48}, ValueError, "block_kv must be one of .*, got 48"),
    (dg.fp8_paged_mqa_logits, paged, {"shuffled_keys": 1}, TypeError, "shuffled_keys must be a bool"),
    (dg.fp8_paged_mqa_logits, paged, SINGLE, ValueError, "blocks of 16 tokens or more for shuffled_keys, got 1"),
    (dg.fp8_paged_mqa_logits, paged, {"block_table": torch.tensor([[9], [0]]).int()}, ValueError, "got 9 as block"),
    (dg.fp8_paged_mqa_logits, paged, {"context_lens": torch.tensor([30, 999]).int()}, ValueError, "got 999"),
    (dg.fp8_paged_mqa_logits, paged, {"schedule_meta": torch.zeros(4).int()}, ValueError, "schedule_meta must have"),
]


@pytest.mark.parametrize(("function", "arguments", "bad", "error", "message"), BAD, ids=[case[4] for case in BAD])
def test_bad_input_is_one_clear_error(function, arguments, bad, error, message):
    with pytest.raises(error, match=message):
        function(**{**arguments(), **bad})
