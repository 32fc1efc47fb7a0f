"""A Blackwell GEMM from scratch: three roles and the two pipelines between them, on one page.

The load role copies tiles of A and B, the MMA role multiplies them into accumulators in TMEM, and the epilogue stores one
accumulator while the next is computed. The `with` lines show who waits for whom; arrival counts are derived from the
roles. The kernel runs on the CPU emulator under every schedule and is exact.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from warploom import TensorMap, launch
from warploom.structured import (
    SELF,
    Bytes,
    EpilogueWarpContext,
    MmaWarpContext,
    OutputPipelineConfig,
    OutputTilePipeline,
    ProducerConsumerPipeline,
    TensorCoreCommit,
    TmemAddress,
    TmemTensor,
)
from warploom.trace import (
    Array,
    bf16,
    cta_index,
    f32,
    instruction_descriptor,
    isa,
    kernel,
    lane,
    loop,
    matrix_descriptor,
    s32,
    shared,
    warp_roles,
    when,
)

TILE_M, TILE_N, TILE_K, MMA_K = 128, 64, 64, 16
STAGES, ACCUMULATORS = 3, 2
K_MAJOR = {"leading": 16, "stride": 1024, "swizzle": "128B"}


@kernel(target="sm_100a")
def matmul(a: TensorMap, b: TensorMap, d: Array[f32], tiles: s32, k_tiles: s32) -> None:
    """D = A·Bᵀ: each CTA computes 128 rows of D, tile by tile."""
    roles = warp_roles(epilogue=4, load=1, mma=1)
    a_tiles = shared(bf16, (STAGES, TILE_M, TILE_K), name="a_tiles", swizzle="128B")
    b_tiles = shared(bf16, (STAGES, TILE_N, TILE_K), name="b_tiles", swizzle="128B")
    inputs = ProducerConsumerPipeline(
        STAGES, producer=Bytes(roles.load), consumer=TensorCoreCommit(roles.mma, SELF), name="inputs"
    )
    accumulators = OutputPipelineConfig(ACCUMULATORS, TILE_N, cta_group=1)
    outputs = OutputTilePipeline(
        accumulators, producer=roles.mma, consumer=roles.epilogue, columns=ACCUMULATORS * TILE_N
    )
    row = (cta_index() * TILE_M).to(s32)

    with roles.load:
        for tile in loop(tiles):
            for k in loop(k_tiles):
                with inputs.produce() as stage, when(roles.load.elected):  # waits until the MMAs have read the slot
                    stage.expect_bytes(a.box_bytes + b.box_bytes)
                    isa.cp.async_bulk_tensor_load(a_tiles[stage.index()], a.at(row, k * TILE_K), stage.mbar())
                    isa.cp.async_bulk_tensor_load(b_tiles[stage.index()], b.at(tile * TILE_N, k * TILE_K), stage.mbar())

    with roles.mma, MmaWarpContext(outputs):  # allocates TMEM; frees it after the last read
        shape = instruction_descriptor("f16", TILE_M, TILE_N, "bf16", "bf16", "f32")
        for _ in loop(tiles):
            with outputs.producer() as acc:  # waits until the epilogue has read it
                for k in loop(k_tiles):
                    with inputs.consume() as stage, when(roles.mma.elected):  # waits for both copies
                        left = matrix_descriptor(a_tiles[stage.index()].place, **K_MAJOR)
                        right = matrix_descriptor(b_tiles[stage.index()].place, **K_MAJOR)
                        for step in range(TILE_K // MMA_K):
                            accumulate = k > 0 if step == 0 else True
                            operands = (left + 2 * step, right + 2 * step, shape, accumulate)
                            isa.tcgen05.mma(acc.tmem_offset(), *operands, cta_group=1, kind="f16")

    with roles.epilogue, EpilogueWarpContext(outputs):  # waits for the TMEM address
        first = row + (roles.epilogue.warp * 32 + lane() // 4).to(s32)
        for tile in loop(tiles):
            with outputs.consumer() as acc:  # waits for the MMAs
                accumulator = TmemTensor("f32", (TILE_M, TILE_N), 1, acc.tmem.address(roles.epilogue.warp))
                held = accumulator.load_fragments(TILE_N // 8)
                TmemAddress.wait_load()
            # The next accumulator is computed while this one is stored.
            column = tile * TILE_N + (lane() % 4 * 2).to(s32)
            for (down, along), value in held.by_place.items():
                d[first + down, column + along] = value


def run(rows: int = 256, columns: int = 320, k_extent: int = 256, schedule: str = "eager") -> None:
    """Compare with NumPy on small integers, which are exact; D is NaN before."""
    rng = np.random.default_rng()
    a, b = (rng.integers(-4, 5, (size, k_extent)).astype(ml_dtypes.bfloat16) for size in (rows, columns))
    d = np.full((rows, columns), np.nan, np.float32)
    maps = (TensorMap(x, box=(extent, TILE_K), swizzle="128B") for x, extent in ((a, TILE_M), (b, TILE_N)))
    sizes = (columns // TILE_N, k_extent // TILE_K)
    launch(matmul.bind(*maps, d, *sizes, grid=(rows // TILE_M, 1, 1), block=(192, 1, 1)), schedule=schedule)
    assert np.array_equal(d, a.astype(np.float32) @ b.astype(np.float32).T)


if __name__ == "__main__":
    for name in ("eager", "lazy", "reverse", "random"):
        run(schedule=name)
        print(f"256 × 320 × 256, schedule {name}: every element is right")
