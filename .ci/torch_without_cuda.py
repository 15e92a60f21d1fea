"""Makes a CUDA build of torch importable without CUDA's libraries: gigabytes of packages that CPU tensors don't need.

usage: torch_without_cuda.py SITE_PACKAGES ZIG

PyPI has torch for x86-64 as CUDA builds only. Libraries that torch's own need and that are not there are made here,
with every function that torch looks for; a process that calls one is ended by an illegal instruction.
"""

import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from elftools.elf.elffile import ELFFile

PREFIXES = ("libcu", "libnccl", "libnv")


def main(site_packages: str, zig: str) -> None:
    torch = Path(site_packages, "torch", "lib")
    there = {path.name for path in Path(site_packages).rglob("*.so*")}
    functions = defaultdict(set)  # by library and version
    for path in torch.glob("*.so*"):
        with path.open("rb") as file:
            elf = ELFFile(file)
            for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED"):
                functions[tag.needed, ""]
            names_of = {
                version["vna_other"]: (library.name, version.name)
                for library, versions in elf.get_section_by_name(".gnu.version_r").iter_versions()
                for version in versions
            }
            of_symbol = elf.get_section_by_name(".gnu.version")
            for index, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
                if symbol["st_shndx"] == "SHN_UNDEF" and symbol["st_info"]["bind"] == "STB_GLOBAL":
                    version = of_symbol.get_symbol(index)["ndx"]
                    functions[names_of.get(version, ("", ""))].add(symbol.name)
    unversioned = {name for name in functions["", ""] if name.lower().startswith(("cu", "nccl", "nv", "__cu"))}
    missing = {library for library, _ in functions if library.startswith(PREFIXES)} - there
    for library in sorted(missing):
        make(torch / library, zig, {v: f for (name, v), f in functions.items() if name == library and v}, unversioned)
    print("made", *sorted(missing))


def make(path: Path, zig: str, functions: dict[str, set[str]], unversioned: set[str]) -> None:
    """A shared library whose ``functions``, by version, and ``unversioned`` ones end the process."""
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder, "functions.s"), Path(folder, "versions")
        names = sorted(unversioned.union(*functions.values()))
        labels = (f".globl {name}\n.type {name}, @function\n{name}:\n" for name in names)
        source.write_text(f'.text\n{"".join(labels)}ud2\n.section .note.GNU-stack, ""\n')
        script.write_text("".join(f"{version} {{ {'; '.join(sorted(of))}; }};\n" for version, of in functions.items()))
        subprocess.run([zig, "clang", "-target", "x86_64-linux-gnu", "-c", source, "-o", f"{source}.o"], check=True)
        versions = ["--version-script", script] if functions else []
        subprocess.run(
            [zig, "ld.lld", "-shared", "-soname", path.name, *versions, f"{source}.o", "-o", path], check=True
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
