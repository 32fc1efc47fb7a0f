"""Triton kernels other than matmuls: reductions, scans, norms, atomics, conversions, integers, control flow."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def softmax_online(x, out, n, stride, BLOCK: tl.constexpr):
    """Row softmax in two sweeps with a running maximum; the row is longer than one block and never divides."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        value = tl.load(x + row * stride + start + at, mask=start + at < n, other=float("-inf"))
        top = tl.maximum(best, value)
        total = tl.where(top == float("-inf"), 0.0, total * tl.exp(best - top) + tl.exp(value - top))
        best = top
    high = tl.max(best, 0)
    scale = tl.sum(tl.where(best == float("-inf"), 0.0, total * tl.exp(best - high)), 0)
    for start in range(0, n, BLOCK):
        value = tl.load(x + row * stride + start + at, mask=start + at < n, other=float("-inf"))
        tl.store(out + row * stride + start + at, tl.exp(value - high) / scale, mask=start + at < n)


@triton.jit
def layer_norm(x, gamma, beta, out, mean, rstd, n, eps, BLOCK: tl.constexpr):
    """y = (x - mean) · rstd · gamma + beta for one row per program, keeping the two statistics."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + row * n + at, mask=inside, other=0.0).to(tl.float32)
    middle = tl.sum(value, 0) / n
    centred = tl.where(inside, value - middle, 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, 0) / n + eps)
    scaled = centred * inverse * tl.load(gamma + at, mask=inside) + tl.load(beta + at, mask=inside)
    tl.store(out + row * n + at, scaled.to(out.dtype.element_ty), mask=inside)
    tl.store(mean + row, middle)
    tl.store(rstd + row, inverse)


@triton.jit
def layer_norm_weights(dy, xhat, grad, lock, rows_per, n, BLOCK: tl.constexpr):
    """grad += Σ dy · xhat over this program's rows, under a spin lock taken with compare-and-swap."""
    at = tl.arange(0, BLOCK)
    inside = at < n
    partial = tl.zeros((BLOCK,), tl.float32)
    for i in range(rows_per):
        row = tl.program_id(0) * rows_per + i
        slope = tl.load(dy + row * n + at, mask=inside, other=0.0)
        partial += slope * tl.load(xhat + row * n + at, mask=inside, other=0.0)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    partial += tl.load(grad + at, mask=inside, other=0.0)
    tl.store(grad + at, partial, mask=inside)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def rms_norm(x, gamma, out, n, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """y = x · rsqrt(mean(x²) + eps) · gamma, ROWS rows at once."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    mask = (at < n)[None, :]
    value = tl.load(x + rows[:, None] * n + at[None, :], mask=mask, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(value * value, 1) / n + eps)
    weight = tl.load(gamma + at, mask=at < n).to(tl.float32)
    result = value * inverse[:, None] * weight[None, :]
    tl.store(out + rows[:, None] * n + at[None, :], result.to(out.dtype.element_ty), mask=mask)


@triton.jit
def reduce_atomics(x, y, sums, n, BLOCK: tl.constexpr):
    """Sum, maximum, minimum, and, or, xor of int32 and a float sum, combined across programs by atomics."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    value = tl.load(x + at, mask=mask, other=0)
    tl.atomic_add(sums + 0, tl.sum(value, 0))
    tl.atomic_max(sums + 1, tl.max(tl.where(mask, value, -2147483648), 0))
    tl.atomic_min(sums + 2, tl.min(tl.where(mask, value, 2147483647), 0))
    tl.atomic_or(sums + 3, tl.sum(value & 0xFF, 0))
    tl.atomic_xor(sums + 4, tl.xor_sum(value, 0))
    tl.atomic_and(sums + 5, tl.max(value, 0) | 0xFFFF)
    tl.atomic_add(y, tl.sum(value.to(tl.float32), 0))
    bins = 1 + (value & 15)
    tl.atomic_add(y + bins, tl.full((BLOCK,), 1.0, tl.float32), mask=mask, sem="relaxed")


@triton.jit
def float_atomics(x, extremes, halves, n, BLOCK: tl.constexpr):
    """Float maximum and minimum, and half-precision adds, on one cell per column."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0)
    cell = at % 8
    tl.atomic_max(extremes + cell, value, mask=at < n)
    tl.atomic_min(extremes + 8 + cell, value, mask=at < n)
    tl.atomic_add(halves + cell, value.to(tl.float16), mask=at < n)


@triton.jit
def argmax_rows(x, index, best, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The largest value of each row and its first index; ties go left."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + rows[:, None] * n + at[None, :], mask=(at < n)[None, :], other=float("-inf"))
    top, where = tl.max(value, 1, return_indices=True)
    tl.store(index + rows, where)
    tl.store(best + rows, top)


@triton.jit
def _affine(a, b, c, d):
    return a * c, b * c + d


@triton.jit
def scan_rows(x, sums, decay, state, n, BLOCK: tl.constexpr):
    """A running sum of int32, and the recurrence h = a h + x as an associative scan of float32."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * n + at, mask=at < n, other=0)
    tl.store(sums + row * n + at, tl.cumsum(value, 0), mask=at < n)
    factor = tl.load(decay + row * n + at, mask=at < n, other=1.0)
    _, h = tl.associative_scan((factor, value.to(tl.float32)), 0, _affine)
    tl.store(state + row * n + at, h, mask=at < n)


@triton.jit
def transpose(x, out, m, n, BM: tl.constexpr, BN: tl.constexpr):
    """out = x.T, one masked tile per program."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    tile = tl.load(x + rows[:, None] * n + columns[None, :], mask=(rows[:, None] < m) & (columns[None, :] < n), other=0)
    mask = (columns[:, None] < n) & (rows[None, :] < m)
    tl.store(out + columns[:, None] * m + rows[None, :], tile.T, mask=mask)


@triton.jit
def sort_rows(x, ascending, flipped, pairs, BLOCK: tl.constexpr):
    """A bitonic sort of each row, the row back to front, and its halves interleaved."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * BLOCK + at)
    tl.store(ascending + row * BLOCK + at, tl.sort(value))
    tl.store(flipped + row * BLOCK + at, tl.flip(value))
    half = tl.arange(0, BLOCK // 2)
    low = tl.load(x + row * BLOCK + half)
    high = tl.load(x + row * BLOCK + BLOCK // 2 + half)
    tl.store(pairs + row * BLOCK + at, tl.interleave(low, high))


@triton.jit
def histogram(x, counts, n, BLOCK: tl.constexpr, BINS: tl.constexpr):
    """Counts of small integers, made in shared memory and merged by atomics."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0)
    bins = tl.histogram(value, BINS, mask=at < n)
    tl.atomic_add(counts + tl.arange(0, BINS), bins)


@triton.jit
def dropout(x, keep, out, n, p, seed, BLOCK: tl.constexpr):
    """Philox bits decide which elements stay; the uniform numbers are stored too."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    draw = tl.rand(seed, at)
    value = tl.load(x + at, mask=at < n)
    tl.store(keep + at, tl.randint(seed, at), mask=at < n)
    tl.store(out + at, tl.where(draw > p, value * 2.0, 0.0), mask=at < n)


@triton.jit
def gather_scatter(x, index, gathered, scattered, picked, n, width, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Rows gathered and scattered by an index array, and `tl.gather` inside a tile."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = rows < n
    columns = tl.arange(0, WIDTH)
    source = tl.load(index + rows, mask=inside, other=0).to(tl.int64)
    mask = inside[:, None] & (columns < width)[None, :]
    value = tl.load(x + source[:, None] * width + columns[None, :], mask=mask, other=0.0)
    tl.store(gathered + rows[:, None] * width + columns[None, :], value, mask=mask)
    tl.store(scattered + source[:, None] * width + columns[None, :], value * 2, mask=mask)
    turned = tl.broadcast_to((WIDTH - 1 - columns)[None, :], (BLOCK, WIDTH))
    tl.store(picked + rows[:, None] * WIDTH + columns[None, :], tl.gather(value, turned, 1), mask=inside[:, None])


@triton.jit
def double_math(x, y, out, n, BLOCK: tl.constexpr):
    """float64 in the four operations, square root and a fused multiply-add."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + at, mask=at < n, other=1.0)
    b = tl.load(y + at, mask=at < n, other=1.0)
    value = tl.fma(a, b, a / b) - tl.sqrt(tl.abs(a)) + tl.maximum(a, b) * tl.minimum(a, -b)
    tl.store(out + at, value, mask=at < n)


@triton.jit
def unary_math(x, out, n, BLOCK: tl.constexpr):
    """Seventeen functions of one bfloat16 argument, one row of the result each."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    v = tl.load(x + at, mask=mask, other=1.0).to(tl.float32)
    w = tl.abs(v) + 0.125
    tl.store(out + 0 * n + at, tl.exp(v), mask=mask)
    tl.store(out + 1 * n + at, tl.log(w), mask=mask)
    tl.store(out + 2 * n + at, tl.sin(v), mask=mask)
    tl.store(out + 3 * n + at, tl.cos(v), mask=mask)
    tl.store(out + 4 * n + at, tl.sqrt(w), mask=mask)
    tl.store(out + 5 * n + at, tl.erf(v), mask=mask)
    tl.store(out + 6 * n + at, tl.rsqrt(w), mask=mask)
    tl.store(out + 7 * n + at, tl.exp2(v), mask=mask)
    tl.store(out + 8 * n + at, tl.log2(w), mask=mask)
    tl.store(out + 9 * n + at, tl.sigmoid(v), mask=mask)
    tl.store(out + 10 * n + at, tl.floor(v) + tl.ceil(v * 3), mask=mask)
    tl.store(out + 11 * n + at, libdevice.tanh(v), mask=mask)
    tl.store(out + 12 * n + at, libdevice.rint(v * 5) + libdevice.trunc(v * 7), mask=mask)
    tl.store(out + 13 * n + at, tl.div_rn(v, w), mask=mask)
    tl.store(out + 14 * n + at, tl.sqrt_rn(w), mask=mask)
    tl.store(out + 15 * n + at, libdevice.pow(w, v), mask=mask)
    tl.store(out + 16 * n + at, libdevice.atan2(v, w), mask=mask)


@triton.jit
def bfloat_chain(x, y, out, n, BLOCK: tl.constexpr):
    """Arithmetic that stays in bfloat16 and in float16, so that packed instructions appear."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + at, mask=at < n, other=0.0)
    b = tl.load(y + at, mask=at < n, other=0.0)
    half = a.to(tl.float16) * b.to(tl.float16) + a.to(tl.float16)
    value = tl.maximum(a * b - a, half.to(tl.bfloat16)) + tl.minimum(a, b) + tl.where(a > b, a, -b)
    tl.store(out + at, value, mask=at < n)


@triton.jit
def float8_round_trip(x, low4, low5, back4, back5, n, BLOCK: tl.constexpr):
    """float32 to e4m3 and e5m2 and back, through 8-bit stores."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0)
    four = value.to(tl.float8e4nv)
    five = value.to(tl.float8e5)
    tl.store(low4 + at, four, mask=at < n)
    tl.store(low5 + at, five, mask=at < n)
    tl.store(back4 + at, four.to(tl.float32), mask=at < n)
    tl.store(back5 + at, five.to(tl.float16), mask=at < n)


@triton.jit
def collatz(x, steps, longest, n, BLOCK: tl.constexpr):
    """Steps that each number needs to reach 1: loops with data-dependent trip counts, per tile and per number."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=1)
    count = tl.zeros((BLOCK,), tl.int32)
    while tl.max(value, 0) > 1:
        odd = (value & 1) == 1
        count += (value > 1).to(tl.int32)
        value = tl.where(value > 1, tl.where(odd, 3 * value + 1, value // 2), value)
    tl.store(steps + at, count, mask=at < n)
    single = tl.load(x + tl.program_id(0))
    length = 0
    while single != 1:
        if single % 2 == 1:  # noqa: SIM108  (a branch is what this kernel is for)
            single = 3 * single + 1
        else:
            single = single // 2
        length += 1
    tl.store(longest + tl.program_id(0), length)


@triton.jit
def integer_soup(x, y, out, wide, n, BLOCK: tl.constexpr):
    """Thirteen integer functions of two int32, and 64-bit products and shifts."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    a = tl.load(x + at, mask=mask, other=1)
    b = tl.load(y + at, mask=mask, other=1)
    ua = a.to(tl.uint32, bitcast=True)
    ub = b.to(tl.uint32, bitcast=True)
    tl.store(out + 0 * n + at, tl.umulhi(ua, ub).to(tl.int32, bitcast=True), mask=mask)
    tl.store(out + 1 * n + at, libdevice.popc(a), mask=mask)
    tl.store(out + 2 * n + at, libdevice.clz(a), mask=mask)
    tl.store(out + 3 * n + at, libdevice.brev(a), mask=mask)
    tl.store(out + 4 * n + at, libdevice.byte_perm(a, b, 0x3715), mask=mask)
    tl.store(out + 5 * n + at, libdevice.ffs(a), mask=mask)
    tl.store(out + 6 * n + at, libdevice.mulhi(a, b), mask=mask)
    tl.store(out + 7 * n + at, (a // (b | 1)) ^ (a % (b | 1)), mask=mask)
    tl.store(out + 8 * n + at, (ua // (ub | 1) + ua % 7).to(tl.int32, bitcast=True), mask=mask)
    tl.store(out + 9 * n + at, (a << (ub & 31)) | (a >> 3), mask=mask)
    tl.store(out + 10 * n + at, (ua >> (ub & 31)).to(tl.int32, bitcast=True) ^ ~b, mask=mask)
    tl.store(out + 11 * n + at, (a.to(tl.int8) * b.to(tl.int8)).to(tl.int32) + a.to(tl.int16), mask=mask)
    tl.store(out + 12 * n + at, tl.abs(a) - tl.minimum(a, b) * tl.maximum(a, 3), mask=mask)
    long = a.to(tl.int64) * b.to(tl.int64)
    tl.store(wide + 0 * n + at, long + (long >> 7) - (long // 1000003), mask=mask)
    tl.store(wide + 1 * n + at, ua.to(tl.int64) * 0x123456789 ^ (long % 97), mask=mask)


@triton.jit(noinline=True)
def _horner(v, degree):
    total = v * 0.0
    for i in range(degree):
        total = total * v + i
    return total


@triton.jit
def call_function(x, out, n, degree, BLOCK: tl.constexpr):
    """A device function of scalars that is really called, twice, with a loop inside."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0)
    point = tl.load(x + tl.program_id(0))
    tl.store(out + at, value * _horner(point, degree) - _horner(point + 1.0, degree // 2), mask=at < n)


@triton.jit
def inline_assembly(x, out, n, BLOCK: tl.constexpr):
    """Four bytes at a time through hand-written PTX, after waiting for the kernel before."""
    gdc_wait()
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0)
    turned = tl.inline_asm_elementwise(
        "{ .reg .b32 t; prmt.b32 t, $1, $1, 0x4602; shf.l.wrap.b32 $0, t, t, 3; }",
        "=r,r", [value], dtype=tl.int8, is_pure=True, pack=4,
    )  # fmt: skip
    gdc_launch_dependents()
    tl.store(out + at, turned, mask=at < n)


@triton.jit
def matrix_vector(a, x, out, m, n, BM: tl.constexpr, BN: tl.constexpr):
    """out = a @ x by broadcasting and a sum along the row, looping over column blocks."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, n, BN):
        columns = start + tl.arange(0, BN)
        mask = (rows < m)[:, None] & (columns < n)[None, :]
        tile = tl.load(a + rows[:, None] * n + columns[None, :], mask=mask, other=0.0, eviction_policy="evict_first")
        total += tile * tl.load(x + columns, mask=columns < n, other=0.0, cache_modifier=".ca")[None, :]
    tl.store(out + rows, tl.sum(total, 1), mask=rows < m, cache_modifier=".cs")


@triton.jit
def descriptor_reduce(x, out, rows, BM: tl.constexpr, BN: tl.constexpr):
    """Every program adds its tile into one tile of the result by a TMA reduction."""
    for row in range(0, rows, BM):
        tile = x.load([row, tl.program_id(0) * BN])
        out.atomic_add([0, 0], tile)
