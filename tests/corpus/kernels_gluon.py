"""Gluon kernels for Hopper and for both: rings of TMA loads, wgmma, mma.sync, mbarriers and clusters by hand."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.experimental.gluon.language.nvidia.hopper import (
    async_store,
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)


@gluon.jit
def wgmma_ring(a, b, c, STAGES: gl.constexpr, WARPS: gl.constexpr):
    """c = a @ b.T: one ring of TMA loads, one wgmma kept in flight, the next load issued after it."""
    BM: gl.constexpr = a.block_shape[0]
    BN: gl.constexpr = b.block_shape[0]
    BK: gl.constexpr = a.block_shape[1]
    row = gl.program_id(0) * BM
    column = gl.program_id(1) * BN
    steps = gl.cdiv(a.shape[1], BK)
    a_ring = gl.allocate_shared_memory(a.dtype, [STAGES, BM, BK], a.layout)
    b_ring = gl.allocate_shared_memory(b.dtype, [STAGES, BN, BK], b.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
    fence_async_shared()
    for stage in gl.static_range(STAGES - 1):
        mbarrier.expect(ready.index(stage), a.block_type.nbytes + b.block_type.nbytes, pred=stage < steps)
        tma.async_load(a, [row, stage * BK], ready.index(stage), a_ring.index(stage), pred=stage < steps)
        tma.async_load(b, [column, stage * BK], ready.index(stage), b_ring.index(stage), pred=stage < steps)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BN, 256 // a.dtype.primitive_bitwidth])
    total = warpgroup_mma_init(gl.zeros((BM, BN), dtype=gl.float32, layout=layout))
    for step in range(steps):
        slot = step % STAGES
        mbarrier.wait(ready.index(slot), step // STAGES & 1)
        total = warpgroup_mma_wait(num_outstanding=0, deps=(total,))
        total = warpgroup_mma(a_ring.index(slot), b_ring.index(slot).permute((1, 0)), total, is_async=True)
        gl.barrier()
        ahead = step + STAGES - 1
        bar = ready.index(ahead % STAGES)
        mbarrier.expect(bar, a.block_type.nbytes + b.block_type.nbytes, pred=ahead < steps)
        tma.async_load(a, [row, ahead * BK], bar, a_ring.index(ahead % STAGES), pred=ahead < steps)
        tma.async_load(b, [column, ahead * BK], bar, b_ring.index(ahead % STAGES), pred=ahead < steps)
    total = warpgroup_mma_wait(num_outstanding=0, deps=(total,))
    for stage in gl.static_range(STAGES):
        mbarrier.invalidate(ready.index(stage))
    out = gl.allocate_shared_memory(c.dtype, [BM, BN], c.layout)
    out.store(total.to(c.dtype))
    fence_async_shared()
    tma.async_store(c, [row, column], out)
    tma.store_wait(pendings=0)


@gluon.jit
def wgmma_from_registers(a, b, c, m, n, k, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """c = (2 a) @ b with a passed through registers and b copied into shared memory by ordinary stores."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    plain: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BK, BN], gl.bfloat16)
    total = gl.zeros((BM, BN), dtype=gl.float32, layout=layout)
    rows = gl.program_id(0) * BM + gl.arange(0, BM, gl.SliceLayout(1, plain))
    columns = gl.arange(0, BN, gl.SliceLayout(0, plain))
    for start in range(0, k, BK):
        ka = start + gl.arange(0, BK, gl.SliceLayout(0, plain))
        kb = start + gl.arange(0, BK, gl.SliceLayout(1, plain))
        left = gl.load(a + rows[:, None] * k + ka[None, :], mask=(rows < m)[:, None], other=0.0)
        right = gl.load(b + kb[:, None] * n + columns[None, :])
        b_shared = gl.allocate_shared_memory(gl.bfloat16, [BK, BN], shared, right)
        fence_async_shared()
        left = gl.convert_layout(left + left, operand)
        total = warpgroup_mma(left, b_shared, total, is_async=False)
    out_rows = gl.program_id(0) * BM + gl.arange(0, BM, gl.SliceLayout(1, layout))
    out_columns = gl.arange(0, BN, gl.SliceLayout(0, layout))
    gl.store(c + out_rows[:, None] * n + out_columns[None, :], total, mask=(out_rows < m)[:, None])


