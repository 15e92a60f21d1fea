"""Runs programs as containers do: unknown users, no HOME, closed and read-only folders, umasks, the locale C, and two
versions that share a cache. Needs root, to become another user, and a Python that other users can run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
STRANGER = 54321  # a user id that no machine knows
# Computes and checks a GEMM, whose kernel depends on the type of the output, and prints what it took.
PROGRAM = """
import json, sys, torch
import deep_gemm_rocm as dg
from deep_gemm_rocm import testing

a, b = testing.gemm_problem(5, 32, 128)
d = torch.full((5, 32), torch.nan, dtype=getattr(torch, sys.argv[1]))
dg.fp8_gemm_nt(a, b, d)
assert testing.measure(d, testing.gemm_reference(a, b)).failures == 0
print(json.dumps({**dg.stats(), "version": dg.__version__}))
"""


class Done:
    """Output of a program that ended as it should."""

    def __init__(self, process: subprocess.CompletedProcess[str], *, fails: bool) -> None:
        self.text = process.stdout + process.stderr
        if bool(process.returncode) != fails:
            raise SystemExit(f"exit status {process.returncode} of {process.args}:\n{self.text}")
        self.stats = json.loads(process.stdout.splitlines()[-1]) if process.stdout.startswith("{") else {}

    def expect(self, *parts: str, **stats: int) -> None:
        """Checks that the output has all ``parts``, and that statistics are these."""
        missing = [part for part in parts if part not in self.text]
        wrong = {name: self.stats[name] for name, value in stats.items() if self.stats[name] != value}
        if missing or wrong:
            raise SystemExit(f"expected {missing} {stats}, got {wrong} in:\n{self.text}")


class Machine:
    """An installed package, and programs that run with it in other environments."""

    def __init__(self, scratch: Path, python: str, site_packages: str) -> None:
        self.scratch = scratch
        self.python = python
        self.site_packages = site_packages
        self.package = self.install("package")

    def install(self, name: str) -> Path:
        """Copies the package, as it is in a wheel; returns the folder for PYTHONPATH."""
        folder = self.scratch / name
        shutil.copytree(CHECKOUT / "deep_gemm_rocm", folder / "deep_gemm_rocm", ignore=shutil.ignore_patterns("*.pyc"))
        shutil.copytree(CHECKOUT / "include", folder / "deep_gemm_rocm" / "include")
        return folder

    def folder(self, name: str, mode: int = 0o755) -> Path:
        """A new folder of root's, which others may write to if ``mode`` says so."""
        path = self.scratch / name
        path.mkdir()
        path.chmod(mode)
        return path

    def run(
        self,
        *arguments: str,
        user: int = STRANGER,
        umask: int = 0o022,
        before: tuple[str, ...] = (),
        package: Path | None = None,
        cwd: Path | None = None,
        fails: bool = False,
        **environment: object,
    ) -> Done:
        """Runs Python with ``arguments``, in the locale C and an environment with nothing that it can do without.

        Args:
            before: words of the command before Python.
            package: where the package is; None for its usual place.
            fails: whether the program must fail.
        """
        found = {
            "PATH": os.defpath,
            "PYTHONPATH": f"{package or self.package}:{self.site_packages}",
            "LC_ALL": "C",
            "PYTHONUTF8": "0",
            "PYTHONCOERCECLOCALE": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "DG_DEVICE": "sim",
            "DG_TOOLCHAIN": "ziglang",
            **{name: str(value) for name, value in environment.items()},
        }
        as_user = {} if user == 0 else {"user": user, "group": user, "extra_groups": ()}
        command = [*before, self.python, *arguments]
        done = subprocess.run(
            command, env=found, cwd=cwd or "/", umask=umask, capture_output=True, text=True, check=False, **as_user
        )
        return Done(done, fails=fails)

    def gemm(self, output: str = "bfloat16", **arguments: object) -> Done:
        return self.run("-c", PROGRAM, output, **arguments)

    def info(self, **arguments: object) -> Done:
        return self.run("-m", "deep_gemm_rocm", "info", **arguments)


def a_cache_of_roots(machine: Machine) -> None:
    kernels = machine.folder("image") / "kernels"
    temporary = machine.folder("image-tmp", 0o1777)
    machine.gemm(user=0, DG_JIT_CACHE_DIR=kernels).expect(compiles=1)
    environment = {"DG_JIT_CACHE_DIR": kernels, "TMPDIR": temporary}
    machine.gemm(**environment).expect(compiles=0, cache_hits=1)
    machine.gemm("float32", **environment, DG_JIT_DEBUG=1).expect("can't be written", "new kernels go to", compiles=1)
    machine.gemm("float32", **environment).expect(compiles=0, cache_hits=1)
    machine.info(**environment).expect("(1 kernels", "can't be written", "Permission denied", "new kernels go to")


def a_closed_cache_of_roots(machine: Machine) -> None:
    kernels = machine.folder("closed") / "kernels"
    environment = {"DG_JIT_CACHE_DIR": kernels, "TMPDIR": machine.folder("closed-tmp", 0o1777)}
    machine.gemm(user=0, umask=0o077, DG_JIT_CACHE_DIR=kernels).expect(compiles=1)
    machine.gemm(**environment).expect(compiles=1)
    machine.info(**environment).expect("can't be read", "Permission denied", f"chmod -R a+rX {kernels}")


