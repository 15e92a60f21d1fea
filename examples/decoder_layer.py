"""A decoder layer of DeepSeek-V3 or Qwen3-MoE, from hidden states to hidden states, prompt and decoding.

    python examples/decoder_layer.py

runs layers on random data, on an MI300X or the simulated one, and compares them with plain torch in fp32. Their widths
and numbers of heads are those of the full layers divided by 16, or by --cut.

    python examples/decoder_layer.py --times

prints the simulated time of each kernel of the full layers: a step of decoding for 64 sequences of
4096 tokens, and a prompt of 4096 tokens. The device is one of eight. It attends to its own tokens and has an eighth of
the experts, for which the others send as many rows as leave; sending isn't part of it. Small operations, such as the
rotary embedding, are torch's and not timed.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

import torch

import deep_gemm_rocm as dg

Pair = tuple[torch.Tensor, torch.Tensor]  # FP8 data and its scales
PAGE = 64  # tokens of a page of the cache
CONTEXT = 4096  # tokens of a sequence whose decoding is timed


@dataclass(frozen=True)
class Tokens:
    """The tokens of a call: the last ones of each sequence.

    Attributes:
        lengths: int32 [sequences], tokens of each sequence including these.
        starts: int32 [sequences + 1], where each sequence's tokens begin, and the end of the last.
        positions: int64 [tokens].
        slots: int64 [tokens], their places in the cache.
        block_table: int32 [sequences, pages].
    """

    lengths: torch.Tensor
    starts: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    block_table: torch.Tensor

    @classmethod
    def after(cls, contexts: list[int], count: int, device: str) -> Tokens:
        """The next ``count`` tokens of sequences that have ``contexts`` tokens in the cache."""
        pages = -(-(max(contexts) + count) // PAGE)
        block_table = torch.arange(len(contexts) * pages, dtype=torch.int32).view(-1, pages).flip(1)
        positions = torch.tensor([context + i for context in contexts for i in range(count)])
        of_sequence = torch.arange(len(contexts)).repeat_interleave(count)
        slots = block_table[of_sequence, positions // PAGE] * PAGE + positions % PAGE
        lengths = torch.tensor(contexts, dtype=torch.int32) + count
        starts = torch.arange(len(contexts) + 1, dtype=torch.int32) * count
        return cls(*(tensor.to(device) for tensor in (lengths, starts, positions, slots, block_table)))

    @property
    def is_prompt(self) -> bool:
        return len(self.positions) > len(self.lengths)


class Experts:
    """The second half of a layer: a router, experts, and for DeepSeek an expert that all tokens share."""

    def __init__(self, sizes: Sizes, make: Make) -> None:
        self.sizes = sizes
        self.norm = make.vector(sizes.hidden)
        self.router = make.bf16(sizes.experts, sizes.hidden)
        self.bias = make.vector(sizes.experts).float() - 1 if sizes.is_deepseek else None
        self.gate_up = make.fp8(sizes.experts, 2 * sizes.intermediate, sizes.hidden)
        self.down = make.fp8(sizes.experts, sizes.hidden, sizes.intermediate)
        if sizes.is_deepseek:
            self.shared_gate_up = make.fp8(2 * sizes.intermediate, sizes.hidden)
            self.shared_down = make.fp8(sizes.hidden, sizes.intermediate)

    def route(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and ids of each token's experts."""
        logits = torch.empty(len(hidden), self.sizes.experts, dtype=torch.float32, device=hidden.device)
        dg.bf16_gemm_nt(rms_norm(hidden, self.norm), self.router, logits)
        if not self.sizes.is_deepseek:
            return dg.route_top_k(logits, self.sizes.top_k)
        return dg.route_top_k(
            logits, self.sizes.top_k, scoring="sigmoid", bias=self.bias, num_groups=8, top_groups=4, scale=2.5
        )

    def __call__(self, x: Pair, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """bf16 [tokens, hidden] of normalised tokens in FP8."""
        routed = dg.fused_moe(x, self.gate_up, self.down, weights, ids)
        if not self.sizes.is_deepseek:
            return routed
        # A kernel that activates and quantises takes the results of the first GEMM; the next adds the routed experts'.
        activated = dg.silu_and_mul_cast_to_fp8(dg.gemm_fp8(x, self.shared_gate_up))
        return dg.gemm_fp8(activated, self.shared_down, c=routed)

    def reference(self, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The same in fp32 for given choices, which roundings may decide."""
        x = rms_norm(hidden, self.norm.float())
        scores = x @ self.router.float().T
        scores = scores.sigmoid() if self.sizes.is_deepseek else scores.softmax(-1)
        weights = scores.gather(1, ids.long())
        weights = weights / weights.sum(1, keepdim=True) * (2.5 if self.sizes.is_deepseek else 1)
        result = torch.zeros_like(x)
        for expert in range(self.sizes.experts):
            token, choice = (ids == expert).nonzero(as_tuple=True)
            gate_up, down = ((data[expert], scales[expert]) for data, scales in (self.gate_up, self.down))
            result.index_add_(0, token, gated(x[token], gate_up, down) * weights[token, choice, None])
        return result + gated(x, self.shared_gate_up, self.shared_down) if self.sizes.is_deepseek else result


class LatentAttention:
    """DeepSeek's attention: the cache has a latent vector of 512 elements for each token, and a rotary part of 64."""

    LATENT, NOPE, ROPE, VALUE = 512, 128, 64, 128

    def __init__(self, sizes: Sizes, make: Make) -> None:
        self.heads, self.query_rank = sizes.heads, sizes.query_rank
        key, of_head = self.NOPE + self.ROPE, self.NOPE + self.VALUE
        self.scale = key**-0.5
        self.norm, self.query_norm, self.latent_norm = map(make.vector, (sizes.hidden, self.query_rank, self.LATENT))
        self.down = make.fp8(self.query_rank + self.LATENT + self.ROPE, sizes.hidden)
        self.query_up = make.fp8(self.heads * key, self.query_rank)
        self.up = make.fp8(self.heads * of_head, self.LATENT)
        self.out = make.fp8(sizes.hidden, self.heads * self.VALUE)
        # Decoding multiplies queries and results with the heads' parts of `up`, not keys and values.
        of_heads = dequantised(self.up).bfloat16().view(self.heads, of_head, self.LATENT)
        self.absorbed_key = of_heads[:, : self.NOPE].transpose(1, 2).contiguous()
        self.absorbed_value = of_heads[:, self.NOPE :].contiguous()

    def new_cache(self, pages: int, device: str) -> torch.Tensor:
        return torch.zeros(pages, PAGE, 1, self.LATENT + self.ROPE, dtype=torch.bfloat16, device=device)

    def __call__(self, x: Pair, cache: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        latent = dg.gemm_fp8(x, self.down)
        query, kv, key_rope = latent.split([self.query_rank, self.LATENT, self.ROPE], dim=1)
        query = dg.gemm_fp8(dg.rms_norm_cast_to_fp8(query, self.query_norm), self.query_up)
        query, query_rope = query.view(len(query), self.heads, -1).split([self.NOPE, self.ROPE], dim=-1)
        query_rope = rotated(query_rope, tokens.positions)
        key_rope = rotated(key_rope[:, None], tokens.positions)
        kv = rms_norm(kv, self.latent_norm)
        dg.append_mla_cache(kv, key_rope[:, 0].contiguous(), cache, tokens.slots)
        if tokens.is_prompt:
            heads = self._prompt(query, query_rope, kv, key_rope, tokens)
        else:
            heads = self._decode(query, query_rope, cache, tokens)
        return dg.gemm_fp8(dg.per_token_cast_to_fp8(heads.flatten(1)), self.out)

    def _prompt(
        self,
        query: torch.Tensor,
        query_rope: torch.Tensor,
        kv: torch.Tensor,
        key_rope: torch.Tensor,
        tokens: Tokens,
    ) -> torch.Tensor:
        of_heads = dg.gemm_fp8(dg.per_token_cast_to_fp8(kv), self.up).view(len(kv), self.heads, -1)
        key, value = of_heads.split([self.NOPE, self.VALUE], dim=-1)
        return dg.flash_attention(
            torch.cat([query, query_rope], dim=-1),
            torch.cat([key, key_rope.expand(-1, self.heads, -1)], dim=-1),
            value,
            causal=True,
            softmax_scale=self.scale,
            cu_seqlens_q=tokens.starts,
            cu_seqlens_k=tokens.starts,
        )

    def _decode(
        self, query: torch.Tensor, query_rope: torch.Tensor, cache: torch.Tensor, tokens: Tokens
    ) -> torch.Tensor:
        absorbed = query.new_empty(len(query), self.heads, self.LATENT)
        dg.einsum("bhr,hdr->bhd", query, self.absorbed_key, absorbed)
        latent = dg.mla_decode(
            torch.cat([absorbed, query_rope], dim=-1)[:, None],
            cache,
            block_table=tokens.block_table,
            context_lens=tokens.lengths,
            softmax_scale=self.scale,
        )
        heads = query.new_empty(len(query), self.heads, self.VALUE)
        dg.einsum("bhr,hdr->bhd", latent[:, 0], self.absorbed_value, heads)
        return heads

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        """The same for fp32 [sequences, tokens, hidden], all tokens of each sequence."""
        positions = torch.arange(x.shape[1], device=x.device)
        latent = x @ dequantised(self.down).T
        query, kv, key_rope = latent.split([self.query_rank, self.LATENT, self.ROPE], dim=-1)
        query = rms_norm(query, self.query_norm.float()) @ dequantised(self.query_up).T
        query, query_rope = query.unflatten(-1, (self.heads, -1)).split([self.NOPE, self.ROPE], dim=-1)
        of_heads = rms_norm(kv, self.latent_norm.float()) @ dequantised(self.up).T
        key, value = of_heads.unflatten(-1, (self.heads, -1)).split([self.NOPE, self.VALUE], dim=-1)
        key_rope = rotated(key_rope[:, :, None], positions).expand(-1, -1, self.heads, -1)
        query = torch.cat([query, rotated(query_rope, positions)], dim=-1)
        heads = causal_attention(query, torch.cat([key, key_rope], dim=-1), value, self.scale)
        return heads @ dequantised(self.out).T


class GroupedAttention:
    """Qwen3's attention: several heads of queries share one of keys and values; queries and keys are normalised."""

    WIDTH = 128

    def __init__(self, sizes: Sizes, make: Make) -> None:
        self.heads, self.kv_heads = sizes.heads, sizes.kv_heads
        self.norm, self.query_norm, self.key_norm = map(make.vector, (sizes.hidden, self.WIDTH, self.WIDTH))
        self.qkv = make.fp8((self.heads + 2 * self.kv_heads) * self.WIDTH, sizes.hidden)
        self.out = make.fp8(sizes.hidden, self.heads * self.WIDTH)

    def new_cache(self, pages: int, device: str) -> torch.Tensor:
        return torch.zeros(2, pages, PAGE, self.kv_heads, self.WIDTH, dtype=torch.bfloat16, device=device)

    def __call__(self, x: Pair, cache: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        query, key, value = self._split(dg.gemm_fp8(x, self.qkv), tokens.positions)
        dg.append_kv_cache(key, value, *cache, tokens.slots)
        if tokens.is_prompt:
            heads = dg.flash_attention(
                query, key, value, causal=True, cu_seqlens_q=tokens.starts, cu_seqlens_k=tokens.starts
            )
        else:
            heads = dg.flash_attention_decode(
                query[:, None], *cache, block_table=tokens.block_table, context_lens=tokens.lengths
            )
        return dg.gemm_fp8(dg.per_token_cast_to_fp8(heads.reshape(len(query), -1)), self.out)

    def _split(self, qkv: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        of_heads = qkv.unflatten(-1, (-1, self.WIDTH))
        query, key, value = of_heads.split([self.heads, self.kv_heads, self.kv_heads], dim=-2)
        norms = self.query_norm.to(qkv.dtype), self.key_norm.to(qkv.dtype)
        query, key = (rotated(rms_norm(part, norm), positions) for part, norm in zip((query, key), norms, strict=True))
        return query, key, value

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        """The same for fp32 [sequences, tokens, hidden], all tokens of each sequence."""
        positions = torch.arange(x.shape[1], device=x.device)
        query, key, value = self._split(x @ dequantised(self.qkv).T, positions)
        key, value = (part.repeat_interleave(self.heads // self.kv_heads, dim=2) for part in (key, value))
        return causal_attention(query, key, value, self.WIDTH**-0.5) @ dequantised(self.out).T


@dataclass(frozen=True)
class Sizes:
    """The sizes of a layer on one device."""

    attention: type[LatentAttention] | type[GroupedAttention]
    hidden: int
    heads: int
    experts: int
    intermediate: int
    top_k: int
    query_rank: int = 0
    kv_heads: int = 0

    @property
    def is_deepseek(self) -> bool:
        return self.attention is LatentAttention

    def cut(self, by: int) -> Sizes:
        """A smaller layer with as many experts. Widths stay multiples of 128."""

        def width(full: int) -> int:
            return -(-full // (128 * by)) * 128

        return replace(
            self,
            hidden=width(self.hidden),
            heads=self.heads // by,
            intermediate=width(self.intermediate),
            query_rank=width(self.query_rank),
            kv_heads=-(-self.kv_heads // by),
        )


FULL = {
    "DeepSeek-V3": Sizes(LatentAttention, 7168, 128, experts=32, intermediate=2048, top_k=8, query_rank=1536),
    "Qwen3-235B-A22B": Sizes(GroupedAttention, 4096, 64, experts=16, intermediate=1536, top_k=8, kv_heads=4),
}
CUTS = (1, 2, 4, 8, 16, 32)  # which leave some heads


class Layer:
    """A decoder layer."""

    def __init__(self, sizes: Sizes, make: Make) -> None:
        self.attention = sizes.attention(sizes, make)
        self.experts = Experts(sizes, make)

    def __call__(self, hidden: torch.Tensor, cache: torch.Tensor, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Returns:
            bf16 [tokens, hidden], and the experts that each token chose.
        """
        attended = self.attend(hidden, cache, tokens)
        *x, hidden = dg.rms_norm_cast_to_fp8(attended, self.experts.norm, residual=hidden)
        weights, ids = self.experts.route(hidden)
        return hidden + self.experts(tuple(x), weights, ids), ids

    def attend(self, hidden: torch.Tensor, cache: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        return self.attention(dg.rms_norm_cast_to_fp8(hidden, self.attention.norm), cache, tokens)

    def reference(self, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The layer in plain torch, for fp32 [sequences, tokens, hidden] and the experts that each token chose."""
        hidden = hidden + self.attention.reference(rms_norm(hidden, self.attention.norm.float()))
        return hidden + self.experts.reference(hidden.flatten(0, 1), ids.flatten(0, 1)).view(hidden.shape)


class Make:
    """Makes weights: random ones, or for times, which don't depend on them, zeros."""

    def __init__(self, device: str, *, random: bool) -> None:
        self.device = device
        self.generator = torch.Generator().manual_seed(0) if random else None

    def vector(self, count: int) -> torch.Tensor:
        """bf16 around 1."""
        return (1 + self._normal(count) / 8).bfloat16().to(self.device)

    def bf16(self, *shape: int) -> torch.Tensor:
        return (self._normal(*shape) / shape[-1] ** 0.5).bfloat16().to(self.device)

    def fp8(self, *shape: int) -> Pair:
        """FP8 with a scale for 128 x 128 elements of each matrix."""
        if self.generator is None:
            *experts, rows, columns = shape
            data = torch.zeros(shape, dtype=torch.float8_e4m3fnuz, device=self.device)
            return data, torch.ones(*experts, -(-rows // 128), -(-columns // 128), device=self.device)
        matrices = self.bf16(*shape).view(-1, *shape[-2:])
        data, scales = zip(*map(dg.per_block_cast_to_fp8, matrices), strict=True)
        return torch.stack(data).view(shape), torch.stack(scales).view(*shape[:-2], *scales[0].shape)

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape) if self.generator is None else torch.randn(shape, generator=self.generator)


def dequantised(weight: Pair) -> torch.Tensor:
    data, scales = weight
    rows, columns = data.shape
    return data.float() * scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :columns]


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps=1e-6)


def rotated(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The rotary embedding of [..., tokens, heads, width]."""
    half = x.shape[-1] // 2
    frequencies = 1e4 ** (-torch.arange(half, device=x.device) / half)
    angles = (positions[:, None] * frequencies)[:, None]
    first, second = x.float().chunk(2, dim=-1)
    turned = first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()
    return torch.cat(turned, dim=-1).to(x.dtype)


def gated(x: torch.Tensor, gate_up: Pair, down: Pair) -> torch.Tensor:
    gate, up = (x @ dequantised(gate_up).T).chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up) @ dequantised(down).T


def causal_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """[sequences, tokens, heads · width of value] of [sequences, tokens, heads, width]."""
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    return attended.transpose(1, 2).flatten(2)


def difference(sizes: Sizes, sequences: int, prompt: int, device: str) -> float:
    """How far a prompt and one more token of each sequence are from plain torch, as ``calc_diff`` of what is added."""
    layer = Layer(sizes, Make(device, random=True))
    shape = (sequences, prompt + 1, sizes.hidden)
    hidden = torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16().to(device)
    cache = layer.attention.new_cache(sequences * -(-(prompt + 1) // PAGE), device)
    made, ids = torch.empty_like(hidden), []
    for tokens, of_call in (
        (slice(0, prompt), Tokens.after([0] * sequences, prompt, device)),
        (slice(prompt, None), Tokens.after([prompt] * sequences, 1, device)),
    ):
        given = hidden[:, tokens]
        result, chosen = layer(given.flatten(0, 1), cache, of_call)
        made[:, tokens] = result.view(given.shape)
        ids.append(chosen.view(sequences, -1, sizes.top_k))
    expected = layer.reference(hidden.float(), torch.cat(ids, dim=1))
    return float(dg.calc_diff(made.float() - hidden, expected - hidden))


def times(sizes: Sizes, tokens: Tokens, device: str) -> list[tuple[str, float]]:
    """Name and sustained microseconds of each kernel of a layer, in simulated time."""
    layer = Layer(sizes, Make(device, random=False))
    hidden = torch.zeros(len(tokens.positions), sizes.hidden, dtype=torch.bfloat16, device=device)
    cache = layer.attention.new_cache(tokens.block_table.numel(), device)
    # Choices are made of random logits, for they decide how long the experts take.
    logits = torch.randn(len(hidden), sizes.experts, generator=torch.Generator().manual_seed(0)).to(device)
    weights, ids = dg.route_top_k(logits, sizes.top_k)

    def attend_and_route() -> Pair:
        data, scales, added = dg.rms_norm_cast_to_fp8(
            layer.attend(hidden, cache, tokens), layer.experts.norm, residual=hidden
        )
        layer.experts.route(added)
        return data, scales

    # Kernels only compute what time depends on, but for the order in which the experts' GEMMs take their rows.
    with dg.simulator.profile(compute="sampled", computed=["sort_by_expert"]) as profile:
        layer.experts(attend_and_route(), weights, ids)
    return [(kernel.name, kernel.sustained_us) for kernel in profile.kernels]


def print_times(title: str, kernels: list[tuple[str, float]]) -> None:
    whole = sum(microseconds for _, microseconds in kernels)
    print(f"\n{title}: {whole:.0f} µs, simulated, sustained\n\n| kernel | µs | share |\n|---|---|---|")
    for kernel, microseconds in kernels:
        print(f"| `{kernel}` | {microseconds:.1f} | {microseconds / whole:.0%} |")


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", action="store_true", help="print simulated times of full layers")
    parser.add_argument("--model", choices=FULL, nargs="+", default=list(FULL), help="which layers, by default all")
    parser.add_argument("--cut", type=int, choices=CUTS, default=16, help="what sizes are divided by without --times")
    decode, prompt = "sequences of a step that is timed", "tokens of a prompt that is timed"
    parser.add_argument("--decode", type=positive, default=64, metavar="SEQUENCES", help=decode)
    parser.add_argument("--prompt", type=positive, default=4096, metavar="TOKENS", help=prompt)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for name in options.model:
        if options.times:
            decoding = Tokens.after([CONTEXT - 1] * options.decode, 1, device)
            title = f"decoding for {options.decode} sequences of {CONTEXT} tokens"
            print_times(f"{name}, {title}", times(FULL[name], decoding, device))
            prompt = Tokens.after([0], options.prompt, device)
            print_times(f"{name}, a prompt of {options.prompt} tokens", times(FULL[name], prompt, device))
            continue
        found = difference(FULL[name].cut(options.cut), sequences=2, prompt=70, device=device)
        print(f"{name}, 2 x 71 tokens: differs from plain torch by {found:.1e}")
        if not found < 5e-3:
            raise SystemExit("that is more than FP8 explains")


if __name__ == "__main__":
    main()
