"""The planted mistakes: what somebody could get wrong, as small replacements of text, and the tests that must notice.

Each TOML file of this folder has those of one area, as tables ``[[mistake]]``:

    name:    a few words, unlike all others
    what:    what somebody got wrong, in a sentence
    file:    from the checkout's root on
    old:     text that occurs once in the file
    new:     what takes its place
    tests:   arguments of pytest; at least one of these tests fails with the mistake, and none without
    missed:  for those that no test of the default run notices, the reason
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
    """One of them; the attributes but ``area``, its file's name, are those of the TOML table."""

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
            ValueError: what it replaces isn't there, or not only once.
        """
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: what it replaces occurs {found} times in {self.file}, and not once")
        if self.new == self.old:
            raise ValueError(f"{self.name}: it replaces the text by itself")
        return text.replace(self.old, self.new)

    @property
    def is_of_simulator(self) -> bool:
        """Whether the simulator has to be built with it."""
        return self.file.startswith("deep_gemm_rocm/simulator/csrc/")

    @property
    def is_of_kernels(self) -> bool:
        return self.file.startswith("include/")

    @property
    def is_of_cache(self) -> bool:
        """Whether kernels that were compiled with it may be found where they don't belong."""
        return self.file.startswith("deep_gemm_rocm/jit/")


def load() -> list[Mistake]:
    """All of them, area by area.

    Raises:
        TypeError: a table lacks something, or has what no mistake has.
    """
    return [
        Mistake(area=file.stem, **table)
        for file in sorted(FOLDER.glob("*.toml"))
        for table in tomllib.loads(file.read_text())["mistake"]
    ]
