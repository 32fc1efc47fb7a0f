"""Gluon kernels for Blackwell: tcgen05 and TMEM, pairs of CTAs, roles, launch control, block scaling."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import blackwell
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    TensorMemoryScalesLayout,
    allocate_tensor_memory,
    clc,
    fence_async_shared,
    mbarrier,
    tcgen05_commit,
    tcgen05_copy,
    tcgen05_mma,
    tcgen05_mma_barrier_count,
    tcgen05_mma_scaled,
    tma,
)


@gluon.jit
def tcgen05_ring(a, b, c, STAGES: gl.constexpr, WARPS: gl.constexpr, VARIANT: gl.constexpr):
    """c = a @ b.T: a ring of TMA loads, tcgen05 into TMEM, the stage freed by the commit."""
    BM: gl.constexpr = a.block_shape[0]
    BN: gl.constexpr = b.block_shape[0]
    BK: gl.constexpr = a.block_shape[1]
    row = gl.program_id(0) * BM
    column = gl.program_id(1) * BN
    a_ring = gl.allocate_shared_memory(a.dtype, [STAGES, BM, BK], a.layout)
    b_ring = gl.allocate_shared_memory(b.dtype, [STAGES, BN, BK], b.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=1)
    fence_async_shared()
    acc = allocate_tensor_memory(gl.float32, [BM, BN], TensorMemoryLayout((BM, BN), col_stride=1))
    steps = gl.cdiv(a.shape[1], BK)
    use_acc = False
    for step in range(steps):
        slot = step % STAGES
        turn = step // STAGES & 1
        mbarrier.wait(free.index(slot), turn ^ 1)
        mbarrier.expect(ready.index(slot), a.block_type.nbytes + b.block_type.nbytes)
        tma.async_load(a, [row, step * BK], ready.index(slot), a_ring.index(slot))
        tma.async_load(b, [column, step * BK], ready.index(slot), b_ring.index(slot))
        mbarrier.wait(ready.index(slot), turn)
        tcgen05_mma(
            a_ring.index(slot), b_ring.index(slot).permute((1, 0)), acc, use_acc=use_acc, mbarriers=[free.index(slot)]
        )
        use_acc = True
    last = steps - 1
    mbarrier.wait(free.index(last % STAGES), last // STAGES & 1)
    for stage in gl.static_range(STAGES):
        mbarrier.invalidate(ready.index(stage))
        mbarrier.invalidate(free.index(stage))
    out = gl.allocate_shared_memory(c.dtype, [BM, BN], c.layout)
    out.store(acc.load(acc.get_reg_layout(instr_variant=VARIANT)).to(c.dtype))
    fence_async_shared()
    tma.async_store(c, [row, column], out)
    tma.store_wait(pendings=0)


@gluon.jit
def tcgen05_left_in_tmem(a, b, c, n, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """c = (a + 1) @ b with the left operand in TMEM."""
    plain: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    rows = gl.arange(0, BM, gl.SliceLayout(1, plain))
    ka = gl.arange(0, BK, gl.SliceLayout(0, plain))
    kb = gl.arange(0, BK, gl.SliceLayout(1, plain))
    columns = gl.arange(0, BN, gl.SliceLayout(0, plain))
    left = gl.load(a + rows[:, None] * BK + ka[None, :])
    right = gl.load(b + kb[:, None] * n + columns[None, :])
    shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BK, BN], gl.float16)
    b_shared = gl.allocate_shared_memory(gl.float16, [BK, BN], shared, right)
    a_tmem = allocate_tensor_memory(gl.float16, [BM, BK], TensorMemoryLayout((BM, BK), col_stride=1))
    a_tmem.store(gl.convert_layout(left + 1.0, a_tmem.get_reg_layout()))
    acc = allocate_tensor_memory(gl.float32, [BM, BN], TensorMemoryLayout((BM, BN), col_stride=1))
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    fence_async_shared()
    tcgen05_mma(a_tmem, b_shared, acc, use_acc=False)
    tcgen05_commit(bar)
    mbarrier.wait(bar, 0)
    mbarrier.invalidate(bar)
    half: gl.constexpr = BN // 2
    for part in gl.static_range(2):
        piece = gl.convert_layout(acc.slice(part * half, half).load(), plain)
        out_columns = part * half + gl.arange(0, half, gl.SliceLayout(0, plain))
        gl.store(c + rows[:, None] * n + out_columns[None, :], piece)


@gluon.jit
def two_cta_matmul(a, b, c):
    """c = a @ b on pairs of CTAs: one tcgen05 per pair, operands split over both, a loop over k."""
    BM: gl.constexpr = a.block_shape[0]
    BN: gl.constexpr = b.block_shape[1]
    BK: gl.constexpr = a.block_shape[1]
    row = gl.program_id(0) * BM
    column = gl.program_id(1) * BN
    a_tile = gl.allocate_shared_memory(a.dtype, [BM, BK], a.layout)
    b_tile = gl.allocate_shared_memory(b.dtype, [BK, BN], b.layout)
    ready = mbarrier.allocate_mbarrier(two_ctas=True)
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    mbarrier.init(done, count=tcgen05_mma_barrier_count([a_tile, b_tile], multicast=True, two_ctas=True))
    layout: gl.constexpr = TensorMemoryLayout(
        (BM // 2, BN), col_stride=1, cga_layout=c.layout.cga_layout, two_ctas=True
    )
    acc = allocate_tensor_memory(gl.float32, [BM, BN], layout)
    use_acc = False
    for step in range(gl.cdiv(a.shape[1], BK)):
        mbarrier.expect(ready, a.nbytes_per_cta + b.nbytes_per_cta)
        tma.async_load(a, [row, step * BK], ready, a_tile, multicast=True)
        tma.async_load(b, [step * BK, column], ready, b_tile, multicast=True)
        mbarrier.wait(ready, step & 1, deps=[a_tile, b_tile])
        tcgen05_mma(a_tile, b_tile, acc, use_acc=use_acc, multicast=True, mbarriers=[done])
        mbarrier.wait(done, step & 1, deps=[a_tile, b_tile])
        use_acc = True
    mbarrier.invalidate(ready)
    mbarrier.invalidate(done)
    out = gl.allocate_shared_memory(c.dtype, [BM, BN], c.layout)
    out.store(acc.load().to(c.dtype))
    fence_async_shared()
    tma.async_store(c, [row, column], out)
    tma.store_wait(pendings=0)


@gluon.jit
def _roles_load(a, b, c, a_ring, b_ring, ready, free, acc, acc_ready, acc_free, STAGES: gl.constexpr):
    BK: gl.constexpr = a.block_shape[1]
    tiles_n = gl.cdiv(c.shape[1], b.block_shape[0])
    tiles = gl.cdiv(c.shape[0], a.block_shape[0]) * tiles_n
    count = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        row = tile // tiles_n * a.block_shape[0]
        column = tile % tiles_n * b.block_shape[0]
        for k in range(0, a.shape[1], BK):
            slot = count % STAGES
            mbarrier.wait(free.index(slot), count // STAGES & 1 ^ 1)
            mbarrier.expect(ready.index(slot), a.block_type.nbytes + b.block_type.nbytes)
            tma.async_load(a, [row, k], ready.index(slot), a_ring.index(slot))
            tma.async_load(b, [column, k], ready.index(slot), b_ring.index(slot))
            count += 1


@gluon.jit
def _roles_mma(a, b, c, a_ring, b_ring, ready, free, acc, acc_ready, acc_free, STAGES: gl.constexpr):
    BK: gl.constexpr = a.block_shape[1]
    tiles = gl.cdiv(c.shape[0], a.block_shape[0]) * gl.cdiv(c.shape[1], b.block_shape[0])
    count = 0
    turn = 0
    for _ in range(gl.program_id(0), tiles, gl.num_programs(0)):
        mbarrier.wait(acc_free.index(turn % 2), turn // 2 & 1 ^ 1)
        use_acc = False
        for _k in range(0, a.shape[1], BK):
            slot = count % STAGES
            mbarrier.wait(ready.index(slot), count // STAGES & 1)
            tcgen05_mma(
                a_ring.index(slot), b_ring.index(slot).permute((1, 0)), acc.index(turn % 2),
                use_acc=use_acc, mbarriers=[free.index(slot)],
            )  # fmt: skip
            use_acc = True
            count += 1
        tcgen05_commit(acc_ready.index(turn % 2))
        turn += 1  # noqa: SIM113


@gluon.jit
def _roles_epilogue(a, b, c, a_ring, b_ring, ready, free, acc, acc_ready, acc_free, STAGES: gl.constexpr):
    BM: gl.constexpr = a.block_shape[0]
    BN: gl.constexpr = b.block_shape[0]
    tiles_n = gl.cdiv(c.shape[1], BN)
    tiles = gl.cdiv(c.shape[0], BM) * tiles_n
    out = gl.allocate_shared_memory(c.dtype, [BM, BN], c.layout)
    turn = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        mbarrier.wait(acc_ready.index(turn % 2), turn // 2 & 1)
        value = acc.index(turn % 2).load()
        mbarrier.arrive(acc_free.index(turn % 2), count=1)
        tma.store_wait(pendings=0)
        out.store(value.to(c.dtype))
        fence_async_shared()
        tma.async_store(c, [tile // tiles_n * BM, tile % tiles_n * BN], out)
        turn += 1  # noqa: SIM113
    tma.store_wait(pendings=0)


@gluon.jit
def roles_matmul(a, b, c, STAGES: gl.constexpr):
    """c = a @ b.T, persistent, with a load role, an MMA role, an epilogue role and two accumulators."""
    BM: gl.constexpr = a.block_shape[0]
    BN: gl.constexpr = b.block_shape[0]
    BK: gl.constexpr = a.block_shape[1]
    a_ring = gl.allocate_shared_memory(a.dtype, [STAGES, BM, BK], a.layout)
    b_ring = gl.allocate_shared_memory(b.dtype, [STAGES, BN, BK], b.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    acc_ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    acc_free = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=1)
    for stage in gl.static_range(2):
        mbarrier.init(acc_ready.index(stage), count=1)
        mbarrier.init(acc_free.index(stage), count=1)
    fence_async_shared()
    acc = allocate_tensor_memory(gl.float32, [2, BM, BN], TensorMemoryLayout((BM, BN), col_stride=1))
    shared = (a, b, c, a_ring, b_ring, ready, free, acc, acc_ready, acc_free, STAGES)
    gl.warp_specialize([(_roles_epilogue, shared), (_roles_load, shared), (_roles_mma, shared)], [1, 1], [24, 24])


@gluon.jit
def clc_tiles(x, out, BLOCK: gl.constexpr):
    """out = 3 x + tile: a running CTA takes over the tiles of CTAs that were not launched yet."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    answer = gl.allocate_shared_memory(gl.int64, [2], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    tile = gl.program_id(0)
    phase = 0
    busy = gl.to_tensor(True)
    while busy:
        mbarrier.expect(bar, 16)
        clc.try_cancel(answer, bar)
        at = tile * BLOCK + gl.arange(0, BLOCK, layout)
        gl.store(out + at, gl.load(x + at) * 3 + tile)
        mbarrier.wait(bar, phase)
        reply = clc.load_result(answer)
        busy = reply.is_canceled()
        if busy:
            tile = reply.program_id(0)
        phase ^= 1
        gl.barrier()


