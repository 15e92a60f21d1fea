"""flash_attention against an fp64 oracle, element by element, and against torch's own attention."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest
import torch
from helpers.attention_widths import WIDTHS
from helpers.latent_bytes import rounded
from hypothesis import given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.heuristics import AttentionCase, AttentionChoice, attention_tiles
from deep_gemm_rocm.heuristics.choices import replaced
from deep_gemm_rocm.testing import attention_reference, visible_keys
from deep_gemm_rocm.testing.attention import AttentionReference

DTYPES = (torch.bfloat16, torch.float16)
FP8 = torch.float8_e4m3fnuz
POISON = -1234.0
LENGTHS = (0, 1, 17, 64, 127, 128, 129)


class Tiles:
    """Stands in for a tuning table: the smallest tile with at least so many queries, or else the largest tile."""

    def __init__(self, queries: int) -> None:
        self.queries = queries

    def find(self, case: AttentionCase) -> AttentionChoice:
        tiles = attention_tiles(case.type, case.out_type, case.head_dim, case.value_dim)
        fitting = [config for config in tiles if config.block_q >= self.queries]
        return AttentionChoice((fitting or tiles[:1])[-1])


@pytest.fixture(autouse=True, scope="module")
def largest_tiles():
    """Uses the largest tiles. Small problems normally get smaller ones, but large tiles can fail in more ways."""
    with replaced(Tiles(256)):
        yield


@dataclasses.dataclass
class Problem:
    """Random q, k and v, each surrounded by NaNs in a larger tensor."""

    tokens_q: int
    tokens_k: int
    heads: int = 2
    kv_heads: int = 1
    widths: tuple[int, int] = (128, 128)
    dtype: torch.dtype = torch.bfloat16
    batch: int = 1
    causal: bool = False
    window: tuple[int, int] | None = None
    softmax_scale: float | None = None
    scales: str = "head"  # for FP8: tensor, head or block; of keys in FP8 under q in bf16 also token
    dtype_of_keys: torch.dtype | None = None  # that of q if None
    sink: bool = False
    softcap: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        of_keys = self.dtype_of_keys or self.dtype
        self.q = self._tensor(self.tokens_q, self.heads, self.widths[0], self.dtype, generator)
        self.k = self._tensor(self.tokens_k, self.kv_heads, self.widths[0], of_keys, generator)
        self.v = self._tensor(self.tokens_k, self.kv_heads, self.widths[1], of_keys, generator)
        self.attn_sink = torch.randn(self.heads, generator=generator) * 3 if self.sink else None
        self.descales = {}
        for name, dtype in (("q", self.dtype), ("k", of_keys), ("v", of_keys)):
            if dtype == FP8:
                self.descales[f"{name}_descale"] = self._descale(getattr(self, name), generator)

    def _tensor(
        self, tokens: int, heads: int, width: int, dtype: torch.dtype, generator: torch.Generator
    ) -> torch.Tensor:
        around = torch.full((self.batch + 1, tokens + 2, heads + 1, width + 16), torch.nan).to(dtype)
        inner = around[: self.batch, 1 : tokens + 1, :heads, :width]
        values = torch.randn(inner.shape, generator=generator) * (8 if dtype == FP8 else 1)
        return inner.copy_(values.to(dtype))

    def _descale(self, tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        batch, tokens, heads, _ = tensor.shape
        shapes = {
            "tensor": (1,), "head": (batch, heads), "block": (batch, heads, -(-tokens // 128)),
            "token": (batch, tokens, heads),
        }  # fmt: skip
        shape = shapes[self.scales]
        return torch.empty(shape).uniform_(0.05, 0.3, generator=generator)

    @property
    def seen(self) -> torch.Tensor:
        return visible_keys(self.tokens_q, self.tokens_k, self.causal, self.window)

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the result after checking it against the oracle, and that nothing outside the output was written."""
        out_dtype = torch.bfloat16 if self.dtype == FP8 else self.dtype
        shape = (self.batch + 1, self.tokens_q + 2, self.heads + 1, self.widths[1] + 8)
        around = torch.full(shape, POISON, dtype=out_dtype)
        out = around[: self.batch, 1 : self.tokens_q + 1, : self.heads, : self.widths[1]]
        options = {
            "softmax_scale": self.softmax_scale, "attn_sink": self.attn_sink, "softcap": self.softcap, **self.descales
        }  # fmt: skip
        returned, lse = dg.flash_attention(
            self.q, self.k, self.v, causal=self.causal, window=self.window, out=out, return_lse=True, **options
        )
        assert returned is out
        self.reference(options).assert_accurate(out, lse)
        result = out.clone()
        out.fill_(POISON)
        assert (around == POISON).all()
        return result, lse

    def reference(self, options: dict) -> AttentionReference:
        """The oracle for arguments. Products with factors of tokens are rounded to bf16."""
        if self.scales != "token" or not self.descales:
            return attention_reference(self.q, self.k, self.v, seen=self.seen, **options)
        others = {name: value for name, value in options.items() if name not in self.descales}
        k, v = (rounded(getattr(self, name).float() * self.descales[f"{name}_descale"][..., None]) for name in "kv")
        return attention_reference(self.q, k, v, seen=self.seen, **others)

    def dequantised(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, and k and v as fp64 products with their factors."""
        of_k, of_v = (
            factors.repeat_interleave(128, dim=-1)[..., : self.tokens_k].transpose(1, 2)
            if self.scales == "block" else factors[:, None] if self.scales == "head" else factors
            for factors in self.descales.values()
        )  # fmt: skip
        return self.q, self.k.double() * of_k[..., None], self.v.double() * of_v[..., None]


def sdpa(problem: Problem, *keys_and_values: torch.Tensor) -> torch.Tensor:
    """torch's attention in the problem's dtype."""
    k, v = keys_and_values or (problem.k, problem.v)
    q, k, v = (tensor.transpose(1, 2) for tensor in (problem.q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=problem.seen, scale=problem.softmax_scale, enable_gqa=True
    )
    return out.transpose(1, 2)


def case_id(problem: Problem) -> str:
    mask = ("-causal" if problem.causal else "") + (f"-window{problem.window}" if problem.window else "")
    name = str(problem.dtype).removeprefix("torch.")
    shape = f"{problem.batch}x{problem.tokens_q}x{problem.tokens_k}-{problem.heads}/{problem.kv_heads}"
    return f"{name}-{shape}-{problem.widths[0]}x{problem.widths[1]}{mask}"


CASES = [
    *(Problem(150, 200, widths=widths, causal=True) for widths in ((64, 64), (128, 128), (256, 256), (192, 128))),
    Problem(150, 200, widths=(64, 64), dtype=torch.float16, causal=True),
    Problem(130, 70, widths=(64, 64), batch=2, heads=8, kv_heads=8),
    Problem(40, 300, widths=(64, 64), heads=8, kv_heads=2, batch=2, window=(70, 20)),
    Problem(300, 100, widths=(64, 64), causal=True, softmax_scale=0.3),
    Problem(300, 300, widths=(64, 64), heads=1, causal=True, window=(5, -1)),
    Problem(20, 30, widths=(64, 64), heads=128, batch=5, causal=True),  # more heads than run at a time
]


@pytest.mark.parametrize("problem", CASES, ids=case_id)
def test_no_worse_than_torch(problem):
    out, _ = problem.run()
    exact = attention_reference(
        problem.q, problem.k, problem.v, seen=problem.seen, softmax_scale=problem.softmax_scale
    ).out
    assert_no_worse(problem, out, sdpa(problem), exact)


def assert_no_worse(
    problem: Problem, out: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor, size: torch.Tensor | float = 1.0
) -> None:
    """Compares errors. The largest one of theirs in each row counts, since a single element may be exact by chance.

    Args:
        size: of results, of which a quarter of a unit in the last place is allowed.
    """
    seen = problem.seen.any(dim=-1)  # for queries that see no key, torch's result is another
    of_ours, of_theirs = ((result.double() - exact)[:, seen].abs() for result in (out, theirs))
    small = torch.finfo(problem.dtype).eps / 4 * torch.as_tensor(size).expand_as(exact)[:, seen]
    assert (of_ours <= 2 * of_theirs.amax(dim=-1, keepdim=True) + small).all()


@pytest.mark.parametrize("scales", ["head", "block", "token"])
def test_keys_in_fp8_are_no_worse_than_torch_on_the_keys_dequantised(scales):
    problem = Problem(150, 300, dtype_of_keys=FP8, scales=scales, causal=True, batch=2, heads=4, kv_heads=2)
    out, _ = problem.run()
    q, k, v = problem.dequantised()
    exact = attention_reference(q, k, v, seen=problem.seen).out
    assert_no_worse(problem, out, sdpa(problem, k.bfloat16(), v.bfloat16()), exact, exact.abs().clamp(min=1))


@pytest.mark.parametrize(
    "problem",
    [
        Problem(150, 300, dtype=FP8, causal=True, scales="block"),
        Problem(150, 300, dtype=FP8, causal=True, scales="head", widths=(64, 64), batch=2),
        Problem(150, 300, dtype=FP8, window=(100, 30), scales="tensor", widths=(64, 64), heads=4, kv_heads=2),
        Problem(64, 256, dtype=FP8, scales="block", widths=(64, 64)),  # no keys after the last whole block
        pytest.param(
            Problem(150, 300, dtype_of_keys=FP8, scales="tensor", widths=(192, 128), window=(100, 30)),
            marks=pytest.mark.slow,
        ),
        Problem(150, 90, dtype_of_keys=FP8, scales="token", widths=(80, 80), causal=True, softcap=2.5, sink=True),
        pytest.param(
            Problem(70, 300, dtype_of_keys=FP8, scales="block", widths=(112, 112), heads=4, kv_heads=2, softcap=2.5),
            marks=pytest.mark.slow,
        ),
    ],
    ids=case_id,
)
def test_fp8(problem):
    problem.run()


@pytest.mark.parametrize(
    "problem",
    [
        Problem(150, 300, widths=(64, 64), heads=8, kv_heads=1, causal=True, window=(127, -1), sink=True),
        Problem(150, 90, widths=(64, 64), causal=True, sink=True, batch=2),  # some queries see no key
        pytest.param(Problem(150, 300, widths=(64, 64), causal=True, softcap=2.5), marks=pytest.mark.slow),
        Problem(150, 300, widths=(128, 128), window=(70, 5), softcap=30.0, sink=True, softmax_scale=3.0),
        pytest.param(
            Problem(150, 300, widths=(64, 64), dtype=FP8, scales="block", window=(70, 5), softcap=2.5, sink=True),
            marks=pytest.mark.slow,
        ),
        Problem(150, 300, widths=(80, 80), batch=2),
        Problem(150, 300, widths=(112, 112), dtype=FP8, causal=True),
        pytest.param(Problem(150, 300, widths=(80, 80), dtype=FP8, causal=True), marks=pytest.mark.slow),
    ],
    ids=case_id,
)
@pytest.mark.parametrize("queries", [pytest.param(64, marks=pytest.mark.slow), 256])
def test_sinks_caps_and_widths_that_fill_no_operand(queries, problem):
    with replaced(Tiles(queries)):
        problem.run()


def test_sink_takes_its_share_and_leaves_lse_alone():
    problem = Problem(20, 30, widths=(64, 64))
    plain, lse = problem.run()
    sinks = torch.tensor([0.0, -torch.inf])
    out, beside = dg.flash_attention(problem.q, problem.k, problem.v, attn_sink=sinks, return_lse=True)
    assert torch.equal(lse, beside)
    assert torch.equal(out[:, :, 1], plain[:, :, 1])
    share = lse[:, 0].sigmoid()[..., None]
    assert torch.allclose(out[:, :, 0].float(), plain[:, :, 0].float() * share, rtol=2**-7, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [*DTYPES, FP8], ids=str)
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("queries", [64, 128, 256])
def test_every_kernel(queries, dtype, widths):
    with replaced(Tiles(queries)):
        for causal in (False, True):
            Problem(300, 400, widths=widths, dtype=dtype, causal=causal, scales="block").run()
            Problem(300, 400, widths=widths, dtype=dtype, causal=causal, softcap=3.0, sink=True).run()


@pytest.mark.parametrize("tokens_q", LENGTHS)
def test_lengths(tokens_q):
    for tokens_k in LENGTHS:
        Problem(tokens_q, tokens_k, widths=(64, 64), causal=True).run()


@pytest.mark.slow
@pytest.mark.parametrize(
    "problem",
    [
        partial(Problem, 1000, 4096, heads=8, kv_heads=8, causal=True),
        partial(Problem, 4096, 4096, heads=1, causal=True),
        partial(Problem, 1000, 1000, heads=32, kv_heads=8),
        partial(Problem, 129, 1000, heads=128, kv_heads=1, dtype=torch.float16),
        partial(Problem, 1000, 4096, heads=2, dtype=FP8, scales="block", causal=True),
    ],
    ids=range(5),
)
def test_long(problem):
    problem().run()


@settings(max_examples=14, deadline=None)
@given(data=st.data())
def test_any_shape(data):
    tokens = st.integers(0, 280)
    kv_heads = data.draw(st.integers(1, 3), "kv_heads")
    windows = st.none() | st.tuples(st.integers(-1, 300), st.integers(-1, 300))
    problem = Problem(
        data.draw(tokens, "tokens_q"),
        data.draw(tokens, "tokens_k"),
        heads=kv_heads * data.draw(st.integers(1, 3), "group"),
        kv_heads=kv_heads,
        widths=(64, 64),
        batch=data.draw(st.integers(0, 2), "batch"),
        causal=data.draw(st.booleans(), "causal"),
        window=data.draw(windows, "window"),
        seed=data.draw(st.integers(0, 99), "seed"),
    )
    with replaced(Tiles(data.draw(st.sampled_from([64, 128, 256]), "queries"))):
        problem.run()


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_packed_is_what_each_sequence_gives(data):
    lengths = st.lists(st.tuples(st.integers(0, 150), st.integers(0, 150)), min_size=1, max_size=9)
    pairs = data.draw(lengths, "lengths")
    causal = data.draw(st.booleans(), "causal")
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99), "seed"))
    total_q, total_k = (sum(pair[i] for pair in pairs) for i in (0, 1))
    q, k, v = (
        torch.randn(total, heads, 64, generator=generator).bfloat16()
        for total, heads in ((total_q, 2), (total_k, 1), (total_k, 1))
    )
    ends_q, ends_k = (torch.tensor([0] + [pair[i] for pair in pairs]).cumsum(0).int() for i in (0, 1))
    out, lse = dg.flash_attention(q, k, v, causal=causal, cu_seqlens_q=ends_q, cu_seqlens_k=ends_k, return_lse=True)
    assert lse.shape == (2, total_q)
    for i in range(len(pairs)):
        rows, keys = slice(*ends_q[i : i + 2].tolist()), slice(*ends_k[i : i + 2].tolist())
        alone, lse_alone = dg.flash_attention(
            q[None, rows], k[None, keys], v[None, keys], causal=causal, return_lse=True
        )
        assert torch.equal(out[rows], alone[0])
        assert torch.equal(lse[:, rows], lse_alone[0])


@pytest.mark.parametrize("window", [(150, 0), (100, 120), (0, 130)], ids=str)
def test_windows_that_begin_and_end_in_any_place_of_a_block(window):
    """Some blocks of keys are outside the windows of some of a wave's queries, but not of its first or last one."""
    Problem(256, 420, widths=(64, 64), window=window).run()


def test_more_packed_sequences_than_a_wave_has_lanes():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(0, 4, (150,), generator=generator)
    ends = torch.cat([torch.zeros(1), lengths.cumsum(0)]).int()
    q = torch.randn(int(ends[-1]), 1, 64, generator=generator).bfloat16()
    out = dg.flash_attention(q, q, q, cu_seqlens_q=ends, cu_seqlens_k=ends)
    sequence = torch.arange(len(lengths)).repeat_interleave(lengths)
    seen = sequence[:, None] == sequence[None]
    attention_reference(q[None], q[None], q[None], seen=seen).assert_accurate(out[None])


def test_packed_fp8_with_scales_of_blocks():
    lengths = [(40, 200), (0, 50), (130, 300)]
    problems = [Problem(*pair, dtype=FP8, causal=True, scales="block", seed=i) for i, pair in enumerate(lengths)]
    q, k, v = (torch.cat([getattr(problem, name)[0] for problem in problems]) for name in ("q", "k", "v"))
    ends = [torch.tensor([0] + [pair[i] for pair in lengths]).cumsum(0).int() for i in (0, 1)]
    descales = {}
    for name in ("q_descale", "k_descale", "v_descale"):
        parts = [problem.descales[name][0] for problem in problems]
        longest = max(part.shape[-1] for part in parts)
        padded = [torch.nn.functional.pad(part, (0, longest - part.shape[-1]), value=torch.nan) for part in parts]
        descales[name] = torch.stack(padded)
    out = dg.flash_attention(q, k, v, causal=True, cu_seqlens_q=ends[0], cu_seqlens_k=ends[1], **descales)
    expected = [problem.run()[0][0] for problem in problems]
    assert torch.equal(out, torch.cat(expected))


@pytest.mark.parametrize("scales", ["head", "block", "token"])
def test_packed_keys_in_fp8(scales):
    """Factors of tokens are as long as the packed tokens; those of heads and blocks are of sequences."""
    lengths = [(40, 200), (0, 50), (130, 150)]
    problems = [
        Problem(*pair, widths=(64, 64), dtype_of_keys=FP8, causal=True, scales=scales, seed=i)
        for i, pair in enumerate(lengths)
    ]
    q, k, v = (torch.cat([getattr(problem, name)[0] for problem in problems]) for name in "qkv")
    ends_q, ends_k = (torch.tensor([0] + [pair[i] for pair in lengths]).cumsum(0).int() for i in (0, 1))
    descales = {}
    for name in ("k_descale", "v_descale"):
        parts = [problem.descales[name][0] for problem in problems]
        if scales == "block":
            parts = [torch.nn.functional.pad(part, (0, 2 - part.shape[-1]), value=torch.nan) for part in parts]
        descales[name] = torch.cat(parts) if scales == "token" else torch.stack(parts)
    options = {"causal": True, "cu_seqlens_q": ends_q, "cu_seqlens_k": ends_k}
    out = dg.flash_attention(q, k, v, **options, **descales)
    assert torch.equal(out, torch.cat([problem.run()[0][0] for problem in problems]))
    if scales == "token":
        descales = {name: factors[None] for name, factors in descales.items()}
        assert torch.equal(dg.flash_attention(q, k, v, **options, **descales), out)


def test_factors_of_as_many_packed_tokens_as_sequences():
    """Where [total_k, Hk] would also be [B, Hk], either has a shape of its own."""
    problem = Problem(4, 4, batch=1, heads=4, kv_heads=2, widths=(64, 64), dtype_of_keys=FP8, scales="token")
    q, k, v = problem.q[0], problem.k[0], problem.v[0]
    ends_q, ends_k = torch.tensor([0, 1, 2, 3, 4]).int(), torch.tensor([0, 3, 3, 3, 4]).int()
    factors = {name: problem.descales[name] for name in ("k_descale", "v_descale")}

    def run(**changed):
        return dg.flash_attention(q, k, v, cu_seqlens_q=ends_q, cu_seqlens_k=ends_k, **{**factors, **changed})

    def alone(sequence, first, end, **descales):
        one = slice(sequence, sequence + 1)
        return dg.flash_attention(q[None, one], k[None, first:end], v[None, first:end], **descales)[0]

    of_sequences = {name: tensor.mT.reshape(4, 2, 1) for name, tensor in factors.items()}
    by_tokens, by_sequences = run(), run(**of_sequences)
    for sequence, (first, end) in enumerate([(0, 3), (3, 3), (3, 3), (3, 4)]):
        of_tokens = {name: tensor[:, first:end] for name, tensor in factors.items()}
        expected = alone(sequence, first, end, **of_tokens)
        assert torch.equal(by_tokens[sequence : sequence + 1], expected)
        of_one = {name: tensor[sequence : sequence + 1, :, 0] for name, tensor in of_sequences.items()}
        assert torch.equal(by_sequences[sequence : sequence + 1], alone(sequence, first, end, **of_one))
    message = r"{} must have shape \(1, 4, 2\), .* or \(4, 2, 1\), .* got \(4, 2\)"
    for name in factors:
        for _ in range(2):  # also when it would be repeated
            with pytest.raises(ValueError, match=message.format(name)):
                run(**{name: factors[name][0]})
    with pytest.raises(ValueError, match=r"v_descale must have shape \(1, 4, 2\), .* if the other one has factors of"):
        run(v_descale=of_sequences["v_descale"])
    with pytest.raises(ValueError, match=r"k_descale must have .*; \(4, 2, 1\), one for each sequence and head; "):
        run(k_descale=torch.ones(5), v_descale=torch.ones(1))


def test_factors_of_as_many_packed_tokens_as_heads():
    """[1, total_k, Hk] is of tokens, also where it would be [B, Hk, blocks] with blocks to spare."""
    problem = Problem(4, 2, batch=1, heads=4, kv_heads=2, widths=(64, 64), dtype_of_keys=FP8, scales="token")
    q, k, v = problem.q[0], problem.k[0], problem.v[0]
    ends_q, ends_k = torch.tensor([0, 4]).int(), torch.tensor([0, 2]).int()
    factors = {name: problem.descales[name][0] for name in ("k_descale", "v_descale")}

    def run(**changed):
        return dg.flash_attention(q, k, v, cu_seqlens_q=ends_q, cu_seqlens_k=ends_k, **{**factors, **changed})

    assert torch.equal(run(), problem.run()[0][0])
    of_heads = {name: tensor[0] for name, tensor in factors.items()}
    for blocks in (1, 3):
        of_blocks = {name: tensor[None, :, None].expand(1, 2, blocks) for name, tensor in of_heads.items()}
        assert torch.equal(run(**of_blocks), run(**of_heads))
    assert torch.equal(run(**{name: tensor[None] for name, tensor in factors.items()}), run())
    with pytest.raises(ValueError, match=r"v_descale must have shape \(1, 2, 2\), .* if the other one has factors of"):
        run(v_descale=of_heads["v_descale"])


def test_same_bits_every_time():
    problem = Problem(300, 400, widths=(64, 64), causal=True)
    first, lse = problem.run()
    again, lse_again = problem.run()
    assert torch.equal(first, again)
    assert torch.equal(lse, lse_again)


@pytest.mark.parametrize("size", [1e-3, 30.0, 1e4])
def test_logits_of_any_size(size):
    problem = Problem(100, 150, widths=(64, 64), causal=True)
    problem.q.mul_(size)
    problem.run()


def test_rounding_has_no_bias():
    """Probabilities are rounded to nearest, so that errors of elements don't all have the same sign."""
    problem = Problem(150, 200, widths=(64, 64))
    out, _ = problem.run()
    exact = attention_reference(problem.q, problem.k, problem.v, seen=problem.seen).out
    assert abs(((out - exact) * exact).sum() / (exact * exact).sum()) < 2**-12


def test_equal_logits_give_the_mean():
    problem = Problem(100, 150, widths=(64, 64))
    problem.q.zero_()
    out, lse = problem.run()
    assert torch.allclose(lse.double(), torch.tensor(150.0).double().log().expand(lse.shape), rtol=0, atol=1e-6)
    mean = problem.v.double().mean(dim=1, keepdim=True)
    assert (out.double() - mean).abs().max() < 2**-9


def test_logits_of_minus_infinity_count_for_nothing():
    problem = Problem(40, 150, widths=(64, 64))
    problem.q.abs_()
    problem.k[:, 3:70] = -torch.inf
    problem.run()
    problem.k[:] = -torch.inf
    out, lse = dg.flash_attention(problem.q, problem.k, problem.v, return_lse=True)
    assert (out == 0).all()
    assert (lse == -torch.inf).all()


def test_nan_shows_where_it_is_seen():
    problem = Problem(200, 200, widths=(64, 64), causal=True)
    problem.q[0, 5, 0, 7] = torch.nan
    problem.k[0, 130, 0, 0] = torch.nan
    problem.run()  # the oracle has NaN in query 5 of head 0, and in all from 130 on
    problem = Problem(200, 200, widths=(64, 64))
    problem.v[0, 70, 0, 3] = torch.nan
    problem.v[0, 80, 0, 4] = torch.inf
    problem.run()


@pytest.mark.parametrize("dtype", [*DTYPES, FP8], ids=str)
def test_odd_values_are_never_lost(dtype):
    """NaN and infinity stay even if a later, much larger logit makes the sum so far underflow, or if their own
    probability underflows."""
    problem = Problem(150, 400, heads=2, kv_heads=1, dtype=dtype, causal=True)
    if dtype != FP8:
        problem.q.mul_(60)
    values = (torch.nan,) if dtype == FP8 else (torch.nan, torch.inf, -torch.inf)
    odd = {token: 3 * i for i, token in enumerate((0, 63, 64, 130, 250, 300, 399))}
    for token, column in odd.items():
        for i, value in enumerate(values):
            problem.v[0, token, 0, column + i] = value
    arguments = {"causal": True, **problem.descales}
    out = dg.flash_attention(problem.q, problem.k, problem.v, **arguments)
    for token, column in odd.items():
        first = max(token - 250, 0)  # the first query that sees it
        assert not out[:, first:, :, column : column + len(values)].isfinite().any()
        before = max(first - 128, 0)
        assert out[:, :before, :, column : column + len(values)].isfinite().all()
    assert out[..., 3 * len(odd) :].isfinite().all()


def test_values_that_no_block_of_keys_shows_stay_out():
    """NaNs in blocks of keys that are completely masked are never read."""
    problem = Problem(64, 192, widths=(64, 64), window=(0, 0))
    problem.k[0, :128] = torch.nan
    problem.v[0, :128] = torch.nan
    problem.run()


def good() -> dict:
    problem = Problem(8, 16, heads=4, kv_heads=2, widths=(64, 64))
    return {"q": problem.q, "k": problem.k, "v": problem.v}


def good_fp8() -> dict:
    problem = Problem(8, 16, heads=4, kv_heads=2, widths=(64, 64), dtype=FP8)
    return {"q": problem.q, "k": problem.k, "v": problem.v, **problem.descales}


def good_packed() -> dict:
    ends = {"cu_seqlens_q": [0, 3, 8], "cu_seqlens_k": [0, 16, 16]}
    return {name: tensor[0] for name, tensor in good().items()} | {
        name: torch.tensor(value, dtype=torch.int32) for name, value in ends.items()
    }


def good_packed_fp8() -> dict:
    good = good_packed()
    heads = {name: good[name].to(FP8) for name in "qkv"}
    return good | heads | {f"{name}_descale": torch.ones(1) for name in heads}


BAD = [
    (good, {"q": None}, TypeError, "q must be a torch.Tensor"),
    (good, {"q": torch.zeros(1, 8, 4, 64)}, TypeError, "q must be bfloat16, float16 or float8_e4m3fnuz"),
    (good, {"q": torch.zeros(1, 8, 4, 64).to(torch.float8_e4m3fn)}, TypeError, "convert_fp8_fn_to_fnuz"),
    (good, {"k": torch.zeros(1, 16, 2, 64).half()}, TypeError, "k must be bfloat16 or float8_e4m3fnuz for q in"),
    (good, {"q": torch.zeros(8, 4, 64).bfloat16()}, ValueError, r"q must be \[batch, tokens, heads, head dim\]"),
    (good, {"v": torch.zeros(1, 15, 2, 64).bfloat16()}, ValueError, "v must have as many tokens and heads as k"),
    (good, {"q": torch.zeros(1, 8, 3, 64).bfloat16()}, ValueError, "heads of q must be a multiple"),
    (good, {"q": torch.zeros(1, 8, 4, 80).bfloat16()}, ValueError, "k must have the head dim of q"),
    (good, {"q": torch.zeros(2, 8, 4, 64).bfloat16()}, ValueError, "k must have the batch size of q"),
    (good, {"q": torch.zeros(1, 8, 64, 4).bfloat16().mT}, ValueError, "q must be contiguous along its last"),
    (good, {"q": torch.zeros(1, 8, 4, 65).bfloat16()[..., 1:]}, ValueError, "multiples of 16 bytes"),
    (good, {"q": torch.zeros(1, 8, 4, 64).bfloat16().requires_grad_()}, ValueError, "q must not require grad"),
    (good, {"softmax_scale": -1.0}, ValueError, "softmax_scale must be positive"),
    (good, {"softmax_scale": 1e-46}, ValueError, "softmax_scale must be positive, from 1.17549e-38"),  # 0 in fp32
    (good, {"softmax_scale": "1"}, TypeError, "softmax_scale must be a number"),
    (good, {"causal": 1}, TypeError, "causal must be a bool"),
    (good, {"return_lse": 2}, TypeError, "return_lse must be a bool"),
    (good, {"window": 5}, TypeError, "window must be a pair"),
    (good, {"attn_sink": torch.zeros(2)}, ValueError, "attn_sink must have shape"),
    (good, {"attn_sink": torch.zeros(4).half()}, TypeError, "attn_sink must be float32"),
    (good, {"softcap": -1.0}, ValueError, "softcap must be 0 for none, or from"),
    (good, {"softcap": 1e-300}, ValueError, "softcap must be 0 for none, or from"),
    (good, {"softcap": 1e8}, ValueError, "softcap must be 0 for none, or from"),
    (good, {"softcap": True}, TypeError, "softcap must be a number"),
    (good, {"window": (-2, 0)}, ValueError, "window.0. must be at least -1"),
    (good, {"out": torch.zeros(1, 8, 4, 64).half()}, TypeError, "out must be bfloat16"),
    (good, {"out": torch.zeros(1, 8, 4, 128).bfloat16()}, ValueError, "out must have shape"),
    (good, {"out": torch.zeros(1, 1, 4, 64).bfloat16().expand(1, 8, 4, 64)}, ValueError, "must not overlap"),
    (good, {"q_descale": torch.ones(1)}, ValueError, "q_descale must be None"),
    (
        good_fp8,
        {"q": torch.zeros(1, 8, 4, 64).bfloat16(), "q_descale": None, "v_descale": torch.ones(1, 16, 2)},
        ValueError,
        r"k_descale must have shape \(1, 16, 2\), a factor for each token and head",
    ),
    (good_fp8, {"q_descale": None}, ValueError, "q_descale must be given"),
    (good_fp8, {"k_descale": torch.ones(1, 4)}, ValueError, "k_descale must have shape"),
    (good_fp8, {"k_descale": torch.ones(1).double()}, TypeError, "k_descale must be float32"),
    (good_fp8, {"out": torch.zeros(1, 8, 4, 64)}, TypeError, "out must be bfloat16 or float16"),
    (
        good_packed_fp8,
        {"q": torch.zeros(8, 4, 64).bfloat16(), "q_descale": None, "k_descale": torch.ones(5)},
        ValueError,
        r"k_descale must have shape \(1,\), .*; or \(1, 16, 2\), one for each token and head; got \(5,\)",
    ),
    (good_packed_fp8, {"q_descale": torch.ones(2, 4, 0)}, ValueError, "q_descale must have shape"),
    (good_packed_fp8, {"v_descale": torch.ones(2, 2, 0)}, ValueError, "v_descale must have shape"),
    (good_packed, {"cu_seqlens_q": None}, TypeError, "cu_seqlens_q must be a torch.Tensor"),
    (good_packed, {"cu_seqlens_q": torch.tensor([0, 3, 8])}, TypeError, "cu_seqlens_q must be int32"),
    (good_packed, {"cu_seqlens_q": torch.tensor([0, 8]).int()}, ValueError, "as many sequences"),
    (good_packed, {"cu_seqlens_q": torch.tensor([0, 3, 9]).int()}, ValueError, "end with the tokens of q"),
    (good_packed, {"cu_seqlens_q": torch.tensor([1, 3, 8]).int()}, ValueError, "must start with 0"),
    (good_packed, {"cu_seqlens_k": torch.tensor([0, 17, 16]).int()}, ValueError, "sequence 1 has -1 tokens"),
]


@pytest.mark.parametrize(("arguments", "bad", "error", "message"), BAD, ids=[f"{next(iter(c[1]))}-{c[3]}" for c in BAD])
def test_bad_input_is_one_clear_error_and_writes_nothing(arguments, bad, error, message):
    given = arguments()
    shape = (*given["q"].shape[:-1], 64)
    out = torch.full(shape, POISON, dtype=torch.bfloat16)
    with pytest.raises(error, match=message):
        dg.flash_attention(**{**given, "out": out, **bad})
    assert (out == POISON).all()


def test_output_that_shares_memory_with_an_input():
    given = good()
    with pytest.raises(ValueError, match="out must not share memory with q"):
        dg.flash_attention(**given, out=given["q"])
