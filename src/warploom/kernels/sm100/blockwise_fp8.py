"""Blockwise FP8 GEMM for Blackwell: the result of each K tile is scaled and accumulated in float32 registers.

D = epilogue(Σ_k a_scales[k, m] · b_scales[n // 128, k] · (A_k·B_kᵀ)[m, n]), with K tiles of 128.
"""

from __future__ import annotations

from warploom.host.tensor_map import TensorMap
from warploom.structured import (
    BlockwiseFP8MatmulConfig,
    BlockwiseFP8TilePayload,
    Cluster,
    ColumnScales,
    Epilogue,
    EpilogueWarpContext,
    FirstLanes,
    MmaOp,
    MmaWarpContext,
    OutputTilePipeline,
    PromotedAccumulator,
    RowScales,
    TileScheduler,
    TimeStamps,
    epilogue_writer,
    input_pipeline,
    launch_dependents,
    operand_tiles,
    wait_for_dependencies,
)
from warploom.trace import Array, Operands, Tensor, kernel, loop, s32, u64, warp_roles, when


@kernel(target="sm_100a")
def blockwise_fp8(
    a: TensorMap, b: TensorMap, a_scales: TensorMap, b_scales: Tensor, d: Tensor, m: s32, n: s32, k: s32, batch: s32,
    operands: Operands, auxiliary: Operands | None = None, trace: Array[u64] | None = None,
    *, config: BlockwiseFP8MatmulConfig, epilogue: Epilogue,
) -> None:  # fmt: skip
    """Compute D from A (m × k), B (n × k), a_scales (K tiles × m) and b_scales (blocks of n × K tiles)."""
    roles = warp_roles(**config.roles)
    stamps = TimeStamps(trace, roles)
    cluster = Cluster(config.cluster_shape, config.cta_group)
    tiles = TileScheduler(config, roles, cluster, m=m, n=n, k=k, batch=batch)
    row_scales = RowScales(a_scales, config)
    payload = BlockwiseFP8TilePayload(*operand_tiles(a, b, config, cluster), row_scales)
    reads_scales = FirstLanes(roles.epilogue, first=cluster.size)  # the epilogue reads A's scales from the stage
    inputs = input_pipeline(payload, config, roles, cluster, also=(reads_scales,))
    outputs = OutputTilePipeline(
        config.output,
        producer=roles.mma,
        consumer=roles.epilogue,
        cluster=cluster,
        columns=config.tensor_memory_columns,
    )
    mma_op = MmaOp(config, roles.mma, cluster)
    writer = epilogue_writer(d, config, roles, epilogue.bound(**operands), auxiliary)

    with roles.load:
        wait_for_dependencies()
        for tile in stamps.each(tiles):
            for step in loop(tile.k_tiles):
                with inputs.produce() as stage:  # waits until the tensor core and the epilogue have read the slot
                    stage.load(tile, step)
        launch_dependents()

    with roles.mma, MmaWarpContext(outputs) as mma:
        for tile in stamps.each(tiles):
            with when(cluster.leader):
                for _ in loop(tile.k_tiles):
                    with mma.per_k_stage() as acc, inputs.consume() as stage:  # a fresh accumulator for each K tile
                        mma_op.mma(stage, acc.tmem, accumulate=False)

    with roles.epilogue, EpilogueWarpContext(outputs) as epi:
        wait_for_dependencies()
        factors = (row_scales, ColumnScales(b_scales, config, n))
        accumulator = PromotedAccumulator(config, roles.epilogue, *factors, tmem=outputs.tmem)
        for tile in stamps.each(tiles):
            accumulator.clear()
            for step in loop(tile.k_tiles):
                column_scales = accumulator.column_scales(tile, step)
                with epi.per_k_stage(inputs) as partial:  # waits for the tensor core, and for A's scales
                    accumulator.promote(partial, tile, column_scales)
            writer.write(accumulator, tile.coord, (m, n))
