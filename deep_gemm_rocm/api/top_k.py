"""The largest logits of each row: the keys that sparse attention takes."""

from __future__ import annotations

import torch

from ..checks import check_int, is_traced, one_of
from ..launch.repeated import Described, launches_of_rows
from ..launch.top_k import top_k_launch
from ..problems.sequences import MAX_PAGE_SIZE
from ..problems.tensors import check_data, check_form, check_not_shared, check_one_device

_DTYPES = (torch.float32, torch.bfloat16)
MAX_K = 2048
_MAX_ROWS = 2**18
MAX_COLUMNS = 2**19


@launches_of_rows("logits", "starts", "ends", "block_table", "sequences", "out")
def top_k_per_row(
    logits: torch.Tensor,
    k: int,
    *,
    starts: torch.Tensor | None = None,
    ends: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    page_size: int = 1,
    sequences: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> Described[torch.Tensor]:
    """Selects the ``k`` largest logits of each row, and returns where they are.

    Equal logits count in the order of their positions, so the result is the same on every run. -0 equals 0, and NaNs
    are below -inf. A row's positions ascend, whatever their logits: neighbouring keys are then read one after another,
    and a row without a choice is 0, 1, 2 and so on. Sparse attention takes keys in any order, and FlashMLA, vLLM and
    SGLang mark missing ones with -1 as well.

    Args:
        logits: fp32 or bf16 [rows, columns], rows contiguous and any distance apart, up to 2^18 rows and 2^19 columns.
        k: how many to select, 1 to 2048.
        starts, ends: int32 [rows], contiguous: row i counts from column ``starts[i]`` up to, but not including,
            ``ends[i]``, as in ``fp8_mqa_logits``. Columns outside of the logits are ignored. None is 0 for starts and
            the number of columns for ends.
        block_table: int32 [sequences, pages of a sequence], rows contiguous: the pages of a paged cache. As many rows
            of logits after each other belong to each sequence, as in ``fp8_paged_mqa_logits``. The result are then
            slots of the cache, ``page * page_size + offset``. A position without a page, or with a negative one, is
            -1.
        page_size: tokens of a page, up to 256; 1 if ``block_table`` names a slot for each position.
        sequences: int32 [rows], contiguous: the row of ``block_table`` for each row of logits, of prompts of different
            lengths. A row of a sequence that the table doesn't have is -1 throughout.
        out: int32 [rows, k], rows contiguous and any distance apart, to be written; None for a new tensor.

    Returns:
        ``out``, int32 [rows, k]: positions, counted from the row's first column that counts (``starts[i]``, or 0 if it
        is negative), or slots. If a row has fewer than ``k``, -1 stands for the others, behind them.

    One launch reads the logits once, or several times where a sample of a row tells too little about it.

    Raises:
        TypeError, ValueError: an argument is not as above; nothing is written then.
        hip.NoDeviceError, hip.HipError, jit.JitError: there is no device, a launch or a compile failed.
    """
    if is_traced():
        if out is None:
            out = torch.empty((logits.shape[0], k), dtype=torch.int32, device=logits.device)
        torch.ops.deep_gemm_rocm.top_k_per_row(logits, k, starts, ends, block_table, page_size, sequences, out)
        return out, None
    check_data("logits", logits)
    if logits.dtype not in _DTYPES:
        raise TypeError(f"logits must be {one_of(_DTYPES)}, got {logits.dtype}")
    check_form("logits", logits, logits.dtype, (None, None))
    rows, columns = logits.shape
    if rows > _MAX_ROWS or columns > MAX_COLUMNS:
        raise ValueError(f"logits must have up to {_MAX_ROWS} rows and {MAX_COLUMNS} columns, got {rows} and {columns}")
    check_int("k", k, 1, MAX_K)
    tensors = {"logits": logits}
    for name, of_rows in (("starts", starts), ("ends", ends), ("sequences", sequences)):
        if of_rows is not None:
            check_form(name, of_rows, torch.int32, (rows,))
            tensors[name] = of_rows
    check_int("page_size", page_size, 1, MAX_PAGE_SIZE)
    if block_table is not None:
        check_form("block_table", block_table, torch.int32, (None, None))
        if sequences is None and rows and (len(block_table) == 0 or rows % len(block_table)):
            raise ValueError(f"block_table must have a row for equally many of {rows} rows, got {len(block_table)}")
        tensors["block_table"] = block_table
    elif sequences is not None:
        raise ValueError("block_table must be given for sequences, got None")
    elif page_size != 1:
        raise ValueError(f"block_table must be given for pages of {page_size} tokens, got None")
    if out is not None:
        check_form("out", out, torch.int32, (rows, k))
        tensors["out"] = out
    check_one_device(tensors)
    if out is not None:
        check_not_shared("out", out, tensors)
    result = logits.new_empty(rows, k, dtype=torch.int32) if out is None else out
    if rows == 0:
        return result, None
    launch = top_k_launch(logits, k, starts, ends, block_table, page_size, sequences, result, is_new=out is None)
    return result, launch
