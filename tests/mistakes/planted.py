"""Planted mistakes: small replacements of text that break something, and the tests that must notice.

Each TOML file in this folder has the mistakes of one area, as tables ``[[mistake]]``:

    name:    a few words, different from all others
    what:    the mistake in a sentence
    file:    the file's path from the checkout's root
    old:     text that occurs once in the file
    new:     the text that replaces it
    tests:   arguments of pytest; at least one of these tests fails with the mistake, and none without
    missed:  for mistakes that no test of the default run notices, the reason
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A planted mistake. ``area`` is the TOML file's name, the other attributes are those of the table."""

    area: str
    name: str
    what: str
    file: str
    old: str
    new: str
    tests: list[str]
    missed: str = ""

    def planted_in(self, text: str) -> str:
        """The file's text with the mistake.

        Raises:
            ValueError: the old text isn't in the file, or occurs more than once.
        """
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: the old text occurs {found} times in {self.file}, not once")
        if self.new == self.old:
            raise ValueError(f"{self.name}: it replaces the text by itself")
        return text.replace(self.old, self.new)

    @property
    def is_of_simulator(self) -> bool:
        """Whether the simulator must be rebuilt with the mistake."""
        return self.file.startswith("deep_gemm_rocm/simulator/csrc/")

    @property
    def is_of_module(self) -> bool:
        """Whether the Python module for repeated calls must be rebuilt with the mistake."""
        return self.file.startswith("deep_gemm_rocm/launch/csrc/")

    @property
    def is_of_kernels(self) -> bool:
        return self.file.startswith("include/")

    @property
    def is_of_cache(self) -> bool:
        """Whether the mistake may leave wrong kernels in the cache."""
        return self.file.startswith("deep_gemm_rocm/jit/")


def load() -> list[Mistake]:
    """Loads all mistakes, area by area.

    Raises:
        TypeError: a table lacks an attribute, or has an unknown one.
    """
    return [
        Mistake(area=file.stem, **table)
        for file in sorted(FOLDER.glob("*.toml"))
        for table in tomllib.loads(file.read_text())["mistake"]
    ]
