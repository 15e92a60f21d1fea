"""The dynamic symbols of a shared library, with their versions, as the loader sees them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerDefSection, GNUVerNeedSection, GNUVerSymSection

HIDDEN = 0x8000  # the version is not the default


@dataclass(frozen=True)
class Symbol:
    name: str
    version: str  # empty if the symbol has none
    is_default: bool
    is_defined: bool


def _versions(elf: ELFFile) -> dict[int, str]:
    names = {}
    for section in elf.iter_sections():
        if isinstance(section, GNUVerDefSection):
            for version, aux in section.iter_versions():
                names[version["vd_ndx"]] = next(iter(aux)).name
        if isinstance(section, GNUVerNeedSection):
            names |= {aux["vna_other"]: aux.name for _, all_aux in section.iter_versions() for aux in all_aux}
    return names


def all_symbols(library: Path) -> list[Symbol]:
    with Path(library).open("rb") as file:
        elf = ELFFile(file)
        names = _versions(elf)
        numbers = next((s for s in elf.iter_sections() if isinstance(s, GNUVerSymSection)), None)
        found = []
        for i, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
            if symbol["st_info"]["bind"] not in ("STB_GLOBAL", "STB_WEAK"):
                continue
            number = numbers.get_symbol(i)["ndx"] if numbers else "VER_NDX_GLOBAL"
            index = number if isinstance(number, int) else 0
            version = names.get(index & ~HIDDEN, "") if index & ~HIDDEN > 1 else ""
            defined = symbol["st_shndx"] != "SHN_UNDEF"
            found.append(Symbol(symbol.name, version, not index & HIDDEN, defined))
        return found


def dynamic_symbols(library: Path) -> list[Symbol]:
    """The symbols that the library defines, without the symbols that name its versions."""
    return [symbol for symbol in all_symbols(library) if symbol.is_defined and symbol.name != symbol.version]
