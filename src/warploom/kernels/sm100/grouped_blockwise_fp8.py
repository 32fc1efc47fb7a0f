"""Grouped blockwise FP8 GEMM for Blackwell: each K tile is scaled and accumulated in float32 registers, by groups.

D[r] = epilogue(scale[e] · Σ_k a_scales[k, r] · b_scales[e, n // 128, k] · (A_k·B[e]_kᵀ)[r, n]) for the rows r of a
group with expert e. Groups and tiles are those of `grouped`; every role searches for its tiles itself.
"""

from __future__ import annotations

from warploom.hardware.tensor_maps import ADDRESS_ALIGNMENT
from warploom.host.tensor_map import TensorMap
from warploom.structured import (
    BlockwiseFP8MatmulConfig,
    BlockwiseFP8TilePayload,
    Cluster,
    ColumnScales,
    Epilogue,
    EpilogueWarpContext,
    FirstLanes,
    GroupedScheduler,
    GroupPlacement,
    MmaOp,
    MmaWarpContext,
    OutputTilePipeline,
    PromotedAccumulator,
    RowScales,
    TimeStamps,
    ceil_divide,
    epilogue_writer,
    input_pipeline,
    launch_dependents,
    operand_tiles,
    wait_for_dependencies,
)
from warploom.trace import Array, Operands, Tensor, f32, kernel, loop, s32, u64, warp_roles, when


@kernel(target="sm_100a")
def grouped_blockwise_fp8(
    a: TensorMap, b: TensorMap, a_scales: TensorMap, b_scales: Tensor, d: Tensor, rows: Tensor, ends: Array[s32],
    experts: Array[s32] | None, scales: Array[f32] | None, n: s32, k: s32, operands: Operands,
    auxiliary: Operands | None = None, auxiliary_arrays: Operands | None = None, trace: Array[u64] | None = None,
    *, config: BlockwiseFP8MatmulConfig, epilogue: Epilogue,
) -> None:  # fmt: skip
    """Compute D from tokens (rows × k), weights (experts × n × k), and b_scales (experts × blocks of n × K tiles).

    a_scales are (K tiles × rows), and each group starts at a multiple of 16 bytes, where TMA can start.
    """
    roles = warp_roles(**config.roles)
    stamps = TimeStamps(trace, roles)
    cluster = Cluster(config.cluster_shape, config.cta_group)
    places, unit = GroupPlacement(config, cluster), ADDRESS_ALIGNMENT // a_scales.geometry.element.shared_bytes
    tiles = GroupedScheduler(
        ends,
        cluster=cluster,
        columns=n,
        tile_shape=places.tile_shape,
        k_tiles=ceil_divide(k, config.BK),
        experts=experts,
        scales=scales,
        dependent=True,
    )
    row_scales = RowScales(a_scales, config, lambda tile: places.padded_row(tile, unit))
    payload = BlockwiseFP8TilePayload(*operand_tiles(a, b, config, cluster, **places.operand_rows), row_scales)
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
    writer = epilogue_writer(d, config, roles, epilogue.bound(**operands), auxiliary, auxiliary_arrays)

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
        factors = (row_scales, ColumnScales(b_scales, config, n), places.column)
        accumulator = PromotedAccumulator(config, roles.epilogue, *factors, tmem=outputs.tmem)
        for tile in stamps.each(tiles):
            accumulator.clear()
            for step in loop(tile.k_tiles):
                column_scales = accumulator.column_scales(tile, step)
                with epi.per_k_stage(inputs) as partial:  # waits for the tensor core, and for A's scales
                    accumulator.promote(partial, tile, column_scales)
            places.write(writer, accumulator, tile, rows, n)
