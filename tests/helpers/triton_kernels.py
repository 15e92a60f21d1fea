"""Triton kernels like those that people run on MI300X, written for these tests."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

# ruff: noqa: N803  (Triton's constants are upper case)


# ---- matrix products


@triton.jit
def matmul(
    a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACCUMULATOR: tl.constexpr,
):  # fmt: skip
    """c[m, n] = sum_k a[m, k] b[k, n]. Tiles are grouped in four rows to share data in L2."""
    row_tiles, column_tiles = tl.cdiv(M, BM), tl.cdiv(N, BN)
    program = tl.program_id(0)
    row_tile, column_tile = tl.swizzle2d(program // column_tiles, program % column_tiles, row_tiles, column_tiles, 4)
    rows = row_tile * BM + tl.arange(0, BM)
    columns = column_tile * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    accumulator = tl.zeros((BM, BN), ACCUMULATOR)
    for k in range(0, K, BK):
        inside = k + depth < K
        x = tl.load(a + rows[:, None] * stride_am + (k + depth)[None, :] * stride_ak,
                    mask=(rows[:, None] < M) & inside[None, :], other=0.0)  # fmt: skip
        y = tl.load(b + (k + depth)[:, None] * stride_bk + columns[None, :] * stride_bn,
                    mask=inside[:, None] & (columns[None, :] < N), other=0.0)  # fmt: skip
        accumulator = tl.dot(x, y, accumulator, out_dtype=ACCUMULATOR)
    result = accumulator.to(c.dtype.element_ty)
    tl.store(c + rows[:, None] * N + columns[None, :], result, mask=(rows[:, None] < M) & (columns[None, :] < N))


@triton.jit
def block_scaled_matmul(
    a, b, c, a_scales, b_scales, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Multiplies FP8 a[m, k], with a scale for 1 x BLOCK elements, and b[n, k], with a scale for BLOCK x BLOCK."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BLOCK)
    blocks = K // BLOCK
    accumulator = tl.zeros((BM, BN), tl.float32)
    for block in range(blocks):
        k = block * BLOCK + depth
        x = tl.load(a + rows[:, None] * K + k[None, :], mask=rows[:, None] < M, other=0.0)
        y = tl.load(b + columns[None, :] * K + k[:, None], mask=columns[None, :] < N, other=0.0)
        x_scale = tl.load(a_scales + rows * blocks + block, mask=rows < M, other=0.0)
        y_scale = tl.load(b_scales + columns // BLOCK * blocks + block, mask=columns < N, other=0.0)
        accumulator += tl.dot(x, y) * x_scale[:, None] * y_scale[None, :]
    result = accumulator.to(c.dtype.element_ty)
    tl.store(c + rows[:, None] * N + columns[None, :], result, mask=(rows[:, None] < M) & (columns[None, :] < N))


@triton.jit
def grouped_matmul(
    a, b, c, a_pointers, b_pointers, c_pointers, sizes, groups, programs,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Computes products of several sizes, with addresses in memory. Programs take turns at the tiles of all products.

    Of a, b and c, only the types are used.
    """
    tile = tl.program_id(0)
    first = 0
    for group in range(groups):
        M, N, K = tl.load(sizes + 3 * group), tl.load(sizes + 3 * group + 1), tl.load(sizes + 3 * group + 2)  # noqa: N806
        column_tiles = tl.cdiv(N, BN)
        end = first + tl.cdiv(M, BM) * column_tiles
        x_base = tl.load(a_pointers + group).to(a.dtype)
        y_base = tl.load(b_pointers + group).to(b.dtype)
        z_base = tl.load(c_pointers + group).to(c.dtype)
        while tile >= first and tile < end:
            rows = (tile - first) // column_tiles * BM + tl.arange(0, BM)
            columns = (tile - first) % column_tiles * BN + tl.arange(0, BN)
            accumulator = tl.zeros((BM, BN), tl.float32)
            for k in range(0, K, BK):
                depth = k + tl.arange(0, BK)
                x = tl.load(x_base + rows[:, None] * K + depth[None, :],
                            mask=(rows[:, None] < M) & (depth[None, :] < K), other=0.0)  # fmt: skip
                y = tl.load(y_base + depth[:, None] * N + columns[None, :],
                            mask=(depth[:, None] < K) & (columns[None, :] < N), other=0.0)  # fmt: skip
                accumulator = tl.dot(x, y, accumulator)
            inside = (rows[:, None] < M) & (columns[None, :] < N)
            tl.store(z_base + rows[:, None] * N + columns[None, :], accumulator.to(c.dtype.element_ty), mask=inside)
            tile += programs
        first = end


