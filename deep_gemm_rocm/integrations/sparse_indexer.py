"""What this package's kernels of the sparse indexer take: servers keep their own for anything else."""

from __future__ import annotations

import torch

from ..problems.layout import FP8
from ..problems.tensors import ALIGNMENT

MAX_K = 2048
MAX_COLUMNS = 2**19  # of logits to select from
_PAGES = (1, 16, 32, 64, 128)  # tokens
_HEADS = range(8, 129, 8)
_HEAD_DIMS = (32, 64, 128)


def fits(q: torch.Tensor) -> bool:
    """Whether logits of these queries are for this package's kernels: [..., heads, elements of one]."""
    return q.shape[-2] in _HEADS and q.shape[-1] in _HEAD_DIMS and q.dtype == FP8


def has_fitting_pages(cache: torch.Tensor) -> bool:
    """Whether this package's kernels read such a cache: [pages, tokens, 1, bytes of a token]."""
    tokens = cache.shape[1]
    return tokens in _PAGES and (cache.stride(0) % ALIGNMENT == 0 or tokens == 1) and cache.data_ptr() % ALIGNMENT == 0
