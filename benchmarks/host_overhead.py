"""The host's time of a call, without the kernel's: ``python benchmarks/host_overhead.py``.

Measures, from Python to the launch: a repeated call of GEMMs and other functions, beside ``torch.mm(out=)`` of 16 x 16
and, for functions that return new tensors, beside ``torch.empty`` for as many of the same shapes; repeated calls of all
public functions that launch kernels, with nearly all of their optional arguments, by keyword; the first call of a
kernel that isn't in the cache yet; and calls of warmed-up functions that differ from earlier ones in M or in an
address, once and again, or that are made under another number of compute units. In simulation the launch does nothing,
since it would run the kernel. What hardware doesn't ask for is left out, too: memory isn't registered for the launch,
and contents of tensors aren't checked. Times are those of the thread on its CPU, so that other work on the machine
disturbs them little.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

import deep_gemm_rocm
from deep_gemm_rocm import jit
from deep_gemm_rocm.benchmarks import problems
from deep_gemm_rocm.benchmarks.shapes import Shape
from deep_gemm_rocm.launch import repeated
from deep_gemm_rocm.problems import sequences
from deep_gemm_rocm.runtime import hip, session

_CALLS, _ROUNDS = 100, 300
_ROUNDS_OF_FIRST_CALLS = 20
_ROWS = 2048  # the largest M of calls that differ
_ADDRESSES = 400
_OTHER_CUS = 200
# Never trim the heap, extend it by 64 MB, and map no block by itself.
_MALLOC_OPTIONS = ((-1, 2**31 - 1), (-2, 2**26), (-4, 0))


def microseconds(*calls: Callable[[], object]) -> list[float]:
    """The time of each call in a quick round, which other work on the machine disturbs little.

    The quickest twentieth is left out, since the clock of a virtual machine may jump.
    """
    rounds: list[list[float]] = [[] for _ in calls]
    for _ in range(_ROUNDS):
        for seconds, call in zip(rounds, calls, strict=True):
            start = time.thread_time()
            for _ in range(_CALLS):
                call()
            seconds.append(time.thread_time() - start)
    return [1e6 * sorted(seconds)[_ROUNDS // 20] / _CALLS for seconds in rounds]


def median_and_p99(calls: Sequence[Callable[[], object]], prepare: Callable[[], object] = lambda: None) -> str:
    """The time of each call in its quickest round: the median, also in times of ``torch.mm``, and the 99th percentile.

    Args:
        prepare: is called before each round.
    """
    best = [float("inf")] * len(calls)
    for _ in range(_ROUNDS_OF_FIRST_CALLS):
        prepare()
        for i, call in enumerate(calls):
            start = time.thread_time()
            call()
            best[i] = min(best[i], time.thread_time() - start)
    cuts = [1e6 * cut for cut in statistics.quantiles(best, n=100)]
    (mm_us,) = microseconds(small_mm())
    return f"{cuts[49]:.1f} µs (p99 {cuts[98]:.1f} µs, {cuts[49] / mm_us:.0f} times torch.mm)"


def first_and_second(calls: Sequence[Callable[[], object]]) -> str:
    """``median_and_p99`` of calls that haven't been made before, and of those that have been once."""

    def make_once() -> None:
        forget_calls()
        for call in calls:
            call()

    return f"{median_and_p99(calls, forget_calls)}, the second time {median_and_p99(calls, make_once)}"


def small_mm() -> Callable[[], object]:
    """``torch.mm(out=)`` of 16 x 16."""
    x, y, z = (torch.randn(16, 16, device=hip.runtime().tensor_device) for _ in range(3))
    return functools.partial(torch.mm, x, y, out=z)


def keep_freed_memory() -> None:
    """Lets the CPU's allocator keep what was freed, as torch's allocator of a GPU does."""
    libc = ctypes.CDLL("libc.so.6")
    for option, value in _MALLOC_OPTIONS:
        libc.mallopt(option, value)


def forget_calls() -> None:
    """Makes every call the first one with its arguments; kernels and choices stay."""
    calls = session.current().of(repeated.Calls)
    calls.known.clear()
    calls.bytes = 0


def check_no_contents() -> None:
    """Leaves out checks of contents, which hardware doesn't ask for, in repeated calls."""
    for remembered in session.current().of(repeated.Calls).known.values():
        remembered.plan.contents = []


