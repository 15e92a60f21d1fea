"""The mixture-of-experts layer of moe.py with its experts spread over processes by torch.distributed.

    python examples/expert_parallel.py --processes 4

starts four processes, each with its own tokens and a share of the experts. On hardware each process has a GPU, and rows
travel over RCCL. Elsewhere each has a simulated MI300X, and rows travel over gloo. Each process compares the results of
its tokens with plain torch. ``torchrun`` can start it as well.
"""

from __future__ import annotations

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing
from moe import Experts, Pair, apply_experts, random_layer, reference, route

import deep_gemm_rocm as dg


def expert_parallel_moe(
    x: torch.Tensor, router: torch.Tensor, experts: Experts, top_k: int, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """``moe`` for this process's tokens. ``experts`` are its share; rank 0 has the first ones.

    Rows travel to their experts in FP8, with a scale for 128 values, and come back in bf16.
    """
    share = len(router) // dist.get_world_size(group)
    chosen, chances = route(x, router, top_k)
    order = chosen.flatten().argsort(stable=True)  # by expert, and so by rank
    token = order // top_k
    data, scales = dg.per_token_cast_to_fp8(x)

    sent = torch.bincount(chosen.flatten() // share, minlength=dist.get_world_size(group))
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    to, back = sent.tolist(), received.tolist()
    rows: Pair = (
        _exchanged(data.view(torch.uint8)[token], to, back, group).view(data.dtype),
        _exchanged(scales[token], to, back, group),
    )
    expert_of_row = _exchanged(chosen.flatten()[order] % share, to, back, group)
    made = _exchanged(apply_experts(experts, rows, expert_of_row, share), back, to, group)

    result = torch.empty_like(made)
    result[order] = made
    return (result.view(len(x), top_k, -1) * chances[..., None]).sum(dim=1).bfloat16()


def _exchanged(rows: torch.Tensor, to: list[int], back: list[int], group: dist.ProcessGroup | None) -> torch.Tensor:
    """Sends the first ``to[0]`` rows to rank 0, the next ``to[1]`` to rank 1 and so on.

    Returns:
        The rows received, those of rank 0 first.
    """
    arrived = rows.new_empty(sum(back), *rows.shape[1:])
    dist.all_to_all_single(arrived, rows.contiguous(), back, to, group=group)
    return arrived


def run(rank: int, world_size: int, tokens: int, init_method: str) -> None:
    """One process: its tokens through the layer, compared with plain torch."""
    on_gpu = torch.cuda.is_available()
    device = f"cuda:{rank % torch.cuda.device_count()}" if on_gpu else "cpu"
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", init_method=init_method, rank=rank, world_size=world_size)
    try:
        router, gate_up, down = random_layer(num_experts=8, hidden=256, intermediate=128, device=device)
        share = len(router) // world_size
        mine = slice(rank * share, (rank + 1) * share)
        generator = torch.Generator().manual_seed(100 + rank)
        x = torch.randn(tokens + 7 * rank, 256, generator=generator).bfloat16().to(device)
        actual = expert_parallel_moe(x, router, Experts(gate_up[mine], down[mine]), top_k=2)
        difference = dg.calc_diff(actual, reference(x, router, gate_up, down, top_k=2))
        # One write with the newline in it: several processes print at once.
        line = f"rank {rank}: {len(x)} tokens, {share} experts, differs from plain torch by {difference:.1e}\n"
        print(line, end="", flush=True)
        if not difference < 1e-4:
            raise SystemExit(f"rank {rank}: that is more than roundings explain")
    finally:
        dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--processes", type=int, default=2, choices=(1, 2, 4, 8))
    parser.add_argument("--tokens", type=int, default=40)
    options = parser.parse_args()
    if "RANK" in os.environ:  # torchrun
        run(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), options.tokens, "env://")
        return
    with tempfile.TemporaryDirectory() as folder:
        arguments = (options.processes, options.tokens, f"file://{folder}/rendezvous")
        torch.multiprocessing.spawn(run, arguments, options.processes)


if __name__ == "__main__":
    main()
