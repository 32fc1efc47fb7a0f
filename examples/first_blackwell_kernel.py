"""A GEMM on Blackwell: one warp loads by TMA, one issues tcgen05.mma into TMEM, four warps read the accumulator and store it.

python examples/first_blackwell_kernel.py
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from warploom import TensorMap, launch
from warploom.trace import (
    Array,
    TensorMemory,
    barriers,
    bf16,
    cta_index,
    elect,
    emit,
    fence_barrier_init,
    instruction_descriptor,
    kernel,
    lane,
    loop,
    matrix_descriptor,
    s32,
    shared,
    sync_threads,
    tensor_load,
    thread,
    u32,
    warp_roles,
    when,
)

TILE, TILE_K, STAGES = 128, 64, 4
LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"
SWIZZLED = {"leading": 16, "stride": 1024, "swizzle": "128B"}


@kernel(target="sm_100a")
def matmul(a: TensorMap, b: TensorMap, d: Array, k_tiles: s32) -> None:
    """D = A·Bᵀ for A[M, K] and B[N, K]: one 128 × 128 tile per CTA."""
    roles = warp_roles(epilogue=4, load=1, mma=1)
    a_tiles = shared(bf16, (STAGES, TILE, TILE_K), name="a_tiles", swizzle="128B")
    b_tiles = shared(bf16, (STAGES, TILE, TILE_K), name="b_tiles", swizzle="128B")
    full, empty, done = barriers("full", STAGES), barriers("empty", STAGES), barriers("done")
    slot = shared(u32, 1, name="slot")
    row, column = (cta_index("y") * TILE).to(s32), (cta_index("x") * TILE).to(s32)

    with when(thread() == 0):
        for row_of_barriers in (full, empty, done):
            row_of_barriers.init(1)
        fence_barrier_init()
    with roles.mma:
        emit("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32", slot.place, TILE)
    emit("tcgen05.fence::before_thread_sync")
    sync_threads()
    emit("tcgen05.fence::after_thread_sync")
    accumulator = TensorMemory(slot[0], TILE)

    with roles.load, when(elect()):
        for k in loop(k_tiles):
            stage, turn = k % STAGES, k // STAGES
            empty[stage].wait((turn & 1) ^ 1)
            full[stage].arrive_and_expect(a.box_bytes + b.box_bytes)
            emit(LOAD, a_tiles[stage].place, a.at(row, k * TILE_K), full[stage].at)
            emit(LOAD, b_tiles[stage].place, b.at(column, k * TILE_K), full[stage].at)

    with roles.mma, when(elect()):
        shape = instruction_descriptor("f16", TILE, TILE, "bf16", "bf16", "f32")
        for k in loop(k_tiles):
            stage, turn = k % STAGES, k // STAGES
            full[stage].wait(turn & 1)
            left = matrix_descriptor(a_tiles[stage].place, **SWIZZLED)
            right = matrix_descriptor(b_tiles[stage].place, **SWIZZLED)
            for step in range(TILE_K // 16):
                accumulate = k > 0 if step == 0 else True
                operands = (left + 2 * step, right + 2 * step, shape, accumulate)
                emit("tcgen05.mma.cta_group::1.kind::f16", accumulator.at(), *operands)
            emit(COMMIT, empty[stage].at)  # frees the slot when the MMAs issued so far are done
        emit(COMMIT, done[0].at)

    with roles.epilogue:
        done[0].wait(0)
        emit("tcgen05.fence::after_thread_sync")
        quarter = roles.epilogue.warp * 32  # a warp can access only its own quarter of the TMEM lanes
        tile = d.window((row + quarter.to(s32) + lane().to(s32), column), (1, TILE))
        for start in range(0, TILE, 32):
            part = tensor_load(accumulator.at(quarter, start), "32x32b", 32)
            emit("tcgen05.wait::ld.sync.aligned")
            for at in range(0, 32, 4):
                tile.store(part.values[at : at + 4], 0, start + at)
        emit("tcgen05.fence::before_thread_sync")

    sync_threads()
    with roles.mma:
        emit("tcgen05.dealloc.cta_group::1.sync.aligned.b32", slot[0], TILE)


def run(rows: int = 256, columns: int = 128, k_extent: int = 320, schedule: str = "eager") -> float:
    """Return the largest error against NumPy; on small integers it must be 0."""
    rng = np.random.default_rng()
    a, b = (rng.integers(-4, 5, (size, k_extent)).astype(ml_dtypes.bfloat16) for size in (rows, columns))
    d = np.zeros((rows, columns), np.float32)
    maps = (TensorMap(x, box=(TILE, TILE_K), swizzle="128B") for x in (a, b))
    grid = (columns // TILE, rows // TILE, 1)
    launch(matmul.bind(*maps, d, k_extent // TILE_K, grid=grid, block=(192, 1, 1)), schedule=schedule)
    return float(np.abs(d - a.astype(np.float32) @ b.astype(np.float32).T).max())


if __name__ == "__main__":
    assert run() == 0
    print("right: 256 × 128 × 320, every element")
