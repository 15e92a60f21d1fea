"""Attention's kernels compile, and fit the registers and the LDS that they were designed for."""

from __future__ import annotations

import pytest
from test_flash_attention import WIDTHS
from test_kernel_builds import MAX_REGISTERS, code_object, only_kernel
from test_toolchain import hipcc, ziglang

from deep_gemm_rocm.heuristics import AttentionConfig, choose_attention_config

TYPES = (("bf16", "bf16"), ("f16", "f16"), ("e4m3", "bf16"), ("e4m3", "f16"))
ALL = [choose_attention_config(*types, *widths) for types in TYPES for widths in WIDTHS]
QUICK = [config for config in ALL if config.type != "f16" and (config.head_dim, config.out_type) == (128, "bf16")]
CASES = [
    pytest.param(compiler, config, id=f"{compiler.__name__}-{config.kernel_name}", marks=marks)
    for configs, marks in ((QUICK, ()), ([config for config in ALL if config not in QUICK], pytest.mark.slow))
    for config in configs
    for compiler in (ziglang, hipcc)
]


@pytest.mark.parametrize(("compiler", "config"), CASES)
def test_kernel_fits(tmp_path, compiler, config: AttentionConfig):
    kernel = only_kernel(code_object(compiler(), config, tmp_path, "flash_attention.hip.j2").read_bytes())
    assert kernel[".name"] == config.kernel_name
    assert kernel[".private_segment_fixed_size"] == 0
    assert kernel[".vgpr_spill_count"] == 0
    assert not kernel[".uses_dynamic_stack"]
    assert kernel[".vgpr_count"] <= MAX_REGISTERS
    assert kernel[".agpr_count"] == 0
    assert kernel[".group_segment_fixed_size"] == config.lds_bytes
    assert kernel[".max_flat_workgroup_size"] >= config.num_threads
