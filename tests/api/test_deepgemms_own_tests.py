"""DeepGEMM's own tests, unedited but for the FP8 format, against this package as ``deep_gemm``.

``DG_TEST_DEEPGEMM`` names a checkout of DeepGEMM. On the simulator, sizes are cut down, and times are not taken.
docs/serving.md says which functions are left out, and why.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deep_gemm_rocm.runtime import hip

CHECKOUT = os.environ.get("DG_TEST_DEEPGEMM")
DRIVER = Path(__file__).parents[1] / "helpers" / "run_deepgemms_test.py"
FUNCTIONS = (
    ("test_fp8_fp4", "test_gemm"),
    ("test_fp8_fp4", "test_m_grouped_gemm_contiguous"),
    ("test_fp8_fp4", "test_m_grouped_gemm_masked"),
    ("test_fp8_fp4", "test_k_grouped_gemm_contiguous"),
    ("test_bf16", "test_gemm"),
    ("test_bf16", "test_m_grouped_gemm_contiguous"),
    ("test_bf16", "test_m_grouped_gemm_masked"),
    ("test_bf16", "test_k_grouped_gemm_contiguous"),
    ("test_einsum", "test_bmk_bnk_mn"),
    ("test_einsum", "test_bhr_hdr_bhd"),
    ("test_einsum", "test_bhd_hdr_bhr"),
    ("test_einsum", "test_fp8_bhr_hdr_bhd"),
    ("test_einsum", "test_fp8_bhd_hdr_bhr"),
    ("test_einsum", "test_fp8_bhd_bhr_hdr"),
    ("test_attention", "test_gemm_skip_head_mid"),
    ("test_attention", "test_mqa_logits"),
    ("test_attention", "test_paged_mqa_logits"),
    ("test_hyperconnection", "test_hc_prenorm_gemm"),
)
FORMAT = {"torch.float8_e4m3fn": "torch.float8_e4m3fnuz", "448.0": "240.0"}
# For the simulator: sizes that the test files hold themselves. The others come from generators.py, see the driver.
SIZES = {
    "test_einsum": {
        "(129, 4096, 8192)": "(5,)",
        "(128, 512, 128), (8, 4096, 1024)": "(4, 256, 128)",
        "(8, 4096, 1024)": "(2, 512, 256)",
        "(4, 32, 128, 4096, 8192)": "(4, 33)",
        "(4096, 8192)": "(256,)",
        "< 1e-10": "< 1e-7",  # torch on the CPU adds up in another order: some results round otherwise
    },
    "test_attention": {
        "(128, 4096)": "(16, 100)",
        "[(32768, 512), (8192, 512)]": "[(512, 256)]",
        "in (2048, 8192)": "in (32, 64)",
        "in (8192, 65536)": "in (128, 256)",
        "in (256, 4096)": "in (2, 5)",
        "range(20)": "range(1)",
    },
    "test_hyperconnection": {"(13, 137, 4096, 8192)": "(13, 137)", "(24, 28672), (24, 7680), (24, 7168)": "(24, 1024)"},
}


@pytest.mark.slow
@pytest.mark.skipif(not CHECKOUT, reason="DG_TEST_DEEPGEMM names no checkout of DeepGEMM")
@pytest.mark.parametrize(("module", "function"), FUNCTIONS, ids=[".".join(names) for names in FUNCTIONS])
def test_passes(tmp_path, module, function):
    is_simulated = hip.runtime().is_simulated
    for source in sorted(Path(CHECKOUT, "tests").glob("*.py")):
        text = source.read_text()
        for theirs, ours in FORMAT.items():
            text = re.sub(rf"{re.escape(theirs)}\b", ours, text)
        if is_simulated:
            for large, small in SIZES.get(source.stem, {}).items():
                assert large in text, f"{source.name} has no {large}"
                text = text.replace(large, small)
        (tmp_path / source.name).write_text(text)
    command = [sys.executable, str(DRIVER), str(tmp_path), module, function]
    environment = os.environ | {"DG_MQA_NUM_CASES": "6"} if is_simulated else os.environ
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
