"""Triton kernels that `machine_speed.py` compiles to PTX and runs on the emulator."""

import triton
import triton.language as tl


@triton.jit
def softmax(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=-float("inf"))
    values = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row * columns + at, values / tl.sum(values, axis=0), mask=inside)


@triton.jit
def layer_norm(x, y, weight, bias, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=0.0)
    centred = tl.where(inside, values - tl.sum(values, axis=0) / columns, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / columns + 1e-5)
    w = tl.load(weight + at, mask=inside, other=0.0)
    b = tl.load(bias + at, mask=inside, other=0.0)
    tl.store(y + row * columns + at, centred * scale * w + b, mask=inside)


@triton.jit
def dot(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr):
    """Row-major operands through pointers: with tensor-core operands, copied by `cp.async`."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        inner = k * BK + tl.arange(0, BK)
        left = tl.load(a + rows[:, None] * K + inner[None, :])
        right = tl.load(b + inner[:, None] * N + columns[None, :])
        total = tl.dot(left, right, total, input_precision=PRECISION)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(c.dtype.element_ty))


@triton.jit
def matmul(a_desc, b_desc, c_desc, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, CAST: tl.constexpr):
    """A · Bᵀ with tensor descriptors; with CAST for the interpreter, which has no bf16 dot."""
    row = tl.program_id(0) * BM
    column = tl.program_id(1) * BN
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        a = a_desc.load([row, k * BK])
        b = b_desc.load([column, k * BK])
        if CAST:  # noqa: SIM108  (a branch of the compiler)
            total = tl.dot(a.to(tl.float32), b.to(tl.float32).T, total)
        else:
            total = tl.dot(a, b.T, total)
    c_desc.store([row, column], total.to(tl.bfloat16))


@triton.jit
def persistent(
    a_desc, b_desc, c_desc, M, N, K, PROGRAMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """A · Bᵀ with tensor descriptors; each program computes several tiles."""
    wide = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BM) * wide, PROGRAMS):
        row = tile // wide * BM
        column = tile % wide * BN
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(tl.cdiv(K, BK)):
            total = tl.dot(a_desc.load([row, k * BK]), b_desc.load([column, k * BK]).T, total)
        c_desc.store([row, column], total.to(tl.bfloat16))


@triton.jit
def attention(q_desc, k_desc, v_desc, o_desc, length, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    """One head of the forward pass, with a running maximum and sum."""
    row = tl.program_id(0) * BM
    q = q_desc.load([row, 0])
    largest = tl.full((BM,), -float("inf"), tl.float32)
    weight = tl.zeros((BM,), tl.float32)
    total = tl.zeros((BM, D), tl.float32)
    for start in range(0, length, BN):
        scores = tl.dot(q, k_desc.load([start, 0]).T) * scale
        larger = tl.maximum(largest, tl.max(scores, axis=1))
        p = tl.exp2(scores - larger[:, None])
        shrink = tl.exp2(largest - larger)
        weight = weight * shrink + tl.sum(p, axis=1)
        total = tl.dot(p.to(tl.bfloat16), v_desc.load([start, 0]), total * shrink[:, None])
        largest = larger
    o_desc.store([row, 0], (total / weight[:, None]).to(tl.bfloat16))
