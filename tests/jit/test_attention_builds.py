"""Attention kernels compile, and fit into the registers and the LDS that they were designed for."""

from __future__ import annotations

import dataclasses

import pytest
from helpers.attention_widths import WIDTHS
from test_kernel_builds import MAX_REGISTERS, code_object, kernels
from test_toolchain import hipcc, ziglang

from deep_gemm_rocm.heuristics import LATENT_ROWS, AttentionConfig, DecodeConfig, attention_tiles

TYPES = (("bf16", "bf16"), ("f16", "f16"), ("e4m3", "bf16"), ("e4m3", "f16"))
PLAIN = [config for types in TYPES for widths in WIDTHS for config in attention_tiles(*types, *widths)]
FLASH_ATTENTION = [
    dataclasses.replace(config, capped=capped, paged=paged)
    for config in PLAIN
    for capped in (False, True)
    for paged in (False, True)
]
FLASH_ATTENTION += [
    dataclasses.replace(config, capped=capped, paged=paged, layout=layout)
    for widths in WIDTHS
    for config in attention_tiles("bf16", "bf16", *widths)
    for capped in (False, True)
    for paged in (False, True)
    for layout in ("e4m3", "e4m3_tokens")
]
# With pages of another size, this one keeps a register in scratch for a while before its loop over keys.
FULL = ("flash_attention_bf16_e4m3_tokens_d192x128_q256_mfma32_capped_paged",)
FLASH_ATTENTION += [
    dataclasses.replace(config, page_size=48)
    for config in FLASH_ATTENTION
    if config.paged and config.kernel_name not in FULL
]


def cases(configs, quick):
    """Each configuration with both compilers; the default run takes only the quick ones."""
    return [
        pytest.param(
            compiler,
            config,
            id=f"{compiler.__name__}-{config.kernel_name}",
            marks=() if quick(config) else pytest.mark.slow,
        )
        for config in configs
        for compiler in (ziglang, hipcc)
    ]


USUAL = (("plain", False), ("e4m3_tokens", True))


def is_usual(config) -> bool:
    """In bf16. Those for caches in FP8 need the most registers if each token has factors and logits are capped."""
    is_bf16 = config.type == config.out_type == "bf16" and config.value_dim == config.head_dim == 128
    return is_bf16 and not config.page_size and (config.layout, config.capped) in USUAL


def assert_no_spills(kernel: dict) -> None:
    assert kernel[".private_segment_fixed_size"] == 0
    assert kernel[".vgpr_spill_count"] == 0
    assert not kernel[".uses_dynamic_stack"]
    assert kernel[".vgpr_count"] <= MAX_REGISTERS
    assert kernel[".agpr_count"] == 0


@pytest.mark.parametrize(
    ("compiler", "config"),
    cases(FLASH_ATTENTION, lambda config: is_usual(config) and not (config.capped or config.paged)),
)
def test_flash_attention_fits(compiler, config: AttentionConfig):
    (kernel,) = kernels(code_object(compiler(), config, "flash_attention.hip.j2"))
    assert_no_spills(kernel)
    assert kernel[".name"] == config.kernel_name
    assert kernel[".group_segment_fixed_size"] == config.lds_bytes
    assert kernel[".max_flat_workgroup_size"] >= config.num_threads


LATENT = [DecodeConfig(type_, type_, 576, 512, rows) for type_ in ("bf16", "f16") for rows in LATENT_ROWS]
LATENT += [
    DecodeConfig("bf16", "bf16", 576, 512, rows, layout, is_ocp)
    for rows in LATENT_ROWS
    for layout in ("e4m3", "e4m3_656")
    for is_ocp in (False, True)
]
LATENT += [
    DecodeConfig("bf16", "bf16", width, 512, rows, layout, is_ocp, tokens)
    for tokens in ("indexed", "indexed_twice")
    for rows in LATENT_ROWS
    for width, layout, is_ocp in (
        (576, "plain", False), (512, "plain", False), (576, "e4m3_656", False), (576, "e4m3_656", True),
        (512, "e4m3_584", False), (512, "e4m3_584", True),
    )
]  # fmt: skip
LATENT += [
    DecodeConfig("bf16", "bf16", 576, 512, rows, layout, False, "small_pages")
    for rows in LATENT_ROWS
    for layout in ("plain", "e4m3", "e4m3_656")
]
LATENT += [
    DecodeConfig("bf16", "bf16", 576, 512, rows, layout, is_ocp, tokens, has_fp8_queries=True)
    for rows in LATENT_ROWS
    for layout in ("e4m3", "e4m3_656")
    for is_ocp in (False, True)
    for tokens in ("paged", "small_pages")
]
LATENT += [
    DecodeConfig("bf16", "bf16", 576, 512, rows, layout, False, tokens, page_size=page_size)
    for rows in LATENT_ROWS
    for layout in ("plain", "e4m3", "e4m3_656")
    for tokens, page_size in (("paged", 48), ("small_pages", 3))
]
DECODE = [
    DecodeConfig(*types, *widths, capped=capped) for types in TYPES for widths in WIDTHS for capped in (False, True)
]
DECODE += [
    DecodeConfig("bf16", "bf16", *widths, layout=layout, capped=capped)
    for widths in WIDTHS
    for layout in ("e4m3", "e4m3_tokens")
    for capped in (False, True)
]
DECODE += [config._replace(page_size=48) for config in DECODE]