@gluon.jit
def mma_sync_pipeline(a, b, c, n, k, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """c = a @ b in Ampere's style: cp.async groups, ldmatrix, mma.sync."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8])
    plain: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(8, 2, 4, [1, 0])
    a_ring = gl.allocate_shared_memory(gl.float16, [2, BM, BK], shared)
    b_ring = gl.allocate_shared_memory(gl.float16, [2, BK, BN], shared)
    rows = gl.program_id(0) * BM + gl.arange(0, BM, gl.SliceLayout(1, plain))
    columns = gl.program_id(1) * BN + gl.arange(0, BN, gl.SliceLayout(0, plain))
    ka = gl.arange(0, BK, gl.SliceLayout(0, plain))
    kb = gl.arange(0, BK, gl.SliceLayout(1, plain))
    async_copy.async_load(a_ring.index(0), a + rows[:, None] * k + ka[None, :])
    async_copy.async_load(b_ring.index(0), b + kb[:, None] * n + columns[None, :])
    async_copy.commit_group()
    total = gl.zeros((BM, BN), dtype=gl.float32, layout=layout)
    steps = k // BK
    for step in range(steps):
        after = (step + 1) * BK
        more = step + 1 < steps
        a_mask = gl.full([BM, BK], more, gl.int1, plain)
        b_mask = gl.full([BK, BN], more, gl.int1, plain)
        slot = (step + 1) % 2
        async_copy.async_load(a_ring.index(slot), a + rows[:, None] * k + (after + ka)[None, :], mask=a_mask)
        async_copy.async_load(b_ring.index(slot), b + (after + kb)[:, None] * n + columns[None, :], mask=b_mask)
        async_copy.commit_group()
        async_copy.wait_group(1)
        gl.barrier()
        left = a_ring.index(step % 2).load(gl.DotOperandLayout(0, layout, 2))
        right = b_ring.index(step % 2).load(gl.DotOperandLayout(1, layout, 2))
        total = mma_v2(left, right, total)
        gl.barrier()
    async_copy.wait_group(0)
    out_rows = gl.program_id(0) * BM + gl.arange(0, BM, gl.SliceLayout(1, layout))
    out_columns = gl.program_id(1) * BN + gl.arange(0, BN, gl.SliceLayout(0, layout))
    gl.store(c + out_rows[:, None] * n + out_columns[None, :], total.to(gl.float16))


@gluon.jit
def _produce(source, ring, full, empty, tiles, STAGES: gl.constexpr):
    for tile in range(tiles):
        slot = tile % STAGES
        mbarrier.wait(empty.index(slot), tile // STAGES & 1 ^ 1)
        mbarrier.expect(full.index(slot), source.block_type.nbytes)
        tma.async_load(source, [tile * source.block_shape[0], 0], full.index(slot), ring.index(slot))


@gluon.jit
def _consume(target, ring, full, empty, tiles, STAGES: gl.constexpr, WARPS: gl.constexpr):
    BM: gl.constexpr = target.block_shape[0]
    BN: gl.constexpr = target.block_shape[1]
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [WARPS, 1], [1, 0])
    out = gl.allocate_shared_memory(target.dtype, [BM, BN], target.layout)
    for tile in range(tiles):
        slot = tile % STAGES
        mbarrier.wait(full.index(slot), tile // STAGES & 1)
        value = ring.index(slot).load(layout)
        mbarrier.arrive(empty.index(slot), count=1)
        tma.store_wait(pendings=0)
        out.store(value * value + tile)
        fence_async_shared()
        tma.async_store(target, [tile * BM, 0], out)
    tma.store_wait(pendings=0)


@gluon.jit
def ping_pong(source, target, tiles, STAGES: gl.constexpr, WARPS: gl.constexpr):
    """target = source² + tile: one warp loads, the others work, two mbarriers per stage between them."""
    ring = gl.allocate_shared_memory(source.dtype, [STAGES] + source.block_shape, source.layout)  # noqa: RUF005
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [(_consume, (target, ring, full, empty, tiles, STAGES, WARPS)),
         (_produce, (source, ring, full, empty, tiles, STAGES))],
        [1], [24],
    )  # fmt: skip


@gluon.jit
def cluster_softmax(x, out, n, BLOCK: gl.constexpr):
    """Row softmax with one row spread over the CTAs of a cluster: the reductions cross distributed shared memory."""
    layout: gl.constexpr = gl.BlockedLayout([2], [32], [gl.num_warps()], [0], cga_layout=[[1], [2]])
    at = gl.arange(0, BLOCK, layout)
    row = gl.program_id(0) * n
    value = gl.load(x + row + at, mask=at < n, other=float("-inf"))
    value = gl.exp(value - gl.max(value, 0))
    gl.store(out + row + at, value / gl.sum(value, 0), mask=at < n)


@gluon.jit
def cluster_multicast(a, b, c, WARPS: gl.constexpr):
    """c = a @ b.T on a cluster of two: each CTA loads its rows of a, and b is multicast to both."""
    BM: gl.constexpr = a.block_shape[0]
    BN: gl.constexpr = b.block_shape[0]
    BK: gl.constexpr = a.block_shape[1]
    row = gl.program_id(0) * BM
    a_tile = gl.allocate_shared_memory(a.dtype, [BM, BK], a.layout)
    b_tile = gl.allocate_shared_memory(b.dtype, [BN, BK], b.layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BN, 16], cga_layout=[[1, 0]])
    total = gl.zeros((BM, BN), dtype=gl.float32, layout=layout)
    for step in range(gl.cdiv(a.shape[1], BK)):
        mbarrier.expect(bar, a.nbytes_per_cta + b.nbytes_per_cta)
        tma.async_load(a, [row, step * BK], bar, a_tile)
        tma.async_load(b, [0, step * BK], bar, b_tile, multicast=True)
        mbarrier.wait(bar, step & 1, deps=[a_tile, b_tile])
        total = warpgroup_mma(a_tile, b_tile.permute((1, 0)), total, is_async=False)
        gl.barrier(cluster=True)
    mbarrier.invalidate(bar)
    out = gl.allocate_shared_memory(c.dtype, [BM, BN], c.layout)
    out.store(total.to(c.dtype))
    fence_async_shared()
    tma.async_store(c, [row, 0], out)
    tma.store_wait(pendings=0)


@gluon.jit
def shared_scatter(index, values, counts, order, N: gl.constexpr, BINS: gl.constexpr):
    """A histogram by shared-memory atomics, and a scatter by index in shared memory."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    at = gl.arange(0, N, layout)
    bins = gl.arange(0, BINS, layout)
    table = gl.allocate_shared_memory(gl.int32, [BINS], plain, gl.zeros((BINS,), gl.int32, layout))
    spread = gl.allocate_shared_memory(gl.float32, [N], plain)
    where = gl.load(index + at)
    value = gl.load(values + at)
    table.atomic_scatter_add(gl.full([N], 1, gl.int32, layout), where % BINS, 0)
    spread.scatter(value, where, 0)
    gl.barrier()
    gl.store(counts + bins, table.load(layout))
    gl.store(order + at, spread.load(layout))


@gluon.jit
def remote_store(x, out, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """out = x²: read by rows, squared, sent with st.async to the CTA that owns the column, and stored from there."""
    by_row: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [gl.num_warps(), 1], [1, 0], cga_layout=[[1, 0]])
    by_column: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [gl.num_warps(), 1], [1, 0], cga_layout=[[0, 1]])
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0], cga_layout=[[0, 1]])
    tile = gl.allocate_shared_memory(gl.float32, [ROWS, COLUMNS], shared)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    gl.barrier(cluster=True)
    mbarrier.expect(bar, ROWS * COLUMNS * 2)
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, by_row))
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, by_row))
    value = gl.load(x + rows[:, None] * COLUMNS + columns[None, :])
    async_store(tile, value * value, bar)
    mbarrier.wait(bar, 0)
    out_rows = gl.arange(0, ROWS, gl.SliceLayout(1, by_column))
    out_columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, by_column))
    gl.store(out + out_rows[:, None] * COLUMNS + out_columns[None, :], tile.load(by_column))
    gl.barrier(cluster=True)
