"""A warp-specialised Hopper GEMM on one page: TMA fills a ring of stages, two consumer warpgroups run wgmma.

python examples/first_kernel.py
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from warploom import TensorMap, launch
from warploom.trace import (
    Array,
    barriers,
    bf16,
    cta_index,
    elect,
    emit,
    fence_barrier_init,
    kernel,
    loop,
    matrix_descriptor,
    s32,
    shared,
    sync_threads,
    thread,
    warp_roles,
    wgmma_accumulator,
    when,
)

TILE, TILE_K, STAGES = 128, 64, 4
LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
MMA = f"wgmma.mma_async.sync.aligned.m64n{TILE}k16.f32.bf16.bf16"


@kernel(target="sm_90a")
def matmul(a: TensorMap, b: TensorMap, d: Array, k_tiles: s32) -> None:
    """D = A·Bᵀ for A[M, K] and B[N, K]: one 128 × 128 tile per CTA."""
    roles = warp_roles(consume=8, load=1)
    a_tiles = shared(bf16, (STAGES, 2, 64, TILE_K), name="a_tiles", swizzle="128B")
    b_tiles = shared(bf16, (STAGES, TILE, TILE_K), name="b_tiles", swizzle="128B")
    full, empty = barriers("full", STAGES), barriers("empty", STAGES)
    row, column = (cta_index("y") * TILE).to("s32"), (cta_index("x") * TILE).to("s32")

    with when(thread() == 0):
        full.init(1)
        empty.init(2)  # one arrival per consumer warpgroup
        fence_barrier_init()
    sync_threads()

    with roles.load, when(elect()):
        for k in loop(k_tiles):
            stage, turn = k % STAGES, k // STAGES
            empty[stage].wait((turn & 1) ^ 1)
            full[stage].arrive_and_expect(a.box_bytes + b.box_bytes)
            emit(LOAD, a_tiles[stage].place, a.at(row, k * TILE_K), full[stage].at)
            emit(LOAD, b_tiles[stage].place, b.at(column, k * TILE_K), full[stage].at)

    with roles.consume:
        group = (roles.consume.warp // 4).to(s32)  # each warpgroup computes 64 rows of the tile
        accumulator = wgmma_accumulator(TILE)
        for k in loop(k_tiles):
            stage, turn = k % STAGES, k // STAGES
            full[stage].wait(turn & 1)
            left = matrix_descriptor(a_tiles[stage, group].place, leading=16, stride=1024, swizzle="128B")
            right = matrix_descriptor(b_tiles[stage].place, leading=16, stride=1024, swizzle="128B")
            emit("wgmma.fence.sync.aligned")
            for step in range(TILE_K // 16):
                accumulate = k > 0 if step == 0 else True
                emit(MMA, accumulator.registers, left + 2 * step, right + 2 * step, accumulate, 1, 1, 0, 0)
            emit("wgmma.commit_group.sync.aligned")
            emit("wgmma.wait_group.sync.aligned", 0)
            with when(thread() % 128 == 0):
                empty[stage].arrive()
        tile = d.window((row + group * 64, column), (64, TILE))
        result = accumulator.read()
        for at in range(0, len(result.values), 2):
            tile.store(result.values[at : at + 2], result.rows[at], result.columns[at])


def run(rows: int = 256, columns: int = 128, k_extent: int = 320, schedule: str = "eager") -> float:
    """Return the largest error against NumPy; on small integers it must be 0."""
    rng = np.random.default_rng()
    a, b = (rng.integers(-4, 5, (size, k_extent)).astype(ml_dtypes.bfloat16) for size in (rows, columns))
    d = np.zeros((rows, columns), np.float32)
    maps = (TensorMap(x, box=(TILE, TILE_K), swizzle="128B") for x in (a, b))
    grid = (columns // TILE, rows // TILE, 1)
    launch(matmul.bind(*maps, d, k_extent // TILE_K, grid=grid, block=(288, 1, 1)), schedule=schedule)
    return float(np.abs(d - a.astype(np.float32) @ b.astype(np.float32).T).max())


if __name__ == "__main__":
    assert run() == 0
    print("right: 256 × 128 × 320, every element")
