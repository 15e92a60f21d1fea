"""The dynamic symbols of a shared library, with their versions, as the loader sees them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

DYNSYM, VERSYM, VERDEF, VERNEED = 11, 0x6FFFFFFF, 0x6FFFFFFD, 0x6FFFFFFE
GLOBAL, WEAK = 1, 2


@dataclass(frozen=True)
class Symbol:
    name: str
    version: str  # empty where it has none
    is_default: bool  # what programs that name no version are linked to
    is_defined: bool = True


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def all_symbols(library: Path) -> list[Symbol]:
    data = Path(library).read_bytes()
    at, entry, count = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, at + i * entry) for i in range(count)]
    kinds = {section[1]: section for section in sections}
    strings = {section[1]: data[sections[section[6]][4] :] for section in sections if section[6] < count}
    versions: dict[int, str] = {}
    if VERDEF in kinds:
        at = kinds[VERDEF][4]
        for _ in range(kinds[VERDEF][7]):
            _, _, index, _, _, name, after = struct.unpack_from("<HHHHIII", data, at)
            versions[index] = _text(strings[VERDEF], struct.unpack_from("<I", data, at + name)[0])
            at += after
    if VERNEED in kinds:
        at = kinds[VERNEED][4]
        for _ in range(kinds[VERNEED][7]):
            _, parts, _, first, after = struct.unpack_from("<HHIII", data, at)
            part = at + first
            for _ in range(parts):
                _, _, index, name, following = struct.unpack_from("<IHHII", data, part)
                versions[index] = _text(strings[VERNEED], name)
                part += following
            at += after
    symbols = []
    _, _, _, _, offset, size, *_ = kinds[DYNSYM]
    for i in range(1, size // 24):
        name, info, _, section, _, _ = struct.unpack_from("<IBBHQQ", data, offset + 24 * i)
        if info >> 4 not in (GLOBAL, WEAK):
            continue
        index = struct.unpack_from("<H", data, kinds[VERSYM][4] + 2 * i)[0] if VERSYM in kinds else 1
        version = versions.get(index & 0x7FFF, "") if index & 0x7FFF > 1 else ""
        symbols.append(Symbol(_text(strings[DYNSYM], name), version, not index >> 15, section != 0))
    return symbols


def dynamic_symbols(library: Path) -> list[Symbol]:
    """Those that the library defines, without the names of its versions."""
    found = [symbol for symbol in all_symbols(library) if symbol.is_defined]
    return [symbol for symbol in found if symbol.name != symbol.version]
