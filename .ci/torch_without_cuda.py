"""Installs a torch of PyPI, where x86-64 has CUDA builds only, without gigabytes of CUDA that CPU tensors don't need.

usage: torch_without_cuda.py PYTHON REQUIREMENT ZIG [REQUIREMENT ...]

``PYTHON`` is the interpreter of a virtual environment, the first requirement names the torch, and others are installed
beside it. CUDA's libraries are made here, but for the small ones that torch calls when it is loaded: they have every
function that torch looks for, and a process that calls one is ended by an illegal instruction.
"""

import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from elftools.elf.elffile import ELFFile
from packaging.requirements import Requirement

CUDA = ("cuda", "nvidia", "triton")
NEEDED_TO_LOAD = ("nvidia-cuda-runtime", "nvidia-cuda-cupti", "nvidia-nvtx")
EXTRAS_NEEDED_TO_LOAD = "cudart,cupti,nvtx"
LIBRARIES = ("libcu", "libnccl", "libnv")

_METADATA = """
import importlib.metadata, sysconfig
print(sysconfig.get_path("platlib"), *importlib.metadata.requires("torch"), sep="\\n")
"""


def main(python: str, torch: str, zig: str, *others: str) -> None:
    install = [python, "-m", "pip", "install", "-q"]
    subprocess.run([*install, "--no-deps", torch], check=True)
    told = subprocess.run([python, "-c", _METADATA], check=True, capture_output=True, text=True).stdout
    site_packages, *required = told.splitlines()
    subprocess.run([*install, *filter(None, map(small, required)), *others], check=True)
    make_libraries(Path(site_packages), zig)


def small(line: str) -> str | None:
    """The requirement to install for one of torch's, without the CUDA libraries that nothing calls here; or None."""
    requirement = Requirement(line)
    if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
        return None
    if requirement.name == "cuda-toolkit":
        return f"cuda-toolkit[{EXTRAS_NEEDED_TO_LOAD}]{requirement.specifier}"
    if requirement.name.startswith(CUDA):
        return f"{requirement.name}{requirement.specifier}" if requirement.name.startswith(NEEDED_TO_LOAD) else None
    return f"{requirement.name}{requirement.specifier}"


def make_libraries(site_packages: Path, zig: str) -> None:
    torch = site_packages / "torch" / "lib"
    there = {path.name for path in site_packages.rglob("*.so*")}
    functions = defaultdict(set)  # by library and version
    for path in torch.glob("*.so*"):
        with path.open("rb") as file:
            elf = ELFFile(file)
            for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED"):
                functions[tag.needed, ""]
            versions = {
                version["vna_other"]: (library.name, version.name)
                for library, its_versions in elf.get_section_by_name(".gnu.version_r").iter_versions()
                for version in its_versions
            }
            indices = elf.get_section_by_name(".gnu.version")
            for number, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
                if symbol["st_shndx"] == "SHN_UNDEF" and symbol["st_info"]["bind"] == "STB_GLOBAL":
                    functions[versions.get(indices.get_symbol(number)["ndx"], ("", ""))].add(symbol.name)
    unversioned = {name for name in functions["", ""] if name.lower().startswith(("cu", "nccl", "nv"))}
    missing = sorted({library for library, _ in functions if library.startswith(LIBRARIES)} - there)
    for library in missing:
        of_library = {version: names for (name, version), names in functions.items() if name == library and version}
        make_library(torch / library, zig, of_library, unversioned)
    print("made in place of CUDA's, whose packages pip misses above:", *missing)


def make_library(path: Path, zig: str, functions: dict[str, set[str]], unversioned: set[str]) -> None:
    """A shared library whose ``functions``, by version, and ``unversioned`` ones end the process."""
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder, "functions.s"), Path(folder, "versions")
        names = sorted(unversioned.union(*functions.values()))
        labels = (f".globl {name}\n.type {name}, @function\n{name}:\n" for name in names)
        source.write_text(f'.text\n{"".join(labels)}ud2\n.section .note.GNU-stack, ""\n', encoding="ascii")
        script.write_text(
            "".join(f"{version} {{ {'; '.join(sorted(of))}; }};\n" for version, of in functions.items()),
            encoding="ascii",
        )
        subprocess.run([zig, "clang", "-target", "x86_64-linux-gnu", "-c", source, "-o", f"{source}.o"], check=True)
        versions = ["--version-script", script] if functions else []
        link = [zig, "ld.lld", "-shared", "-soname", path.name, *versions, f"{source}.o", "-o", path]
        subprocess.run(link, check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
