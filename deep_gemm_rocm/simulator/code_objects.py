"""Finds code for the chip in files that compilers write."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_ELF = b"\x7fELF"
_AMDGPU = 224  # e_machine
_BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
_PROCESSORS = ("gfx942", "gfx9-4-generic")
_FEATURES = {"sramecc+", "xnack-"}  # as the chip has them


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
        # The closest entry, as hipModuleLoadData takes it: for this processor, then with the most features named.
        found += [code for _, code in sorted(_entries(bundle), key=lambda entry: entry[0])[:1]]
        start = file.find(_BUNDLE, start + len(_BUNDLE))
    return found


def _entries(bundle: memoryview) -> Iterator[tuple[tuple[int, int], bytes]]:
    """Each entry for this chip: how far it is from fitting best, and its code. None of those that are cut off."""
    try:
        (count,) = struct.unpack_from("<Q", bundle, len(_BUNDLE))
        at = len(_BUNDLE) + 8
        for _ in range(count):
            offset, size, length = struct.unpack_from("<QQQ", bundle, at)
            at += 24 + length
            target = bytes(bundle[at - length : at]).decode(errors="replace")
            processor, *features = target.rpartition("--")[2].split(":")
            if processor in _PROCESSORS and _FEATURES.issuperset(features) and 0 < size <= len(bundle) - offset:
                yield (_PROCESSORS.index(processor), -len(features)), bytes(bundle[offset : offset + size])
    except struct.error:
        return