def no_home(machine: Machine) -> None:
    environment = {"TMPDIR": machine.folder("no-home", 0o1777)}
    machine.gemm(**environment).expect("no home directory", "set HOME, or DG_JIT_CACHE_DIR", compiles=1)
    machine.gemm(**environment).expect(compiles=0, cache_hits=1)
    machine.info(**environment).expect(f"deep_gemm_rocm_cache-{STRANGER} (1 kernels")


def umasks(machine: Machine) -> None:
    for umask in (0o000, 0o077):
        kernels = machine.folder(f"umask-{umask:o}", 0o1777) / "above" / "kernels"
        for hits in (0, 1):
            machine.gemm(umask=umask, DG_JIT_CACHE_DIR=kernels).expect(compiles=1 - hits, cache_hits=hits)
        loose = [path for path in (kernels.parent, *kernels.rglob("*")) if path.stat().st_mode & 0o022]
        if loose:
            raise SystemExit(f"under umask {umask:o} others may write to {loose}")


def the_checkout_as_working_directory(machine: Machine) -> None:
    temporary = machine.folder("checkout-tmp", 0o1777)
    checkout = machine.scratch / "checkout"
    shutil.copytree(CHECKOUT / "include", checkout / "include")
    shutil.copytree(CHECKOUT / "deep_gemm_rocm", checkout / "deep_gemm_rocm", ignore=shutil.ignore_patterns("*.pyc"))
    nothing = machine.folder("nothing")
    done = machine.gemm(package=nothing, cwd=checkout, TMPDIR=temporary, HOME="/")
    done.expect(compiles=1)
    machine.info(package=nothing, cwd=checkout, TMPDIR=temporary, HOME="/").expect(str(checkout))


def two_versions(machine: Machine) -> None:
    newer = machine.install("newer")
    for file, old, new in (
        ("__init__.py", '__version__ = "', '__version__ = "9.'),
        ("include/deep_gemm_rocm/hardware/types.h", "#pragma once\n", "#pragma once\n// newer\n"),
    ):
        path = newer / "deep_gemm_rocm" / file
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{file} has no {old}"
        path.write_text(text.replace(old, new), encoding="utf-8")
    kernels = machine.folder("shared", 0o1777) / "kernels"
    for hits in (0, 1):
        for package in (machine.package, newer):
            done = machine.gemm(package=package, DG_JIT_CACHE_DIR=kernels)
            done.expect(compiles=1 - hits, cache_hits=hits)
            assert done.stats["version"].startswith("9.") == (package == newer)


def a_read_only_root(machine: Machine) -> None:
    kernels = machine.folder("read-only") / "kernels"
    temporary = machine.folder("read-only-tmp")
    machine.gemm(user=0, DG_JIT_CACHE_DIR=kernels).expect(compiles=1)

    def read_only(options: str) -> tuple[str, ...]:
        mounts = f"mount -t tmpfs -o mode=1777,{options} none {temporary} && mount -o remount,ro,bind /"
        return "unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh"

    if subprocess.run([*read_only("exec"), "true"], capture_output=True, check=False).returncode:
        print("   no rights to mount: a read-only root was not tried")
        return
    environment = {"user": 0, "TMPDIR": temporary, "DG_JIT_CACHE_DIR": kernels}
    machine.gemm(before=read_only("exec"), **environment).expect(compiles=0, cache_hits=1)
    machine.gemm("float32", before=read_only("exec"), **environment).expect(compiles=1)
    machine.info(before=read_only("exec"), **environment).expect("can't be written", "Read-only file system")
    advised = machine.gemm("float32", before=read_only("noexec"), fails=True, **environment)
    advised.expect("mounted noexec: set DG_JIT_CACHE_DIR")


CHECKS = (
    a_cache_of_roots,
    a_closed_cache_of_roots,
    no_home,
    umasks,
    the_checkout_as_working_directory,
    two_versions,
    a_read_only_root,
)


def usable_python() -> tuple[str, str] | None:
    """A Python that the stranger can run, and where its packages are."""
    site_packages = sysconfig.get_path("purelib")
    for python in (sys.executable, f"/usr/bin/python{sysconfig.get_python_version()}"):
        try:
            command = [python, "-c", "import torch, ziglang"]
            subprocess.run(
                command, env={"PYTHONPATH": site_packages}, user=STRANGER, group=STRANGER, extra_groups=(), cwd="/",
                check=True, capture_output=True,
            )  # fmt: skip
        except (OSError, subprocess.CalledProcessError):
            continue
        return python, site_packages
    return None


def main() -> None:
    if os.geteuid() != 0:
        print("not root: containers were not tried")
        return
    python = usable_python()
    if python is None:
        print(f"other users can't run {sys.executable} with its packages: containers were not tried")
        return
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        machine = Machine(Path(folder), *python)

        def timed(check: Callable[[Machine], None]) -> None:
            start = time.perf_counter()
            check(machine)
            print(f"{check.__name__.replace('_', ' ')}: good, {time.perf_counter() - start:.0f} s", flush=True)

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(timed, CHECKS))


if __name__ == "__main__":
    main()
