"""Triton kernels with rarer features: reductions of tuples, packed weights, precisions, gathers."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _merged(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    n = n_a + n_b
    delta = mean_b - mean_a
    share = tl.where(n == 0.0, 0.0, n_b / n)
    return mean_a + delta * share, m2_a + m2_b + delta * delta * n_a * share, n


@triton.jit
def welford(x, mean, variance, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * n + at, mask=at < n, other=0.0)
    held = tl.where(at < n, 1.0, 0.0)
    average, squares, count = tl.reduce((value, tl.zeros_like(value), held), 0, _merged)
    tl.store(mean + row, average)
    tl.store(variance + row, squares / count)


@triton.jit
def packed_weights(a, packed, scale, c, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.arange(0, BM)
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        depth = start + tl.arange(0, BK)
        pair = tl.load(packed + columns[:, None] * (k // 2) + (start // 2 + tl.arange(0, BK // 2))[None, :])
        low = ((pair << 4).to(tl.int8) >> 4).to(tl.float16)
        high = (pair.to(tl.int8) >> 4).to(tl.float16)
        weights = tl.interleave(low, high)
        left = tl.load(a + rows[:, None] * k + depth[None, :])
        total = tl.dot(left, tl.trans(weights), total)
    total *= tl.load(scale + columns)[None, :]
    tl.store(c + rows[:, None] * n + columns[None, :], total)


@triton.jit
def precise_dot(a, b, c, K: tl.constexpr, PRECISION: tl.constexpr):
    row = tl.arange(0, 32)
    depth = tl.arange(0, K)
    left = tl.load(a + row[:, None] * K + depth[None, :])
    right = tl.load(b + row[:, None] * K + depth[None, :])
    product = tl.dot(left, tl.trans(right), input_precision=PRECISION)
    tl.store(c + row[:, None] * 32 + row[None, :], product)


@triton.jit
def picked_and_ranked(x, index, picked, best, run, N: tl.constexpr, TOP: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, N)
    values = tl.load(x + row * N + at)
    chosen = tl.load(index + row * N + at)
    tl.store(picked + row * N + at, tl.gather(values, chosen, 0))
    tl.store(best + row * TOP + tl.arange(0, TOP), tl.topk(values, TOP))
    tl.store(run + row * N + at, tl.cumsum(values, 0, reverse=True) * 10 + tl.xor_sum(values & 7, 0))


@triton.jit
def device_library(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    v = tl.load(x + at, mask=inside, other=1.0)
    tl.store(out + 0 * n + at, libdevice.cbrt(v), mask=inside)
    tl.store(out + 1 * n + at, libdevice.erfinv(v * 0.1), mask=inside)
    tl.store(out + 2 * n + at, libdevice.asinh(v), mask=inside)
    tl.store(out + 3 * n + at, libdevice.lgamma(tl.abs(v) + 0.5), mask=inside)
    tl.store(out + 4 * n + at, libdevice.fmod(v, 0.75), mask=inside)
    tl.store(out + 5 * n + at, libdevice.expm1(v), mask=inside)
    tl.store(out + 6 * n + at, libdevice.hypot(v, 2.0), mask=inside)
    tl.store(out + 7 * n + at, libdevice.round(v * 3), mask=inside)


@triton.jit
def half_sums(x, rows, halves, brains, n, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, WIDTH)
    value = tl.load(x + row * WIDTH + at)
    to = tl.load(rows + row) * WIDTH + at
    tl.atomic_add(halves + to, value.to(tl.float16), sem="relaxed")
    tl.atomic_add(brains + to, value.to(tl.bfloat16), sem="relaxed")


@triton.jit
def grouped_by_pointers(
    a_of, b_of, c_of, sizes, strides, groups,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """A grouped matmul: programs are distributed over the tiles of all matmuls, whose matrices are given by pointer arrays."""
    tile = tl.program_id(0)
    first = 0
    for group in range(groups):
        m, n, k = tl.load(sizes + 3 * group), tl.load(sizes + 3 * group + 1), tl.load(sizes + 3 * group + 2)
        across = tl.cdiv(n, BN)
        end = first + tl.cdiv(m, BM) * across
        while tile < end:
            a = tl.load(a_of + group).to(tl.pointer_type(tl.float16))
            b = tl.load(b_of + group).to(tl.pointer_type(tl.float16))
            c = tl.load(c_of + group).to(tl.pointer_type(tl.float16))
            step_a, step_b, step_c = (
                tl.load(strides + 3 * group), tl.load(strides + 3 * group + 1), tl.load(strides + 3 * group + 2),
            )  # fmt: skip
            rows = (tile - first) // across * BM + tl.arange(0, BM)
            columns = (tile - first) % across * BN + tl.arange(0, BN)
            total = tl.zeros((BM, BN), tl.float32)
            for start in range(0, k, BK):
                depth = start + tl.arange(0, BK)
                here = (rows < m)[:, None] & (depth < k)[None, :]
                left = tl.load(a + rows[:, None] * step_a + depth[None, :], mask=here, other=0.0)
                here = (depth < k)[:, None] & (columns < n)[None, :]
                right = tl.load(b + depth[:, None] * step_b + columns[None, :], mask=here, other=0.0)
                total = tl.dot(left, right, total)
            here = (rows < m)[:, None] & (columns < n)[None, :]
            tl.store(c + rows[:, None] * step_c + columns[None, :], total.to(tl.float16), mask=here)
            tile += PROGRAMS
        first = end
