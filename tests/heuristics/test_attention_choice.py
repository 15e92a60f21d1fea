"""The choice of attention's configurations, and tables of measurements."""

from __future__ import annotations

import csv
import dataclasses

import pytest
from helpers.decode_problem import Problem
from helpers.default_run import some
from typer.testing import CliRunner

from deep_gemm_rocm.__main__ import app
from deep_gemm_rocm.benchmarks import operations
from deep_gemm_rocm.heuristics import (
    AttentionCase,
    AttentionChoice,
    AttentionConfig,
    DecodeConfig,
    choose_attention,
    forced,
)
from deep_gemm_rocm.heuristics.attention_choice import SHIPPED, AttentionTable, TunedAttention, attention_candidates
from deep_gemm_rocm.heuristics.choices import forget, replaced
from deep_gemm_rocm.heuristics.tables import TableError
from deep_gemm_rocm.runtime import hip

PROMPT = AttentionCase("flash_attention", "bf16", "bf16", 128, 128, True, 1, 32, 8, 1000, 1000)
STEP = AttentionCase("flash_decode", "bf16", "bf16", 128, 128, True, 4, 32, 8, 1, 8192)
MEASURED = {
    "time_us": 100.0, "error": 0.5, "device": "some", "clock_mhz": 2100, "toolchain": "some", "simulated": True,
}  # fmt: skip
SMALL = AttentionConfig("bf16", "bf16", 128, 128, waves=4, mfma_rows=16, take_turns=False)
ROW = TunedAttention.of(PROMPT, AttentionChoice(SMALL), **MEASURED)
STEP_ROW = TunedAttention.of(STEP, AttentionChoice(DecodeConfig("bf16", "bf16", 128, 128), 99), **MEASURED)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"waves": 3}, "waves 4 or 8"),
        ({"mfma_rows": 8}, "mfma_rows"),
        ({"take_turns": True}, "take turns"),
        ({"mfma_rows": 32, "value_dim": 256, "head_dim": 256}, "registers"),
        ({"waves": 8, "take_turns": True, "value_dim": 256, "head_dim": 256}, "LDS"),
        ({"type": "e4m3", "value_dim": 256, "head_dim": 256}, "registers"),
    ],
)
def test_impossible_configurations_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **changes)


def test_a_table_comes_back_from_its_file(tmp_path):
    path = tmp_path / "table.csv"
    AttentionTable([ROW]).with_row(STEP_ROW).write(path)
    assert AttentionTable.read(path).rows == {ROW.key: ROW, STEP_ROW.key: STEP_ROW}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"time_us": "0.001"}, "TFLOPS are impossible"),
        ({"error": "1.5"}, "the result was wrong"),
        ({"waves": "5"}, "waves 4 or 8"),
        ({"family": "attention"}, "family must be"),
        ({"family": "flash_decode"}, "pieces must be positive"),
        ({"tokens_k": "0"}, "sizes must be positive"),
        ({"causal": "maybe"}, "maybe"),
        (
            {"family": "mla_decode", "pieces": "8", "tokens_q": "1", "heads": "1", "kv_heads": "1", "batch": "9000"},
            "TB/s are impossible",
        ),
    ],
)
def test_impossible_rows_are_refused(tmp_path, changes, message):
    path = tmp_path / "table.csv"
    AttentionTable([ROW]).write(path)
    (fields,) = csv.DictReader(path.open())
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, AttentionTable.columns)
        writer.writeheader()
        writer.writerow({**fields, **changes})
    with pytest.raises(TableError, match=rf"line 2: .*{message}"):
        AttentionTable.read(path)


def test_large_tiles_where_there_is_enough_work_for_all_cus():
    def queries(**changes) -> int:
        return attention_candidates(PROMPT._replace(**changes))[0].config.block_q

    assert queries(tokens_q=8192) == 256
    assert queries(tokens_q=2048) == 128
    assert queries(tokens_q=2048, batch=2) == 256
    assert queries(tokens_q=512) == 64
    assert queries(tokens_q=100, batch=100) == 128
    assert queries(tokens_q=1, batch=1000) == 64


