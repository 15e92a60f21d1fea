"""The largest logits of each row against an exact oracle."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from helpers.default_run import some
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.runtime import hip

POISON = 77
BF16, F32 = torch.bfloat16, torch.float32
dtypes = pytest.mark.parametrize("dtype", [F32, BF16], ids=["fp32", "bf16"])


def largest(row: torch.Tensor, k: int) -> list[int]:
    """Positions of the k largest in ascending order: ties by the lower position, NaNs last, -1 for missing ones."""
    values = row.double().numpy()
    is_nan = np.isnan(values)
    order = np.lexsort((np.arange(len(values)), np.where(is_nan, 0, -values), is_nan))[:k]
    return sorted(order.tolist()) + [-1] * (k - len(order))


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def assert_selected(logits, k, starts=None, ends=None) -> torch.Tensor:
    rows, columns = logits.shape
    room = torch.full((rows + 2, k + 3), POISON, dtype=torch.int32)
    out = room[1:-1, 1 : k + 1]
    assert dg.top_k_per_row(logits, k, starts=starts, ends=ends, out=out) is out
    for row in range(rows):
        begin = min(max(int(starts[row]), 0), columns) if starts is not None else 0
        end = min(int(ends[row]), columns) if ends is not None else columns
        assert out[row].tolist() == largest(logits[row, begin : max(end, begin)], k), f"row {row}"
    found = out.clone()
    out.fill_(POISON)
    assert (room == POISON).all(), "memory around the result was written"
    return found


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def special(*shape: int, seed: int = 0) -> torch.Tensor:
    """Few different numbers, among them NaNs of both signs, infinities, denormals and both zeros."""
    few = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 1.0, -1.0, 3.4e38, -3.4e38, 2.5, -2.5, 7.0, -7.0]
    chosen = torch.randint(0, len(few), shape, generator=torch.Generator().manual_seed(seed))
    return torch.tensor(few)[chosen]


def apart(*shape: int, seed: int = 0, sampled: float) -> torch.Tensor:
    """The sample, the first numbers of each 1024, is nothing like the others."""
    is_sampled = torch.arange(shape[-1]) % 1024 < 512
    return normal(*shape, seed=seed) + sampled * is_sampled


DATA = {
    "normal": normal,
    "special": special,
    "few": lambda *shape, seed: normal(*shape, seed=seed).mul(2).round(),
    "close": lambda *shape, seed: 1 + normal(*shape, seed=seed).abs() * 2**-12,
    "low sample": functools.partial(apart, sampled=-9),
    "high sample": functools.partial(apart, sampled=9),
    "equal": lambda *shape, seed: torch.full(shape, -1.5),
    "NaN": lambda *shape, seed: torch.full(shape, torch.nan).where(normal(*shape, seed=seed) < 2.5, torch.tensor(-2.0)),
}


@settings(max_examples=12, deadline=None)
@given(
    kind=st.sampled_from(sorted(DATA)),
    dtype=st.sampled_from([F32, BF16]),
    rows=st.integers(1, 2),
    columns=st.integers(1, 9000),
    k=st.integers(1, 2048),
    offset=st.integers(0, 9),
    seed=st.integers(0, 99),
)
def test_any_rows(kind, dtype, rows, columns, k, offset, seed):
    """Rows begin anywhere, and any part of them counts."""
    logits = DATA[kind](rows, columns + 9, seed=seed).to(dtype)[:, offset : offset + columns]
    bounds = torch.randint(-50, columns + 50, (2, rows), generator=torch.Generator().manual_seed(seed)).int()
    assert_selected(logits, k)
    assert_selected(logits, k, starts=bounds.amin(dim=0), ends=bounds.amax(dim=0))


@dtypes
@pytest.mark.parametrize("kind", sorted(DATA))
@pytest.mark.parametrize("k", [1, 2048])
def test_long_rows(kind, dtype, k):
    """Rows that fill a workgroup's registers, and rows that take several rounds."""
    held = 32768 if dtype == F32 else 65535
    for columns in (held, held + 2, 2 * held + 77):
        assert_selected(DATA[kind](1, columns, seed=columns).to(dtype), k)


@dtypes
@pytest.mark.parametrize("kind", sorted(DATA))
def test_more_workgroups_than_compute_units(kind, dtype):
    """Two share a CU, and are smaller."""
    dg.set_num_sms(1)
    columns = 32769 if dtype == F32 else 65537  # in two rounds
    for k in (1, 700):
        assert_selected(DATA[kind](2, columns, seed=k).to(dtype), k)
        assert_selected(DATA[kind](3, 9001, seed=k).to(dtype)[1:], k)


@dtypes
def test_the_longest_row(dtype):
    logits = normal(1, 2**19).to(dtype)
    assert_selected(logits, 2048, ends=ints(2**19 - 5), starts=ints(3))


