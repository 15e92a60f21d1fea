"""Checks that a wheel's libraries load wherever its platform tag says, as ``auditwheel`` would.

Also checks that its metadata name the repository's address, if that is given.

usage: python .ci/check_wheel.py WHEEL [ADDRESS]   (needs pyelftools)
"""

from __future__ import annotations

import io
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

# The libraries that manylinux allows, as far as ours need them.
SYSTEM_LIBRARIES = {"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2"}


def allowed_glibc(wheel: Path) -> tuple[int, int]:
    """The glibc of the platform tag.

    Raises:
        SystemExit: it has another platform, or is for one Python only.
    """
    match = re.search(r"-py3-none-manylinux_(\d+)_(\d+)_x86_64\.whl$", wheel.name)
    if match is None:
        raise SystemExit(f"{wheel.name} must be tagged py3-none-manylinux_X_Y_x86_64")
    return int(match[1]), int(match[2])


def complaints(name: str, library: bytes, glibc: tuple[int, int]) -> Iterator[str]:
    """Reasons why a machine with this glibc may fail to load the library."""
    elf = ELFFile(io.BytesIO(library))
    if elf["e_machine"] != "EM_X86_64":
        yield f"{name} is for {elf['e_machine']}"
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            needed = {tag.needed for tag in section.iter_tags("DT_NEEDED")}
            for other in sorted(needed - SYSTEM_LIBRARIES):
                yield f"{name} needs {other}"
            if any(True for which in ("DT_RPATH", "DT_RUNPATH") for _ in section.iter_tags(which)):
                yield f"{name} has a run path"
        if isinstance(section, GNUVerNeedSection):
            for version in sorted({aux.name for _, all_aux in section.iter_versions() for aux in all_aux}):
                match = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", version)
                if match is None or (int(match[1]), int(match[2])) > glibc:
                    yield f"{name} needs {version}"
    symbols = elf.get_section_by_name(".dynsym")
    if not name.endswith(".abi3.so") and any(re.match(r"_?Py[A-Z_]", symbol.name) for symbol in symbols.iter_symbols()):
        yield f"{name} needs a Python"


def check(wheel: Path, home: str | None = None) -> list[str]:
    glibc = allowed_glibc(wheel)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        libraries = [name for name in names if name.endswith(".so")]
        found = [what for name in libraries for what in complaints(name, archive.read(name), glibc)]
        metadata = [archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")]
    if not libraries:
        found.append(f"{wheel.name} has no libraries")
    if home is not None and not any(f"Project-URL: Source, {home}\n" in text for text in metadata):
        found.append(f"{wheel.name} doesn't name its source, {home}")
    return found


if __name__ == "__main__":
    wheel, *home = sys.argv[1:]
    found = check(Path(wheel), *home)
    sys.exit("\n".join(found) if found else 0)
