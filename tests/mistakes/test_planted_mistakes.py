"""Each planted mistake still applies, and the default run holds its tests."""

from __future__ import annotations

import subprocess
import sys

import pytest
from planted import ROOT, load

MISTAKES = load()


def test_names_differ():
    names = [mistake.name for mistake in MISTAKES]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name.replace(" ", "-"))
def test_it_can_be_planted(mistake):
    mistake.planted_in((ROOT / mistake.file).read_text())


@pytest.mark.slow
def test_their_tests_are_in_the_default_run():
    """Pytest fails to collect a test that doesn't exist, and leaves out those that are marked slow."""
    named = sorted({test for mistake in MISTAKES for test in mistake.tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *named]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert listed.returncode == 0, listed.stdout[-2000:]
    collected = [line for line in listed.stdout.splitlines() if "::" in line]

    def is_run(test: str) -> bool:
        return any(line == test or line.startswith((f"{test}::", f"{test}[")) for line in collected)

    assert not [mistake.name for mistake in MISTAKES if not any(map(is_run, mistake.tests))]
