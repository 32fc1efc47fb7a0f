"""Triton matmul kernels: pointers and descriptors, persistent and specialised, every operand type."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def matmul_masked(
    a, b, c, m, n, k, stride_am, stride_bk, stride_cm,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """c = a @ b through pointers; every edge is masked, so that no size needs to divide."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    a_at = a + rows[:, None] * stride_am + ks[None, :]
    b_at = b + ks[:, None] * stride_bk + columns[None, :]
    total = tl.zeros((BM, BN), dtype=ACC)
    for start in range(0, k, BK):
        left = tl.load(a_at, mask=(rows[:, None] < m) & (ks[None, :] < k - start), other=0.0)
        right = tl.load(b_at, mask=(ks[:, None] < k - start) & (columns[None, :] < n), other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION, out_dtype=ACC)
        a_at += BK
        b_at += BK * stride_bk
    c_at = c + rows[:, None] * stride_cm + columns[None, :]
    tl.store(c_at, total.to(c.dtype.element_ty), mask=(rows[:, None] < m) & (columns[None, :] < n))


@triton.jit
def matmul_fused(
    a, b, bias, residual, c, m, n, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """c = relu(a @ b.T + bias) + residual, tiles in groups along m, no masks: the sizes divide."""
    tile = tl.program_id(0)
    tiles_m = tl.cdiv(m, BM)
    per_group = GROUP * tl.cdiv(n, BN)
    first = tile // per_group * GROUP
    height = min(tiles_m - first, GROUP)
    tile_m = first + tile % per_group % height
    tile_n = tile % per_group // height
    rows = tile_m * BM + tl.arange(0, BM)
    columns = tile_n * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    a_at = a + rows[:, None] * k + ks[None, :]
    b_at = b + columns[None, :] * k + ks[:, None]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(tl.cdiv(k, BK)):
        total = tl.dot(tl.load(a_at), tl.load(b_at), total)
        a_at += BK
        b_at += BK
    total = tl.maximum(total + tl.load(bias + columns)[None, :], 0.0)
    at = rows[:, None] * n + columns[None, :]
    total += tl.load(residual + at)
    tl.store(c + at, total.to(c.dtype.element_ty))


@triton.jit
def matmul_split_k(
    a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr
):  # fmt: skip
    """c += a @ b, the K loop split over SPLIT programs that add atomically."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.arange(0, BN)
    ks = tl.program_id(1) * BK + tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK * SPLIT):
        inside = ks < k - start
        known = (rows < m)[:, None] & inside[None, :]
        left = tl.load(a + rows[:, None] * k + (start + ks)[None, :], mask=known, other=0.0)
        right = tl.load(b + (start + ks)[:, None] * n + columns[None, :], mask=inside[:, None], other=0.0)
        total = tl.dot(left, right, total)
    tl.atomic_add(c + rows[:, None] * n + columns[None, :], total, mask=(rows < m)[:, None] & (columns < n)[None, :])


@triton.jit
def matmul_descriptor(
    a, b, c, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, A_T: tl.constexpr, B_T: tl.constexpr,
):  # fmt: skip
    """c = a @ b through tensor descriptors; A_T and B_T mark operands that are transposed in memory."""
    row = tl.program_id(0) * BM
    column = tl.program_id(1) * BN
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        left = a.load([start, row]).T if A_T else a.load([row, start])
        right = b.load([column, start]).T if B_T else b.load([start, column])
        total = tl.dot(left, right, total)
    c.store([row, column], total.to(c.dtype))


@triton.jit
def matmul_persistent(
    a, b, c, m, n, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    SPECIALISE: tl.constexpr, FLATTEN: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """c = a @ b.T; every program walks over tiles, the result leaves in PARTS column slices."""
    tiles_n = tl.cdiv(n, BN)
    tiles = tl.cdiv(m, BM) * tiles_n
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=FLATTEN, warp_specialize=SPECIALISE):
        row = tile // tiles_n * BM
        column = tile % tiles_n * BN
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for start in range(0, k, BK):
            total = tl.dot(a.load([row, start]), b.load([column, start]).T, total)
        if PARTS == 1:
            c.store([row, column], total.to(c.dtype))
        else:
            halves = tl.permute(tl.reshape(total, (BM, 2, BN // 2)), (0, 2, 1))
            left, right = tl.split(halves)
            c.store([row, column], left.to(c.dtype))
            c.store([row, column + BN // 2], right.to(c.dtype))


@triton.jit
def matmul_batched(a, b, c, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """c[i] = a[i] @ b[i] with rank-3 descriptors whose edges overhang the arrays."""
    batch = tl.program_id(0)
    row = tl.program_id(1) * BM
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        left = a.load([batch, row, start]).reshape(BM, BK)
        right = b.load([batch, start, 0]).reshape(BK, BN)
        total = tl.dot(left, right, total)
    c.store([batch, row, 0], total.to(c.dtype).reshape(1, BM, BN))


@triton.jit
def matmul_device_descriptor(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """c = a @ b.T with tensor maps that the kernel itself writes into scratch memory."""
    a_map = tl.make_tensor_descriptor(a, shape=[m, k], strides=[k, 1], block_shape=[BM, BK])
    b_map = tl.make_tensor_descriptor(b, shape=[n, k], strides=[k, 1], block_shape=[BN, BK])
    c_map = tl.make_tensor_descriptor(c, shape=[m, n], strides=[n, 1], block_shape=[BM, BN])
    row = tl.program_id(0) * BM
    column = tl.program_id(1) * BN
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        total = tl.dot(a_map.load([row, start]), b_map.load([column, start]).T, total)
    c_map.store([row, column], total.to(c.dtype.element_ty))


@triton.jit
def matmul_scaled(
    a, a_scale, b, b_scale, c, n, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    A_KIND: tl.constexpr, B_KIND: tl.constexpr, A_PACK: tl.constexpr, B_PACK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """c = (a · scale) @ (b · scale), one scale per GROUP elements of k; 4-bit operands are packed two to a byte."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        a_k = start // A_PACK + tl.arange(0, BK // A_PACK)
        b_k = start // B_PACK + tl.arange(0, BK // B_PACK)
        scale_k = start // GROUP + tl.arange(0, BK // GROUP)
        left = tl.load(a + rows[:, None] * (k // A_PACK) + a_k[None, :])
        right = tl.load(b + columns[None, :] * (k // B_PACK) + b_k[:, None])
        left_scale = tl.load(a_scale + rows[:, None] * (k // GROUP) + scale_k[None, :])
        right_scale = tl.load(b_scale + columns[:, None] * (k // GROUP) + scale_k[None, :])
        total = tl.dot_scaled(left, left_scale, A_KIND, right, right_scale, B_KIND, total)
    tl.store(c + rows[:, None] * n + columns[None, :], total)


@triton.jit
def attention(q, k, v, out, scale, length, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr):
    """One head of softmax(q kᵀ · scale) v, streamed over keys with a running maximum."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    query = tl.load(q + rows[:, None] * D + d[None, :], mask=rows[:, None] < length, other=0.0)
    best = tl.full((BM,), float("-inf"), tl.float32)
    weight = tl.zeros((BM,), tl.float32)
    total = tl.zeros((BM, D), tl.float32)
    end = min(length, (tl.program_id(0) + 1) * BM) if CAUSAL else length
    for start in range(0, end, BN):
        columns = start + tl.arange(0, BN)
        inside = columns < length
        keys = tl.load(k + columns[None, :] * D + d[:, None], mask=inside[None, :], other=0.0)
        scores = tl.dot(query, keys) * scale
        allowed = inside[None, :] & (columns[None, :] <= rows[:, None]) if CAUSAL else inside[None, :]
        scores = tl.where(allowed, scores, float("-inf"))
        top = tl.maximum(best, tl.max(scores, 1))
        p = tl.math.exp2(scores - top[:, None])
        shrink = tl.math.exp2(best - top)
        weight = weight * shrink + tl.sum(p, 1)
        values = tl.load(v + columns[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
        total = tl.dot(p.to(values.dtype), values, total * shrink[:, None])
        best = top
    total = total / weight[:, None]
    tl.store(out + rows[:, None] * D + d[None, :], total.to(out.dtype.element_ty), mask=rows[:, None] < length)


@triton.jit
def attention_descriptor(
    q, k, v, out, length, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SPECIALISE: tl.constexpr
):  # fmt: skip
    """The same through descriptors, with the loop over keys warp-specialised if SPECIALISE."""
    row = tl.program_id(0) * BM
    query = q.load([row, 0])
    best = tl.full((BM,), float("-inf"), tl.float32)
    weight = tl.zeros((BM,), tl.float32)
    total = tl.zeros((BM, D), tl.float32)
    for start in tl.range(0, length, BN, warp_specialize=SPECIALISE):
        scores = tl.dot(query, k.load([start, 0]).T)
        top = tl.maximum(best, tl.max(scores, 1) * scale)
        p = tl.math.exp2(scores * scale - top[:, None])
        shrink = tl.math.exp2(best - top)
        weight = weight * shrink + tl.sum(p, 1)
        total = total * shrink[:, None]
        total = tl.dot(p.to(tl.float16), v.load([start, 0]), total)
        best = top
    out.store([row, 0], (total / weight[:, None]).to(tl.float16))
