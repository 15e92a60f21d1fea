"""Assembly, launches and the form of reports for the sanitizer's tests."""

from __future__ import annotations

import numpy as np

from .simulated_hip import Hip

PROLOGUE = """
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  s_waitcnt lgkmcnt(0)
  v_lshlrev_b32_e32 v1, 2, v0
"""
LDS_BYTES = 2048
BUFFER_BYTES = 4096
DEFINE_LDS = "  v_mov_b32_e32 v9, 0\n  ds_write_b32 v1, v9\n  s_waitcnt lgkmcnt(0)\n"
BARRIER = "s_waitcnt lgkmcnt(0)\ns_barrier"

# Where a report says that it happened.
PLACE = r"; at [a-z_0-9]+ .*\), offset 0x[0-9a-f]+ from the start of the code \(0x[0-9a-f]+ from the kernel's entry\), "
PLACE += r"workgroup \(\d+, \d+, \d+\), wave \d+$"


def launch_with_buffer(hip: Hip, module, kernel: str, grid: int = 1, block: int = 64) -> None:
    buffer = hip.upload(np.zeros(BUFFER_BYTES, np.uint8))
    try:
        hip.launch(hip.function(module, kernel), grid, block, buffer)
    finally:
        hip.hipFree(buffer)
