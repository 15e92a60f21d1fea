"""Each planted mistake still applies, and its tests still exist."""

from __future__ import annotations

import re

import pytest
from planted import ROOT, load

MISTAKES = load()


def test_names_differ():
    names = [mistake.name for mistake in MISTAKES]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name.replace(" ", "-"))
def test_it_can_be_planted_and_its_tests_exist(mistake):
    mistake.planted_in((ROOT / mistake.file).read_text())
    assert mistake.tests
    for test in mistake.tests:
        file, _, name = test.partition("::")
        text = (ROOT / file).read_text()
        if name:
            assert re.search(rf"def {name.partition('[')[0]}\(", text), test