@pytest.mark.parametrize(("compiler", "config"), cases(DECODE + LATENT, is_usual))
def test_decode_fits(compiler, config: DecodeConfig):
    found = kernels(code_object(compiler(), config, f"{config.family}.hip.j2"))
    assert {kernel[".name"] for kernel in found} == {config.kernel_name, f"{config.kernel_name}_combine"}
    for kernel in found:
        assert_no_spills(kernel)


@dataclasses.dataclass(frozen=True)
class Logits:
    """A kernel of the sparse indexer."""

    family: str
    heads: int
    head_dim: int
    shuffled: bool = False

    @property
    def kernel_name(self) -> str:
        return f"{self.family}_h{self.heads}_d{self.head_dim}{'_shuffled' * self.shuffled}"

    @property
    def template_values(self) -> dict:
        sizes = {"heads": self.heads, "head_dim": self.head_dim}
        return {**sizes, "shuffled": self.shuffled, "kernel_name": self.kernel_name}


FAMILIES = [("mqa_logits", False), ("paged_mqa_logits", False), ("paged_mqa_logits", True)]
LOGITS = [Logits(f, h, d, s) for f, s in FAMILIES for h in (8, 32, 64, 128) for d in (32, 64, 128)]


@pytest.mark.slow
@pytest.mark.parametrize(("compiler", "config"), cases(LOGITS, lambda config: False))
def test_logits_fit(compiler, config: Logits):
    (kernel,) = kernels(code_object(compiler(), config, f"{config.family}.hip.j2"))
    assert_no_spills(kernel)
    assert kernel[".name"] == config.kernel_name


@dataclasses.dataclass(frozen=True)
class TopK:
    """The kernels that select the largest logits."""

    type: str
    page_size: int = 0

    @property
    def kernel_name(self) -> str:
        return f"top_k_{self.type}_{self.page_size}"

    @property
    def template_values(self) -> dict:
        return {**dataclasses.asdict(self), "kernel_name": self.kernel_name}


@pytest.mark.parametrize(
    ("compiler", "config"), cases([TopK("f32"), TopK("bf16"), TopK("f32", 48)], lambda config: False)
)
@pytest.mark.slow
def test_top_k_fits(compiler, config: TopK):
    """Two workgroups share a CU, or a wide one has it alone."""
    for kernel in kernels(code_object(compiler(), config, "top_k.hip.j2")):
        assert_no_spills(kernel)
        assert kernel[".vgpr_count"] <= 128
        workgroups = 1 if kernel[".name"].endswith("_wide") else 2
        assert workgroups * kernel[".group_segment_fixed_size"] <= 65536


@dataclasses.dataclass(frozen=True)
class LatentCache:
    """The kernel that writes the latent cache."""

    layout: str

    @property
    def kernel_name(self) -> str:
        return f"append_mla_cache_{self.layout}"

    @property
    def template_values(self) -> dict:
        return {"layout": self.layout, "kernel_name": self.kernel_name}


LAYOUTS = [LatentCache(layout) for layout in ("bf16", "bf16_512", "e4m3", "e4m3_656", "e4m3_584")]


@pytest.mark.slow
@pytest.mark.parametrize(("compiler", "config"), cases(LAYOUTS, lambda config: False))
def test_append_mla_cache_fits(compiler, config: LatentCache):
    (kernel,) = kernels(code_object(compiler(), config, "append_mla_cache.hip.j2"))
    assert_no_spills(kernel)


@dataclasses.dataclass(frozen=True)
class MergedStates:
    """The kernel that merges results."""

    type: str

    @property
    def kernel_name(self) -> str:
        return f"merge_attention_states_{self.type}"

    @property
    def template_values(self) -> dict:
        return {"type": self.type, "kernel_name": self.kernel_name}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compiler", "config"), cases([MergedStates("bf16"), MergedStates("f16")], lambda config: False)
)
def test_merge_states_fits(compiler, config: MergedStates):
    (kernel,) = kernels(code_object(compiler(), config, "merge_states.hip.j2"))
    assert_no_spills(kernel)
    assert kernel[".vgpr_count"] <= 64  # eight waves on each SIMD


@dataclasses.dataclass(frozen=True)
class PagedLogitsSchedule:
    """The kernel that deals keys to workgroups."""

    kernel_name: str = "paged_mqa_logits_schedule"

    @property
    def template_values(self) -> dict:
        return {"kernel_name": self.kernel_name}


@pytest.mark.slow
@pytest.mark.parametrize(("compiler", "config"), cases([PagedLogitsSchedule()], lambda config: False))
def test_paged_logits_schedule_fits(compiler, config: PagedLogitsSchedule):
    (kernel,) = kernels(code_object(compiler(), config, "paged_logits_schedule.hip.j2"))
    assert_no_spills(kernel)