def test_a_row_serves_problems_of_about_its_size():
    longer = ROW.case._replace(tokens_q=1250, tokens_k=1250)
    with replaced(AttentionTable([ROW, STEP_ROW])):
        assert choose_attention(PROMPT) == (SMALL, 0)
        assert choose_attention(longer) == (SMALL, 0)
        for other in (
            longer._replace(tokens_k=1251),
            PROMPT._replace(causal=False),
            PROMPT._replace(heads=16),
            PROMPT._replace(type="f16", out_type="f16"),
        ):
            assert choose_attention(other) == attention_candidates(other)[0]
        assert choose_attention(STEP._replace(batch=5)).pieces == 99
        assert choose_attention(STEP._replace(batch=6)).pieces != 99


def test_the_shipped_table_is_whole():
    table = AttentionTable.read(SHIPPED)
    assert table.rows
    for row in table.rows.values():
        assert table.find(row.case) == row.choice_for(row.case)


def test_candidates_are_different_and_the_first_is_the_heuristics():
    for case in (PROMPT, PROMPT._replace(head_dim=256, value_dim=256), STEP, STEP._replace(tokens_k=300)):
        found = attention_candidates(case)
        assert len(set(found)) == len(found) > 1
        with replaced(AttentionTable()):
            assert choose_attention(case) == found[0]


@pytest.mark.parametrize("choice", some(attention_candidates(PROMPT._replace(head_dim=64, value_dim=64)), 3), ids=str)
def test_every_candidate_computes_the_right_result(choice):
    operation = operations.OPERATIONS["flash_attention_causal"]
    shape = operation.parse("1x150x200x2x1x64")
    problem = operations.make("flash_attention_causal", shape, hip.runtime().tensor_device)
    with forced(choice):
        problem.run()
    assert problem.check() <= 1


@pytest.mark.parametrize("pieces", [1, 2, 5, 64])
def test_any_number_of_pieces_gives_the_right_result(pieces):
    problem = Problem((900, 0, 70, 300), widths=(64, 64))
    with forced(AttentionChoice(DecodeConfig("bf16", "bf16", 64, 64), pieces)):
        problem.run()


def test_tuning(tmp_path):
    table = tmp_path / "table.csv"
    arguments = ["tune", "--op=flash_attention_decode", f"--out={table}", "--count=2", "--shapes=1x1x600x4x1x64"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    times = [float(line.split(": ")[1].split()[0]) for line in result.output.splitlines() if "(simulated" in line]
    assert len(times) == 2
    (row,) = AttentionTable.read(table).rows.values()
    assert row.time_us == pytest.approx(min(times), rel=0.02)
    assert (row.case.family, row.case.heads, row.case.kv_heads, row.case.tokens_k) == ("flash_decode", 4, 1, 640)
    assert "is in the table" in CliRunner().invoke(app, arguments).output
    mixed = CliRunner().invoke(app, ["tune", "--op=fp8_gemm_nt,mla_decode"])
    assert mixed.exit_code == 1
    assert "tables of their own" in mixed.output
    of_gemm = CliRunner().invoke(app, ["tune", "--op=fp8_gemm_nt", f"--out={table}", "--shapes=16x128x256"])
    assert "expected the columns kind, m" in of_gemm.output.replace("\n", " ")


def test_a_table_of_ones_own(tmp_path, monkeypatch):
    AttentionTable([ROW]).write(tmp_path / "table.csv")
    monkeypatch.setenv("DG_TUNED_ATTENTION_TABLE", str(tmp_path / "table.csv"))
    forget()
    assert choose_attention(PROMPT).config == SMALL
    monkeypatch.undo()
    forget()