@pytest.mark.parametrize("kind", ["normal", "special"])
def test_the_longest_row_at_an_odd_address(kind):
    """Its first and last elements are halves of words."""
    logits = DATA[kind](1, 2**19 + 1, seed=1).bfloat16()[:, 1:]
    assert logits.data_ptr() % 4 == 2
    assert_selected(logits, 2048)


@pytest.mark.parametrize("columns", [5000, 5001, 70001])
@pytest.mark.parametrize("offset", [0, 1])
def test_both_ends_of_a_row_of_halves_of_words(columns, offset):
    logits = normal(1, columns + 1).bfloat16()[:, offset : offset + columns]
    logits[0, [0, -1]] = 100
    for k in (1, 2, 700):
        assert_selected(logits, k)


@dtypes
@pytest.mark.parametrize("count", [0, 1, 63, 4031, 4032, 4033])
def test_as_many_as_the_list_has_room_for(dtype, count):
    """The row has `count` numbers of the highest bin, and the others are low."""
    logits = torch.full((1, 9000), -1.0, dtype=dtype)
    places = torch.randperm(9000, generator=torch.Generator().manual_seed(0))[:count]
    logits[0, places] = (1 + torch.rand(count, generator=torch.Generator().manual_seed(1)) / 16).to(dtype)
    for k in (1, 64, 2048):
        assert_selected(logits, k)


def test_every_bit_counts():
    """Numbers that differ only in their last bits, of either sign."""
    for sign in (1, -1):
        bits = torch.randint(0, 2**9, (1, 9000), generator=torch.Generator().manual_seed(0)).int()
        logits = (bits + 0x3F800000).view(F32) * sign
        for k in (1, 100, 2000):
            assert_selected(logits, k)


@dtypes
def test_ties_go_to_the_lower_position(dtype):
    logits = torch.zeros(4, 20000, dtype=dtype)
    logits[1, 15000:] = 1
    logits[2, ::7] = 1
    logits[3] = -0.0
    logits[3, 19000:] = 0.0
    found = assert_selected(logits, 2048)
    assert found[0].tolist() == found[3].tolist() == list(range(2048))
    assert found[1].tolist() == list(range(15000, 17048))


def test_rows_without_a_choice():
    logits = special(5, 300)
    starts, ends = ints(0, 10, 20, 299, 2**31 - 1), ints(40, 10, 5, 300, -(2**31))
    found = assert_selected(logits, 40, starts, ends)
    assert found[0].tolist() == list(range(40))
    assert (found[1:3] == -1).all()
    assert (found[4] == -1).all()