@triton.jit
def experts_matmul(
    x, weights, y, tokens, experts, pairs, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """Each block of BM entries of `tokens` belongs to one expert. Entries from `pairs` on are padding."""
    places = tl.load(tokens + tl.program_id(0) * BM + tl.arange(0, BM))
    expert = tl.load(experts + tl.program_id(0)).to(tl.int64)
    real = places < pairs
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    x_pointers = x + (places // 2)[:, None] * K + depth[None, :]  # each token goes to two experts
    w_pointers = weights + expert * N * K + columns[None, :] * K + depth[:, None]
    accumulator = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        accumulator += tl.dot(tl.load(x_pointers, mask=real[:, None], other=0.0), tl.load(w_pointers))
        x_pointers += BK
        w_pointers += BK
    tl.store(y + places[:, None] * N + columns[None, :], accumulator.to(y.dtype.element_ty), mask=real[:, None])


@triton.jit
def split_k_matmul(a, b, c, M, N, K, SPLITS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Programs along the second axis add their part of K to c."""
    column_tiles = tl.cdiv(N, BN)
    rows = tl.program_id(0) // column_tiles * BM + tl.arange(0, BM)
    columns = tl.program_id(0) % column_tiles * BN + tl.arange(0, BN)
    accumulator = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.program_id(1) * BK, K, SPLITS * BK):
        depth = k + tl.arange(0, BK)
        x = tl.load(a + rows[:, None] * K + depth[None, :], mask=(rows[:, None] < M) & (depth[None, :] < K), other=0.0)
        y = tl.load(
            b + depth[:, None] * N + columns[None, :], mask=(depth[:, None] < K) & (columns[None, :] < N), other=0.0
        )
        accumulator = tl.dot(x, y, accumulator)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.atomic_add(c + rows[:, None] * N + columns[None, :], accumulator.to(c.dtype.element_ty), mask=inside)


# ---- attention


@triton.jit
def attention(
    q, k, v, out, lse, length, scale, Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr,
    CAUSAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """softmax(scale q k^T) v of [batch, heads, length, WIDTH] with an online softmax, and its log-sum-exp."""
    head = tl.program_id(1)
    kv_head = head // Q_HEADS * KV_HEADS + head % Q_HEADS // (Q_HEADS // KV_HEADS)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    width = tl.arange(0, WIDTH)
    q_tile = tl.load(
        q + (head * length + rows)[:, None] * WIDTH + width[None, :], mask=rows[:, None] < length, other=0.0
    )
    accumulator = tl.zeros((BM, WIDTH), tl.float32)
    largest = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    to_exp2 = scale * 1.4426950408889634
    end = tl.minimum((tl.program_id(0) + 1) * BM, length) if CAUSAL else length
    for start in range(0, end, BN):
        columns = start + tl.arange(0, BN)
        inside = columns < length
        k_tile = tl.load(
            k + (kv_head * length + columns)[None, :] * WIDTH + width[:, None], mask=inside[None, :], other=0.0
        )
        scores = tl.dot(q_tile, k_tile) * to_exp2
        visible = inside[None, :]
        if CAUSAL:
            visible = visible & (rows[:, None] >= columns[None, :])
        scores = tl.where(visible, scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        p = tl.exp2(scores - new_largest[:, None])
        shrink = tl.exp2(largest - new_largest)
        total = total * shrink + tl.sum(p, 1)
        v_tile = tl.load(
            v + (kv_head * length + columns)[:, None] * WIDTH + width[None, :], mask=inside[:, None], other=0.0
        )
        accumulator = tl.dot(p.to(v.dtype.element_ty), v_tile, accumulator * shrink[:, None])
        largest = new_largest
    result = (accumulator / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + (head * length + rows)[:, None] * WIDTH + width[None, :], result, mask=rows[:, None] < length)
    tl.store(lse + head * length + rows, (largest + tl.log2(total)) / 1.4426950408889634, mask=rows < length)


# ---- rows: normalisation, softmax, losses


@triton.jit
def softmax(x, y, columns, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    row = tl.program_id(0) * columns
    values = tl.load(x + row + offsets, mask=offsets < columns, other=float("-inf")).to(tl.float32)
    exponentials = tl.exp(values - tl.max(values, 0))
    result = exponentials / tl.sum(exponentials, 0)
    tl.store(y + row + offsets, result.to(y.dtype.element_ty), mask=offsets < columns)


@triton.jit
def online_softmax(x, y, columns, BLOCK: tl.constexpr):
    """Softmax of rows of any length, in blocks."""
    row = tl.program_id(0).to(tl.int64) * columns
    largest, total = tl.full((BLOCK,), float("-inf"), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        values = tl.load(x + row + offsets, mask=offsets < columns, other=float("-inf")).to(tl.float32)
        new_largest = tl.maximum(largest, values)
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        total = total * tl.exp(largest - shift) + tl.exp(values - shift)
        largest = new_largest
    maximum = tl.max(largest, 0)
    total = tl.sum(total * tl.exp(largest - maximum), 0)
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        values = tl.load(x + row + offsets, mask=offsets < columns, other=float("-inf")).to(tl.float32)
        result = tl.exp(values - maximum) / total
        tl.store(y + row + offsets, result.to(y.dtype.element_ty), mask=offsets < columns)


@triton.jit
def layer_norm(x, weight, bias, y, mean_out, rstd_out, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        total += tl.load(x + row * columns + offsets, mask=offsets < columns, other=0.0).to(tl.float32)
    mean = tl.sum(total, 0) / columns
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        values = tl.load(x + row * columns + offsets, mask=offsets < columns, other=0.0).to(tl.float32)
        deviation = tl.where(offsets < columns, values - mean, 0.0)
        squares += deviation * deviation
    rstd = 1 / tl.sqrt(tl.sum(squares, 0) / columns + epsilon)
    tl.store(mean_out + row, mean)
    tl.store(rstd_out + row, rstd)
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        inside = offsets < columns
        values = tl.load(x + row * columns + offsets, mask=inside, other=0.0).to(tl.float32)
        result = (values - mean) * rstd * tl.load(weight + offsets, mask=inside) + tl.load(bias + offsets, mask=inside)
        tl.store(y + row * columns + offsets, result.to(y.dtype.element_ty), mask=inside)


@triton.jit
def layer_norm_backward(
    x, weight, grad_y, mean, rstd, grad_x, grad_weight, grad_bias, locks, columns,
    GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows of a group add to grad_weight and grad_bias, [GROUPS, columns], one after another, under a lock."""
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    inside = offsets < columns
    values = tl.load(x + row * columns + offsets, mask=inside, other=0.0).to(tl.float32)
    gradient = tl.load(grad_y + row * columns + offsets, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(rstd + row)
    normal = tl.where(inside, (values - tl.load(mean + row)) * scale, 0.0)
    weighted = gradient * tl.load(weight + offsets, mask=inside, other=0.0)
    along = tl.sum(normal * weighted, 0) / columns
    average = tl.sum(weighted, 0) / columns
    result = (weighted - normal * along - average) * scale
    tl.store(grad_x + row * columns + offsets, result.to(grad_x.dtype.element_ty), mask=inside)
    group = row % GROUPS
    while tl.atomic_cas(locks + group, 0, 1) == 1:
        pass
    place = group * columns + offsets
    tl.store(grad_weight + place, tl.load(grad_weight + place, mask=inside) + gradient * normal, mask=inside)
    tl.store(grad_bias + place, tl.load(grad_bias + place, mask=inside) + gradient, mask=inside)
    tl.debug_barrier()  # all waves must have stored before the lock is released
    tl.atomic_xchg(locks + group, 0)


@triton.jit
def quantize(x, y, scales, columns, LARGEST: tl.constexpr, BLOCK: tl.constexpr):
    """Quantises groups of BLOCK values to FP8. A scale is the least power of two that keeps them within LARGEST."""
    place = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + place).to(tl.float32)
    scale = tl.exp2(tl.ceil(tl.log2(tl.maximum(tl.max(tl.abs(values), 0), 1e-10) / LARGEST)))
    tl.store(y + place, tl.clamp(values / scale, -LARGEST, LARGEST).to(y.dtype.element_ty))
    tl.store(scales + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), scale)


@triton.jit
def cross_entropy(logits, labels, losses, columns, ignored, BLOCK: tl.constexpr):
    """Computes the loss of each row, and overwrites the logits with the gradient."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * columns
    label = tl.load(labels + row)
    if label == ignored:
        for start in range(0, columns, BLOCK):
            offsets = start + tl.arange(0, BLOCK)
            tl.store(logits + offsets, tl.zeros((BLOCK,), logits.dtype.element_ty), mask=offsets < columns)
        tl.store(losses + row, 0.0)
        return
    largest, total = float("-inf"), 0.0
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        values = tl.load(logits + offsets, mask=offsets < columns, other=float("-inf")).to(tl.float32)
        new_largest = tl.maximum(largest, tl.max(values, 0))
        total = total * tl.exp(largest - new_largest) + tl.sum(tl.exp(values - new_largest), 0)
        largest = new_largest
    correct = tl.load(logits + label).to(tl.float32)
    tl.debug_barrier()  # all waves must have read the logit before it is overwritten
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        values = tl.load(logits + offsets, mask=offsets < columns, other=float("-inf")).to(tl.float32)
        gradient = tl.exp(values - largest) / total - tl.where(offsets == label, 1.0, 0.0)
        tl.store(logits + offsets, gradient.to(logits.dtype.element_ty), mask=offsets < columns)
    tl.store(losses + row, largest + tl.log(total) - correct)


# ---- order: sorting, scans, searches


@triton.jit
def sort_rows(x, up, down, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + place)
    tl.store(up + place, tl.sort(values))
    tl.store(down + place, tl.sort(values, descending=True))


@triton.jit
def scan_columns(x, y, reverse_y, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    place = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    values = tl.load(x + place)
    tl.store(y + place, tl.cumsum(values, 0))
    tl.store(reverse_y + place, tl.cumsum(values, 1, reverse=True))


@triton.jit
def then(factor, offset, next_factor, next_offset):
    return factor * next_factor, next_factor * offset + next_offset


@triton.jit
def recurrence(factors, offsets, states, BLOCK: tl.constexpr):
    """state[i] = factor[i] state[i - 1] + offset[i], as a scan of affine maps."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    _, state = tl.associative_scan((tl.load(factors + place), tl.load(offsets + place)), 0, then)
    tl.store(states + place, state)


@triton.jit
def extremes(x, largest, where_largest, where_least, best, COLUMNS: tl.constexpr, K: tl.constexpr):
    row = tl.program_id(0)
    values = tl.load(x + row * COLUMNS + tl.arange(0, COLUMNS))
    maximum, index = tl.max(values, 0, return_indices=True)
    tl.store(largest + row, maximum)
    tl.store(where_largest + row, index)
    tl.store(where_least + row, tl.argmin(values, 0))
    tl.store(best + row * K + tl.arange(0, K), tl.topk(values, K))


@triton.jit
def histogram(x, bins, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    counts = tl.histogram(tl.load(x + place, mask=place < n, other=0), BINS, mask=place < n)
    tl.atomic_add(bins + tl.arange(0, BINS), counts)


@triton.jit
def permute(x, order, flipped, gathered, transposed, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    place = row * COLUMNS + column
    values = tl.load(x + place)
    tl.store(flipped + place, tl.flip(values, 1))
    tl.store(gathered + place, tl.gather(values, tl.load(order + place), 1))
    across = tl.arange(0, COLUMNS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    tl.store(transposed + across, tl.trans(values))


# ---- elementwise


@triton.jit
def functions(x, y, outputs, n, BLOCK: tl.constexpr):
    """Calls the device library's functions; each writes a row of outputs."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n
    a, b = tl.load(x + place, mask=inside, other=1.0), tl.load(y + place, mask=inside, other=1.0)
    tl.store(outputs + 0 * n + place, libdevice.exp(a), mask=inside)
    tl.store(outputs + 1 * n + place, libdevice.log(tl.abs(a)), mask=inside)
    tl.store(outputs + 2 * n + place, libdevice.sin(a), mask=inside)
    tl.store(outputs + 3 * n + place, libdevice.cos(a), mask=inside)
    tl.store(outputs + 4 * n + place, libdevice.tanh(a), mask=inside)
    tl.store(outputs + 5 * n + place, libdevice.erf(a), mask=inside)
    tl.store(outputs + 6 * n + place, libdevice.sqrt(tl.abs(a)), mask=inside)
    tl.store(outputs + 7 * n + place, libdevice.rsqrt(tl.abs(a)), mask=inside)
    tl.store(outputs + 8 * n + place, libdevice.expm1(a), mask=inside)
    tl.store(outputs + 9 * n + place, libdevice.atan2(a, b), mask=inside)
    tl.store(outputs + 10 * n + place, libdevice.pow(tl.abs(a), b), mask=inside)
    tl.store(outputs + 11 * n + place, libdevice.fmod(a, b), mask=inside)
    tl.store(outputs + 12 * n + place, a / b, mask=inside)


@triton.jit
def convert(x, f16, bf16, e4m3, e5m2, i32, back, n, BLOCK: tl.constexpr):
    """Converts f32 to every narrower type, and FP8 back to f32."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n
    values = tl.load(x + place, mask=inside, other=0.0)
    tl.store(f16 + place, values.to(tl.float16), mask=inside)
    tl.store(bf16 + place, values.to(tl.bfloat16), mask=inside)
    tl.store(e4m3 + place, values.to(tl.float8e4b8), mask=inside)
    tl.store(e5m2 + place, values.to(tl.float8e5b16), mask=inside)
    tl.store(i32 + place, values.to(tl.int32), mask=inside)
    tl.store(
        back + place, values.to(tl.float8e4b8).to(tl.float32) + values.to(tl.float8e5b16).to(tl.float32), mask=inside
    )


@triton.jit
def random_bits(bits, uniform, seed, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(bits + place, tl.randint(seed, place), mask=place < n)
    tl.store(uniform + place, tl.rand(seed, place), mask=place < n)


@triton.jit
def integer_math(x, y, outputs, n, BLOCK: tl.constexpr):
    """Writes rows of quotients, remainders, high halves of products, shifts and comparisons."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n
    a, b = tl.load(x + place, mask=inside, other=1), tl.load(y + place, mask=inside, other=1)
    tl.store(outputs + 0 * n + place, a // b, mask=inside)
    tl.store(outputs + 1 * n + place, a % b, mask=inside)
    tl.store(outputs + 2 * n + place, a * b, mask=inside)
    tl.store(outputs + 3 * n + place, (a << (b & 7)) ^ (a >> (b & 7)), mask=inside)
    tl.store(outputs + 4 * n + place, tl.where(a < b, a, b), mask=inside)


@triton.jit
def atomics(sums, least, largest, bits, swapped, x, n, BLOCK: tl.constexpr):
    """All work-items update the same element of each target."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n
    values = tl.load(x + place, mask=inside, other=0)
    tl.atomic_add(sums + place % 4, values, mask=inside)
    tl.atomic_min(least + place % 2, values, mask=inside)
    tl.atomic_max(largest + place % 2, values, mask=inside)
    tl.atomic_xor(bits + place % 3, values, mask=inside)
    tl.atomic_or(bits + 3 + place % 3, values, mask=inside)
    tl.atomic_and(bits + 6 + place % 3, values, mask=inside)
    tl.store(swapped + place, tl.atomic_xchg(swapped + place, values, mask=inside) + values, mask=inside)
