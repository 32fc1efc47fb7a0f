"""Triton kernels of the tests, one per feature."""

from __future__ import annotations

import triton
import triton.language as tl

try:
    from triton.tools.ragged_tma import load_ragged, store_ragged
except ImportError:  # Triton 3.3
    load_ragged = store_ragged = None


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def softmax(x, out, columns, x_stride, out_stride, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * x_stride + at, mask=at < columns, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * out_stride + at, powers / tl.sum(powers, axis=0), mask=at < columns)


@triton.jit
def matmul(a, b, c, M, N, K, a_row, b_row, c_row, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    sums = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        left = tl.load(
            a + rows[:, None] * a_row + (k + inner)[None, :],
            mask=(rows[:, None] < M) & ((k + inner)[None, :] < K),
            other=0.0,
        )
        right = tl.load(
            b + (k + inner)[:, None] * b_row + columns[None, :],
            mask=((k + inner)[:, None] < K) & (columns[None, :] < N),
            other=0.0,
        )
        sums = tl.dot(left, right, sums)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c + rows[:, None] * c_row + columns[None, :], sums.to(c.dtype.element_ty), mask=inside)


@triton.jit
def descriptor_matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    sums = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        sums = tl.dot(a.load([row, k]), b.load([column, k]).T, sums)
    c.store([row, column], sums.to(c.dtype))


@triton.jit
def device_descriptor_matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The descriptors are made on the device, in scratch memory; persistent, with one CTA per SM."""
    left = tl.make_tensor_descriptor(a, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    right = tl.make_tensor_descriptor(b, shape=[N, K], strides=[K, 1], block_shape=[BN, BK])
    result = tl.make_tensor_descriptor(c, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    tiles_n = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BM) * tiles_n, tl.num_programs(0)):
        row, column = (tile // tiles_n) * BM, (tile % tiles_n) * BN
        sums = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            sums = tl.dot(left.load([row, k]), right.load([column, k]).T, sums)
        result.store([row, column], sums.to(c.dtype.element_ty))


@triton.jit
def copy_padded(source, out, BM: tl.constexpr, BN: tl.constexpr):
    """One box that reaches beyond the tensor: what padding gives is copied too."""
    values = source.load([0, 0])
    tl.store(out + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], values)


@triton.jit
def weighted(pair, out, weights, n, BLOCK: tl.constexpr):
    """Nested tuples: tensors, numbers and constants."""
    at = tl.arange(0, BLOCK)
    inside = at < n
    first = tl.load(pair[0] + at, mask=inside)
    second = tl.load(pair[1][0] + at, mask=inside)
    tl.store(out + at, first * weights[0] + second * weights[1] + pair[1][1], mask=inside)


@triton.jit
def histogram(x, counts, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(counts + tl.load(x + at, mask=at < n, other=0), 1, mask=at < n)


@triton.jit
def report(x, BLOCK: tl.constexpr):
    tl.device_print("value", tl.load(x + tl.arange(0, BLOCK)))


@triton.jit
def gather_rows(table, out, BLOCK: tl.constexpr):
    """Each program reads the row to which its entry of a pointer table leads."""
    row = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    at = tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0) * BLOCK + at, tl.load(row + at))


@triton.autotune(
    configs=[triton.Config({"BLOCK": 512}), triton.Config({"BLOCK": 256}), triton.Config({"BLOCK": 128})],
    key=["n"],
    reset_to_zero=["out"],
)
@triton.jit
def tuned_accumulate(x, out, n, BLOCK: tl.constexpr):
    """Adds to its output; a configuration that ran twice would show."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + at, tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def out_of_bounds(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK) * 65536, 1.0)


