"""Builds what is compiled in advance; everything else about the package is in pyproject.toml.

The simulated MI300X: one library implements the HIP API (csrc/hip) and one engine for each x86-64 level executes gfx942
machine code (csrc/engine). They are plain C++17 behind a C ABI. A Python module makes repeated calls cheap
(deep_gemm_rocm/launch/csrc); it keeps to Python's stable ABI, and Python code takes its place where it can't be loaded
or built. So nothing depends on the Python version, and one wheel serves all.
"""

from __future__ import annotations

import fcntl
import functools
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from email import message_from_bytes
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
BUILD = Path("build/simulator")
SIMULATOR = Path("deep_gemm_rocm/simulator")
LAUNCH = Path("deep_gemm_rocm/launch")
X86_64_LEVELS = ("x86-64", "x86-64-v3", "x86-64-v4")
# The highest level that makes a folder of the engine faster. Its objects of this level go into the engines of higher
# levels, too, which halves the time to build it. No type or argument that folders share depends on the level.
HIGHEST_LEVEL = {"matrix": "x86-64-v4", "execution": "x86-64-v3"}

COMMON_FLAGS = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra"]
# The engine must compute exactly the chip's results: no contraction of FMAs, no assumptions about rounding or aliasing.
ENGINE_FLAGS = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing"]
# By default, GCC sets and copies a few hundred bytes with string instructions, whose start-up dominates.
GCC_FLAGS = [f"-m{f}-strategy=vector_loop:256:noalign,libcall:-1:noalign" for f in ("memset", "memcpy")]
# Without these, clang warns of loops that it can't vectorise as requested, and of libstdc++ 12's own std::stable_sort.
CLANG_FLAGS = ["-Wno-pass-failed", "-Wno-deprecated-declarations"]
# nodelete: threads and handles of the libraries outlive a dlclose. -Bsymbolic: the libraries call their own functions,
# even if another HIP library is in the process.
LINK_FLAGS = ["-shared", "-pthread", "-Wl,-z,nodelete", "-Wl,-Bsymbolic"]
# A wheel may be installed where another C++ library, or none, is available.
STATIC_RUNTIME = ["-static-libstdc++", "-static-libgcc"]

ZIG = [sys.executable, "-m", "ziglang", "c++"]


def complaint(compiler: list[str]) -> str:
    """The reason why the compiler can't build a C++17 shared library for the highest x86-64 level; empty if it can."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cpp")
        source.write_text(
            "#include <string>\nstd::string probe(int i) { return std::to_string(i); }\n", encoding="ascii"
        )
        flags = ["-std=c++17", "-march=x86-64-v4", "-fPIC", "-shared", *STATIC_RUNTIME]
        command = [*compiler, *flags, str(source), "-o", str(Path(folder, "probe.so"))]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            return str(error)
        return "" if done.returncode == 0 else done.stderr.strip() or f"it ended with status {done.returncode}"


@functools.cache
def system_compiler() -> list[str] | None:
    """The machine's C++ compiler: $CXX, or the first of c++, g++ and clang++ that works; else None."""
    if chosen := shlex.split(os.environ.get("CXX", "")):
        if why := complaint(chosen):
            raise SystemExit(
                f"CXX={shlex.join(chosen)} can't build a C++17 shared library with -march=x86-64-v4: {why}\n"
                "name another compiler, or unset CXX to have g++, clang++ or ziglang found"
            )
        return chosen
    return next(([name] for name in ("c++", "g++", "clang++") if shutil.which(name) and not complaint([name])), None)


def is_gcc(compiler: list[str]) -> bool:
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True).stdout
    return "Free Software Foundation" in version


class Toolchain:
    """The compiler, and the flags that differ between compilers."""

    def __init__(self) -> None:
        compiler = system_compiler()
        self.is_zig = compiler is None
        self.compiler = compiler or ZIG
        if self.is_zig:
            if importlib.util.find_spec("ziglang") is None:
                raise SystemExit("no C++ compiler: install g++ or clang++, or `pip install ziglang`")
            # The glibc is manylinux_2_28's. By default, zig makes undefined behaviour trap and adds debug information.
            self.flags = ["-target", "x86_64-linux-gnu.2.28", "-fno-sanitize=undefined", "-g0", *CLANG_FLAGS]
            self.link_flags = ["-s"]
        else:
            self.flags = GCC_FLAGS if is_gcc(self.compiler) else CLANG_FLAGS
            self.link_flags = STATIC_RUNTIME

    def march(self, level: str) -> str:
        return "-march=" + (level.replace("-", "_") if self.is_zig else level)


class Library(Extension):
    """A shared library without a Python interface, for one x86-64 level."""

    suffix = ".so"

    def __init__(self, name: str, folder: Path, level: str, flags: list[str], link_flags: list[str]) -> None:
        sources = sorted(str(path) for path in folder.rglob("*.cpp"))
        self.exports = ROOT / folder.with_suffix(".map")  # version script of exported symbols
        super().__init__(name, sources, language="c++")
        self.level = level
        self.flags = flags
        self.link_flags = link_flags

    def level_of(self, source: str) -> str:
        """The level for which a source is compiled."""
        return min(self.level, HIGHEST_LEVEL.get(Path(source).parent.name, X86_64_LEVELS[0]), key=X86_64_LEVELS.index)


class Module(Library):
    """A Python module that keeps to the stable ABI."""

    suffix = ".abi3.so"


def simulator_library(name: str, folder: str, level: str, flags: list[str]) -> Library:
    link_flags = ["-Wl,-z,defs", "-ldl"]
    return Library(f"deep_gemm_rocm.simulator.lib.{name}", SIMULATOR / "csrc" / folder, level, flags, link_flags)


