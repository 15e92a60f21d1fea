"""Random memory instructions against a model in Python of AMD's manual: see memory_fuzz.py."""

from __future__ import annotations

import contextlib
import random

import memory_fuzz
import pytest
from helpers.simulated_hip import Compiler

GROUPS = 40

pytestmark = pytest.mark.unsanitized  # the sanitizer reports misaligned accesses, which have a meaning


def compare(compiler: Compiler, family: str, count: int, seed: int) -> None:
    rng = random.Random(f"{family} {seed}")
    instructions = [memory_fuzz.FAMILIES[family](rng) for _ in range(count)]
    with contextlib.closing(memory_fuzz.Runner(compiler, instructions, GROUPS)) as runner:
        for first in range(0, count, GROUPS):
            numbers = range(first, min(first + GROUPS, count))
            before = [runner.draw(number, group, rng) for group, number in enumerate(numbers)]
            status, after = runner.run(before)
            assert status == 0, [instructions[number].text for number in numbers]
            for number, drawn, actual in zip(numbers, before, after, strict=True):
                instruction = instructions[number]
                expected = runner.expected(number, drawn)
                differ = memory_fuzz.differences(instruction, expected, actual)
                places = [memory_fuzz.region_of(int(byte)) for byte in differ[:4]]
                assert not places, f"{instruction.text} with MODE {drawn.scalar(memory_fuzz.MODE):#x}: {places}"


@pytest.mark.parametrize("family", memory_fuzz.FAMILIES)
def test_random_instructions(compiler: Compiler, family: str) -> None:
    compare(compiler, family, 2 * GROUPS, 0)


@pytest.mark.slow
@pytest.mark.parametrize("family", memory_fuzz.FAMILIES)
def test_many_random_instructions(compiler: Compiler, family: str) -> None:
    for seed in range(1, 13):
        compare(compiler, family, 20 * GROUPS, seed)