@triton.jit
def scaled_product(a, a_scale, b, b_scale, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """fp8 times packed fp4: the descriptor of B loads sixteen values to sixteen bytes."""
    rows, columns, groups = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K // 32)
    scale_a = tl.load(a_scale + rows[:, None] * (K // 32) + groups[None, :])
    scale_b = tl.load(b_scale + columns[:, None] * (K // 32) + groups[None, :])
    product = tl.dot_scaled(a.load([0, 0]), scale_a, "e4m3", b.load([0, 0]).T, scale_b, "e2m1")
    tl.store(out + rows[:, None] * N + columns[None, :], product)


@triton.jit
def count(counter):
    """A lost update if another program runs between load and store."""
    tl.store(counter, tl.load(counter) + 1)


@triton.jit
def expect_first(flag):
    """A store by the first program that the second has to see, without synchronisation."""
    if tl.program_id(0) == 0:
        tl.store(flag, 1)
    else:
        value = tl.load(flag)
        tl.device_assert(value == 1)


@triton.jit
def mark_tile(out, row, column):
    """Every program stores another value to a tile, without synchronisation."""
    out.store([row, column], tl.full([4, 8], 1, tl.float16) * (tl.program_id(0) + 1))


@triton.jit
def mark(out, at):
    """A race: each program stores its number, plus one."""
    tl.store(out + at, tl.program_id(0) + 1.0)


@triton.jit
def locked_sum(x, out, lock, turns, parts, BLOCK: tl.constexpr, ORDERED: tl.constexpr):
    """Adds the parts of a tile under a lock. All threads load the number of turns, and one stores it: without a barrier
    in between, a warp that is late finds the new one.
    """
    tile, part = tl.program_id(0), tl.program_id(1)
    at = tile * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + part * BLOCK * tl.num_programs(0) + at)
    while tl.atomic_cas(lock + tile, 0, 1, sem="acquire") == 1:
        pass
    turn = tl.load(turns + tile)
    if turn > 0:
        values += tl.load(out + at)
    tl.store(out + at, values)
    if ORDERED:
        tl.debug_barrier()
    tl.store(turns + tile, turn + 1)
    tl.debug_barrier()
    tl.atomic_xchg(lock + tile, 0, sem="release")


@triton.jit
def _compose(scale, shift, next_scale, next_shift):
    return next_scale * scale, next_scale * shift + next_shift


@triton.jit
def arranged(x, scale, index, scanned, ordered, best, picked, counts, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A scan of pairs, sorting, the largest of a row, gathering and a histogram."""
    at = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    values = tl.load(x + at)
    _, after = tl.associative_scan((tl.load(scale + at), values), 1, _compose)
    tl.store(scanned + at, after)
    tl.store(ordered + at, tl.sort(values, dim=1, descending=True))
    tl.store(best + tl.arange(0, ROWS)[:, None] * 4 + tl.arange(0, 4)[None, :], tl.topk(values, 4))
    tl.store(picked + at, tl.gather(values, tl.load(index + at), 1))
    tl.store(counts + tl.arange(0, 16), tl.histogram(tl.reshape(values.to(tl.int32) & 15, (ROWS * COLUMNS,)), 16))


@triton.jit
def two_results(x, y, out, BLOCK: tl.constexpr):
    """Inline PTX with two results, and with four bytes to a register."""
    at = tl.arange(0, BLOCK)
    a, b = tl.load(x + at), tl.load(y + at)
    first, second = tl.inline_asm_elementwise(
        "{ .reg .b32 t; xor.b32 t, $2, $3; add.u32 $0, t, 1; prmt.b32 $1, $2, $3, 0x7531; }",
        "=r,=r,r,r", [a, b], dtype=(tl.int32, tl.int32), is_pure=True, pack=1,
    )  # fmt: skip
    tl.store(out + at, first)
    tl.store(out + BLOCK + at, second)
    bytes_ = tl.inline_asm_elementwise(
        "and.b32 $0, $1, $2;", "=r,r,r", [a.to(tl.int8), b.to(tl.int8)], dtype=tl.int8, is_pure=True, pack=4
    )
    tl.store(out + 2 * BLOCK + at, bytes_.to(tl.int32))


@triton.jit
def ragged_parts(x, out, starts, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Twice each part of a tensor, through ragged descriptors."""
    part, column = tl.program_id(0), tl.program_id(1) * COLUMNS
    start = tl.load(starts + part)
    size = tl.load(starts + part + 1) - start
    for row in range(0, size, ROWS):
        store_ragged(out, start, size, [row, column], 2 * load_ragged(x, start, size, [row, column]))
