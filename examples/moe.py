"""A mixture-of-experts layer in FP8: route, permute, grouped GEMM, SiLU·mul, quantise, grouped GEMM, combine.

    python examples/moe.py

runs the layer on random data, on an MI300X or the simulated one, and compares the result with plain torch.
"""

from __future__ import annotations

import torch

import deep_gemm_rocm as dg

Pair = tuple[torch.Tensor, torch.Tensor]  # FP8 data and its scales


class Experts(torch.nn.Module):
    """The experts' two weights in FP8, with a scale for 128 x 128 elements.

    Args:
        gate_up: bf16 [experts, 2 * intermediate, hidden], the gate's rows first.
        down: bf16 [experts, hidden, intermediate]. Hidden and intermediate are multiples of 128.
    """

    def __init__(self, gate_up: torch.Tensor, down: torch.Tensor) -> None:
        super().__init__()
        # Buffers, so that they are in the state_dict and move with the module.
        for name, weight in (("gate_up", gate_up), ("down", down)):
            data, scales = _quantised(weight)
            self.register_buffer(name, data)
            self.register_buffer(f"{name}_scales", scales)
        self.intermediate = down.shape[-1]

    def forward(self, rows: Pair, expert_of_row: torch.Tensor) -> torch.Tensor:
        """Applies to each row its expert. Returns bf16 [rows, hidden].

        Args:
            rows: as ``per_token_cast_to_fp8`` returns them.
            expert_of_row: int32 [rows] in the layout of ``grouped_rows``.
        """
        data, scales = rows
        count, hidden = data.shape
        # One kernel multiplies, applies SiLU·mul and quantises.
        activated = (
            torch.empty(count, self.intermediate, dtype=data.dtype, device=data.device),
            torch.empty(count, self.intermediate // 128, dtype=torch.float32, device=data.device),
        )
        dg.m_grouped_fp8_gemm_nt_contiguous(
            (data, scales), (self.gate_up, self.gate_up_scales), activated, expert_of_row, epilogue="silu_and_mul"
        )
        out = torch.empty(count, hidden, dtype=torch.bfloat16, device=data.device)
        dg.m_grouped_fp8_gemm_nt_contiguous(activated, (self.down, self.down_scales), out, expert_of_row)
        return out


def route(x: torch.Tensor, router: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the experts of each token, int64 [tokens, top_k], and their weights, fp32, whose sum is 1."""
    chances, experts = (x.float() @ router.float().T).softmax(dim=-1).topk(top_k, dim=-1)
    return experts, chances / chances.sum(dim=-1, keepdim=True)


def grouped_rows(experts: torch.Tensor, num_experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Groups rows by expert. Each group begins at a multiple of the alignment.

    Args:
        experts: int64 [rows], the expert of each row.

    Returns:
        int64 [rows], the place of each row, and int32 [places], the expert of each place or -1 for padding.
    """
    alignment = dg.get_mk_alignment_for_contiguous_layout()
    counts = torch.bincount(experts, minlength=num_experts)
    padded = (counts + alignment - 1) // alignment * alignment
    order = experts.argsort(stable=True)
    within = torch.arange(len(experts), device=experts.device) - (counts.cumsum(0) - counts)[experts[order]]
    places = torch.empty_like(experts)
    places[order] = (padded.cumsum(0) - padded)[experts[order]] + within
    expert_of_place = torch.full((int(padded.sum()),), -1, dtype=torch.int32, device=experts.device)
    expert_of_place[places] = experts.int()
    return places, expert_of_place


def apply_experts(experts: Experts, rows: Pair, expert_of_row: torch.Tensor, num_experts: int) -> torch.Tensor:
    """Applies to each row its expert, for rows in any order. Returns bf16 [rows, hidden] in the same order."""
    data, scales = rows
    places, expert_of_place = grouped_rows(expert_of_row, num_experts)
    if len(places) == 0:
        return torch.empty(0, data.shape[1], dtype=torch.bfloat16, device=data.device)
    grouped = torch.zeros(len(expert_of_place), data.shape[1], dtype=torch.uint8, device=data.device)
    grouped[places] = data.view(torch.uint8)
    grouped_scales = torch.ones(len(expert_of_place), scales.shape[1], device=data.device)
    grouped_scales[places] = scales
    return experts((grouped.view(data.dtype), grouped_scales), expert_of_place)[places]


def moe(x: torch.Tensor, router: torch.Tensor, experts: Experts, top_k: int) -> torch.Tensor:
    """The whole layer, from bf16 [tokens, hidden] to bf16 [tokens, hidden]."""
    chosen, chances = route(x, router, top_k)
    data, scales = dg.per_token_cast_to_fp8(x)
    token = torch.arange(len(x), device=x.device).repeat_interleave(top_k)
    rows = data.view(torch.uint8)[token].view(data.dtype), scales[token]
    made = apply_experts(experts, rows, chosen.flatten(), len(router))
    return (made.view(len(x), top_k, -1) * chances[..., None]).sum(dim=1).bfloat16()


def reference(
    x: torch.Tensor, router: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, top_k: int
) -> torch.Tensor:
    """The layer in plain torch and fp32. Values are rounded to FP8 where the layer rounds them."""
    chosen, chances = route(x, router, top_k)
    values = _through_fp8(dg.per_token_cast_to_fp8(x), 1)
    result = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in range(len(router)):
        token, choice = (chosen == expert).nonzero(as_tuple=True)
        gate, up = (values[token] @ _through_fp8(dg.per_block_cast_to_fp8(gate_up[expert]), 128).T).chunk(2, dim=-1)
        activated = _through_fp8(dg.per_token_cast_to_fp8(torch.nn.functional.silu(gate) * up), 1)
        made = activated @ _through_fp8(dg.per_block_cast_to_fp8(down[expert]), 128).T
        result.index_add_(0, token, made * chances[token, choice, None])
    return result


def _through_fp8(quantised: Pair, rows: int) -> torch.Tensor:
    data, scales = quantised
    return data.float() * scales.repeat_interleave(rows, 0).repeat_interleave(128, 1)[: data.shape[0], : data.shape[1]]


def random_layer(
    num_experts: int, hidden: int, intermediate: int, device: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns weights of a router and of experts, ``gate_up`` and ``down``: the same in every process."""
    generator = torch.Generator().manual_seed(0)

    def weight(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) / shape[-1] ** 0.5).bfloat16().to(device)

    return (
        weight(num_experts, hidden),
        weight(num_experts, 2 * intermediate, hidden),
        weight(num_experts, hidden, intermediate),
    )


def _quantised(weights: torch.Tensor) -> Pair:
    data, scales = zip(*(dg.per_block_cast_to_fp8(weight) for weight in weights), strict=True)
    return torch.stack(data), torch.stack(scales)


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    router, gate_up, down = random_layer(num_experts=8, hidden=256, intermediate=128, device=device)
    x = torch.randn(100, 256, generator=torch.Generator().manual_seed(1)).bfloat16().to(device)
    actual = moe(x, router, Experts(gate_up, down), top_k=2)
    difference = dg.calc_diff(actual, reference(x, router, gate_up, down, top_k=2))
    print(f"100 tokens, 8 experts: differs from plain torch by {difference:.1e}")
    if not difference < 1e-4:
        raise SystemExit("that is more than roundings explain")


if __name__ == "__main__":
    main()