@gluon.jit
def _scales(block, MN: gl.constexpr, K: gl.constexpr):
    spread = block.reshape((block.shape[1], block.shape[2], 32, 4, 4)).permute((0, 3, 2, 1, 4))
    return spread.reshape((MN, K))


@gluon.jit
def block_scaled(a, b, a_scale, b_scale, c, KIND: gl.constexpr, GROUP: gl.constexpr, PACK: gl.constexpr):
    """c = (a · scale) @ (b · scale).T: scales are copied from shared memory to TMEM by tcgen05.cp."""
    BM: gl.constexpr = a.block_shape[0]
    BN: gl.constexpr = b.block_shape[0]
    BK: gl.constexpr = a.block_shape[1] * PACK
    a_tile = gl.allocate_shared_memory(a.dtype, a.block_shape, a.layout)
    b_tile = gl.allocate_shared_memory(b.dtype, b.block_shape, b.layout)
    sa_tile = gl.allocate_shared_memory(a_scale.dtype, a_scale.block_shape, a_scale.layout)
    sb_tile = gl.allocate_shared_memory(b_scale.dtype, b_scale.block_shape, b_scale.layout)
    ready = mbarrier.allocate_mbarrier()
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    mbarrier.init(done, count=1)
    fence_async_shared()
    acc = allocate_tensor_memory(gl.float32, [BM, BN], TensorMemoryLayout((BM, BN), col_stride=1))
    use_acc = False
    for step in range(gl.cdiv(a.shape[1] * PACK, BK)):
        bytes_: gl.constexpr = (
            a.block_type.nbytes + b.block_type.nbytes + a_scale.block_type.nbytes + b_scale.block_type.nbytes
        )
        mbarrier.expect(ready, bytes_)
        tma.async_load(a, [0, step * (BK // PACK)], ready, a_tile)
        tma.async_load(b, [0, step * (BK // PACK)], ready, b_tile)
        rep: gl.constexpr = a_scale.block_shape[2]
        tma.async_load(a_scale, [0, 0, step * rep, 0, 0], ready, sa_tile)
        tma.async_load(b_scale, [0, 0, step * rep, 0, 0], ready, sb_tile)
        mbarrier.wait(ready, step & 1)
        left = _scales(sa_tile, BM, BK // GROUP)
        right = _scales(sb_tile, BN, BK // GROUP)
        left_tmem = allocate_tensor_memory(left.dtype, left.type.shape, TensorMemoryScalesLayout())
        right_tmem = allocate_tensor_memory(right.dtype, right.type.shape, TensorMemoryScalesLayout())
        tcgen05_copy(left, left_tmem)
        tcgen05_copy(right, right_tmem)
        tcgen05_mma_scaled(
            a_tile, b_tile.permute((1, 0)), acc, left_tmem, right_tmem, KIND, KIND, use_acc=use_acc, mbarriers=[done]
        )
        mbarrier.wait(done, step & 1)
        use_acc = True
    mbarrier.invalidate(ready)
    mbarrier.invalidate(done)
    out = gl.allocate_shared_memory(c.dtype, [BM, BN], c.layout)
    out.store(acc.load().to(c.dtype))
    fence_async_shared()
    tma.async_store(c, [0, 0], out)
    tma.store_wait(pendings=0)


@gluon.jit
def packed_math(x, y, out, n, BLOCK: gl.constexpr):
    """out = (x y + y) (x - y): two float32 per instruction."""
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [gl.num_warps()], [0])
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    a = gl.load(x + at, mask=at < n, other=0.0)
    b = gl.load(y + at, mask=at < n, other=0.0)
    value = blackwell.mul2(blackwell.fma2(a, b, b), blackwell.sub2(a, b))
    gl.store(out + at, value, mask=at < n)
