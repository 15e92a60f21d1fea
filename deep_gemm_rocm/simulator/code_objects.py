"""Finds code for the chip in files that compilers write."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_ELF = b"\x7fELF"
_AMDGPU = 224  # e_machine
_BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
_PROCESSORS = ("gfx942", "gfx9-4-generic")


def code_objects(file: bytes) -> list[bytes]:
    """The code objects for gfx942 in a file: the file itself, the one of an offload bundle, or those of the bundles in
    a program or library for the host, as hipcc links them and as kernels are cached. Empty where there are none.

    Source: clang's "Clang Offload Bundler", Bundled Binary File Layout.
    """
    if file.startswith(_ELF) and int.from_bytes(file[18:20], "little") == _AMDGPU:
        return [file]
    found, start = [], file.find(_BUNDLE)
    while start >= 0:
        bundle = memoryview(file)[start:]
        entries = sorted((_PROCESSORS.index(processor), code) for processor, code in _entries(bundle) if code)
        found += [code for _, code in entries[:1]]
        start = file.find(_BUNDLE, start + len(_BUNDLE))
    return found


def _entries(bundle: memoryview) -> Iterator[tuple[str, bytes]]:
    """The processor and the code of each entry for this chip; none if the bundle is cut off."""
    try:
        (count,) = struct.unpack_from("<Q", bundle, len(_BUNDLE))
        at = len(_BUNDLE) + 8
        for _ in range(count):
            offset, size, length = struct.unpack_from("<QQQ", bundle, at)
            at += 24 + length
            target = bytes(bundle[at - length : at]).decode(errors="replace")
            processor = target.rpartition("--")[2].partition(":")[0]
            if processor in _PROCESSORS and offset + size <= len(bundle):
                yield processor, bytes(bundle[offset : offset + size])
    except struct.error:
        return
