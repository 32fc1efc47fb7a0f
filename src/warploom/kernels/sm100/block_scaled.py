"""Block-scaled GEMM for Blackwell: MXFP8, MXFP4 and NVFP4, whose scale factors the tensor core applies from TMEM.

D = epilogue(Σ_k (sfa·A)[m, k] · (sfb·B)[n, k]), with one scale factor for every `vec_sf_size` elements along K; a scale
of the whole tensors is the epilogue's alpha.
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
    MmaWarpContext,
    OutputTilePipeline,
    TileScheduler,
    epilogue_writer,
    input_pipeline,
    launch_dependents,
    operand_tiles,
    scale_factors,
    wait_for_dependencies,
)
from warploom.trace import Operands, Tensor, kernel, loop, s32, warp_roles, when


@kernel(target="sm_100a")
def block_scaled(
    a: TensorMap, b: TensorMap, sfa: TensorMap, sfb: TensorMap, d: Tensor, m: s32, n: s32, k: s32, batch: s32,
    operands: Operands, auxiliary: Operands | None = None, *, config: BlockScaledMatmulConfig, epilogue: Epilogue,
) -> None:  # fmt: skip
    """Compute D from A (m × k) and B (n × k), 4-bit elements packed, and scales in chunks of 128 rows × 4 blocks of K.

    Elements past K are zero, but a scale factor past K must not be NaN, because NaN times zero is NaN.
    """
    roles = warp_roles(**config.roles)
    cluster = Cluster(config.cluster_shape, config.cta_group)
    tiles = TileScheduler(config, roles, cluster, m=m, n=n, k=k, batch=batch)
    payload = BlockScaledTilePayload(*operand_tiles(a, b, config, cluster), *scale_factors(sfa, sfb, config))
    inputs = input_pipeline(payload, config, roles, cluster)
    outputs = OutputTilePipeline(
        config.output,
        producer=roles.mma,
        consumer=roles.epilogue,
        cluster=cluster,
        columns=config.tensor_memory_columns,
    )
    mma_op = BlockScaledMmaOp(config, roles.mma, cluster)
    writer = epilogue_writer(d, config, roles, epilogue.bound(**operands), auxiliary)

    with roles.load:
        wait_for_dependencies()
        for tile in tiles:
            for step in loop(tile.k_tiles):
                with inputs.produce() as stage:  # waits until the tensor core has read the slot
                    stage.load(tile, step)
        launch_dependents()

    with roles.mma, MmaWarpContext(outputs) as mma:
        for tile in tiles:
            with when(cluster.leader), mma.output_pipeline.producer() as acc:
                for step in loop(tile.k_tiles):
                    with inputs.consume() as stage:  # scale factors are copied to TMEM before the MMAs
                        mma_op.mma_scaled(stage, acc.tmem, tile, accumulate=step > 0)

    with roles.epilogue, EpilogueWarpContext(outputs) as epi:
        wait_for_dependencies()
        for tile in tiles:
            with epi.output_pipeline.consumer() as acc:
                writer.write(acc, tile.coord, (m, n))
