"""The docs name every public function, and only files that exist."""

from __future__ import annotations

import fnmatch
import functools
import re
from pathlib import Path

import pytest

import deep_gemm_rocm as dg

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
CODE = re.compile(r"`([^`\n]+)`")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
# A path in the docs begins at the repository's root or in one of these folders. A file's name alone may be that of any.
BASES = [ROOT, ROOT / "deep_gemm_rocm", ROOT / "include/deep_gemm_rocm", ROOT / "docs"]
BASES += [ROOT / "deep_gemm_rocm/simulator", ROOT / "deep_gemm_rocm/simulator/csrc", ROOT / "tests"]
SUFFIXES = {".py", ".h", ".j2", ".cpp", ".inc", ".md", ".toml", ".csv", ".hip", ".sh"}
SCRIPTS = ("benchmarks/", "examples/", "tests/", "docs/")
ELSEWHERE = {"mine.json", "kernel.hip", "deep_gemm_rocm/simulator/lib/"}  # a user's two, and what only a build makes


def paths_named(text: str) -> list[str]:
    """What looks like a path of the repository: words in backticks, and scripts in blocks of commands."""
    words = [word for code in CODE.findall(FENCED.sub("", text)) for word in code.split("::")[0].split()]
    words += [word for block in FENCED.findall(text) for word in block.split() if word.startswith(SCRIPTS)]
    folders = {path.name for base in BASES for path in base.iterdir() if path.is_dir()}
    found = []
    for word in words:
        if not re.fullmatch(r"[\w.*{},/-]+", word) or word.startswith(("/", "-")) or word in ELSEWHERE:
            continue
        is_file = Path(word).suffix in SUFFIXES
        if is_file or ("/" in word and word.split("/")[0] in folders):
            found.append(word)
    return found


def alternatives(pattern: str) -> list[str]:
    """``a_{b,c}.h`` as ``a_b.h`` and ``a_c.h``."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if not match:
        return [pattern]
    return [
        p
        for part in match[1].split(",")
        for p in alternatives(pattern[: match.start()] + part + pattern[match.end() :])
    ]


@functools.cache
def names_of_files() -> set[str]:
    folders = ("deep_gemm_rocm", "include", "docs", "tests", "benchmarks", "examples", ".ci")
    found = {path.name for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()}
    return found | {path.name for path in ROOT.glob("*.*")}


def exists(name: str) -> bool:
    def one(pattern: str) -> bool:
        if "/" in pattern:
            return any(any(base.glob(pattern.rstrip("/"))) for base in BASES)
        return any(fnmatch.fnmatch(file, pattern) for file in names_of_files())

    return all(one(pattern) for pattern in alternatives(name))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page):
    missing = [name for name in paths_named(page.read_text()) if not exists(name)]
    assert not missing, f"{page.name} names what isn't there: {', '.join(missing)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page):
    text = FENCED.sub("", page.read_text())
    for target, anchor in LINK.findall(text):
        if "://" in target:
            continue
        file = page.parent / target
        assert file.exists(), f"{page.name} links to {target}, which isn't there"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor[1:] in anchors, f"{page.name} links to {target}{anchor}, a heading that isn't there"


def test_moved_files_are_noticed():
    text = "`docs/gone.md`, `include/deep_gemm_rocm/hardware/wave.h`, `hardware/*.h`, `torch/nn`, `x.y`, `wave.h`"
    text += (
        ", `gone.h`, `python benchmarks/gone.py --fast`\n```sh\npython examples/gone.py\npython examples/moe.py\n```\n"
    )
    missing = [name for name in paths_named(text) if not exists(name)]
    assert missing == ["docs/gone.md", "gone.h", "benchmarks/gone.py", "examples/gone.py"]


def test_every_public_function_is_described():
    named = set(CODE.findall((ROOT / "docs/api.md").read_text()))
    assert not set(dg.__all__) - named


def test_the_functions_that_are_described_exist():
    rows = re.findall(r"^\| (`[^|]+`) \|", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    names = [name for row in rows for name in CODE.findall(row) if not name.startswith("DG_")]
    assert not set(names) - set(dg.__all__)
    assert len(names) == len(set(names)), "a function is described twice"
