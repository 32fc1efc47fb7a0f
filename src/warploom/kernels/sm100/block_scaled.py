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
    LoadOrderBarrier,
    MmaWarpContext,
    OutputTilePipeline,
    TileScheduler,
    TimeStamps,
    epilogue_load,
    epilogue_writer,
    input_pipeline,
    launch_dependents,
    load_tile,
    operand_tiles,
    scale_factors,
    wait_for_dependencies,
    write_tile,
)
from warploom.trace import Array, Operands, Tensor, f32, kernel, loop, s32, u64, warp_roles, when


@kernel(target="sm_100a")
def block_scaled(
    a: TensorMap, b: TensorMap, sfa: TensorMap, sfb: TensorMap, d: Tensor, m: s32, n: s32, k: s32, batch: s32,
    operands: Operands, auxiliary: Operands | None = None, c: Tensor | None = None,
    workspace: Tensor[f32] | None = None, locks: Tensor[s32] | None = None, trace: Array[u64] | None = None,
    *, config: BlockScaledMatmulConfig, epilogue: Epilogue,
) -> None:  # fmt: skip
    """Compute D from A (m × k) and B (n × k), 4-bit elements packed, and scales in chunks of 128 rows × 4 blocks of K.

    Elements past K are zero, but a scale factor past K must not be NaN, because NaN times zero is NaN. `c` is the
    source of an epilogue load. With `workspace` and `locks`, of `split_k_workspace`, CTAs split K of each tile.
    """
    roles = warp_roles(**config.roles)
    stamps = TimeStamps(trace, roles)
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

    source = order = None
    if c is not None:
        source = epilogue_load(c, config, roles, cluster, columns=n)
        order = LoadOrderBarrier(first=roles.load, then=roles.epilogue_load, cluster=cluster)

    with roles.load:
        ahead, weights = config.prefetch_tiles_n, ("a", "sfa") if config.AB_swapped else ("b", "sfb")
        if not ahead:
            wait_for_dependencies()
        for tile in stamps.each(tiles):
            load_tile(inputs, tile, order, ahead=ahead, weights=weights)  # the K range of this split
        launch_dependents()

    if source is not None and order is not None:
        with roles.epilogue_load:
            wait_for_dependencies()
            for tile in stamps.each(tiles):
                order.wait()  # A and B of the first K tiles are loaded first, because they are needed first
                source.load(tile)

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
                write_tile(writer, acc, tile, (m, n), source=source, workspace=workspace, locks=locks)
