"""Plants mistakes one by one in a copy of the checkout, and reports which of them the tests notice.

python tests/mistakes/run.py                     # all
python tests/mistakes/run.py --area kernels --name tail --jobs 2
python tests/mistakes/run.py --sample 12 --seed today
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from planted import ROOT, Mistake, load
from rich.console import Console
from rich.markup import escape
from rich.table import Table

_BUILD = Path("build/simulator")
_LIB = Path("deep_gemm_rocm/simulator/lib")
_LAUNCH = Path("deep_gemm_rocm/launch")
_MODULE = "_repeat.abi3.so"
_SECONDS = 300  # limit of one mistake's tests; a hang counts as noticed
_ALL_SECONDS = 3600
_NOT_COLLECTED = {2: "the tests can't be collected", 3: "pytest failed", 4: "there is no such test", 5: "no test ran"}
_KINDS = ("caught", "MISSED", "broken", "known to be missed", "skipped")
_COLOURS = dict(zip(_KINDS, ("green", "red", "red", "yellow", "yellow"), strict=True))

console = Console(highlight=False)


class BrokenError(Exception):
    """A mistake can't be tried; the message says why."""


class Outcome(NamedTuple):
    """Attributes:
    kind: one of ``_KINDS``.
    detail: the test that noticed the mistake, or the reason why it can't be tried or is skipped.
    """

    kind: str
    detail: str
    seconds: float


