"""What an attention kernel is compiled for."""

from __future__ import annotations

import dataclasses
import functools

from .gemm_config import BLOCK_K_BYTES, ELEMENT_BYTES, LDS_BYTES, MAX_THREADS, WAVE_SIZE


@dataclasses.dataclass(frozen=True)
class AttentionConfig:
    """A kernel of ``flash_attention.hip.j2``: all its template values.

    Attributes:
        type: of q, k and v: ``bf16``, ``f16`` or ``e4m3``.
        out_type: of the output.
        head_dim: elements of a head of q and k.
        value_dim: elements of a head of v and the output.
        waves: of a workgroup; each has ``mfma_rows`` queries of its own.
        mfma_rows: 32 for MFMA 32x32, or 16 for 16x16, which needs half the registers for each query.
        take_turns: whether one half of the waves multiplies while the other computes probabilities.
    """

    type: str
    out_type: str
    head_dim: int
    value_dim: int
    waves: int
    mfma_rows: int
    take_turns: bool

    @property
    def scaled(self) -> bool:
        """Whether q, k and v have factors."""
        return self.type == "e4m3"

    @property
    def num_threads(self) -> int:
        return self.waves * WAVE_SIZE

    @property
    def block_q(self) -> int:
        """Queries of a workgroup's tile."""
        return self.waves * self.mfma_rows

    @property
    def block_k(self) -> int:
        """Keys of a block."""
        return BLOCK_K_BYTES // ELEMENT_BYTES[self.type]

    @property
    def lds_stages(self) -> int:
        """Blocks of keys, and of values, that are in LDS at a time."""
        return 2 if self.take_turns else 1

    @property
    def lds_bytes(self) -> int:
        head_blocks = -(-self.head_dim * ELEMENT_BYTES[self.type] // BLOCK_K_BYTES)
        return self.lds_stages * (self.block_k * head_blocks + self.value_dim) * BLOCK_K_BYTES

    @property
    def workgroups_per_cu(self) -> int:
        """How many workgroups a CU can run at once."""
        return min(LDS_BYTES // self.lds_bytes, MAX_THREADS // self.num_threads)

    @property
    def kernel_name(self) -> str:
        """The kernel's name, as profilers show it."""
        types = self.type if self.type == self.out_type else f"{self.type}_{self.out_type}"
        return f"flash_attention_{types}_d{self.head_dim}x{self.value_dim}_q{self.block_q}_mfma{self.mfma_rows}"

    @functools.cached_property
    def template_values(self) -> dict[str, int | str | bool]:
        """The values by name. Callers share the one dictionary."""
        return {**dataclasses.asdict(self), "scaled": self.scaled, "kernel_name": self.kernel_name}


_FEW_QUERIES = 128  # of a sequence, that don't fill the larger tile


@functools.cache
def choose_attention_config(type_: str, out_type: str, head_dim: int, value_dim: int, tokens_q: int) -> AttentionConfig:
    """The configuration for such heads: the largest tile of queries whose sums fit the registers.

    Args:
        tokens_q: of a sequence; if they differ, on average.
    """
    wide = head_dim > 128 or value_dim > 128  # two blocks of keys and values at a time don't fit LDS
    take_turns = not wide and tokens_q > _FEW_QUERIES
    return AttentionConfig(
        type=type_,
        out_type=out_type,
        head_dim=head_dim,
        value_dim=value_dim,
        waves=8 if wide or take_turns else 4,
        mfma_rows=16 if value_dim > 128 else 32,
        take_turns=take_turns,
    )
