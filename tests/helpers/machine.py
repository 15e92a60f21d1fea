"""Runs single instructions on chosen registers and memory."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from deep_gemm_rocm import simulator
from helpers.assembly import program
from helpers.simulated_hip import Compiler

LANES = 64
INPUTS = OUTPUTS = 8
LDS_BYTES = 4096
POISON = 0x7BADBAD

_IN, _OUT, _SCALARS = 0, INPUTS * LANES * 4, (INPUTS + OUTPUTS) * LANES * 4

_PROLOGUE = f"""
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  s_waitcnt lgkmcnt(0)
  s_load_dwordx8 s[16:23], s[4:5], {_SCALARS}
  v_lshlrev_b32_e32 v1, 2, v0
""" + "".join(f"  global_load_dword v{10 + i}, v1, s[4:5] offset:{_IN + 256 * i}\n" for i in range(INPUTS))

# The outputs' initial values are loaded, too, so that outputs that an instruction doesn't write are poison.
_PROLOGUE += f"  v_add_u32_e32 v2, {_OUT}, v1\n"
_PROLOGUE += "".join(f"  global_load_dword v{20 + i}, v2, s[4:5] offset:{256 * i}\n" for i in range(OUTPUTS))
_PROLOGUE += "  s_waitcnt vmcnt(0) lgkmcnt(0)\n  s_mov_b32 m0, -1\n  s_nop 4\n"

_EPILOGUE = "\n  s_nop 15\n  s_waitcnt vmcnt(0) lgkmcnt(0)\n  s_mov_b64 exec, -1\n"
_EPILOGUE += "".join(f"  global_store_dword v2, v{20 + i}, s[4:5] offset:{256 * i}\n" for i in range(OUTPUTS))


class Machine:
    """A wave that runs single instructions. Inputs are in v10 to v17 and s16 to s23, outputs in v20 to v27, the address
    of a block of memory in s[6:7], and four times the lane in v1."""

    def __init__(self, compiler: Compiler, bodies: Iterable[str]) -> None:
        self._names = {body: f"body_{i}" for i, body in enumerate(dict.fromkeys(bodies))}
        kernels = {name: _PROLOGUE + body + _EPILOGUE for body, name in self._names.items()}
        self._code = compiler.assemble(program(kernels, LDS_BYTES, pointers=2))

    def run(
        self,
        body: str,
        *vectors: np.ndarray,
        scalars: Iterable[int] = (),
        memory: np.ndarray | None = None,
    ) -> np.ndarray:
        """Runs a body, and returns its outputs, uint32 [8, 64].

        Args:
            vectors: 64 values each, of 4 or 8 bytes, for consecutive registers.
            memory: updated in place.
        """
        state = np.full((INPUTS + OUTPUTS + 1, LANES), POISON, np.uint32)
        row = 0
        for vector in vectors:
            dwords = np.ascontiguousarray(vector).view(np.uint32).reshape(LANES, -1).T
            state[row : row + len(dwords)] = dwords
            row += len(dwords)
        for i, value in enumerate(scalars):
            state[INPUTS + OUTPUTS, i] = value & 0xFFFFFFFF
        block = np.zeros(4, np.uint32) if memory is None else memory
        simulator.launch(self._code, self._names[body], 1, LANES, [state, block])
        return state[INPUTS : INPUTS + OUTPUTS]


def doubles(outputs: np.ndarray, first: int = 0) -> np.ndarray:
    """Two rows of outputs as 64-bit patterns."""
    return outputs[first].astype(np.uint64) | outputs[first + 1].astype(np.uint64) << np.uint64(32)
