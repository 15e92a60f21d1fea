"""The kernels of a code object by the names that their source gives them."""

from __future__ import annotations

import ctypes
import functools
import io
import re
from collections.abc import Mapping
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from typing import Any


@functools.lru_cache(maxsize=64)
def kernel_names(image: bytes) -> Mapping[str, str]:
    """The symbol of each kernel of an ELF code object, and its name in the source without arguments, as in
    ``_Z4copyPfS_``: ``copy``. Empty for bundles, and where pyelftools isn't installed."""
    try:
        from elftools.common.exceptions import ELFError
        from elftools.elf.elffile import ELFFile
    except ImportError:
        return {}
    try:
        symbols: Any = ELFFile(io.BytesIO(image)).get_section_by_name(".dynsym")
        names = [symbol.name for symbol in symbols.iter_symbols()] if symbols else []
    except ELFError:
        return {}
    # A kernel's descriptor has its name with .kd (LLVM AMDGPU usage, "Symbols").
    return {name[:-3]: source_name(name[:-3]) for name in sorted(names) if name.endswith(".kd")}


def source_name(symbol: str) -> str:
    """A symbol without C++'s mangling, the result type and the arguments, as in ``gemm::tile<128, 4>``."""
    text = re.sub(r"^void ", "", _demangled(symbol))
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "<") - (character == ">")
        if character == "(" and depth == 0 and not text.startswith("(anonymous namespace)", place):
            return text[:place]
    return text


def matching(names: Mapping[str, str], wanted: str) -> list[str]:
    """The symbols that ``wanted`` can mean: a symbol, or a name in the source with or without template arguments."""
    if wanted in names:
        return [wanted]
    return [symbol for symbol, name in names.items() if wanted in (name, name.partition("<")[0])]


def listed_names(names: Mapping[str, str]) -> str:
    """The names in the source; kernels that share one (overloads) by their symbols, which tell them apart."""
    in_source = list(names.values())
    return ", ".join(sorted(name if in_source.count(name) == 1 else symbol for symbol, name in names.items()))


@functools.cache
def _demangled(symbol: str) -> str:
    if not symbol.startswith("_Z"):
        return symbol
    if text := _demangle(symbol):
        return text
    # GCC's demanglers before 13 don't know these. Decimals are fundamental types, too, and no code for gfx942 has them.
    text = _demangle(symbol.replace("DF16_", "Df").replace("DF16b", "Dd"))
    return text.replace("decimal32", "_Float16").replace("decimal64", "std::bfloat16_t") if text else symbol


def _demangle(symbol: str) -> str | None:
    try:
        cxx: Any = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return None
    cxx.__cxa_demangle.restype = c_void_p
    status = c_int()
    found = cxx.__cxa_demangle(c_char_p(symbol.encode()), None, byref(c_size_t()), byref(status))
    if status.value != 0 or not found:
        return None
    text = ctypes.string_at(found).decode()
    ctypes.CDLL(None).free(c_void_p(found))
    return text