def python_modules() -> list[Library]:
    """The module for repeated calls, where Python has its headers and the stable ABI."""
    headers = Path(sysconfig.get_path("include"))
    if sysconfig.get_config_var("Py_GIL_DISABLED") or not (headers / "Python.h").exists():
        print(f"no stable ABI or no {headers / 'Python.h'}: Python code will describe calls, which takes microseconds")
        return []
    # Debian's pyconfig.h includes another one, relative to the folder above.
    flags = ["-isystem", str(headers), "-idirafter", str(headers.parent)]
    return [Module("deep_gemm_rocm.launch._repeat", LAUNCH / "csrc/repeat", "x86-64", flags, [])]


LIBRARIES = [
    simulator_library("libamdhip64", "hip", "x86-64", []),
    *(simulator_library(f"libmi300x_{level}", "engine", level, ENGINE_FLAGS) for level in X86_64_LEVELS),
    *python_modules(),
]


class BuildLibraries(build_ext):
    """Builds all libraries with one ninja file: in parallel, and incrementally across `pip install -e .` runs."""

    def copy_extensions_to_source(self) -> None:
        (ROOT / SIMULATOR / "lib").mkdir(exist_ok=True)
        super().copy_extensions_to_source()

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + self.ext_map[fullname].suffix

    def build_extensions(self) -> None:
        if (sys.platform, platform.machine()) != ("linux", "x86_64"):
            raise SystemExit(f"deep_gemm_rocm needs Linux on x86-64, this is {sys.platform} on {platform.machine()}")
        # build_temp won't do: in an editable install it is temporary, so that every build would be a full one.
        folder = ROOT / BUILD
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Paths may have bytes that the locale's encoding lacks.
            (folder / "build.ninja").write_bytes(os.fsencode(self.ninja_file(Toolchain())))
            if subprocess.run([ninja_program(), "-C", str(folder)]).returncode != 0:
                raise SystemExit("the libraries did not compile: the compiler's messages are above")
            for library in self.extensions:
                target = Path(self.get_ext_fullpath(library.name))
                target.parent.mkdir(parents=True, exist_ok=True)
                self.copy_file(str(folder / target.name), str(target))

    def ninja_file(self, toolchain: Toolchain) -> str:
        compiler = shlex.join([*toolchain.compiler, *toolchain.flags])
        lines = [
            "rule compile",
            f"  command = {compiler} $flags -MMD -MF $out.d -c $in -o $out",
            "  depfile = $out.d",
            "  deps = gcc",
            "rule link",
            f"  command = {compiler} {shlex.join([*LINK_FLAGS, *toolchain.link_flags])} $in -o $out $flags",
        ]
        compiled = set()
        for library in self.extensions:
            file = library.name.rpartition(".")[2] + library.suffix
            objects = []
            for source in library.sources:
                level = library.level_of(source)
                objects.append(f"{level}/{source.partition('csrc/')[2].removesuffix('.cpp')}.o")
                if objects[-1] not in compiled:
                    compiled.add(objects[-1])
                    flags = shlex.join([*COMMON_FLAGS, *library.flags, toolchain.march(level)])
                    lines += [f"build {objects[-1]}: compile {ninja_path(ROOT / source)}", f"  flags = {flags}"]
            exports = f"-Wl,--version-script={from_build(library.exports)}"
            link_flags = shlex.join([f"-Wl,-soname,{file}", exports, *library.link_flags])
            inputs = f"{' '.join(objects)} | {ninja_path(library.exports)}"
            lines += [f"build {file}: link {inputs}", f"  flags = {link_flags}"]
        return "\n".join(lines) + "\n"


def from_build(path: Path) -> str:
    """The path relative to the build folder, so that a copied checkout builds incrementally, too."""
    return os.path.relpath(path, ROOT / BUILD)


def ninja_path(path: Path) -> str:
    return from_build(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def ninja_program() -> str:
    import ninja

    return str(Path(ninja.BIN_DIR, "ninja"))


def project_urls() -> dict[str, str]:
    """The pages that the package's metadata name.

    The repository's own are known where ``DG_PROJECT_HOME`` names its address, as in the release workflow, and in a
    source distribution that was built there, whose metadata keep them.
    """
    upstream = {
        "DeepGEMM": "https://github.com/deepseek-ai/DeepGEMM",
        "Numerics of the matrix cores": "https://arxiv.org/abs/2511.10909",
    }
    if home := os.environ.get("DG_PROJECT_HOME"):
        pages = {"Source": "", "Documentation": "/tree/HEAD/docs", "Changelog": "/blob/HEAD/CHANGELOG.md"}
        pages["Issues"] = "/issues"
        return {**{label: home + page for label, page in pages.items()}, **upstream}
    metadata = ROOT / "PKG-INFO"
    if not metadata.exists():
        return upstream
    listed = message_from_bytes(metadata.read_bytes()).get_all("Project-URL", [])
    return dict(entry.split(", ", 1) for entry in listed)


class PlatformWheel(bdist_wheel):
    """Tags the wheel for the platform, but for any Python version and ABI."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    project_urls=project_urls(),
    packages=[*find_packages(include=["deep_gemm_rocm*"]), "deep_gemm_rocm.include"],
    package_dir={"deep_gemm_rocm.include": "include"},
    ext_modules=LIBRARIES,
    cmdclass={"build_ext": BuildLibraries, "bdist_wheel": PlatformWheel},
    # pip installs ziglang into the build environment if the machine has no compiler.
    setup_requires=[] if system_compiler() else ["ziglang"],
)
