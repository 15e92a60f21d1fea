"""Tells whether this package's kernels of the sparse indexer take a call; servers keep their own for any other."""

from __future__ import annotations

import torch

from ..api.mqa_logits import HEAD_DIMS, HEADS, PAGE_SIZES
from ..problems.layout import FP8
from ..problems.tensors import ALIGNMENT


def fits(q: torch.Tensor) -> bool:
    """Whether logits of these queries are for this package's kernels: [..., heads, elements of one]."""
    return q.shape[-2] in HEADS and q.shape[-1] in HEAD_DIMS and q.dtype == FP8


def has_fitting_pages(cache: torch.Tensor) -> bool:
    """Whether this package's kernels read such a cache: [pages, tokens, 1, bytes of a token]."""
    tokens = cache.shape[1]
    return (
        tokens in PAGE_SIZES and (cache.stride(0) % ALIGNMENT == 0 or tokens == 1) and cache.data_ptr() % ALIGNMENT == 0
    )