@contextlib.contextmanager
def launching_nothing() -> Iterator[None]:
    """In simulation, replaces the kernels' entry points by a C function that does nothing, and registers no memory."""
    runtime = hip.runtime()
    if not runtime.is_simulated:
        yield
        return
    nothing = ctypes.CDLL("libm.so.6").fegetround  # 0, as dg_launch returns
    nothing.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    before = {kernel: kernel.entry_point for kernel in jit.loaded()}
    checks = sequences._check_used_pages, sequences._check_ends
    sequences._check_used_pages = sequences._check_ends = lambda *_: None
    runtime.relaunch = lambda launches, tensors, used: runtime.launch_all(launches, 0)  # type: ignore[method-assign]
    runtime.running = lambda tensors: contextlib.nullcontext()  # type: ignore[attr-defined]
    for kernel in before:
        kernel.entry_point = nothing
    forget_calls()  # which know the entry points
    try:
        yield
    finally:
        forget_calls()
        sequences._check_used_pages, sequences._check_ends = checks
        del runtime.relaunch, runtime.running
        for kernel, entry_point in before.items():
            kernel.entry_point = entry_point


@contextlib.contextmanager
def empty_cache() -> Iterator[None]:
    before = os.environ.get("DG_JIT_CACHE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DG_JIT_CACHE_DIR"] = folder
        try:
            yield
        finally:
            del os.environ["DG_JIT_CACHE_DIR"]
            if before is not None:
                os.environ["DG_JIT_CACHE_DIR"] = before


def repeated_calls(device: str) -> None:
    calls = (
        ("gemm_fp8", Shape(16, 128, 256)),
        ("fp8_gemm_nt", Shape(16, 128, 256)),
        ("fp8_gemm_nt", Shape(16, 512, 16384)),  # K is split
        ("bf16_gemm_nt", Shape(16, 128, 256)),
        ("m_grouped_fp8_gemm_nt_contiguous", Shape(16, 128, 256, 2)),
        ("m_grouped_fp8_gemm_nt_masked", Shape(16, 128, 256, 2)),
        # Large tiles take longest to compile.
        ("fp8_gemm_nt", Shape(4096, 7168, 256)),
        ("m_grouped_fp8_gemm_nt_contiguous", Shape(1024, 4096, 256, 4)),
        ("m_grouped_fp8_gemm_nt_masked", Shape(1024, 4096, 256, 1)),
    )
    for name, shape in calls:
        op = "fp8_gemm_nt" if name == "gemm_fp8" else name
        problem = problems.make(op, shape, device)
        function = getattr(deep_gemm_rocm, name)
        ours = functools.partial(function, problem.a, problem.b, problem.d, *problems.OPERATIONS[op].more(problem))
        jit.forget()
        with empty_cache():
            ours()
            kernels = jit.loaded()
        with launching_nothing():
            ours_us, mm_us = microseconds(ours, small_mm())
        print(
            f"{name} {shape}: {ours_us:.2f} µs a call, {ours_us / mm_us:.1f} times torch.mm ({mm_us:.2f} µs); "
            "compiling " + " and ".join(f"{kernel.artefact.compile_seconds:.2f} s" for kernel in kernels)
        )