class Checkout:
    """A copy of the checkout with its built simulator."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self.cache = cache
        listed = _output("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
        for name in filter(None, listed):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        self._copy_built()
        self._libraries = ("libamdhip64.so", f"libmi300x_{_engine_level()}.so")
        command = [sys.executable, Path(__file__).with_name("pytest_server.py")]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @contextlib.contextmanager
    def with_mistake(self, mistake: Mistake) -> Iterator[None]:
        """
        Raises:
            BrokenError: the mistake can't be planted, or doesn't compile.
        """
        file = self.folder / mistake.file
        kept = file.with_name(file.name + ".kept")
        shutil.copy2(file, kept)
        try:
            planted = mistake.planted_in(file.read_text())
            file.write_text(planted)
            if mistake.is_of_simulator:
                self._build(_LIB, *self._libraries)
            elif mistake.is_of_module:
                self._build(_LAUNCH, _MODULE)
            yield
        except ValueError as error:
            raise BrokenError(str(error)) from error
        finally:
            os.replace(kept, file)  # keeps the modification time, so that nothing is rebuilt
            if mistake.is_of_simulator or mistake.is_of_module:
                self._copy_built()

    def _copy_built(self) -> None:
        shutil.copytree(ROOT / _LIB, self.folder / _LIB, dirs_exist_ok=True)
        if (ROOT / _LAUNCH / _MODULE).exists():
            shutil.copy2(ROOT / _LAUNCH / _MODULE, self.folder / _LAUNCH / _MODULE)

    def _build(self, to: Path, *libraries: str) -> None:
        """Builds some libraries incrementally."""
        if not (ROOT / _BUILD / "build.ninja").exists():
            raise BrokenError("the libraries were not built in this checkout: run `pip install -e .`")
        shutil.rmtree(self.folder / _BUILD, ignore_errors=True)
        shutil.copytree(ROOT / _BUILD, self.folder / _BUILD)
        import ninja

        program = Path(ninja.BIN_DIR, "ninja")
        command = [program, "-C", self.folder / _BUILD, *libraries]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            errors = [line for line in done.stdout.splitlines() if "error:" in line]
            raise BrokenError("it doesn't compile: " + "".join(errors[:1]))
        for name in libraries:
            shutil.copy2(self.folder / _BUILD / name, self.folder / to / name)

    def run_tests(self, tests: Sequence[str], seconds: int, *options: str, own_cache: bool = False) -> tuple[int, str]:
        """Runs pytest; returns its exit code, also after a crash or a hang, and its output.

        Args:
            own_cache: whether kernels are compiled anew and forgotten.
        """
        with tempfile.TemporaryDirectory() as scratch:
            log = Path(scratch, "log")
            request = {
                "folder": str(self.folder),
                "environment": {
                    "PYTHONPATH": str(self.folder),
                    "DG_JIT_CACHE_DIR": f"{scratch}/cache" if own_cache else str(self.cache),
                    "DG_DEVICE": "sim",
                    "TMPDIR": scratch,  # a mistake may remove what others keep there
                },
                "arguments": ["-q", "-p", "no:cacheprovider", "--tb=short", *options, *tests],
                "log": str(log),
                "seconds": seconds,
            }
            print(json.dumps(request), file=self._server.stdin, flush=True)
            assert self._server.stdout
            answer = self._server.stdout.readline()
            if not answer:
                raise RuntimeError("the process that forks pytest has ended")
            return int(answer), log.read_text(errors="replace")


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def _engine_level() -> str:
    """The x86-64 level of the simulator's engine: DG_SIM_ENGINE, or else the highest level of this processor, as in
    engine_library.cpp."""
    if forced := os.environ.get("DG_SIM_ENGINE"):
        return forced
    flags = set(re.findall(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[0].split())
    if not {"avx2", "bmi2", "fma", "movbe"} <= flags:
        return "x86-64"
    return "x86-64-v4" if {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"} <= flags else "x86-64-v3"


def _tried(mistake: Mistake, checkout: Checkout) -> Outcome:
    start = time.perf_counter()

    def outcome(kind: str, detail: str) -> Outcome:
        return Outcome(kind, detail, time.perf_counter() - start)

    try:
        with checkout.with_mistake(mistake):
            code, log = checkout.run_tests(mistake.tests, _SECONDS, "-x", own_cache=mistake.is_of_cache)
    except BrokenError as error:
        return outcome("broken", str(error))
    if code == 0 and not _has_passed(log):
        # Without the mistake, which may itself be why they are skipped.
        code_without, log = checkout.run_tests(mistake.tests, _SECONDS)
        if code_without == 0 and not _has_passed(log):
            return outcome("skipped", "all of its tests are skipped here, such as those that need llvm-objdump")
    if code == 0:
        return outcome("known to be missed" if mistake.missed else "MISSED", mistake.missed)
    if code in _NOT_COLLECTED:
        return outcome("broken", _NOT_COLLECTED[code])
    if mistake.is_of_kernels and re.search(r"^E .*CompileError", log, re.MULTILINE):
        errors = re.findall(r"\berror: .*", log)
        return outcome("broken", "the kernel doesn't compile: " + "".join(errors[:1]))
    if code < 0:
        return outcome("caught", f"the process ended with signal {-code}")
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", log, re.MULTILINE)
    return outcome("caught", failed[0] if failed else f"exit code {code}")


def _has_passed(log: str) -> bool:
    return re.search(r"^\d+ passed", log, re.MULTILINE) is not None


def _chosen(area: str | None, name: str | None, sample: int | None, seed: str) -> list[Mistake]:
    chosen = [
        mistake
        for mistake in load()
        if area in (None, mistake.area) and (name is None or name.lower() in mistake.name.lower())
    ]
    if sample is not None and sample < len(chosen):
        picked = random.Random(seed).sample(range(len(chosen)), sample)
        chosen = [chosen[index] for index in sorted(picked)]
    return chosen


def _summary(mistakes: Sequence[Mistake], outcomes: Sequence[Outcome]) -> Table:
    table = Table("area", *_KINDS, "of")
    for column in table.columns[1:]:
        column.justify = "right"
    counted = Counter((mistake.area, outcome.kind) for mistake, outcome in zip(mistakes, outcomes, strict=True))
    areas = list(dict.fromkeys(mistake.area for mistake in mistakes))
    rows = [(area, [counted[area, kind] for kind in _KINDS]) for area in areas]
    rows.append(("all", [sum(column) for column in zip(*(counts for _, counts in rows), strict=True)]))
    for area, counts in rows:
        table.add_row(area, *map(str, counts), str(sum(counts)), end_section=area == areas[-1])
    return table


def main(
    area: Annotated[str | None, typer.Option(help="Only mistakes in one file of this folder.")] = None,
    name: Annotated[str | None, typer.Option(help="Only mistakes with this text in their names.")] = None,
    sample: Annotated[int | None, typer.Option(help="Only so many, chosen at random.", min=1)] = None,
    seed: Annotated[str, typer.Option(help="What the choice depends on.")] = "",
    jobs: Annotated[int, typer.Option(help="So many at once.", min=1)] = 1,
    check: Annotated[bool, typer.Option(help="Run the tests without any mistake before.")] = True,
) -> None:
    """Plant mistakes in a copy of the checkout and see the tests fail."""
    mistakes = _chosen(area, name, sample, seed)
    if not mistakes:
        console.print("there is no such mistake")
        raise typer.Exit(2)
    cache = Path(os.environ.get("DG_JIT_CACHE_DIR") or ROOT / "build/mistakes-cache")
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mistakes-") as scratch:
        checkouts: queue.Queue[Checkout] = queue.Queue()
        for number in range(jobs):
            checkouts.put(Checkout(Path(scratch, str(number)), cache))
        if check:
            _check(checkouts.queue[0], mistakes, jobs)

        def tried(mistake: Mistake) -> Outcome:
            checkout = checkouts.get()
            outcome = _tried(mistake, checkout)
            checkouts.put(checkout)
            colour, detail = _COLOURS[outcome.kind], escape(outcome.detail)
            console.print(
                f"[{colour}]{outcome.kind:7}[/] {outcome.seconds:4.0f} s  {mistake.area}: {escape(mistake.name)}"
                f"[dim]  {detail}[/]",
                soft_wrap=True,
            )
            return outcome

        with ThreadPoolExecutor(jobs) as pool:
            outcomes = list(pool.map(tried, mistakes))
    console.print(_summary(mistakes, outcomes))
    wrong = {"MISSED", "broken"} & {outcome.kind for outcome in outcomes}
    told = [m.name for m, outcome in zip(mistakes, outcomes, strict=True) if m.missed and outcome.kind == "caught"]
    if told:
        console.print(f"said to be missed, but caught: {escape(', '.join(told))}")
    raise typer.Exit(1 if wrong or told else 0)


def _check(checkout: Checkout, mistakes: Sequence[Mistake], jobs: int) -> None:
    """Runs the tests of all mistakes, which must pass without any mistake."""
    tests = list(dict.fromkeys(test for mistake in mistakes for test in mistake.tests))
    start = time.perf_counter()
    code, log = checkout.run_tests(tests, _ALL_SECONDS, *(["-n", str(jobs)] if jobs > 1 else []))
    if code:
        console.print(escape(log))
        console.print("[red]these tests fail without any mistake[/]")
        raise typer.Exit(2)
    console.print(f"without any mistake the tests pass, in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    typer.run(main)