@pytest.mark.parametrize("page_size", some([1, 16, 32, 64, 128, 3, 48], 4))
@pytest.mark.parametrize("columns", [1000, 40000])
def test_slots_of_a_cache(page_size, columns):
    """Two rows of each of two sequences, whose pages are anywhere. Some positions have no page."""
    pages = columns // page_size - 2
    table = torch.randperm(3 * pages, generator=torch.Generator().manual_seed(0))[: 2 * pages].int().view(2, pages)
    table[1, 1] = -1
    logits = normal(4, columns)
    starts = ints(0, 7, 0, 7)
    positions = dg.top_k_per_row(logits, 600, starts=starts)
    slots = dg.top_k_per_row(logits, 600, starts=starts, block_table=table, page_size=page_size)
    for row in range(4):
        for position, slot in zip(positions[row].tolist(), slots[row].tolist(), strict=True):
            page, offset = divmod(position, page_size)
            named = int(table[row // 2, page]) if page < pages else -1
            assert slot == (-1 if named < 0 else named * page_size + offset)


@pytest.mark.parametrize("columns", [200, 40000])
def test_slots_of_prompts_of_different_lengths(columns):
    """A row says which row of the table it takes. Tables that aren't there give no slots."""
    table = torch.arange(3 * columns).flip(0).int().view(3, columns)
    logits, sequences = normal(6, columns), ints(2, 0, 0, 3, -1, 2**31 - 1)
    positions = dg.top_k_per_row(logits, 90)
    slots = dg.top_k_per_row(logits, 90, block_table=table, sequences=sequences)
    for row, sequence in enumerate((2, 0, 0)):
        assert torch.equal(slots[row], table[sequence, positions[row].long()])
    assert (slots[3:] == -1).all()
    for no_tables in (table[:0], torch.empty_strided((0, columns), (0, 0), dtype=torch.int32)):  # as from NumPy
        nowhere = dg.top_k_per_row(logits, 90, block_table=no_tables, sequences=sequences)
        assert (nowhere == -1).all()


def test_missing_positions_have_no_slots():
    slots = dg.top_k_per_row(normal(2, 50), 9, ends=ints(3, 0), block_table=ints(5, 8).view(2, 1), page_size=64)
    assert slots.tolist() == [[320, 321, 322, *[-1] * 6], [-1] * 9]


@pytest.mark.parametrize("columns", [7, 40000])
def test_tables_without_pages_have_no_slots(columns):
    """The address of an empty tensor is null."""
    table = torch.empty(1, 0, dtype=torch.int32)
    out = torch.full((2, 4), POISON, dtype=torch.int32)
    dg.top_k_per_row(normal(2, columns), 4, block_table=table, page_size=16, out=out)
    assert (out == -1).all()


@pytest.mark.parametrize("sequences", [None, ints()])
def test_no_rows(sequences):
    """A rank of a server may have no tokens in a step."""
    table = torch.empty(0, 5, dtype=torch.int32)
    assert dg.top_k_per_row(normal(0, 9), 4, block_table=table, sequences=sequences).shape == (0, 4)


@pytest.mark.parametrize("start", [-(2**31), -3, 0, 2])
def test_positions_count_from_the_first_column_that_counts(start):
    begin = max(start, 0)
    found = dg.top_k_per_row(normal(1, 7), 7, starts=ints(start), ends=ints(5))
    assert found[0].tolist() == [*range(5 - begin), *[-1] * (2 + begin)]


def test_logits_of_the_indexer():
    """Compressed logits of queries have undefined ends."""
    logits = torch.full((3, 500), torch.nan)
    lens = ints(500, 20, 0)
    for row, count in enumerate(lens.tolist()):
        logits[row, :count] = normal(count, seed=row)
    assert_selected(logits, 64, ends=lens)


@pytest.mark.parametrize("columns", [6000, 40000])
def test_same_result_in_any_order_of_waves(monkeypatch, columns):
    logits = normal(2, columns).mul(4).round()
    expected = dg.top_k_per_row(logits, 700)
    for seed in range(1, 4):
        monkeypatch.setenv("DG_SIM_SEED", str(seed))
        assert torch.equal(dg.top_k_per_row(logits, 700), expected)


def test_captured_once_for_any_lengths():
    """The graph reads logits, ends and block table when it runs."""
    logits, ends, table = normal(2, 40000), ints(40000, 40000), torch.arange(1250).int().view(2, 625)
    options = {"ends": ends, "block_table": table, "page_size": 64}
    dg.top_k_per_row(logits, 300, **options)
    with hip.runtime().capture() as graph:
        captured = dg.top_k_per_row(logits, 300, **options)
    for seed in range(1, 3):
        logits.copy_(normal(2, 40000, seed=seed))
        ends.copy_(ints(30000 * seed, 200 * seed))
        table.copy_(table.roll(1))
        graph.replay()
        assert torch.equal(captured, dg.top_k_per_row(logits, 300, **options))


BAD = [
    ({"logits": torch.zeros(2, 9).half()}, TypeError, "logits must be float32 or bfloat16"),
    ({"logits": torch.zeros(9)}, ValueError, "logits must have shape"),
    ({"logits": torch.zeros(9, 2).T}, ValueError, "logits must be contiguous along its last dimension"),
    ({"logits": torch.zeros(1).expand(2, 2**19 + 1)}, ValueError, "contiguous|columns"),
    ({"k": 0}, ValueError, "k must be at least 1, got 0"),
    ({"k": 2049}, ValueError, "k must be at most 2048, got 2049"),
    ({"k": 2.0}, TypeError, "k must be an int"),
    ({"starts": ints(0)}, ValueError, "starts must have shape"),
    ({"ends": torch.zeros(2)}, TypeError, "ends must be int32"),
    ({"block_table": torch.zeros(3, 4).int()}, ValueError, "block_table must have a row for equally many of 2 rows"),
    ({"block_table": torch.zeros(2, 4).int(), "page_size": 257}, ValueError, "page_size must be at most 256"),
    ({"page_size": 64}, ValueError, "block_table must be given for pages of 64 tokens"),
    ({"sequences": ints(0, 0)}, ValueError, "block_table must be given for sequences"),
    ({"sequences": ints(0), "block_table": torch.zeros(3, 4).int()}, ValueError, "sequences must have shape"),
    ({"out": torch.zeros(2, 4).int()}, ValueError, r"out must have shape \(2, 3\)"),
    ({"out": torch.zeros(1, 3).int().expand(2, 3)}, ValueError, "elements of out must not overlap"),
]


@pytest.mark.parametrize(("bad", "error", "message"), BAD, ids=[case[2] for case in BAD])
def test_bad_input_is_one_clear_error(bad, error, message):
    with pytest.raises(error, match=message):
        dg.top_k_per_row(**{"logits": torch.zeros(2, 9), "k": 3, **bad})
