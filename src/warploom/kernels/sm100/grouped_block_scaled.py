"""Grouped block-scaled GEMM for Blackwell: MXFP8, MXFP4, NVFP4, and 8-bit tokens times 4-bit weights.

Rows of many groups are in one array, each group with the weights of its expert; the tensor core applies scale factors
from TMEM. Groups, tiles and gated GEMMs are those of `grouped`, operands and scale factors those of `block_scaled`. The
scale factors of tokens are in chunks of 128 rows, and each group starts with a new chunk.
"""

from __future__ import annotations

from warploom.host.tensor_map import TensorMap
from warploom.structured import (
    BlockScaledMatmulConfig,
    BlockScaledMmaOp,
    BlockScaledTilePayload,
    Cluster,
    Epilogue,
    EpilogueWarpContext,
    GroupedScheduler,
    GroupPlacement,
    MmaWarpContext,
    OutputTilePipeline,
    TimeStamps,
    ceil_divide,
    epilogue_writer,
    input_pipeline,
    launch_dependents,
    operand_tiles,
    scale_factors,
    wait_for_dependencies,
)
from warploom.trace import Array, Operands, Tensor, f32, kernel, loop, s32, u64, warp_roles, when


@kernel(target="sm_100a")
def grouped_block_scaled(
    a: TensorMap, b: TensorMap, sfa: TensorMap, sfb: TensorMap, sf_up: TensorMap | None, d: Tensor, rows: Tensor,
    ends: Array[s32], experts: Array[s32] | None, scales: Array[f32] | None, n: s32, k: s32, operands: Operands,
    auxiliary: Operands | None = None, auxiliary_arrays: Operands | None = None, up: TensorMap | None = None,
    trace: Array[u64] | None = None, *, config: BlockScaledMatmulConfig, epilogue: Epilogue,
) -> None:  # fmt: skip
    """Compute D from tokens (rows × k) and weights (experts × n × k), which are the kernel's A and B.

    D is given as a tensor map and as an array. In a gated GEMM `b` and `sfb` are the gate's, `up` and `sf_up` the
    other matrix and its scale factors.
    """
    roles = warp_roles(**config.roles)
    stamps = TimeStamps(trace, roles)
    cluster = Cluster(config.cluster_shape, config.cta_group)
    places = GroupPlacement(config, cluster)
    tiles = GroupedScheduler(
        ends,
        cluster=cluster,
        columns=n,
        tile_shape=places.tile_shape,
        k_tiles=ceil_divide(ceil_divide(k, config.BK), config.k_group_size),
        experts=experts,
        scales=scales,
        roles=roles,
        dependent=True,
    )
    weights, factors = (b, sfb) if up is None or sf_up is None else ((b, up), (sfb, sf_up))
    payload = BlockScaledTilePayload(
        *operand_tiles(a, weights, config, cluster, **places.operand_rows),
        *scale_factors(sfa, factors, config, **places.scale_rows),
    )
    inputs = input_pipeline(payload, config, roles, cluster)
    outputs = OutputTilePipeline(
        config.output,
        producer=roles.mma,
        consumer=roles.epilogue,
        cluster=cluster,
        columns=config.tensor_memory_columns,
    )
    mma_op = BlockScaledMmaOp(config, roles.mma, cluster)
    writer = epilogue_writer(d, config, roles, epilogue.bound(**operands), auxiliary, auxiliary_arrays)

    with roles.load:
        wait_for_dependencies()
        for tile in stamps.each(tiles):
            for step in loop(tile.k_tiles):
                with inputs.produce() as stage:
                    stage.load(tile, step)
        launch_dependents()

    with roles.mma, MmaWarpContext(outputs) as mma:
        for tile in stamps.each(tiles):
            with when(cluster.leader), mma.output_pipeline.producer() as acc:
                for step in loop(tile.k_tiles):
                    with inputs.consume() as stage:  # scale factors are copied to TMEM before the MMAs
                        mma_op.mma_scaled(stage, acc.tmem, tile, accumulate=step > 0)

    with roles.epilogue, EpilogueWarpContext(outputs) as epi:
        wait_for_dependencies()
        for tile in stamps.each(tiles):
            with epi.output_pipeline.consumer() as acc:
                places.write(writer, acc, tile, rows, n)
