"""Runs machine code that no compiler made on the simulated MI300X. It is a separate program, because it may crash:

    PYTHONPATH=tests python tests/simulator/fuzz.py decode|execute|launch --count 1000000 --seed 1

``decode`` disassembles random bytes, and instructions with random operands. ``execute`` runs these, and damaged pieces
of compiled kernels, under the watchers in --watch: the sanitizer, the timing model, counters and traces. ``launch``
damages a whole code object, including descriptors and metadata, and launches its kernel if it still loads. The
simulator must end every launch with a HIP status. The last line of the output counts these. The file --progress has the
current input's number, so that a crash can be repeated with --first and --count 1.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import mmap
import os
import random
import re
import struct
from ctypes import c_size_t, c_uint, c_void_p
from pathlib import Path

import numpy as np
from test_code_object import mutate
from test_decoder import ENCODINGS, ONE_WORD, TABLE

from deep_gemm_rocm import simulator
from deep_gemm_rocm.simulator.library import library

END = 0xBF810000
WORDS = 64  # length of an input
OPCODES = {
    family: [int(number, 16) for number in re.findall(rf"OPCODE\({family}, (0x[0-9a-f]+),", TABLE)]
    for family in ENCODINGS
}
WATCHES = ("nothing", "sanitizer", "timing", "counters")


def instruction(rng: random.Random) -> list[int]:
    """An existing opcode with random operands and modifiers."""
    family = rng.choice(list(ENCODINGS))
    encode, free = ENCODINGS[family]
    first = encode(rng.choice(OPCODES[family])) | rng.getrandbits(32) & free
    if family in ONE_WORD:
        literal = [rng.getrandbits(32)] if first & 0xFF in (0xFF, 0xF9, 0xFA) else []
        return [first, *literal]
    return [first, rng.getrandbits(32)]


def words(rng: random.Random, compiled: list[int]) -> list[int]:
    """An input: random words, random instructions, or compiled code with a few changes."""
    kind = rng.random()
    if kind < 0.2:
        return list(struct.unpack(f"<{WORDS}I", rng.randbytes(4 * WORDS)))
    if kind < 0.6:
        made: list[int] = []
        while len(made) < WORDS - 2:
            made += instruction(rng)
        return made
    begin = rng.randrange(max(1, len(compiled) - WORDS))
    piece = compiled[begin : begin + WORDS]
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(piece))
        change = rng.random()
        if change < 0.5:
            piece[at] ^= 1 << rng.randrange(32)
        elif change < 0.8:
            piece[at : at + 2] = instruction(rng)
        else:
            piece[at] = rng.getrandbits(32)
    return piece[:WORDS]


def pack(values: list[int]) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


class Executor:
    """Runs inputs in place of a kernel's code."""

    def __init__(self, template: bytes, marker: int) -> None:
        self._template = template
        self._at = template.index(pack([marker] * WORDS))
        self._memory = np.zeros(4096, np.uint8)
        self._pointer = c_void_p(self._memory.ctypes.data)
        assert library().hipHostRegister(self._pointer, c_size_t(self._memory.nbytes), 0) == 0

    def run(self, code: bytes, block: int) -> int:
        image = bytearray(self._template)
        image[self._at : self._at + len(code)] = code
        module, function = c_void_p(), c_void_p()
        loaded = ctypes.create_string_buffer(bytes(image), len(image))
        assert library().hipModuleLoadData(ctypes.byref(module), loaded) == 0
        try:
            assert library().hipModuleGetFunction(ctypes.byref(function), module, b"fuzzed") == 0
            arguments = (c_void_p * 1)(ctypes.addressof(self._pointer))
            shape = map(c_uint, (2, 1, 1, block, 1, 1, 0))
            return library().hipModuleLaunchKernel(function, *shape, None, arguments, None)
        finally:
            library().hipModuleUnload(module)


class Launcher:
    """Loads damaged code objects and launches their kernel `damaged`, whose arguments all point to zeros."""

    def __init__(self, code_object: bytes) -> None:
        self._code_object = code_object
        self._zeros = np.zeros(1 << 16, np.uint8)
        address = self._zeros.ctypes.data
        assert library().hipHostRegister(c_void_p(address), c_size_t(self._zeros.nbytes), 0) == 0
        self._arguments = (c_void_p * 64)(*[address] * 64)

    def run(self, rng: random.Random) -> int:
        image = mutate(self._code_object, rng)
        module, function = c_void_p(), c_void_p()
        loaded = ctypes.create_string_buffer(image, len(image))
        if status := library().hipModuleLoadData(ctypes.byref(module), loaded):
            return status
        try:
            if status := library().hipModuleGetFunction(ctypes.byref(function), module, b"damaged"):
                return status
            shape = map(c_uint, (2, 1, 1, 64, 1, 1, 0))
            return library().hipModuleLaunchKernel(function, *shape, None, self._arguments, None)
        finally:
            library().hipModuleUnload(module)


@contextlib.contextmanager
def watched(watch: str):
    with contextlib.ExitStack() as stack:
        os.environ["DG_SIM_SANITIZE"] = str(int(watch == "sanitizer"))
        os.environ["DG_SIM_TIMING"] = str(int(watch == "timing"))
        if watch == "counters":
            stack.enter_context(simulator.counters())
            stack.enter_context(simulator.trace(count=100))
        yield


def main(arguments: list[str] | None = None) -> dict[str, int]:
    """Runs the program with the arguments, or with those of the command line. Returns how often launches end how."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["decode", "execute", "launch"])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--watch", choices=WATCHES, default="nothing")
    parser.add_argument("--template", type=Path, help="a code object with a kernel `fuzzed` of WORDS times --marker")
    parser.add_argument("--marker", type=lambda text: int(text, 0), default=0)
    parser.add_argument("--compiled", type=Path, help="a code object to damage, with a kernel `damaged`")
    parser.add_argument("--progress", type=Path, default=Path(os.devnull))
    options = parser.parse_args(arguments)

    compiled = [END] * WORDS
    if options.compiled:
        raw = options.compiled.read_bytes()
        compiled = list(struct.unpack(f"<{len(raw) // 4}I", raw[: len(raw) // 4 * 4]))
    os.environ.setdefault("DG_SIM_MAX_INSTRUCTIONS", "2000")
    os.environ.setdefault("DG_SIM_THREADS", "1")
    executor = Executor(options.template.read_bytes(), options.marker) if options.what == "execute" else None
    launcher = Launcher(options.compiled.read_bytes()) if options.what == "launch" else None

    endings: collections.Counter[str] = collections.Counter()
    library().hipGetErrorName.restype = ctypes.c_char_p
    with open(options.progress, "w+b") as file:
        progress = None
        if options.progress != Path(os.devnull):
            file.truncate(64)
            progress = mmap.mmap(file.fileno(), 64)
        for index in range(options.first, options.first + options.count):
            if progress is not None:
                progress[:20] = f"{index:<20}".encode()
            rng = random.Random(options.seed << 40 | index)
            with watched(options.watch):
                if executor is not None:
                    status = executor.run(pack(words(rng, compiled)), rng.choice((1, 64, 130)))
                elif launcher is not None:
                    status = launcher.run(rng)
                else:
                    status = 0
                    assert simulator.disassemble(pack(words(rng, compiled)))
            endings[library().hipGetErrorName(status).decode()] += 1
            assert status == 0 or library().dgSimLastMessage()
    return dict(endings)


if __name__ == "__main__":
    print(main())