def other_repeated_calls(device: str) -> None:
    """Functions that aren't GEMMs, and the time of ``torch.empty`` for their results."""
    x, heads = torch.randn(64, 1024, device=device).bfloat16(), torch.randn(2, 64, 8, 128, device=device).bfloat16()
    norm, scores = torch.randn(1024, device=device).bfloat16(), torch.randn(64, 64, device=device)
    pages = {
        "block_table": torch.arange(8, dtype=torch.int32, device=device).view(2, 4),
        "context_lens": torch.tensor([200, 256], dtype=torch.int32, device=device),
    }
    cache, other_cache = (torch.randn(8, 64, 8, 128, device=device).bfloat16() for _ in range(2))
    q = heads[:, :1]
    latent = torch.randn(8, 64, 1, 576, device=device).bfloat16()
    latent_q = torch.randn(2, 1, 16, 576, device=device).bfloat16()
    experts = [fp8_weights(4, 512, 1024, device), fp8_weights(4, 1024, 256, device)]
    weights, ids = deep_gemm_rocm.route_top_k(scores[:, :4], 2)
    tokens, slots = torch.randn(2, 8, 128, device=device).bfloat16(), torch.tensor([3, 70], device=device)
    chosen = torch.arange(128, dtype=torch.int32, device=device).view(2, 1, 64)
    calls = {
        "per_token_cast_to_fp8": lambda: deep_gemm_rocm.per_token_cast_to_fp8(x),
        "rms_norm_cast_to_fp8": lambda: deep_gemm_rocm.rms_norm_cast_to_fp8(x, norm),
        "silu_and_mul_cast_to_fp8": lambda: deep_gemm_rocm.silu_and_mul_cast_to_fp8(x),
        "route_top_k": lambda: deep_gemm_rocm.route_top_k(scores, 4),
        "flash_attention": lambda: deep_gemm_rocm.flash_attention(heads, heads, heads, causal=True),
        "flash_attention_decode": lambda: deep_gemm_rocm.flash_attention_decode(q, cache, cache, **pages),
        "mla_decode": lambda: deep_gemm_rocm.mla_decode(latent_q, latent, **pages),
        "flash_mla_with_kvcache": lambda: deep_gemm_rocm.flash_mla_with_kvcache(latent_q, latent, *pages.values(), 512),
        "flash_mla_with_kvcache, chosen tokens": lambda: deep_gemm_rocm.flash_mla_with_kvcache(
            latent_q, latent, None, None, 512, indices=chosen
        ),
        "append_kv_cache": lambda: deep_gemm_rocm.append_kv_cache(tokens, tokens, cache, other_cache, slots),
        "top_k_per_row": lambda: deep_gemm_rocm.top_k_per_row(scores, 16),
        "fused_moe, five launches": lambda: deep_gemm_rocm.fused_moe(x, *experts, weights, ids),
    }
    for name, call in calls.items():
        result = call()
        made = [result] if isinstance(result, torch.Tensor) else list(result or ())
        with launching_nothing():
            call()
            check_no_contents()
            ours_us, empty_us, mm_us = microseconds(call, make_empty(made), small_mm())
        print(
            f"{name}: {ours_us:.2f} µs a call, {ours_us / mm_us:.1f} times torch.mm ({mm_us:.2f} µs)"
            + (f"; torch.empty for its results {empty_us / mm_us:.1f} times" if made else "")
        )


def all_repeated_calls() -> None:
    """All public functions that launch kernels, with the arguments of their tests."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from helpers.good_calls import GOOD

    ratios = []
    for name, arguments in GOOD.items():
        call = functools.partial(getattr(deep_gemm_rocm, name), **arguments())
        forget_calls()
        call()
        if name == "warmup_kernels" or not session.current().of(repeated.Calls).known:
            continue
        with launching_nothing():
            call()
            check_no_contents()
            ours_us, mm_us = microseconds(call, small_mm())
        ratios.append((ours_us / mm_us, name))
    for ratio, name in sorted(ratios):
        print(f"{name} with nearly all of its arguments: {ratio:.1f} times torch.mm")


def make_empty(like: Sequence[torch.Tensor]) -> Callable[[], object]:
    makers = [functools.partial(torch.empty, one.shape, dtype=one.dtype, device=one.device) for one in like]
    return lambda: [make() for make in makers]


def fp8_weights(experts: int, n: int, k: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of experts in FP8 with scales of blocks."""
    pairs = [deep_gemm_rocm.per_block_cast_to_fp8(torch.randn(n, k, device=device)) for _ in range(experts)]
    data, scales = (torch.stack(parts) for parts in zip(*pairs, strict=True))
    return data, scales


