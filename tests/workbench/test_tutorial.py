"""The commands of docs/workbench.md print what the page shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deep_gemm_rocm.__main__ import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/workbench.md").read_text()
BLOCKS = re.findall(r"^```console\n\$ ((?:.*\\\n)*.*)\n((?:(?!```).*\n)*)```$", PAGE, re.MULTILINE)
CUT = "…"


def pattern(line: str, is_simulated_time: bool) -> str:
    """Addresses and seconds differ from run to run; simulated times do whenever the model's constants change."""
    escaped = re.escape(re.sub(r"\s+", " ", line.strip()))
    escaped = re.sub(r"0x[0-9a-f]{10,}", "0x[0-9a-f]+", escaped)
    escaped = re.sub(r"in\\ [0-9.\\]+\\ s\\ of", r"in\\ [0-9.]+\\ s\\ of", escaped)
    return (
        re.sub(r"(?<!hip:)(?<![0-9])[0-9](?:[0-9,]|\\\.)*%?", "[0-9,.]+%?", escaped) if is_simulated_time else escaped
    )


@pytest.mark.unsanitized
@pytest.mark.parametrize(
    ("command", "shown"),
    [
        pytest.param(*block, id=f"{i}-{block[0].split()[4]}", marks=pytest.mark.slow if " profile " in block[0] else ())
        for i, block in enumerate(BLOCKS)
    ],
)
def test_a_command_prints_what_the_page_shows(command: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "examples/workbench")
    monkeypatch.setenv("DG_SIM_THREADS", "1")  # the first workgroup that fails is reported
    monkeypatch.setenv("COLUMNS", "80")
    program, *arguments = shlex.split(command.replace("\\\n", " "))
    assert [program, *arguments[:2]] == ["python", "-m", "deep_gemm_rocm"]
    output = re.sub(r"[^\S\n]+", " ", CliRunner().invoke(app, arguments[2:]).output)
    place = 0
    for line in shown.splitlines():
        if line.strip() == CUT:
            continue
        found = re.compile(pattern(line, " profile " in command)).search(output, place)
        assert found, f"not in the output, or not there: {line}\n{output}"
        place = found.end()


def test_the_page_has_commands() -> None:
    assert len(BLOCKS) == 7