def calls_that_differ(device: str, only: str) -> int:
    """Returns how many functions have the text in their names."""
    dense, contiguous, masked = (
        Shape(_ROWS, 4096, 1024), Shape(_ROWS // 4, 4096, 1024, 4), Shape(_ROWS, 4096, 1024, 1)
    )  # fmt: skip
    problems_of = (
        ("fp8_gemm_nt", Shape(_ROWS, 7168, 2048)),
        ("m_grouped_fp8_gemm_nt_contiguous", contiguous),
        ("m_grouped_fp8_gemm_nt_masked", masked),
        ("bf16_fp4_gemm_nt", dense),
        ("fp8_fp4_gemm_nt", dense),
        ("m_grouped_fp8_fp4_gemm_nt_contiguous", contiguous),
        ("m_grouped_fp8_fp4_gemm_nt_masked", masked),
        ("bf16_int4_gemm_nt", dense),
        ("fp8_int4_gemm_nt", dense),
        ("m_grouped_bf16_int4_gemm_nt_contiguous", contiguous),
        ("m_grouped_bf16_int4_gemm_nt_masked", masked),
    )
    chosen = [(op, shape) for op, shape in problems_of if only in op]
    for op, shape in chosen:
        problem = problems.make(op, shape, device)
        other_m = [of_rows(problem, m) for m in range(1, _ROWS + 1, 4)]
        memory = problem.d.new_empty(problem.d.numel() + _ADDRESSES * shape.n)
        outputs = [memory[shape.n * row :][: problem.d.numel()].view(problem.d.shape) for row in range(_ADDRESSES)]
        other_address = [of_rows(dataclasses.replace(problem, d=d), _ROWS) for d in outputs]
        same = of_rows(problem, _ROWS)
        warm_up(other_m)

        def forget_all_but_one() -> None:
            forget_calls()
            other_address[0]()  # noqa: B023 it is called here

        with launching_nothing():
            print(
                f"{op} {shape}: {first_and_second(other_m)} a call of another M, "
                f"{median_and_p99(other_address[1:], forget_all_but_one)} of another address, "
                f"{median_and_p99([functools.partial(with_other_cus, same)] * 100)} "
                "with get_num_sms and set_num_sms around it"
            )
    return len(chosen)


def calls_of_other_sizes(device: str, only: str) -> int:
    """First calls of functions that aren't GEMMs, at numbers of rows or sequences that they haven't seen.

    Returns how many functions have the text in their names.
    """
    x, norm = torch.randn(_ROWS, 1024, device=device).bfloat16(), torch.randn(1024, device=device).bfloat16()
    experts = [fp8_weights(8, 512, 1024, device), fp8_weights(8, 1024, 256, device)]
    weights, ids = deep_gemm_rocm.route_top_k(torch.randn(_ROWS, 8, device=device), 2)
    q = torch.randn(_ROWS, 1, 8, 128, device=device).bfloat16()
    latent_q = torch.randn(_ROWS, 1, 16, 576, device=device).bfloat16()
    cache, latent = torch.zeros(8, 64, 8, 128).bfloat16().to(device), torch.zeros(8, 64, 1, 576).bfloat16().to(device)
    table = torch.zeros(_ROWS, 32, dtype=torch.int32, device=device)
    lengths = torch.full((_ROWS,), 2000, dtype=torch.int32, device=device)
    ours, partial = deep_gemm_rocm, functools.partial
    logits, slots = torch.randn(_ROWS, 256, device=device), torch.arange(_ROWS, device=device) % 512
    values = cache.clone()
    indexer_q = torch.zeros(_ROWS, 1, 64, 128, dtype=torch.float8_e4m3fnuz, device=device)
    indexer_cache = torch.zeros(8, 64, 1, 132, dtype=torch.uint8, device=device)
    schedule = ours.get_paged_mqa_logits_metadata(lengths, 64, 304)
    keys = torch.zeros(2 * _ROWS, 128, dtype=torch.float8_e4m3fnuz, device=device), torch.ones(2 * _ROWS, device=device)
    queries, several = indexer_q[:, 0], indexer_q[: _ROWS // 2].expand(-1, 2, -1, -1).contiguous()
    zeros = torch.zeros_like(lengths)
    sums = [torch.zeros(8, rows, device=device) for rows in range(_ROWS + 1)]
    prompt, heads = torch.zeros(2 * _ROWS, 8, 128, device=device).bfloat16(), q[:, 0]
    ends = [torch.tensor([0, rows // 2, rows], dtype=torch.int32, device=device) for rows in range(2 * _ROWS + 1)]
    calls = {
        "per_token_cast_to_fp8": lambda m: partial(ours.per_token_cast_to_fp8, x[:m]),
        "rms_norm_cast_to_fp8": lambda m: partial(ours.rms_norm_cast_to_fp8, x[:m], norm),
        "silu_and_mul_cast_to_fp8": lambda m: partial(ours.silu_and_mul_cast_to_fp8, x[:m]),
        "flash_attention_decode": lambda m: partial(
            ours.flash_attention_decode, q[:m], cache, cache, block_table=table[:m], context_lens=lengths[:m]
        ),
        "mla_decode": lambda m: partial(
            ours.mla_decode, latent_q[:m], latent, block_table=table[:m], context_lens=lengths[:m]
        ),
        "flash_mla_with_kvcache": lambda m: partial(
            ours.flash_mla_with_kvcache, latent_q[:m], latent, table[:m], lengths[:m], 512
        ),
        "fused_moe, five launches": lambda m: partial(ours.fused_moe, x[:m], *experts, weights[:m], ids[:m]),
        "route_top_k": lambda m: partial(ours.route_top_k, logits[:m], 8),
        "append_kv_cache": lambda m: partial(ours.append_kv_cache, q[:m, 0], q[:m, 0], cache, values, slots[:m]),
        "append_mla_cache": lambda m: partial(ours.append_mla_cache, x[:m, :512], x[:m, 512:576], latent, slots[:m]),
        "top_k_per_row": lambda m: partial(ours.top_k_per_row, logits[:m], 16, ends=lengths[:m]),
        "fp8_paged_mqa_logits": lambda m: partial(
            ours.fp8_paged_mqa_logits,
            indexer_q[:m],
            indexer_cache,
            logits[:m, :64],
            lengths[:m],
            table[:m],
            schedule,
            2000,
        ),
        "fp8_paged_mqa_logits, two tokens of a sequence": lambda m: partial(
            ours.fp8_paged_mqa_logits,
            several[: m // 2 + 1],
            indexer_cache,
            logits[: m // 2 * 2 + 2, :64],
            lengths[: m // 2 + 1],
            table[: m // 2 + 1],
            schedule,
            2000,
        ),
        "fp8_mqa_logits": lambda m: partial(
            ours.fp8_mqa_logits,
            queries[:m],
            (keys[0][: 2 * m], keys[1][: 2 * m]),
            logits[:m, :64],
            zeros[:m],
            lengths[:m],
            False,
        ),
        "flash_attention": lambda m: partial(
            ours.flash_attention, heads[None, :m], heads[None, :m], heads[None, :m], causal=True
        ),
        "flash_attention, packed": lambda m: partial(
            ours.flash_attention,
            heads[:m],
            prompt[: 2 * m],
            prompt[: 2 * m],
            cu_seqlens_q=ends[m],
            cu_seqlens_k=ends[2 * m],
            causal=True,
        ),
        "merge_attention_states": lambda m: partial(
            ours.merge_attention_states, heads[:m], sums[m], heads[:m], sums[m]
        ),
        "get_paged_mqa_logits_metadata": lambda m: partial(ours.get_paged_mqa_logits_metadata, lengths[:m], 64, 304),
    }
    chosen = [name for name in calls if only in name]
    for name in chosen:
        call = calls[name]
        of_sizes = [call(m) for m in range(1, _ROWS + 1, 4)]
        warm_up(of_sizes)
        with launching_nothing():
            print(f"{name}: {first_and_second(of_sizes)} a call of another size")
    return len(chosen)


def warm_up(calls: Sequence[Callable[[], object]]) -> None:
    """Compiles and loads their kernels."""
    deep_gemm_rocm.set_compile_mode(1)
    for call in calls:
        call()
    deep_gemm_rocm.set_compile_mode(0)


def of_rows(problem: problems.Problem, m: int) -> Callable[[], object]:
    """The call for ``m`` rows of a problem, or for masked groups that are expected to have as many."""
    function = problems.OPERATIONS[problem.op].function
    if problem.op.endswith("masked"):
        return functools.partial(function, problem.a, problem.b, problem.d, problem.layout, m)
    a = tuple(part[:m] for part in problem.a) if isinstance(problem.a, tuple) else problem.a[:m]
    more = () if problem.layout is None else (problem.layout[:m],)
    return functools.partial(function, a, problem.b, problem.d[:m], *more)


def with_other_cus(call: Callable[[], object]) -> None:
    """A call as engines make it that leave compute units to communication."""
    before = deep_gemm_rocm.get_num_sms()
    deep_gemm_rocm.set_num_sms(_OTHER_CUS)
    call()
    deep_gemm_rocm.set_num_sms(before)


def main(
    only: Annotated[str, typer.Option(help="Only first calls of functions with this text in their names.")] = "",
) -> None:
    device = hip.runtime().tensor_device
    keep_freed_memory()
    # Other sizes first, as long as little memory was used that may have gone back to the system.
    if not calls_of_other_sizes(device, only) + calls_that_differ(device, only):
        raise typer.BadParameter(f"no function has {only!r} in its name", param_hint="--only")
    if not only:
        repeated_calls(device)
        other_repeated_calls(device)
        all_repeated_calls()


if __name__ == "__main__":
    typer.run(main)
